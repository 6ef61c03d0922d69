package rtsp

import (
	"errors"
	"fmt"
	"net"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// listen binds the TCP port and the UDP pairs, and hands them to the library when it asks for them: so port 0 works, and a
// taken port is told apart.
func (s *Server) listen() error {
	l, err := net.Listen("tcp", s.o.Listen)
	if err != nil {
		return listenError("TCP", s.o.Listen, err)
	}
	s.listener = &listener{Listener: l, slots: make(chan struct{}, s.o.MaxConns)}
	host := l.Addr().(*net.TCPAddr).IP.String()
	s.lib.Listen = func(string, string) (net.Listener, error) { return s.listener, nil }

	if s.o.RTPPort >= 0 {
		var err error
		if s.rtp, s.rtcp, err = listenPair(host, s.o.RTPPort); err != nil {
			l.Close()
			return err
		}
		s.lib.UDPRTPAddress, s.lib.UDPRTCPAddress = s.rtp.LocalAddr().String(), s.rtcp.LocalAddr().String()
	}
	if s.o.Multicast != "" {
		port := s.o.MulticastPort
		if port == 0 {
			a, b, err := listenPair("", 0)
			if err != nil {
				l.Close()
				s.closeUDP()
				return err
			}
			port = a.LocalAddr().(*net.UDPAddr).Port
			a.Close()
			b.Close()
		}
		s.lib.MulticastIPRange, s.lib.MulticastRTPPort, s.lib.MulticastRTCPPort = s.o.Multicast, port, port+1
	}
	s.lib.ListenPacket = func(network, address string) (net.PacketConn, error) {
		switch address {
		case s.lib.UDPRTPAddress:
			return s.rtp, nil
		case s.lib.UDPRTCPAddress:
			return s.rtcp, nil
		}
		return net.ListenPacket(network, address)
	}
	return nil
}

func (s *Server) closeUDP() {
	if s.rtp != nil {
		s.rtp.Close()
		s.rtcp.Close()
	}
}

func listenError(proto, address string, err error) error {
	if errors.Is(err, syscall.EADDRINUSE) {
		return fmt.Errorf("listen on %s %s: the port is taken by another program (choose another one, or stop it; `ss -ltnup` names it): %w",
			proto, address, err)
	}
	return fmt.Errorf("listen on %s %s: %w", proto, address, err)
}

// listenPair binds an even UDP port and the one above it, which RTP and RTCP need. port 0 looks for a free pair.
func listenPair(host string, port int) (rtp, rtcp *net.UDPConn, err error) {
	if port%2 != 0 {
		return nil, nil, fmt.Errorf("RTP port %d is odd: RTP takes an even port and RTCP the one above it", port)
	}
	bind := func(port int) (*net.UDPConn, error) {
		address := net.JoinHostPort(host, strconv.Itoa(port))
		c, err := net.ListenPacket("udp", address)
		if err != nil {
			return nil, listenError("UDP", address, err)
		}
		return c.(*net.UDPConn), nil
	}
	for try := 0; ; try++ {
		if rtp, err = bind(port); err == nil {
			n := rtp.LocalAddr().(*net.UDPAddr).Port
			if n%2 == 0 {
				if rtcp, err = bind(n + 1); err == nil {
					return rtp, rtcp, nil
				}
			}
			rtp.Close()
		}
		if port != 0 || try == 100 {
			return nil, nil, err
		}
	}
}

// listener hands out serverConns, at most cap(slots) at a time: further peers are closed at once.
type listener struct {
	net.Listener
	slots chan struct{}
}

func (l *listener) Accept() (net.Conn, error) {
	for {
		c, err := l.Listener.Accept()
		if err != nil {
			var n net.Error
			if errors.As(err, &n) && !errors.Is(err, net.ErrClosed) { // out of descriptors for a moment: not the server's end
				time.Sleep(100 * time.Millisecond)
				continue
			}
			return nil, err
		}
		select {
		case l.slots <- struct{}{}:
			sc := &serverConn{Conn: c, release: sync.OnceFunc(func() { <-l.slots })}
			sc.extend(firstRequestTimeout)
			return sc, nil
		default:
			c.Close()
		}
	}
}

// serverConn is a control connection. The library reads requests and writes responses; a session that plays over TCP writes
// its packets straight into it, an access unit at a time, between responses.
type serverConn struct {
	net.Conn
	release func()

	write      sync.Mutex // a response or an access unit's packets, never one inside the other
	afterWrite func()     // called once, after the next response has been written

	mu       sync.Mutex
	deadline time.Time
	playing  bool // over TCP: a reader need not send requests, a dead one is noticed by the write timeout

	setup *setupRequest // the SETUP being answered; touched by the request's goroutines alone, one after another
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

func (c *serverConn) setPlaying() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.playing = true
	_ = c.Conn.SetReadDeadline(time.Time{})
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

// SetWriteDeadline is left to Write: the library sets it ahead of its own writes, which could cut short a packet of ours.
func (c *serverConn) SetWriteDeadline(time.Time) error { return nil }

// Write implements net.Conn for the library: responses.
func (c *serverConn) Write(b []byte) (int, error) {
	c.write.Lock()
	_ = c.Conn.SetWriteDeadline(time.Now().Add(defaultWriteTimeout))
	n, err := c.Conn.Write(b)
	after := c.afterWrite
	c.afterWrite = nil
	c.write.Unlock()
	if err == nil && after != nil {
		after()
	}
	return n, err
}

// writeFrames writes interleaved frames. When the peer takes nothing for the timeout the connection is of no use any more.
func (c *serverConn) writeFrames(b []byte, timeout time.Duration) error {
	c.write.Lock()
	defer c.write.Unlock()
	_ = c.Conn.SetWriteDeadline(time.Now().Add(timeout))
	_, err := c.Conn.Write(b)
	return err
}

func (c *serverConn) Close() error {
	c.release()
	return c.Conn.Close()
}
