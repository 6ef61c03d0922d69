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

	tracks  map[*inputTrack]struct{}
	rebase  bool  // the next packet begins a new loop
	end     int64 // Unix time at which the loop before ended
	lastEnd int64 // Unix time at which the newest packet of the leading track ends
	master  media.Kind
	epoch   int // counts the jumps
}

// restart anchors the clock anew: the next packet is now.
func (c *inputClock) restart() {
	c.anchored, c.rebase = false, false
	if c.packets > 0 {
		c.epoch++
	}
}

// nextLoop says that the input begins again: its first packet follows on the last.
func (c *inputClock) nextLoop() {
	if c.anchored {
		c.rebase, c.end = true, c.lastEnd
	}
}

// stamp returns a packet's Unix times. jumped is true for the first packet of each track after a jump; ok is false for a packet
// that must be dropped: one of a loop's overhanging audio.
func (c *inputClock) stamp(t *inputTrack, in inputTimes, interval int64) (pts, dts int64, jumped, ok bool) {
	if !c.anchored {
		c.anchor(time.Now(), in.dts)
		c.master = t.Kind
		t.started = false
	}
	if t.Kind == media.Video {
		c.master = media.Video
	}
	if c.rebase && t.Kind == c.master {
		c.offset, c.rebase = c.end-in.dts, false
	} else if c.rebase && t.started && in.dts < t.raw {
		// The other track's first packet of the new loop came first: its distance to the leading track is not known yet.
		c.offset, c.rebase = c.end-in.dts, false
	} else if t.started && t.epoch == c.epoch {
		if step := in.dts - t.raw; step < -int64(time.Second) && !c.looped(t) || step > int64(maxJump) {
			c.offset = t.last + t.interval - in.dts
			c.epoch++
		}
	}
	c.checkClocks(in.dts)
	dts, pts = in.dts+c.offset, in.pts+c.offset
	jumped = t.epoch != c.epoch && (t.started || c.packets > 0)
	if t.started && dts <= t.last {
		if t.Kind != c.master && t.last-dts > interval {
			return 0, 0, false, false
		}
		dts = t.last + 1
	}
	pts = max(pts, dts)
	if t.started && !jumped {
		t.interval = dts - t.last
	}
	if interval > 0 {
		t.interval = interval
	}
	t.raw, t.last, t.started, t.epoch, t.loop = in.dts, dts, true, c.epoch, c.loopStart()
	c.packets++
	if t.Kind == c.master {
		c.lastEnd = dts + t.interval
	}
	return pts, dts, jumped, true
}

// looped says whether the input was wound back since the track's last packet: its time going back is no jump then.
func (c *inputClock) looped(t *inputTrack) bool { return t.loop != c.loopStart() }

func (c *inputClock) loopStart() int64 { return c.end }

func (c *inputClock) anchor(now time.Time, raw int64) {
	c.wall, c.base = now, now.UnixNano()
	c.offset = c.base - raw
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
