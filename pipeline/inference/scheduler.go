package inference

import (
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/cfpipe/cfpipe/nnrp"
	"github.com/cfpipe/cfpipe/nnrp/session"
)

// SchedulerOptions configure a Scheduler.
type SchedulerOptions struct {
	MaxSessions int           // 0 = 64
	MaxQueue    int           // frames that wait, over all sessions; 0 = 64
	BatchWait   time.Duration // how long the first frame of a batch waits for company; 0 = take what is there
	Workers     int           // 0 = what the engine says
	Codecs      []nnrp.Codec  // beside raw
	Metrics     *Metrics      // nil = not counted
	Logger      *slog.Logger
}

// Scheduler shares one engine between sessions: it implements session.Handler. Frames of a view run in order, one batch at a time;
// sessions take turns; what cannot be done in time is refused at once with server_busy and a retry_after_ms.
type Scheduler struct {
	engine Engine
	spec   Spec
	o      SchedulerOptions
	wg     sync.WaitGroup

	mu       sync.Mutex
	wake     *sync.Cond
	turns    []*client // sessions with frames that wait and no batch under way, in order of service
	queued   int
	sessions int
	busy     int           // batches under way
	each     time.Duration // smoothed time of a batch
	perBatch float64       // smoothed size
	closed   bool
}

// client is the scheduler's side of a session.
type client struct {
	queue   []queued
	running bool // a worker has some of its frames
	listed  bool // in turns
	views   map[uint16]*View
}

type queued struct {
	f  *session.Frame
	at time.Time
}

// NewScheduler starts the workers; Close ends them, not the engine.
func NewScheduler(e Engine, o SchedulerOptions) *Scheduler {
	if o.MaxSessions == 0 {
		o.MaxSessions = 64
	}
	if o.MaxQueue == 0 {
		o.MaxQueue = 64
	}
	s := &Scheduler{engine: e, spec: e.Spec(), o: o}
	s.wake = sync.NewCond(&s.mu)
	if s.o.Workers == 0 {
		s.o.Workers = max(s.spec.Workers, 1)
	}
	if s.o.Logger == nil {
		s.o.Logger = slog.Default()
	}
	for range s.o.Workers {
		s.wg.Go(s.work)
	}
	return s
}

// Close waits for the batches under way and drops what is queued.
func (s *Scheduler) Close() {
	s.mu.Lock()
	s.closed = true
	s.wake.Broadcast()
	s.mu.Unlock()
	s.wg.Wait()
}

// Opened admits a session.
func (s *Scheduler) Opened(ss *session.Session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sessions >= s.o.MaxSessions || s.closed {
		e := nnrp.NewError(nnrp.CodeServerBusy, "%d sessions are open, the limit is %d", s.sessions, s.o.MaxSessions)
		e.RetryAfterMs = 2000
		s.o.Metrics.refusedSession()
		return e
	}
	s.sessions++
	s.o.Metrics.session(+1)
	ss.Data = &client{views: map[uint16]*View{}}
	return nil
}

// Ended forgets a session; its frames have ended, and the worker that meets them lets them go.
func (s *Scheduler) Ended(ss *session.Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions--
	s.o.Metrics.session(-1)
	c := ss.Data.(*client)
	for _, q := range c.queue {
		q.f.Drop()
	}
	s.queued -= len(c.queue)
	c.queue = nil
}

// Submitted queues a frame or refuses it.
func (s *Scheduler) Submitted(f *session.Frame) {
	c := f.Session.Data.(*client)
	s.mu.Lock()
	// Frames that were cancelled or superseded while they waited hold memory, but no place in their session: let them go first.
	kept := c.queue[:0]
	var dead []*session.Frame
	for _, q := range c.queue {
		if q.f.Alive() {
			kept = append(kept, q)
		} else {
			dead = append(dead, q.f)
		}
	}
	clear(c.queue[len(kept):])
	c.queue = kept
	s.queued -= len(dead)
	wait, waiting := s.expectedWait(), s.queued
	full := s.queued >= s.o.MaxQueue || s.closed
	late := !full && time.Now().Add(wait).After(f.Deadline())
	if !full && !late {
		c.queue = append(c.queue, queued{f, time.Now()})
		// Streams overtake each other; while they wait, frames of a view can still be put in order.
		for i := len(c.queue) - 1; i > 0 && c.queue[i-1].f.Header.ViewID == f.Header.ViewID && c.queue[i-1].f.Header.FrameID > f.Header.FrameID; i-- {
			c.queue[i-1], c.queue[i] = c.queue[i], c.queue[i-1]
		}
		s.queued++
		s.list(c)
	}
	s.mu.Unlock()
	for _, d := range dead {
		s.o.Metrics.frame("dropped", 0, 0)
		d.Drop()
	}
	if full || late {
		e := nnrp.NewError(nnrp.CodeServerBusy, "%d frames wait, about %v", waiting, wait.Round(time.Millisecond))
		e.Scope, e.RetryAfterMs = nnrp.ScopeFrame, uint32(max(wait.Milliseconds(), 10))
		s.o.Metrics.frame("busy", 0, 0)
		f.Fail(e)
	}
}

