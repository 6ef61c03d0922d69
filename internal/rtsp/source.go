package rtsp

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strings"
	"sync/atomic"
	"time"

	"github.com/cfpipe/cfpipe/internal/media"
)

// Transport says how media comes.
type Transport string

// Transports.
const (
	TransportAuto      Transport = "auto"      // TCP; UDP, then multicast, when the server wants it or TCP brought nothing
	TransportTCP       Transport = "tcp"       // interleaved in the RTSP connection
	TransportUDP       Transport = "udp"       // unicast
	TransportMulticast Transport = "multicast" //
)

const (
	defaultTimeout = 10 * time.Second
	// defaultReorderWait is above what Wi-Fi and bonded links shuffle, and below what a viewer notices.
	defaultReorderWait = 150 * time.Millisecond
	// defaultMaxUnit is the packet ring's default limit.
	defaultMaxUnit = 2 << 20
	// paramSetPatience is when a stream without parameter sets or keyframes is reported.
	paramSetPatience = 10 * time.Second
	// tellAgain is how often what lasts is logged.
	tellAgain = time.Minute
	// unitPatience is how long packets may come that make up nothing. They count as silence then.
	unitPatience = 30 * time.Second
	// defaultSessionTimeout is RFC 2326's, for servers that name none.
	defaultSessionTimeout = 60 * time.Second
	// reportPeriod of receiver reports: there are cameras that want one every 5 s.
	reportPeriod = 4 * time.Second
	// byePatience is how long after a goodbye the stream counts as ended when nothing more comes.
	byePatience = time.Second
	// maxRedirects of a DESCRIBE.
	maxRedirects = 5
)

// SourceOptions say where a Source gets its media. Only URL is needed.
type SourceOptions struct {
	URL       string    // rtsp:// or rtsps://, with or without credentials
	Username  string    // instead of the URL's, together with Password
	Password  string    // of Username, or of the user in the URL
	Transport Transport // "" = auto
	NoAudio   bool

	Timeout     time.Duration // for answers, and for silence of the camera; 0 = 10 s
	ReorderWait time.Duration // UDP: how long a missing packet is waited for; 0 = 150 ms
	MaxUnit     int           // largest access unit in bytes; 0 = 2 MiB

	// rtsps: the server's certificate is checked against the system's authorities, or RootCAs. Fingerprint (SHA-256 of the
	// certificate, hexadecimal, colons allowed) pins a certificate instead, which is what cameras with their own need.
	RootCAs     *x509.CertPool
	Fingerprint string
	Insecure    bool // take any certificate

	Logger *slog.Logger // nil = slog.Default
}

// SourceStats are running totals over all connections of a Source.
type SourceStats struct {
	RTPPackets uint64
	RTPLost    uint64
	Malformed  uint64 // packets that are no RTP of ours
	Corrupt    uint64 // access units handed on with parts missing
	Oversized  uint64 // access units larger than MaxUnit, dropped
	Waiting    uint64 // access units dropped in front of the first keyframe

	Clocked bool          // the camera tells its own time (RTCP sender reports)
	Ahead   time.Duration // of the camera's clock against this host's; the delay of the network counts as behind
}

type counters struct {
	rtpPackets, rtpLost, malformed, corrupt, oversized, waiting atomic.Uint64
	clocked                                                     atomic.Bool
	ahead                                                       atomic.Int64
}

// Source is an RTSP client that implements media.Source: each Run is one connection.
type Source struct {
	o     SourceOptions
	url   address
	stats counters
	// preferUDP is set in automatic mode when a connection over TCP brought nothing, and reset when UDP brought nothing.
	preferUDP bool
	ahead     int64 // of the camera's clock, from the last connection that had its reports
}

// NewSource checks the options. It does not connect.
func NewSource(o SourceOptions) (*Source, error) {
	url, err := parseAddress(o.URL)
	if err != nil {
		return nil, err
	}
	switch {
	case o.Username != "":
		url.user, url.password = o.Username, o.Password
	case o.Password != "" && url.user == "":
		return nil, fmt.Errorf("a password without a user name, which goes into the URL (rtsp://NAME@…) or beside the password: %w", media.ErrUnsupported)
	case o.Password != "":
		url.password = o.Password
	}
	switch o.Transport {
	case "":
		o.Transport = TransportAuto
	case TransportAuto, TransportTCP, TransportUDP, TransportMulticast:
	default:
		return nil, fmt.Errorf("transport %q is not one of auto, tcp, udp, multicast: %w", o.Transport, media.ErrUnsupported)
	}
	o.Fingerprint = strings.ToLower(strings.ReplaceAll(o.Fingerprint, ":", ""))
	if sum, err := hex.DecodeString(o.Fingerprint); o.Fingerprint != "" && (err != nil || len(sum) != sha256.Size) {
		return nil, fmt.Errorf("fingerprint %.80q: it is not a SHA-256 in hex (64 digits): %w", o.Fingerprint, media.ErrUnsupported)
	}
	if o.Timeout <= 0 {
		o.Timeout = defaultTimeout
	}
	if o.ReorderWait <= 0 {
		o.ReorderWait = defaultReorderWait
	}
	if o.MaxUnit <= 0 {
		o.MaxUnit = defaultMaxUnit
	}
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	o.URL = "" // from here on credentials are in url alone
	return &Source{o: o, url: url}, nil
}

