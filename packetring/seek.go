package packetring

import (
	"math"
	"time"
)

// Position is where reading begins. Whatever it names, the first packet handed out is a keyframe: where the ring has none, the next
// one that is published.
type Position struct {
	kind positionKind
	pts  int64
}

type positionKind int

const (
	live positionKind = iota
	oldest
	at
)

var (
	// SeekLive is the newest keyframe in the ring.
	SeekLive = Position{kind: live}
	// SeekOldest is the oldest keyframe that is still whole.
	SeekOldest = Position{kind: oldest}
)

// SeekTime is the newest keyframe with a PTS at or before t, else the oldest one.
func SeekTime(t time.Time) Position { return Position{kind: at, pts: t.UnixNano()} }

func (c *cursor) seek(p Position) {
	newest := c.a.ring.newest()
	from := c.a.ring.oldest(newest)
	var seq uint64
	var ok bool
	switch p.kind {
	case live:
		// The header's last_keyframe_seq says the same and is a stranger's word; the slots are looked at in any case.
		seq, ok = c.newestKeyframe(from, newest, math.MaxInt64)
	case at:
		if seq, ok = c.newestKeyframe(from, newest, p.pts); ok {
			break
		}
		fallthrough
	case oldest:
		seq, ok = c.oldestKeyframe(from, newest)
	}
	if !ok {
		seq = newest + 1
	}
	c.want, c.stats.FirstSeq = seq, seq
	c.needKey, c.gap, c.started = true, false, ok
}
