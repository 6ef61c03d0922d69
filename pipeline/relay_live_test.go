package pipeline

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testcam"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// reportTime is the Unix time in ns that a sender report names, to a nanosecond or two, and its RTP time.
func reportTime(t *testing.T, packet []byte) (ns int64, rtp uint32) {
	t.Helper()
	require.Equal(t, byte(200), packet[1], "no sender report")
	ntp := binary.BigEndian.Uint64(packet[8:])
	return int64(ntp>>32-2208988800)*1e9 + int64(ntp&0xFFFFFFFF*1e9>>32), binary.BigEndian.Uint32(packet[16:])
}

// isKey tells whether an RTP packet of H.264 begins an IDR picture.
func isKey(packet []byte) bool {
	return packet[12]&0x1F == 5 || packet[12]&0x1F == 28 && packet[13]&0x9F == 0x85
}

// The GOP is 10 s long and its keyframe 8 s old: a reader has it, and all that followed, at once, after a sender report with
// the ring's clock.
func TestRelayLateJoin(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	const behind = 8 * time.Second
	l := newLive(t, longGOP(t, "-c:a", "aac"), behind)
	c := l.play(l.relay(RelayOptions{}), 2)
	begin := time.Now()
	var first, audio time.Duration
	pictures := 0
	lastTime := map[byte]uint32{}
	for pictures < int(behind/time.Second)*25 {
		switch ch, packet := c.Frame(); ch {
		case 5:
			ns, rtp := reportTime(t, packet)
			if first == 0 {
				require.InDelta(t, l.base+l.clip.Packets(0)[0].PTS, ns, 2, "the report names another time than the ring")
			}
			lastTime[4] = rtp
		case 4:
			if first == 0 {
				first = time.Since(begin)
				require.Equal(t, lastTime[4], binary.BigEndian.Uint32(packet[4:]), "the report is not about the first packet")
			}
			if packet[1]&0x80 != 0 {
				pictures++
			}
		case 7: // the audio's clock is the same one
			if ns, _ := reportTime(t, packet); audio == 0 {
				audio = time.Duration(ns - l.base)
			}
		}
	}
	require.Less(t, time.Since(begin), behind/2, "the rest of the GOP did not follow at once")
	require.GreaterOrEqual(t, audio, time.Duration(0), "audio from before the picture")
	t.Logf("keyframe after %v, %d pictures after %v, audio begins at %v", first, pictures, time.Since(begin), audio)
}

// More sessions than a publisher's table has room for share one subscription.
func TestRelayManySessions(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	l := newLive(t, silent(t), time.Second)
	addr := l.relay(RelayOptions{})
	var readers []*testenv.RTSP
	for range 60 {
		readers = append(readers, l.play(addr, 1))
	}
	for _, c := range readers {
		for pictures := 0; pictures < 40; {
			if ch, packet := c.Frame(); ch == 4 && packet[1]&0x80 != 0 {
				pictures++
			}
		}
	}
	require.Len(t, l.video.Control().Subscribers(), 1)
}

// requireEnd reads until the connection ends, which it has to within d.
func requireEnd(t *testing.T, c *testenv.RTSP, d time.Duration, otherwise string) {
	t.Helper()
	_ = c.Conn.SetReadDeadline(time.Now().Add(d))
	var err error
	for err == nil {
		_, _, err = c.TryFrame()
	}
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, otherwise)
}

// A session outlives its publisher when the next one has the same stream, and ends when it has another.
func TestRelayPublisherRestart(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	l := newLive(t, silent(t), 0)
	addr := l.relay(RelayOptions{})
	c := l.play(addr, 1)
	seq := -1
	pictures := func(n int, check func(packet []byte)) {
		for n > 0 {
			ch, packet := c.Frame()
			if ch != 4 {
				continue
			}
			if s := int(binary.BigEndian.Uint16(packet[2:])); seq >= 0 {
				require.Equal(t, (seq+1)&0xFFFF, s, "a gap in the sequence numbers")
			}
			seq = int(binary.BigEndian.Uint16(packet[2:]))
			if check != nil {
				check(packet)
			}
			if packet[1]&0x80 != 0 {
				n--
			}
		}
	}
	pictures(10, nil)
	old := l.base
	l.stop()
	l.start()
	key := false
	pictures(10, func(packet []byte) { key = key || isKey(packet) })
	require.True(t, key, "the new publisher's keyframe did not come")
	require.Greater(t, l.base, old)

	l.stop()
	l.clip = otherClip(t)
	l.start()
	requireEnd(t, c, 10*time.Second, "the session still stands though the stream is another one")
	c = l.play(addr, 1) // and a new one gets it
	seq = -1
	pictures(3, nil)
}

