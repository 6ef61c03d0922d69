package session

import (
	"context"
	"fmt"
	"time"

	"github.com/cfpipe/cfpipe/nnrp"
)

// SubmitOptions accompany a frame.
type SubmitOptions struct {
	View    uint16
	FrameID uint32 // 0 = the next unused one
	TraceID uint64
	Flags   nnrp.Flags
	Tag     any // comes back in the Outcome
}

// Submit sends a frame and returns its id. It waits for a free place (as many frames as agreed are under way until their outcomes are
// taken from Next) and until the transport has taken all bytes. m and its slices may be used again when it returns.
func (c *Client) Submit(ctx context.Context, m *nnrp.FrameSubmit, o SubmitOptions) (uint32, error) {
	select {
	case c.slots <- struct{}{}:
	case <-ctx.Done():
		return 0, ctx.Err()
	case <-c.ctx.Done():
		return 0, c.ended()
	}
	return c.submit(ctx, m, o)
}

// TrySubmit is Submit, except that it returns ErrFull instead of waiting for a place.
func (c *Client) TrySubmit(ctx context.Context, m *nnrp.FrameSubmit, o SubmitOptions) (uint32, error) {
	select {
	case c.slots <- struct{}{}:
		return c.submit(ctx, m, o)
	default:
		return 0, ErrFull
	}
}

func (c *Client) ended() error {
	if err := c.Err(); err != nil {
		return err
	}
	return nnrp.NewError(nnrp.CodeInvalidState, "the session has ended")
}

// submit sends a frame whose place is taken. From the moment the frame is in the table, its end is an Outcome.
func (c *Client) submit(ctx context.Context, m *nnrp.FrameSubmit, o SubmitOptions) (uint32, error) {
	id := o.FrameID
	if id == 0 {
		id = c.nextID.Add(1)
	}
	k := FrameKey{o.View, id}
	out := &Outcome{View: o.View, FrameID: id, Submitted: time.Now(), Tag: o.Tag}
	h := c.header(nnrp.Header{Flags: o.Flags, FrameID: id, ViewID: o.View, TraceID: o.TraceID})
	switch m.FrameClass {
	case nnrp.ClassKeyframe:
		h.Flags |= nnrp.FlagKeyframe
	case nnrp.ClassRetransmit:
		h.Flags |= nnrp.FlagRetransmit
	}
	if c.agreed.Limits.SDK {
		m.PayloadKind = nnrp.PayloadTensorSDK
	}
	var g nnrp.Gather
	err := m.Gather(&g, h)
	c.mu.Lock()
	if err == nil && c.state != Active {
		err = nnrp.NewError(nnrp.CodeInvalidState, "FRAME_SUBMIT in state %s", c.state)
	}
	if err == nil {
		err = c.agreed.CheckSubmit(o.View, m)
	}
	if size := gatherSize(&g) - nnrp.HeaderLen - nnrp.FrameSubmitLen; err == nil && size > int64(c.agreed.Limits.MaxBody) {
		err = nnrp.NewError(nnrp.CodeLimitExceeded, "body of %d bytes, max_body_bytes is %d", size, c.agreed.Limits.MaxBody)
	}
	if err == nil {
		err = c.frames.Submit(k, m.FrameClass, m.DependencyFrameID)
	}
	if err != nil {
		c.mu.Unlock()
		<-c.slots
		return 0, err
	}
	c.pending[k] = out
	out.life = budget(m.LatencyBudgetMs, c.agreed.LatencyMs)
	out.timer = time.AfterFunc(out.life, func() { c.giveUp(k, Expired) })
	c.mu.Unlock()

	// On a slow path a frame may take as long as it is of use and the server goes on reading.
	sctx, cancel := context.WithTimeout(ctx, max(writeTimeout, min(out.life, bodyTimeout)))
	defer cancel()
	w, err := c.conn.OpenSend(sctx)
	if err == nil {
		c.tail.followed()
		err = writeStream(sctx, w, g.Buffers())
	}
	if err != nil {
		c.finish(out, Dropped, nil)
		return id, nil //nolint:nilerr // the frame has its outcome; a broken connection shows in Done
	}
	c.tail.sent()
	return id, nil
}

func gatherSize(g *nnrp.Gather) int64 {
	var n int64
	for _, b := range g.Buffers() {
		n += int64(len(b))
	}
	return n
}

// Next returns the next outcome and frees its frame's place. Outcomes come in the order in which they became known.
func (c *Client) Next(ctx context.Context) (*Outcome, error) {
	select {
	case o := <-c.outcomes: // what is there goes first
		return c.take(o), nil
	default:
	}
	select {
	case o := <-c.outcomes:
		return c.take(o), nil
	case <-ctx.Done():
		return nil, ctx.Err()
	case <-c.ctx.Done():
		select {
		case o := <-c.outcomes:
			return c.take(o), nil
		default:
			return nil, c.ended()
		}
	}
}

// take frees the place, unless the server may still hold the frame: then its last word or its time does.
func (c *Client) take(o *Outcome) *Outcome {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := FrameKey{o.View, o.FrameID}
	if c.pending[k] == o {
		o.told = true
		return o
	}
	<-c.slots
	return o
}

// Cancel tells the server that a frame is no longer wanted: by datagram, and by the control stream in case that is lost. Its outcome is
// Cancelled at once.
func (c *Client) Cancel(view uint16, id uint32) { c.giveUp(FrameKey{view, id}, Cancelled) }

