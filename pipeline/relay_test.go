package pipeline

import (
	"bytes"
	"context"
	"crypto/md5"
	"encoding/hex"
	"fmt"
	"log/slog"
	"os/exec"
	"path/filepath"
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
	return strings.NewReplacer("/", "-", "=", "-", " ", "-").Replace(fmt.Sprintf("%.30s-%d", t.Name(), time.Now().UnixNano()%1e9))
}

func publishClip(t *testing.T, dir, key string, clip *testcam.Clip, behind time.Duration) *live {
	t.Helper()
	l := &live{t: t, dir: dir, key: key, clip: clip, behind: behind}
	l.start()
	t.Cleanup(func() { l.stop() })
	return l
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

func encodeClip(t *testing.T, name string, args ...string) *testcam.Clip {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	all := append([]string{"-v", "error", "-f", "lavfi", "-i", "testsrc2=size=320x180:rate=25:duration=4",
		"-f", "lavfi", "-i", "sine=frequency=300:duration=4", "-pix_fmt", "yuv420p"}, args...)
	out, err := exec.Command(testenv.NeedTool(t, "ffmpeg"), append(all, path)...).CombinedOutput()
	require.NoError(t, err, string(out))
	clip, err := testcam.OpenClip(path)
	require.NoError(t, err)
	return clip
}

func digest(b []byte) string {
	h := md5.Sum(b)
	return hex.EncodeToString(h[:])
}

// received returns the md5 of each access unit, by stream, that ffmpeg reads in a while; times is the pts of the first.
func received(t *testing.T, url string, seconds float64, args ...string) map[string][]string {
	t.Helper()
	all := append(append([]string{"-v", "error"}, args...), "-i", url, "-map", "0", "-c", "copy", "-t", fmt.Sprint(seconds), "-f", "framemd5", "-")
	cmd := exec.Command(testenv.NeedTool(t, "ffmpeg"), all...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())
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

// What ffmpeg receives from the relay is what was published, access unit by access unit, with the audio beside it.
func TestRelayByteEquality(t *testing.T) {
	t.Parallel()                       // runs when the tests that look for leaks are done
	testenv.Watchdog(t, 5*time.Minute) // its parts wait for their turn
	clips := map[string]*testcam.Clip{
		"h264-aac":          encodeClip(t, "a.mp4", "-c:v", "libx264", "-preset", "veryfast", "-g", "25", "-bf", "0", "-c:a", "aac"),
		"h264-bframes-ulaw": encodeClip(t, "b.mkv", "-c:v", "libx264", "-preset", "veryfast", "-g", "25", "-bf", "3", "-c:a", "pcm_mulaw", "-ar", "8000", "-ac", "1"),
		"h265":              encodeClip(t, "c.mkv", "-c:v", "libx265", "-preset", "ultrafast", "-x265-params", "log-level=error:bframes=2:aud=0", "-g", "25", "-an"),
	}
	dir := t.TempDir()
	addr := startRelay(t, RelayOptions{RuntimeDir: dir})
	for name, clip := range clips {
		l := publishClip(t, dir, relayKey(t)+"-"+name, clip, 0)
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
	b, err := exec.Command(testenv.NeedTool(t, "ffmpeg"), "-v", "error", "-rtsp_transport", transport, "-i", url, "-map", "0:v", "-c", "copy", "-t", "2", "-f", "hevc", "-").Output()
	require.NoError(t, err)
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
