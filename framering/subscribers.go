package framering

import (
	"bytes"
	"encoding/binary"
	"math/bits"
	"sync"
	"sync/atomic"
)

// table gives out the subscriber bits of a publisher. What counts is kept here; the entries in shared memory tell others and
// are never read back, except for the fields that subscribers write (last_seen_seq, last_ack_ns).
type table struct {
	mu    sync.Mutex
	block *block
	used  uint32 // bit i: bit i is given out; bit 0 is the sentinel

	// What STRICT_WAIT goes by, without a look at what subscribers could change.
	owes  atomic.Uint32                  // bit i: subscriber i owes ACKs
	since [subscriberSlots]atomic.Uint64 // the newest frame when subscriber i joined: it owes ACKs for later ones
}

func newTable(b *block) *table { return &table{block: b, used: 1} }

// join takes the lowest free bit and fills its entry as connecting; 0 means that there is none. A subscriber of frames
// counts in subscriber_bitmap from here on, so that STRICT_WAIT loses no frame between the handshake and its first read.
// newest tells the number of the newest frame; it is asked when the bit is set, and kept as the subscriber's initial_seq.
func (t *table) join(pid int, name string, wantsFrames bool, newest func() uint64) (bit int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.used == ^uint32(0) {
		return 0
	}
	bit = bits.TrailingZeros32(^t.used)
	t.used |= 1 << bit
	s := &t.block.subs[bit]
	s.consumerPID.Store(uint64(max(pid, 0)))
	s.lastSeenSeq.Store(0)
	s.lastAckNS.Store(0)
	s.storeName(name)
	s.state.Store(uint64(SubscriberConnecting))
	t.since[bit].Store(invalidSeq)
	if wantsFrames {
		t.owes.Or(1 << bit)
		t.block.hdr.bitmap.Or(1 << bit) // read by inspectors and by other publishers' readers
	}
	t.since[bit].Store(newest()) // after owes: a frame between the two is not owed, one after them is
	return bit
}

// owing counts the subscribers that owe ACKs.
func (t *table) owing() int { return bits.OnesCount32(t.owes.Load()) }

// required returns the subscribers that owe an ACK for frame seq.
func (t *table) required(seq uint64) (set uint32) {
	for m := t.owes.Load(); m != 0; m &= m - 1 {
		if bit := bits.TrailingZeros32(m); t.since[bit].Load() < seq {
			set |= 1 << bit
		}
	}
	return set
}

// moveTo carries the entries of subscribers that take packets alone over to the block of a new generation. Those of frames come back
// with a new handshake.
func (t *table) moveTo(b *block) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for m := t.used &^ 1 &^ t.owes.Load(); m != 0; m &= m - 1 {
		bit := bits.TrailingZeros32(m)
		from, to := &t.block.subs[bit], &b.subs[bit]
		to.consumerPID.Store(from.consumerPID.Load())
		for i := range from.name {
			to.name[i].Store(from.name[i].Load())
		}
		to.state.Store(from.state.Load())
	}
	t.block = b
}

// activate marks the end of the handshake.
func (t *table) activate(bit int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.block.subs[bit].state.Store(uint64(SubscriberActive))
}

// drain marks a subscriber that is being told the end; it owes no more ACKs.
func (t *table) drain(bit int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.owes.And(^uint32(1 << bit))
	t.block.hdr.bitmap.And(^uint64(1 << bit))
	t.block.subs[bit].state.Store(uint64(SubscriberDraining))
}

// leave clears the entry and frees the bit.
func (t *table) leave(bit int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.owes.And(^uint32(1 << bit))
	t.block.hdr.bitmap.And(^uint64(1 << bit))
	s := &t.block.subs[bit]
	s.state.Store(uint64(SubscriberFree))
	s.consumerPID.Store(0)
	s.lastSeenSeq.Store(0)
	s.lastAckNS.Store(0)
	s.storeName("")
	t.used &^= 1 << bit
}

// list copies the entries that are in use.
func (t *table) list() []SubscriberSlot {
	t.mu.Lock()
	defer t.mu.Unlock()
	var l []SubscriberSlot
	for bit := 1; bit < subscriberSlots; bit++ {
		if t.used&(1<<bit) != 0 {
			l = append(l, t.block.subscriber(bit))
		}
	}
	return l
}

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
