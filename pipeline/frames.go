package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"time"

	"github.com/cfpipe/cfpipe/cudavmm"
	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/shm"
)

// FrameSubscribeOptions describe a subscription to the frames of a key. Key must be set.
type FrameSubscribeOptions struct {
	RuntimeDir string         // "" = $CUFRAMES_RUNTIME_DIR, else framering.DefaultRuntimeDir
	Key        string         // of the publication
	Name       string         // shown in the publisher's table; "" = the program's name
	Mode       framering.Mode // newest frames, or all in order
	Wait       framering.Wait // how Next waits
	Newest     bool           // begin with the frame that is the newest now
	Device     int            // GPU on which frames in GPU memory are mapped
	HostOnly   bool           // frames in GPU memory are refused (cudavmm.ErrUnavailable), without the time that a GPU takes to open

	// WaitForKey is how long SubscribeFrames waits for a publisher with frames; 0 = not at all, negative = as long as the context lets it.
	WaitForKey time.Duration
	NoFollow   bool         // end with the publisher: Next returns ErrEnded then. A new generation of its frames is followed all the same
	Logger     *slog.Logger // nil = silent
}

// ErrNoFrames: the key has packets and no frames (nobody decodes it, or not yet).
var ErrNoFrames = errors.New("it has no frames")

// NoFramesError is ErrNoFrames with what helps.
type NoFramesError struct {
	Key    string
	Waited time.Duration // for frames, in vain; 0 = not at all
}

func (e *NoFramesError) Error() string {
	s := fmt.Sprintf("key %q: %v, nobody decodes it", e.Key, ErrNoFrames)
	if e.Waited > 0 {
		s += fmt.Sprintf(" after waiting %v", e.Waited)
	}
	return s + fmt.Sprintf(": cfpipe ingest … --decode auto, or cfpipe decode %s --key NEW; in a site: decode: auto", e.Key)
}

func (e *NoFramesError) Unwrap() error { return ErrNoFrames }

// FrameSubscription reads the frames of a key and stays with it when its publisher begins a new generation (another size or format)
// or another publisher takes over. Next is for one goroutine at a time; the other methods may be called from any.
type FrameSubscription struct {
	o      FrameSubscribeOptions
	log    *slog.Logger
	memory *cudavmm.Receiver

	life    context.Context
	endLife context.CancelFunc

	mu         sync.Mutex
	sub        *framering.Subscriber // nil between two publishers
	reader     *framering.FrameReader
	generation int

	// Where the next attachment goes on: after frame after of the same publisher's numbers, or (0) with the oldest that there is.
	follows bool
	after   uint64

	fruitless int // attachments in a row that brought no frame; of Next alone
}

// SubscribeFrames connects to the publisher of a key, waiting for one with frames as long as the options say. Errors: ErrNoKey,
// ErrNoFrames, cudavmm.ErrUnavailable (the frames lie on a GPU, and there is no driver here), refusals, the context's.
func SubscribeFrames(ctx context.Context, o FrameSubscribeOptions) (*FrameSubscription, error) {
	if err := framering.CheckKey(o.Key); err != nil {
		return nil, err
	}
	s := &FrameSubscription{o: o, log: o.Logger, memory: cudavmm.NewReceiver(o.Device)}
	if o.HostOnly {
		s.memory = cudavmm.NewReceiver(-1)
	}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.log = s.log.With("key", o.Key)
	s.life, s.endLife = context.WithCancel(context.Background())
	err := s.attach(ctx)
	if err != nil && o.WaitForKey != 0 {
		s.log.Info("waiting for the frames of key " + o.Key)
		waiting := ctx
		if o.WaitForKey > 0 {
			var cancel context.CancelFunc
			waiting, cancel = context.WithTimeout(ctx, o.WaitForKey)
			defer cancel()
		}
		err = s.await(ctx, waiting, err)
	}
	var none *NoKeyError
	var undecoded *NoFramesError
	switch {
	case errors.As(err, &undecoded):
		undecoded.Waited = max(o.WaitForKey, 0)
	case errors.As(err, &none):
		none = noKey(o.RuntimeDir, o.Key)
		none.Waited, err = max(o.WaitForKey, 0), none
	}
	if err != nil {
		s.endLife()
		return nil, errors.Join(err, s.memory.Close())
	}
	return s, nil
}