// A key that is taken away for good ends its sessions, with a line in the log; until then they wait for the next publisher.
func TestRelayKeyTakenAway(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	l := newLive(t, embedded(t), time.Second)
	var log testenv.Log
	addr := l.relay(RelayOptions{grace: time.Second, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	c := l.play(addr, 2)
	reader := testenv.Start(t, testenv.NeedTool(t, "ffmpeg"), "-v", "error", "-rtsp_transport", "udp", "-i", c.URL, "-c", "copy", "-f", "null", "-")
	c.Frame()
	testenv.Eventually(t, 10*time.Second, func() error {
		if n := strings.Count(log.String(), "rtsp: reader"); n < 2 {
			return fmt.Errorf("%d readers", n)
		}
		return nil
	})
	begin := time.Now()
	l.stop()
	requireEnd(t, c, 20*time.Second, "the session stands for ever")
	require.Greater(t, time.Since(begin), 900*time.Millisecond, "it did not wait for the next publisher")
	require.Contains(t, log.String(), errKeyGone.Error())
	_ = reader.WaitFor(t, 20*time.Second) // over UDP it hears of it by its control connection
	require.NotNil(t, reader.ProcessState)
	status, _, _ := testenv.DialRTSP(t, addr, l.key).Do("DESCRIBE", c.URL)
	require.Equal(t, 404, status)
	require.Contains(t, log.String(), "there_is=nothing")
}

// Reading is on demand: the publisher has no subscriber without an RTSP reader, and none is left behind by 50 of them.
func TestRelayOnDemand(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	l := newLive(t, embedded(t), time.Second)
	addr := l.relay(RelayOptions{})
	testenv.Eventually(t, 3*time.Second, l.subscribers(0))
	for i := range 50 {
		c := l.play(addr, 1+i%2)
		c.Frame()
		if i == 0 {
			testenv.Eventually(t, 3*time.Second, l.subscribers(1))
		}
		if i%3 == 0 {
			c.Do("TEARDOWN", c.URL)
		}
		c.Conn.Close()
	}
	testenv.Eventually(t, 5*time.Second, l.subscribers(0))
}

func TestRelayPaths(t *testing.T) {
	testenv.CheckLeaks(t)
	dir := t.TempDir()
	clip, err := testcam.EmbeddedClip("h265", true)
	require.NoError(t, err)
	a := publishClip(t, dir, relayKey(t)+"a", clip, 0)
	b := publishClip(t, dir, relayKey(t)+"b", clip, 0)
	addr := startRelay(t, RelayOptions{RuntimeDir: dir, Keys: []string{a.key}})
	c := testenv.DialRTSP(t, addr, "")
	base := "rtsp://" + addr + "/"
	for path, want := range map[string]int{
		a.key: 200, a.key + "-audio": 200, b.key: 404, a.key + "-sub": 404,
		"": 404, "../../etc/passwd": 404, strings.Repeat("x", 500): 404, a.key + "/x": 404,
	} {
		status, _, body := c.Do("DESCRIBE", base+path)
		require.Equal(t, want, status, path)
		if path == a.key {
			require.Contains(t, body, "H265/90000")
			require.Contains(t, strings.ToLower(body), "mpeg4-generic/16000")
			require.Contains(t, body, "sprop-sps")
			require.Contains(t, body, "a=control:trackID=0\r\na=framerate:25\r\n")
		}
		if path == a.key+"-audio" {
			require.NotContains(t, body, "m=video")
		}
	}
}

// Killing the relay harms neither the publisher nor its other readers, and the next one serves at once on the same port.
func TestRelayKilled(t *testing.T) {
	testenv.Watchdog(t, 2*time.Minute)
	bin := testenv.Binary(t)
	l := newLive(t, embedded(t), time.Second)
	other, err := Subscribe(context.Background(), SubscribeOptions{RuntimeDir: l.dir, Key: l.key})
	require.NoError(t, err)
	defer other.Close()

	free, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	addr := free.Addr().String()
	free.Close()
	var url string
	for range 3 {
		p := testenv.Start(t, bin, "--runtime-dir", l.dir, "relay", "--listen", addr)
		testenv.Eventually(t, 10*time.Second, func() error {
			if url = strings.TrimSpace(p.Stdout()); !strings.Contains(url, l.key) {
				return errors.New("no address on stdout yet")
			}
			return nil
		})
		require.Equal(t, "rtsp://"+addr+"/"+l.key, url)
		for range 3 {
			l.play(addr, 2).Frame()
		}
		p.Kill()
	}
	for range 50 {
		ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		_, err := other.Next(ctx)
		cancel()
		require.NoError(t, err)
	}
	require.Zero(t, other.Stats().Lost)
	testenv.Eventually(t, 5*time.Second, l.subscribers(1))
	// The port is taken: a clear message and status 1.
	taken, err := net.Listen("tcp", addr)
	require.NoError(t, err)
	defer taken.Close()
	p := testenv.Start(t, bin, "--runtime-dir", l.dir, "relay", "--listen", addr)
	require.Error(t, p.WaitFor(t, 10*time.Second))
	require.Equal(t, 1, p.ProcessState.ExitCode())
	require.Contains(t, p.Stderr(), "the port is taken")
}
