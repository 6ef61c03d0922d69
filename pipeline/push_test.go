package pipeline

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/rtsp"
	"github.com/cfpipe/cfpipe/internal/testcam"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// noStreams is the catalog of a server that is only published to.
type noStreams struct{}

func (noStreams) Paths() []string { return nil }

func (noStreams) Tracks(string) ([]media.Track, error) { return nil, os.ErrNotExist }
func (noStreams) Open(string, []media.Track, []int) (rtsp.StreamReader, error) {
	return nil, os.ErrNotExist
}

func startPush(t *testing.T, o PushOptions) *testenv.Log {
	t.Helper()
	logs := &testenv.Log{}
	o.Logger = slog.New(slog.NewTextHandler(logs, nil))
	o.MinBackoff, o.MaxBackoff = 100*time.Millisecond, 200*time.Millisecond
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Push(ctx, o) }()
	t.Cleanup(func() {
		cancel()
		require.NoError(t, <-done)
		if t.Failed() {
			t.Log(logs.String())
		}
	})
	return logs
}

func freePort(t *testing.T, network string) string {
	t.Helper()
	if network == "udp" {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		require.NoError(t, err)
		defer c.Close()
		return c.LocalAddr().String()
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().String()
}

func packetDigests(packets []media.Packet) (list []string) {
	for _, p := range packets {
		list = append(list, digest(p.Data))
	}
	return list
}

// A key goes to another server by ANNOUNCE and RECORD, video and audio, unit by unit, and again when that server has been away.
// The password is asked for, and shows nowhere.
func TestPushRTSP(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	const password = "s3cr:t@/?#"
	dir := t.TempDir()
	clip, err := testcam.EmbeddedClip("h264", true)
	require.NoError(t, err)
	l := publishClip(t, dir, relayKey(t), clip, time.Second)
	addr := freePort(t, "tcp")
	counter := &PushCounter{}
	logs := startPush(t, PushOptions{RuntimeDir: dir, Keys: []string{l.key}, URL: "rtsp://admin:" + password + "@" + addr + "/live/%{key}", Counter: counter})
	begin := time.Now()
	for range 2 {
		testenv.Eventually(t, 5*time.Second, func() error {
			if st := counter.Stats(); st.DisconnectedSince.Before(begin) || !strings.Contains(st.LastError, "refused") {
				return fmt.Errorf("without a server: %+v", st)
			}
			return nil
		})
		r := &testenv.Recorder{}
		s, err := rtsp.NewServer(rtsp.ServerOptions{Listen: addr, Catalog: noStreams{}, Publish: r, Username: "admin", Password: password, RTPPort: -1,
			Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		var rec testenv.Recording
		testenv.Eventually(t, 15*time.Second, func() error {
			rec = r.Get("live/" + l.key)
			if len(rec.Packets) < 2 || len(rec.Packets[0]) < 40 || len(rec.Packets[1]) < 20 {
				return fmt.Errorf("received %d tracks", len(rec.Packets))
			}
			return nil
		})
		require.Zero(t, counter.Stats().DisconnectedSince)
		begin = time.Now()
		s.Close()
		require.Equal(t, media.H264, rec.Tracks[0].CodecID)
		require.Equal(t, clip.Tracks()[1].Extradata, rec.Tracks[1].Extradata)
		requireGapless(t, clip, 0, packetDigests(rec.Packets[0]))
		requireGapless(t, clip, 1, packetDigests(rec.Packets[1]))
		// The times are the ring's, carried by the sender reports.
		at := int64(-1)
		for i, p := range clip.Packets(0) {
			if bytes.Equal(p.Data, rec.Packets[0][0].Data) {
				at = int64(i)
			}
		}
		offset := (rec.Packets[0][0].PTS - l.base) % int64(clip.Duration())
		require.InDelta(t, at*int64(40*time.Millisecond), offset, float64(time.Millisecond))
	}
	testenv.Eventually(t, 5*time.Second, func() error {
		if !strings.Contains(logs.String(), "connection lost") {
			return errors.New("no word of the lost connection")
		}
		return nil
	})
	require.NotContains(t, logs.String(), "s3cr")
	require.NotContains(t, logs.String(), "admin")
}

func TestPushRefused(t *testing.T) {
	testenv.CheckLeaks(t)
	dir := t.TempDir()
	err := Push(context.Background(), PushOptions{RuntimeDir: dir, Keys: []string{"nobody"}, URL: "rtsp://127.0.0.1:1/x"})
	require.ErrorIs(t, err, os.ErrNotExist)
	require.Error(t, PushOptions{URL: "rtsp://x/"}.Check())
	require.Error(t, PushOptions{Keys: []string{"a", "b"}, URL: "rtsp://x/y"}.Check())
	require.NoError(t, PushOptions{Keys: []string{"a", "b"}, URL: "rtsp://x/%{key}"}.Check())
	require.Error(t, PushOptions{Keys: []string{"a"}, URL: "nonsense"}.Check())
	clip, err := testcam.EmbeddedClip("h264", false)
	require.NoError(t, err)
	l := publishClip(t, dir, relayKey(t), clip, time.Second)
	s, err := rtsp.NewServer(rtsp.ServerOptions{Listen: "127.0.0.1:0", Catalog: noStreams{}, Publish: &testenv.Recorder{}, Username: "u", Password: "p", RTPPort: -1,
		Logger: slog.New(slog.DiscardHandler)})
	require.NoError(t, err)
	defer s.Close()
	logs := startPush(t, PushOptions{RuntimeDir: dir, Keys: []string{l.key}, URL: "rtsp://u:wrongword@" + s.Addr().String() + "/x"})
	testenv.Eventually(t, 10*time.Second, func() error {
		if !strings.Contains(logs.String(), "again_in") {
			return errors.New("nothing logged")
		}
		return nil
	})
	require.NotContains(t, logs.String(), "wrongword")
	require.Regexp(t, `push: the server refuses the login.* again_in=3s\n`, logs.String(), "30 times the first pause: servers lock accounts")

	// What never stood is not lost, whoever is asked.
	for _, url := range []string{"rtsp://" + freePort(t, "tcp") + "/x", "tcp://" + freePort(t, "tcp")} {
		logs := startPush(t, PushOptions{RuntimeDir: dir, Keys: []string{l.key}, URL: url})
		testenv.Eventually(t, 10*time.Second, func() error {
			if strings.Count(logs.String(), "push: cannot connect") < 2 {
				return errors.New("two attempts are not told of")
			}
			return nil
		})
		require.Regexp(t, `(?i)connection refused.* again_in=`, logs.String())
		require.NotContains(t, logs.String(), "lost")
	}
}

// FFmpeg's outputs: a transport stream by TCP and UDP, FLV by RTMP.
func TestPushFFmpegOutputs(t *testing.T) {
	t.Parallel() // runs when the tests that look for leaks are done
	ffmpeg, ffprobe := testenv.NeedTool(t, "ffmpeg"), testenv.NeedTool(t, "ffprobe")
	dir := t.TempDir()
	clip, err := testcam.EmbeddedClip("h264", true)
	require.NoError(t, err)
	l := publishClip(t, dir, relayKey(t), clip, time.Second)
	for _, c := range []struct {
		name, network, to string
		receive           []string
	}{
		{"tcp", "tcp", "tcp://%s", []string{"-f", "mpegts", "-i", "tcp://%s?listen=1"}},
		{"udp", "udp", "udp://%s", []string{"-f", "mpegts", "-i", "udp://%s?timeout=5000000"}},
		{"rtmp", "tcp", "rtmp://%s/live/x", []string{"-listen", "1", "-i", "rtmp://%s/live/x"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			testenv.Watchdog(t, time.Minute) // from here on: it may have waited long for its turn
			addr := freePort(t, c.network)
			out := filepath.Join(t.TempDir(), "out.mkv")
			args := []string{"-v", "error"}
			for _, a := range c.receive {
				args = append(args, strings.ReplaceAll(a, "%s", addr))
			}
			receiver := testenv.Start(t, ffmpeg, append(args, "-map", "0", "-c", "copy", "-t", "3", out)...)
			startPush(t, PushOptions{RuntimeDir: dir, Keys: []string{l.key}, URL: fmt.Sprintf(c.to, addr)})
			require.NoError(t, receiver.WaitFor(t, 30*time.Second))
			b, err := exec.Command(ffprobe, "-v", "error", "-count_packets", "-show_entries", "stream=codec_name,nb_read_packets", "-of", "csv=p=0", out).CombinedOutput()
			require.NoError(t, err, string(b))
			var video, audio int
			for line := range strings.Lines(string(b)) {
				_, _ = fmt.Sscanf(line, "h264,%d", &video)
				_, _ = fmt.Sscanf(line, "aac,%d", &audio)
			}
			least := 30
			if c.network == "udp" { // it may begin within a GOP, and a busy machine drops datagrams
				least = 10
			}
			require.Greater(t, video, least, string(b))
			require.Greater(t, audio, least, string(b))
		})
	}
}
