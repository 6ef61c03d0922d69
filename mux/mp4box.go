package mux

import "encoding/binary"

// box is an MP4 box in memory.
type box struct {
	kind string
	body []byte
}

// nextBox cuts the first box off b; ok is false at the end, and where the rest is no box.
func nextBox(b []byte) (x box, rest []byte, ok bool) {
	if len(b) < 8 {
		return x, nil, false
	}
	size, head := uint64(binary.BigEndian.Uint32(b)), uint64(8)
	if size == 1 && len(b) >= 16 {
		size, head = binary.BigEndian.Uint64(b[8:]), 16
	}
	if size < head || size > uint64(len(b)) {
		return x, nil, false
	}
	return box{string(b[4:8]), b[head:size]}, b[size:], true
}

// child finds a box by its path.
func child(b []byte, path ...string) []byte {
	for _, kind := range path {
		found := false
		for x, rest, ok := nextBox(b); ok; x, rest, ok = nextBox(rest) {
			if x.kind == kind {
				b, found = x.body, true
				break
			}
		}
		if !found {
			return nil
		}
	}
	return b
}

// fields reads big-endian numbers one after another; behind the end of the box they are 0.
type fields struct {
	b []byte
}

func (f *fields) skip(n int) {
	f.b = f.b[min(n, len(f.b)):]
}

func (f *fields) u32() uint32 {
	if len(f.b) < 4 {
		f.b = nil
		return 0
	}
	v := binary.BigEndian.Uint32(f.b)
	f.b = f.b[4:]
	return v
}

func (f *fields) u64() uint64 {
	hi := f.u32()
	return uint64(hi)<<32 | uint64(f.u32())
}

// sized reads 32 or 64 bits, as the version of the box says.
func (f *fields) sized(version byte) uint64 {
	if version == 1 {
		return f.u64()
	}
	return uint64(f.u32())
}

// fullBox opens the body of a box with version and flags.
func fullBox(b []byte) (version byte, flags uint32, f fields) {
	f = fields{b}
	v := f.u32()
	return byte(v >> 24), v & 0xFFFFFF, f
}
