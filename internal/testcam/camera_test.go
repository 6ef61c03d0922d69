package testcam

import (
	"bytes"
	"context"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/rtsp"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

func TestEmbeddedClips(t *testing.T) {
	for _, codec := range []string{"h264", "h265"} {
		c, err := EmbeddedClip(codec, true)
		require.NoError(t, err)
		require.Equal(t, 9600*time.Millisecond, c.Duration())
		require.Len(t, c.tracks, 2)
		require.Len(t, c.tracks[0].units, 240)
		require.Len(t, c.tracks[1].units, 150)
		for i, u := range c.tracks[0].units {
			require.Equal(t, i%48 == 0, u.key, "%s frame %d", codec, i)
		}
		require.NotEmpty(t, c.tracks[0].Extradata)
		require.Equal(t, 16000, c.tracks[1].ClockRate)
		require.True(t, bytes.HasPrefix(c.tracks[0].units[0].data, []byte{0, 0, 0, 1}))
	}
	_, err := EmbeddedClip("vp8", false)
	require.Error(t, err)
}

// Time goes on by one frame at the loop, and every camera begins at a keyframe.
func TestTimeGoesOn(t *testing.T) {
	clip := &Clip{tracks: []clipTrack{
		{Track: media.Track{CodecID: media.H264}, units: []unit{{key: true}, {pts: 1e6, dts: 1e6}, {pts: 2e6, dts: 2e6, key: true}, {pts: 3e6, dts: 3e6}}},
		{Track: media.Track{CodecID: media.AAC}, units: []unit{{key: true}, {pts: 2e6, dts: 2e6, key: true}}},
	}, duration: 4e6}
	c := newCatalog(clip, 3, time.Now(), nil)
	_, err := c.Open("cam3", nil, nil)
	require.Error(t, err)
	for _, path := range []string{"cam0", "cam1", "cam2"} {
		r, err := c.Open(path, clip.Tracks(), []int{0, 1})
		require.NoError(t, err)
		for track, step := range []int64{1e6, 2e6} {
			u, err := r.Next(context.Background(), track)
			require.NoError(t, err)
			for range 20 {
				next, err := r.Next(context.Background(), track)
				require.NoError(t, err)
				require.Equal(t, step, next.PTS-u.PTS)
				u = next
				require.LessOrEqual(t, u.PTS, time.Now().UnixNano(), "sent before its time")
			}
			require.Less(t, time.Now().UnixNano()-u.PTS, int64(10*time.Second), "sent late")
		}
	}
}

func TestOpenClip(t *testing.T) {
	ffmpeg := testenv.NeedTool(t, "ffmpeg")
	for _, c := range []struct {
		name  string
		args  []string
		codec uint32
		audio uint32
	}{
		{"b.mp4", []string{"-c:v", "libx264", "-bf", "2", "-g", "10", "-c:a", "aac"}, media.H264, media.AAC},
		{"b.ts", []string{"-c:v", "libx264", "-bf", "2", "-g", "10", "-c:a", "aac"}, media.H264, media.AAC},
		{"b.mkv", []string{"-c:v", "libx265", "-x265-params", "log-level=error", "-g", "10", "-c:a", "pcm_mulaw", "-ar", "8000", "-ac", "1"},
			media.HEVC, media.PCMMulaw},
	} {
		path := filepath.Join(t.TempDir(), c.name)
		args := append([]string{"-v", "error", "-f", "lavfi", "-i", "testsrc=size=128x96:rate=25:duration=1", "-f", "lavfi", "-i", "sine=duration=1",
			"-pix_fmt", "yuv420p"}, c.args...)
		out, err := exec.Command(ffmpeg, append(args, path)...).CombinedOutput()
		require.NoError(t, err, string(out))
		clip, err := OpenClip(path)
		require.NoError(t, err, c.name)
		require.Len(t, clip.tracks, 2)
		require.Equal(t, c.codec, clip.tracks[0].CodecID)
		require.Equal(t, c.audio, clip.tracks[1].CodecID)
		require.NotEmpty(t, clip.tracks[1].Extradata, c.name)
		units := clip.tracks[0].units
		require.Len(t, units, 25)
		require.True(t, units[0].key)
		require.True(t, bytes.HasPrefix(units[0].data, []byte{0, 0, 0, 1}), c.name)
		require.Greater(t, clip.tracks[0].delay, int64(0), "%s: the clip has B-frames", c.name)
		for i := 1; i < len(units); i++ {
			require.Greater(t, units[i].dts, units[i-1].dts)
		}
		require.InDelta(t, time.Second, clip.Duration(), float64(150*time.Millisecond), c.name)
	}
	_, err := OpenClip(filepath.Join(t.TempDir(), "none.mp4"))
	require.Error(t, err)
}

func TestCamerasWithPassword(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	ffprobe := testenv.NeedTool(t, "ffprobe")
	c, err := Start(Options{Count: 2, Username: "admin", Password: "p@ss:w/rd"})
	require.NoError(t, err)
	defer c.Close()
	url := "rtsp://admin:p%40ss%3Aw%2Frd@" + c.Addr().String() + "/cam1"
	out, err := exec.Command(ffprobe, "-v", "error", "-rtsp_transport", "tcp", "-show_entries", "stream=codec_name", "-of", "csv", url).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "h264")
	out, err = exec.Command(ffprobe, "-v", "error", "-rtsp_transport", "tcp", c.URL(1)).CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "401")
}

var _ rtsp.Catalog = (*catalog)(nil)
