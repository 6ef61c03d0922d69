package retention

import (
	"context"
	"maps"
	"path/filepath"
	"slices"
	"sync/atomic"
	"time"

	"github.com/cfpipe/cfpipe/pipeline/recordings"
)

const (
	// A ledger remembers this many of the oldest files: a month of minutes is 43 200 files a camera, and their total is a number.
	ledgerFiles = 2000
	// A file that was written to so lately may be open still: it is asked.
	maybeOpen = 10 * time.Minute
	// A folder out of which files were removed is removed itself when it has been empty for so long.
	emptyFor = time.Hour

	// maxAside bounds how many files that cannot be removed are stepped over to find some that can.
	maxAside = 10 * ledgerFiles
	// So many of them are tried again with the next pass; more than that, which take long to try, after a pause.
	fewAside   = 100
	asidePause = time.Minute
)

// file is a finished file. at is when it was last written.
type file struct {
	path  string
	size  int64
	at    time.Time
	ahead bool // that has not come yet: it was written before the clock was set back, or while it was wrong
}

// older sorts by age. What was written by another clock is older than what is written now: else the newest went first for lack of space,
// for as long as the clock is behind.
func older(a, b file) int {
	switch {
	case a.ahead == b.ahead:
		return a.at.Compare(b.at)
	case a.ahead:
		return -1
	}
	return 1
}

// ledger is what is known about one set. The keeper's mutex guards what changes.
type ledger struct {
	kind, key string
	place     atomic.Pointer[recordings.Place] // of one folder always
	keep      Bounds
	rescan    time.Duration

	disk          *disk       // nil = not known yet
	free          int64       // on it; -1 = unknown
	diskSize      int64       // all of it; 0 = unknown
	looking, busy atomic.Bool // what was asked of the disk for this ledger has not been answered yet

	scanned  time.Time
	failedAt time.Time // when a scan failed; zero = the last one did not
	total    int64     // bytes of all finished files
	count    int
	oldest   []file // in order of time
	complete bool   // oldest and aside hold all files
	idle     idle
	scanning bool
	late     []file // finished while scanning
	removed  removals
	emptied  map[string]bool // folders, of the goroutine that works on the disk

	aside    map[string]file // by path: those that could not be removed
	tryAgain time.Time       // when aside is the oldest again
}

func (l *ledger) dir() string { return l.place.Load().Dir }

// pausing says whether the folders could not be read a moment ago. It is for those who hold the keeper's mutex.
func (l *ledger) pausing(now time.Time) bool {
	return !l.failedAt.IsZero() && now.Sub(l.failedAt).Abs() < rescanFailed
}

// unread says whether the folders of a ledger have to be read.
func (k *Keeper) unread(l *ledger, now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !l.pausing(now) && (l.scanned.IsZero() || now.Sub(l.scanned) > l.rescan || now.Before(l.scanned))
}

// first is where the oldest file stands; aged: of those whose age is known. -1 = there is none. It is for those who hold the keeper's mutex.
func (l *ledger) first(aged bool) int {
	return slices.IndexFunc(l.oldest, func(f file) bool { return !aged || !f.ahead })
}

// add counts a file that was finished just now.
func (l *ledger) add(f file) {
	if l.scanning {
		l.late = append(l.late, f)
		return
	}
	if l.scanned.IsZero() {
		return // the first scan finds it
	}
	l.total += f.size
	l.count++
	switch {
	case !l.complete:
	case len(l.oldest) < ledgerFiles:
		l.oldest = append(l.oldest, f)
	default:
		l.complete = false
	}
}

