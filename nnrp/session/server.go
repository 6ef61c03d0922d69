package session

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/cfpipe/cfpipe/nnrp"
)

// Handler is what a runtime does with sessions and frames. Its methods are called from the session's goroutines and must not block;
// frames of one session arrive in the order in which they were complete.
type Handler interface {
	// Opened is called when a session becomes ACTIVE. An error (an *nnrp.Error reaches the client as it is) refuses it.
	Opened(s *Session) error
	// Submitted hands over a checked frame. It must come to an end by Reply, Fail or Drop, in any goroutine.
	Submitted(f *Frame)
	// Ended is called once for every session that Opened accepted, after its last Submitted.
	Ended(s *Session)
}

// ServerOptions configure Serve.
type ServerOptions struct {
	Policy Policy
	// SessionID grants an id: the requested one or, for 0 or where that is taken, another. nil: the requested one, or 1.
	SessionID func(requested uint32) uint32
	// MaxBytes bounds the bodies that one session holds at a time; 0 = the larger of twice Policy.MaxBody and 64 MiB.
	MaxBytes int64
	Logger   *slog.Logger // nil = slog.Default()
}

// Session is one client's session on a server.
type Session struct {
	conn    Conn
	handler Handler
	log     *slog.Logger
	control ControlStream
	out     *controlWriter
	tail    *tailProbe
	ctx     context.Context
	cancel  context.CancelCauseFunc
	done    sync.WaitGroup // goroutines of the session

	// Data belongs to the Handler.
	Data any

	maxBytes int64

	mu     sync.Mutex
	state  State
	agreed *Agreement
	frames *Frames
	live   map[FrameKey]*Frame
	cache  *Cache
	bytes  int64         // bodies of live frames
	idle   chan struct{} // closed when DRAINING and no frame is left
	over   bool          // Serve waits for the last goroutines
}

// spawn starts a goroutine that ends with the session; none is started once Serve returns.
func (s *Session) spawn(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.done.Go(f)
	}
}

// Serve runs one connection as a server until the session has ended, and returns why: nil after an orderly CLOSE. When ctx ends, the
// client is sent CLOSE and frames under way get a few seconds.
func Serve(ctx context.Context, conn Conn, h Handler, o ServerOptions) error {
	s := &Session{conn: conn, handler: h, log: o.Logger, live: map[FrameKey]*Frame{}, idle: make(chan struct{}), maxBytes: o.MaxBytes}
	if s.log == nil {
		s.log = slog.Default()
	}
	s.ctx, s.cancel = context.WithCancelCause(context.WithoutCancel(ctx))
	s.tail = newTailProbe(conn, serverProbe, func() { s.datagram(nnrp.MsgPing, nnrp.Header{}) })
	stop := make(chan struct{})
	var control sync.WaitGroup
	defer func() {
		s.cancel(errSessionEnded)
		_ = conn.CloseWithError(0, "")
		s.mu.Lock()
		s.over = true // pairs with spawn
		s.mu.Unlock()
		s.done.Wait()
		s.tail.followed()
	}()
	err := s.handshake(ctx, &o)
	if err != nil {
		if e := asError(err); e != nil && s.control != nil {
			s.refuse(e)
		}
		return err
	}
	control.Go(func() { s.out.run(stop) })
	err = s.run(ctx)
	close(stop) // what is queued for the control stream still goes out
	control.Wait()
	if e := asError(err); err == nil || e != nil {
		s.lastWords()
	}
	return err
}

var errSessionEnded = errors.New("nnrp: session ended")

// handshake takes the session to ACTIVE.
func (s *Session) handshake(ctx context.Context, o *ServerOptions) error {
	hctx, cancel := context.WithTimeout(ctx, handshakeTimeout)
	defer cancel()
	c, err := s.conn.AcceptControl(hctx)
	if err != nil {
		return fmt.Errorf("nnrp: accept control stream: %w", err)
	}
	s.control = c
	unblock := context.AfterFunc(hctx, func() { _ = c.SetReadDeadline(time.Unix(1, 0)) })
	defer unblock()
	limits := nnrp.Limits{SDK: o.Policy.SDK}
	buf := make([]byte, nnrp.HeaderLen, 1024)
	h, err := readHeader(c, buf, &limits, false)
	if err != nil {
		return fmt.Errorf("nnrp: read CLIENT_HELLO: %w", err)
	}
	if err := s.state.Accept(true, h.Type, OnControl); err != nil {
		return err
	}
	s.state.To(Negotiating)
	if buf, err = readRest(c, buf, int(h.Size())-nnrp.HeaderLen, headTimeout); err != nil {
		return fmt.Errorf("nnrp: read CLIENT_HELLO: %w", err)
	}
	var hello nnrp.ClientHello
	if err := hello.Parse(&h, buf[nnrp.HeaderLen:], &limits); err != nil {
		return err
	}
	id := hello.RequestedSessionID
	if o.SessionID != nil {
		id = o.SessionID(id)
	} else if id == 0 {
		id = 1
	}
	ack, agreed, err := Negotiate(&hello, &o.Policy, id)
	if err != nil {
		return err
	}
	s.agreed, s.frames, s.cache = agreed, NewFrames(int(agreed.Concurrent)), NewCache(agreed.Cache)
	if s.maxBytes == 0 {
		s.maxBytes = max(2*int64(agreed.Limits.MaxBody), 64<<20)
	}
	s.out = newControlWriter(c, func(err error) { s.cancel(err) })
	if err := s.handler.Opened(s); err != nil {
		if asError(err) == nil {
			err = fmt.Errorf("%w: %w", nnrp.NewError(nnrp.CodeInternalError, "the runtime refused the session"), err)
		}
		return err
	}
	s.state.To(Active)
	if err := s.out.send(ack, nnrp.Header{SessionID: id, TraceID: h.TraceID}); err != nil {
		s.handler.Ended(s)
		return err
	}
	return nil
}