// expectedWait is how long a frame that comes now is likely to wait; s.mu is held.
func (s *Scheduler) expectedWait() time.Duration {
	if s.each == 0 {
		return 0
	}
	batches := float64(s.queued)/max(s.perBatch, 1) + float64(s.busy)/2
	return time.Duration(batches * float64(s.each) / float64(s.o.Workers))
}

// list puts a session in line; s.mu is held.
func (s *Scheduler) list(c *client) {
	if !c.listed && !c.running && len(c.queue) > 0 {
		c.listed = true
		s.turns = append(s.turns, c)
		s.wake.Signal()
	}
}

// work runs batches until Close.
func (s *Scheduler) work() {
	var w worker
	w.s = s
	for {
		owners, frames := w.take()
		if owners == nil {
			return
		}
		w.run(frames)
		s.mu.Lock()
		for _, c := range owners {
			c.running = false
			s.list(c)
		}
		s.busy--
		s.mu.Unlock()
	}
}

type worker struct {
	s       *Scheduler
	scratch []byte
}

// take waits for frames and returns a batch of them, from as many sessions as it needs to fill up.
func (w *worker) take() (owners []*client, frames []queued) {
	s := w.s
	s.mu.Lock()
	defer s.mu.Unlock()
	for len(s.turns) == 0 && !s.closed {
		s.wake.Wait()
	}
	if s.closed {
		for _, c := range s.turns {
			for _, q := range c.queue {
				q.f.Drop()
			}
			c.queue = nil
		}
		s.turns = nil
		return nil, nil
	}
	size := max(s.spec.MaxBatch, 1)
	take := func(c *client, n int) {
		frames = append(frames, c.queue[:n]...)
		c.queue = append([]queued(nil), c.queue[n:]...)
		s.queued -= n
	}
	fill := func() { // one frame a session, so that many sessions make one batch
		for len(s.turns) > 0 && len(frames) < size {
			c := s.turns[0]
			s.turns = s.turns[1:]
			c.listed = false
			if len(c.queue) == 0 {
				continue
			}
			take(c, 1)
			c.running = true // what is left waits, so that frames of a view stay in order
			owners = append(owners, c)
		}
		if s.spec.Tiled { // such engines do not mind several frames of a view
			for _, c := range owners {
				take(c, min(size-len(frames), len(c.queue)))
			}
		}
	}
	fill()
	if s.o.BatchWait > 0 && len(frames) < size && len(frames) > 0 {
		s.mu.Unlock()
		time.Sleep(s.o.BatchWait)
		s.mu.Lock()
		fill()
	}
	s.busy++
	if owners == nil {
		owners = []*client{}
	}
	return owners, frames
}

// run takes frames through the engine. Items of one batch have the same geometry where the engine needs whole pictures.
func (w *worker) run(frames []queued) {
	var batch []*Item
	var geo geometry
	var starts []time.Time
	flush := func() {
		if len(batch) > 0 {
			w.infer(batch, starts)
			batch, starts = nil, nil
		}
	}
	for _, q := range frames {
		if !q.f.Start() {
			w.s.o.Metrics.frame("dropped", time.Since(q.at), 0)
			q.f.Drop()
			continue
		}
		g, err := frameGeometry(&q.f.Submit)
		if err == nil {
			err = w.s.spec.check(g)
		}
		v := w.view(q.f)
		if len(batch) > 0 && (g != geo || contains(batch, v) && !w.s.spec.Tiled) {
			flush() // a second picture of a view is put together on the same canvas
		}
		var it *Item
		if err == nil {
			it, err = w.prepare(q.f, v, g)
		}
		if err != nil {
			w.fail(q.f, err)
			continue
		}
		if it == nil {
			continue // overtaken
		}
		geo = g
		batch, starts = append(batch, it), append(starts, q.at)
	}
	flush()
}

