package retention

import (
	"context"
	"errors"
	"io/fs"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/cfpipe/cfpipe/pipeline/recordings"
)

// pass is one look at the bounds. What it counts may still be added to when it is over, by a disk that has not answered in time.
type pass struct {
	*Keeper
	ctx      context.Context
	now      time.Time
	failures failures
}

// pass removes what the bounds do not allow.
func (k *Keeper) pass(ctx context.Context, now time.Time) {
	k.adopt()
	k.mu.Lock()
	step, ledgers, all := k.ages.look(now, k.slept()), k.ledgers, k.all
	k.mu.Unlock()
	if step != 0 {
		k.log.Warn("the system's clock was set; recordings are aged by the time that has passed", "by", step.Round(time.Second))
	}
	k.look(ledgers)
	if all == (Bounds{}) {
		ledgers = slices.DeleteFunc(slices.Clone(ledgers), func(l *ledger) bool { return l.keep == (Bounds{}) })
	}
	for _, l := range ledgers {
		k.takeBack(l, now)
		if k.unread(l, now) {
			k.do(l, func() { k.scan(ctx, l) })
		}
	}
	k.doubtClock(ledgers)
	p := &pass{Keeper: k, ctx: ctx, now: now}
	for _, l := range ledgers {
		own := []*ledger{l}
		p.bound(own, l.keep)
		p.makeRoom(own, l.keep.Free)
	}
	p.bound(ledgers, all)
	for _, group := range k.byDisk(ledgers) {
		p.makeRoom(group, all.Free)
	}
	p.tell()
}

// doubtClock asks whether the clock may have been wrong when the keeper began, or became so lately: the recordings of all are what is known of it.
func (k *Keeper) doubtClock(ledgers []*ledger) {
	k.mu.Lock()
	defer k.mu.Unlock()
	all := k.idle
	for _, l := range ledgers {
		all.add(l.idle)
	}
	if all == k.idle || all.before.IsZero() {
		return
	}
	k.idle = all
	since := all.since
	if since.IsZero() {
		since = k.begun
	}
	if by := k.ages.doubts(all.before, since, k.begun); by > 0 {
		k.log.Warn("nothing was recorded for long: recordings are not aged by that time until a day has passed; set the clock if it is wrong",
			"after", all.before, "until", since, "for", by.Round(time.Second), "clock", k.begun)
	}
}

// bound removes what is too old, and what is too much.
func (p *pass) bound(ledgers []*ledger, b Bounds) {
	for b.Age > 0 && p.expired(ledgers, b.Age) && p.drop("age", ledgers) {
	}
	for b.Size > 0 && p.total(ledgers) > b.Size && p.drop("size", ledgers) {
	}
}

// makeRoom removes files of ledgers, which lie on one file system, until so much of it is free.
func (p *pass) makeRoom(ledgers []*ledger, want int64) {
	if want <= 0 {
		return
	}
	for {
		p.look(ledgers[:1])
		free, known := p.freeOf(ledgers[0])
		if !known || free >= want {
			return
		}
		if !p.canMeet(ledgers[0], want) { // a mistake, or the disk that is meant is not mounted: all recordings would go, and for nothing
			if p.toldFull.due(p.now) {
				p.log.Warn("retention.free asks for more than the whole disk has: no recording is removed for it", "folder", ledgers[0].dir(), "wanted", want)
			}
			return
		}
		if !p.drop("free", ledgers) {
			if p.toldFull.due(p.now) {
				p.log.Warn("the disk has less free space than retention.free asks for, and no finished recording is left to remove",
					"folder", ledgers[0].dir(), "free", free, "wanted", want)
			}
			return
		}
	}
}

func (p *pass) total(ledgers []*ledger) (sum int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, l := range ledgers {
		sum += l.total
	}
	return sum
}

func (p *pass) expired(ledgers []*ledger, age time.Duration) bool {
	f, from := p.oldest(ledgers, true)
	return from != nil && p.ages.of(f.at, p.now) > age
}

