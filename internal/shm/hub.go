package shm

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"
)

// ownThreads is how many waiters of a Hub get a thread each, the shortest way, before others share one: enough for a program that reads
// the pictures and the sound of a camera or two.
const ownThreads = 4

// shardSize is how many futexes one thread of a Hub serves. The kernel takes 127 and one for the hub's own attention, but sets all of
// them up anew at each wake: with 31, a site of 100 cameras spends a tenth less time, for three threads more.
const shardSize = 31

// Hub lets goroutines wait on many futexes without a thread each: beyond the first four, one thread sits in futex_waitv for up to 31 of
// them. Where the kernel has no futex_waitv (before 5.16) it uses one thread a futex. The zero value is ready. A hub without waiters has
// no thread.
type Hub struct {
	mu      sync.Mutex
	probed  bool
	noWaitv bool // thread each; set by the probe, or by a test
	own     int  // waiters with a thread each
	shards  []*shard
}

// Shared is the hub that serves a whole process.
var Shared = &Hub{}

// FutexWaiter is a Waiter or a Sleeper. Wait blocks while the word is val, at most for timeout (0 = no bound): nil says "look again"
// (the word has changed, or a wake came that may have been meant for somebody else), ErrTimeout, ErrFault, ErrClosed or the context's
// error why not. It is for one goroutine at a time. Close may be called by any, is idempotent, ends a Wait in progress and those to come,
// and returns when nothing touches the word any more.
type FutexWaiter interface {
	Wait(ctx context.Context, val uint32, timeout time.Duration) error
	Close()
}

// Waiter is a FutexWaiter that a Hub's shared thread, or a Bell, watches.
type Waiter struct {
	addr  *uint32
	c     chan struct{} // capacity 1: "the word has changed since the hub last looked", or closed, or fault
	fault atomic.Bool
	done  atomic.Bool
	timer *time.Timer

	seen  uint32 // the hub thread's last look at *addr; that thread's alone
	bell  *Bell  // nil with a Hub
	shard *shard // nil with a Bell
}

// Register begins to watch addr, which must stay mapped until Close has returned.
func (h *Hub) Register(addr *uint32) FutexWaiter {
	h.mu.Lock()
	defer h.mu.Unlock()
	if !h.probed {
		h.probed = true
		h.noWaitv = h.noWaitv || !hasWaitv()
	}
	if h.noWaitv || h.own < ownThreads {
		h.own++
		s := NewSleeper(addr)
		s.closing = func() {
			h.mu.Lock()
			defer h.mu.Unlock()
			h.own--
		}
		return s
	}
	w := &Waiter{addr: addr, c: make(chan struct{}, 1)}
	for _, s := range h.shards {
		if s.add(w) {
			return w
		}
	}
	s := &shard{hub: h}
	s.cond.L = &s.mu
	h.shards = append(h.shards, s)
	s.add(w)
	go s.run()
	return w
}

