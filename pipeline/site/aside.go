package site

import (
	"maps"
	"slices"
	"sync"
	"time"
)

const (
	// maxAside bounds how many files that cannot be removed are stepped over to find some that can.
	maxAside = 10 * ledgerFiles
	// So many of them are tried again with the next pass; more than that, which take long to try, after a pause.
	fewAside   = 100
	asidePause = time.Minute
)

// setAside steps over a file that could not be removed. It is for those who hold the keeper's mutex.
func (l *ledger) setAside(e keptFile, now time.Time) {
	if l.aside == nil {
		l.aside = map[string]keptFile{}
	}
	l.aside[e.path] = e
	if l.tryAgain = now; len(l.aside) > fewAside {
		l.tryAgain = now.Add(asidePause)
	}
}

// takeBack makes what was set aside the oldest again: what kept it from being removed may have been mended.
func (k *keeper) takeBack(l *ledger, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(l.aside) == 0 || now.Before(l.tryAgain) && l.tryAgain.Sub(now) <= asidePause {
		return
	}
	for _, e := range l.oldest {
		l.aside[e.path] = e
	}
	l.oldest = slices.SortedFunc(maps.Values(l.aside), older)
	l.aside = nil
	if len(l.oldest) > ledgerFiles {
		l.oldest, l.complete = slices.Clone(l.oldest[:ledgerFiles]), false
	}
}

// failures collects why files could not be removed: one word for all of a pass.
type failures struct {
	mu   sync.Mutex
	n    int
	path string
	err  error // of the first
}

func (f *failures) add(path string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.n == 0 {
		f.path, f.err = path, err
	}
	f.n++
}

func (f *failures) all() (n int, path string, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.n, f.path, f.err
}
