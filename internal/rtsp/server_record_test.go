package rtsp_test

import (
	"crypto/md5"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/bitstream"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/rtsp"
	"github.com/cfpipe/cfpipe/internal/testcam"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

type emptyCatalog struct{}

func (emptyCatalog) Tracks(string) ([]media.Track, error) { return nil, fmt.Errorf("nothing here") }
func (emptyCatalog) Paths() []string                      { return nil }

func (emptyCatalog) Open(string, []media.Track, []int) (rtsp.StreamReader, error) {
	return nil, fmt.Errorf("nothing here")
}

func recordServer(t *testing.T, o rtsp.ServerOptions, r *testenv.Recorder) *rtsp.Server {
	t.Helper()
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	o.Catalog, o.Publish = emptyCatalog{}, r
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s, err := rtsp.NewServer(o)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

func packetHashes(packets []media.Packet) (list []string) {
	for _, p := range packets {
		h := md5.Sum(p.Data)
		list = append(list, hex.EncodeToString(h[:]))
	}
	return list
}

func sliceHashes(clip *testcam.Clip, packets []media.Packet) (list []string) {
	for _, p := range packets {
		h := md5.New()
		for nal := range bitstream.NALs(p.Data) {
			if p.Flags&media.FlagKey == 0 || bitstream.Classify(clip.Tracks()[0].CodecID, nal).Slice {
				h.Write(bitstream.AppendNAL(nil, nal))
			}
		}
		list = append(list, hex.EncodeToString(h.Sum(nil)))
	}
	return list
}

// ffmpeg publishes a file; what arrives is what was in it, access unit by access unit.
func TestFFmpegPublishes(t *testing.T) {
	t.Parallel() // runs when the tests that look for leaks are done
	testenv.Watchdog(t, 2*time.Minute)
	ffmpeg := testenv.NeedTool(t, "ffmpeg")
	r := &testenv.Recorder{}
	s := recordServer(t, rtsp.ServerOptions{}, r)
	for _, c := range []struct{ name, file, transport string }{
		{"h264-aac", "a.mp4", "udp"}, {"h265-bframes-ulaw", "b.mkv", "tcp"},
	} {
		t.Run(c.name+"-"+c.transport, func(t *testing.T) {
			t.Parallel()
			path := filepath.Join(t.TempDir(), c.file)
			args := []string{"-v", "error", "-f", "lavfi", "-i", "testsrc2=size=320x180:rate=25:duration=3", "-f", "lavfi", "-i", "sine=duration=3",
				"-pix_fmt", "yuv420p", "-g", "25"}
			if c.name == "h264-aac" {
				args = append(args, "-c:v", "libx264", "-preset", "ultrafast", "-bf", "0", "-c:a", "aac", path)
			} else {
				args = append(args, "-c:v", "libx265", "-preset", "ultrafast", "-x265-params", "log-level=error:bframes=2", "-c:a", "pcm_mulaw",
					"-ar", "8000", "-ac", "1", path)
			}
			out, err := exec.Command(ffmpeg, args...).CombinedOutput()
			require.NoError(t, err, string(out))
			name := c.name + c.transport
			p := testenv.Start(t, ffmpeg, "-v", "error", "-re", "-i", path, "-c", "copy", "-f", "rtsp", "-rtsp_transport", c.transport,
				"rtsp://"+s.Addr().String()+"/"+name)
			require.NoError(t, p.WaitFor(t, 30*time.Second))
			testenv.Eventually(t, 15*time.Second, func() error {
				if !r.Get(name).Closed {
					return errors.New("the publisher's end was not noticed")
				}
				return nil
			})
			clip, err := testcam.OpenClip(path)
			require.NoError(t, err)
			rec := r.Get(name)
			require.Len(t, rec.Tracks, 2)
			require.Equal(t, clip.Tracks()[0].CodecID, rec.Tracks[0].CodecID)
			require.Equal(t, clip.Tracks()[1].CodecID, rec.Tracks[1].CodecID)
			require.NotEmpty(t, rec.Tracks[0].Extradata)
			// Keyframes are compared by their slices: ffmpeg's filter puts the parameter sets behind the first SEI, or repeats an SEI.
			want, got := sliceHashes(clip, clip.Packets(0)), sliceHashes(clip, rec.Packets[0])
			require.GreaterOrEqual(t, len(got), len(want)-1, "the last unit may not be told from a cut one")
			require.Equal(t, want[:len(got)], got)
			require.Greater(t, len(rec.Packets[1]), 10)
			if clip.Tracks()[1].CodecID == media.AAC {
				got := packetHashes(rec.Packets[1])
				require.Equal(t, packetHashes(clip.Packets(1))[:len(got)], got)
			}
		})
	}
}

func TestPublisherRefused(t *testing.T) {
	testenv.CheckLeaks(t)
	r := &testenv.Recorder{Refuse: errors.New("not here")}
	s := recordServer(t, rtsp.ServerOptions{RTPPort: -1}, r)
	c := testenv.DialRTSP(t, s.Addr().String(), "live")
	status, _, _ := c.Do("ANNOUNCE", c.URL, "Content-Type: application/sdp", "Content-Length: 0")
	require.GreaterOrEqual(t, status, 400)
	sdp := "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nc=IN IP4 0.0.0.0\r\nt=0 0\r\n" +
		"m=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\na=control:trackID=0\r\n"
	c = testenv.DialRTSP(t, s.Addr().String(), "live")
	status, _, _ = c.Do("ANNOUNCE", c.URL, "Content-Type: application/sdp", fmt.Sprintf("Content-Length: %d\r\n\r\n%s", len(sdp)-4, sdp[:len(sdp)-4]))
	require.Equal(t, 403, status)
	require.Zero(t, r.Count())
}
