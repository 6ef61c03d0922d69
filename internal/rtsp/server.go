package rtsp

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/bluenviron/gortsplib/v4"
	"github.com/bluenviron/gortsplib/v4/pkg/base"
	"github.com/bluenviron/gortsplib/v4/pkg/liberrors"

	"github.com/cfpipe/cfpipe/internal/media"
)

// Bounds of the server; each is per server unless it says otherwise.
const (
	// defaultMaxSessions bounds memory and descriptors; a peer whose SETUP is one more is told 503.
	defaultMaxSessions = 1024
	// maxStrangers bounds the connections without a session, TLS handshakes among them: about 20 KiB each, 60 KiB with TLS. The one
	// that has been without for longest goes when one more comes, so whoever is served at once is served however many say nothing.
	maxStrangers = 256
	// firstRequestTimeout closes connections that say nothing, or dribble, before they have made a request.
	firstRequestTimeout = 10 * time.Second
	// idleTimeout closes control connections without a request: longer than the session timeout of 60 s that clients are told.
	idleTimeout = 75 * time.Second
	// defaultWriteTimeout drops a peer whose socket takes nothing for this long.
	defaultWriteTimeout = 10 * time.Second
	// maxAccessUnit bounds what a session buffers for one access unit; larger ones are not sent.
	maxAccessUnit = 16 << 20
)

// Catalog is what a server offers.
type Catalog interface {
	// Tracks describes the stream at a path (no slash in front). An error that is os.ErrNotExist is answered with 404.
	Tracks(path string) ([]media.Track, error)
	// Paths lists what there is now, for the log.
	Paths() []string
	// Open begins to read the stream for one session. described are the tracks that the session knows of: when they are others now, the
	// error is ErrStreamChanged. tracks holds the indices that it asked for.
	Open(path string, described []media.Track, tracks []int) (StreamReader, error)
}

// ErrStreamChanged ends the sessions of a stream whose description is no longer that which they were given.
var ErrStreamChanged = errors.New("the publisher came back with another stream")

// StreamReader is one session's cursor into a stream.
type StreamReader interface {
	// Next blocks until the next packet of a track is due: an access unit, or a part of one with FlagLastInAU on the last part.
	// It is called from one goroutine per track; the packet's Data must stand until the next call for the same track. Any error
	// ends the session.
	Next(ctx context.Context, track int) (media.Packet, error)
	// Close is called once, when no Next runs any more.
	Close()
}

// ServerOptions sets up a Server. Only Catalog and one of the addresses must be set.
type ServerOptions struct {
	Listen  string // TCP address, for example ":8554"; port 0 takes a free one; "" = no port without TLS
	Catalog Catalog

	// ListenTLS is the TCP address for RTSP over TLS (rtsps); "" = none. Its readers are served interleaved alone: RTP over UDP would
	// leave what TLS secures. Certificate is asked for at every handshake.
	ListenTLS   string
	Certificate func() *tls.Certificate

	// RTPPort is the first of two UDP ports for unicast; even. 0 takes a free pair, -1 refuses UDP. UDP goes with Listen.
	RTPPort int
	// Multicast is a range such as "239.255.42.0/24"; "" refuses multicast.
	Multicast string
	// MulticastPort is the first of two UDP ports for multicast; even; 0 takes a free pair.
	MulticastPort int

	// Loss is the part of the RTP packets over unicast UDP that are not sent, for tests of readers.
	Loss float64

	Username, Password string // both empty: no authentication

	Publish Publisher // takes ANNOUNCE and RECORD; nil refuses them

	MaxSessions  int           // 0 = 1024
	WriteTimeout time.Duration // 0 = 10 s
	Logger       *slog.Logger  // nil = slog.Default()
}

