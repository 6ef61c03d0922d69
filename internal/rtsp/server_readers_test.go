package rtsp_test

import (
	"bufio"
	"bytes"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/bitstream"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/testcam"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// makeClip encodes a small clip with ffmpeg and reads it back as a camera's clip.
func makeClip(t *testing.T, name string, args ...string) *testcam.Clip {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	all := append([]string{"-v", "error", "-f", "lavfi", "-i", "testsrc2=size=320x180:rate=25:duration=4",
		"-f", "lavfi", "-i", "sine=frequency=300:duration=4", "-pix_fmt", "yuv420p", "-g", "25"}, args...)
	out, err := exec.Command(testenv.NeedTool(t, "ffmpeg"), append(all, path)...).CombinedOutput()
	require.NoError(t, err, string(out))
	clip, err := testcam.OpenClip(path)
	require.NoError(t, err)
	return clip
}

func startCamera(t *testing.T, o testcam.Options) *testcam.Cameras {
	t.Helper()
	c, err := testcam.Start(o)
	require.NoError(t, err)
	t.Cleanup(c.Close)
	return c
}

func hashes(c *testcam.Clip, track int) (list []string) {
	for _, p := range c.Packets(track) {
		h := md5.Sum(p.Data)
		list = append(list, hex.EncodeToString(h[:]))
	}
	return list
}

// requireLoop checks that got is a gapless part of the endless repetition of want.
func requireLoop(t *testing.T, want, got []string) {
	t.Helper()
	require.NotEmpty(t, got)
	cause := "the first unit is none of the clip's"
	for start := range want {
		if want[start] != got[0] {
			continue
		}
		i := 0
		for i < len(got) && got[i] == want[(start+i)%len(want)] {
			i++
		}
		if i == len(got) {
			return
		}
		cause = fmt.Sprintf("unit %d of %d differs", i, len(got))
	}
	t.Fatal(cause)
}

// framemd5 runs ffmpeg on a URL for a while and returns the md5 sums of the access units it received, by stream.
func framemd5(t *testing.T, url string, seconds int, args ...string) map[string][]string {
	t.Helper()
	all := append([]string{"-v", "error"}, args...)
	all = append(all, "-i", url, "-map", "0", "-c", "copy", "-t", fmt.Sprint(seconds), "-f", "framemd5", "-")
	cmd := exec.Command(testenv.NeedTool(t, "ffmpeg"), all...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
	got := map[string][]string{}
	for s := bufio.NewScanner(bytes.NewReader(out)); s.Scan(); {
		if f := strings.Split(s.Text(), ","); len(f) >= 6 && !strings.HasPrefix(f[0], "#") {
			stream := strings.TrimSpace(f[0])
			got[stream] = append(got[stream], strings.TrimSpace(f[5]))
		}
	}
	return got
}

// What ffmpeg receives is what was sent, access unit by access unit.
func TestFFmpegReads(t *testing.T) {
	t.Parallel() // runs when the tests that look for leaks are done
	testenv.Watchdog(t, 2*time.Minute)
	for _, c := range []struct {
		name       string
		clip       *testcam.Clip
		transports []string
	}{
		{"h264 aac", makeClip(t, "a.mp4", "-c:v", "libx264", "-preset", "veryfast", "-bf", "0", "-c:a", "aac"), []string{"tcp"}},
		{"h264 bframes ulaw", makeClip(t, "b.mkv", "-c:v", "libx264", "-preset", "veryfast", "-bf", "3", "-c:a", "pcm_mulaw", "-ar", "8000",
			"-ac", "1"), []string{"udp"}},
		{"h265 opus", makeClip(t, "c.mkv", "-c:v", "libx265", "-preset", "ultrafast", "-x265-params", "log-level=error:bframes=2",
			"-c:a", "libopus"), []string{"tcp", "udp"}},
	} {
		name, clip := c.name, c.clip
		camera := startCamera(t, testcam.Options{Clip: clip})
		for _, transport := range c.transports {
			t.Run(name+" "+transport, func(t *testing.T) {
				t.Parallel()
				got := framemd5(t, camera.URL(0), 2, "-rtsp_transport", transport)
				if clip.Tracks()[0].CodecID == media.HEVC {
					got["0"] = elementary(t, clip, camera.URL(0), transport)
				}
				require.Greater(t, len(got["0"]), 40)
				requireLoop(t, hashes(clip, 0), got["0"])
				if strings.Contains(name, "aac") || strings.Contains(name, "opus") {
					requireLoop(t, hashes(clip, 1), got["1"])
				}
				require.Greater(t, len(got["1"]), 10)
			})
		}
	}
}

// elementary is for H.265, whose parser in ffmpeg moves the first zero of a start code to the access unit in front of it: it cuts
// the elementary stream that ffmpeg wrote at the places where the clip's access units end.
func elementary(t *testing.T, clip *testcam.Clip, url, transport string) (got []string) {
	t.Helper()
	b := testenv.FFmpeg(t, "-rtsp_transport", transport, "-i", url, "-map", "0:v", "-c", "copy", "-t", "2", "-f", "hevc", "-")
	units := clip.Packets(0)
	at := slices.IndexFunc(units, func(p media.Packet) bool { return bytes.HasPrefix(b, p.Data) })
	require.GreaterOrEqual(t, at, 0, "the stream begins with no access unit of the clip")
	for ; len(b) > 0; at = (at + 1) % len(units) {
		n := min(len(units[at].Data), len(b))
		if n == 1 && b[0] == 0 { // of the start code that would have come next
			break
		}
		h := md5.Sum(b[:n])
		got, b = append(got, hex.EncodeToString(h[:])), b[n:]
	}
	return got
}

// GStreamer's rtspsrc over each transport, its depayloaders' output compared.
func TestGStreamerReads(t *testing.T) {
	t.Parallel() // runs when the tests that look for leaks are done
	testenv.Watchdog(t, 2*time.Minute)
	gst := testenv.NeedTool(t, "gst-launch-1.0")
	for _, c := range []struct {
		codec, depay, caps, protocols string
	}{
		{"h264", "rtph264depay", "video/x-h264,stream-format=byte-stream,alignment=au", "udp"},
		{"h264", "rtph264depay", "video/x-h264,stream-format=byte-stream,alignment=au", "udp-mcast"},
		{"h265", "rtph265depay", "video/x-h265,stream-format=byte-stream,alignment=au", "tcp"},
	} {
		t.Run(c.codec+" "+c.protocols, func(t *testing.T) {
			t.Parallel()
			clip, err := testcam.EmbeddedClip(c.codec, false)
			require.NoError(t, err)
			camera := startCamera(t, testcam.Options{Clip: clip, Multicast: "239.255.42.0/24", Listen: "0.0.0.0:0"})
			dir := t.TempDir()
			cmd := exec.Command(gst, "-q", "rtspsrc", "location="+camera.URL(0), "protocols="+c.protocols, "latency=100", "!", c.depay, "!", c.caps,
				"!", "multifilesink", "location="+dir+"/%05d", "max-files=1000")
			p := testenv.StartCmd(t, cmd)
			testenv.Eventually(t, 20*time.Second, func() error {
				files, _ := os.ReadDir(dir)
				if len(files) < 60 {
					return fmt.Errorf("%d access units", len(files))
				}
				return nil
			})
			_ = p.Stop(t, os.Interrupt, 10*time.Second)
			files, err := os.ReadDir(dir)
			require.NoError(t, err)
			var got []string
			for _, f := range files[:len(files)-1] { // the last one may be cut short
				b, err := os.ReadFile(filepath.Join(dir, f.Name()))
				require.NoError(t, err)
				got = append(got, nalHash(clip.Tracks()[0].CodecID, b))
			}
			var want []string
			for _, p := range clip.Packets(0) {
				want = append(want, nalHash(clip.Tracks()[0].CodecID, p.Data))
			}
			requireLoop(t, want, got)
		})
	}
}

// nalHash leaves out what GStreamer adds: parameter sets from the SDP. (Debian's VLC has no RTSP client: it cannot be asked.)
func nalHash(codec uint32, au []byte) string {
	h := md5.New()
	for nal := range bitstream.NALs(au) {
		if bitstream.Classify(codec, nal).ParamSet || bitstream.Classify(codec, nal).AUD {
			continue
		}
		h.Write([]byte{0, 0, 0, 1})
		h.Write(nal)
	}
	return hex.EncodeToString(h.Sum(nil))
}
