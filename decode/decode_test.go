package decode

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

var (
	x264   = []string{"-c:v", "libx264", "-preset", "ultrafast", "-g", "8", "-bf", "2", "-b_strategy", "0"}
	libaom = []string{"-c:v", "libaom-av1", "-cpu-used", "8", "-g", "8"}
	svtav1 = []string{"-c:v", "libsvtav1", "-preset", "12", "-g", "8"}
	mjpeg  = []string{"-c:v", "mjpeg", "-q:v", "3", "-pix_fmt", "yuvj420p"}
)

func x265(more string) []string {
	return []string{"-c:v", "libx265", "-preset", "ultrafast", "-x265-params", "log-level=none:keyint=8:min-keyint=8:bframes=2" + more}
}

func with(a []string, more ...string) []string { return append(append([]string(nil), a...), more...) }

// Pictures equal, byte for byte, those of ffmpeg's own decoders.
func TestPicturesEqualFFmpeg(t *testing.T) {
	testenv.Watchdog(t, 5*60e9)
	for name, c := range map[string]struct {
		file, size string
		w, h       int
		encode     []string
		format     Format
		pixels     string
	}{
		"h264":                     {"a.ts", "640x360", 640, 360, x264, NV12, "nv12"},
		"h264 1080 coded 1088":     {"a.ts", "1920x1080", 1920, 1080, x264, NV12, "nv12"},
		"h264 2304x1296":           {"a.ts", "2304x1296", 2304, 1296, x264, NV12, "nv12"},
		"h264 width 854":           {"a.ts", "854x480", 854, 480, x264, NV12, "nv12"},
		"h264 many B-frames":       {"a.ts", "320x240", 320, 240, with(x264, "-bf", "4", "-x264-params", "b-pyramid=normal"), NV12, "nv12"},
		"h264 four slices":         {"a.ts", "640x360", 640, 360, with(x264, "-slices", "4"), NV12, "nv12"},
		"h264 interlaced":          {"a.ts", "640x480", 640, 480, with(x264, "-flags", "+ilme+ildct", "-x264-params", "tff=1"), NV12, "nv12"},
		"h264 10 bit":              {"a.ts", "640x360", 640, 360, with(x264, "-pix_fmt", "yuv420p10le"), P010, "p010le"},
		"h265":                     {"a.ts", "640x360", 640, 360, x265(""), NV12, "nv12"},
		"h265 1080":                {"a.ts", "1920x1080", 1920, 1080, x265(""), NV12, "nv12"},
		"h265 10 bit":              {"a.ts", "1920x1080", 1920, 1080, with(x265(""), "-pix_fmt", "yuv420p10le"), P010, "p010le"},
		"h265 width 426 open gop":  {"a.ts", "426x238", 426, 238, x265(":open-gop=1"), NV12, "nv12"},
		"av1 odd width":            {"a.mkv", "320x180", 321, 179, with(libaom, "-vf", "scale=321:179"), NV12, "nv12"},
		"av1 10 bit":               {"a.mkv", "320x180", 320, 180, with(svtav1, "-pix_fmt", "yuv420p10le"), P010, "p010le"},
		"mjpeg odd width, 4:2:0":   {"a.mkv", "320x180", 321, 181, with(mjpeg, "-vf", "scale=321:181"), NV12, "yuvj420p"},
		"gray":                     {"a.ts", "320x240", 320, 240, with(x264, "-pix_fmt", "gray"), NV12, "gray"},
		"h264 4:2:2 is subsampled": {"a.ts", "320x240", 320, 240, with(x264, "-pix_fmt", "yuv422p"), NV12, ""},
	} {
		t.Run(name, func(t *testing.T) {
			path := clip(t, c.file, c.size, 13, c.encode...)
			id, extradata, packets := accessUnits(t, path)
			all, stats := decoded(t, Options{CodecID: id, Extradata: extradata, Mode: CPU}, packets)
			require.Len(t, all, 13)
			for _, g := range all {
				require.Equal(t, LayoutOf(c.format, c.w, c.h), g.Layout)
			}
			require.Equal(t, Stats{Packets: 13, Pictures: 13}, stats)
			switch c.pixels {
			case "": // a conversion, not a repacking: its filter is FFmpeg's own
			case "yuvj420p", "gray":
				requireEqualPictures(t, planarReference(t, path, c.pixels, c.w, c.h), all)
			default:
				requireEqualPictures(t, reference(t, path, c.pixels, c.w, c.h), all)
			}
		})
	}
}

