package site

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/cfpipe/cfpipe/mux"
)

const (
	// keepPace is how often the bounds are looked at. Between two looks 200 cameras of 8 Mbit/s write 400 MB.
	keepPace = 2 * time.Second
	// rescanAfter is when the folders are read again: files that others have removed or added are seen then.
	rescanAfter = time.Hour
	// resultsRescan is the same for the files of results, of which there are few, and which are not told of.
	resultsRescan = time.Minute
)

// keeper removes the oldest recordings when there are more than the bounds allow. It knows each camera's total and its oldest files; the
// folders are read at the start, when those are used up, and once an hour.
type keeper struct {
	log  *slog.Logger
	free func(dir string) (int64, error) // tests have their own disk

	removed func(path string) // is told of each file that was removed; may be nil

	mu      sync.Mutex
	next    *Config // not adopted yet
	ledgers map[string]*ledger
	site    Retention
	ages    ages
	told    time.Time // when it was last said that nothing is left to remove
}

func newKeeper(log *slog.Logger) *keeper {
	return &keeper{log: log, free: freeSpace, ledgers: map[string]*ledger{}}
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
		l.others = nil
		for _, o := range ledgers {
			if len(o.key) > len(l.key) || o.key == l.key && l.kind == kindRecord && o.kind != l.kind {
				l.others = append(l.others, o.files)
			}
		}
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

// list returns the ledgers that a bound concerns, sorted by key.
func (k *keeper) list() (list []*ledger, site Retention) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, l := range k.ledgers {
		if k.site != (Retention{}) || l.keep != (Retention{}) {
			list = append(list, l)
		}
	}
	slices.SortFunc(list, func(a, b *ledger) int { return cmp.Or(cmp.Compare(a.key, b.key), cmp.Compare(a.kind, b.kind)) })
	return list, k.site
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
	ledgers, site := k.list()
	for _, l := range ledgers {
		if l.scanned.IsZero() || now.Sub(l.scanned) > l.rescan() || now.Before(l.scanned) {
			k.scan(ctx, l)
		}
	}
	var removed, bytes int64
	drop := func(why string, from []*ledger) bool {
		e, l := k.oldest(ctx, from)
		if l == nil || ctx.Err() != nil {
			return false
		}
		k.mu.Lock()
		l.oldest = l.oldest[1:]
		k.mu.Unlock()
		switch gone, err := l.remove(e); {
		case err != nil:
			k.log.Warn("a recording cannot be removed", "path", e.path, "error", err)
		case gone:
			k.mu.Lock()
			l.total = max(l.total-e.size, 0)
			l.count--
			k.mu.Unlock()
			removed++
			bytes += e.size
			if k.removed != nil {
				k.removed(e.path)
			}
			k.log.Debug("recording removed", "path", e.path, "because", why)
		}
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
	for _, group := range byFileSystem(ledgers) {
		k.makeRoom(group, site.Free, drop)
	}
	if removed > 0 {
		k.log.Info("oldest recordings removed", "files", removed, "bytes", bytes)
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
		free, err := k.free(ledgers[0].base())
		if err != nil || free >= int64(want) {
			return
		}
		if !drop("free", ledgers) {
			if now := time.Now(); now.Sub(k.told) > time.Minute {
				k.told = now
				k.log.Warn("the disk has less free space than retention.free asks for, and no finished recording is left to remove",
					"folder", ledgers[0].base(), "free", free, "wanted", int64(want))
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
		empty := len(l.oldest) == 0 && !l.complete
		k.mu.Unlock()
		if empty {
			k.scan(ctx, l)
		}
		k.mu.Lock()
		if len(l.oldest) > 0 && (from == nil || l.oldest[0].at.Before(e.at)) {
			e, from = l.oldest[0], l
		}
		k.mu.Unlock()
	}
	return e, from
}

// byFileSystem groups ledgers by where their files lie.
func byFileSystem(ledgers []*ledger) (groups [][]*ledger) {
	index := map[uint64]int{}
	for _, l := range ledgers {
		var st syscall.Stat_t
		if syscall.Stat(l.base(), &st) != nil {
			continue
		}
		dev := uint64(st.Dev) //nolint:unconvert // its width depends on the architecture
		i, ok := index[dev]
		if !ok {
			i = len(groups)
			index[dev] = i
			groups = append(groups, nil)
		}
		groups[i] = append(groups[i], l)
	}
	return groups
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

// kept tells of every recording, sorted by key.
func (k *keeper) kept() (list []keptOf) {
	var ledgers []*ledger
	k.mu.Lock()
	for _, l := range k.ledgers {
		list = append(list, keptOf{kind: l.kind, key: l.key, free: -1, bytes: l.total, files: int64(l.count), counted: !l.scanned.IsZero()})
		ledgers = append(ledgers, l)
	}
	k.mu.Unlock()
	for i, l := range ledgers { // a file system that hangs must not hold up those who finish files
		if n, err := k.free(l.base()); err == nil {
			list[i].free = n
		}
	}
	slices.SortFunc(list, func(a, b keptOf) int { return cmp.Compare(a.key, b.key) })
	return list
}
