package rtsp

import (
	"context"
	"crypto/tls"
	"errors"
	"net"
	"sync"
	"time"

	"github.com/bluenviron/gortsplib/v4/pkg/base"
	"github.com/bluenviron/gortsplib/v4/pkg/headers"

	"github.com/cfpipe/cfpipe/internal/lobby"
)

// listener accepts on all TCP ports of a server and hands out serverConns to the library.
type listener struct {
	timeout   time.Duration // of writes
	strangers *lobby.Lobby[*serverConn]
	accepted  chan *serverConn
	ctx       context.Context
	cancel    context.CancelFunc

	plain, tls net.Listener // nil: not served
	accepting  sync.WaitGroup
}

func newListener(timeout time.Duration) *listener {
	l := &listener{timeout: timeout, accepted: make(chan *serverConn)}
	l.strangers = lobby.New(maxStrangers, func(c *serverConn) { c.socket.Close() })
	l.ctx, l.cancel = context.WithCancel(context.Background())
	return l
}

// listen opens a port, with TLS when there is a config.
func (l *listener) listen(address string, config *tls.Config) error {
	port, err := net.Listen("tcp", address)
	if err != nil {
		return listenError("TCP", address, err)
	}
	if config == nil {
		l.plain = port
	} else {
		l.tls = port
	}
	l.accepting.Go(func() { l.accept(port, config) })
	return nil
}

func (l *listener) accept(port net.Listener, config *tls.Config) {
	for {
		socket, err := port.Accept()
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil { // out of descriptors for a moment: not the server's end
			select {
			case <-time.After(100 * time.Millisecond):
				continue
			case <-l.ctx.Done():
				return
			}
		}
		c := newServerConn(socket, config, l)
		select {
		case l.accepted <- c:
		case <-l.ctx.Done():
			c.Close()
		}
	}
}

// Accept implements net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.accepted:
		return c, nil
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
}

// Addr implements net.Listener.
func (l *listener) Addr() net.Addr {
	if l.plain == nil {
		return l.tls.Addr()
	}
	return l.plain.Addr()
}

// Close implements net.Listener. Connections that were handed out stay.
func (l *listener) Close() error {
	l.cancel()
	for _, port := range []net.Listener{l.plain, l.tls} {
		if port != nil {
			port.Close()
		}
	}
	l.accepting.Wait()
	return nil
}

// serverConn is a control connection. The library reads requests and writes responses; a session that plays over TCP writes
// its packets straight into it, an access unit at a time, between responses.
type serverConn struct {
	net.Conn          // of the peer's bytes: the socket, or TLS over it, which shakes hands in the first read
	socket   net.Conn // closing it does not block
	patient  *patientConn
	secure   bool
	listener *listener

	write      sync.Mutex // a response or an access unit's packets, never one inside the other
	afterWrite func()     // called once, after the next response has been written

	mu       sync.Mutex
	deadline time.Time
	playing  bool // over TCP: a reader need not send requests, a dead one is noticed by the write timeout
	sessions int  // that were granted to c and have not ended
	closed   bool
	asked    bool // it has made a request

	amend func(*base.Response) // completes the response to the request at hand; touched by the request's goroutines alone, one after another
}

func newServerConn(socket net.Conn, config *tls.Config, l *listener) *serverConn {
	patient := &patientConn{Conn: socket, timeout: l.timeout}
	c := &serverConn{Conn: patient, socket: socket, patient: patient, listener: l}
	if config != nil {
		c.Conn, c.secure = tls.Server(patient, config), true
	}
	c.extend(firstRequestTimeout)
	l.strangers.Enter(c)
	return c
}

// patientConn gives up on a peer that takes nothing for the timeout. It stands below TLS, which writes in answer to reads too.
type patientConn struct {
	net.Conn
	timeout time.Duration
	newest  uint16 // version of TLS that the peer offers; 0 = it has not said hello. Of the goroutine that shakes hands
}

func (c *patientConn) Write(b []byte) (int, error) {
	_ = c.SetWriteDeadline(time.Now().Add(c.timeout))
	return c.Conn.Write(b)
}

// join notes that c was granted a session: it is no stranger then.
func (c *serverConn) join() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sessions++
	c.listener.strangers.Leave(c)
}

// part notes that a session of c has ended. Without any it is a stranger again, and may idle no longer than one.
func (c *serverConn) part() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.sessions--; c.sessions > 0 || c.closed {
		return
	}
	c.playing, c.deadline = false, time.Now().Add(idleTimeout)
	_ = c.Conn.SetReadDeadline(c.deadline)
	c.listener.strangers.Enter(c)
}

// extend gives the peer d for its next request.
func (c *serverConn) extend(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.deadline = time.Now().Add(d)
	if !c.playing {
		_ = c.Conn.SetReadDeadline(c.deadline)
	}
}

// request notes a request, which extends c's life.
func (c *serverConn) request() {
	c.mu.Lock()
	c.asked = true
	c.mu.Unlock()
	c.extend(idleTimeout)
}

// requests says whether there was one.
func (c *serverConn) requests() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.asked
}

// setPlaying says whether packets go over c.
func (c *serverConn) setPlaying(playing bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.playing = playing
	if playing {
		_ = c.Conn.SetReadDeadline(time.Time{})
	} else {
		_ = c.Conn.SetReadDeadline(c.deadline)
	}
}

// follow lets start be called when the response to the request at hand was written, or could not be.
func (c *serverConn) follow(start func()) {
	c.write.Lock()
	defer c.write.Unlock()
	c.afterWrite = start
}

// SetReadDeadline keeps the idle timeout where the library would lift it.
func (c *serverConn) SetReadDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.IsZero() && !c.playing {
		t = c.deadline
	}
	return c.Conn.SetReadDeadline(t)
}

// SetWriteDeadline is left to patientConn: the library sets it ahead of its own writes, which could cut short a packet of ours.
func (c *serverConn) SetWriteDeadline(time.Time) error { return nil }

// Write implements net.Conn for the library: responses.
func (c *serverConn) Write(b []byte) (int, error) {
	c.write.Lock()
	n, err := c.Conn.Write(b)
	after := c.afterWrite
	c.afterWrite = nil
	c.write.Unlock()
	if after != nil {
		after()
	}
	return n, err
}

// Close implements net.Conn.
func (c *serverConn) Close() error {
	c.mu.Lock()
	c.closed = true
	c.mu.Unlock()
	c.listener.strangers.Leave(c)
	return c.Conn.Close()
}

// secured leaves in a SETUP over TLS the transports that stay within it, if there are any: the library takes the first that it can serve.
func secured(header base.HeaderValue) base.HeaderValue {
	var offers, inside headers.Transports
	if offers.Unmarshal(header) != nil {
		return header
	}
	for _, o := range offers {
		if o.Protocol == headers.TransportProtocolTCP {
			inside = append(inside, o)
		}
	}
	if len(inside) == 0 {
		return header
	}
	return inside.Marshal()
}
