// Package quictransport carries NNRP over QUIC v1 with TLS 1.3 and ALPN nnrp/1 (section 5). It is the only user of quic-go.
package quictransport

import (
	"context"
	"fmt"
	"time"

	"github.com/quic-go/quic-go"

	"github.com/cfpipe/cfpipe/nnrp/session"
)

// Flow control and time. A receiver reads every stream as it comes or cancels it, so windows only have to cover what is on the way;
// they also bound what a peer can make this side hold: connectionWindow a connection.
const (
	streamWindow        = 2 << 20  // a 640×640×3 uint8 tensor goes out in one round trip
	maxStreamWindow     = 8 << 20  // grown by quic-go for faster paths
	connectionWindow    = 8 << 20  // several frames at a time
	maxConnectionWindow = 32 << 20 // bound of what one connection can leave unread here
	maxUniStreams       = 128      // open at a time; above twice the largest max_concurrent_frames that a policy grants (64)

	idleTimeout      = 15 * time.Second
	keepAlive        = 5 * time.Second
	handshakeTimeout = 5 * time.Second // without a packet; twice that in all
	datagramQueue    = 32              // more are dropped: they are hints
)

// MaxConcurrentFrames is the largest max_concurrent_frames that the stream limit leaves room for.
const MaxConcurrentFrames = maxUniStreams / 2

func config(server bool) *quic.Config {
	c := &quic.Config{
		Versions:                       []quic.Version{quic.Version1},
		HandshakeIdleTimeout:           handshakeTimeout,
		MaxIdleTimeout:                 idleTimeout,
		KeepAlivePeriod:                keepAlive,
		InitialStreamReceiveWindow:     streamWindow,
		MaxStreamReceiveWindow:         maxStreamWindow,
		InitialConnectionReceiveWindow: connectionWindow,
		MaxConnectionReceiveWindow:     maxConnectionWindow,
		MaxIncomingUniStreams:          maxUniStreams,
		MaxIncomingStreams:             -1, // the client opens the control stream
		EnableDatagrams:                true,
	}
	if server {
		c.MaxIncomingStreams = 1 // the control stream
	}
	return c
}

// conn is a session.Conn over one QUIC connection.
type conn struct {
	q         *quic.Conn
	datagrams chan []byte
	release   func() // of the socket that a client dialled from
}

func newConn(q *quic.Conn, release func()) *conn {
	c := &conn{q: q, datagrams: make(chan []byte, datagramQueue), release: release}
	go c.sendDatagrams()
	return c
}

func (c *conn) sendDatagrams() {
	for {
		select {
		case b := <-c.datagrams:
			_ = c.q.SendDatagram(b) // a datagram that cannot be sent is lost
		case <-c.q.Context().Done():
			if c.release != nil {
				c.release()
			}
			return
		}
	}
}

func (c *conn) OpenControl(ctx context.Context) (session.ControlStream, error) {
	s, err := c.q.OpenStreamSync(ctx)
	if err != nil {
		return nil, err
	}
	return controlStream{s}, nil
}

func (c *conn) AcceptControl(ctx context.Context) (session.ControlStream, error) {
	s, err := c.q.AcceptStream(ctx)
	if err != nil {
		return nil, err
	}
	return controlStream{s}, nil
}

func (c *conn) OpenSend(ctx context.Context) (session.SendStream, error) {
	s, err := c.q.OpenUniStreamSync(ctx)
	if err != nil {
		return nil, err
	}
	return sendStream{s}, nil
}

func (c *conn) AcceptReceive(ctx context.Context) (session.ReceiveStream, error) {
	s, err := c.q.AcceptUniStream(ctx)
	if err != nil {
		return nil, err
	}
	return receiveStream{s}, nil
}

// SendDatagram queues b; when the queue is full, b is dropped.
func (c *conn) SendDatagram(b []byte) error {
	select {
	case c.datagrams <- b:
		return nil
	default:
		return fmt.Errorf("nnrp: send datagram: queue of %d is full", datagramQueue)
	}
}

func (c *conn) ReceiveDatagram(ctx context.Context) ([]byte, error) { return c.q.ReceiveDatagram(ctx) }

func (c *conn) CloseWithError(code uint64, reason string) error {
	return c.q.CloseWithError(quic.ApplicationErrorCode(code), reason)
}

func (c *conn) Done() <-chan struct{} { return c.q.Context().Done() }
func (c *conn) RemoteAddr() string    { return c.q.RemoteAddr().String() }

// The stream types turn quic-go's error code types into numbers.

type controlStream struct{ *quic.Stream }

func (s controlStream) CancelWrite(code uint64) { s.Stream.CancelWrite(quic.StreamErrorCode(code)) }
func (s controlStream) CancelRead(code uint64)  { s.Stream.CancelRead(quic.StreamErrorCode(code)) }

type sendStream struct{ *quic.SendStream }

func (s sendStream) CancelWrite(code uint64) { s.SendStream.CancelWrite(quic.StreamErrorCode(code)) }

type receiveStream struct{ *quic.ReceiveStream }

func (s receiveStream) CancelRead(code uint64) {
	s.ReceiveStream.CancelRead(quic.StreamErrorCode(code))
}
