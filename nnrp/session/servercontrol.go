package session

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/cfpipe/cfpipe/nnrp"
)

// readControl handles the control stream.
func (s *Session) readControl() {
	limits := s.agreed.Limits // does not change after the handshake
	err := readMessages(s.ctx, s.control, limits, s.control1, s.fail)
	switch {
	case errors.Is(err, io.EOF): // the client has ended its half: it wants nothing more
		s.drain(false)
	case err != nil:
		s.cancel(fmt.Errorf("nnrp: read control stream: %w", err))
	}
}

// control1 handles one control message.
func (s *Session) control1(h *nnrp.Header, payload []byte, l *nnrp.Limits) error {
	if err := s.State().Accept(true, h.Type, OnControl); err != nil {
		return err
	}
	if h.SessionID != s.agreed.SessionID {
		return nnrp.NewError(nnrp.CodeInvalidState, "%s for session %d, this is %d", h.Type, h.SessionID, s.agreed.SessionID)
	}
	m := nnrp.NewMessage(h.Type)
	if err := m.Parse(h, payload, l); err != nil {
		return err
	}
	reply := s.header(nnrp.Header{TraceID: h.TraceID})
	switch m := m.(type) {
	case *nnrp.SessionPatch:
		if err := nnrp.CheckCritical(m.Extensions, nil); err != nil {
			return err
		}
		s.mu.Lock()
		ack := s.agreed.Patch(m)
		s.mu.Unlock()
		return s.out.send(ack, reply)
	case *nnrp.CachePut:
		s.mu.Lock()
		ack := s.cache.Put(m, time.Now())
		s.mu.Unlock()
		return s.out.send(&ack, reply)
	case *nnrp.CacheInvalidate:
		s.mu.Lock()
		s.cache.Invalidate(m)
		s.mu.Unlock()
	case *nnrp.Close:
		if err := nnrp.CheckCritical(m.Extensions, nil); err != nil {
			return err
		}
		s.drain(false)
	case *nnrp.ErrorMessage:
		if m.IsFatal != 0 || m.Scope == nnrp.ScopeConnection {
			s.cancel(fmt.Errorf("nnrp: the client failed: %w", m.Err()))
			return nil
		}
		s.log.Debug("nnrp client reports an error", "session", s.agreed.SessionID, "code", m.Code.String(), "scope", m.Scope.String())
	case *nnrp.Bare:
		switch h.Type {
		case nnrp.MsgPing:
			return s.out.send(&nnrp.Bare{Msg: nnrp.MsgPong}, reply)
		case nnrp.MsgFrameCancel:
			s.cancelFrame(FrameKey{h.ViewID, h.FrameID})
		}
	}
	return nil
}

// readDatagrams handles FRAME_CANCEL and PING. A datagram that is not a message is lost like any other: it proves nothing about the
// streams.
func (s *Session) readDatagrams() {
	for {
		b, err := s.conn.ReceiveDatagram(s.ctx)
		if err != nil {
			return
		}
		h, err := nnrp.ParseHeader(b)
		if err != nil || h.Size() != int64(len(b)) || h.SessionID != s.agreed.SessionID || s.State().Accept(true, h.Type, OnDatagram) != nil {
			continue
		}
		switch h.Type {
		case nnrp.MsgPing:
			s.datagram(nnrp.MsgPong, nnrp.Header{TraceID: h.TraceID})
			s.tail.answered()
		case nnrp.MsgFrameCancel:
			s.cancelFrame(FrameKey{h.ViewID, h.FrameID})
		}
	}
}

func (s *Session) datagram(t nnrp.MsgType, h nnrp.Header) { datagram(s.conn, t, s.header(h)) }
