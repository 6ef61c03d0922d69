package framering

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// progress writes into this subscriber's entry of the publisher's table, so that inspectors see how far it is.
type progress struct {
	seg   *shm.Segment // nil: cannot be written, or belongs to a publisher that may read the entry otherwise
	entry *subscriberSlot
	hdr   *header
	moved bool       // the publisher has begun a new generation of its frames: the table is in another file now
	mu    sync.Mutex // SawPacket against Close
	ended bool       // the connection has ended
	pid   uint64     // of the publisher, as the first generation's header has it
	seq   uint64
	dead  atomic.Bool
	store func() // made once, so that SawPacket does not allocate
}

// openProgress maps the table of a publisher of this project for writing. Others are left alone: to them last_seen_seq
// counts frames (§2.3), here a subscriber that takes packets alone counts packets.
func (s *Subscriber) openProgress() {
	p := &s.progress
	p.dead.Store(true)
	p.moved = false
	p.store = func() {
		if p.hdr.shutdownFlag.Load() != 0 {
			p.moved = true
			return
		}
		p.entry.lastSeenSeq.Store(p.seq)
		p.entry.lastAckNS.Store(time.Now().UnixNano())
	}
	if s.side.hello.Flags.effective()&WantsFrames != 0 {
		return
	}
	seg, err := shm.Open(s.ShmName, shm.OpenOptions{MinSize: headerSize})
	if err != nil {
		return // read-only to this process, most likely
	}
	var b *block
	if !shm.Locked(seg) || shm.Guard(func() { b, _, err = openBlock(seg.Bytes()) }) != nil || err != nil {
		seg.Close()
		return
	}
	pid := b.hdr.producerPID
	if p.ended || p.pid != 0 && p.pid != pid { // the entry is somebody else's
		seg.Close()
		return
	}
	p.seg, p.entry, p.hdr, p.pid = seg, &b.subs[s.Bit], b.hdr, pid
	p.dead.Store(false)
}

// SawPacket tells inspectors the newest packet that this subscriber has read. It is for subscribers of packets alone; it does
// not allocate, block or fail.
func (s *Subscriber) SawPacket(seq uint64) {
	p := &s.progress
	if p.dead.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.dead.Load() { // closed meanwhile
		return
	}
	if p.seq = seq; shm.Guard(p.store) != nil {
		p.dead.Store(true)
	}
	if p.moved { // at most once for each generation: an ended publisher's file is gone, or another's
		_ = p.seg.Close()
		p.seg = nil
		s.openProgress()
	}
}

// end is called when the connection has ended: the entry may be another subscriber's from now on.
func (p *progress) end() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ended = true
	p.dead.Store(true)
}

func (p *progress) close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead.Store(true)
	if p.seg == nil {
		return nil
	}
	return p.seg.Close()
}
