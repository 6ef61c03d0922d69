package session

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/cfpipe/cfpipe/nnrp"
)

// Frame is a frame that a client submitted.
type Frame struct {
	Session *Session
	Header  nnrp.Header
	Submit  nnrp.FrameSubmit // its slices are valid until Reply, Fail or Drop
	Arrived time.Time        // when the last byte was there

	key   FrameKey
	class nnrp.FrameClass // Submit is parsed again while the frame may be superseded
	buf   *[]byte
	held  int64
	timer *time.Timer

	// Once the frame has ended for the client (cancelled, expired) its buffer stays with the engine until that is done with it too.
	release sync.Once
}

// Key names the frame within its session.
func (f *Frame) Key() FrameKey { return f.key }

// acceptStreams reads every submit stream in a goroutine of its own, a bounded number at a time.
func (s *Session) acceptStreams(wg *sync.WaitGroup) {
	slots := make(chan struct{}, int(s.agreed.Concurrent)+4) // four more, so that a frame too many is answered, not left waiting
	for {
		select {
		case slots <- struct{}{}:
		case <-s.ctx.Done():
			return
		}
		r, err := s.conn.AcceptReceive(s.ctx)
		if err != nil {
			return
		}
		wg.Go(func() {
			stop := context.AfterFunc(s.ctx, func() { r.CancelRead(0) })
			s.readFrame(r)
			stop()
			<-slots
		})
	}
}

// readFrame reads one submit stream and hands the frame over.
func (s *Session) readFrame(r ReceiveStream) {
	f, err := s.receive(r)
	if err == nil {
		s.handler.Submitted(f)
		s.finishStream(r)
		return
	}
	r.CancelRead(uint64(nnrp.CodeMalformedBody))
	if e := asError(err); e != nil {
		s.fail(e, f.Header.TraceID)
	} // else the client gave the stream up, or was too slow: the frame is gone
}

// finishStream expects the end of the stream behind the message.
func (s *Session) finishStream(r ReceiveStream) {
	_ = r.SetReadDeadline(time.Now().Add(headTimeout))
	var b [1]byte
	if n, err := r.Read(b[:]); n != 0 || err != io.EOF { //nolint:errorlint // io.Reader's contract
		r.CancelRead(uint64(nnrp.CodeMalformedBody))
	}
}

func (s *Session) receive(r ReceiveStream) (f *Frame, err error) {
	limits := s.agreed.Limits
	f = &Frame{Session: s, buf: buffers.Get().(*[]byte)}
	if cap(*f.buf) < nnrp.HeaderLen+nnrp.FrameSubmitLen {
		*f.buf = make([]byte, 0, growStep)
	}
	defer func() {
		if err != nil {
			f.free()
		}
	}()
	if f.Header, err = readHeader(r, (*f.buf)[:nnrp.HeaderLen], &limits, false); err != nil {
		return f, err
	}
	h := &f.Header
	*f.buf = (*f.buf)[:nnrp.HeaderLen]
	f.key = FrameKey{h.ViewID, h.FrameID}
	blame := func(err error) error {
		if e := asError(err); e != nil {
			_ = e.ForFrame(h.ViewID, h.FrameID)
		}
		return err
	}
	if err := s.State().Accept(true, h.Type, OnStream); err != nil {
		return f, blame(err)
	}
	if h.SessionID != s.agreed.SessionID {
		return f, blame(nnrp.NewError(nnrp.CodeInvalidState, "FRAME_SUBMIT for session %d, this is %d", h.SessionID, s.agreed.SessionID))
	}
	// Metadata first: a frame that is one too many is refused before its body costs anything.
	if *f.buf, err = readRest(r, *f.buf, nnrp.FrameSubmitLen, headTimeout); err != nil {
		return f, err
	}
	if err := f.Submit.ParseMeta((*f.buf)[nnrp.HeaderLen:]); err != nil {
		return f, blame(err)
	}
	if err := s.admit(f); err != nil {
		return f, err
	}
	defer func() {
		if err != nil {
			s.end(f, Dropped)
		}
	}()
	if *f.buf, err = readRest(r, *f.buf, int(h.BodyLen), bodyTimeout); err != nil {
		return f, err
	}
	if err := f.Submit.Parse(h, (*f.buf)[nnrp.HeaderLen:], &limits); err != nil {
		return f, err
	}
	s.mu.Lock()
	err = s.agreed.CheckSubmit(h.ViewID, &f.Submit)
	s.mu.Unlock()
	if err != nil {
		return f, blame(err)
	}
	f.Arrived = time.Now()
	life := budget(f.Submit.LatencyBudgetMs, s.agreed.LatencyMs)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live[f.key] != f { // cancelled while it arrived
		return f, io.ErrUnexpectedEOF
	}
	f.timer = time.AfterFunc(life, func() { s.drop(f, Expired) })
	return f, nil
}

