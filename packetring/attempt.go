package packetring

import "github.com/cfpipe/cfpipe/internal/shm"

// attempt is one try to read a packet, one load a step (decision A8): validate, copy, validate again. The ring gives no promise that
// the packet stands still meanwhile; it gives the promise that the second validation fails when it did not.
type attempt struct {
	ring    *ring
	seq     uint64
	limit   uint32 // largest payload accepted
	foreign bool   // the writer may follow the plain specification: leave room for a packet in flight
	floor   uint64 // foreign: least bytes of that room
	meta    bool   // fields alone, no payload
	dst     []byte // payload; grown as needed

	step  int
	d     description
	room  uint64
	done  int // payload bytes loaded
	chunk int // payload bytes a step; 0 = all
}

type verdict int

const (
	going verdict = iota
	whole
	missed // overwritten, being overwritten, or nonsense
)

func (a *attempt) next() verdict {
	s := a.ring.at(a.seq)
	step := a.step
	a.step++
	switch step {
	case 0:
		if s.seq.Load() != a.seq { // acquires fields and payload
			return missed
		}
	case 1:
		a.d.pts = s.pts.Load()
	case 2:
		a.d.dts = s.dts.Load()
	case 3:
		a.d.offset = s.offset.Load()
	case 4:
		a.d.size = s.size.Load()
	case 5:
		a.d.flags = s.flags.Load()
	case 6:
		if a.d.size > a.limit || uint64(a.d.size) > uint64(len(a.ring.data)) {
			return missed
		}
		if a.foreign {
			a.room = max(a.floor, a.ring.largest())
		}
		if !a.ring.whole(a.d, a.ring.hdr.writeOffset.Load(), a.room) {
			return missed
		}
	case 7:
		if a.meta {
			break
		}
		if a.done == 0 {
			a.grow(int(a.d.size))
		}
		n := len(a.dst) - a.done
		if a.chunk > 0 {
			n = min(n, a.chunk)
		}
		a.ring.load(a.dst[a.done:a.done+n], a.d.offset+uint64(a.done))
		if a.done += n; a.done < len(a.dst) {
			a.step = step
		}
	case 8:
		shm.LoadBarrier() // pairs with publication's StoreBarrier
		if s.seq.Load() != a.seq {
			return missed
		}
	case 9:
		if a.foreign {
			a.room = max(a.room, a.ring.largest())
		}
		if !a.ring.whole(a.d, a.ring.hdr.writeOffset.Load(), a.room) {
			return missed
		}
		// The plain specification changes the fields of a slot while its old seq stands: the slot that comes next is lost, too.
		if a.foreign && a.ring.newest()-a.seq >= uint64(len(a.ring.slots))-1 {
			return missed
		}
		return whole
	}
	return going
}

func (a *attempt) begin(seq uint64, meta bool) {
	a.seq, a.meta, a.step, a.done, a.room = seq, meta, 0, 0, 0
}

// run takes all steps.
func (a *attempt) run() verdict {
	for {
		if v := a.next(); v != going {
			return v
		}
	}
}

func (a *attempt) grow(n int) {
	if cap(a.dst) < n {
		// Half as much again: sizes of keyframes creep up, and each growth is garbage.
		a.dst = make([]byte, n, min(n+n/2, max(n, int(a.limit))))
	}
	a.dst = a.dst[:n]
}

// largest returns the size of the largest packet in the ring.
func (r *ring) largest() uint64 {
	var n uint32
	for i := range r.slots {
		if s := &r.slots[i]; s.seq.Load() != invalidSeq {
			n = max(n, s.size.Load())
		}
	}
	return min(uint64(n), uint64(len(r.data)))
}
