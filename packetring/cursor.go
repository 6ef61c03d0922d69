package packetring

// cursor is a reader's position in a ring and what it has counted. It knows memory alone: no files, no waiting.
type cursor struct {
	a    attempt
	want uint64 // next seq to hand out

	noData  bool // hand out fields alone
	needKey bool // hand out nothing before a keyframe
	gap     bool // packets were lost in front of the next one
	started bool // something was handed out or lost since the last seek

	seen  uint64 // global_seq as it stood at the last look of next: what a wait for something newer starts from
	stats Stats
}

// Stats counts what a reader has met. Since a seek, Read + Lost = Last − First + 1 once a packet was read (the counts themselves go
// on over seeks).
type Stats struct {
	Read      uint64 // packets handed out
	Lost      uint64 // packets that were published and could not be handed out
	Overruns  uint64 // how often packets were lost in a row
	Bytes     uint64 // payload bytes handed out
	FirstSeq  uint64 // where reading began after the last seek
	LastSeq   uint64 // newest seq handed out; 0: none
	GlobalSeq uint64 // newest seq published
}

type outcome int

const (
	empty   outcome = iota // nothing new
	got                    // a packet
	overrun                // packets were lost; the position is set anew
	again                  // worked through a bounded number of packets without one to hand out; call again
	ended                  // nothing new, and the writer says that nothing will come
)

// skipsPerCall bounds the work of one next: a ring holds no more packets than this, so only a writer that plays with its counters,
// or one that is faster than its reader, needs more.
const skipsPerCall = 2 * MaxSlots

// next takes the next packet's fields and payload into a.d and a.dst. With report it returns overrun when one has happened, before
// the packet that follows it.
func (c *cursor) next(report bool) outcome {
	for range skipsPerCall {
		down := c.a.ring.hdr.shutdown.Load() != 0 // before newest: what was published before the flag is not missed
		c.seen = c.a.ring.hdr.globalSeq.Load()
		newest := min(c.seen, maxSeq)
		if c.want > newest {
			if down {
				return ended
			}
			return empty
		}
		v := missed
		if newest-c.want < uint64(len(c.a.ring.slots)) {
			v = c.look(c.want, c.needKey || c.noData)
		}
		if v == whole && c.needKey {
			if c.a.d.flags&uint32(FlagKey) == 0 {
				c.skip(c.want + 1)
				continue
			}
			v = c.look(c.want, c.noData)
		}
		if v == whole {
			c.take()
			return got
		}
		fresh := !c.gap
		c.overrun()
		if fresh && report {
			return overrun
		}
	}
	return again
}

func (c *cursor) look(seq uint64, meta bool) verdict {
	c.a.begin(seq, meta)
	return c.a.run()
}

func (c *cursor) take() {
	c.stats.Read++
	c.stats.Bytes += uint64(len(c.a.dst))
	c.stats.LastSeq = c.want
	if c.gap {
		c.a.d.flags |= uint32(FlagDiscontinuity)
	}
	c.needKey, c.gap, c.started = false, false, true
	c.want++
}

// overrun sets the position to the oldest whole keyframe that is newer than what could not be read, or behind everything that was
// published until now, to wait for a keyframe (decision A9).
func (c *cursor) overrun() {
	if !c.gap {
		c.stats.Overruns++
	}
	c.gap, c.needKey, c.started = true, true, true
	newest := max(c.a.ring.newest(), c.want)
	seq, ok := c.oldestKeyframe(max(c.want+1, c.a.ring.oldest(newest)), newest)
	if !ok {
		seq = newest + 1
	}
	c.skip(seq)
}

// skip moves the position; what lies between counts as lost, except in front of the first keyframe ever read.
func (c *cursor) skip(seq uint64) {
	if c.started {
		c.stats.Lost += seq - c.want
	} else {
		c.stats.FirstSeq = seq
	}
	c.want = seq
}

func (c *cursor) oldestKeyframe(from, to uint64) (uint64, bool) {
	for seq := from; seq <= to; seq++ {
		if c.look(seq, true) == whole && c.a.d.flags&uint32(FlagKey) != 0 {
			return seq, true
		}
	}
	return 0, false
}

// newestKeyframe returns the newest whole keyframe whose PTS is at most pts.
func (c *cursor) newestKeyframe(from, to uint64, pts int64) (uint64, bool) {
	for seq := to; seq >= from && seq > 0; seq-- {
		if c.look(seq, true) == whole && c.a.d.flags&uint32(FlagKey) != 0 && c.a.d.pts <= pts {
			return seq, true
		}
	}
	return 0, false
}

func (c *cursor) packet() Packet {
	return Packet{Seq: c.a.seq, PTS: c.a.d.pts, DTS: c.a.d.dts, Flags: Flags(c.a.d.flags), Data: c.a.dst}
}
