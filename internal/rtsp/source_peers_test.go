package rtsp_test

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/bitstream"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/rtsp"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// gstServer serves a clip from GStreamer's RTSP server, from its start for every client.
const gstServer = `
import gi, sys
gi.require_version('Gst', '1.0'); gi.require_version('GstRtspServer', '1.0')
from gi.repository import Gst, GstRtspServer, GLib
Gst.init(None)
server = GstRtspServer.RTSPServer(service=sys.argv[1])
factory = GstRtspServer.RTSPMediaFactory()
factory.set_launch(sys.argv[2])
server.get_mount_points().add_factory('/clip', factory)
server.attach(None)
GLib.MainLoop().run()
`

func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String())
	return port
}

// keeper is a sink that keeps hashes.
type keeper struct {
	mu     sync.Mutex
	tracks []media.Track
	got    [2][]string
	flags  [2]media.Flags // of all packets, but KEY
	last   [2]int64
	back   int // decoding times that did not rise
}

func (k *keeper) Tracks(t []media.Track) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.tracks = t
	return nil
}

func (k *keeper) Packet(track int, p media.Packet) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	kind := k.tracks[track].Kind
	k.got[kind] = append(k.got[kind], unitHash(k.tracks[track].CodecID, p.Data))
	k.flags[kind] |= p.Flags &^ media.FlagKey
	if p.DTS <= k.last[kind] {
		k.back++
	}
	k.last[kind] = p.DTS
	return nil
}

func (k *keeper) count(kind media.Kind) int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.got[kind])
}

// unitHash is the hash of an access unit without what servers add and take away on the way: delimiters and parameter sets.
func unitHash(codec uint32, data []byte) string {
	h := md5.New()
	if codec != media.H264 && codec != media.HEVC {
		h.Write(data)
		return hex.EncodeToString(h.Sum(nil))
	}
	for nal := range bitstream.NALs(data) {
		if c := bitstream.Classify(codec, nal); !c.AUD && !c.ParamSet && !c.Suffix {
			h.Write(bitstream.AppendNAL(nil, bytes.TrimRight(nal, "\x00")))
		}
	}
	return hex.EncodeToString(h.Sum(nil))
}

func clipFile(t *testing.T, name string, args ...string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	all := append([]string{"-v", "error", "-f", "lavfi", "-i", "testsrc2=size=640x360:rate=25:duration=3", "-f", "lavfi",
		"-i", "sine=frequency=300:duration=3",
		"-pix_fmt", "yuv420p", "-g", "25"}, args...)
	out, err := exec.Command(testenv.NeedTool(t, "ffmpeg"), append(all, path)...).CombinedOutput()
	require.NoError(t, err, string(out))
	require.NoError(t, os.Chmod(path, 0o644))
	return path
}

// fileHashes reads the access units of a clip with ffmpeg's own demuxer.
func fileHashes(t *testing.T, path string, codec uint32) (list []string) {
	t.Helper()
	format, filter := "h264", "h264_mp4toannexb"
	if codec == media.HEVC {
		format, filter = "hevc", "hevc_mp4toannexb"
	}
	out, err := exec.Command(testenv.NeedTool(t, "ffmpeg"), "-v", "error", "-i", path, "-map", "0:v", "-c", "copy", "-bsf:v", filter,
		"-f", format, "-").Output()
	require.NoError(t, err)
	var unit []byte
	slice := false
	for nal := range bitstream.NALs(out) {
		c := bitstream.Classify(codec, nal)
		if slice && (c.FirstSlice || !c.Slice && !c.Suffix) {
			list = append(list, unitHash(codec, unit))
			unit, slice = nil, false
		}
		slice = slice || c.Slice
		unit = bitstream.AppendNAL(unit, nal)
	}
	return append(list, unitHash(codec, unit))
}

// receive runs a source until the server ends the stream or n units of video have come.
func receive(t *testing.T, url string, transport rtsp.Transport, n int) *keeper {
	t.Helper()
	k := &keeper{}
	var lastErr error
	testenv.Eventually(t, 20*time.Second, func() error { // the server takes a while to start
		*k = keeper{}
		s, err := rtsp.NewSource(rtsp.SourceOptions{URL: url, Transport: transport, Timeout: 2 * time.Second})
		require.NoError(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx, k) }()
		for k.count(media.Video) < n {
			select {
			case lastErr = <-done:
				if k.count(media.Video) < n {
					return fmt.Errorf("%d of %d units: %w", k.count(media.Video), n, lastErr)
				}
				return nil
			case <-time.After(20 * time.Millisecond):
			}
		}
		cancel()
		<-done
		return nil
	})
	return k
}