// attach connects once.
func (s *FrameSubscription) attach(ctx context.Context) error {
	sub, err := framering.Dial(ctx, framering.DialOptions{
		RuntimeDir: s.o.RuntimeDir, Key: s.o.Key, Name: s.o.Name, Flags: framering.WantsFrames, Mode: s.o.Mode,
		CUDADevice: int32(s.o.Device), Logger: s.o.Logger,
	})
	var none *framering.NoPublisherError
	switch {
	case errors.As(err, &none):
		return &NoKeyError{Key: s.o.Key, Path: none.Path}
	case errors.Is(err, framering.ErrNotFound):
		return &NoFramesError{Key: s.o.Key}
	case err != nil:
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	r, err := sub.Frames(framering.FrameReaderOptions{
		Memory: s.memory, Wait: s.o.Wait, Newest: s.o.Newest, Resume: s.follows, After: s.after,
	})
	if err != nil {
		err = explainMissing(sub, sub.ShmName, err)
	}
	if err == nil && s.life.Err() != nil {
		err = errors.Join(ErrSubscriptionClosed, r.Close())
	}
	if err != nil {
		return errors.Join(err, sub.Close())
	}
	s.sub, s.reader = sub, r
	return nil
}

// await attaches as soon as there is a publisher with frames. When waiting ends first it returns last, the error of the attempt before;
// when ctx ends, its error.
func (s *FrameSubscription) await(ctx, waiting context.Context, last error) error {
	pause := firstPause
	if s.fruitless > 0 { // a publisher that lets subscribers in and ends them at once must not keep this process busy
		pause = min(firstPause<<min(s.fruitless, 10), lastPause)
	}
	tries := newAttempts(s.o.RuntimeDir, s.o.Key, pause)
	defer tries.close()
	for tries.next(waiting) {
		err := s.attach(ctx)
		if err == nil || errors.Is(err, cudavmm.ErrUnavailable) || errors.Is(err, cudavmm.ErrOtherDevice) || errors.Is(err, os.ErrClosed) {
			return err
		}
		if ctx.Err() == nil {
			last = err
		}
	}
	return cmp.Or(ctx.Err(), last)
}

// Next blocks for the next frame and takes a lease on it, see framering.FrameReader.Next. Generation tells whether its Meta is the one
// of the frame before. Errors: the context's, ErrEnded with NoFollow, ErrSubscriptionClosed.
func (s *FrameSubscription) Next(ctx context.Context) (framering.Frame, error) {
	for {
		if err := ctx.Err(); err != nil {
			return framering.Frame{}, err
		}
		s.mu.Lock()
		r, sub := s.reader, s.sub
		s.mu.Unlock()
		switch {
		case s.life.Err() != nil:
			return framering.Frame{}, ErrSubscriptionClosed
		case r == nil:
			if err := s.reconnect(ctx); err != nil {
				return framering.Frame{}, err
			}
			continue
		}
		f, err := r.Next(ctx)
		if err == nil {
			s.after, s.fruitless = f.Seq, 0
			return f, nil
		}
		ended := sub.Err()
		if ended == nil && !errors.Is(err, shm.ErrFault) { // the caller has had enough, or Close
			if errors.Is(err, os.ErrClosed) {
				err = ErrSubscriptionClosed
			}
			return framering.Frame{}, err
		}
		s.leave()
		var shutdown *framering.ShutdownError
		upgrade := errors.As(ended, &shutdown) && shutdown.Reason == framering.ReasonUpgrade
		if s.follows = true; !upgrade {
			s.after = 0
		}
		if s.o.NoFollow && !upgrade {
			return framering.Frame{}, fmt.Errorf("key %q: %w: %w", s.o.Key, ErrEnded, errors.Join(ended, err))
		}
		s.log.Info("the frames of "+s.o.Key+" have ended", "cause", ended)
	}
}

func (s *FrameSubscription) leave() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reader == nil {
		return
	}
	_ = s.reader.Close()
	_ = s.sub.Close()
	s.reader, s.sub = nil, nil
}

func (s *FrameSubscription) reconnect(ctx context.Context) error {
	actx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	s.mu.Lock()
	s.generation++
	s.mu.Unlock()
	waits := time.AfterFunc(tellWaiting, func() { s.log.Info("waiting for the next frames of " + s.o.Key) })
	err := s.await(actx, actx, nil)
	waits.Stop()
	s.fruitless++
	switch {
	case err == nil:
		s.log.Info("the frames of "+s.o.Key+" are back", "meta", fmt.Sprintf("%+v", s.Meta()))
	case ctx.Err() != nil:
		err = ctx.Err()
	case s.life.Err() != nil:
		err = ErrSubscriptionClosed
	}
	return err
}

// Meta is the layout of the frame that Next returned last.
func (s *FrameSubscription) Meta() framering.FrameMeta {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.reader == nil {
		return framering.FrameMeta{}
	}
	return s.reader.Meta()
}

// Slots is the size of the frame ring, 0 between two publishers.
func (s *FrameSubscription) Slots() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.sub == nil {
		return 0
	}
	return s.sub.RingSize
}

// Generation rises when the frames' layout may have changed. After Next it belongs to the frame that Next returned.
func (s *FrameSubscription) Generation() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.generation
}

// Device returns the GPU that the frames are mapped on, for copies; it stays the subscription's.
func (s *FrameSubscription) Device() (*cudavmm.Device, error) { return s.memory.Device() }

// Close ends the subscription and a Next that waits. Leases must be released first. It is idempotent.
func (s *FrameSubscription) Close() error {
	s.endLife()
	s.mu.Lock()
	defer s.mu.Unlock()
	var err error
	if s.reader != nil {
		err = errors.Join(s.reader.Close(), s.sub.Close())
		s.reader, s.sub = nil, nil
	}
	return errors.Join(err, s.memory.Close())
}
