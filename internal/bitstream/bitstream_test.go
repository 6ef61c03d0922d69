package bitstream

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// bitWriter makes parameter sets by hand.
type bitWriter struct {
	b []byte
	n int
}

func (w *bitWriter) u(bits int, v uint32) *bitWriter {
	for i := bits - 1; i >= 0; i-- {
		if w.n%8 == 0 {
			w.b = append(w.b, 0)
		}
		w.b[len(w.b)-1] |= byte(v>>i&1) << (7 - w.n%8)
		w.n++
	}
	return w
}

func (w *bitWriter) ue(v uint32) *bitWriter {
	bits := 0
	for (v+1)>>bits != 0 {
		bits++
	}
	return w.u(2*bits-1, v+1)
}

// nal ends the payload with the stop bit and sets the emulation prevention bytes.
func (w *bitWriter) nal(header ...byte) []byte {
	w.u(1, 1)
	out := header
	zeros := 0
	for _, c := range w.b {
		if zeros >= 2 && c <= 3 {
			out = append(out, 3)
			zeros = 0
		}
		out = append(out, c)
		if c == 0 {
			zeros++
		} else {
			zeros = 0
		}
	}
	return out
}

type h264Spec struct {
	profile              uint32
	widthMBs, heightMBs  uint32
	crop                 [4]uint32 // left, right, top, bottom, in crop units
	tick, scale, reorder uint32
	vui                  bool
}

func (s h264Spec) sps() []byte {
	w := &bitWriter{}
	w.u(8, s.profile).u(8, 0).u(8, 40).ue(0)
	if s.profile == 100 {
		w.ue(1).ue(0).ue(0).u(1, 0).u(1, 0)
	}
	w.ue(4).ue(0).ue(4).ue(3).u(1, 0).ue(s.widthMBs-1).ue(s.heightMBs-1).u(1, 1).u(1, 1)
	if s.crop != [4]uint32{} {
		w.u(1, 1).ue(s.crop[0]).ue(s.crop[1]).ue(s.crop[2]).ue(s.crop[3])
	} else {
		w.u(1, 0)
	}
	if !s.vui {
		return w.u(1, 0).nal(0x67)
	}
	w.u(1, 1).u(1, 0).u(1, 0).u(1, 0).u(1, 0)
	w.u(1, 1).u(16, s.tick>>16).u(16, s.tick&0xFFFF).u(16, s.scale>>16).u(16, s.scale&0xFFFF).u(1, 1)
	w.u(1, 0).u(1, 0).u(1, 0)
	w.u(1, 1).u(1, 1).ue(0).ue(0).ue(10).ue(10).ue(s.reorder).ue(4)
	return w.nal(0x67)
}

var full = h264Spec{profile: 100, widthMBs: 120, heightMBs: 68, crop: [4]uint32{0, 0, 0, 4}, vui: true, tick: 1, scale: 50, reorder: 2}

func TestH264SPS(t *testing.T) {
	sps, ok := ParseSPS(media.H264, full.sps())
	require.True(t, ok)
	require.Equal(t, Format{Codec: media.H264, Width: 1920, Height: 1080, Profile: 100, ChromaFormat: 1, BitDepth: 8}, sps.Format)
	require.Equal(t, 25.0, sps.FPS)
	require.Equal(t, 2, sps.Reorder)

	all := full
	all.crop = [4]uint32{1, 2, 3, 4} // left and top count like right and bottom
	sps, ok = ParseSPS(media.H264, all.sps())
	require.True(t, ok)
	require.Equal(t, [2]int{1914, 1074}, [2]int{sps.Width, sps.Height})

	base := h264Spec{profile: 66, widthMBs: 40, heightMBs: 30}
	sps, ok = ParseSPS(media.H264, base.sps())
	require.True(t, ok)
	require.Equal(t, 0, sps.Reorder, "Baseline has no B pictures")
	base.profile = 77
	sps, _ = ParseSPS(media.H264, base.sps())
	require.Equal(t, -1, sps.Reorder, "not said")
}

// Case b8: bytes behind the stop bit, and a VUI that breaks off.
func TestSPSTrailingBytes(t *testing.T) {
	want, _ := ParseSPS(media.H264, full.sps())
	for _, tail := range [][]byte{{0}, {0, 0}, {0x80}, {0xDE, 0xAD, 0xBE, 0xEF}, make([]byte, 40)} {
		got, ok := ParseSPS(media.H264, append(full.sps(), tail...))
		require.True(t, ok)
		require.Equal(t, want, got)
	}
	nal := full.sps()
	for n := 14; n < len(nal); n++ {
		got, ok := ParseSPS(media.H264, nal[:n])
		require.True(t, ok, n)
		require.Equal(t, want.Format, got.Format)
	}
	for n := range 8 {
		_, ok := ParseSPS(media.H264, nal[:n])
		require.False(t, ok, n)
	}
}

