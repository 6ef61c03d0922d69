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
	step int
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
		x.ring.store(x.off, x.p.Data)
	case 3:
		s.pts.Store(x.p.PTS)
	case 4:
		s.dts.Store(x.p.DTS)
	case 5:
		s.offset.Store(x.off)
	case 6:
		s.size.Store(uint32(len(x.p.Data)))
	case 7:
		s.flags.Store(uint32(x.p.Flags))
	case 8:
		s.seq.Store(x.seq) // releases payload and fields to the first load of seq in attempt
	case 9:
		x.ring.hdr.globalSeq.Store(x.seq) // releases the slot to newest
	case 10:
		if x.p.Flags&FlagKey != 0 {
			x.ring.hdr.lastKeyframe.Store(x.seq)
		}
		return false
	}
	x.step++
	return true
}
