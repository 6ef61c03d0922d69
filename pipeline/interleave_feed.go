package pipeline

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/cfpipe/cfpipe/packetring"
)

// trackFeed reads one subscription; its packet stands still until it is released.
type trackFeed struct {
	sub   *Subscription
	ready chan item
	fail  chan error
	taken chan struct{}

	head    item
	full    bool
	err     error
	key     int64
	before  int64 // the key in front of a head that goes back in time behind a gap, as those of a camera that was connected again may; 0 = it does not
	due     time.Time
	started bool
	lag     lagWindow
	asked   bool      // see drain
	idle    time.Time // when it had no packet to give that was to be waited for; zero = one has come since, or may

	mu    sync.Mutex
	rouse context.CancelFunc // ends run's wait for a packet

	// Of run alone.
	wait       context.Context
	buf        []byte            // an access unit that comes in several packets
	carried    packetring.Packet // what follows it, when only that has shown its end; Data nil = nothing
	endsUnits  bool              // the publisher has set LAST_IN_AU
	generation int               // the publisher that this was seen of
}

// maxTimes is how many presentation times a unit may have before its publisher counts as one that does not end units any more.
const maxTimes = 16

func newTrackFeed(ctx context.Context, sub *Subscription, track int) *trackFeed {
	f := &trackFeed{sub: sub, ready: make(chan item), fail: make(chan error, 1), taken: make(chan struct{})}
	f.arm(ctx)
	go f.run(ctx, track)
	return f
}

// quiet says that nothing need be waited for: it has a packet here, or none to give.
func (f *trackFeed) quiet() bool { return f.full || !f.idle.IsZero() || f.err != nil }

// stale says that it is quiet by a word that was true a while ago: a reader that is held up finds packets in the ring that came meanwhile.
func (f *trackFeed) stale() bool {
	return !f.full && f.err == nil && !f.idle.IsZero() && time.Since(f.idle) >= holdFor && f.sub.attached() != nil
}

// drain asks for everything that the ring holds, and for word when that was all.
func (f *trackFeed) drain() {
	if f.asked {
		return
	}
	f.asked = true
	f.mu.Lock()
	defer f.mu.Unlock()
	f.rouse()
}

// arm makes the context that run waits with until it is asked for what there is.
func (f *trackFeed) arm(ctx context.Context) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.rouse != nil {
		f.rouse()
	}
	f.wait, f.rouse = context.WithCancel(ctx)
}

// packet returns the next packet. It blocks, and when the feed is asked for what there is, it says so where there is nothing.
func (f *trackFeed) packet(ctx context.Context) (packetring.Packet, error) {
	for {
		p, err := f.sub.Next(f.wait)
		if err == nil || f.wait.Err() == nil || !errors.Is(err, context.Canceled) {
			return p, err
		}
		if ctx.Err() != nil {
			return p, ctx.Err()
		}
		looked := time.Now()
		if p, ok := f.sub.tryNext(); ok {
			return p, nil
		}
		f.arm(ctx)
		select {
		case f.ready <- item{drained: looked}:
		case <-ctx.Done():
			return p, ctx.Err()
		}
	}
}

// run reads packets and hands each over, to go on once it is released.
func (f *trackFeed) run(ctx context.Context, track int) {
	defer f.sub.Close()
	defer func() { f.rouse() }()
	var lost uint64
	generation := -1
	for {
		p, err := f.next(ctx)
		if err != nil {
			f.fail <- err
			return
		}
		it := item{Packet: p, Track: track, Generation: generation}
		if generation < 0 || p.Flags&packetring.FlagDiscontinuity != 0 {
			s := f.sub.Stats()
			it.Lost, lost = s.Lost-lost, s.Lost
			info := f.sub.Info()
			it.Info = &info
			generation = s.Restarts
			it.Generation = generation
		}
		select {
		case f.ready <- it:
		case <-ctx.Done():
			f.fail <- ctx.Err()
			return
		}
		select {
		case <-f.taken:
		case <-ctx.Done():
			f.fail <- ctx.Err()
			return
		}
	}
}

// next returns a whole access unit: publishers other than this project's may send it NAL unit by NAL unit, and some never say
// which is the last one. As long as one has not said so, another presentation time ends the unit as well.
func (f *trackFeed) next(ctx context.Context) (packetring.Packet, error) {
	p, err := f.carried, error(nil)
	if f.carried.Data == nil {
		p, err = f.packet(ctx)
	}
	f.carried = packetring.Packet{}
	if err != nil || f.ends(p) {
		return p, err
	}
	whole := p
	f.buf = append(f.buf[:0], p.Data...)
	for at, times := whole.PTS, 0; len(f.buf) < maxAssembled; {
		silent, generation := !f.endsUnits, f.generation
		if p, err = f.packet(ctx); err != nil {
			if !silent || !errors.Is(err, ErrEnded) {
				return p, err
			}
			break // nothing follows: it was the last unit
		}
		ends := f.ends(p)
		another := f.generation != generation || p.PTS != at && p.Flags&packetring.FlagDiscontinuity == 0
		if silent && another {
			f.carried = p
			break
		}
		if p.PTS != at {
			at = p.PTS
			if times++; times > maxTimes {
				f.endsUnits = false
			}
		}
		if p.Flags&packetring.FlagDiscontinuity != 0 { // the rest is lost: begin again
			f.buf, whole = f.buf[:0], p
		}
		f.buf = append(f.buf, p.Data...)
		whole.Flags |= p.Flags
		if ends {
			break
		}
	}
	whole.Flags |= packetring.FlagLastInAU
	whole.Data = f.buf
	return whole, nil
}

// ends says whether a packet is the last one of its unit, and takes note of whether its publisher says such things.
func (f *trackFeed) ends(p packetring.Packet) bool {
	if p.Flags&packetring.FlagDiscontinuity != 0 {
		if g := f.sub.Generation(); g != f.generation {
			f.generation, f.endsUnits = g, false
		}
	}
	last := p.Flags&packetring.FlagLastInAU != 0
	f.endsUnits = f.endsUnits || last
	return last
}

// accept makes it the packet of the track that waits, and says how long it waits for the other track.
func (f *trackFeed) accept(it item, grace time.Duration) {
	key := it.DTS
	if it.Track == audioTrack || it.Flags&packetring.FlagKey != 0 {
		key = it.PTS // so that all audio in front of a keyframe is there when a file is cut at it
	}
	if f.started && it.Flags&packetring.FlagDiscontinuity == 0 && key < f.key && f.key-key < int64(time.Second) {
		key = f.key
	}
	f.before = 0
	if f.started && it.Flags&packetring.FlagDiscontinuity != 0 && key < f.key {
		f.before = f.key
	}
	now := time.Now()
	f.head, f.full, f.idle, f.key, f.started = it, true, time.Time{}, key, true
	f.due = time.Unix(0, key).Add(f.lag.add(now, now.UnixNano()-key) + grace)
}

// lagWindow is the smallest distance between a packet's time and its arrival, of the last lagSpan or two: what of the distance
// is constant, and not waiting.
type lagWindow struct {
	since             time.Time
	current, previous int64
	started           bool
}

const lagSpan = 5 * time.Second

func (l *lagWindow) add(now time.Time, lag int64) time.Duration {
	switch {
	case !l.started:
		l.started, l.since, l.current, l.previous = true, now, lag, lag
	case now.Sub(l.since) > lagSpan:
		l.since, l.previous, l.current = now, l.current, lag
	}
	l.current = min(l.current, lag)
	return time.Duration(min(l.current, l.previous))
}
