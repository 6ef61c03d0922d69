package framering

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// ring is one generation of a publisher's frame SHM and frame memory. The size and format of frames never change within one: the
// next generation stands in a new file under the same name, and whoever reads the old one finds it shut down.
type ring struct {
	seg    *shm.Segment
	block  *block
	frames *FrameOptions // nil = packet-only: then it has no memory and no writer
	memory *slotMemory
	writer *FrameWriter

	// Sessions that may still be sending the descriptors of memory, and leases of Newest; under Publisher.mu.
	users   int
	retired bool
	free    sync.Once
	freed   chan struct{} // closed when memory is given back
}

func (r *ring) slots() []slot { return r.block.slots }

// release gives the memory back when nobody uses it any more. The caller holds Publisher.mu.
func (r *ring) release() {
	if r.retired && r.users == 0 {
		r.free.Do(func() {
			if r.memory != nil {
				_ = r.memory.close()
			}
			close(r.freed)
		})
	}
}

// StartFrames begins a new generation of the frame ring and returns its writer. Slots are allocated from o.Memory and belong to the
// publisher. Subscribers of the generation before are told to come back (SHUTDOWN, reason "upgrade"); who takes packets alone notices
// nothing. Frame numbers go on. Under StrictWait the first Acquire waits until as many subscribers of frames are there as before (at most
// the ACK timeout), so that none of them misses a frame. The writer before, if any, is closed and must not have a slot open.
func (p *Publisher) StartFrames(o FrameOptions) (*FrameWriter, error) {
	w, err := p.startFrames(o)
	if err != nil {
		return nil, fmt.Errorf("publish %s: start frames: %w", p.key, err)
	}
	return w, nil
}

func (p *Publisher) startFrames(o FrameOptions) (*FrameWriter, error) {
	if o.RingSize == 0 {
		o.RingSize = DefaultRingSize
	}
	if o.AckTimeout == 0 {
		o.AckTimeout = DefaultAckTimeout
	}
	if o.RingSize < 1 || o.RingSize > MaxRingSize || o.Memory == nil || o.AckTimeout < 0 {
		return nil, fmt.Errorf("ring of %d slots, memory %T: %w", o.RingSize, o.Memory, ErrInvalidArg)
	}
	if o.Policy > StrictWait {
		return nil, fmt.Errorf("%s: %w", o.Policy, ErrInvalidArg)
	}
	if g := o.Memory.Granularity(); !p.dialect.ipc && (g <= 0 || g&(g-1) != 0 || g > maxGranularity) {
		return nil, fmt.Errorf("frame memory of granularity %d: %w", g, ErrInvalidArg)
	}
	if _, err := o.Meta.Planes(); err != nil {
		return nil, err
	}
	// The old writer goes first, so that nothing is published behind the switch.
	p.mu.Lock()
	old := p.ring
	p.mu.Unlock()
	if w := old.writer; w != nil {
		if w.open {
			return nil, ErrOpenSlot
		}
		w.end()
	}
	memory, err := p.slots(o)
	if err != nil {
		return nil, err
	}
	r := &ring{frames: &o, memory: memory, freed: make(chan struct{})}
	r.writer = &FrameWriter{p: p, ring: r, policy: o.Policy, timeout: o.AckTimeout}
	if err := p.switchTo(r); err != nil {
		return nil, errors.Join(err, memory.close())
	}
	return r.writer, nil
}

// slots makes the memory of a generation.
func (p *Publisher) slots(o FrameOptions) (*slotMemory, error) {
	if p.dialect.ipc {
		return shareSlots(o)
	}
	if o.External != nil {
		return nil, fmt.Errorf("protocol %d knows no memory of others (EXTERNAL): %w", p.dialect.version, ErrInvalidArg)
	}
	return allocSlots(o.Memory, ShmName(p.key), o.RingSize, int(o.Meta.FrameSize))
}

// switchTo puts r in the place of the current generation.
func (p *Publisher) switchTo(r *ring) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closing {
		return fmt.Errorf("%w", os.ErrClosed)
	}
	old := p.ring
	seq := p.frameSeq.Load()
	seg, err := old.seg.Replace(blockSize, shm.CreateOptions{GID: p.gid}, func(b []byte) {
		r.block = initBlock(b, blockParams{
			dialect: p.dialect, libVersion: libVersion, pid: uint64(os.Getpid()), packets: p.packets.Path != "",
			ownership: r.frames.ownership(), ipc: r.memory.ipc,
			ringSize: r.frames.RingSize, policy: r.frames.Policy, meta: r.frames.Meta,
		})
		r.block.hdr.globalSeq.Store(seq)
		p.table.moveTo(r.block)
	})
	if err != nil {
		p.table.moveTo(old.block)
		return err
	}
	r.seg, r.writer.seq = seg, seq
	p.ring = r

	// Whoever still looks at the old file finds it ended. What its slots hold stays whole for those who have it mapped: they read on
	// to its last frame and then come back for the next.
	_ = shm.Guard(func() { old.block.end() })
	r.writer.expect = p.table.owing()
	for s := range p.sessions {
		if s.ring == old && s.bit != 0 {
			p.table.drain(s.bit) // now, so that those who come back are told apart
			p.wg.Go(func() { s.end(shutdownNotice{ReasonUpgrade}) })
		}
	}
	old.retired = true
	old.release()
	return old.seg.Close()
}

// end marks a block as shut down and wakes who waits on it.
func (b *block) end() {
	b.hdr.shutdownFlag.Store(1) // read by readers that wake, and by List
	shm.FutexWake(low32(&b.hdr.globalSeq))
}
