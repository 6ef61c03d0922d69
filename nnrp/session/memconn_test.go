package session

import (
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// memConn is a Conn in memory. Writes wait for reads, as on a transport whose windows are full.
type memConn struct {
	peer      *memConn
	control   chan *memStream
	uni       chan *memStream
	datagrams chan []byte
	done      chan struct{}
	closeOnce *sync.Once
	lose      atomic.Bool // datagrams
	open      *sync.Map   // streams, to be closed with the connection
	probe     time.Duration

	mu   sync.Mutex
	sent [][]byte // datagrams
}

func memPair() (client, server *memConn) {
	done, once, open := make(chan struct{}), new(sync.Once), new(sync.Map)
	mk := func() *memConn {
		return &memConn{control: make(chan *memStream, 4), uni: make(chan *memStream, 1024), datagrams: make(chan []byte, 64), done: done,
			closeOnce: once, open: open}
	}
	client, server = mk(), mk()
	client.peer, server.peer = server, client
	return client, server
}

type memStream struct {
	net.Conn
	reset, peerReset *atomic.Bool
}

var errReset = errors.New("stream reset")

func (s *memStream) Read(b []byte) (int, error) {
	n, err := s.Conn.Read(b)
	if errors.Is(err, io.EOF) && s.peerReset.Load() {
		err = errReset
	}
	return n, err
}
func (s *memStream) CancelWrite(uint64) { s.reset.Store(true); _ = s.Close() }
func (s *memStream) CancelRead(uint64)  { _ = s.Close() }

// oneWay keeps Close of one direction from ending the other: the control stream is two pipes.
type duplex struct{ r, w *memStream }

func (d *duplex) Read(b []byte) (int, error)         { return d.r.Read(b) }
func (d *duplex) Write(b []byte) (int, error)        { return d.w.Write(b) }
func (d *duplex) Close() error                       { return d.w.Close() }
func (d *duplex) CancelWrite(c uint64)               { d.w.CancelWrite(c) }
func (d *duplex) CancelRead(c uint64)                { d.r.CancelRead(c) }
func (d *duplex) SetReadDeadline(t time.Time) error  { return d.r.SetReadDeadline(t) }
func (d *duplex) SetWriteDeadline(t time.Time) error { return d.w.SetWriteDeadline(t) }

func (c *memConn) pipe() (here, there *memStream) {
	a, b := net.Pipe()
	ra, rb := new(atomic.Bool), new(atomic.Bool)
	here, there = &memStream{a, ra, rb}, &memStream{b, rb, ra}
	c.open.Store(here, nil)
	c.open.Store(there, nil)
	select {
	case <-c.done: // closed meanwhile, perhaps without these
		_ = here.Close()
		_ = there.Close()
	default:
	}
	return here, there
}

func (c *memConn) OpenControl(context.Context) (ControlStream, error) {
	w, pr := c.pipe()
	r, pw := c.pipe()
	c.peer.control <- pr
	c.peer.control <- pw
	return &duplex{r, w}, nil
}

func (c *memConn) AcceptControl(ctx context.Context) (ControlStream, error) {
	r, err := recv(ctx, c, c.control)
	if err != nil {
		return nil, err
	}
	w, err := recv(ctx, c, c.control)
	return &duplex{r, w}, err
}

func (c *memConn) OpenSend(context.Context) (SendStream, error) {
	here, there := c.pipe()
	select {
	case c.peer.uni <- there:
		return here, nil
	case <-c.done:
		return nil, net.ErrClosed
	}
}

func (c *memConn) AcceptReceive(ctx context.Context) (ReceiveStream, error) {
	return recv(ctx, c, c.uni)
}

func (c *memConn) ProbeDelay() time.Duration { return c.probe }

func (c *memConn) SendDatagram(b []byte) error {
	c.mu.Lock()
	c.sent = append(c.sent, append([]byte(nil), b...))
	c.mu.Unlock()
	if c.lose.Load() {
		return nil
	}
	select {
	case c.peer.datagrams <- append([]byte(nil), b...):
	default:
	}
	return nil
}

func (c *memConn) ReceiveDatagram(ctx context.Context) ([]byte, error) {
	return recv(ctx, c, c.datagrams)
}

func (c *memConn) CloseWithError(uint64, string) error {
	c.closeOnce.Do(func() {
		close(c.done)
		c.open.Range(func(k, _ any) bool {
			s := k.(*memStream)
			s.reset.Store(true)
			_ = s.Close()
			return true
		})
	})
	return nil
}
func (c *memConn) Done() <-chan struct{} { return c.done }
func (c *memConn) RemoteAddr() string    { return "memory" }

func recv[T any](ctx context.Context, c *memConn, ch chan T) (v T, err error) {
	select {
	case v = <-ch:
		return v, nil
	case <-ctx.Done():
		return v, ctx.Err()
	case <-c.done:
		return v, net.ErrClosed
	}
}
