package pipeline

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/nnrp"
	"github.com/cfpipe/cfpipe/nnrp/lz4codec"
	"github.com/cfpipe/cfpipe/nnrp/quictransport"
	"github.com/cfpipe/cfpipe/nnrp/session"
	"github.com/cfpipe/cfpipe/pipeline/inference"
)

// InferOptions describe the way of a key's pictures to an NNRP runtime. Key, To and Out must be set.
type InferOptions struct {
	RuntimeDir string
	Key        string
	To         string // nnrps://host:port
	Trust      quictransport.Trust
	Token      []byte
	Model      string // that the runtime must have; "" = any

	Format                  inference.Format // 0 = what the model takes
	DTypeIsSet, LayoutIsSet bool             // Format's dtype and layout count
	Tile                    int              // side of a tile, for sending only what changed; 0 = whole pictures
	Threshold               int              // see inference.TilerOptions
	FPS                     float64          // at most so many pictures a second; 0 = as the camera and the runtime let it
	InFlight                int              // pictures under way at a time; 0 = 2
	Latency                 time.Duration    // a result that takes longer is not waited for; 0 = 1 s
	Raw                     bool             // never compress
	SDK                     bool             // CLIENT_HELLO in the public SDKs' order

	Out        io.Writer // a JSON line for each result; nil = nowhere
	Watch      *InferWatch
	Base64     bool   // tensors as base64 of little-endian elements; else arrays of numbers
	Count      uint64 // stop after so many results; 0 = no limit
	Duration   time.Duration
	WaitForKey time.Duration // see FrameSubscribeOptions
	Device     int
	Backoff    session.Backoff
	Observe    func(stats func() InferStats) // called once, with what tells the counts at any time; may be nil
	Logger     *slog.Logger
}

// InferWatch looks at the numbers of an output.
type InferWatch struct {
	Output string        // its name, or its role_id
	Above  float64       // Seen is called when one of its numbers is above
	Seen   func(float64) // with the largest; must not block
}

// InferStats count what became of the pictures.
type InferStats struct {
	Sent      uint64 `json:"sent"`
	Results   uint64 `json:"results"`
	Dropped   uint64 `json:"dropped"`   // by the runtime, for newer ones
	Expired   uint64 `json:"expired"`   // no result came within the latency
	Refused   uint64 `json:"refused"`   // by the runtime, with an error
	Unchanged uint64 `json:"unchanged"` // not sent, as no tile had changed
	Sessions  uint64 `json:"sessions"`
	TilesSent uint64 `json:"tiles_sent"`
	TilesAll  uint64 `json:"tiles"` // of all pictures that were sent
}

// Infer sends a key's newest pictures to an NNRP runtime and writes the results to Out. Pictures are never queued: while as many are
// under way as agreed, newer ones take the place of those that wait in the ring. It outlives publishers, connections and runtimes. It
// returns nil at Count or Duration; the context's error when ctx is done; the runtime's refusal where trying again is of no use, which a
// certificate that is not trusted at the first connection is as well (*quictransport.CertificateError).
func Infer(ctx context.Context, o InferOptions) (InferStats, error) {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	if o.InFlight == 0 {
		o.InFlight = 2
	}
	if o.Latency == 0 {
		o.Latency = time.Second
	}
	if o.Latency < time.Millisecond || o.Latency > 65535*time.Millisecond {
		return InferStats{}, fmt.Errorf("infer: latency %v: want 1ms to 65s", o.Latency)
	}
	inner := ctx
	if o.Duration > 0 {
		var cancel context.CancelFunc
		inner, cancel = context.WithTimeout(ctx, o.Duration)
		defer cancel()
	}
	s, err := SubscribeFrames(inner, FrameSubscribeOptions{RuntimeDir: o.RuntimeDir, Key: o.Key, Name: "infer", Mode: framering.NewestOnly,
		Newest: true, Device: o.Device, WaitForKey: o.WaitForKey, Logger: o.Logger})
	if err != nil {
		return InferStats{}, err
	}
	in := &inferrer{o: o, log: o.Logger.With("key", o.Key), p: pictureSource{s: s, copier: frameCopier{device: s.Device}}}
	if o.Observe != nil {
		o.Observe(in.counts)
	}
	err = session.Redial(inner, o.Backoff, in.open, in.use, func(err error, wait time.Duration) {
		in.log.Warn("no session with the runtime", "to", o.To, "cause", err, "again_in", wait.Round(time.Millisecond))
	})
	err = errors.Join(err, in.fatal, in.p.close())
	if err != nil {
		return in.stats, fmt.Errorf("infer %s: %w", o.Key, err)
	}
	return in.stats, ctx.Err()
}

