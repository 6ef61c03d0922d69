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

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/packetring"
)

// attachment is the connection to one publisher.
type attachment struct {
	control *framering.Subscriber
	ring    *packetring.Reader
	file    os.FileInfo // of the ring
	follows bool        // another attachment came before it
}

func (a *attachment) close() error { return errors.Join(a.ring.Close(), a.control.Close()) }

func (t SubscriptionStats) plus(a *attachment) SubscriptionStats {
	r := a.ring.Stats()
	t.Read += r.Read
	t.Lost += r.Lost
	t.Overruns += r.Overruns
	t.Bytes += r.Bytes
	t.LastSeq, t.GlobalSeq = r.LastSeq, r.GlobalSeq
	if a.follows && r.FirstSeq > 1 && r.Read > 0 {
		t.Lost += r.FirstSeq - 1
	}
	return t
}

// Between two publishers: how often to look for the next one. A watch on the socket's folder makes it immediate; the pace is
// for what a watch does not see (a folder that is made anew, a foreign publisher that listens only after it has bound).
const (
	firstPause = time.Millisecond
	lastPause  = 250 * time.Millisecond
	// endingGrace is how long a publisher that lets in nobody is taken for one that is ending.
	endingGrace = time.Second
	// tellWaiting is after how long it is said that the next publisher is waited for: what has it all stop ends its readers after the publishers.
	tellWaiting = 2 * time.Second
)

// attach connects once. left is the ring read until now, when its publisher may be alive still: it is gone on with then.
func (s *Subscription) attach(ctx context.Context, left *attachment) (*attachment, error) {
	control, err := framering.Dial(ctx, framering.DialOptions{
		RuntimeDir: s.o.RuntimeDir, Key: s.o.Key, Name: s.o.Name, Flags: framering.WantsPackets, Logger: s.log,
	})
	var none *framering.NoPublisherError
	switch {
	case errors.As(err, &none):
		return nil, &NoKeyError{Key: s.o.Key, Path: none.Path}
	case errors.Is(err, framering.ErrNotFound), errors.Is(err, framering.ErrNoPacketRing):
		return nil, fmt.Errorf("key %q: %w", s.o.Key, ErrNoPackets)
	case err != nil:
		return nil, err
	}
	a := &attachment{control: control}
	if a.file, err = os.Stat(shm.Dir + "/" + control.PacketPath); err == nil {
		if left != nil && os.SameFile(a.file, left.file) && control.PID == left.control.PID {
			a.ring, a.follows = left.ring, left.follows
			return a, nil
		}
		a.ring, err = packetring.Open(control.PacketPath, packetring.ReaderOptions{Wait: s.o.Wait, NoData: s.o.noData, Bell: control.PacketBell})
	}
	if err != nil {
		err = explainMissing(control, control.PacketPath, err)
		control.Close()
		return nil, err
	}
	return a, nil
}

// connect makes the first attachment.
func (s *Subscription) connect(ctx context.Context) (*attachment, error) {
	waiting := ctx
	if s.o.WaitForKey > 0 {
		var cancel context.CancelFunc
		waiting, cancel = context.WithTimeout(ctx, s.o.WaitForKey)
		defer cancel()
	}
	a, err := s.attach(ctx, nil) // one attempt in any case, so that there is an error to tell
	if err != nil && s.o.WaitForKey != 0 && ctx.Err() == nil {
		s.tell("waiting for key " + s.o.Key)
		a, err = s.await(ctx, waiting, err)
	}
	var none *NoKeyError
	if errors.As(err, &none) {
		if !s.o.quiet { // who only looks whether it is there needs no list of what else is
			none = noKey(s.o.RuntimeDir, s.o.Key)
		}
		none.Waited = max(s.o.WaitForKey, 0)
		return nil, none
	}
	return a, err
}

