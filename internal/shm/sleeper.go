package shm

import (
	"context"
	"sync/atomic"
	"time"
)

// rewake is the pause between two wakes of a sleep that is to end: the first may come before it has begun.
const rewake = 50 * time.Microsecond

// FutexWaiter is a Waiter or a Sleeper.
type FutexWaiter interface {
	Wait(ctx context.Context, val uint32, timeout time.Duration) error
	Close()
}

// Sleeper waits on one futex as a Waiter does, but blocks the calling thread: nothing stands between the kernel's wake and the return.
// Wait is for one goroutine at a time; Close may be called by any.
type Sleeper struct {
	addr   *uint32
	asleep atomic.Bool
	closed atomic.Bool
	ender  *ender // of the context that Wait was called with last
}

// ender ends a Sleeper's sleeps when a context ends.
type ender struct {
	done   <-chan struct{} // the context's
	asleep atomic.Bool     // in a Wait under this context
	stop   func() bool
}

// NewSleeper makes one for addr, which must stay mapped until Close has returned.
func NewSleeper(addr *uint32) *Sleeper { return &Sleeper{addr: addr} }

// Wait blocks while the word is val, at most for timeout (0 = no bound): nil says "look again", ErrTimeout, ErrFault, ErrClosed or the
// context's error why not. It allocates when ctx, one that can end, is not that of the last call.
func (s *Sleeper) Wait(ctx context.Context, val uint32, timeout time.Duration) error {
	// First the flag, then the look: those who end the sleep do the two the other way round, and repeat their wake while the flag is set.
	s.asleep.Store(true)
	defer s.asleep.Store(false)
	if s.closed.Load() {
		return ErrClosed
	}
	if ctx.Done() != nil {
		e := s.ending(ctx)
		e.asleep.Store(true)
		defer e.asleep.Store(false)
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	return FutexWait(s.addr, val, timeout)
}

// ending returns what ends sleeps under ctx.
func (s *Sleeper) ending(ctx context.Context) *ender {
	if s.ender != nil {
		if s.ender.done == ctx.Done() {
			return s.ender
		}
		s.ender.stop()
	}
	e := &ender{done: ctx.Done()}
	e.stop = context.AfterFunc(ctx, func() { wakeWhile(s.addr, &e.asleep) })
	s.ender = e
	return e
}

// Close ends a Wait in progress and those to come, and returns when nothing touches the word any more. It is idempotent. Others who
// sleep on the word are woken as well; they look again.
func (s *Sleeper) Close() {
	s.closed.Store(true)
	wakeWhile(s.addr, &s.asleep)
	if s.ender != nil { // no Wait changes it now
		s.ender.stop()
	}
}

func wakeWhile(addr *uint32, asleep *atomic.Bool) {
	for asleep.Load() {
		FutexWake(addr)
		time.Sleep(rewake)
	}
}
