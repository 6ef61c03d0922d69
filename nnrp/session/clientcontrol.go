package session

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cfpipe/cfpipe/nnrp"
)

// readControl handles the control stream.
func (c *Client) readControl() {
	limits := c.agreed.Limits // does not change after the handshake
	err := readMessages(c.ctx, c.control, limits, c.control1, func(e *nnrp.Error, _ uint64) { c.complain(e) })
	switch {
	case errors.Is(err, io.EOF): // the server has said its last word
		close(c.peerEnd)
		if c.State() == Active {
			c.cancel(fmt.Errorf("nnrp: the server ended the control stream: %w", io.EOF))
		}
	case err != nil:
		c.cancel(fmt.Errorf("nnrp: read control stream: %w", err))
	}
}

// ErrClosed: the server has sent CLOSE.
var ErrClosed = errors.New("nnrp: the server closed the session")

// control1 handles one control message.
func (c *Client) control1(h *nnrp.Header, payload []byte, l *nnrp.Limits) error {
	if err := c.State().Accept(false, h.Type, OnControl); err != nil {
		return err
	}
	if h.SessionID != c.agreed.SessionID && h.Type != nnrp.MsgError {
		return nnrp.NewError(nnrp.CodeInvalidState, "%s for session %d, this is %d", h.Type, h.SessionID, c.agreed.SessionID)
	}
	m := nnrp.NewMessage(h.Type)
	if err := m.Parse(h, append([]byte(nil), payload...), l); err != nil { // answers outlive the buffer
		return err
	}
	switch m := m.(type) {
	case *nnrp.SessionPatchAck, *nnrp.CacheAck:
		c.answer(h.Type, h.TraceID, m, nil)
	case *nnrp.CachePut:
		c.mu.Lock()
		ack := c.cache.Put(m, time.Now())
		c.mu.Unlock()
		return c.out.send(&ack, c.header(nnrp.Header{TraceID: h.TraceID}))
	case *nnrp.CacheInvalidate:
		c.mu.Lock()
		c.cache.Invalidate(m)
		c.mu.Unlock()
	case *nnrp.Close:
		if err := nnrp.CheckCritical(m.Extensions, nil); err != nil {
			return err
		}
		c.serverCloses()
	case *nnrp.ErrorMessage:
		c.serverError(h, m)
	case *nnrp.Bare:
		switch h.Type {
		case nnrp.MsgPing:
			return c.out.send(&nnrp.Bare{Msg: nnrp.MsgPong}, c.header(nnrp.Header{TraceID: h.TraceID}))
		case nnrp.MsgPong:
			c.answer(h.Type, h.TraceID, m, nil)
		}
	}
	return nil
}

// serverCloses lets the frames under way end, then the session.
func (c *Client) serverCloses() {
	c.mu.Lock()
	c.state.To(Draining)
	c.checkIdle()
	c.mu.Unlock()
	c.done.Go(func() {
		select {
		case <-c.idle:
		case <-time.After(drainTimeout):
		case <-c.ctx.Done():
		}
		c.cancel(ErrClosed)
	})
}

// serverError stops what the ERROR names: one frame, one request, or the session.
func (c *Client) serverError(h *nnrp.Header, m *nnrp.ErrorMessage) {
	e := m.Err()
	switch {
	case m.IsFatal != 0 || m.Scope == nnrp.ScopeConnection:
		c.mu.Lock()
		c.state.To(Draining)
		c.mu.Unlock()
		c.cancel(e)
	case m.FrameID != 0:
		if o := c.find(FrameKey{uint16(m.ViewID), m.FrameID}); o != nil {
			to := Dropped
			switch e.Code {
			case nnrp.CodeFrameExpired:
				to = Expired
			case nnrp.CodeFrameCancelled:
				to = Cancelled
			}
			c.finish(o, to, e)
		}
	default:
		if !c.answer(0, h.TraceID, nil, e) {
			c.log.Warn("nnrp server reports an error", "code", e.Code.String(), "scope", e.Scope.String(), "detail", e.Detail)
		}
	}
}

// readDatagrams handles RESULT_DROP, PING and PONG. What is no message is lost like any other datagram.
func (c *Client) readDatagrams() {
	for {
		b, err := c.conn.ReceiveDatagram(c.ctx)
		if err != nil {
			return
		}
		h, err := nnrp.ParseHeader(b)
		if err != nil || h.Size() != int64(len(b)) || h.SessionID != c.agreed.SessionID || c.State().Accept(false, h.Type, OnDatagram) != nil {
			continue
		}
		switch h.Type {
		case nnrp.MsgResultDrop:
			if o := c.find(FrameKey{h.ViewID, h.FrameID}); o != nil {
				c.dropped(o)
			}
		case nnrp.MsgPing:
			c.datagram(nnrp.MsgPong, nnrp.Header{TraceID: h.TraceID})
			c.tail.answered()
		case nnrp.MsgPong:
			if h.TraceID != 0 { // else it answers a tail probe
				c.answer(h.Type, h.TraceID, &nnrp.Bare{Msg: nnrp.MsgPong}, nil)
			}
		}
	}
}

func (c *Client) datagram(t nnrp.MsgType, h nnrp.Header) { datagram(c.conn, t, c.header(h)) }
