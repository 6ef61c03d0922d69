package packetring

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// Wait is how a reader passes the time until the next packet.
type Wait int

const (
	// WaitShared parks the goroutine. A writer in the same process wakes it; for others, four readers of the process sleep as WaitDirect
	// does, and one thread for up to 31 of the rest. Above 10,000 packets a second it naps instead, on a thread of its own and some
	// 350 µs at a time, and reads what has come in one go.
	WaitShared Wait = iota
	// WaitDirect sleeps in the kernel with a thread of its own: the shortest way from the writer's wake to Next's return.
	WaitDirect
	// WaitBusy spins: about a microsecond from Publish to Next, for a whole core.
	WaitBusy
)

const (
	// lockedBound is the longest sleep while the writer holds its lock. It wakes its readers, so this only bounds how late its death,
	// or a shutdown that missed the sleep by a hair, is seen. Each look makes the Go runtime's monitor run for a millisecond, about
	// 0.2 ms of CPU.
	lockedBound = 500 * time.Millisecond
	// unlockedBound is the longest sleep until another implementation's writer is known to wake its readers or not.
	unlockedBound = 20 * time.Millisecond
	// pollPause is the sleep between two looks at a writer that does not wake its readers.
	pollPause = 500 * time.Microsecond

	// trustAfter wakes in a row, a polled writer is slept on again.
	trustAfter = 4
	// Above denseRate packets a second, counted over denseSpan, a stream is read in bursts: each wake-up costs more than the copy of a
	// packet, and a reader that naps finds several. The kernel adds about 50 µs to napPause.
	denseRate = 10_000
	denseSpan = 5 * time.Millisecond
	napPause  = 300 * time.Microsecond

	// spinsPerLook is how often WaitBusy looks at the ring for each look at the world; about 50 µs.
	spinsPerLook = 1024
)

// waiting is the sleep of a Reader.
type waiting struct {
	mode    Wait
	ring    *ring
	locked  bool
	longest time.Duration // lockedBound, or a test's

	polling bool // the writer does not wake its readers
	strikes int  // sleeps in a row that ended by themselves although there was something new
	woken   int  // sleeps in a row that a wake ended, while polling
	orphan  bool // the lock is free: the writer has ended
	looked  time.Time

	dense     bool      // the stream is to be read in bursts
	spanStart time.Time // of the span over which packets are counted
	spanSeq   uint32    // futex word then

	near    *shm.Bell              // of a writer in this process
	bell    func() <-chan struct{} // of ReaderOptions
	timer   *time.Timer            // of sleepOnBell
	rings   uint64
	closing chan struct{} // closed by interrupt
	missed  uint64        // sleeps that ran out although there was something new

	mu     sync.Mutex
	waiter shm.FutexWaiter // WaitDirect: from the start; WaitShared: made when first needed
}

func (w *waiting) init(mode Wait, r *ring, locked bool) {
	w.mode, w.ring, w.locked, w.longest = mode, r, locked, lockedBound
	w.looked = time.Now()
	w.closing = make(chan struct{})
	if mode == WaitDirect {
		w.waiter = shm.NewSleeper(r.futex())
	}
}

// wait returns nil when it is time to look at the ring again, whose futex word was seen when it had nothing new.
func (w *waiting) wait(ctx context.Context, r *Reader, seen uint32) error {
	var err error
	switch w.mode {
	case WaitBusy:
		err = w.spin(ctx, r, seen)
	case WaitDirect:
		err = w.waiter.Wait(ctx, seen, w.bound())
	default:
		err = w.sleepShared(ctx, r, seen)
	}
	if err == nil {
		w.wokenUp()
		return nil
	}
	if !errors.Is(err, shm.ErrTimeout) {
		return err
	}
	moved := false
	if err := shm.Guard(func() { moved = atomic.LoadUint32(w.ring.futex()) != seen }); err != nil {
		return err
	}
	if moved {
		w.sleptThrough()
		return nil
	}
	w.lookAtLock(r)
	return nil
}

func (w *waiting) bound() time.Duration {
	switch {
	case w.polling:
		return pollPause
	case w.locked:
		return w.longest
	default:
		return unlockedBound
	}
}

