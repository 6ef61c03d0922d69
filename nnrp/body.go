package nnrp

// Blocks of a body begin at multiples of 8 from the body's start. The zero padding in front of a block counts in body_len and in no
// logical length; nothing is padded behind the last block.

func align8(n uint64) uint64 { return (n + 7) &^ 7 }

// zeros8 is as much padding as can stand in front of a block.
var zeros8 [8]byte

// pad appends zeros until the body that began at b[start] is aligned.
func pad(b []byte, start int) []byte {
	n := len(b) - start
	return append(b, zeros8[:int(align8(uint64(n)))-n]...)
}

// bodyReader walks the blocks of a body.
type bodyReader struct {
	t    MsgType
	base int // offset of the body from the message's first byte
	b    []byte
	off  int
}

func (r *bodyReader) at() int   { return r.base + r.off }
func (r *bodyReader) left() int { return len(r.b) - r.off }

// align steps over padding, which must be zero.
func (r *bodyReader) align() error {
	for r.off&7 != 0 {
		if r.off == len(r.b) {
			return malformedBody(r.t, r.at(), "body ends inside padding")
		}
		if r.b[r.off] != 0 {
			return malformedBody(r.t, r.at(), "padding is not zero")
		}
		r.off++
	}
	return nil
}

// take returns the next n bytes, unaligned.
func (r *bodyReader) take(n uint64, name string) ([]byte, error) {
	if n > uint64(r.left()) {
		return nil, malformedBody(r.t, r.at(), "%s of %d bytes does not fit in the %d that are left", name, n, r.left())
	}
	p := r.b[r.off : r.off+int(n) : r.off+int(n)]
	r.off += int(n)
	return p, nil
}

// block returns an aligned block of n bytes; an empty block takes no padding.
func (r *bodyReader) block(n uint64, name string) ([]byte, error) {
	if n == 0 {
		return nil, nil
	}
	if err := r.align(); err != nil {
		return nil, err
	}
	return r.take(n, name)
}

// end refuses bytes behind the last block.
func (r *bodyReader) end() error {
	if r.left() != 0 {
		return malformedBody(r.t, r.at(), "%d bytes behind the last block", r.left())
	}
	return nil
}

// rest returns what is left of the body as a control_extension_block (section 10.3).
func (r *bodyReader) rest() ([]byte, error) {
	if r.left() == 0 {
		return nil, nil
	}
	if err := r.align(); err != nil {
		return nil, err
	}
	if r.left() == 0 { // padding behind the last block
		return nil, malformedBody(r.t, r.at(), "padding behind the last block")
	}
	p := r.b[r.off:len(r.b):len(r.b)]
	if err := checkExtensions(r.t, p, r.at()); err != nil {
		return nil, err
	}
	r.off = len(r.b)
	return p, nil
}

// split checks the header's type and lengths against the payload and returns metadata and a reader of the body.
func split(h *Header, t MsgType, payload []byte, l *Limits) ([]byte, bodyReader, error) {
	if h.Type != t {
		return nil, bodyReader{}, codeError(CodeInvalidState, t, 6, "msg_type is %s", h.Type)
	}
	if err := h.Check(l); err != nil {
		return nil, bodyReader{}, err
	}
	if uint64(len(payload)) < uint64(h.MetaLen)+uint64(h.BodyLen) {
		return nil, bodyReader{}, ErrShort
	}
	m := int(h.MetaLen)
	end := m + int(h.BodyLen)
	return payload[:m:m], bodyReader{t: t, base: HeaderLen + m, b: payload[m:end:end]}, nil
}