// Pictures decoded in parallel come late and are the same, the last ones included.
func TestParallelPicturesEqual(t *testing.T) {
	for name, encode := range map[string][]string{
		"h264": x264, "h264 10 bit": with(x264, "-pix_fmt", "yuv420p10le"), "h265": x265(""),
	} {
		t.Run(name, func(t *testing.T) {
			testenv.Watchdog(t, time.Minute)
			path := clip(t, "a.ts", "640x360", 20, encode...)
			id, extradata, packets := accessUnits(t, path)
			var all [2][]got
			for i, threads := range []int{0, 3} {
				all[i], _ = decoded(t, Options{CodecID: id, Extradata: extradata, Mode: CPU, Threads: threads}, packets)
				require.Len(t, all[i], 20)
			}
			require.Equal(t, all[0], all[1])
		})
	}
}

// planarReference interleaves by hand what ffmpeg would convert between value ranges.
func planarReference(t *testing.T, path, pixels string, w, h int) [][]byte {
	t.Helper()
	raw := testenv.FFmpeg(t, "-i", path, "-vsync", "passthrough", "-f", "rawvideo", "-pix_fmt", pixels, "-")
	cw, ch := (w+1)/2, (h+1)/2
	size := w * h
	if pixels != "gray" {
		size += 2 * cw * ch
	}
	var all [][]byte
	for ; len(raw) > 0; raw = raw[size:] {
		p := append([]byte(nil), raw[:w*h]...)
		for i := range cw * ch {
			if pixels == "gray" {
				p = append(p, 128, 128)
			} else {
				p = append(p, raw[w*h+i], raw[w*h+cw*ch+i])
			}
		}
		all = append(all, p)
	}
	return all
}

// The crop of the stream applies on all four sides, whatever it does to alignment.
func TestCropOnFourSides(t *testing.T) {
	for name, c := range map[string]struct {
		encode []string
		filter string
	}{
		"h264": {x264, "h264_metadata=crop_left=6:crop_right=2:crop_top=10:crop_bottom=4"},
		"h265": {x265(""), "hevc_metadata=crop_left=6:crop_right=2:crop_top=10:crop_bottom=4"},
	} {
		t.Run(name, func(t *testing.T) {
			whole := clip(t, "whole.ts", "640x352", 9, c.encode...)
			cut := t.TempDir() + "/cut.ts"
			testenv.FFmpeg(t, "-i", whole, "-c", "copy", "-bsf:v", c.filter, cut)
			id, extradata, packets := accessUnits(t, cut)
			all, _ := decoded(t, Options{CodecID: id, Extradata: extradata, Mode: CPU}, packets)
			require.NotEmpty(t, all)
			require.Equal(t, LayoutOf(NV12, 632, 338), all[0].Layout)
			requireEqualPictures(t, reference(t, whole, "nv12", 632, 338, "-vf", "crop=632:338:6:10:exact=1"), all)
		})
	}
}

// A new size at a keyframe: the pictures of both streams, each with its own layout.
func TestSizeChangesMidStream(t *testing.T) {
	for name, encode := range map[string][]string{"h264": x264, "h265": x265("")} {
		t.Run(name, func(t *testing.T) {
			first, second := clip(t, "1.ts", "640x360", 10, encode...), clip(t, "2.ts", "1280x720", 9, encode...)
			id, extradata, packets := accessUnits(t, first)
			_, _, more := accessUnits(t, second)
			for _, p := range more {
				p.PTS += 1e9
				p.DTS += 1e9
				packets = append(packets, p)
			}
			all, _ := decoded(t, Options{CodecID: id, Extradata: extradata, Mode: CPU}, packets)
			requireEqualPictures(t, append(reference(t, first, "nv12", 640, 360), reference(t, second, "nv12", 1280, 720)...), all)
		})
	}
}