// Server is an RTSP server. Each session has a cursor of its own into what it plays and is written to by its own goroutines,
// so a slow reader holds up nobody; what it has not taken in time is skipped by its cursor's owner.
type Server struct {
	o        ServerOptions
	log      *slog.Logger
	lib      *gortsplib.Server
	listener *listener
	rtp      *net.UDPConn // unicast UDP; the library reads from them and owns them
	rtcp     *net.UDPConn
	ctx      context.Context
	cancel   context.CancelFunc
	sessions sync.WaitGroup

	mu     sync.Mutex
	groups map[string]*multicastGroup // by path
	active map[*session]struct{}
	guests map[*gortsplib.ServerSession]*serverConn // what was granted, and to which connection

	full, absent, denied, noTLS rarely // what peers may bring up at any rate
}

// NewServer listens and serves until Close. A taken port is an error that names it.
func NewServer(o ServerOptions) (*Server, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.MaxSessions == 0 {
		o.MaxSessions = defaultMaxSessions
	}
	if o.WriteTimeout == 0 {
		o.WriteTimeout = defaultWriteTimeout
	}
	s := &Server{o: o, log: o.Logger, groups: map[string]*multicastGroup{}, active: map[*session]struct{}{},
		guests: map[*gortsplib.ServerSession]*serverConn{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.lib = &gortsplib.Server{
		Handler:                  s,
		WriteTimeout:             o.WriteTimeout,
		WriteQueueSize:           512, // used for multicast and for RTCP: what sessions play does not pass through it
		DisableRTCPSenderReports: true,
	}
	if err := s.listen(); err != nil {
		s.cancel()
		return nil, err
	}
	if err := s.lib.Start(); err != nil {
		s.listener.Close()
		s.closeUDP()
		s.cancel()
		return nil, fmt.Errorf("start RTSP server: %w", err)
	}
	return s, nil
}

// Addr is the TCP address that the server listens on without TLS; nil = it does not.
func (s *Server) Addr() *net.TCPAddr { return addrOf(s.listener.plain) }

// TLSAddr is the TCP address that the server listens on with TLS; nil = it does not.
func (s *Server) TLSAddr() *net.TCPAddr { return addrOf(s.listener.tls) }

func addrOf(l net.Listener) *net.TCPAddr {
	if l == nil {
		return nil
	}
	return l.Addr().(*net.TCPAddr)
}

// Close ends all sessions, with the connections, and waits for them.
func (s *Server) Close() {
	s.cancel()
	s.lib.Close()
	s.sessions.Wait()
	s.mu.Lock()
	groups := s.groups
	s.groups = map[string]*multicastGroup{}
	s.mu.Unlock()
	for _, g := range groups {
		g.close()
	}
}

// Sessions returns how many sessions play now.
func (s *Server) Sessions() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.active)
}

func (s *Server) authorised(conn *gortsplib.ServerConn, req *base.Request) bool {
	if s.o.Username == "" && s.o.Password == "" || conn.VerifyCredentials(req, s.o.Username, s.o.Password) {
		return true
	}
	if login := req.Header["Authorization"]; len(login) > 0 && s.denied.now() {
		what := "wrong user name or password"
		if nameless(login[0]) {
			what = "a login without a user name"
		}
		s.log.Warn("rtsp: "+what, "peer", conn.NetConn().RemoteAddr().String())
	}
	return false
}

var unauthorised = liberrors.ErrServerAuth{}

func response(status base.StatusCode) *base.Response { return &base.Response{StatusCode: status} }

// statusOf maps the error of a Catalog to the response.
func statusOf(err error) base.StatusCode {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return base.StatusNotFound
	case errors.Is(err, ErrStreamChanged):
		return base.StatusGone
	case errors.Is(err, ErrUnsupportedCodec):
		return base.StatusUnsupportedMediaType
	}
	return base.StatusServiceUnavailable
}

func pathOf(p string) string { return strings.Trim(p, "/") }

func connOf(c *gortsplib.ServerConn) *serverConn { return c.NetConn().(*serverConn) }