// Name is the URL without credentials.
func (s *Source) Name() string { return Redact(s.url.uri()) }

// Stats may be called at any time.
func (s *Source) Stats() SourceStats {
	return SourceStats{
		RTPPackets: s.stats.rtpPackets.Load(), RTPLost: s.stats.rtpLost.Load(), Malformed: s.stats.malformed.Load(),
		Corrupt: s.stats.corrupt.Load(), Oversized: s.stats.oversized.Load(), Waiting: s.stats.waiting.Load(),
		Clocked: s.stats.clocked.Load(), Ahead: time.Duration(s.stats.ahead.Load()),
	}
}

// Run connects, plays and feeds the sink until the context ends, the connection does, or nothing has come for Timeout. The
// server is told (TEARDOWN) in every case.
func (s *Source) Run(ctx context.Context, sink media.Sink) error {
	err := s.run(ctx, sink)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		err = fmt.Errorf("the server closed the connection: %w", io.ErrUnexpectedEOF)
	}
	return err
}

func (s *Source) run(ctx context.Context, sink media.Sink) error {
	url := s.url
	for range maxRedirects {
		ss, err := s.connect(ctx, url)
		if err != nil {
			return err
		}
		next, err := ss.run(ctx, sink)
		if next == "" {
			return err
		}
		to, err := parseAddress(next)
		if err != nil {
			return fmt.Errorf("redirect to what is no RTSP address: %s", Redact(next)) // not ErrUnsupported: it is no reason to give up for good
		}
		if url.scheme == "rtsps" && to.scheme != "rtsps" {
			return errors.New("redirect from rtsps to rtsp refused")
		}
		if to.user == "" && to.hostname() == url.hostname() {
			to.user, to.password = url.user, url.password
		}
		s.o.Logger.Info("redirected", "to", Redact(next))
		url = to
	}
	return errors.New("too many redirects")
}

// connect opens the connection.
func (s *Source) connect(ctx context.Context, url address) (*clientSession, error) {
	dialer := net.Dialer{Timeout: s.o.Timeout, KeepAlive: 15 * time.Second}
	nc, err := dialer.DialContext(ctx, "tcp", url.dial())
	if err != nil {
		return nil, err
	}
	if url.scheme == "rtsps" {
		tc := tls.Client(nc, s.tlsConfig(url.hostname()))
		hctx, cancel := context.WithTimeout(ctx, s.o.Timeout)
		defer cancel()
		if err := tc.HandshakeContext(hctx); err != nil {
			nc.Close()
			return nil, handshakeError(url, err)
		}
		nc = tc
	}
	return newClientSession(s, url, nc), nil
}

// handshakeError says what a port without TLS looks like: one waits for more, closes, or answers something else. None of this is the server's
// end of a connection.
func handshakeError(url address, err error) error {
	var other tls.RecordHeaderError
	if errors.Is(err, io.EOF) || errors.Is(err, context.DeadlineExceeded) || errors.As(err, &other) {
		return fmt.Errorf("TLS with %s: there was no answer in TLS: if this port speaks plain RTSP, the URL begins with rtsp:// (%s)", url.host,
			err.Error())
	}
	return fmt.Errorf("TLS with %s: %w", url.host, err)
}

func (s *Source) tlsConfig(name string) *tls.Config {
	c := &tls.Config{ServerName: name, RootCAs: s.o.RootCAs, MinVersion: tls.VersionTLS12}
	if s.o.Insecure {
		c.InsecureSkipVerify = true
		return c
	}
	// the check is done here, so that the message can name the fingerprint
	c.InsecureSkipVerify = true
	c.VerifyConnection = func(cs tls.ConnectionState) error {
		if len(cs.PeerCertificates) == 0 {
			return errors.New("no certificate")
		}
		sum := sha256.Sum256(cs.PeerCertificates[0].Raw)
		fingerprint := hex.EncodeToString(sum[:])
		if want := s.o.Fingerprint; want != "" {
			if want != fingerprint {
				return fmt.Errorf("the certificate's fingerprint is %s, not the expected one", fingerprint)
			}
			return nil
		}
		pool := x509.NewCertPool()
		for _, cert := range cs.PeerCertificates[1:] {
			pool.AddCert(cert)
		}
		_, err := cs.PeerCertificates[0].Verify(x509.VerifyOptions{Roots: s.o.RootCAs, Intermediates: pool, DNSName: name})
		if err != nil {
			return fmt.Errorf("%w; to accept this camera's own certificate give its fingerprint (--fingerprint, in a site fingerprint:): %s", err, fingerprint)
		}
		return nil
	}
	return c
}
