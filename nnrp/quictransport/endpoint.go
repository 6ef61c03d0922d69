package quictransport

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"net/url"

	"github.com/quic-go/quic-go"

	"github.com/cfpipe/cfpipe/nnrp"
	"github.com/cfpipe/cfpipe/nnrp/session"
)

// DefaultPort is the port of an nnrps:// URL that names none.
const DefaultPort = "4433"

// ParseURL returns host and host:port of an nnrps:// URL.
func ParseURL(s string) (host, addr string, err error) {
	u, err := url.Parse(s)
	if err != nil {
		return "", "", fmt.Errorf("nnrp: URL is not valid, want nnrps://host:port") // the parser's error would repeat what may be secret
	}
	switch {
	case u.Scheme != "nnrps":
		return "", "", fmt.Errorf("nnrp: URL scheme is %q, want nnrps://host:port", u.Scheme)
	case u.Hostname() == "":
		return "", "", fmt.Errorf("nnrp: URL names no host, want nnrps://host:port")
	case u.User != nil:
		return "", "", fmt.Errorf("nnrp: URL holds credentials; they go in a token file")
	case u.Path != "" && u.Path != "/" || u.RawQuery != "" || u.Fragment != "":
		return "", "", fmt.Errorf("nnrp: URL goes on behind the port, want nnrps://host:port")
	}
	port := u.Port()
	if port == "" {
		port = DefaultPort
	}
	return u.Hostname(), net.JoinHostPort(u.Hostname(), port), nil
}

// Dial connects to a runtime. A certificate that is not trusted is a *CertificateError. The connection owns a socket of its own, which goes with it.
func Dial(ctx context.Context, nnrpURL string, trust Trust) (session.Conn, error) {
	host, addr, err := ParseURL(nnrpURL)
	if err != nil {
		return nil, err
	}
	conf, err := trust.tls(host)
	if err != nil {
		return nil, err
	}
	remote, err := net.ResolveUDPAddr("udp", addr)
	if err != nil {
		return nil, fmt.Errorf("nnrp: dial %s: %w", addr, err)
	}
	local := &net.UDPAddr{}
	if remote.IP.IsLoopback() {
		local.IP = remote.IP // stays on the machine
	}
	sock, err := net.ListenUDP("udp", local)
	if err != nil {
		return nil, fmt.Errorf("nnrp: dial %s: %w", addr, err)
	}
	t := &quic.Transport{Conn: joinBatches(joinDatagrams(sock))}
	closeAll := func() {
		_ = t.Close()
		_ = sock.Close()
	}
	q, err := t.Dial(ctx, remote, conf, config(false))
	if err != nil {
		closeAll()
		return nil, fmt.Errorf("nnrp: dial %s: %w", addr, handshakeError(err))
	}
	return newConn(q, closeAll), nil
}

// Listener accepts connections of clients.
type Listener struct {
	sock *net.UDPConn
	t    *quic.Transport
	l    *quic.Listener
}

// Listen opens a UDP socket, addr being host:port (an empty host: all addresses, port 0: any free one). certificate is asked at each
// handshake, so that a renewed one is shown to the clients that come after it.
func Listen(addr string, certificate func() *tls.Certificate) (*Listener, error) {
	local, err := net.ResolveUDPAddr("udp", addr)
	if err != nil {
		return nil, fmt.Errorf("nnrp: listen on %s: %w", addr, err)
	}
	sock, err := net.ListenUDP("udp", local)
	if err != nil {
		return nil, fmt.Errorf("nnrp: listen on %s: %w", addr, err)
	}
	t := &quic.Transport{Conn: joinDatagrams(sock)}
	current := func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return certificate(), nil }
	l, err := t.Listen(&tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{nnrp.ALPN}, GetCertificate: current}, config(true))
	if err != nil {
		_ = t.Close()
		_ = sock.Close()
		return nil, fmt.Errorf("nnrp: listen on %s: %w", addr, err)
	}
	return &Listener{sock: sock, t: t, l: l}, nil
}

// Addr returns the address that is listened on.
func (l *Listener) Addr() net.Addr { return l.sock.LocalAddr() }

// Accept returns the next connection whose TLS handshake is complete.
func (l *Listener) Accept(ctx context.Context) (session.Conn, error) {
	q, err := l.l.Accept(ctx)
	if err != nil {
		return nil, fmt.Errorf("nnrp: accept: %w", err)
	}
	return newConn(q, nil), nil
}

// Close ends the listener, all its connections, and the socket.
func (l *Listener) Close() error {
	_ = l.l.Close()
	err := l.t.Close()
	_ = l.sock.Close()
	return err
}
