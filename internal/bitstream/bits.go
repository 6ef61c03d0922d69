package bitstream

// bitReader reads a NAL unit's payload bit by bit and passes over emulation prevention bytes (00 00 03). Reading past the end
// gives zeros and sets bad.
type bitReader struct {
	b     []byte
	pos   int // next byte
	cur   byte
	left  int // bits left in cur
	zeros int // zero bytes in front of the next byte
	bad   bool
}

func newBitReader(b []byte) *bitReader { return &bitReader{b: b} }

func (r *bitReader) bit() uint32 {
	if r.left == 0 {
		if r.zeros >= 2 && r.pos < len(r.b) && r.b[r.pos] == 3 {
			r.pos++
			r.zeros = 0
		}
		if r.pos >= len(r.b) {
			r.bad = true
			return 0
		}
		r.cur = r.b[r.pos]
		r.pos++
		r.left = 8
		if r.cur == 0 {
			r.zeros++
		} else {
			r.zeros = 0
		}
	}
	r.left--
	return uint32(r.cur>>r.left) & 1
}

func (r *bitReader) flag() bool { return r.bit() == 1 }

func (r *bitReader) bits(n int) uint32 {
	var v uint32
	for range n {
		v = v<<1 | r.bit()
	}
	return v
}

func (r *bitReader) skip(n int) {
	for range n {
		if r.bad {
			return
		}
		r.bit()
	}
}

// ue reads an unsigned Exp-Golomb code.
func (r *bitReader) ue() uint32 {
	n := 0
	for r.bit() == 0 {
		n++
		if n > 31 || r.bad {
			r.bad = true
			return 0
		}
	}
	return 1<<n - 1 + r.bits(n)
}

// se reads a signed Exp-Golomb code.
func (r *bitReader) se() int32 {
	v := r.ue()
	if v&1 == 1 {
		return int32(v/2 + 1)
	}
	return -int32(v / 2)
}
