package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cfpipe/cfpipe/nnrp"
)

// Bounds of time. A peer that is slower than these is cut off; nobody else waits for it.
const (
	handshakeTimeout = 5 * time.Second  // CLIENT_HELLO and its answer
	headTimeout      = 5 * time.Second  // header and metadata of a stream that has begun
	bodyTimeout      = 20 * time.Second // the body behind it: 32 MiB at 13 Mbit/s
	writeTimeout     = 10 * time.Second // one message, while the peer does not read
	drainTimeout     = 5 * time.Second  // frames that are under way when a session ends
	lastWordsTimeout = 2 * time.Second  // until the peer has read the last results and hung up
)

const (
	controlQueue = 64       // messages for the control stream that wait while the peer does not read; more end the connection
	growStep     = 64 << 10 // memory follows what has arrived, not what was announced
)

// readHeader reads a header; with wait it waits for the first byte for as long as the connection lives.
func readHeader(r ReceiveStream, buf []byte, l *nnrp.Limits, wait bool) (nnrp.Header, error) {
	n := 0
	if wait {
		_ = r.SetReadDeadline(time.Time{})
		var err error
		if n, err = io.ReadAtLeast(r, buf[:nnrp.HeaderLen], 1); err != nil {
			return nnrp.Header{}, err
		}
	}
	_ = r.SetReadDeadline(time.Now().Add(headTimeout))
	if _, err := io.ReadFull(r, buf[n:nnrp.HeaderLen]); err != nil {
		return nnrp.Header{}, noEOF(err)
	}
	h, err := nnrp.ParseHeader(buf[:nnrp.HeaderLen])
	if err != nil {
		return h, err
	}
	return h, h.Check(l)
}

func noEOF(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

// readRest appends n bytes to buf. Memory grows with what has arrived: a peer that announces much and sends little costs little.
func readRest(r ReceiveStream, buf []byte, n int, timeout time.Duration) ([]byte, error) {
	if n == 0 {
		return buf, nil
	}
	_ = r.SetReadDeadline(time.Now().Add(timeout))
	for n > 0 {
		room := cap(buf) - len(buf)
		if room == 0 {
			grown := make([]byte, len(buf), len(buf)+min(n, max(growStep, 2*len(buf))))
			copy(grown, buf)
			buf = grown
			continue
		}
		step := min(n, room)
		if _, err := io.ReadFull(r, buf[len(buf):len(buf)+step]); err != nil {
			return buf, noEOF(err)
		}
		buf = buf[:len(buf)+step]
		n -= step
	}
	return buf, nil
}

// readMessages hands the messages of a control stream to handle, and their protocol errors to complain. It returns nil when ctx has ended or
// after a fatal error, io.EOF when the peer has ended the stream, and what else has become of it. payload is valid during the call.
func readMessages(ctx context.Context, r ReceiveStream, limits nnrp.Limits,
	handle func(h *nnrp.Header, payload []byte, l *nnrp.Limits) error, complain func(e *nnrp.Error, trace uint64)) error {
	stop := context.AfterFunc(ctx, func() { _ = r.SetReadDeadline(time.Unix(1, 0)); r.CancelRead(0) })
	defer stop()
	buf := make([]byte, nnrp.HeaderLen)
	for ctx.Err() == nil {
		if cap(buf) > growStep { // a large object passed; do not keep its memory
			buf = make([]byte, nnrp.HeaderLen)
		}
		buf = buf[:nnrp.HeaderLen]
		h, err := readHeader(r, buf, &limits, true)
		if err == nil {
			buf, err = readRest(r, buf, int(h.Size())-nnrp.HeaderLen, bodyTimeout)
		}
		if err == nil {
			err = handle(&h, buf[nnrp.HeaderLen:], &limits)
		}
		if err == nil {
			continue
		}
		e := asError(err)
		if e == nil {
			return err
		}
		if e.Code == nnrp.CodeLimitExceeded { // the body was not read: nothing behind it can be found
			e.Fatal, e.Scope = true, nnrp.ScopeConnection
		}
		complain(e, h.TraceID)
		if e.Fatal {
			return nil
		}
	}
	return nil
}

// datagram sends a message without a body that may be lost.
func datagram(conn Conn, t nnrp.MsgType, h nnrp.Header) {
	b, err := (&nnrp.Bare{Msg: t}).Append(make([]byte, 0, nnrp.HeaderLen), h)
	if err == nil {
		_ = conn.SendDatagram(b)
	}
}

// buffers holds message bodies between frames. sync.Pool gives memory back when frames stop coming.
var buffers = sync.Pool{New: func() any { return new([]byte) }}

// joinMost is the largest message that is copied together: QUIC sends what it is given at once, and a head that goes out in a packet
// of its own is one more that can be lost.
const joinMost = 64 << 10

// writeStream writes a message and ends the stream; ctx bounds the time.
func writeStream(ctx context.Context, w SendStream, parts [][]byte) error {
	stop := context.AfterFunc(ctx, func() { w.CancelWrite(0) })
	defer stop()
	size := 0
	for _, p := range parts {
		size += len(p)
	}
	if len(parts) > 1 && size <= joinMost {
		buf := buffers.Get().(*[]byte)
		defer buffers.Put(buf)
		*buf = (*buf)[:0]
		for _, p := range parts {
			*buf = append(*buf, p...)
		}
		parts = [][]byte{*buf}
	}
	for _, p := range parts {
		if _, err := w.Write(p); err != nil {
			w.CancelWrite(0)
			return fmt.Errorf("nnrp: write stream: %w", err)
		}
	}
	return w.Close()
}

// controlWriter sends messages on the control stream in the order of send. One goroutine writes, so that no caller ever waits for a
// peer that does not read.
type controlWriter struct {
	stream SendStream
	queue  chan []byte
	full   atomic.Bool
	failed func(error)
}

var errControlFull = errors.New("nnrp: the peer does not read its control stream")

func newControlWriter(s SendStream, failed func(error)) *controlWriter {
	return &controlWriter{stream: s, queue: make(chan []byte, controlQueue), failed: failed}
}

// send queues a message; a full queue ends the connection through failed.
func (w *controlWriter) send(m nnrp.Message, h nnrp.Header) error {
	b, err := m.Append(nil, h)
	if err != nil {
		return err
	}
	select {
	case w.queue <- b:
		return nil
	default:
		if w.full.CompareAndSwap(false, true) {
			w.failed(errControlFull)
		}
		return errControlFull
	}
}

// run writes until stop is closed and the queue is empty.
func (w *controlWriter) run(stop <-chan struct{}) {
	for {
		select {
		case b := <-w.queue:
			if !w.write(b) {
				return
			}
		case <-stop:
			for {
				select {
				case b := <-w.queue:
					if !w.write(b) {
						return
					}
				default:
					return
				}
			}
		}
	}
}

func (w *controlWriter) write(b []byte) bool {
	_ = w.stream.SetWriteDeadline(time.Now().Add(writeTimeout))
	if _, err := w.stream.Write(b); err != nil {
		w.failed(fmt.Errorf("nnrp: write control stream: %w", err))
		return false
	}
	return true
}

// asError returns the protocol error in err, or nil.
func asError(err error) *nnrp.Error {
	var e *nnrp.Error
	if errors.As(err, &e) {
		return e
	}
	return nil
}