// OnRequest implements a hook of the library: every request extends the connection's life.
func (s *Server) OnRequest(conn *gortsplib.ServerConn, req *base.Request) {
	c := connOf(conn)
	c.amend = nil
	c.request()
	if req.Method != base.Setup {
		return
	}
	if s.o.Publish == nil { // the library lets GStreamer wait a second for each answer, for the sake of its publisher
		delete(req.Header, "User-Agent")
	}
	if c.secure {
		req.Header["Transport"] = secured(req.Header["Transport"])
	}
}

// admit counts a session in that is granted what it asks for; its connection is none of the strangers then. False: there is no room.
func (s *Server) admit(session *gortsplib.ServerSession, conn *serverConn) bool {
	s.mu.Lock()
	_, in := s.guests[session]
	room := in || len(s.guests) < s.o.MaxSessions
	if room && !in {
		s.guests[session] = conn
	}
	s.mu.Unlock()
	switch {
	case !room && s.full.now():
		s.log.Warn("rtsp: no room for another session", "sessions", s.o.MaxSessions, "peer", conn.RemoteAddr().String())
	case room && !in:
		conn.join()
	}
	return room
}

// dismiss counts a session out.
func (s *Server) dismiss(session *gortsplib.ServerSession) {
	s.mu.Lock()
	conn := s.guests[session]
	delete(s.guests, session)
	s.mu.Unlock()
	if conn != nil {
		conn.part()
	}
}

// rarely keeps peers from filling the log: it is time to tell at most once a second.
type rarely struct{ last atomic.Int64 }

func (r *rarely) now() bool {
	last, now := r.last.Load(), time.Now().UnixNano()
	return now-last > int64(time.Second) && r.last.CompareAndSwap(last, now)
}

// OnDescribe implements a hook of the library.
func (s *Server) OnDescribe(ctx *gortsplib.ServerHandlerOnDescribeCtx) (*base.Response, *gortsplib.ServerStream, error) {
	if !s.authorised(ctx.Conn, ctx.Request) {
		return response(base.StatusUnauthorized), nil, unauthorised
	}
	tracks, err := s.o.Catalog.Tracks(pathOf(ctx.Path))
	if err != nil {
		return s.refuse(ctx.Conn, ctx.Path, err), nil, nil
	}
	desc, err := describe(tracks)
	if err != nil {
		return s.refuse(ctx.Conn, ctx.Path, err), nil, nil
	}
	res := response(base.StatusOK)
	if res.Body, err = marshalSDP(desc, tracks); err != nil {
		return response(base.StatusInternalServerError), nil, nil
	}
	return res, nil, nil
}

// OnGetParameter implements a hook of the library. Readers ask it to keep a session, or a connection, alive.
func (s *Server) OnGetParameter(*gortsplib.ServerHandlerOnGetParameterCtx) (*base.Response, error) {
	return response(base.StatusOK), nil
}

// refuse is the response to a request for a path that is not there or cannot be had. The log says what there is instead.
func (s *Server) refuse(conn *gortsplib.ServerConn, path string, err error) *base.Response {
	res := response(statusOf(err))
	if !s.absent.now() {
		return res
	}
	attrs := []any{"path", pathOf(path), "peer", conn.NetConn().RemoteAddr().String(), "status", int(res.StatusCode)}
	if res.StatusCode == base.StatusNotFound { // the catalog's error says no more than that, and may list the paths a second time
		attrs = append(attrs, "there_is", some(s.o.Catalog.Paths()))
	} else {
		attrs = append(attrs, "error", err)
	}
	s.log.Warn("rtsp: a reader was refused", attrs...)
	return res
}

// some is a list that fits a line.
func some(paths []string) string {
	const most = 20
	switch n := len(paths); {
	case n == 0:
		return "nothing"
	case n > most:
		return fmt.Sprintf("%s and %d more", strings.Join(paths[:most], " "), n-most)
	}
	return strings.Join(paths, " ")
}

// OnStreamWriteError implements a hook of the library: multicast alone passes through the library's queue.
func (s *Server) OnStreamWriteError(ctx *gortsplib.ServerHandlerOnStreamWriteErrorCtx) {
	s.log.Debug("rtsp: packet dropped", "error", ctx.Error)
}
