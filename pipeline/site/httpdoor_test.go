package site

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/pipeline/retention"
)

// Whoever reaches the port without the token, or sends slowly, does not shut it: the next request is answered at once.
func TestHTTPDoor(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 60*time.Second)
	s := &Site{config: defaultConfig(), keeper: retention.New(retention.Options{}), runtimeDir: t.TempDir(), log: slog.New(slog.DiscardHandler)}
	s.turned.Store(time.Now().UnixNano())
	addrs := make(chan net.Addr, 1)
	s.api.site, s.api.onServe = s, func(a net.Addr) { addrs <- a }
	s.api.configure(&HTTP{Listen: "127.0.0.1:0", Token: testToken})
	defer s.api.stop()
	addr := (<-addrs).String()

	const request, bearer = " HTTP/1.1\r\nHost: x\r\n", "Authorization: Bearer " + testToken + "\r\n"
	for name, hostile := range map[string]struct {
		send   string
		status int
	}{
		"silent":               {},
		"half a header":        {send: "GET /health/live" + request + "X: "},
		"kept after a 401":     {send: "GET /health/live" + request + "\r\n", status: 401},
		"body without a token": {send: "POST /trigger/x" + request + "Content-Length: 100\r\n\r\n{", status: 401},
		"slow body":            {send: "POST /trigger/x" + request + bearer + "Content-Length: 100\r\n\r\n{"},
		"slow body of a GET":   {send: "GET /health/live" + request + bearer + "Content-Length: 100\r\n\r\n{"},
		"idle":                 {send: "GET /health/live" + request + bearer + "\r\n", status: 200},
	} {
		t.Run(name, func(t *testing.T) {
			for range 3 * httpConns {
				c, err := net.Dial("tcp", addr)
				require.NoError(t, err)
				defer c.Close()
				_, err = io.WriteString(c, hostile.send)
				require.NoError(t, err)
				if hostile.status == 0 {
					continue
				}
				require.NoError(t, c.SetReadDeadline(time.Now().Add(httpPatience)))
				r := bufio.NewReader(c)
				resp, err := http.ReadResponse(r, nil)
				require.NoError(t, err)
				_, _ = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
				require.Equal(t, hostile.status, resp.StatusCode)
				if hostile.status == 401 {
					_, err = r.ReadByte()
					require.ErrorIs(t, err, io.EOF, "the connection is kept")
				}
			}
			c, err := net.Dial("tcp", addr)
			require.NoError(t, err)
			defer c.Close()
			require.NoError(t, c.SetDeadline(time.Now().Add(httpPatience/2)))
			_, err = io.WriteString(c, "GET /health/live"+request+bearer+"\r\n")
			require.NoError(t, err)
			resp, err := http.ReadResponse(bufio.NewReader(c), nil)
			require.NoError(t, err)
			resp.Body.Close()
			require.Equal(t, 200, resp.StatusCode)
		})
	}
}