// admit gives the frame a place in the table, and ends older frames that it makes useless.
func (s *Session) admit(f *Frame) error {
	s.mu.Lock()
	if s.bytes+int64(f.Header.BodyLen) > s.maxBytes {
		s.mu.Unlock()
		e := nnrp.NewError(nnrp.CodeServerBusy, "the session holds %d bytes", s.bytes).ForFrame(f.key.View, f.key.ID)
		e.Scope, e.RetryAfterMs = nnrp.ScopeFrame, 100
		return e
	}
	var old []*Frame
	for _, k := range s.frames.Superseded(f.key) {
		old = append(old, s.live[k])
	}
	s.mu.Unlock()
	for _, o := range old {
		s.drop(o, Dropped)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.state != Active {
		return nnrp.NewError(nnrp.CodeInvalidState, "FRAME_SUBMIT in state %s", s.state).ForFrame(f.key.View, f.key.ID)
	}
	if err := s.frames.Submit(f.key, f.Submit.FrameClass, f.Submit.DependencyFrameID); err != nil {
		return err
	}
	f.class, f.held = f.Submit.FrameClass, int64(f.Header.BodyLen)
	s.bytes += f.held
	s.live[f.key] = f
	return nil
}

// end takes a frame out of the table; false when it had ended before.
func (s *Session) end(f *Frame, to FrameState) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.live[f.key] != f || !s.frames.Advance(f.key, to) {
		return false
	}
	delete(s.live, f.key)
	s.bytes -= f.held
	if f.timer != nil {
		f.timer.Stop()
	}
	s.checkIdle()
	return true
}

// drop ends a frame and tells the client by RESULT_DROP: a datagram where the class allows the message to be lost, else a stream.
func (s *Session) drop(f *Frame, to FrameState) {
	if f == nil || !s.end(f, to) {
		return
	}
	h := s.header(nnrp.Header{FrameID: f.key.ID, ViewID: f.key.View, TraceID: f.Header.TraceID})
	if to == Dropped || to == Expired {
		h.Flags |= nnrp.FlagStale
	}
	if to == Cancelled || CanDrop(f.class) {
		if f.class != nnrp.ClassKeyframe {
			h.Flags |= nnrp.FlagCanDrop
		}
		s.datagram(nnrp.MsgResultDrop, h)
		return
	}
	s.spawn(func() {
		b, err := (&nnrp.Bare{Msg: nnrp.MsgResultDrop}).Append(nil, h)
		if err == nil {
			_ = s.sendStream(writeTimeout, b)
		}
	})
}

func (s *Session) cancelFrame(k FrameKey) {
	s.mu.Lock()
	f := s.live[k]
	s.mu.Unlock()
	s.drop(f, Cancelled)
}

// Start moves the frame to PROCESSING. False: it was cancelled, superseded or has expired; the engine should Drop it.
func (f *Frame) Start() bool {
	f.Session.mu.Lock()
	defer f.Session.mu.Unlock()
	return f.Session.live[f.key] == f && f.Session.frames.Advance(f.key, Processing)
}

