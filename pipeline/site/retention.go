package site

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cfpipe/cfpipe/mux"
)

const (
	// keepPace is how often the bounds are looked at. Between two looks 200 cameras of 8 Mbit/s write 400 MB.
	keepPace = 2 * time.Second
	// rescanAfter is when the folders are read again: files that others have removed or added are seen then.
	rescanAfter = time.Hour
	// rescanFailed is the pause after folders could not be read.
	rescanFailed = 10 * time.Second
	// resultsRescan is the same for the files of results, of which there are few, and which are not told of.
	resultsRescan = time.Minute
)

// keeper removes the oldest recordings when there are more than the bounds allow. It knows each camera's total and its oldest files; the
// folders are read at the start, when those are used up, and once an hour.
type keeper struct {
	log *slog.Logger
	// Tests have their own disk.
	free   func(dir string) (int64, error)
	unlink func(root *os.Root, name string) error

	removed func(path string) // is told of each file that was removed; may be nil

	mu      sync.Mutex
	next    *Config // not adopted yet
	ledgers map[string]*ledger
	disks   map[uint64]*disk // by device
	site    Retention
	ages    ages
	told    time.Time // when it was last said that nothing is left to remove
	failed  time.Time // when it was last said that files cannot be removed

	unreadTold time.Time // when it was last said that folders cannot be read
}

func newKeeper(log *slog.Logger) *keeper {
	return &keeper{log: log, free: freeSpace, unlink: (*os.Root).Remove, ledgers: map[string]*ledger{}, disks: map[uint64]*disk{}}
}

// configure takes the bounds of a configuration; they hold from the next pass on.
func (k *keeper) configure(c *Config) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.next = c
}

// adopt makes the ledgers those of the newest configuration. What is known of recordings that stay is kept.
func (k *keeper) adopt() {
	k.mu.Lock()
	defer k.mu.Unlock()
	c := k.next
	if c == nil {
		return
	}
	k.next = nil
	k.site = Retention{}
	if c.Retention != nil {
		k.site = *c.Retention
	}
	ledgers := map[string]*ledger{}
	for _, r := range c.fileSets() {
		p, err := mux.ParsePattern(r.out, r.key)
		if err != nil {
			continue // checked by Load
		}
		l := k.ledgers[r.id()]
		if l == nil || l.out != r.out {
			l = &ledger{kind: r.kind, key: r.key, out: r.out, files: p.Files()}
		}
		l.keep = r.keep
		ledgers[r.id()] = l
	}
	for _, l := range ledgers {
		var others []mux.Files
		for _, o := range ledgers {
			if len(o.key) > len(l.key) || o.key == l.key && l.kind == kindRecord && o.kind != l.kind {
				others = append(others, o.files)
			}
		}
		l.others.Store(&others)
	}
	k.ledgers = ledgers
}

// finished counts a file that a recorder has finished.
func (k *keeper) finished(s Segment) {
	k.mu.Lock()
	defer k.mu.Unlock()
	kind := kindRecord
	if s.Event != nil {
		kind = kindEvents
	}
	if l := k.ledgers[stageID(kind, s.Key)]; l != nil {
		l.add(keptFile{path: filepath.Clean(s.Path), size: s.Bytes, at: time.Now()})
	}
}

// run looks at the bounds until ctx ends.
func (k *keeper) run(ctx context.Context) {
	for {
		k.pass(ctx, time.Now())
		if sleep(ctx, keepPace) != nil {
			return
		}
	}
}

// list returns all ledgers, and those that a bound concerns, sorted by key.
func (k *keeper) list() (all, list []*ledger, site Retention) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range k.ledgers {
		all = append(all, l)
		if k.site != (Retention{}) || l.keep != (Retention{}) {
			list = append(list, l)
		}
	}
	slices.SortFunc(list, func(a, b *ledger) int { return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.kind, b.kind)) })
	return all, list, k.site
}

// unread says whether the folders of a ledger have to be read.
func (k *keeper) unread(l *ledger, now time.Time) bool {
	k.mu.Lock()
	defer k.mu.Unlock()
	return !l.pausing(now) && (l.scanned.IsZero() || now.Sub(l.scanned) > l.rescan() || now.Before(l.scanned))
}

// pausing says whether the folders could not be read a moment ago. It is for those who hold the keeper's mutex.
func (l *ledger) pausing(now time.Time) bool {
	return !l.failedAt.IsZero() && now.Sub(l.failedAt).Abs() < rescanFailed
}