func TestNALs(t *testing.T) {
	au := []byte{0, 0, 0, 1, 0x67, 1, 0, 0, 1, 0x68, 2, 0, 0, 0, 0, 1, 0x65, 0, 0, 3, 0, 0, 3, 1}
	var got [][]byte
	for nal := range NALs(au) {
		got = append(got, nal)
	}
	require.Equal(t, [][]byte{{0x67, 1}, {0x68, 2}, {0x65, 0, 0, 3, 0, 0, 3, 1}}, got)

	avcc := appendAVCC(nil, au)
	back, err := AppendAnnexB(nil, avcc, 4)
	require.NoError(t, err)
	require.Equal(t, []byte{0, 0, 0, 1, 0x67, 1, 0, 0, 0, 1, 0x68, 2, 0, 0, 0, 1, 0x65, 0, 0, 3, 0, 0, 3, 1}, back)
	for n := range avcc {
		_, err := AppendAnnexB(nil, avcc[:n], 4)
		if n != 0 && n != 6 && n != 12 {
			require.ErrorIs(t, err, errTruncated, n)
		}
	}
	short, err := AppendAnnexB(nil, []byte{0, 1, 0x65, 0, 0, 0, 2, 0x41, 0x9A}, 2)
	require.NoError(t, err)
	require.Equal(t, []byte{0, 0, 0, 1, 0x65, 0, 0, 0, 1, 0x41, 0x9A}, short)
}

func annexB(nals ...[]byte) (b []byte) {
	for _, n := range nals {
		b = AppendNAL(b, n)
	}
	return b
}

var (
	pps   = []byte{0x68, 0xCE, 0x3C, 0x80}
	aud   = []byte{0x09, 0xF0}
	idr   = []byte{0x65, 0x88, 0x84, 0x01}
	slice = []byte{0x41, 0x9A, 0x02, 0x03}
	sei   = []byte{0x06, 5, 1, 0xAA, 0x80}
)

// Cases b1 and b3: sets from the session description go in front of every keyframe, the newest of an id wins.
func TestParameterSets(t *testing.T) {
	p := NewParameterSets(media.H264)
	require.Nil(t, p.Extradata())
	first, second := full, full
	second.scale = 60
	require.True(t, p.Add(first.sps()))
	require.False(t, p.Complete())
	require.True(t, p.Add(pps))
	require.True(t, p.Complete())
	require.False(t, p.Add(first.sps()))
	require.Equal(t, annexB(first.sps(), pps), p.Extradata())

	require.True(t, p.Missing(annexB(idr)))
	require.Equal(t, annexB(first.sps(), pps, idr), p.Insert(nil, annexB(idr)))
	require.Equal(t, annexB(aud, first.sps(), pps, sei, idr), p.Insert(nil, annexB(aud, sei, idr)))

	whole := annexB(aud, second.sps(), pps, idr)
	require.True(t, p.Update(whole))
	require.False(t, p.Missing(whole))
	require.Equal(t, annexB(second.sps(), pps, idr), p.Insert(nil, annexB(idr)), "the newest set of an id stands alone")
	sps, ok := p.SPS()
	require.True(t, ok)
	require.Equal(t, 30.0, sps.FPS)
	require.Equal(t, 1920, sps.Width)

	half := annexB(second.sps(), idr) // the PPS missing alone
	require.True(t, p.Missing(half))
	require.Equal(t, annexB(second.sps(), pps, idr), p.Insert(nil, half))
}

func TestParameterSetsBounded(t *testing.T) {
	p := NewParameterSets(media.H264)
	p.Add(full.sps())
	for id := range uint32(300) {
		p.Add((&bitWriter{}).ue(id).u(8, id).nal(0x68))
	}
	require.Len(t, p.kinds[kindPPS], maxSets)
	require.LessOrEqual(t, len(p.Extradata()), MaxExtradata)
	require.False(t, p.Add(append(full.sps(), make([]byte, MaxExtradata)...)), "too long to be one")
}

func TestConfigRecords(t *testing.T) {
	sps := full.sps()
	avcc := append([]byte{1, 100, 0, 40, 0xFF, 0xE1, byte(len(sps) >> 8), byte(len(sps))}, sps...)
	avcc = append(append(avcc, 1, 0, byte(len(pps))), pps...)
	p := NewParameterSets(media.H264)
	require.NoError(t, p.AddExtradata(avcc))
	require.Equal(t, annexB(sps, pps), p.Extradata())
	for n := range avcc {
		_, _, err := ParseConfigRecord(media.H264, avcc[:n])
		require.Error(t, err, n)
	}
}

