package packetring

import "github.com/cfpipe/cfpipe/internal/shm"

// publication is a packet on its way into the ring, one store a step, so that the order of stores is data that tests can interrupt
// anywhere. The order is decision A7's, which readers of the plain specification understand too:
//
//  1. The slot's old packet becomes invalid before any field of the slot changes.
//  2. The cursor passes the payload before the payload is written: a reader of an old packet whose bytes are about to be overwritten
//     sees, after its copy, that they may have been.
//  3. A full barrier keeps the payload's bytes, which plain copies write, behind both.
//  4. Payload, then fields, then seq: the slot is valid when it is complete.
type publication struct {
	ring *ring
	seq  uint64
	off  uint64 // cursor in front of the payload
	p    Packet

	step  int
	done  int // payload bytes stored
	chunk int // payload bytes a step; 0 = all
}

func (x *publication) begin(p Packet) {
	x.p, x.step, x.done = p, 0, 0
	x.seq++
}

// end moves the cursor on and lets go of the caller's payload.
func (x *publication) end() {
	x.off += uint64(len(x.p.Data))
	x.p.Data = nil
}

func (x *publication) next() (more bool) {
	s := x.ring.at(x.seq)
	switch x.step {
	case 0:
		s.seq.Store(invalidSeq) // pairs with the second load of seq in attempt
	case 1:
		x.ring.hdr.writeOffset.Store(x.off + uint64(len(x.p.Data))) // pairs with the second load of write_offset in attempt
	case 2:
		shm.StoreBarrier() // pairs with attempt's LoadBarrier
	case 3:
		n := len(x.p.Data) - x.done
		if x.chunk > 0 {
			n = min(n, x.chunk)
		}
		x.ring.store(x.off+uint64(x.done), x.p.Data[x.done:x.done+n])
		if x.done += n; x.done < len(x.p.Data) {
			return true
		}
	case 4:
		s.pts.Store(x.p.PTS)
	case 5:
		s.dts.Store(x.p.DTS)
	case 6:
		s.offset.Store(x.off)
	case 7:
		s.size.Store(uint32(len(x.p.Data)))
	case 8:
		s.flags.Store(uint32(x.p.Flags))
	case 9:
		s.seq.Store(x.seq) // releases payload and fields to the first load of seq in attempt
	case 10:
		x.ring.hdr.globalSeq.Store(x.seq) // releases the slot to newest
	case 11:
		if x.p.Flags&FlagKey != 0 {
			x.ring.hdr.lastKeyframe.Store(x.seq)
		}
		return false
	}
	x.step++
	return true
}