func contains(batch []*Item, v *View) bool {
	for _, it := range batch {
		if it.View == v {
			return true
		}
	}
	return false
}

func (w *worker) view(f *session.Frame) *View {
	c := f.Session.Data.(*client) // views belong to the worker that has the session
	v := c.views[f.Header.ViewID]
	if v == nil {
		v = &View{}
		c.views[f.Header.ViewID] = v
	}
	return v
}

// prepare decodes a frame. nil, nil: a newer frame of the view has been worked on, this one would show the past.
func (w *worker) prepare(f *session.Frame, v *View, g geometry) (*Item, error) {
	m := &f.Submit
	s := &m.Sections[0]
	columns, rows := m.Tensor.Grid()
	// What a frame unfolds to, by compression or by naming few tiles of a large picture, is bounded like what it may send.
	limit := int64(f.Session.Agreement().Limits.MaxBody)
	if n := int64(columns) * int64(rows) * s.TileBytes(); n > limit || int64(columns)*int64(rows) > 65535 {
		return nil, nnrp.NewError(nnrp.CodeLimitExceeded, "the picture's %d×%d tiles have %d bytes, max_body_bytes is %d", columns, rows, n, limit)
	}
	// What depends on the frames before it cannot go back in time, and for what may be dropped it would be of no use.
	independent := columns*rows == 1 && !w.s.spec.Tiled && m.FrameClass != nnrp.ClassDiscardable || m.FrameClass == nnrp.ClassRetransmit
	if f.Header.FrameID <= v.last && !independent {
		w.s.o.Metrics.frame("dropped", 0, 0)
		f.Drop()
		return nil, nil
	}
	it := &Item{Submit: m, View: v, frame: f, IDs: m.TileIndex.AppendIDs(nil)}
	var err error
	switch {
	case w.s.spec.Tiled:
		it.Tiles = make([]byte, 0, len(it.IDs)*int(s.TileBytes()))
		w.scratch, err = forTiles(s, w.s.o.Codecs, w.scratch, func(_ int, tile []byte) { it.Tiles = append(it.Tiles, tile...) })
	case columns*rows == 1 && len(it.IDs) == 1 && s.Codec(0) == nnrp.CodecRaw && int64(s.Length(0)) == s.TileBytes() &&
		int(m.Tensor.TileWidth) == g.width && int(m.Tensor.TileHeight) == g.height: // the picture as it is
		it.Picture = s.Payload[:s.TileBytes()]
		v.canvas.forget()
	default:
		w.scratch, err = v.canvas.apply(f.Header.FrameID, m, g, it.IDs, w.s.o.Codecs, w.scratch)
		it.Picture = v.canvas.pixels
	}
	if err != nil {
		return nil, err
	}
	v.last = max(v.last, f.Header.FrameID)
	return it, nil
}

func (w *worker) fail(f *session.Frame, err error) {
	var e *nnrp.Error
	if !errors.As(err, &e) {
		w.s.o.Logger.Error("nnrp engine", "engine", w.s.spec.Name, "error", err)
		e = nnrp.NewError(nnrp.CodeInternalError, "the engine failed")
		e.Scope, e.Fatal = nnrp.ScopeFrame, false
	}
	w.s.o.Metrics.frame(e.Code.String(), 0, 0)
	f.Fail(e)
}

// infer runs one batch and answers its frames.
func (w *worker) infer(batch []*Item, queuedAt []time.Time) {
	start := time.Now()
	err := w.s.engine.Infer(batch)
	took := time.Since(start)
	w.s.mu.Lock()
	if w.s.each == 0 {
		w.s.each, w.s.perBatch = took, float64(len(batch))
	} else {
		w.s.each += (took - w.s.each) / 8
		w.s.perBatch += (float64(len(batch)) - w.s.perBatch) / 8
	}
	w.s.mu.Unlock()
	w.s.o.Metrics.batch(len(batch), took)
	for i, it := range batch {
		switch {
		case err != nil:
			w.fail(it.frame, err)
		case it.Err != nil:
			w.fail(it.frame, it.Err)
		default:
			wait := start.Sub(queuedAt[i])
			w.s.o.Metrics.frame("result", wait, took)
			r := &it.Result
			r.ActiveProfileID = nnrp.ProfileTensor
			r.PayloadKind = it.Submit.PayloadKind // as this client says tensor
			r.QueueMs, r.InferenceMs = session.Millis(wait), session.Millis(took)
			it.frame.Reply(r)
		}
	}
}