// What GStreamer's server sends arrives access unit by access unit, over TCP and UDP, with B-frames, H.265 and audio.
func TestGStreamerServer(t *testing.T) {
	t.Parallel() // it mostly waits
	testenv.Watchdog(t, 2*time.Minute)
	testenv.NeedTool(t, "gst-launch-1.0")
	const python = "/usr/bin/python3" // Debian's, which has the bindings
	script := filepath.Join(t.TempDir(), "server.py")
	require.NoError(t, os.WriteFile(script, []byte(gstServer), 0o644))
	check := exec.Command(python, "-c", "import gi; gi.require_version('GstRtspServer', '1.0'); from gi.repository import GstRtspServer")
	if out, err := check.CombinedOutput(); err != nil {
		if testenv.Strict() {
			t.Fatalf("GStreamer's RTSP server is not installed: %s", out)
		}
		t.Skip("GStreamer's RTSP server is not installed")
	}
	for _, c := range []struct {
		name  string
		codec uint32
		args  []string
		audio string
		parse string
	}{
		{"h264 bframes aac", media.H264, []string{"-c:v", "libx264", "-preset", "veryfast", "-bf", "3", "-c:a", "aac"},
			"d. ! queue ! aacparse ! rtpmp4gpay name=pay1 pt=97", "h264parse ! rtph264pay name=pay0 pt=96"},
		{"h264 slices", media.H264, []string{"-c:v", "libx264", "-preset", "veryfast", "-bf", "0", "-x264-params", "slices=4", "-an"},
			"", "h264parse config-interval=-1 ! rtph264pay name=pay0 pt=96"},
		{"h265", media.HEVC, []string{"-c:v", "libx265", "-preset", "ultrafast",
			"-x265-params", "log-level=error:info=0:bframes=2", "-tag:v", "hvc1", "-an"},
			"", "h265parse ! rtph265pay name=pay0 pt=96"},
	} {
		clip := clipFile(t, "clip.mp4", c.args...)
		port := freePort(t)
		launch := fmt.Sprintf("( filesrc location=%s ! qtdemux name=d d. ! queue ! %s %s )", clip, c.parse, c.audio)
		testenv.Start(t, python, script, port, launch)
		want := fileHashes(t, clip, c.codec)
		require.Len(t, want, 75)
		for _, transport := range []rtsp.Transport{rtsp.TransportTCP, rtsp.TransportUDP} {
			t.Run(c.name+" "+string(transport), func(t *testing.T) {
				t.Parallel()
				k := receive(t, "rtsp://127.0.0.1:"+port+"/clip", transport, 74) // UDP: the last may wait for the goodbye
				require.Equal(t, want[:len(k.got[media.Video])], k.got[media.Video])
				require.Equal(t, media.FlagLastInAU, k.flags[media.Video])
				require.Zero(t, k.back)
				if c.audio != "" {
					require.Greater(t, len(k.got[media.Audio]), 60)
				}
			})
		}
	}
}

// VLC's RTSP output does not interleave: automatic choice finds UDP.
func TestVLCServer(t *testing.T) {
	t.Parallel() // it mostly waits
	testenv.Watchdog(t, 2*time.Minute)
	cvlc := testenv.NeedTool(t, "cvlc")
	// At each round VLC says goodbye and begins a new session: the clip is long enough to be in the middle of one.
	clip := clipFile(t, "clip.mp4", "-filter:v", "loop=3:75:0", "-c:v", "libx264", "-preset", "veryfast", "-bf", "2", "-an")
	dir := filepath.Dir(clip)
	for d := dir; d != "/" && d != os.TempDir(); d = filepath.Dir(d) {
		require.NoError(t, os.Chmod(d, 0o755))
	}
	port := freePort(t)
	args := []string{"-I", "dummy", "--no-sout-audio", "--loop", clip, "--sout", "#rtp{sdp=rtsp://127.0.0.1:" + port + "/clip}", "--sout-keep"}
	cmd := exec.Command(cvlc, args...)
	if os.Getuid() == 0 { // VLC refuses to run as root
		cmd = exec.Command(testenv.NeedTool(t, "setpriv"), append([]string{"--reuid=65534", "--regid=65534", "--clear-groups", cvlc}, args...)...)
	}
	cmd.Env = append(os.Environ(), "HOME=/nonexistent")
	testenv.StartCmd(t, cmd)
	want := fileHashes(t, clip, media.H264)
	for _, transport := range []rtsp.Transport{rtsp.TransportAuto, rtsp.TransportUDP} {
		t.Run(string(transport), func(t *testing.T) {
			t.Parallel()
			k := receive(t, "rtsp://127.0.0.1:"+port+"/clip", transport, 60)
			requireLoop(t, want, k.got[media.Video])
			require.Zero(t, k.flags[media.Video]&media.FlagCorrupt)
		})
	}
}
