// Package session holds the state machines of NNRP/1-preview1 (sections 6, 7, 15, 16 and 17) and the two ends that drive them over any
// transport that offers Conn: Serve for a runtime, Open for a client.
//
// The machines themselves (State, Frames, Agreement, Cache) are plain values without goroutines or clocks; the time is an argument.
package session

import (
	"context"
	"io"
	"time"
)

// SendStream is the sending half of a stream. CancelWrite gives up what was not delivered.
type SendStream interface {
	io.WriteCloser
	CancelWrite(code uint64)
	SetWriteDeadline(time.Time) error
}

// ReceiveStream is the receiving half of a stream. CancelRead tells the peer to stop sending.
type ReceiveStream interface {
	io.Reader
	CancelRead(code uint64)
	SetReadDeadline(time.Time) error
}

// ControlStream is the bidirectional stream of section 5.2.
type ControlStream interface {
	SendStream
	ReceiveStream
}

// Conn is one secured connection. All methods may be called from several goroutines; all that wait end when the connection ends.
type Conn interface {
	OpenControl(ctx context.Context) (ControlStream, error)
	AcceptControl(ctx context.Context) (ControlStream, error)
	OpenSend(ctx context.Context) (SendStream, error)
	AcceptReceive(ctx context.Context) (ReceiveStream, error)
	// SendDatagram and ReceiveDatagram carry single messages that may be lost. SendDatagram may drop instead of waiting.
	SendDatagram(b []byte) error
	ReceiveDatagram(ctx context.Context) ([]byte, error)
	// ProbeDelay returns how long after the last bytes of a message a datagram lets the transport find out soon that they were lost;
	// 0 = there is no need for one now. It is called once a message, and once a PING that comes as a datagram.
	ProbeDelay() time.Duration
	// CloseWithError ends the connection; the peer learns code and reason.
	CloseWithError(code uint64, reason string) error
	Done() <-chan struct{}
	RemoteAddr() string
}