// oldest finds the oldest file of all; aged: of those whose age is known. nil = there is none.
func (p *pass) oldest(ledgers []*ledger, aged bool) (oldest file, from *ledger) {
	for _, l := range ledgers {
		p.mu.Lock()
		empty := len(l.oldest) == 0 && !l.complete && len(l.aside) < maxAside && !l.pausing(time.Now())
		p.mu.Unlock()
		if empty {
			p.do(l, func() { p.scan(p.ctx, l) })
		}
		if !p.answers(l) {
			continue
		}
		p.mu.Lock()
		if i := l.first(aged); i >= 0 && (from == nil || older(l.oldest[i], oldest) < 0) {
			oldest, from = l.oldest[i], l
		}
		p.mu.Unlock()
	}
	return oldest, from
}

// drop removes the oldest file, or sets it aside: then the next one is the oldest. It returns false when there is none.
func (p *pass) drop(why string, ledgers []*ledger) bool {
	f, l := p.oldest(ledgers, why == "age")
	if l == nil || p.ctx.Err() != nil {
		return false
	}
	p.mu.Lock()
	switch i := slices.IndexFunc(l.oldest, func(o file) bool { return o.path == f.path }); {
	case i == 0:
		l.oldest = l.oldest[1:]
	case i > 0:
		l.oldest = slices.Delete(l.oldest, i, i+1)
	}
	p.mu.Unlock()
	if !p.do(l, func() { p.try(l, f, why) }) {
		p.mu.Lock()
		l.scanned = time.Time{} // read anew when the disk answers again: nobody knows whether the file is gone
		p.mu.Unlock()
	}
	return true
}

// try removes a file, or sets it aside. It runs in a goroutine that a disk may hold for ever.
func (p *pass) try(l *ledger, f file, why string) {
	err := p.remove(l.place.Load(), f.path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) { // what somebody else has removed is gone as well
		if !errors.Is(err, recordings.ErrSpared) {
			p.failures.add(f.path, err)
		}
		p.mu.Lock()
		l.setAside(f, p.now)
		p.mu.Unlock()
		return
	}
	if err == nil {
		l.emptyLater(f)
	}
	p.mu.Lock()
	l.total = max(l.total-f.size, 0)
	l.count--
	l.removed.add(f.size, why)
	p.mu.Unlock()
	if p.onRemoved != nil {
		p.onRemoved(f.path)
	}
	p.log.Debug("recording removed", "path", f.path, "because", why)
}

// removals sum up what was removed from a set since the log was told.
type removals struct {
	files, bytes int64
	why          []string // the bounds
	told         time.Time
}

func (r *removals) add(bytes int64, why string) {
	r.files++
	r.bytes += bytes
	if !slices.Contains(r.why, why) {
		r.why = append(r.why, why)
	}
}

// take returns what is to be told now: the first at once, then sums.
func (r *removals) take(now time.Time) (sum removals, due bool) {
	if r.files == 0 || now.Sub(r.told).Abs() < tellRemoved {
		return sum, false
	}
	sum, *r = *r, removals{told: now}
	return sum, true
}

// tell logs what was removed, a line for each set, and what could not be, one for all.
func (p *pass) tell() {
	p.mu.Lock()
	ledgers := p.ledgers
	p.mu.Unlock()
	for _, l := range ledgers {
		p.mu.Lock()
		sum, due := l.removed.take(p.now)
		p.mu.Unlock()
		if due {
			p.log.Info("oldest recordings removed", "key", l.key, "of", l.kind, "folder", l.dir(), "files", sum.files, "bytes", sum.bytes,
				"because", strings.Join(sum.why, ", "))
		}
	}
	if n, path, err := p.failures.all(); n > 0 && p.toldFailed.due(p.now) {
		p.log.Warn("recordings cannot be removed; it is tried again", "files", n, "path", path, "error", err)
	}
}

// failures collects why files could not be removed.
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