func TestInspect(t *testing.T) {
	intra := (&bitWriter{}).ue(0).ue(7).u(8, 1).nal(0x41)
	inter := (&bitWriter{}).ue(0).ue(5).u(8, 1).nal(0x41)
	recovery := []byte{0x06, 6, 1, 0x84, 0x80} // recovery_frame_cnt 0
	gradual := []byte{0x06, 6, 1, 0x44, 0x80}  // recovery_frame_cnt 1
	for name, c := range map[string]struct {
		codec uint32
		au    []byte
		want  Info
	}{
		"idr":             {media.H264, annexB(aud, full.sps(), pps, idr), Info{Slice: true, Key: true, IDR: true}},
		"p":               {media.H264, annexB(aud, slice), Info{Slice: true}},
		"sets alone":      {media.H264, annexB(full.sps(), pps), Info{}},
		"recovery point":  {media.H264, annexB(recovery, intra), Info{Slice: true, Key: true}},
		"recovery, inter": {media.H264, annexB(recovery, inter), Info{Slice: true}},
		"one slice inter": {media.H264, annexB(recovery, intra, inter), Info{Slice: true}},
		"gradual refresh": {media.H264, annexB(gradual, intra), Info{Slice: true}},
		"intra alone":     {media.H264, annexB(intra), Info{Slice: true}},
		"hevc idr":        {media.HEVC, annexB([]byte{19 << 1, 1, 0x80}), Info{Slice: true, Key: true, IDR: true}},
		"hevc cra":        {media.HEVC, annexB([]byte{21 << 1, 1, 0x80}), Info{Slice: true, Key: true}},
		"hevc bla":        {media.HEVC, annexB([]byte{16 << 1, 1, 0x80}), Info{Slice: true, Key: true}},
		"hevc trail":      {media.HEVC, annexB([]byte{1 << 1, 1, 0x80}), Info{Slice: true}},
		"empty":           {media.H264, nil, Info{}},
		"short":           {media.HEVC, annexB([]byte{38}), Info{}},
	} {
		require.Equal(t, c.want, Inspect(c.codec, c.au), name)
	}
	require.True(t, Classify(media.H264, idr).FirstSlice)
	require.False(t, Classify(media.H264, []byte{0x65, 0x48}).FirstSlice)
	require.True(t, Classify(media.HEVC, []byte{2, 1, 0x80}).FirstSlice)
	require.False(t, Classify(media.HEVC, []byte{2, 1, 0x40}).FirstSlice)
}

func TestAV1(t *testing.T) {
	seq := []byte{0x0A, 0x0B, 0x00, 0x00, 0x00, 0x42, 0xA7, 0xBF, 0xE4, 0x60, 0x0D, 0x00, 0x40}
	f, ok := AV1Format(seq)
	require.True(t, ok)
	require.Equal(t, Format{Codec: media.AV1, Width: 1920, Height: 804, ChromaFormat: 1, BitDepth: 8}, f)
	key := append(append([]byte{}, seq...), 0x32, 2, 0x10, 0)
	require.True(t, AV1IsKey(key))
	require.True(t, AV1IsKey(key))
	require.False(t, AV1IsKey([]byte{0x32, 2, 0x10, 0}), "no sequence header")
	require.False(t, AV1IsKey(append(append([]byte{}, seq...), 0x32, 2, 0x30, 0)), "inter frame")
	require.Equal(t, seq, AV1Extradata(key))
	unsized := append([]byte{0x08}, seq[2:]...)
	require.Equal(t, seq, AV1Extradata(unsized))
}

func TestJPEGSize(t *testing.T) {
	b := []byte{0xFF, 0xD8, 0xFF, 0xDB, 0, 3, 0, 0xFF, 0xC0, 0, 11, 8, 4, 0x38, 7, 0x80, 1, 1, 0x11, 0}
	w, h, ok := JPEGSize(b)
	require.True(t, ok)
	require.Equal(t, [2]int{1920, 1080}, [2]int{w, h})
	for n := range 16 {
		_, _, ok := JPEGSize(b[:n])
		require.False(t, ok, n)
	}
}