// tell logs what the operator of this process waits for.
func (s *Subscription) tell(what string, more ...any) {
	level := slog.LevelInfo
	if s.o.quiet {
		level = slog.LevelDebug
	}
	s.log.Log(context.Background(), level, what, more...)
}

// await attaches as soon as there is a publisher. When waiting ends first it returns last, the error of the attempt before; when ctx
// ends, its error.
func (s *Subscription) await(ctx, waiting context.Context, last error) (*attachment, error) {
	tries := newAttempts(s.o.RuntimeDir, s.o.Key, firstPause)
	defer tries.close()
	var told string
	var closed time.Time // since when it lets nobody in
	for tries.next(waiting) {
		a, err := s.attach(ctx, nil)
		if err == nil {
			return a, nil
		}
		last = err
		if !errors.Is(err, framering.ErrDisconnected) {
			closed = time.Time{}
		} else if closed.IsZero() {
			closed = time.Now()
		}
		ending := !closed.IsZero() && time.Since(closed) < endingGrace
		if ctx.Err() == nil && !ending && !errors.Is(err, os.ErrNotExist) && err.Error() != told {
			told = err.Error()
			s.log.Warn("the publisher cannot be read yet", "error", err)
		}
	}
	return nil, cmp.Or(ctx.Err(), last)
}

// attempts paces what tries to attach to a key: at once when its socket appears, else further and further apart.
type attempts struct {
	watch    *shm.Appear // nil where it cannot be had
	appeared <-chan struct{}
	timer    *time.Timer
	wait     time.Duration // until the next one
	pause    time.Duration // between the two behind it
}

// newAttempts begins them, the first one at once when pause is firstPause: a publisher may have come before the watch.
func newAttempts(runtimeDir, key string, pause time.Duration) *attempts {
	a := &attempts{timer: time.NewTimer(time.Hour), wait: pause - firstPause, pause: pause}
	if w, err := shm.WatchFor(framering.SocketPath(runtimeDir, key)); err == nil {
		a.watch, a.appeared = w, w.C
	}
	return a
}

// next blocks until the next attempt is due; false when ctx has ended.
func (a *attempts) next(ctx context.Context) bool {
	a.timer.Reset(a.wait)
	select {
	case <-a.timer.C:
		a.pause = min(2*a.pause, lastPause)
	case <-a.appeared:
		a.pause = firstPause
	case <-ctx.Done():
		return false
	}
	a.wait = a.pause
	return true
}

func (a *attempts) close() {
	a.timer.Stop()
	if a.watch != nil {
		a.watch.Close()
	}
}

// install makes a the present attachment.
func (s *Subscription) install(a *attachment, start packetring.Position) {
	_ = a.ring.Seek(start) // a fault shows again when reading
	s.draining = false
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.life.Err() != nil { // closed meanwhile
		a.close()
		return
	}
	s.at, s.info = a, a.ring.Info()
}

func (s *Subscription) attached() *attachment {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.at
}

// lost is called when the control connection has ended and the ring is read to its end, without a sign from the ring that its
// publisher has ended.
func (s *Subscription) lost(ctx context.Context, a *attachment) error {
	if s.o.NoFollow {
		return s.leave(a, a.control.Err())
	}
	if err := s.breathe(ctx); err != nil {
		return err
	}
	next, err := s.attach(ctx, a)
	if err != nil && ctx.Err() != nil { // whether its publisher lives is not known yet
		return ctx.Err()
	}
	if err == nil && next.ring == a.ring { // dropped by a living publisher
		a.control.Close()
		s.mu.Lock()
		closed := s.at == nil
		if !closed {
			s.at = next
		}
		s.mu.Unlock()
		if closed {
			next.control.Close()
		}
		s.draining = false
		return nil
	}
	if err == nil {
		_ = next.close() // reconnect makes it again, in its own order
	}
	return s.leave(a, a.control.Err())
}