func (w *waiting) wokenUp() {
	w.strikes = 0
	if w.polling {
		if w.woken++; w.woken >= trustAfter {
			w.polling, w.woken = false, 0
		}
	}
}

// sleptThrough notes a sleep that no wake ended. Once may be chance, the writer was between its store and its wake; a writer that
// holds no lock gets no second chance, since its next packet would be late as well.
func (w *waiting) sleptThrough() {
	w.woken = 0
	w.missed++
	if w.strikes++; w.strikes >= 2 || !w.locked {
		w.polling = true
	}
}

func (w *waiting) lookAtLock(r *Reader) {
	if !w.locked || w.orphan {
		return
	}
	if now := time.Now(); now.Sub(w.looked) >= w.longest/2 {
		w.looked = now
		w.orphan = !shm.Locked(r.seg)
	}
}

func (w *waiting) sleepShared(ctx context.Context, r *Reader, seen uint32) error {
	if w.near == nil && w.bell != nil && !w.polling {
		if c := w.bell(); c != nil {
			return w.sleepOnBell(ctx, c)
		}
	}
	w.count(seen)
	w.mu.Lock()
	if r.closing.Load() {
		w.mu.Unlock()
		return ErrClosed
	}
	if w.dense {
		if w.waiter != nil { // or each packet would wake the shared thread
			w.waiter.Close()
			w.waiter = nil
		}
		w.mu.Unlock()
		shm.Nap(napPause)
		return nil
	}
	switch {
	case w.waiter != nil:
	case w.near != nil:
		w.waiter = w.near.Register(w.ring.futex())
	default:
		w.waiter = shm.Shared.Register(w.ring.futex())
	}
	w.mu.Unlock()
	return w.waiter.Wait(ctx, seen, w.bound())
}

// count decides about naps, which block the calling thread: a stream so dense keeps one busy as it is.
func (w *waiting) count(seen uint32) {
	now := time.Now()
	if span := now.Sub(w.spanStart); span >= denseSpan {
		w.dense = float64(seen-w.spanSeq) > denseRate*span.Seconds()
		w.spanStart, w.spanSeq = now, seen
	}
}

// sleepOnBell sleeps as long as the wait for a writer that wakes its readers: one that rings does so with every packet, and one that
// does not after all is noticed by the first sleep that runs out.
func (w *waiting) sleepOnBell(ctx context.Context, c <-chan struct{}) error {
	d := w.longest
	if !w.locked && w.rings < 2 { // it may ring for other things alone, and the first one may be the channel's own
		d = unlockedBound
	}
	if w.timer == nil {
		w.timer = time.NewTimer(d)
	} else {
		w.timer.Reset(d)
	}
	defer w.timer.Stop()
	select {
	case <-c:
		w.rings++
		return nil
	case <-w.timer.C:
		return shm.ErrTimeout
	case <-w.closing:
		return ErrClosed
	case <-ctx.Done():
		return ctx.Err()
	}
}

// spin returns nil also when the writer has raised the shutdown flag.
func (w *waiting) spin(ctx context.Context, r *Reader, seen uint32) error {
	for {
		changed := false
		err := shm.Guard(func() {
			word := w.ring.futex()
			for range spinsPerLook {
				if atomic.LoadUint32(word) != seen {
					changed = true
					return
				}
				shm.Pause()
			}
			changed = w.ring.hdr.shutdown.Load() != 0
		})
		switch {
		case err != nil:
			return err
		case changed:
			return nil
		case r.closing.Load():
			return ErrClosed
		case ctx.Err() != nil:
			return ctx.Err()
		}
		if w.lookAtLock(r); w.orphan {
			return nil
		}
	}
}

// interrupt ends a wait in progress and those to come, and returns with r.mapping locked. r.closing is set.
func (w *waiting) interrupt(r *Reader) {
	w.mu.Lock()
	waiter := w.waiter
	select {
	case <-w.closing:
	default:
		close(w.closing)
	}
	w.mu.Unlock()
	if waiter != nil {
		waiter.Close()
	}
	r.mapping.Lock() // nobody who holds it sleeps for long now
}
