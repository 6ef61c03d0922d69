package inference

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/nnrp"
	"github.com/cfpipe/cfpipe/nnrp/lz4codec"
)

// flat makes an NV12 picture of one colour with pitches wider than the picture.
func flat(w, h int, y, u, v byte) *NV12 {
	p := &NV12{Width: w, Height: h, PitchY: w + 16, PitchUV: w + 32, Y: make([]byte, (w+16)*h), UV: make([]byte, (w+32)*((h+1)/2))}
	for i := range p.Y {
		p.Y[i] = y
	}
	for i := 0; i+1 < len(p.UV); i += 2 {
		p.UV[i], p.UV[i+1] = u, v
	}
	return p
}

func TestNV12Colours(t *testing.T) {
	for name, c := range map[string]struct {
		y, u, v byte
		bt709   bool
		rgb     [3]int
	}{ // the colour bars of the standards, limited range
		"black":     {16, 128, 128, false, [3]int{0, 0, 0}},
		"white":     {235, 128, 128, false, [3]int{255, 255, 255}},
		"grey":      {126, 128, 128, true, [3]int{128, 128, 128}},
		"red 601":   {81, 90, 240, false, [3]int{255, 0, 0}},
		"green 601": {145, 54, 34, false, [3]int{0, 255, 0}},
		"blue 601":  {41, 240, 110, false, [3]int{0, 0, 255}},
		"red 709":   {63, 102, 240, true, [3]int{255, 0, 0}},
		"green 709": {173, 42, 26, true, [3]int{0, 255, 0}},
		"blue 709":  {32, 240, 118, true, [3]int{0, 0, 255}},
	} {
		conv, err := NewConverter(Format{Width: 7, Height: 5, Channels: 3, DType: nnrp.Uint8})
		require.NoError(t, err)
		dst := make([]byte, 7*5*3)
		p := flat(16, 10, c.y, c.u, c.v)
		p.BT709 = c.bt709
		require.NoError(t, conv.NV12(dst, p))
		for i := range dst {
			require.InDelta(t, c.rgb[i%3], int(dst[i]), 2, name)
		}
	}
}

func TestScale(t *testing.T) {
	// A ramp stays a ramp; each pixel of the half-size picture is the mean of two.
	p := flat(8, 2, 0, 128, 128)
	for x := range 8 {
		p.Y[x], p.Y[p.PitchY+x] = byte(16+20*x), byte(16+20*x)
	}
	conv, err := NewConverter(Format{Width: 4, Height: 2, Channels: 1, DType: nnrp.Uint8})
	require.NoError(t, err)
	dst := make([]byte, 8)
	require.NoError(t, conv.NV12(dst, p))
	for x := range 4 {
		require.InDelta(t, float64(20*(4*x+1))/2*255/219, float64(dst[x]), 1)
	}
	for _, bad := range []*NV12{
		{Y: p.Y, UV: p.UV, PitchY: 4, PitchUV: 40, Width: 8, Height: 2},
		{Y: p.Y[:20], UV: p.UV, PitchY: 24, PitchUV: 40, Width: 8, Height: 2},
		{Y: p.Y, UV: p.UV[:4], PitchY: 24, PitchUV: 40, Width: 8, Height: 2},
		{},
	} {
		require.Error(t, conv.NV12(dst, bad))
	}
	require.Error(t, conv.NV12(dst[:7], p))
}

func TestDTypesAndLayouts(t *testing.T) {
	rgb := []byte{0, 51, 255, 102, 204, 1} // two pixels
	get := func(d nnrp.DType, l nnrp.Layout) []byte {
		f := Format{Width: 2, Height: 1, Channels: 3, DType: d, Layout: l}
		c, err := NewConverter(f)
		require.NoError(t, err)
		dst := make([]byte, f.Size())
		require.NoError(t, c.RGB(dst, rgb, 6, 2, 1))
		return dst
	}
	require.Equal(t, rgb, get(nnrp.Uint8, nnrp.NHWC))
	require.Equal(t, []byte{0, 102, 51, 204, 255, 1}, get(nnrp.Uint8, nnrp.NCHW))
	require.Equal(t, []byte{0x80, 0xb3, 0x7f, 0xe6, 0x4c, 0x81}, get(nnrp.Int8, nnrp.NHWC))
	b := get(nnrp.FP32, nnrp.NCHW)
	require.InDelta(t, 102.0/255, math.Float32frombits(binary.LittleEndian.Uint32(b[4:])), 1e-6)
	h := get(nnrp.FP16, nnrp.NHWC)
	require.EqualValues(t, 0x0000, binary.LittleEndian.Uint16(h[0:]))
	require.EqualValues(t, 0x3266, binary.LittleEndian.Uint16(h[2:])) // 0.2 in half precision
	require.EqualValues(t, 0x3c00, binary.LittleEndian.Uint16(h[4:])) // 1.0
	require.EqualValues(t, 0x3666, binary.LittleEndian.Uint16(h[6:])) // 0.4
	require.EqualValues(t, 0x3a66, binary.LittleEndian.Uint16(h[8:])) // 0.8
	require.EqualValues(t, 0x1c04, binary.LittleEndian.Uint16(h[10:]), "1/255")
	u := get(nnrp.Uint16, nnrp.NHWC)
	require.EqualValues(t, 65535, binary.LittleEndian.Uint16(u[4:]))
	_, err := NewConverter(Format{Width: 1, Height: 1, Channels: 3, DType: nnrp.FP8E4M3})
	require.Error(t, err)
}

