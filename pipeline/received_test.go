package pipeline

import (
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/bitstream"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/testcam"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

func digest(b []byte) string {
	h := md5.Sum(b)
	return hex.EncodeToString(h[:])
}

// received returns the md5 of each access unit, by stream, that ffmpeg reads in a while.
func received(t *testing.T, url string, seconds float64, args ...string) map[string][]string {
	t.Helper()
	out := testenv.FFmpeg(t, append(args, "-i", url, "-map", "0", "-c", "copy", "-t", fmt.Sprint(seconds), "-f", "framemd5", "-")...)
	got := map[string][]string{}
	for line := range strings.Lines(string(out)) {
		if f := strings.Split(line, ","); len(f) >= 6 && line[0] != '#' {
			got[strings.TrimSpace(f[0])] = append(got[strings.TrimSpace(f[0])], strings.TrimSpace(f[5]))
		}
	}
	return got
}

// requireGapless checks that got is a gapless part of the endless repetition of the clip's track.
func requireGapless(t *testing.T, clip *testcam.Clip, track int, got []string) {
	t.Helper()
	require.NotEmpty(t, got)
	units := clip.Packets(track)
	best, at := 0, -1
	for start, p := range units {
		i := 0
		for i < len(got) && got[i] == digest(units[(start+i)%len(units)].Data) {
			i++
		}
		if i == len(got) {
			require.NotZero(t, p.Flags&media.FlagKey, "it does not begin at a keyframe")
			return
		}
		if i > best {
			best, at = i, start
		}
	}
	t.Fatalf("track %d: %d of %d access units match, from unit %d on", track, best, len(got), at)
}

// received264 returns the digests of the slices that GStreamer reads of 80 NAL units of H.264; properties are its rtspsrc's.
func received264(t *testing.T, url string, properties ...string) []string {
	t.Helper()
	out := filepath.Join(t.TempDir(), "out.h264")
	args := slices.Concat([]string{"-q", "rtspsrc", "location=" + url}, properties, []string{"!", "rtph264depay", "!",
		"video/x-h264,stream-format=byte-stream,alignment=nal", "!", "identity", "eos-after=80", "!", "filesink", "location=" + out})
	b, err := exec.Command(testenv.NeedTool(t, "gst-launch-1.0"), args...).CombinedOutput()
	// When it stops, GStreamer 1.22 may fail to send its PAUSE through its own TLS.
	if !strings.HasPrefix(url, "rtsps:") || !strings.Contains(string(b), "gst_rtspsrc_pause") {
		require.NoError(t, err, string(b))
	}
	stream, err := os.ReadFile(out)
	require.NoError(t, err)
	return unitSlices(media.H264, stream)
}

// slicesOf is the digest of every slice of the clip, in order.
func slicesOf(clip *testcam.Clip) (list []string) {
	for _, p := range clip.Packets(0) {
		list = append(list, unitSlices(clip.Tracks()[0].CodecID, p.Data)...)
	}
	return list
}

func unitSlices(codec uint32, b []byte) (list []string) {
	for nal := range bitstream.NALs(b) {
		if bitstream.Classify(codec, nal).Slice {
			list = append(list, digest(nal))
		}
	}
	return list
}

// requireRepeats checks that got is a gapless part of the endless repetition of want.
func requireRepeats(t *testing.T, want, got []string) {
	t.Helper()
	start := slices.Index(want, got[0])
	require.GreaterOrEqual(t, start, 0, "the first one is none of the clip's")
	for i := range got {
		require.Equal(t, want[(start+i)%len(want)], got[i], "number %d of %d", i, len(got))
	}
}