// Wait is that of FutexWaiter. It does not allocate.
func (w *Waiter) Wait(ctx context.Context, val uint32, timeout time.Duration) error {
	var expired <-chan time.Time
	if timeout > 0 {
		if w.timer == nil {
			w.timer = time.NewTimer(timeout)
		} else {
			w.timer.Reset(timeout)
		}
		defer w.timer.Stop()
		expired = w.timer.C
	}
	select {
	case <-w.c: // of a change that val is newer than, or that the next look finds
	default:
	}
	for first := true; ; first = false {
		// A change after this load is seen by the hub's thread, which then fills c; one before it ends the wait here.
		changed := false
		if err := Guard(func() { changed = atomic.LoadUint32(w.addr) != val }); err != nil {
			return err
		}
		switch {
		case w.done.Load():
			return ErrClosed
		case w.fault.Load():
			return ErrFault
		case changed || !first: // a wake without a change is passed on, too: it may announce something else
			return nil
		}
		select {
		case <-w.c:
		case <-expired:
			return ErrTimeout
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// Close is that of FutexWaiter.
func (w *Waiter) Close() {
	if w.done.Swap(true) {
		return
	}
	w.notify()
	if w.bell != nil {
		w.bell.remove(w)
	} else {
		w.shard.remove(w)
	}
}

// notify says "look again"; one token is enough for any number of changes.
func (w *Waiter) notify() {
	select {
	case w.c <- struct{}{}:
	default:
	}
}

// look passes a change of the word on. It may fault.
func (w *Waiter) look() {
	if v := atomic.LoadUint32(w.addr); v != w.seen {
		w.seen = v
		w.notify()
	}
}

func (w *Waiter) failed() {
	w.fault.Store(true)
	w.notify()
}

// shard is a thread and the futexes it serves.
type shard struct {
	hub *Hub

	mu      sync.Mutex
	cond    sync.Cond // signals that round went up
	waiters []*Waiter
	round   uint64 // how often the thread has taken the list anew
	ended   bool   // the thread is gone or going; the shard takes nobody any more

	control atomic.Uint32 // a private futex: changed and woken to make the thread take the list anew
}

func (s *shard) add(w *Waiter) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.ended || len(s.waiters) == shardSize {
		return false
	}
	w.shard = s
	s.waiters = append(s.waiters, w)
	s.kick()
	return true
}

func (s *shard) remove(w *Waiter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i, x := range s.waiters {
		if x == w {
			s.waiters = append(s.waiters[:i:i], s.waiters[i+1:]...)
			break
		}
	}
	s.kick()
	// A list taken before the removal may be in use until the thread has taken another.
	for now := s.round; s.round == now && !s.ended; {
		s.cond.Wait()
	}
}

// kick makes the thread take the list anew.
func (s *shard) kick() {
	s.control.Add(1)
	FutexWake((*uint32)(unsafe.Pointer(&s.control)))
}

// take returns the list to serve next, in dst, or false when there is nobody left.
func (s *shard) take(dst []*Waiter) ([]*Waiter, uint32, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.round++
	s.cond.Broadcast()
	if len(s.waiters) == 0 {
		s.ended = true
		return nil, 0, false
	}
	// Under the lock: a later add or remove changes control again, and the wait with this value returns at once.
	return append(dst[:0], s.waiters...), s.control.Load(), true
}

func (s *shard) run() {
	defer s.retire()
	var list, served []*Waiter
	var wait []futexWaitv
	for {
		var control uint32
		var more bool
		if list, control, more = s.take(list); !more {
			return
		}
		for s.control.Load() == control {
			err := Guard(func() {
				served = append(served[:0], nil)
				wait = append(wait[:0], waitOn((*uint32)(unsafe.Pointer(&s.control)), control))
				for _, w := range list {
					if w.fault.Load() {
						continue
					}
					w.look()
					served, wait = append(served, w), append(wait, waitOn(w.addr, w.seen))
				}
			})
			// No yield to those who were notified: it would save them a few µs and cost four times the CPU (measured), as another
			// thread then wakes to take this goroutine over.
			var woken int
			if err == nil {
				woken, err = waitv(wait)
			}
			switch {
			case errors.Is(err, ErrFault):
				s.sortOut(list)
			case err == nil && woken > 0:
				served[woken].notify() // also when its word has not changed
			}
		}
	}
}

// sortOut finds the futexes whose memory is gone, so that the others can be served on.
func (s *shard) sortOut(list []*Waiter) {
	for _, w := range list {
		if !w.fault.Load() && faulty(w.addr) {
			w.failed()
		}
	}
}

func (s *shard) retire() {
	s.hub.mu.Lock()
	defer s.hub.mu.Unlock()
	for i, x := range s.hub.shards {
		if x == s {
			s.hub.shards = append(s.hub.shards[:i:i], s.hub.shards[i+1:]...)
			return
		}
	}
}
