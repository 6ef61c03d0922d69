package packetring

import (
	"encoding/binary"
	"testing"
	"time"
)

// FuzzOpen: whatever the bytes, opening gives a ring whose every index stays inside them, or an error.
func FuzzOpen(f *testing.F) {
	var t testing.T
	g := golden(&t, 1)
	f.Add(g)
	f.Add(g[:len(g)-1])
	f.Add(g[:headerSize])
	f.Add([]byte{})
	for _, at := range []int{0, 4, 8, 12, 20, 0x20, 0x30} {
		b := append([]byte(nil), g...)
		b[at] ^= 0xff
		f.Add(b)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		mem := heapBytes(len(b))
		copy(mem, b)
		r, err := openRing(mem)
		if err != nil {
			return
		}
		readAll(t, &r, false)
		readAll(t, &r, true)
	})
}

// FuzzReader puts arbitrary counters and slots under a well-formed geometry, and changes them again while the reader is between two
// loads: no panic, no endless loop, nothing handed out that is larger than the ring.
func FuzzReader(f *testing.F) {
	f.Add(uint16(3), uint16(40), uint8(3), make([]byte, 64))
	f.Add(uint16(1), uint16(1), uint8(0), []byte{})
	f.Add(uint16(1024), uint16(4096), uint8(9), []byte("\x01\x00\x00\x00\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, slots, dataSize uint16, at uint8, b []byte) {
		n, d := 1+uint32(slots)%MaxSlots, 1+uint32(dataSize)
		r := heapRing(n, d, Config{Protocol: 4})
		half := len(b) / 2
		scribble(r, b[:half])
		readAll(t, r, false)
		readAll(t, r, true)

		a := newAttempt(r, 1<<20, at%2 == 0)
		for seq := uint64(0); seq < 8; seq++ {
			a.begin(seq, false)
			for step := uint8(0); a.next() == going; step++ {
				if step == at%12 {
					scribble(r, b[half:])
				}
				if step > 200 {
					t.Fatal("an attempt without end")
				}
			}
		}
		scribble(r, b[half:])
		readAll(t, r, false)
	})
}

// scribble overwrites counters, slots and data from b, again and again.
func scribble(r *ring, b []byte) {
	if len(b) == 0 {
		return
	}
	at := 0
	word := func() uint64 {
		var w [8]byte
		for i := range w {
			w[i] = b[at%len(b)]
			at++
		}
		return binary.LittleEndian.Uint64(w[:])
	}
	r.hdr.globalSeq.Store(word())
	r.hdr.lastKeyframe.Store(word())
	r.hdr.writeOffset.Store(word())
	for i := range min(len(r.slots), 1+len(b)/8) {
		s := &r.slots[i]
		s.seq.Store(word())
		s.pts.Store(int64(word()))
		s.offset.Store(word())
		s.size.Store(uint32(word()))
		s.flags.Store(uint32(word()))
	}
}

// readAll reads until nothing comes, from each position.
func readAll(t *testing.T, r *ring, foreign bool) {
	deadline := time.Now().Add(20 * time.Second)
	for _, p := range []Position{SeekLive, SeekOldest, SeekTime(time.Unix(0, 1))} {
		c := cursor{a: newAttempt(r, 1<<20, foreign)}
		c.seek(p)
		for range 10 * MaxSlots {
			out := c.next(false)
			if out == empty || out == ended {
				break
			}
			if p := c.packet(); out == got && len(p.Data) > len(r.data) {
				t.Fatalf("packet of %d bytes from a ring of %d", len(p.Data), len(r.data))
			}
			if time.Now().After(deadline) {
				t.Fatal("reading without end")
			}
		}
		if s := c.stats; s.FirstSeq+s.Read+s.Lost != c.want {
			t.Fatalf("count: %+v, next is %d", s, c.want)
		}
	}
	_ = r.extradata()
}