// giveUp ends a frame for the application, and keeps its place until the server has let go of it too.
func (c *Client) giveUp(k FrameKey, to FrameState) {
	c.mu.Lock()
	o := c.pending[k]
	if o == nil || !c.frames.Advance(k, to) {
		c.mu.Unlock()
		return
	}
	o.State, o.Took = to, time.Since(o.Submitted)
	o.timer.Stop()
	o.timer = time.AfterFunc(releaseAfter, func() { c.letGo(k) })
	c.outcomes <- o // has room: one place a slot
	c.checkIdle()
	c.mu.Unlock()
	h := c.header(nnrp.Header{FrameID: k.ID, ViewID: k.View, Flags: nnrp.FlagCanDrop})
	c.datagram(nnrp.MsgFrameCancel, h)
	_ = c.out.send(&nnrp.Bare{Msg: nnrp.MsgFrameCancel}, h)
}

// releaseAfter is when a frame that was given up frees its place although the server has said nothing: its RESULT_DROP may be lost.
const releaseAfter = time.Second

// letGo frees the place of a frame that was given up before.
func (c *Client) letGo(k FrameKey) {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.pending[k]
	if o == nil {
		return
	}
	if st, ok := c.frames.State(k); ok && !st.Final() {
		return
	}
	delete(c.pending, k)
	o.timer.Stop()
	if o.told {
		<-c.slots
	}
}

// finish ends a frame with what the server said.
func (c *Client) finish(o *Outcome, to FrameState, e *nnrp.Error) bool {
	k := FrameKey{o.View, o.FrameID}
	c.mu.Lock()
	if c.pending[k] != o {
		c.mu.Unlock()
		return false
	}
	if !c.frames.Advance(k, to) { // given up before
		c.mu.Unlock()
		c.letGo(k)
		return false
	}
	delete(c.pending, k)
	o.timer.Stop()
	o.State, o.Err, o.Took = to, e, time.Since(o.Submitted)
	c.outcomes <- o
	c.checkIdle()
	c.mu.Unlock()
	return true
}

// dropped ends a frame for which RESULT_DROP came: it has expired when its time is over, whoever noticed first.
func (c *Client) dropped(o *Outcome) {
	to := Dropped
	if time.Since(o.Submitted) >= o.life {
		to = Expired
	}
	c.finish(o, to, nil)
}

// deliver ends a frame with its result. False: it was given up; the result is of no use.
func (c *Client) deliver(o *Outcome, h nnrp.Header, m *nnrp.ResultPush, buf *[]byte) bool {
	k := FrameKey{o.View, o.FrameID}
	c.mu.Lock()
	if c.pending[k] != o || !c.frames.Advance(k, Ready) {
		c.mu.Unlock()
		c.letGo(k)
		return false
	}
	c.frames.Advance(k, Delivered)
	delete(c.pending, k)
	o.timer.Stop()
	o.State, o.Header, o.Result, o.buf, o.Took = Delivered, h, m, buf, time.Since(o.Submitted)
	c.outcomes <- o
	c.checkIdle()
	c.mu.Unlock()
	return true
}

func (c *Client) find(k FrameKey) *Outcome {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.pending[k]
}

// acceptStreams reads every result stream in a goroutine of its own, a bounded number at a time.
func (c *Client) acceptStreams() {
	slots := make(chan struct{}, 2*cap(c.slots)+4)
	for {
		select {
		case slots <- struct{}{}:
		case <-c.ctx.Done():
			return
		}
		r, err := c.conn.AcceptReceive(c.ctx)
		if err != nil {
			return
		}
		c.done.Go(func() {
			stop := context.AfterFunc(c.ctx, func() { r.CancelRead(0) })
			if err := c.readResult(r); err != nil {
				r.CancelRead(0)
				c.log.Debug("nnrp result stream", "error", err)
			}
			stop()
			<-slots
		})
	}
}

func (c *Client) readResult(r ReceiveStream) (err error) {
	limits := c.agreed.Limits
	buf := buffers.Get().(*[]byte)
	keep := false
	defer func() {
		if !keep {
			*buf = (*buf)[:0]
			buffers.Put(buf)
		}
	}()
	if cap(*buf) < nnrp.HeaderLen {
		*buf = make([]byte, 0, growStep)
	}
	h, err := readHeader(r, (*buf)[:nnrp.HeaderLen], &limits, false)
	if err == nil {
		err = c.State().Accept(false, h.Type, OnStream)
	}
	if err == nil && h.SessionID != c.agreed.SessionID {
		err = nnrp.NewError(nnrp.CodeInvalidState, "%s for session %d, this is %d", h.Type, h.SessionID, c.agreed.SessionID)
	}
	if err != nil {
		if e := asError(err); e != nil {
			c.complain(e)
		}
		return err
	}
	o := c.find(FrameKey{h.ViewID, h.FrameID})
	if o == nil {
		return fmt.Errorf("nnrp: %s for frame %d, which is not under way", h.Type, h.FrameID)
	}
	if h.Type == nnrp.MsgResultDrop {
		c.dropped(o)
		return nil
	}
	*buf = (*buf)[:nnrp.HeaderLen]
	*buf, err = readRest(r, *buf, int(h.Size())-nnrp.HeaderLen, bodyTimeout)
	if err != nil {
		c.finish(o, Dropped, nil)
		return err
	}
	m := &nnrp.ResultPush{}
	if err := m.Parse(&h, (*buf)[nnrp.HeaderLen:], &limits); err != nil {
		if e := asError(err); e != nil {
			c.complain(e)
			c.finish(o, Dropped, e)
		}
		return err
	}
	keep = c.deliver(o, h, m, buf)
	return nil
}

// complain reports the server's error to the server.
func (c *Client) complain(e *nnrp.Error) {
	_ = c.out.send(e.Message(c.agreed.SessionID), c.header(nnrp.Header{FrameID: e.FrameID, ViewID: e.ViewID}))
	if e.Fatal {
		c.mu.Lock()
		c.state.To(Draining)
		c.mu.Unlock()
		c.cancel(e)
	}
}