// inferrer is one run of Infer.
type inferrer struct {
	o     InferOptions
	log   *slog.Logger
	p     pictureSource
	id    uint32 // of the last frame that was sent; goes on over sessions
	last  time.Time
	sizeW uint32 // of the camera's picture that the tiler was made for
	sizeH uint32

	mu    sync.Mutex // the tiler, the statistics and what follows
	tiler *inference.Tiler
	stats InferStats
	pause time.Time // the runtime is busy until then
	fatal error     // what another session would not mend
}

func (in *inferrer) counts() InferStats {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.stats
}

// giveUp ends Infer with err.
func (in *inferrer) giveUp(err error) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.fatal == nil {
		in.fatal = err
	}
	return session.ErrStop
}

func (in *inferrer) open(ctx context.Context) (*session.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	conn, err := quictransport.Dial(ctx, in.o.To, in.o.Trust)
	var untrusted *quictransport.CertificateError
	if errors.As(err, &untrusted) && in.counts().Sessions == 0 { // a wrong setting; later it may be another runtime for a while
		return nil, in.giveUp(err)
	}
	if err != nil {
		return nil, err
	}
	o := session.ClientOptions{Logger: in.log, Hello: nnrp.ClientHello{Auth: in.o.Token, SDK: in.o.SDK, LatencyBudgetMs: session.Millis(in.o.Latency),
		TargetCadenceX100: uint16(min(in.o.FPS*100, 65535)), DegradePolicy: nnrp.DegradePreferLatency}}
	if in.o.DTypeIsSet {
		o.Hello.SupportedDTypeBitmap = 1 << in.o.Format.DType
	}
	if in.o.LayoutIsSet {
		o.Hello.SupportedLayoutBitmap = 1 << in.o.Format.Layout
	}
	if in.o.Model != "" {
		o.Hello.Extensions = nnrp.AppendExtension(nil, nnrp.Extension{Type: inference.ExtModelName, Data: []byte(in.o.Model)})
	}
	if !in.o.Raw {
		o.Codecs = []nnrp.Codec{lz4codec.Codec{}}
	}
	return session.Open(ctx, conn, o)
}

// use sends pictures over one session until it ends.
func (in *inferrer) use(ctx context.Context, c *session.Client) error {
	a := c.Agreement()
	model := inference.ParseModel(a.Extensions)
	in.log.Info("session with the runtime", "to", in.o.To, "session", a.SessionID, "model", model.Name, "input", model.String())
	in.mu.Lock()
	in.stats.Sessions++
	in.tiler = nil // the new runtime has nothing yet
	in.mu.Unlock()

	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	free := make(chan struct{}, min(in.o.InFlight, int(a.Concurrent)))
	for range cap(free) {
		free <- struct{}{}
	}
	var wg sync.WaitGroup
	wg.Go(func() { cancel(in.results(ctx, c, model, free)) })
	wg.Go(func() {
		select {
		case <-c.Done(): // also ends the wait for a picture
			cancel(c.Err())
		case <-ctx.Done():
		}
	})
	err := in.send(ctx, c, &a, model, free)
	if cause := context.Cause(ctx); cause != nil && ctx.Err() != nil {
		err = cause
	}
	cancel(err)
	wg.Wait()
	return err
}

