package rtsp

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// Garbage, giant headers and half-open connections cost bounded memory and disturb nobody.
func TestHostilePeers(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	s := startServer(t, ServerOptions{Catalog: &fakeCatalog{size: 2000, interval: 10 * time.Millisecond}, RTPPort: -1, MaxSessions: 40})
	good := dial(t, s)
	good.Play(1)
	before := heap()
	long := strings.Repeat("A", 1<<20)
	attacks := []string{
		long,
		"OPTIONS " + long,
		"OPTIONS rtsp://x/live RTSP/1.0\r\nCSeq: 1\r\nX: " + long,
		"OPTIONS rtsp://x/live RTSP/1.0\r\n" + strings.Repeat("A: b\r\n", 100_000),
		"ANNOUNCE rtsp://x/live RTSP/1.0\r\nCSeq: 1\r\nContent-Type: application/sdp\r\nContent-Length: 999999999\r\n\r\n" + long,
		"SETUP rtsp://x/live/trackID=0 RTSP/1.0\r\nCSeq: 1\r\nTransport: " + strings.Repeat("RTP/AVP/TCP;interleaved=0-1,", 50) + "\r\n\r\n",
		"SETUP rtsp://x/live/trackID=99999999999999999999 RTSP/1.0\r\nCSeq: 1\r\nTransport: RTP/AVP/TCP;unicast;interleaved=0-1\r\n\r\n",
		"SETUP rtsp://x/live/trackID=-1 RTSP/1.0\r\nCSeq: 1\r\nTransport: RTP/AVP/TCP;unicast;interleaved=254-255\r\n\r\n" +
			"PLAY rtsp://x/live RTSP/1.0\r\nCSeq: 2\r\n\r\n",
		"SETUP rtsp://x/live/trackID=0 RTSP/1.0\r\nCSeq: 1\r\nTransport: RTP/AVP/TCP;unicast;interleaved=99998-99999\r\n\r\n" +
			"PLAY rtsp://x/live RTSP/1.0\r\nCSeq: 2\r\n\r\n",
		"PLAY rtsp://x/live RTSP/1.0\r\nCSeq: 1\r\nSession: 1\r\n\r\n",
		"DESCRIBE  RTSP/1.0\r\n\r\n", "\x00\x00\x00\x00", "$\x00\xff\xff" + long, "RTSP/1.0 200 OK\r\n\r\n", "GET / HTTP/1.1\r\n\r\n",
		"DESCRIBE rtsp://x/" + strings.Repeat("%2e%2e/", 50) + " RTSP/1.0\r\nCSeq: 1\r\n\r\n",
	}
	for _, attack := range attacks {
		conn, err := net.Dial("tcp", s.Addr().String())
		require.NoError(t, err)
		_ = conn.SetDeadline(time.Now().Add(300 * time.Millisecond))
		_, _ = io.WriteString(conn, attack)
		_, _ = io.CopyN(io.Discard, conn, 1<<16)
		conn.Close()
		good.Frame()
	}
	var half []net.Conn
	for range maxStrangers + 20 { // more than the server takes; the good reader is none of them
		conn, err := net.Dial("tcp", s.Addr().String())
		require.NoError(t, err)
		_, _ = io.WriteString(conn, "OPTIONS rts")
		half = append(half, conn)
	}
	closed := 0
	for _, conn := range half[:20] {
		_ = conn.SetReadDeadline(time.Now().Add(time.Second))
		if _, err := conn.Read(make([]byte, 1)); err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
			closed++
		}
	}
	require.Equal(t, 20, closed, "those that were silent for longest make room")
	late := dial(t, s)
	late.Play(1)
	late.Frame()
	for range 100 {
		good.Frame()
	}
	for _, conn := range half {
		conn.Close()
	}
	require.Less(t, heap(), before+8<<20)
}

// Sessions are bounded, also those whose connection is gone; one that ends makes room, and its connection is a stranger again.
func TestSessionsAreBounded(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	s := startServer(t, ServerOptions{Catalog: &fakeCatalog{size: 10, interval: time.Second}, MaxSessions: 2})
	setup := func(c *testenv.RTSP, transport string) int {
		status, _, _ := c.Do("SETUP", c.URL+"/trackID=0", "Transport: "+transport)
		return status
	}
	a, b, c := dial(t, s), dial(t, s), dial(t, s)
	require.Equal(t, 200, setup(a, "RTP/AVP/TCP;unicast;interleaved=0-1"))
	require.Equal(t, 200, setup(b, "RTP/AVP;unicast;client_port=45010-45011"))
	status, _, _ := b.Do("PLAY", b.URL)
	require.Equal(t, 200, status)
	b.Conn.Close() // the session stands until it times out
	require.Equal(t, 503, setup(c, "RTP/AVP/TCP;unicast;interleaved=0-1"))
	status, _, _ = a.Do("TEARDOWN", a.URL)
	require.Equal(t, 200, status)
	a.Session = ""
	testenv.Eventually(t, 5*time.Second, func() error {
		if status := setup(dial(t, s), "RTP/AVP/TCP;unicast;interleaved=0-1"); status != 200 {
			return fmt.Errorf("status %d", status)
		}
		return nil
	})
	for range maxStrangers + 5 {
		dial(t, s)
	}
	_ = a.Conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	_, err := a.Conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, io.EOF, "a connection whose session has ended stays for ever")
}

func TestSilentPeerIsClosed(t *testing.T) {
	a, b := net.Pipe()
	defer b.Close()
	c := newServerConn(a, nil, newListener(time.Second))
	c.extend(50 * time.Millisecond)
	_ = c.SetReadDeadline(time.Time{}) // what the library does before it reads
	_, err := c.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	c.setPlaying(true)
	c.extend(time.Millisecond)
	go func() { _, _ = b.Write([]byte{1}) }()
	_, err = c.Read(make([]byte, 1))
	require.NoError(t, err, "a reader that plays need not speak")
	c.setPlaying(false)
	_, err = c.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded, "one that pauses has to")
	c.Close()
}
