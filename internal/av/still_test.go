package av

import (
	"bytes"
	"image"
	"image/jpeg"
	"image/png"
	"math/rand/v2"
	"reflect"
	"testing"

	"github.com/stretchr/testify/require"
)

// gradient is an NV12 picture whose colour is known: the left half is BT.709 red, the right half white, at video range.
func gradient(w, h int) Still {
	y, uv := make([]byte, w*h), make([]byte, (w+1)/2*2*((h+1)/2))
	for i := range y {
		if y[i] = 63; i%w >= w/2 {
			y[i] = 235
		}
	}
	for i := 0; i < len(uv); i += 2 {
		uv[i], uv[i+1] = 102, 240
		if i%((w+1)/2*2) >= w/2 {
			uv[i], uv[i+1] = 128, 128
		}
	}
	return Still{Format: NV12, Width: w, Height: h, Planes: []StillPlane{{y, w}, {uv, (w + 1) / 2 * 2}}}
}

func TestStillKeepsColours(t *testing.T) {
	for name, c := range map[string]struct {
		format StillFormat
		decode func(b []byte) (image.Image, error)
	}{
		"jpeg": {JPEG, func(b []byte) (image.Image, error) { return jpeg.Decode(bytes.NewReader(b)) }},
		"png":  {PNG, func(b []byte) (image.Image, error) { return png.Decode(bytes.NewReader(b)) }},
	} {
		t.Run(name, func(t *testing.T) {
			for _, size := range [][2]int{{1280, 720}, {1284, 722}, {1281, 721}} {
				b, err := EncodeStill(gradient(size[0], size[1]), c.format, 2)
				require.NoError(t, err)
				img, err := c.decode(b)
				require.NoError(t, err)
				require.Equal(t, image.Rect(0, 0, size[0], size[1]), img.Bounds())
				r, g, bl, _ := img.At(100, 300).RGBA()
				require.InDelta(t, 255, r>>8, 6)
				require.InDelta(t, 0, g>>8, 6)
				require.InDelta(t, 0, bl>>8, 6)
				r, g, bl, _ = img.At(1200, 300).RGBA()
				require.InDelta(t, 255, r>>8, 3)
				require.InDelta(t, 255, g>>8, 3)
				require.InDelta(t, 255, bl>>8, 3)
			}
		})
	}
}

// Every pixel of a JPEG has the colour that the standards say, for all luma and a grid of chroma, whichever matrix the size stands for.
func TestStillColoursExact(t *testing.T) {
	for lines, k := range map[int][2]float64{720: {0.2126, 0.0722}, 716: {0.299, 0.114}} {
		const w = 1280
		y, uv := make([]byte, w*lines), make([]byte, w*lines/2)
		for i := range y { // blocks of 16×16 of one colour: what JPEG leaves as it is
			y[i] = byte(16 + i/16%(w/16)*219/(w/16))
		}
		for i := 0; i < len(uv); i += 2 {
			row := i / w / 8
			uv[i], uv[i+1] = byte(96+row%8*9), byte(96+row/8*11)
		}
		b, err := EncodeStill(Still{Format: NV12, Width: w, Height: lines, Planes: []StillPlane{{y, w}, {uv, w}}}, JPEG, 1)
		require.NoError(t, err)
		img, err := jpeg.Decode(bytes.NewReader(b))
		require.NoError(t, err)
		for row := range lines / 16 {
			for col := range w / 16 {
				at := row*16*w + col*16
				luma, u, v := (float64(y[at])-16)/219, (float64(uv[row*8*w])-128)/224, (float64(uv[row*8*w+1])-128)/224
				r, bl := luma+2*(1-k[0])*v, luma+2*(1-k[1])*u
				g := (luma - k[0]*r - k[1]*bl) / (1 - k[0] - k[1])
				wantY := 0.299*r + 0.587*g + 0.114*bl
				want := [3]float64{255 * wantY, 128 + 255*(bl-wantY)/1.772, 128 + 255*(r-wantY)/1.402}
				c := img.(*image.YCbCr).YCbCrAt(col*16+8, row*16+8)
				for i, have := range []uint8{c.Y, c.Cb, c.Cr} {
					require.InDelta(t, min(max(want[i], 0), 255), float64(have), 2, "%d lines, block %d,%d, component %d", lines, col, row, i)
				}
			}
		}
	}
}

func TestStillRefuses(t *testing.T) {
	for _, s := range []Still{{}, {Width: 1, Height: 1}, {Format: 99, Width: 1, Height: 1, Planes: []StillPlane{{make([]byte, 4), 4}}}} {
		_, err := EncodeStill(s, JPEG, 3)
		require.Error(t, err)
	}
	_, err := EncodeStill(gradient(64, 64), JPEG, 32)
	require.Error(t, err)
}

// A JPEG of stripes that were encoded in parallel has the pixels of one that was not.
func TestStillStripes(t *testing.T) {
	const wide = 16384 // half of its lines have more coding units than a restart interval can
	for _, size := range [][2]int{{1920, 1080}, {641, 363}, {64, 32}, {1280, 720}, {wide, 2112}} {
		s := gradient(size[0], size[1])
		random := rand.New(rand.NewPCG(1, 2))
		for _, p := range s.Planes {
			for i := range p.Data {
				p.Data[i] += byte(random.IntN(16))
			}
		}
		var want image.Image
		for n := 1; n <= 9 && (n <= 2 || size[0] < wide); n++ {
			b, err := encodeCamera(s, 3, n)
			require.NoError(t, err)
			img, err := jpeg.Decode(bytes.NewReader(b))
			require.NoError(t, err)
			if n == 1 {
				want = img
			}
			require.True(t, reflect.DeepEqual(want, img), "%v in %d stripes", size, n)
		}
	}
}

func TestJoinStripesRefuses(t *testing.T) {
	b, err := EncodeStill(gradient(64, 64), JPEG, 3)
	require.NoError(t, err)
	for n := range b {
		_, err := joinStripes([][]byte{bytes.Clone(b[:n]), bytes.Clone(b)}, 128, 16)
		require.ErrorIs(t, err, errStripe, "%d bytes", n)
	}
}
