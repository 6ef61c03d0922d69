package pipeline

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/testcam"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/packetring"
)

// live publishes a clip in real time, over and over, under a key of its own, audio beside it.
type live struct {
	t      *testing.T
	dir    string
	key    string
	clip   *testcam.Clip
	behind time.Duration // of the clip is in the ring from the start
	base   int64         // Unix ns of the first round's start
	video  *Publication
	stop   func() // ends the publication; idempotent
}

func relayKey(t *testing.T) string {
	t.Helper()
	key := strings.NewReplacer("/", "-", "=", "-", " ", "-").Replace(fmt.Sprintf("%.30s-%09d", t.Name(), time.Now().UnixNano()%1e9))
	testenv.RemoveRings(t, key)
	return key
}

func publishClip(t *testing.T, dir, key string, clip *testcam.Clip, behind time.Duration) *live {
	t.Helper()
	l := &live{t: t, dir: dir, key: key, clip: clip, behind: behind}
	l.start()
	t.Cleanup(func() { l.stop() })
	return l
}

// newLive is publishClip in a folder and under a key of its own.
func newLive(t *testing.T, clip *testcam.Clip, behind time.Duration) *live {
	t.Helper()
	return publishClip(t, t.TempDir(), relayKey(t), clip, behind)
}

// silent is the built-in camera's clip without sound.
func silent(t *testing.T) *testcam.Clip {
	t.Helper()
	clip, err := testcam.EmbeddedClip("h264", false)
	require.NoError(t, err)
	return clip
}

func (l *live) start() {
	l.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	tracks := l.clip.Tracks()
	caughtUp, done := make(chan struct{}, len(tracks)), make(chan struct{}, len(tracks))
	l.base = time.Now().Add(-l.behind).UnixNano()
	for i, track := range tracks {
		key := l.key
		if track.Kind == media.Audio {
			key += AudioSuffix
		}
		pub, err := Publish(PublishOptions{RuntimeDir: l.dir, Key: key, Packets: packetring.Config{
			Slots: 1024, DataSize: 16 << 20, CodecID: track.CodecID, Extradata: track.Extradata}})
		require.NoError(l.t, err)
		if i == 0 {
			l.video = pub
		}
		go func() {
			defer func() { done <- struct{}{} }()
			defer func() { _ = pub.Close(framering.ReasonNormal) }()
			for base, late := l.base, true; ; base += int64(l.clip.Duration()) {
				for _, p := range l.clip.Packets(i) {
					wait := time.Duration(base + p.DTS - time.Now().UnixNano())
					if wait > 0 && late {
						late = false
						caughtUp <- struct{}{}
					}
					select {
					case <-time.After(wait):
					case <-ctx.Done():
						return
					}
					if _, err := pub.Packet(packetring.Packet{PTS: base + p.PTS, DTS: base + p.DTS, Flags: packetring.Flags(p.Flags), Data: p.Data}); err != nil {
						panic(err)
					}
				}
			}
		}()
	}
	for range tracks {
		<-caughtUp
	}
	l.stop = func() {
		cancel()
		for range tracks {
			<-done
		}
		l.stop = func() {}
	}
}

// relay serves what is published and returns its address.
func (l *live) relay(o RelayOptions) string {
	l.t.Helper()
	return l.relayTLS(o).Plain.String()
}

func (l *live) relayTLS(o RelayOptions) RelayAddress {
	l.t.Helper()
	o.RuntimeDir = l.dir
	return startRelayTLS(l.t, o)
}

// play reads from a relay: the first tracks, interleaved, on channels 4, 6, …
func (l *live) play(addr string, tracks int) *testenv.RTSP {
	l.t.Helper()
	c := testenv.DialRTSP(l.t, addr, l.key)
	c.Play(tracks)
	return c
}

// playTLS is play over TLS. The first frame has come when it returns.
func (l *live) playTLS(addr net.Addr) *testenv.RTSP {
	l.t.Helper()
	c := testenv.DialRTSPS(l.t, addr.String(), l.key)
	c.Play(1)
	c.Frame()
	return c
}

// subscribers is for Eventually: an error until so many read the pictures.
func (l *live) subscribers(n int) func() error {
	return func() error {
		if s := l.video.Control().Subscribers(); len(s) != n {
			return fmt.Errorf("%d subscribers, want %d", len(s), n)
		}
		return nil
	}
}

// startRelay runs a relay and returns its address.
func startRelay(t *testing.T, o RelayOptions) string {
	return startRelayTLS(t, o).Plain.String()
}

func startRelayTLS(t *testing.T, o RelayOptions) RelayAddress {
	t.Helper()
	addr := make(chan RelayAddress, 1)
	o.OnListen = func(a RelayAddress) { addr <- a }
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Relay(ctx, o) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
	})
	select {
	case a := <-addr:
		return a
	case err := <-done:
		t.Fatal(err)
		return RelayAddress{}
	}
}

// encodeClip makes 4 s of a test picture and of a tone with ffmpeg's arguments; the name gives the container.
func encodeClip(t *testing.T, name string, args ...string) *testcam.Clip {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	testenv.FFmpeg(t, slices.Concat([]string{"-f", "lavfi", "-i", "testsrc2=size=320x180:rate=25:duration=4",
		"-f", "lavfi", "-i", "sine=frequency=300:duration=4", "-pix_fmt", "yuv420p"}, args, []string{path})...)
	clip, err := testcam.OpenClip(path)
	require.NoError(t, err)
	return clip
}

// longGOP is a clip whose keyframes are 10 s apart.
func longGOP(t *testing.T, audio ...string) *testcam.Clip {
	t.Helper()
	x264 := []string{"-c:v", "libx264", "-preset", "ultrafast", "-tune", "zerolatency", "-x264-params", "keyint=250:min-keyint=250:scenecut=0"}
	return encodeClip(t, "gop.mp4", slices.Concat([]string{"-vf", "loop=3:100,scale=320:180", "-t", "12"}, x264, audio)...)
}

// otherClip is a stream that none of the built-in ones can go on as.
func otherClip(t *testing.T) *testcam.Clip {
	t.Helper()
	return encodeClip(t, "other.mp4", "-c:v", "libx264", "-preset", "ultrafast", "-g", "25", "-bf", "0", "-an")
}
