package pipeline

import (
	"bytes"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/testcam"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// What ffmpeg receives from the relay is what was published, access unit by access unit, with the audio beside it.
func TestRelayByteEquality(t *testing.T) {
	t.Parallel()                       // runs when the tests that look for leaks are done
	testenv.Watchdog(t, 5*time.Minute) // its parts wait for their turn
	x264 := []string{"-c:v", "libx264", "-preset", "veryfast", "-g", "25", "-bf"}
	x265 := []string{"-c:v", "libx265", "-preset", "ultrafast", "-x265-params", "log-level=error:bframes=2:aud=0", "-g", "25"}
	clips := map[string]*testcam.Clip{
		"h264-aac":          encodeClip(t, "a.mp4", append(x264, "0", "-c:a", "aac")...),
		"h264-bframes-ulaw": encodeClip(t, "b.mkv", append(x264, "3", "-c:a", "pcm_mulaw", "-ar", "8000", "-ac", "1")...),
		"h265":              encodeClip(t, "c.mkv", append(x265, "-an")...),
	}
	dir, key := place(t)
	addr := startRelay(t, RelayOptions{RuntimeDir: dir})
	for name, clip := range clips {
		l := publishClip(t, dir, key+"-"+name, clip, 0)
		for _, transport := range []string{"tcp", "udp"} {
			t.Run(name+"-"+transport, func(t *testing.T) {
				t.Parallel()
				url := "rtsp://" + addr + "/" + l.key
				if name == "h265" {
					requireElementary(t, clip, url, transport)
					return
				}
				got := received(t, url, 2, "-rtsp_transport", transport)
				require.Greater(t, len(got["0"]), 40)
				requireGapless(t, clip, 0, got["0"])
				require.Greater(t, len(got["1"]), 10)
				if name == "h264-aac" {
					requireGapless(t, clip, 1, got["1"])
				}
			})
		}
	}
}

// requireElementary compares what ffmpeg writes as an elementary stream: its H.265 parser moves a zero byte between access units.
func requireElementary(t *testing.T, clip *testcam.Clip, url, transport string) {
	t.Helper()
	b := testenv.FFmpeg(t, "-rtsp_transport", transport, "-i", url, "-map", "0:v", "-c", "copy", "-t", "2", "-f", "hevc", "-")
	units := clip.Packets(0)
	at, n := 0, 0
	for ; at < len(units) && !bytes.HasPrefix(b, units[at].Data); at++ {
	}
	require.Less(t, at, len(units), "the stream begins with no access unit of the clip")
	for ; len(b) > 1; n++ {
		require.True(t, bytes.HasPrefix(b, units[at].Data), "access unit %d differs", n)
		b, at = b[len(units[at].Data):], (at+1)%len(units)
	}
	require.Greater(t, n, 40)
}

// What has frames alone is no stream of a relay.
func TestRelayLeavesFramesOut(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	mustPublish(t, dir, key)
	frames, err := framering.NewPublisher(framering.PublisherOptions{RuntimeDir: dir, Key: key + "-frames"})
	require.NoError(t, err)
	require.NoError(t, frames.Serve())
	defer func() { require.NoError(t, frames.Close(framering.ReasonNormal)) }()
	c := &relayCatalog{o: RelayOptions{RuntimeDir: dir, Logger: slog.New(slog.DiscardHandler)}}
	require.Equal(t, []string{key}, c.Paths())
}
