package rtsp

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/bluenviron/gortsplib/v4"
	"github.com/bluenviron/gortsplib/v4/pkg/base"
	"github.com/bluenviron/gortsplib/v4/pkg/liberrors"

	"github.com/cfpipe/cfpipe/internal/media"
)

// Bounds of the server; each is per server unless it says otherwise.
const (
	// defaultMaxConns bounds memory against peers that only connect: a connection costs about 20 KiB until it plays.
	defaultMaxConns = 1024
	// firstRequestTimeout closes connections that say nothing, or dribble, before they have made a request.
	firstRequestTimeout = 10 * time.Second
	// idleTimeout closes control connections without a request: longer than the session timeout of 60 s that clients are told.
	idleTimeout = 75 * time.Second
	// defaultWriteTimeout drops a TCP reader whose socket takes nothing for this long.
	defaultWriteTimeout = 10 * time.Second
	// maxAccessUnit bounds what a session buffers for one access unit; larger ones are not sent.
	maxAccessUnit = 16 << 20
)

// Catalog is what a server offers.
type Catalog interface {
	// Tracks describes the stream at a path (no slash in front). An error that is os.ErrNotExist is answered with 404.
	Tracks(path string) ([]media.Track, error)
	// Open begins to read the stream for one session. tracks holds the indices that the session asked for.
	Open(path string, tracks []int) (StreamReader, error)
}

// StreamReader is one session's cursor into a stream.
type StreamReader interface {
	// Next blocks until the next packet of a track is due: an access unit, or a part of one with FlagLastInAU on the last part.
	// It is called from one goroutine per track; the packet's Data must stand until the next call for the same track. Any error
	// ends the session.
	Next(ctx context.Context, track int) (media.Packet, error)
	// Close is called once, when no Next runs any more.
	Close()
}

// ServerOptions sets up a Server. Only Listen and Catalog must be set.
type ServerOptions struct {
	Listen  string // TCP address, for example ":8554"; port 0 takes a free one
	Catalog Catalog

	// RTPPort is the first of two UDP ports for unicast; even. 0 takes a free pair, -1 refuses UDP.
	RTPPort int
	// Multicast is a range such as "239.255.42.0/24"; "" refuses multicast.
	Multicast string
	// MulticastPort is the first of two UDP ports for multicast; even; 0 takes a free pair.
	MulticastPort int

	// Loss is the part of the RTP packets over unicast UDP that are not sent, for tests of readers.
	Loss float64

	Username, Password string // both empty: no authentication

	Publish Publisher // takes ANNOUNCE and RECORD; nil refuses them

	MaxConns     int           // 0 = 1024
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
}

// NewServer listens and serves until Close. A taken port is an error that names it.
func NewServer(o ServerOptions) (*Server, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.MaxConns == 0 {
		o.MaxConns = defaultMaxConns
	}
	if o.WriteTimeout == 0 {
		o.WriteTimeout = defaultWriteTimeout
	}
	s := &Server{o: o, log: o.Logger, groups: map[string]*multicastGroup{}, active: map[*session]struct{}{}}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.lib = &gortsplib.Server{
		Handler:                  s,
		RTSPAddress:              o.Listen,
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

// Addr is the TCP address that the server listens on.
func (s *Server) Addr() *net.TCPAddr { return s.listener.Addr().(*net.TCPAddr) }

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
	return s.o.Username == "" && s.o.Password == "" || conn.VerifyCredentials(req, s.o.Username, s.o.Password)
}

var unauthorised = liberrors.ErrServerAuth{}

func response(status base.StatusCode) *base.Response { return &base.Response{StatusCode: status} }

// statusOf maps the error of a Catalog to the response.
func statusOf(err error) base.StatusCode {
	if errors.Is(err, os.ErrNotExist) {
		return base.StatusNotFound
	}
	return base.StatusServiceUnavailable
}

func pathOf(p string) string { return strings.Trim(p, "/") }

// OnRequest implements a hook of the library: every request extends the connection's life.
func (s *Server) OnRequest(conn *gortsplib.ServerConn, _ *base.Request) {
	c := conn.NetConn().(*serverConn)
	c.setup = nil
	c.extend(idleTimeout)
}

// OnDescribe implements a hook of the library.
func (s *Server) OnDescribe(ctx *gortsplib.ServerHandlerOnDescribeCtx) (*base.Response, *gortsplib.ServerStream, error) {
	if !s.authorised(ctx.Conn, ctx.Request) {
		return response(base.StatusUnauthorized), nil, unauthorised
	}
	tracks, err := s.o.Catalog.Tracks(pathOf(ctx.Path))
	if err != nil {
		s.log.Debug("rtsp: describe", "path", pathOf(ctx.Path), "error", err)
		return response(statusOf(err)), nil, nil
	}
	desc, err := describe(tracks)
	if err != nil {
		s.log.Warn("rtsp: cannot describe the stream", "path", pathOf(ctx.Path), "error", err)
		return response(base.StatusServiceUnavailable), nil, nil
	}
	for i, m := range desc.Medias {
		m.Control = fmt.Sprintf("trackID=%d", i)
	}
	body, err := desc.Marshal(false)
	if err != nil {
		return response(base.StatusInternalServerError), nil, nil
	}
	res := response(base.StatusOK)
	res.Body = body
	return res, nil, nil
}

// OnStreamWriteError implements a hook of the library: multicast alone passes through the library's queue.
func (s *Server) OnStreamWriteError(ctx *gortsplib.ServerHandlerOnStreamWriteErrorCtx) {
	s.log.Debug("rtsp: packet dropped", "error", ctx.Error)
}