// refuse tells the client why there is no session.
func (s *Session) refuse(e *nnrp.Error) {
	fatal := *e
	fatal.Fatal = true
	b, err := fatal.Message(0).Append(nil, nnrp.Header{})
	if err != nil {
		return
	}
	_ = s.control.SetWriteDeadline(time.Now().Add(time.Second))
	if _, err := s.control.Write(b); err == nil {
		s.lastWords()
	}
}

// lastWords ends our half of the control stream and gives the client a moment to read it before the connection goes.
func (s *Session) lastWords() {
	_ = s.control.Close()
	select {
	case <-s.conn.Done():
	case <-time.After(lastWordsTimeout):
	}
}

// run drives an ACTIVE session to its end.
func (s *Session) run(ctx context.Context) error {
	defer s.handler.Ended(s)
	stopWatch := context.AfterFunc(ctx, func() { s.drain(true) })
	defer stopWatch()
	s.done.Go(func() {
		select {
		case <-s.conn.Done():
			s.cancel(fmt.Errorf("nnrp: connection to %s ended", s.conn.RemoteAddr()))
		case <-s.ctx.Done():
		}
	})
	s.done.Go(s.readControl)
	s.done.Go(s.readDatagrams)
	var streams sync.WaitGroup
	streams.Go(func() { s.acceptStreams(&streams) })

	select {
	case <-s.idle: // drained
	case <-s.ctx.Done():
	}
	err := context.Cause(s.ctx)
	s.cancel(errSessionEnded)
	streams.Wait() // no Submitted after Ended
	s.mu.Lock()
	s.state.To(Closed)
	left := slices.Collect(maps.Values(s.live))
	s.mu.Unlock()
	for _, f := range left {
		s.end(f, Cancelled)
	}
	return err
}

// drain stops accepting frames; the session ends when the last one has. tell sends CLOSE.
func (s *Session) drain(tell bool) {
	s.mu.Lock()
	if s.state != Active {
		s.mu.Unlock()
		return
	}
	s.state.To(Draining)
	if tell { // in front of the end of the control stream, which may follow at once
		_ = s.out.send(&nnrp.Close{}, s.header(nnrp.Header{}))
	}
	s.checkIdle()
	s.mu.Unlock()
	s.spawn(func() {
		select {
		case <-time.After(drainTimeout):
			s.cancel(fmt.Errorf("nnrp: frames were still under way %v after CLOSE", drainTimeout))
		case <-s.ctx.Done():
		}
	})
}

// checkIdle ends a draining session that has no frames; s.mu is held.
func (s *Session) checkIdle() {
	if s.state == Draining && s.frames.Live() == 0 {
		select {
		case <-s.idle:
		default:
			close(s.idle)
		}
	}
}

// fail reports an error to the peer and stops just what it must: nothing, the frame, or the session.
// trace is the trace_id of the message to blame.
func (s *Session) fail(e *nnrp.Error, trace uint64) {
	_ = s.out.send(e.Message(s.agreed.SessionID), s.header(nnrp.Header{FrameID: e.FrameID, ViewID: e.ViewID, TraceID: trace}))
	if e.Fatal {
		s.mu.Lock()
		s.state.To(Draining)
		s.mu.Unlock()
		s.cancel(e)
	}
}

func (s *Session) header(h nnrp.Header) nnrp.Header {
	h.SessionID = s.agreed.SessionID
	return h
}

// Agreement returns what is in effect now.
func (s *Session) Agreement() Agreement {
	s.mu.Lock()
	defer s.mu.Unlock()
	return *s.agreed
}

// State returns the session's state.
func (s *Session) State() State {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.state
}

// Cached returns an object that the client has installed.
func (s *Session) Cached(namespace uint32, key nnrp.CacheKey) ([]byte, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.cache.Get(namespace, key, time.Now())
}

// Done is closed when the session ends.
func (s *Session) Done() <-chan struct{} { return s.ctx.Done() }

// RemoteAddr names the client.
func (s *Session) RemoteAddr() string { return s.conn.RemoteAddr() }
