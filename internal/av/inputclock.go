package av

import (
	"context"
	"math"
	"time"

	"github.com/cfpipe/cfpipe/internal/media"
)

const (
	// noTime is AV_NOPTS_VALUE.
	noTime = math.MinInt64
	// maxJump is the step of an input's timestamps that counts as a gap and not as time without pictures.
	maxJump = 10 * time.Second
	// maxLag is how far a paced input may fall behind the clock before it is anchored anew instead of catching up.
	maxLag = 5 * time.Second
)

// inputTimes are a packet's timestamps in ns on the input's own clock.
type inputTimes struct{ pts, dts int64 }

// inputClock puts the input's timestamps on Unix time: anchored once, then advanced by the input's own clock through loops and
// jumps. Where the input's time jumps or the system's clock is set, the next packet of every track is marked.
type inputClock struct {
	realtime bool
	packets  int

	anchored bool
	offset   int64     // Unix time = input time + offset
	wall     time.Time // the moment of the anchor, with its monotonic reading
	base     int64     // Unix time of the anchor

	master  media.Kind // the leading track: video where there is any
	first   int64      // its first input time
	seen    bool       // first is known
	lastEnd int64      // Unix time at which its newest packet ends
	newest  int64      // the latest input time of any track since the loop or the jump
	loop    int        // counts the loops
	epoch   int        // counts the jumps
	kinds   [2]trackClock
}

// trackClock is what the clock keeps of a track, by its kind; it outlives the opening of the input.
type trackClock struct {
	raw, last   int64 // input time and Unix time of the newest packet (DTS)
	interval    int64 // its duration, or the step to it
	epoch, loop int
	started     bool
}

// restart anchors the clock anew: the next packet is now.
func (c *inputClock) restart() {
	c.anchored, c.seen, c.master = false, false, media.Audio
	if c.packets > 0 {
		c.epoch++
	}
}

// nextLoop says that the input begins again: its first packet follows on the last.
func (c *inputClock) nextLoop() {
	if c.anchored {
		c.offset = c.lastEnd - c.first
		c.newest = c.first
		c.loop++
	}
}

// stamp returns a packet's Unix times; key says that decoding can begin with it. jumped is true for the first packet of each track
// after a jump; ok is false for a packet that must be dropped: one of a loop's overhanging audio.
func (c *inputClock) stamp(kind media.Kind, key bool, in inputTimes, interval int64) (pts, dts int64, jumped, ok bool) {
	t := &c.kinds[kind]
	if !c.anchored {
		c.anchor(time.Now(), in.dts)
	}
	if !c.seen || kind == media.Video && c.master != media.Video {
		c.first, c.seen, c.master = in.dts, true, kind
	}
	if t.started && t.epoch == c.epoch && t.loop == c.loop {
		// Forward, a track may pause for as long as the others go on.
		if in.dts < t.raw-int64(time.Second) || in.dts > c.newest+int64(maxJump) {
			c.offset = t.last + t.interval - in.dts
			c.epoch++
			c.newest = in.dts
		}
	}
	c.newest = max(c.newest, in.dts)
	if c.master != media.Video || kind == media.Video && key { // where a file can begin: no picture is lost to a cut
		c.checkClocks(in.dts)
	}
	dts, pts = in.dts+c.offset, in.pts+c.offset
	jumped = t.epoch != c.epoch && c.packets > 0
	if t.started && !jumped {
		if dts <= t.last {
			if kind != c.master && t.loop != c.loop {
				return 0, 0, false, false
			}
			dts = t.last + 1
		}
		t.interval = dts - t.last
	}
	if interval > 0 {
		t.interval = interval
	}
	pts = max(pts, dts)
	t.raw, t.last, t.started, t.epoch, t.loop = in.dts, dts, true, c.epoch, c.loop
	c.packets++
	if kind == c.master {
		c.lastEnd = dts + t.interval
	}
	return pts, dts, jumped, true
}

func (c *inputClock) anchor(now time.Time, raw int64) {
	c.wall, c.base = now, now.UnixNano()
	c.offset = c.base - raw
	c.newest = raw
	c.anchored = true
}

// checkClocks anchors anew when the system's clock was set, or when a paced input has fallen far behind.
func (c *inputClock) checkClocks(raw int64) {
	if !c.realtime {
		return
	}
	now := time.Now()
	expected := c.base + int64(now.Sub(c.wall)) // by the monotonic clock
	stepped := now.UnixNano() - expected
	lag := expected - (raw + c.offset)
	if max(stepped, -stepped) > int64(2*time.Second) || lag > int64(maxLag) {
		c.anchor(now, raw)
		c.epoch++
	}
}

// wait paces the input.
func (c *inputClock) wait(ctx context.Context, dts int64) error {
	if !c.realtime {
		return nil
	}
	d := time.Duration(dts-c.base) - time.Since(c.wall)
	if d <= 0 {
		return nil
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
