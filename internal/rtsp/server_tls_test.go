package rtsp

import (
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/servercert"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// plainAlert is a client's connection that sends its ClientHello and then, whatever TLS wants to send, an alert in plain text, as OpenSSL
// does where it refuses a certificate before it has keys.
type plainAlert struct {
	net.Conn
	said bool
}

func (c *plainAlert) Write(b []byte) (int, error) {
	if !c.said {
		c.said = true
		return c.Conn.Write(b)
	}
	_, err := c.Conn.Write([]byte{21, 3, 3, 0, 2, 2, 48}) // unknown_ca
	return len(b), err
}

// resets is a client's connection that is reset in place of what follows the ClientHello, as GnuTLS does.
type resets struct {
	*net.TCPConn
	said bool
}

func (c *resets) Write(b []byte) (int, error) {
	if !c.said {
		c.said = true
		return c.TCPConn.Write(b)
	}
	_ = c.SetLinger(0)
	return 0, errors.Join(io.ErrClosedPipe, c.Close())
}

// A reader that goes in the handshake, or after it without a request, is told of with what it most likely means; one that never spoke TLS
// and left, or that made a request, is not.
func TestLogTellsOfTLSThatComesToNothing(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	made, err := servercert.SelfSigned()
	require.NoError(t, err)
	strict, strict12 := &tls.Config{ServerName: "elsewhere"}, &tls.Config{ServerName: "elsewhere", MaxVersion: tls.VersionTLS12}
	lax, old := &tls.Config{InsecureSkipVerify: true}, &tls.Config{InsecureSkipVerify: true, MinVersion: tls.VersionTLS10, MaxVersion: tls.VersionTLS11}
	shake := func(c net.Conn, config *tls.Config) { _ = tls.Client(c, config).Handshake() }
	const refused, warn, info = "does not accept this server's TLS: most likely it does not trust", "level=WARN", "level=INFO"
	for _, c := range []struct {
		name, level, says string // level "": nothing
		peer              func(net.Conn)
	}{
		{"alert, TLS 1.3", warn, refused, func(c net.Conn) { shake(c, strict) }},
		{"alert, TLS 1.2", warn, refused, func(c net.Conn) { shake(c, strict12) }},
		{"plain alert", warn, refused, func(c net.Conn) { shake(&plainAlert{Conn: c}, strict) }},
		{"reset", warn, refused, func(c net.Conn) { shake(&resets{TCPConn: c.(*net.TCPConn)}, strict) }},
		{"old version", warn, "offers TLS 1.1 at the most", func(c net.Conn) { shake(c, old) }},
		{"no TLS", warn, "rtsps://", func(c net.Conn) { _, _ = c.Write([]byte("OPTIONS * RTSP/1.0\r\nCSeq: 1\r\n\r\n")) }},
		{"gone after the handshake", info, "without a request", func(c net.Conn) { shake(c, lax) }},
		{"port scan", "", "", func(net.Conn) {}},
		{"request", "", "", func(c net.Conn) {
			secure := tls.Client(c, lax)
			_, _ = secure.Write([]byte("OPTIONS * RTSP/1.0\r\nCSeq: 1\r\n\r\n"))
			_, _ = secure.Read(make([]byte, 1))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var log testenv.Log
			s := startServer(t, ServerOptions{Catalog: &fakeCatalog{}, ListenTLS: "127.0.0.1:0", RTPPort: -1,
				Certificate: func() *tls.Certificate { return made },
				Logger:      slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug}))})
			begin := time.Now()
			for range 3 {
				nc, err := net.Dial("tcp", s.TLSAddr().String())
				require.NoError(t, err)
				c.peer(nc)
				nc.Close()
			}
			testenv.Eventually(t, 5*time.Second, func() error {
				if strings.Count(log.String(), "msg=\"rtsp: ") < 3 {
					return errors.New(log.String())
				}
				return nil
			})
			told := strings.Count(log.String(), warn) + strings.Count(log.String(), info)
			if c.level == "" {
				require.Zero(t, told, log.String())
				return
			}
			require.LessOrEqual(t, told, 1+int(time.Since(begin).Seconds()), "once a second: %s", log.String())
			require.Regexp(t, c.level+` .*`+c.says+`.* peer=127.0.0.1:\d+ `, log.String())
		})
	}
}
