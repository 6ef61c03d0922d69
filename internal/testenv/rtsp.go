package testenv

import (
	"bufio"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// RTSP is a client that speaks RTSP by hand, for tests that look at single packets or misbehave. What goes wrong fails the test.
type RTSP struct {
	Conn    net.Conn
	URL     string
	Session string
	Passed  func(channel byte, packet []byte) // is shown the frames that Do passes over; may be nil

	t    testing.TB
	r    *bufio.Reader
	cseq int
}

// DialRTSP connects; the connection is closed when the test ends.
func DialRTSP(t testing.TB, addr, path string) *RTSP {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	return newRTSP(t, conn, "rtsp://"+addr+"/"+path)
}

// DialRTSPS is DialRTSP over TLS. The certificate is not checked: see Conn.
func DialRTSPS(t testing.TB, addr, path string) *RTSP {
	t.Helper()
	conn, err := tls.Dial("tcp", addr, &tls.Config{InsecureSkipVerify: true})
	require.NoError(t, err)
	return newRTSP(t, conn, "rtsps://"+addr+"/"+path)
}

func newRTSP(t testing.TB, conn net.Conn, url string) *RTSP {
	t.Cleanup(func() { conn.Close() })
	return &RTSP{t: t, Conn: conn, r: bufio.NewReader(conn), URL: url}
}

// Do sends a request and returns status, headers (names in lower case) and body of the response; frames ahead of it are passed over.
func (c *RTSP) Do(method, url string, headers ...string) (status int, header map[string]string, body string) {
	c.t.Helper()
	c.cseq++
	req := fmt.Sprintf("%s %s RTSP/1.0\r\nCSeq: %d\r\n", method, url, c.cseq)
	if c.Session != "" {
		req += "Session: " + c.Session + "\r\n"
	}
	for _, h := range headers {
		req += h + "\r\n"
	}
	_, err := io.WriteString(c.Conn, req+"\r\n")
	require.NoError(c.t, err)
	for {
		b, err := c.r.Peek(1)
		require.NoError(c.t, err)
		if b[0] != '$' {
			break
		}
		if channel, packet := c.Frame(); c.Passed != nil {
			c.Passed(channel, packet)
		}
	}
	line := c.line()
	status, err = strconv.Atoi(strings.Fields(line)[1])
	require.NoError(c.t, err)
	header = map[string]string{}
	for line = c.line(); line != ""; line = c.line() {
		k, v, _ := strings.Cut(line, ":")
		header[strings.ToLower(k)] = strings.TrimSpace(v)
	}
	n, _ := strconv.Atoi(header["content-length"])
	b := make([]byte, n)
	_, err = io.ReadFull(c.r, b)
	require.NoError(c.t, err)
	if s := header["session"]; s != "" {
		c.Session, _, _ = strings.Cut(s, ";")
	}
	return status, header, string(b)
}

func (c *RTSP) line() string {
	c.t.Helper()
	line, err := c.r.ReadString('\n')
	require.NoError(c.t, err)
	return strings.TrimSpace(line)
}

// Frame returns the next interleaved frame.
func (c *RTSP) Frame() (channel byte, packet []byte) {
	c.t.Helper()
	channel, packet, err := c.TryFrame()
	require.NoError(c.t, err)
	return channel, packet
}

// TryFrame is Frame for connections that may end.
func (c *RTSP) TryFrame() (channel byte, packet []byte, err error) {
	head := make([]byte, 4)
	if _, err = io.ReadFull(c.r, head); err != nil {
		return 0, nil, err
	}
	if head[0] != '$' {
		return 0, nil, fmt.Errorf("no interleaved frame: % x", head)
	}
	packet = make([]byte, int(head[2])<<8|int(head[3]))
	_, err = io.ReadFull(c.r, packet)
	return head[1], packet, err
}

// Play sets up the first tracks on channels 4, 6, … and plays.
func (c *RTSP) Play(tracks int) {
	c.t.Helper()
	status, _, body := c.Do("DESCRIBE", c.URL, "Accept: application/sdp")
	require.Equal(c.t, 200, status)
	require.GreaterOrEqual(c.t, strings.Count(body, "m="), tracks)
	for i := range tracks {
		channels := fmt.Sprintf("interleaved=%d-%d", 4+2*i, 5+2*i)
		status, header, _ := c.Do("SETUP", fmt.Sprintf("%s/trackID=%d", c.URL, i), "Transport: RTP/AVP/TCP;unicast;"+channels)
		require.Equal(c.t, 200, status)
		require.Contains(c.t, header["transport"], channels)
	}
	status, _, _ = c.Do("PLAY", c.URL+"/", "Range: npt=0-")
	require.Equal(c.t, 200, status)
}