// After damage and after a gap nothing is shown until the next keyframe, and from there on all is right again.
func TestDamageResumesAtKeyframe(t *testing.T) {
	path := clip(t, "a.ts", "640x360", 32, with(x264, "-bf", "0")...)
	id, extradata, packets := accessUnits(t, path)
	want := reference(t, path, "nv12", 640, 360)
	for name, c := range map[string]struct {
		spoil   func([]Packet) []Packet
		missing []int // half-open range of pictures that must not come
		errors  uint64
	}{
		"marked corrupt":       {func(p []Packet) []Packet { p[11].Corrupt = true; return p }, []int{11, 16}, 1},
		"gap":                  {func(p []Packet) []Packet { p[12].Discontinuity = true; return append(p[:11:11], p[12:]...) }, []int{11, 16}, 0},
		"gap up to a keyframe": {func(p []Packet) []Packet { p[16].Discontinuity = true; return append(p[:11:11], p[16:]...) }, []int{11, 16}, 0},
		"garbage": {func(p []Packet) []Packet {
			p[11].Data = []byte{0, 0, 0, 1, 0x61, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF}
			return p
		}, []int{11, 16}, 1},
		"corrupt keyframe":          {func(p []Packet) []Packet { p[8].Corrupt = true; return p }, []int{8, 16}, 1},
		"starts without a keyframe": {func(p []Packet) []Packet { return p[3:] }, []int{0, 8}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			all, stats := decoded(t, Options{CodecID: id, Extradata: extradata, Mode: CPU}, c.spoil(append([]Packet(nil), packets...)))
			requireEqualPictures(t, append(want[:c.missing[0]:c.missing[0]], want[c.missing[1]:]...), all)
			require.Equal(t, c.errors, stats.Errors)
		})
	}
}

// Bytes that are no stream must neither crash nor end the decoder.
func TestGarbageIsCounted(t *testing.T) {
	for _, id := range []uint32{media.H264, media.HEVC, media.AV1, media.MJPEG} {
		t.Run(media.CodecName(id), func(t *testing.T) {
			d, err := Open(Options{CodecID: id, Mode: CPU})
			require.NoError(t, err)
			defer d.Close()
			state := uint32(1)
			for n := range 200 {
				b := []byte{0, 0, 0, 1}
				for range n * 7 % 900 {
					state = state*1664525 + 1013904223
					b = append(b, byte(state>>24))
				}
				require.NoError(t, d.Decode(Packet{Data: b, Key: true}, func(*Picture) error { return nil }))
			}
		})
	}
}

func TestEmitErrorEndsDecode(t *testing.T) {
	path := clip(t, "a.ts", "320x240", 10, with(x264, "-bf", "0")...)
	id, extradata, packets := accessUnits(t, path)
	d, err := Open(Options{CodecID: id, Extradata: extradata, Mode: CPU})
	require.NoError(t, err)
	defer d.Close()
	stop := errors.New("stop")
	var got error
	for _, p := range packets {
		if got = d.Decode(p, func(*Picture) error { return stop }); got != nil {
			break
		}
	}
	if got == nil {
		got = d.Drain(func(*Picture) error { return stop })
	}
	require.ErrorIs(t, got, stop)
}

func TestModes(t *testing.T) {
	d, err := Open(Options{CodecID: media.H264})
	require.NoError(t, err)
	require.False(t, d.Hardware())
	require.Contains(t, d.Reason(), "no GPU")
	require.NoError(t, d.Close())
	require.NoError(t, d.Close())
	require.ErrorIs(t, d.Decode(Packet{Data: []byte{1}, Key: true}, nil), ErrDecoder)
	_, err = Open(Options{CodecID: media.H264, Mode: CUDA})
	require.ErrorIs(t, err, ErrUnsupported)
	_, err = Open(Options{CodecID: 86018})
	require.ErrorIs(t, err, ErrUnsupported)
	for _, m := range []Mode{Auto, CUDA, CPU} {
		got, err := ParseMode(m.String())
		require.NoError(t, err)
		require.Equal(t, m, got)
	}
	_, err = ParseMode("gpu")
	require.Error(t, err)
}

// The layout of slots is part of the wire contract: 1920×1080 NV12 has pitch 2048 and 3,317,760 bytes.
func TestLayout(t *testing.T) {
	for _, c := range []struct {
		l           Layout
		pitch, size int
	}{
		{LayoutOf(NV12, 1920, 1080), 2048, 3_317_760},
		{LayoutOf(NV12, 2304, 1296), 2304, 2304 * 1296 * 3 / 2},
		{LayoutOf(NV12, 640, 360), 768, 768 * 540},
		{LayoutOf(NV12, 321, 181), 512, 512 * (181 + 91)},
		{LayoutOf(P010, 1920, 1080), 3840, 3840 * 1620},
		{LayoutOf(P010, 641, 3), 1536, 1536 * 5},
	} {
		require.Equal(t, c.pitch, c.l.Pitch, fmt.Sprint(c.l))
		require.Equal(t, c.size, c.l.Size(), fmt.Sprint(c.l))
	}
}
