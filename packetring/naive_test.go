package packetring

// What follows the plain specification, sections 10.6 and 10.7, to the letter: the writers and readers that others have built.

// storer is a writer that stores one thing a step.
type storer interface {
	begin(p Packet)
	next() (more bool)
	end()
}

// naivePublication stores in the order of section 10.6.
type naivePublication struct{ publication }

func (x *naivePublication) next() (more bool) {
	s := x.ring.at(x.seq)
	switch x.step {
	case 0:
		n := len(x.p.Data) - x.done
		if x.chunk > 0 {
			n = min(n, x.chunk)
		}
		x.ring.store(x.off+uint64(x.done), x.p.Data[x.done:x.done+n])
		if x.done += n; x.done < len(x.p.Data) {
			return true
		}
	case 1:
		s.pts.Store(x.p.PTS)
	case 2:
		s.dts.Store(x.p.DTS)
	case 3:
		s.offset.Store(x.off)
	case 4:
		s.size.Store(uint32(len(x.p.Data)))
	case 5:
		s.flags.Store(uint32(x.p.Flags))
	case 6:
		s.seq.Store(x.seq)
	case 7:
		x.ring.hdr.writeOffset.Store(x.off + uint64(len(x.p.Data)))
	case 8:
		x.ring.hdr.globalSeq.Store(x.seq)
	case 9:
		if x.p.Flags&FlagKey != 0 {
			x.ring.hdr.lastKeyframe.Store(x.seq)
		}
		return false
	}
	x.step++
	return true
}

// naiveAttempt loads in the order of section 10.7. (One check is added: a size beyond the ring would read outside of it.)
type naiveAttempt struct{ attempt }

func (a *naiveAttempt) next() verdict {
	s := a.ring.at(a.seq)
	step := a.step
	a.step++
	switch step {
	case 0:
		if s.seq.Load() != a.seq {
			return missed
		}
	case 1:
		a.d.offset = s.offset.Load()
	case 2:
		a.d.size = s.size.Load()
		if int(a.d.size) > len(a.ring.data) {
			return missed
		}
	case 3:
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
	case 4:
		a.d.pts = s.pts.Load()
	case 5:
		a.d.dts = s.dts.Load()
	case 6:
		a.d.flags = s.flags.Load()
	case 7:
		if s.seq.Load() != a.seq {
			return missed
		}
		return whole
	}
	return going
}

type loader interface {
	begin(seq uint64, meta bool)
	next() verdict
}
