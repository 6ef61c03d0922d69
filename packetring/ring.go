package packetring

import (
	"unsafe"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// maxExpected bytes of the next packet are fetched ahead: of more the processor keeps up with the copy by itself, and they would push
// out what else is in the cache.
const maxExpected = 8 << 10

// description is a private copy of what a slot says about its packet. None of it is to be trusted before check.
type description struct {
	pts, dts    int64
	offset      uint64
	size, flags uint32
}

// at returns the slot of a packet.
func (r *ring) at(seq uint64) *slot { return &r.slots[seq%uint64(len(r.slots))] }

// newest returns the newest seq.
func (r *ring) newest() uint64 { return min(r.hdr.globalSeq.Load(), maxSeq) }

// oldest returns the first seq that can still have a slot when newest is the newest.
func (r *ring) oldest(newest uint64) uint64 {
	if n := uint64(len(r.slots)); newest >= n {
		return newest - n + 1
	}
	return 1
}

// whole tells whether payload [offset, offset+size) lies behind the cursor and less than a whole turn behind it, room bytes ahead
// of the cursor being given up for lost. Unsigned differences: an absurd offset or cursor fails.
func (r *ring) whole(d description, cursor, room uint64) bool {
	behind := cursor - d.offset
	return behind >= uint64(d.size) && behind <= uint64(len(r.data)) && uint64(len(r.data))-behind >= room
}

// cutAt splits the n bytes at cursor into the part up to the end of data[] and the part that goes on at its beginning.
func (r *ring) cutAt(cursor uint64, n int) (at, first int) {
	at = int(cursor % uint64(len(r.data)))
	return at, min(n, len(r.data)-at)
}

// store copies src to the cursor. n ≤ len(data).
//
// The copy is meant to race with readers, who find out afterwards; the race detector is kept out of it, as out of load.
//
//go:norace
//go:noinline
func (r *ring) store(cursor uint64, src []byte) {
	at, first := r.cutAt(cursor, len(src))
	copy(r.data[at:], src[:first])
	copy(r.data, src[first:])
}

// expect has the memory of a packet to come fetched into the writer's cache, away from whoever read it last: n bytes of payload, as
// far as they are worth it. It costs less than a microsecond, and spares that between the next packet's arrival and its readers.
func (r *ring) expect(seq, cursor uint64, n int) {
	at, first := r.cutAt(cursor, min(n, maxExpected))
	shm.PrefetchWrite(r.data[at : at+first])
	s := r.at(seq)
	shm.PrefetchWrite((*[slotSize]byte)(unsafe.Pointer(s))[:])
}

// load copies from the cursor to dst.
//
//go:norace
//go:noinline
func (r *ring) load(dst []byte, cursor uint64) {
	at, first := r.cutAt(cursor, len(dst))
	copy(dst[:first], r.data[at:])
	copy(dst[first:], r.data)
}

// setExtradata stores b so that a reader that sees its size also sees its bytes.
//
//go:norace
func (r *ring) setExtradata(b []byte) {
	r.hdr.extradataSize.Store(0)
	shm.StoreBarrier()
	n := copy(r.hdr.extradata[:], b)
	r.hdr.extradataSize.Store(uint32(n))
}

// extradata returns a copy; nil when there is none yet.
//
//go:norace
func (r *ring) extradata() []byte {
	for range 3 { // once set it stays, so a second look settles it; a writer that plays with it gets none
		n := r.hdr.extradataSize.Load()
		if n == 0 || n > maxExtradata {
			return nil
		}
		b := make([]byte, n)
		copy(b, r.hdr.extradata[:n])
		shm.LoadBarrier()
		if r.hdr.extradataSize.Load() == n {
			return b
		}
	}
	return nil
}
