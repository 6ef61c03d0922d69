package rtsp

import (
	"context"
	"crypto/tls"
	"errors"
	"io"
	"log/slog"
	"net"
	"slices"
	"syscall"

	"github.com/bluenviron/gortsplib/v4"
)

// serverTLS is the TLS of a server: certificate is asked for at every handshake.
func serverTLS(certificate func() *tls.Certificate) *tls.Config {
	return &tls.Config{
		MinVersion:     tls.VersionTLS12,
		GetCertificate: func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate(), nil },
		GetConfigForClient: func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
			hello.Conn.(*patientConn).newest = slices.Max(append([]uint16{ssl3}, hello.SupportedVersions...))
			return nil, nil
		},
	}
}

// ssl3 stands for all that is older than TLS.
const ssl3 = 0x0300

// OnConnClose implements a hook of the library: what stands in a reader's way at the TLS port is told on this side too.
func (s *Server) OnConnClose(ctx *gortsplib.ServerHandlerOnConnCloseCtx) {
	c := connOf(ctx.Conn)
	peer := c.RemoteAddr().String()
	if level, what := c.unsecured(ctx.Error); what != "" && s.noTLS.now() {
		s.log.Log(context.Background(), level, "rtsp: "+what, "peer", peer, "error", ctx.Error)
		return
	}
	s.log.Debug("rtsp: connection closed", "peer", peer, "cause", ctx.Error)
}

// unsecured says what most likely kept a peer of the TLS port from its first request; "" = nothing, or it said no word of TLS and left.
// It is for the time after the last read.
func (c *serverConn) unsecured(cause error) (level slog.Level, what string) {
	secure, ok := c.Conn.(*tls.Conn)
	if !ok || c.requests() {
		return 0, ""
	}
	newest := c.patient.newest
	var noTLS tls.RecordHeaderError
	switch {
	case errors.As(cause, &noTLS):
		return slog.LevelWarn, "a peer speaks no TLS on the port for it: its URL has to begin with rtsps://"
	case newest == 0:
		return 0, ""
	case newest < tls.VersionTLS12:
		return slog.LevelWarn, "a peer offers " + tls.VersionName(newest) + " at the most: TLS 1.2 is the oldest that is served"
	}
	// A TLS 1.3 peer checks the certificate before it has keys, or when the handshake is over on this side: what it makes of it arrives as
	// an alert, in plain text where a sealed record is due (OpenSSL: a bad record MAC here), or as no more than the end of the connection.
	var alert *net.OpError
	over := secure.ConnectionState().HandshakeComplete
	gone := slices.ContainsFunc([]error{io.EOF, io.ErrUnexpectedEOF, syscall.ECONNRESET, syscall.EPIPE}, func(e error) bool { return errors.Is(cause, e) })
	switch {
	case errors.As(cause, &alert) && (alert.Op == "remote error" || alert.Op == "local error" && !over), gone && !over:
		return slog.LevelWarn, "a peer does not accept this server's TLS: most likely it does not trust the certificate"
	case gone: // it may have looked whether the port is served, too
		return slog.LevelInfo, "a peer has gone after the TLS handshake without a request: it may not trust the certificate"
	}
	return 0, ""
}
