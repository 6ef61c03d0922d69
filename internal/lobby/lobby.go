// Package lobby bounds the peers of a service that have not said yet what they want, or who they are.
package lobby

import (
	"slices"
	"sync"
)

// Lobby holds those that are silent. When there is no room for one more, the one that has been there for longest goes: who speaks at once is
// heard however many there are that say nothing. Its methods may be called from any goroutine.
type Lobby[T comparable] struct {
	room int
	drop func(T)

	mu     sync.Mutex
	closed bool
	silent []T // oldest first
}

// New returns an empty lobby with room for so many; drop is told who has to go, and must not block.
func New[T comparable](room int, drop func(T)) *Lobby[T] {
	return &Lobby[T]{room: room, drop: drop}
}

// Enter takes c in as the newest, also when it is there already.
func (l *Lobby[T]) Enter(c T) {
	l.mu.Lock()
	l.remove(c)
	l.silent = append(l.silent, c)
	var gone []T
	if n := len(l.silent) - l.room; l.closed {
		gone, l.silent = l.silent, nil
	} else if n > 0 {
		gone = slices.Clone(l.silent[:n])
		l.silent = slices.Delete(l.silent, 0, n)
	}
	l.mu.Unlock()
	for _, g := range gone {
		l.drop(g)
	}
}

// Leave lets c out, who has spoken or has gone. It need not be there.
func (l *Lobby[T]) Leave(c T) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.remove(c)
}

// Close drops all, and everyone who enters from now on.
func (l *Lobby[T]) Close() {
	l.mu.Lock()
	gone := l.silent
	l.closed, l.silent = true, nil
	l.mu.Unlock()
	for _, g := range gone {
		l.drop(g)
	}
}

func (l *Lobby[T]) remove(c T) {
	if i := slices.Index(l.silent, c); i >= 0 {
		l.silent = slices.Delete(l.silent, i, i+1)
	}
}
