package framering

import (
	"bytes"
	"encoding/binary"
)

// nameSize is the length of consumer_name in the table, its terminator included (§2.3).
const nameSize = 32

// storeName writes an ASCII, zero-terminated name of at most 31 characters; what is not printable ASCII becomes '?'.
func (s *subscriberSlot) storeName(name string) {
	var b [nameSize]byte
	n := 0
	for _, r := range name {
		if n == nameSize-1 {
			break
		}
		if r < ' ' || r > '~' {
			r = '?'
		}
		b[n] = byte(r)
		n++
	}
	for i := range s.name {
		s.name[i].Store(binary.LittleEndian.Uint64(b[8*i:]))
	}
}

// loadName returns the name, printable.
func (s *subscriberSlot) loadName() string {
	var b [nameSize]byte
	for i := range s.name {
		binary.LittleEndian.PutUint64(b[8*i:], s.name[i].Load())
	}
	name, _, _ := bytes.Cut(b[:], []byte{0})
	return printable(string(name))
}