// scan reads the folders of a ledger anew.
func (k *Keeper) scan(ctx context.Context, l *ledger) {
	l.tidy()
	k.mu.Lock()
	l.scanning, l.late = true, nil
	aside := maps.Clone(l.aside)
	k.mu.Unlock()
	found, err := read(ctx, l.place.Load(), aside, k.begun)
	k.mu.Lock()
	defer k.mu.Unlock()
	l.scanning = false
	if ctx.Err() != nil {
		return
	}
	now, late := time.Now(), l.late
	l.late = nil
	if err != nil { // what was known stays, and what was finished meanwhile is added to it
		if l.failedAt = now; k.toldUnread.due(now) {
			k.log.Warn("recordings cannot be counted, and none of them is removed that is not known already; it is tried again", "folder", l.dir(), "error", err)
		}
	} else {
		l.failedAt, l.scanned = time.Time{}, now
		l.idle.add(found.idle)
		l.total, l.count, l.oldest, l.complete = found.total, found.count, found.oldest, found.complete
	}
	for _, f := range late {
		if !found.recent[f.path] {
			l.add(f)
		}
	}
}

// tally is what the folders of a place hold.
type tally struct {
	total    int64
	count    int
	oldest   []file // but those that are set aside
	complete bool   // these are all there are
	idle     idle
	recent   map[string]bool // paths of those that were finished lately
}

// read counts the finished files of a place, and finds the oldest but those that are set aside, and when files were written before begun. With an error
// nothing is known.
func read(ctx context.Context, place *recordings.Place, aside map[string]file, begun time.Time) (t tally, err error) {
	t.recent = map[string]bool{}
	now, skipped := time.Now(), 0
	err = place.Walk(ctx, func(x recordings.Found, err error) error {
		if err != nil {
			return err
		}
		f := file{path: x.Path, size: x.Info.Size(), at: x.Info.ModTime()}
		f.ahead = f.at.Sub(now) > aheadBy
		t.idle.add(idleAt(f.at, begun))
		if now.Sub(f.at) < maybeOpen {
			if closed, err := x.Closed(); err != nil || !closed {
				return err
			}
			t.recent[f.path] = true
		}
		t.count++
		t.total += f.size
		if _, ok := aside[f.path]; ok {
			skipped++
			return nil
		}
		if t.oldest = append(t.oldest, f); len(t.oldest) >= 2*ledgerFiles {
			t.cut()
		}
		return nil
	})
	if err != nil {
		return tally{}, err
	}
	t.cut()
	t.complete = t.count-skipped <= ledgerFiles
	return t, nil
}

// cut leaves as many of the oldest as a ledger remembers, in order.
func (t *tally) cut() {
	slices.SortFunc(t.oldest, older)
	t.oldest = t.oldest[:min(len(t.oldest), ledgerFiles)]
}

// emptyLater remembers the folder of a file that was removed. It is for the goroutine that works on the disk, as tidy is.
func (l *ledger) emptyLater(f file) {
	if dir := filepath.Dir(f.path); dir != l.dir() && len(l.emptied) < ledgerFiles {
		if l.emptied == nil {
			l.emptied = map[string]bool{}
		}
		l.emptied[dir] = true
	}
}

// tidy removes folders that have been empty for long and were not made by others.
func (l *ledger) tidy() {
	place := l.place.Load()
	maps.DeleteFunc(l.emptied, func(dir string, _ bool) bool { return place.RemoveEmpty(dir, emptyFor) })
}

// setAside steps over a file that could not be removed. It is for those who hold the keeper's mutex.
func (l *ledger) setAside(f file, now time.Time) {
	if l.aside == nil {
		l.aside = map[string]file{}
	}
	l.aside[f.path] = f
	if l.tryAgain = now; len(l.aside) > fewAside {
		l.tryAgain = now.Add(asidePause)
	}
}

// takeBack makes what was set aside the oldest again: what kept it from being removed may have been mended.
func (k *Keeper) takeBack(l *ledger, now time.Time) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if len(l.aside) == 0 || now.Before(l.tryAgain) && l.tryAgain.Sub(now) <= asidePause {
		return
	}
	for _, f := range l.oldest {
		l.aside[f.path] = f
	}
	l.oldest = slices.SortedFunc(maps.Values(l.aside), older)
	l.aside = nil
	if len(l.oldest) > ledgerFiles {
		l.oldest, l.complete = slices.Clone(l.oldest[:ledgerFiles]), false
	}
}