// leave closes an attachment whose publisher has ended. Its memory is given back before the next publisher needs as much.
func (s *Subscription) leave(a *attachment, cause error) error {
	if err := a.control.Err(); err != nil {
		cause = err // it knows the reason
	}
	s.mu.Lock()
	if s.at == a {
		s.past, s.at = s.past.plus(a), nil
		if i := a.ring.Info(); i.CodecID != 0 {
			s.info = i
		}
	}
	s.mu.Unlock()
	a.close()
	s.draining = false
	var clean *framering.ShutdownError
	switch {
	case s.o.NoFollow:
		s.tell("the publisher of "+s.o.Key+" has ended", "cause", cause)
	case errors.As(cause, &clean), errors.Is(cause, packetring.ErrShutdown):
		s.tell("the publisher of " + s.o.Key + " has ended")
	default:
		s.tell("the publisher of "+s.o.Key+" is gone", "cause", cause)
	}
	if s.o.NoFollow {
		return fmt.Errorf("key %q: %w: %w", s.o.Key, ErrEnded, cause)
	}
	return nil
}

// reconnect waits for the next publisher.
func (s *Subscription) reconnect(ctx context.Context) error {
	if s.o.NoFollow {
		return fmt.Errorf("key %q: %w", s.o.Key, ErrEnded)
	}
	actx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(s.life, cancel)()
	if err := s.breathe(actx); err != nil {
		if s.life.Err() != nil {
			return ErrSubscriptionClosed
		}
		return err
	}
	waits := time.AfterFunc(tellWaiting, func() { s.tell("waiting for the next publisher of " + s.o.Key) })
	a, err := s.await(actx, actx, nil)
	waits.Stop()
	switch {
	case ctx.Err() != nil:
		err = ctx.Err()
	case s.life.Err() != nil:
		err = ErrSubscriptionClosed
	}
	if err != nil {
		if a != nil {
			a.close()
		}
		return err
	}
	a.follows, s.mark = true, true
	s.install(a, packetring.SeekOldest)
	s.mu.Lock()
	s.generation++
	s.mu.Unlock()
	back := "the publisher of " + s.o.Key + " is back"
	if a.control.PID != 0 { // else it is in another PID namespace
		back = fmt.Sprintf("%s (pid %d)", back, a.control.PID)
	}
	s.tell(back)
	return nil
}

// breathe waits before another attachment when the ones before brought nothing: a publisher that lets subscribers in and ends
// them at once must not keep this process busy.
func (s *Subscription) breathe(ctx context.Context) error {
	n := s.fruitless
	s.fruitless++
	if n == 0 {
		return nil
	}
	select {
	case <-time.After(min(firstPause<<min(n, 10), lastPause)):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-s.life.Done():
		return ErrSubscriptionClosed
	}
}

// parked makes the context that Next waits with: it ends with the caller's context, with the control connection and with the
// subscription. It is made once for a caller's context, so that waiting does not allocate.
type parked struct {
	mu     sync.Mutex
	parent context.Context
	done   <-chan struct{} // of the control connection
	ctx    context.Context
	cancel context.CancelFunc
	stop   chan struct{} // ends the goroutine that waits for done
}

func (p *parked) until(parent context.Context, done <-chan struct{}) context.Context {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.ctx != nil && p.ctx.Err() == nil && p.done == done && p.parent.Done() == parent.Done() {
		return p.ctx
	}
	p.drop()
	ctx, cancel := context.WithCancel(parent)
	stop := make(chan struct{})
	p.parent, p.done, p.ctx, p.cancel, p.stop = parent, done, ctx, cancel, stop
	go func() {
		select {
		case <-done:
			cancel()
		case <-stop:
		}
	}()
	return ctx
}

// wake ends a wait in progress.
func (p *parked) wake() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.cancel != nil {
		p.cancel()
	}
}

func (p *parked) release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.drop()
}

func (p *parked) drop() {
	if p.cancel != nil {
		p.cancel()
		close(p.stop)
		p.cancel, p.ctx, p.stop = nil, nil, nil
	}
}