// send feeds the session with the newest pictures.
func (in *inferrer) send(ctx context.Context, c *session.Client, a *session.Agreement, model inference.Spec, free chan struct{}) error {
	var tensor []byte
	for {
		select { // first a place, then the newest picture: nothing waits but the ring
		case <-free:
		case <-ctx.Done():
			return ctx.Err()
		}
		if err := in.pace(ctx); err != nil {
			return err
		}
		f, meta, err := in.p.next(ctx)
		if err != nil && ctx.Err() == nil {
			return in.giveUp(err) // the subscription follows publishers by itself: what it does not outlive, no session does
		}
		if err != nil {
			return err
		}
		if err := in.prepare(c, meta, model); err != nil {
			return in.giveUp(err)
		}
		if n := in.p.format.Size(); len(tensor) != n {
			tensor = make([]byte, n)
		}
		if err := in.p.tensor(tensor, meta); err != nil {
			return in.giveUp(err)
		}
		in.id++
		in.mu.Lock()
		m, tiles, err := in.tiler.Frame(in.id, tensor)
		if tiles == 0 && err == nil {
			in.stats.Unchanged++
		} else {
			in.stats.Sent++
			in.stats.TilesSent += uint64(tiles)
			in.stats.TilesAll += uint64(in.tiler.Tiles())
		}
		in.mu.Unlock()
		if err != nil {
			return in.giveUp(err)
		}
		if tiles == 0 {
			free <- struct{}{}
			continue
		}
		if _, err := c.Submit(ctx, m, session.SubmitOptions{FrameID: in.id, Tag: picture{f.Seq, f.PTS}}); err != nil {
			return err
		}
	}
}

// picture is what a result belongs to.
type picture struct {
	seq uint64
	pts int64
}

// prepare makes the converter and the tiler for the camera's picture size.
func (in *inferrer) prepare(c *session.Client, meta framering.FrameMeta, model inference.Spec) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if in.tiler != nil && in.sizeW == meta.Width && in.sizeH == meta.Height {
		return nil
	}
	f, err := inference.Choose(in.o.Format, in.o.DTypeIsSet, in.o.LayoutIsSet, model, int(meta.Width), int(meta.Height))
	if err != nil {
		return err
	}
	if err := in.p.use(f); err != nil {
		return err
	}
	in.sizeW, in.sizeH = meta.Width, meta.Height
	in.tiler, err = inference.NewTiler(inference.TilerOptions{Format: f, Tile: in.o.Tile, Threshold: in.o.Threshold,
		Latency: session.Millis(in.o.Latency), Codecs: c.Codecs()})
	return err
}

// pace waits until the next picture is due and the runtime is no longer busy.
func (in *inferrer) pace(ctx context.Context) error {
	in.mu.Lock()
	due := in.pause
	in.mu.Unlock()
	if in.o.FPS > 0 {
		next := in.last.Add(time.Duration(float64(time.Second) / in.o.FPS))
		if next.After(due) {
			due = next
		}
	}
	now := time.Now()
	if due.After(now) {
		timer := time.NewTimer(due.Sub(now))
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-ctx.Done():
			return ctx.Err()
		}
		now = due
	}
	in.last = now
	return nil
}

// results writes what comes back.
func (in *inferrer) results(ctx context.Context, c *session.Client, model inference.Spec, free chan struct{}) error {
	var line []byte
	for {
		r, err := c.Next(ctx)
		if err != nil {
			return err
		}
		in.note(r)
		if r.Err != nil && errors.Is(r.Err, nnrp.ErrUnsupportedCapability) {
			return r.Err
		}
		if r.State == session.Delivered {
			line, err = appendResult(line[:0], r, model, c.Codecs(), &in.o)
			if err == nil && in.o.Out != nil {
				_, err = in.o.Out.Write(line)
			}
			if err != nil {
				return in.giveUp(err)
			}
		}
		r.Release()
		in.mu.Lock()
		done := in.o.Count > 0 && in.stats.Results >= in.o.Count
		in.mu.Unlock()
		if done {
			return session.ErrStop
		}
		select {
		case free <- struct{}{}:
		default: // more places than the session began with cannot be
		}
	}
}

// note counts an outcome and draws the conclusions.
func (in *inferrer) note(r *session.Outcome) {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case r.State == session.Delivered:
		in.stats.Results++
		if in.tiler != nil {
			in.tiler.Has(r.FrameID)
		}
	case r.State == session.Expired:
		in.stats.Expired++
	case r.Err != nil:
		in.stats.Refused++
		if errors.Is(r.Err, nnrp.ErrCacheMiss) && in.tiler != nil {
			in.tiler.Reset()
		}
		if r.Err.RetryAfterMs > 0 {
			in.pause = time.Now().Add(min(time.Duration(r.Err.RetryAfterMs)*time.Millisecond, 5*time.Second))
		}
		in.log.Debug("the runtime refused a picture", "error", r.Err)
	default:
		in.stats.Dropped++
	}
}
