package inference

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"sync"
	"time"

	"github.com/cfpipe/cfpipe/internal/lobby"
	"github.com/cfpipe/cfpipe/internal/servercert"
	"github.com/cfpipe/cfpipe/nnrp"
	"github.com/cfpipe/cfpipe/nnrp/lz4codec"
	"github.com/cfpipe/cfpipe/nnrp/quictransport"
	"github.com/cfpipe/cfpipe/nnrp/session"
)

// ServerOptions configure a Server. Beside Engine the zero value is usable: any free port, a self-signed certificate, no token.
type ServerOptions struct {
	Engine      Engine                  // not closed by the Server
	Listen      string                  // host:port
	Certificate func() *tls.Certificate // asked for each connection; nil = one is made
	Token       []byte                  // nil = everyone may come
	Lanes       uint16                  // views a session; 0 = 4
	Concurrent  uint16                  // frames a session; 0 = 8, at most quictransport.MaxConcurrentFrames
	MaxBody     uint32                  // bytes; 0 = 16 MiB
	Scheduler   SchedulerOptions
	SDK         bool // CLIENT_HELLO in the public SDKs' order
	Logger      *slog.Logger
}

const (
	defaultMaxBody  = 16 << 20 // a 1280×1280×3 fp32 picture is 19 MB, 1024×1024×3 is 12.6 MB; it also bounds what a view keeps
	maxStrangers    = 32       // connections without a session: before it, for as long as a handshake may take, and after it
	cacheEntries    = 64
	cacheBytes      = 1 << 20 // camera blocks and tile layouts are small
	cacheNamespaces = 4
)

// Server is an NNRP runtime on a UDP port.
type Server struct {
	o     ServerOptions
	l     *quictransport.Listener
	sched *Scheduler
	cert  func() *tls.Certificate

	mu  sync.Mutex
	ids map[uint32]bool
}

// NewServer opens the port. Run serves it.
func NewServer(o ServerOptions) (*Server, error) {
	if o.Logger == nil {
		o.Logger = slog.Default()
	}
	if o.MaxBody == 0 {
		o.MaxBody = defaultMaxBody
	}
	if o.Lanes == 0 {
		o.Lanes = 4
	}
	if o.Concurrent > quictransport.MaxConcurrentFrames {
		return nil, fmt.Errorf("nnrp serve: %d frames a session are above %d", o.Concurrent, quictransport.MaxConcurrentFrames)
	}
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	cert := o.Certificate
	if cert == nil {
		var err error
		if cert, err = servercert.For(o.Listen); err != nil {
			return nil, fmt.Errorf("nnrp serve: %w", err)
		}
	}
	l, err := quictransport.Listen(o.Listen, cert)
	if err != nil {
		return nil, err
	}
	o.Scheduler.Codecs, o.Scheduler.Logger = []nnrp.Codec{lz4codec.Codec{}}, o.Logger
	return &Server{o: o, l: l, sched: NewScheduler(o.Engine, o.Scheduler), cert: cert, ids: map[uint32]bool{}}, nil
}

// Addr returns the address that is listened on.
func (s *Server) Addr() net.Addr { return s.l.Addr() }

// Fingerprint returns the SHA-256 of the certificate in hex, for clients that pin it.
func (s *Server) Fingerprint() string { return servercert.Fingerprint(s.cert()) }

// Run serves until ctx ends; then clients are sent CLOSE and frames under way get a few seconds.
func (s *Server) Run(ctx context.Context) error {
	policy, err := s.policy()
	if err != nil {
		return err
	}
	strangers := lobby.New(maxStrangers, func(c session.Conn) { _ = c.CloseWithError(uint64(nnrp.CodeServerBusy), "server_busy") })
	outer := ctx
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer func() {
		cancel() // a port that fails ends the sessions too
		wg.Wait()
		s.sched.Close()
		_ = s.l.Close()
	}()
	for {
		conn, err := s.l.Accept(ctx)
		if err != nil {
			if outer.Err() != nil {
				return nil
			}
			return err
		}
		strangers.Enter(conn)
		wg.Go(func() {
			s.serve(ctx, conn, policy, strangers)
			strangers.Leave(conn)
		})
	}
}

// Close frees the port of a server that was never Run.
func (s *Server) Close() error {
	s.sched.Close()
	return s.l.Close()
}

// guest hands the session of a connection to the scheduler. Only while it lasts is the connection none of the strangers.
type guest struct {
	*Scheduler
	conn      session.Conn
	strangers *lobby.Lobby[session.Conn]
}

func (g *guest) Opened(s *session.Session) error {
	err := g.Scheduler.Opened(s)
	if err == nil {
		g.strangers.Leave(g.conn)
	}
	return err
}

func (g *guest) Ended(s *session.Session) {
	g.Scheduler.Ended(s)
	g.strangers.Enter(g.conn)
}

func (s *Server) policy() (session.Policy, error) {
	spec := s.o.Engine.Spec()
	p := session.Policy{
		Codecs:  []nnrp.Codec{lz4codec.Codec{}},
		DTypes:  bitmap(spec.DTypes),
		Layouts: bitmap(spec.Layouts),
		Lanes:   s.o.Lanes, Concurrent: s.o.Concurrent, MaxBody: s.o.MaxBody,
		MaxQuality: 0xffff,
		Cache:      session.CachePolicy{Entries: cacheEntries, Bytes: cacheBytes, Objects: nnrp.ObjectAllBits, Namespaces: cacheNamespaces},
		SDK:        s.o.SDK,
		KnownExtension: func(t uint16) bool {
			return t == ExtModelName
		},
	}
	description := appendModel(nil, &spec)
	p.Extensions = func(hello *nnrp.ClientHello) ([]byte, error) {
		if want := modelName(hello.Extensions); want != "" && want != spec.Name {
			return nil, nnrp.NewError(nnrp.CodeUnsupportedCapability, "model %.100q is asked for, %s is served here", want, spec.Name)
		}
		return description, nil
	}
	if s.o.Token != nil {
		check, err := quictransport.CheckToken(s.o.Token)
		if err != nil {
			return p, err
		}
		p.Authenticate = check
	}
	return p, nil
}

func (s *Server) serve(ctx context.Context, conn session.Conn, p session.Policy, strangers *lobby.Lobby[session.Conn]) {
	var id uint32
	start := time.Now()
	err := session.Serve(ctx, conn, &guest{s.sched, conn, strangers}, session.ServerOptions{Policy: p, Logger: s.o.Logger,
		SessionID: func(requested uint32) uint32 {
			id = s.grant(requested)
			return id
		}})
	s.mu.Lock()
	delete(s.ids, id)
	s.mu.Unlock()
	var e *nnrp.Error
	switch {
	case err == nil:
		s.o.Logger.Info("nnrp session closed", "session", id, "peer", conn.RemoteAddr(), "after", time.Since(start).Round(time.Millisecond))
	case errors.As(err, &e):
		s.o.Logger.Warn("nnrp session refused or ended", "session", id, "peer", conn.RemoteAddr(), "code", e.Code.String(), "detail", e.Detail)
	default:
		s.o.Logger.Info("nnrp session lost", "session", id, "peer", conn.RemoteAddr(), "cause", err)
	}
}

// grant gives out the requested id where it is free, else a random one: ids of other sessions cannot be guessed.
func (s *Server) grant(requested uint32) uint32 {
	s.mu.Lock()
	defer s.mu.Unlock()
	id := requested
	for id == 0 || s.ids[id] {
		id = rand.Uint32()
	}
	s.ids[id] = true
	return id
}
