package framering

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// Frame is a lease on a frame's slot, a FrameReader's or (Publisher.Newest) one of the publisher's own process: its memory stays mapped
// until Release, but the publisher may overwrite it (DropOldest).
type Frame struct {
	Seq    uint64
	PTS    int64  // Unix ns
	Lost   uint64 // StrictOrder: frames lost in front of this one
	Buffer Buffer // the slot's memory; layout as Meta

	holds  *atomic.Uint64 // seq of what the slot holds
	meta   *FrameMeta
	event  IPCEvent     // protocols 1 and 2
	reader *FrameReader // nil: the lease is Newest's
	slot   int          // a reader's
	ring   *ring        // Newest's
}

// Meta is the layout of the frame.
func (f Frame) Meta() FrameMeta { return *f.meta }

// Check tells whether the frame is still whole: ErrFrameOverrun says that the publisher has begun to overwrite it. Ask after the last
// read of its pixels (on a GPU: after the stream is synchronised), before trusting what was made from them.
func (f Frame) Check() error {
	var whole bool
	err := shm.Guard(func() {
		shm.LoadBarrier() // after the pixels
		whole = f.holds.Load() == f.Seq
	})
	if err == nil && !whole {
		err = ErrFrameOverrun
	}
	return err
}

// Release acknowledges the frame and gives the lease back; Buffer must not be touched any more. ErrFrameOverrun is Check's. Call it
// once.
func (f Frame) Release() error {
	r := f.reader
	err := f.Check()
	if r == nil {
		f.ring.leave()
		return err
	}
	if err == nil {
		err = shm.Guard(func() {
			// The bit first: StrictWait takes last_seen_seq for an ACK too, would overwrite the slot, and the bit would then stand for a
			// frame that has not been read.
			r.acknowledge(&r.block.slots[f.slot])
			me := &r.block.subs[r.sub.Bit]
			me.lastSeenSeq.Store(f.Seq)
			me.lastAckNS.Store(time.Now().UnixNano())
		})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if errors.Is(err, ErrFrameOverrun) {
		r.stats.Overruns++
	}
	r.leases--
	if r.closed && r.leases == 0 {
		err = errors.Join(err, r.unmap())
	}
	return err
}

// CopyTo copies the frame out of host memory, FrameSize bytes, and says whether the copy is whole (ErrFrameOverrun). The lease stays.
func (f Frame) CopyTo(dst []byte) error {
	n := int(f.meta.FrameSize)
	src := f.Buffer.Bytes()
	if src == nil {
		return fmt.Errorf("copy frame %d: it lies in GPU memory: %w", f.Seq, ErrInvalidArg)
	}
	if len(dst) < n {
		return fmt.Errorf("copy frame %d: %d bytes for a frame of %d: %w", f.Seq, len(dst), n, ErrInvalidArg)
	}
	if err := shm.Guard(func() { copy(dst, src[:n]) }); err != nil {
		return fmt.Errorf("copy frame %d: %w", f.Seq, err)
	}
	return f.Check()
}