// freeOf is the space on the disk of a ledger, if it has answered.
func (k *keeper) freeOf(l *ledger) (free int64, known bool) {
	if !k.answers(l) {
		return 0, false
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	return l.free, l.free >= 0
}

// pass removes what the bounds do not allow.
func (k *keeper) pass(ctx context.Context, now time.Time) {
	k.adopt()
	k.mu.Lock()
	step := k.ages.look(now)
	k.mu.Unlock()
	if step != 0 {
		k.log.Warn("the system's clock was set; recordings are aged by the time that has passed", "by", step.Round(time.Second))
	}
	all, ledgers, site := k.list()
	k.look(all)
	for _, l := range ledgers {
		k.takeBack(l, now)
		if k.unread(l, now) {
			k.do(l, func() { k.scan(ctx, l) })
		}
	}
	var removed, bytes atomic.Int64
	var kept failures
	// drop removes the oldest file, or sets it aside: then the next one is the oldest. It returns false when there is none.
	drop := func(why string, from []*ledger) bool {
		e, l := k.oldest(ctx, from)
		if l == nil || ctx.Err() != nil {
			return false
		}
		k.mu.Lock()
		l.oldest = l.oldest[1:]
		k.mu.Unlock()
		if k.do(l, func() {
			gone, err := l.remove(e, k.unlink)
			if err != nil {
				kept.add(e.path, err)
			}
			k.mu.Lock()
			if !gone {
				l.setAside(e, now)
				k.mu.Unlock()
				return
			}
			l.total = max(l.total-e.size, 0)
			l.count--
			k.mu.Unlock()
			removed.Add(1)
			bytes.Add(e.size)
			if k.removed != nil {
				k.removed(e.path)
			}
			k.log.Debug("recording removed", "path", e.path, "because", why)
		}) {
			return true
		}
		k.mu.Lock()
		l.scanned = time.Time{} // read anew when the disk answers again: nobody knows whether the file is gone
		k.mu.Unlock()
		return true
	}
	expired := func(l []*ledger, age Duration) bool {
		e, from := k.oldest(ctx, l)
		return from != nil && age > 0 && k.ages.of(e.at, now) > time.Duration(age)
	}
	for _, l := range ledgers {
		own := []*ledger{l}
		for expired(own, l.keep.Age) && drop("age", own) {
		}
		for l.keep.Size > 0 && k.total(own) > int64(l.keep.Size) && drop("size", own) {
		}
		k.makeRoom(own, l.keep.Free, drop)
	}
	for expired(ledgers, site.Age) && drop("age", ledgers) {
	}
	for site.Size > 0 && k.total(ledgers) > int64(site.Size) && drop("size", ledgers) {
	}
	for _, group := range k.byDisk(ledgers) {
		k.makeRoom(group, site.Free, drop)
	}
	if n := removed.Load(); n > 0 {
		k.log.Info("oldest recordings removed", "files", n, "bytes", bytes.Load())
	}
	if n, path, err := kept.all(); n > 0 && (now.Sub(k.failed) >= time.Minute || now.Before(k.failed)) {
		k.failed = now
		k.log.Warn("recordings cannot be removed; it is tried again", "files", n, "path", path, "error", err)
	}
}

// clockSteps is how often the system's clock was set.
func (k *keeper) clockSteps() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.ages.total
}

// makeRoom removes files of ledgers, which lie on one file system, until so much of it is free.
func (k *keeper) makeRoom(ledgers []*ledger, want Size, drop func(string, []*ledger) bool) {
	if want <= 0 {
		return
	}
	for {
		k.look(ledgers[:1])
		free, known := k.freeOf(ledgers[0])
		if !known || free >= int64(want) {
			return
		}
		if !drop("free", ledgers) {
			if now := time.Now(); now.Sub(k.told) > time.Minute {
				k.told = now
				k.log.Warn("the disk has less free space than retention.free asks for, and no finished recording is left to remove",
					"folder", ledgers[0].files.Dir, "free", free, "wanted", int64(want))
			}
			return
		}
	}
}

func (l *ledger) rescan() time.Duration {
	if l.kind == kindInfer {
		return resultsRescan
	}
	return rescanAfter
}

func (k *keeper) total(ledgers []*ledger) (sum int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range ledgers {
		sum += l.total
	}
	return sum
}

// oldest finds the oldest file of all; nil = there is none.
func (k *keeper) oldest(ctx context.Context, ledgers []*ledger) (e keptFile, from *ledger) {
	for _, l := range ledgers {
		k.mu.Lock()
		empty := len(l.oldest) == 0 && !l.complete && len(l.aside) < maxAside && !l.pausing(time.Now())
		k.mu.Unlock()
		if empty {
			k.do(l, func() { k.scan(ctx, l) })
		}
		if !k.answers(l) {
			continue
		}
		k.mu.Lock()
		if len(l.oldest) > 0 && (from == nil || l.oldest[0].at.Before(e.at)) {
			e, from = l.oldest[0], l
		}
		k.mu.Unlock()
	}
	return e, from
}

// freeSpace is what a user without privileges may still write.
func freeSpace(dir string) (int64, error) {
	var s syscall.Statfs_t
	if err := syscall.Statfs(dir, &s); err != nil {
		return 0, fmt.Errorf("free space of %s: %w", dir, err)
	}
	return int64(s.Bavail) * s.Bsize, nil
}

// keptOf is what is kept of a camera.
type keptOf struct {
	kind, key    string
	free         int64 // on its file system; -1 = unknown
	bytes, files int64
	counted      bool // bytes and files are known: some bound is set
}

// kept tells of every recording, sorted by key, as of the last look: a disk that hangs holds up nobody who asks.
func (k *keeper) kept() (list []keptOf) {
	k.mu.Lock()
	for _, l := range k.ledgers {
		list = append(list, keptOf{kind: l.kind, key: l.key, free: l.free, bytes: l.total, files: int64(l.count), counted: !l.scanned.IsZero()})
	}
	k.mu.Unlock()
	slices.SortFunc(list, func(a, b keptOf) int { return cmp.Compare(a.key, b.key) })
	return list
}