// TestTilerAgainstCanvas: whatever is lost or reordered on the way, a picture that the runtime accepts is the one that was sent.
func TestTilerAgainstCanvas(t *testing.T) {
	for _, f := range []Format{
		{Width: 50, Height: 34, Channels: 3, DType: nnrp.Uint8, Layout: nnrp.NHWC},
		{Width: 50, Height: 34, Channels: 3, DType: nnrp.FP16, Layout: nnrp.NCHW},
		{Width: 48, Height: 32, Channels: 1, DType: nnrp.Uint8, Layout: nnrp.NHWC},
	} {
		tiler, err := NewTiler(TilerOptions{Format: f, Tile: 16, Codecs: []nnrp.Codec{lz4codec.Codec{}}})
		require.NoError(t, err)
		codecs := []nnrp.Codec{lz4codec.Codec{}}
		g := geometry{f.Width, f.Height, f.Channels, f.DType, f.Layout}
		var c canvas
		var last uint32
		picture := make([]byte, f.Size())
		seed := uint32(1)
		random := func(n int) int {
			seed = seed*1664525 + 1013904223
			return int(seed>>8) % n
		}
		whole, partial, missed := 0, 0, 0
		for id := uint32(1); id <= 400; id++ {
			for range random(4) {
				picture[random(len(picture))] += byte(random(255) + 1)
			}
			m, n, err := tiler.Frame(id, picture)
			require.NoError(t, err)
			if n == 0 {
				continue
			}
			wire, err := m.Append(nil, nnrp.Header{FrameID: id})
			require.NoError(t, err)
			if random(5) == 0 { // lost
				continue
			}
			if id%50 == 0 { // the runtime restarts
				c = canvas{}
			}
			h, got, _, err := nnrp.ParseMessage(wire, &nnrp.Limits{})
			require.NoError(t, err)
			sub := got.(*nnrp.FrameSubmit)
			ids := sub.TileIndex.AppendIDs(nil)
			_, err = c.apply(h.FrameID, sub, g, ids, codecs, nil)
			if err != nil {
				require.ErrorIs(t, err, nnrp.ErrCacheMiss)
				missed++
				tiler.Reset()
				continue
			}
			last = id
			require.Equal(t, picture, c.pixels, "frame %d", id)
			if sub.FrameClass == nnrp.ClassKeyframe {
				whole++
			} else {
				partial++
			}
			if random(3) > 0 { // the result may be lost, too
				tiler.Has(last)
			}
		}
		t.Logf("%v: %d whole, %d partial, %d missed", g, whole, partial, missed)
		require.Greater(t, partial, 200)
		require.Less(t, whole, 60)
		require.Positive(t, missed)
	}
}

func TestTilerThresholdAndSkip(t *testing.T) {
	f := Format{Width: 32, Height: 32, Channels: 1, DType: nnrp.Uint8}
	tiler, err := NewTiler(TilerOptions{Format: f, Tile: 16, Threshold: 2, Codecs: []nnrp.Codec{lz4codec.Codec{}}})
	require.NoError(t, err)
	picture := make([]byte, f.Size())
	m, n, err := tiler.Frame(1, picture)
	require.NoError(t, err)
	require.Equal(t, 4, n)
	require.Equal(t, nnrp.ClassKeyframe, m.FrameClass)
	require.Less(t, len(m.Sections[0].Payload), 100, "zeros compress")
	tiler.Has(1)
	picture[0] = 255 // mean difference 1
	_, n, err = tiler.Frame(2, picture)
	require.NoError(t, err)
	require.Zero(t, n)
	for i := range 5 {
		picture[i] = 255
	}
	m, n, err = tiler.Frame(3, picture)
	require.NoError(t, err)
	require.Equal(t, 1, n)
	require.EqualValues(t, 1, m.DependencyFrameID)
	_, n, err = tiler.Frame(4, picture)
	require.NoError(t, err)
	require.Equal(t, 1, n, "frame 3 had no result yet: its tile goes again")
	seed := uint32(1)
	for i := range picture {
		seed = seed*1664525 + 1013904223
		picture[i] = byte(seed >> 24)
	}
	_, n, err = tiler.Frame(5, picture)
	require.NoError(t, err)
	require.Equal(t, 4, n)
	m, _, err = tiler.Frame(6, picture)
	require.NoError(t, err)
	require.Nil(t, m.Sections[0].CodecTable, "noise does not compress: not tried again for a while")
}
