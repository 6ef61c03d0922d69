package shm

import (
	"slices"
	"sync"
	"sync/atomic"
)

// Bell wakes the waiters on a futex that are in the process of whoever changes it, without the kernel and a thread that asks it. Those
// of other processes need FutexWake as ever. The zero value is ready.
type Bell struct {
	mu      sync.Mutex // of changes
	waiters atomic.Pointer[[]*Waiter]
}

// Register begins to watch addr, which must stay mapped until Close has returned.
func (b *Bell) Register(addr *uint32) *Waiter {
	w := &Waiter{addr: addr, c: make(chan struct{}, 1), bell: b}
	b.mu.Lock()
	defer b.mu.Unlock()
	var now []*Waiter
	if old := b.waiters.Load(); old != nil {
		now = *old
	}
	now = append(slices.Clip(now), w) // a copy: the old list may be in use
	b.waiters.Store(&now)
	return w
}

func (b *Bell) remove(w *Waiter) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := slices.DeleteFunc(slices.Clone(*b.waiters.Load()), func(x *Waiter) bool { return x == w })
	b.waiters.Store(&now)
}

// Ring makes all of them look again. It does not block or allocate.
func (b *Bell) Ring() {
	if waiters := b.waiters.Load(); waiters != nil {
		for _, w := range *waiters {
			w.notify()
		}
	}
}
