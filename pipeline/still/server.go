package still

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"sync"
	"syscall"
	"time"
)

const (
	// room is how many answers are made and sent at a time. Who connects beyond it waits in the kernel's queue.
	room = 4
	// sendPatience is for a whole answer to be taken: a picture of 1080p takes 2 ms. Who reads more slowly goes, and is not waited for by
	// anybody but those in the queue.
	sendPatience = time.Second
)

// Server answers at a snapshot socket.
type Server struct {
	l   net.Listener
	log *slog.Logger

	mu   sync.Mutex // around take
	take func(context.Context) (Picture, error)

	ctx    context.Context // of the service
	cancel context.CancelFunc
	wg     sync.WaitGroup
}

// Serve answers those who connect to l until Close, which closes l too. take returns the newest picture; it is called by one goroutine at
// a time, and its context ends with the service. logger may be nil.
func Serve(l net.Listener, take func(context.Context) (Picture, error), logger *slog.Logger) *Server {
	if logger == nil {
		logger = slog.New(slog.DiscardHandler)
	}
	s := &Server{l: l, log: logger, take: take}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	s.wg.Go(s.accept)
	return s
}

// Close ends the service: answers in progress are cut off. It is idempotent.
func (s *Server) Close() error {
	s.cancel()
	err := s.l.Close()
	s.wg.Wait()
	if errors.Is(err, net.ErrClosed) {
		return nil
	}
	return err
}

func (s *Server) accept() {
	free := make(chan struct{}, room)
	var pause time.Duration
	for {
		select {
		case free <- struct{}{}:
		case <-s.ctx.Done():
			return
		}
		c, err := s.l.Accept()
		if err == nil {
			pause = 0
			s.wg.Go(func() {
				s.answer(c)
				<-free
			})
			continue
		}
		<-free
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if pause == 0 { // out of descriptors, most likely: others may close some
			s.log.Warn("snapshots cannot be asked for", "error", err)
		}
		pause = min(max(2*pause, 10*time.Millisecond), time.Second)
		select {
		case <-time.After(pause):
		case <-s.ctx.Done():
			return
		}
	}
}

func (s *Server) answer(c net.Conn) {
	defer c.Close()
	defer context.AfterFunc(s.ctx, func() { c.Close() })()
	p, err := s.picture(c)
	if errors.Is(err, errGone) {
		return
	}
	if err == nil {
		var n int
		if n, err = p.size(); err == nil && n != len(p.Pixels) {
			err = errors.New("the picture is not whole")
		}
	}
	if err != nil {
		p.Pixels = nil
		s.log.Debug("there is no picture for a snapshot", "error", err)
	}
	line, err := appendHeader(nil, p, err)
	if err != nil {
		return
	}
	_ = c.SetWriteDeadline(time.Now().Add(sendPatience))
	_, _ = (&net.Buffers{line, p.Pixels}).WriteTo(c) // the client may have gone
}

// errGone: the client does not wait any more.
var errGone = errors.New("the client has gone")

// picture takes one for c when it is its turn. Who has lost patience meanwhile costs nothing, however many those are.
func (s *Server) picture(c net.Conn) (Picture, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if err := s.ctx.Err(); err != nil {
		return Picture{}, err
	}
	if gone(c) {
		return Picture{}, errGone
	}
	return s.take(s.ctx)
}

// gone says whether the other end of a connection is closed. It does not block.
func gone(c net.Conn) (ended bool) {
	sc, ok := c.(syscall.Conn)
	if !ok {
		return false
	}
	raw, err := sc.SyscallConn()
	if err != nil {
		return true
	}
	err = raw.Control(func(fd uintptr) {
		var b [1]byte
		n, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		ended = n == 0 && err == nil || errors.Is(err, syscall.ECONNRESET)
	})
	return ended || err != nil
}