// Real encoders: sizes, rates and reorder depths as asked for, keyframes where asked for.
func TestEncoders(t *testing.T) {
	ffmpeg := testenv.NeedTool(t, "ffmpeg")
	for _, c := range []struct {
		name    string
		codec   uint32
		args    []string
		reorder int
	}{
		{"h264", media.H264, []string{"-c:v", "libx264", "-bf", "2", "-x264-params", "b-pyramid=none", "-f", "h264"}, 1},
		{"h264 pyramid", media.H264, []string{"-c:v", "libx264", "-bf", "4", "-f", "h264"}, 2},
		{"h264 baseline", media.H264, []string{"-c:v", "libx264", "-profile:v", "baseline", "-f", "h264"}, 0},
		{"hevc", media.HEVC, []string{"-c:v", "libx265", "-x265-params", "log-level=none:bframes=3", "-f", "hevc"}, 2},
		{"hevc main10", media.HEVC, []string{"-pix_fmt", "yuv420p10le", "-c:v", "libx265", "-x265-params", "log-level=none:bframes=0", "-f", "hevc"}, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			out := filepath.Join(t.TempDir(), "clip")
			args := append([]string{"-v", "error", "-f", "lavfi", "-i", "testsrc2=s=326x182:r=25", "-frames:v", "30", "-g", "10",
				"-preset", "ultrafast"}, c.args...)
			if c.name == "h264 pyramid" || c.name == "h264" || c.name == "hevc" {
				for i, a := range args {
					if a == "ultrafast" {
						args[i] = "veryfast"
					}
				}
			}
			b, err := exec.Command(ffmpeg, append(args, out)...).CombinedOutput()
			require.NoError(t, err, string(b))
			stream, err := os.ReadFile(out)
			require.NoError(t, err)
			p := NewParameterSets(c.codec)
			keys, pictures := 0, 0
			for nal := range NALs(stream) {
				p.Add(nal)
				cl := Classify(c.codec, nal)
				if cl.FirstSlice {
					pictures++
					if cl.IRAP {
						keys++
					}
				}
			}
			sps, ok := p.SPS()
			require.True(t, ok)
			require.Equal(t, [2]int{326, 182}, [2]int{sps.Width, sps.Height})
			require.Equal(t, c.reorder, sps.Reorder)
			if c.codec == media.H264 {
				require.Equal(t, 25.0, sps.FPS)
			}
			if c.name == "hevc main10" {
				require.Equal(t, 10, sps.BitDepth)
			}
			require.Equal(t, 30, pictures)
			require.Equal(t, 3, keys)
			require.True(t, p.Complete())
		})
	}
}

func FuzzBitstream(f *testing.F) {
	f.Add(media.H264, annexB(aud, full.sps(), pps, sei, idr))
	f.Add(media.HEVC, annexB([]byte{32 << 1, 1, 0x0C}, []byte{33 << 1, 1, 1, 1, 0x60}, []byte{34 << 1, 1, 0xC0}, []byte{19 << 1, 1, 0x80}))
	f.Add(media.AV1, []byte{0x0A, 0x0B, 0x00, 0x00, 0x00, 0x42, 0xA7, 0xBF, 0xE4, 0x60, 0x0D, 0x00, 0x40, 0x32, 2, 0x10, 0})
	f.Add(media.MJPEG, []byte{0xFF, 0xD8, 0xFF, 0xDB, 0, 3, 0, 0xFF, 0xC0, 0, 11, 8, 4, 0x38, 7, 0x80, 1, 1, 0x11, 0})
	f.Fuzz(func(t *testing.T, codec uint32, b []byte) {
		AV1IsKey(b)
		JPEGSize(b)
		AV1Format(b)
		AV1Extradata(b)
		ParseConfigRecord(codec, b) //nolint:errcheck // must not panic
		if codec != media.HEVC {
			codec = media.H264
		}
		p := NewParameterSets(codec)
		p.Update(b)
		whole := p.Insert(nil, b)
		require.LessOrEqual(t, len(p.Extradata()), MaxExtradata)
		if p.Complete() {
			again := NewParameterSets(codec)
			again.Update(whole)
			require.Equal(t, p.Extradata(), again.Extradata(), "sets in front of a unit are those that were kept")
		}
		avcc := appendAVCC(nil, b)
		back, err := AppendAnnexB(nil, avcc, 4)
		require.NoError(t, err)
		require.True(t, bytes.Equal(avcc, appendAVCC(nil, back)), fmt.Sprintf("%x", b))
	})
}

// appendAVCC appends an Annex B access unit as NAL units with 4-byte length prefixes, the form that AppendAnnexB undoes.
func appendAVCC(dst, annexB []byte) []byte {
	for nal := range NALs(annexB) {
		dst = binary.BigEndian.AppendUint32(dst, uint32(len(nal)))
		dst = append(dst, nal...)
	}
	return dst
}