// Alive tells whether a result is still wanted.
func (f *Frame) Alive() bool {
	f.Session.mu.Lock()
	defer f.Session.mu.Unlock()
	return f.Session.live[f.key] == f
}

// Deadline returns when the frame expires.
func (f *Frame) Deadline() time.Time {
	return f.Arrived.Add(budget(f.Submit.LatencyBudgetMs, f.Session.agreed.LatencyMs))
}

// Drop ends the frame without a result: the client gets RESULT_DROP unless it knows already. The frame's memory is released.
func (f *Frame) Drop() {
	f.Session.drop(f, Dropped)
	f.free()
}

// Fail ends the frame with an ERROR and releases its memory.
func (f *Frame) Fail(e *nnrp.Error) {
	if f.Session.end(f, Dropped) {
		c := *e
		f.Session.fail(c.ForFrame(f.key.View, f.key.ID), f.Header.TraceID)
	}
	f.free()
}

// Reply sends the result in the background and releases the frame's memory at once; r and its slices belong to the session from here
// on. The times queue_ms, inference_ms and server_total_ms are the caller's, except where they are 0.
func (f *Frame) Reply(r *nnrp.ResultPush) {
	s := f.Session
	s.mu.Lock()
	ok := s.live[f.key] == f && s.frames.Advance(f.key, Ready)
	s.mu.Unlock()
	h := s.header(nnrp.Header{FrameID: f.key.ID, ViewID: f.key.View, TraceID: f.Header.TraceID})
	class, deadline := f.class, f.Deadline()
	if r.ServerTotalMs == 0 {
		r.ServerTotalMs = Millis(time.Since(f.Arrived))
	}
	f.free()
	if !ok {
		return
	}
	if class == nnrp.ClassKeyframe {
		h.Flags |= nnrp.FlagKeyframe
	}
	if class == nnrp.ClassRetransmit {
		h.Flags |= nnrp.FlagRetransmit
	}
	timeout := writeTimeout
	if CanDrop(class) {
		h.Flags |= nnrp.FlagCanDrop
		timeout = min(timeout, time.Until(deadline))
	}
	s.spawn(func() {
		var g nnrp.Gather
		err := r.Gather(&g, h)
		if err != nil {
			if s.end(f, Dropped) {
				e := nnrp.NewError(nnrp.CodeInternalError, "the result cannot be encoded").ForFrame(f.key.View, f.key.ID)
				e.Scope, e.Fatal = nnrp.ScopeFrame, false
				s.fail(e, f.Header.TraceID)
			}
			s.log.Error("nnrp result cannot be encoded", "session", s.agreed.SessionID, "error", err)
			return
		}
		to := Delivered
		if s.sendStream(timeout, g.Buffers()...) != nil {
			to = Dropped
		}
		s.end(f, to)
	})
}

// Millis is a duration in whole milliseconds as the wire holds it, at most 65535.
func Millis(d time.Duration) uint16 {
	return uint16(min(max(d.Round(time.Millisecond).Milliseconds(), 0), 65535))
}

// sendStream sends one message on a stream of its own, and gives the stream up when the peer does not take it in time.
func (s *Session) sendStream(timeout time.Duration, parts ...[]byte) error {
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	w, err := s.conn.OpenSend(ctx)
	if err != nil {
		return err
	}
	s.tail.followed()
	if err := writeStream(ctx, w, parts); err != nil {
		return err
	}
	s.tail.sent()
	return nil
}

func (f *Frame) free() {
	f.release.Do(func() {
		b := f.buf
		f.buf, f.Submit.Camera, f.Submit.TileIndex.Data, f.Submit.Sections = nil, nil, nil, nil
		*b = (*b)[:0]
		buffers.Put(b)
	})
}
