package shm

import (
	"context"
	"sync/atomic"
	"time"
)

// rewake is the pause between two wakes of a sleep that is to end: the first may come before it has begun.
const rewake = 50 * time.Microsecond

// Sleeper is a FutexWaiter that blocks the calling thread: nothing stands between the kernel's wake and the return.
type Sleeper struct {
	addr    *uint32
	asleep  atomic.Bool
	closed  atomic.Bool
	ender   *ender // of the context that Wait was called with last
	closing func() // once; may be nil
}

// ender ends a Sleeper's sleeps when a context ends.
type ender struct {
	done   <-chan struct{} // the context's
	asleep atomic.Bool     // in a Wait under this context
	stop   func()          // returns when it touches the word no more
}

// NewSleeper makes one for addr, which must stay mapped until Close has returned.
func NewSleeper(addr *uint32) *Sleeper { return &Sleeper{addr: addr} }

// Wait is that of FutexWaiter. It allocates when ctx, one that can end, is not that of the last call.
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
	e, over := &ender{done: ctx.Done()}, make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(over)
		wakeWhile(s.addr, &e.asleep)
	})
	e.stop = func() {
		if stop() { // it has not begun, and will not
			close(over)
		}
		<-over
	}
	s.ender = e
	return e
}

// Close is that of FutexWaiter. Others who sleep on the word are woken as well; they look again.
func (s *Sleeper) Close() {
	if !s.closed.Swap(true) && s.closing != nil {
		s.closing()
	}
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
