package clock

import "slices"

// DTS makes decoding times from presentation times: the nth packet is decoded at the nth smallest presentation time, shifted by
// the stream's reorder depth. Times are strictly increasing within a run and not above the presentation time, except for a while
// after presentation times that make no sense; then they degrade to the smallest step and recover at an IDR. No picture order
// count is looked at, so nothing in a stream can make it fail.
type DTS struct {
	depth   int
	known   bool // the stream said its depth
	frame   int64
	waiting []int64 // sorted: the depth largest presentation times so far
	last    int64
	started bool
}

// minStep keeps decoding times apart in a 90 kHz time base.
const minStep = 12_000

// maxDepth is the deepest reordering that H.264 and H.265 allow; maxLearned is as far as a stream that says nothing is believed.
const maxDepth, maxLearned = 16, 4

// NewDTS returns a generator. reorder is the stream's reorder depth, -1 when unknown; frame the usual time between frames in ns,
// used in front of the first picture alone (0 = 40 ms).
func NewDTS(reorder int, frame int64) *DTS {
	d := &DTS{}
	d.Configure(reorder, frame)
	return d
}

// Configure takes a new parameter set. It costs nothing when it says what the old one said.
func (d *DTS) Configure(reorder int, frame int64) {
	if frame <= 0 || frame > s {
		frame = 40 * ms
	}
	d.frame = frame
	known := reorder >= 0
	depth := min(max(reorder, 0), maxDepth)
	if known == d.known && (depth == d.depth || !known) {
		return
	}
	d.known, d.depth = known, depth
	d.waiting = d.waiting[:0]
}

// Reset begins a new run: the next packet's time may be anywhere.
func (d *DTS) Reset() {
	d.started = false
	d.waiting = d.waiting[:0]
}

// Next returns the decoding time of the next packet in decoding order. idr says that no picture in front of it is shown behind
// it. discontinuity is true when the times so far lie at or behind this IDR: a new run begins with it.
func (d *DTS) Next(pts int64, idr bool) (dts int64, discontinuity bool) {
	if idr && d.started && pts <= d.last {
		d.Reset()
		discontinuity = true
	}
	if idr && len(d.waiting) > 0 && d.waiting[len(d.waiting)-1] >= pts {
		d.waiting = d.waiting[:0]
	}
	if len(d.waiting) == 0 {
		for i := d.depth; i > 0; i-- {
			d.waiting = append(d.waiting, pts-int64(i)*d.frame)
		}
	}
	if d.started && !d.known && pts <= d.last && d.depth < maxLearned {
		d.depth++ // it reorders more than it said: hold one more back from now on
		d.insert(pts)
	} else {
		d.insert(pts)
		dts = d.waiting[0]
		d.waiting = append(d.waiting[:0], d.waiting[1:]...)
	}
	if d.started && dts <= d.last {
		dts = d.last + minStep
	}
	d.last, d.started = dts, true
	return dts, discontinuity
}

func (d *DTS) insert(pts int64) {
	i, _ := slices.BinarySearch(d.waiting, pts)
	d.waiting = slices.Insert(d.waiting, i, pts)
}
