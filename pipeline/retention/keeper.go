package retention

import (
	"cmp"
	"context"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/pipeline/recordings"
)

const (
	// passPace is how often the bounds are looked at. Between two looks 200 cameras of 8 Mbit/s write 400 MB.
	passPace = 2 * time.Second
	// rescanAfter is when the folders are read again where a Set does not say: files that others have removed or added are seen then.
	rescanAfter = time.Hour
	// rescanFailed is the pause after folders could not be read.
	rescanFailed = 10 * time.Second
	// tellPace is how often the log says that something stays wrong.
	tellPace = time.Minute
	// tellRemoved is how often it says what was removed from a set.
	tellRemoved = 5 * time.Minute
)

// Bounds say how much is kept. The zero value bounds nothing.
type Bounds struct {
	Age  time.Duration // since a file was written last; 0 = any
	Size int64         // bytes of all files; 0 = any
	Free int64         // bytes that stay free on the file system; 0 = any
}

// Set is the files of one writer. Kind and the place's key name it.
type Set struct {
	Kind   string           // what writes the files
	Place  recordings.Place // which has a pattern; the places of all sets are disjoint
	Keep   Bounds           // of this set alone
	Rescan time.Duration    // when the folders are read again; 0 = after an hour
}

// Options describe a Keeper.
type Options struct {
	Removed func(path string) // is told of each file that was removed, must not block; may be nil
	Logger  *slog.Logger      // nil = silent
}

// Keeper removes the oldest files of sets when there are more than the bounds allow.
type Keeper struct {
	log       *slog.Logger
	onRemoved func(path string)
	// Tests have their own disk.
	space  func(dir string) (free, size int64, err error)
	remove func(p *recordings.Place, path string) error
	slept  func() time.Duration
	begun  time.Time // when it was made: what was written before was written by a clock of then

	mu      sync.Mutex
	next    *bounded // not adopted yet
	all     Bounds
	ledgers []*ledger        // sorted by key; the slice is never written again
	disks   map[uint64]*disk // by device
	ages    ages
	idle    idle // of all sets

	// When it was last said that
	toldFull   telling // nothing is left to remove
	toldFailed telling // files cannot be removed
	toldUnread telling // folders cannot be read
}

// bounded is what Configure was told.
type bounded struct {
	sets []Set
	all  Bounds
}

// New returns a Keeper without sets; Run does the work.
func New(o Options) *Keeper {
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	return &Keeper{
		log: o.Logger, onRemoved: o.Removed, space: space, remove: (*recordings.Place).Remove, slept: shm.Suspended, begun: time.Now(), disks: map[uint64]*disk{},
	}
}

// Configure replaces the sets, and the bounds of all of them together; they hold from the next look on. It does not block.
func (k *Keeper) Configure(sets []Set, all Bounds) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.next = &bounded{sets, all}
}

// adopt makes the ledgers those of the newest sets. What is known of sets that stay is kept.
func (k *Keeper) adopt() {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.next == nil {
		return
	}
	var ledgers []*ledger
	for _, s := range k.next.sets {
		l := k.ledger(s.Kind, s.Place.Key)
		if l == nil || l.place.Load().Pattern != s.Place.Pattern {
			l = &ledger{kind: s.Kind, key: s.Place.Key, free: -1}
		}
		l.keep, l.rescan = s.Keep, cmp.Or(s.Rescan, rescanAfter)
		l.place.Store(&s.Place)
		ledgers = append(ledgers, l)
	}
	slices.SortFunc(ledgers, func(a, b *ledger) int { return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.kind, b.kind)) })
	k.ledgers, k.all, k.next = ledgers, k.next.all, nil
}

// ledger is for those who hold the keeper's mutex; nil = there is no such set.
func (k *Keeper) ledger(kind, key string) *ledger {
	if i := slices.IndexFunc(k.ledgers, func(l *ledger) bool { return l.kind == kind && l.key == key }); i >= 0 {
		return k.ledgers[i]
	}
	return nil
}

// Finished counts a file that a writer has finished just now. It does not block.
func (k *Keeper) Finished(kind, key, path string, bytes int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	if l := k.ledger(kind, key); l != nil {
		l.add(file{path: filepath.Clean(path), size: bytes, at: time.Now()})
	}
}

// Run looks at the bounds until ctx ends. A disk that hangs may hold it up for some seconds.
func (k *Keeper) Run(ctx context.Context) {
	for {
		k.pass(ctx, time.Now())
		select {
		case <-time.After(passPace):
		case <-ctx.Done():
			return
		}
	}
}

// ClockSteps is how often the system's clock was set while Run ran.
func (k *Keeper) ClockSteps() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ages.total
}

// Kept is what there is of a set.
type Kept struct {
	Kind, Key    string
	Free         int64 // bytes on its file system; -1 = unknown
	Bytes, Files int64 // of finished files
	Counted      bool  // they are known: some bound concerns the set
}

// Kept tells of every set, sorted by key, as of the last look: a disk that hangs holds up nobody who asks.
func (k *Keeper) Kept() (list []Kept) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range k.ledgers {
		list = append(list, Kept{Kind: l.kind, Key: l.key, Free: l.free, Bytes: l.total, Files: int64(l.count), Counted: !l.scanned.IsZero()})
	}
	return list
}

// telling is when the log said something that it shall not say all the time.
type telling struct{ last time.Time }

// due says whether it is time to say it, and takes it as said.
func (t *telling) due(now time.Time) bool {
	if now.Sub(t.last).Abs() < tellPace {
		return false
	}
	t.last = now
	return true
}
