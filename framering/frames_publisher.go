package framering

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"sync"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// FrameOptions describe a generation of a publisher's frame ring. Meta and Memory must be set.
type FrameOptions struct {
	RingSize   int // slots, 1…16; 0 = 4
	Meta       FrameMeta
	Policy     Policy
	AckTimeout time.Duration // of StrictWait: who owes an ACK for longer is dropped; 0 = 1 s
	Memory     Memory        // of protocols 1 and 2: an IPCMemory

	// External is memory of the program's own on the GPU, a pointer for each slot, that is shared instead of what Memory would allocate
	// (ownership EXTERNAL, protocols 1 and 2). Each points to the beginning of an allocation that lives until the generation has ended.
	External []uintptr
}

func (o *FrameOptions) ownership() Ownership {
	if o.External != nil {
		return OwnershipExternal
	}
	return OwnershipLibrary
}

// Defaults of FrameOptions.
const (
	DefaultRingSize   = 4
	DefaultAckTimeout = time.Second
)

// ackPoll bounds how long StrictWait sleeps between looks at the ACKs: subscribers of this project wake it, others do not.
const ackPoll = time.Millisecond

// ErrOpenSlot says that a slot was acquired and neither published nor cancelled.
var ErrOpenSlot = errors.New("a frame slot is open")

// FrameWriter publishes the frames of one generation. One goroutine uses it; Stats may be called by any.
type FrameWriter struct {
	p       *Publisher
	ring    *ring
	policy  Policy
	timeout time.Duration

	// mu is held from Acquire to Publish or Cancel, and by whoever ends the generation: the memory stays while it is written.
	mu     sync.Mutex
	open   bool // a slot is acquired; the writing goroutine's
	closed bool // under mu

	expect    int    // StrictWait: subscribers of the generation before that are about to come back
	seq       uint64 // of the last frame, never read back from shared memory
	published [MaxRingSize]publishedFrame
	frames    atomic.Uint64
	waited    atomic.Int64
	dropped   atomic.Uint64
}

// publishedFrame is what a slot holds, as the writer knows it: the header in shared memory could be changed by anybody, and goes with its
// generation.
type publishedFrame struct {
	seq atomic.Uint64 // 0 = none
	pts atomic.Int64
}

// FrameWriterStats counts what a FrameWriter has done.
type FrameWriterStats struct {
	Frames  uint64        // published
	Waited  time.Duration // for ACKs
	Dropped uint64        // subscribers that owed an ACK for too long
}

// FrameSlot is a slot to be filled. Write the picture to Buffer as Meta says, make sure that it is there (synchronise the
// stream), then Publish.
type FrameSlot struct {
	Seq    uint64 // that the frame will have
	Index  int
	Buffer Buffer
}

// Stats returns the counts so far.
func (w *FrameWriter) Stats() FrameWriterStats {
	return FrameWriterStats{Frames: w.frames.Load(), Waited: time.Duration(w.waited.Load()), Dropped: w.dropped.Load()}
}

// Meta is the layout of the frames.
func (w *FrameWriter) Meta() FrameMeta { return w.ring.frames.Meta }

// Acquire takes the slot of the next frame. Under DropOldest it does not block and the frame that the slot holds is lost to who has
// not read it; under StrictWait it blocks until all who owe an ACK for that frame have given it or were dropped. Publish or Cancel
// must follow. The error is os.ErrClosed when the generation has ended.
func (w *FrameWriter) Acquire(ctx context.Context) (FrameSlot, error) {
	if w.open {
		return FrameSlot{}, ErrOpenSlot
	}
	w.mu.Lock()
	s, err := w.acquire(ctx)
	if err != nil {
		w.mu.Unlock()
		return FrameSlot{}, fmt.Errorf("frame ring: %w", err)
	}
	w.open = true
	return s, nil
}

func (w *FrameWriter) acquire(ctx context.Context) (FrameSlot, error) {
	if w.closed {
		return FrameSlot{}, os.ErrClosed
	}
	seq := w.seq + 1
	i := int(seq % uint64(len(w.ring.slots())))
	if old := w.published[i].seq.Load(); w.policy == StrictWait && old != 0 {
		if err := w.awaitACKs(ctx, i, old); err != nil {
			return FrameSlot{}, err
		}
	}
	if w.policy == StrictWait && w.expect > 0 {
		if err := w.awaitReturn(ctx); err != nil {
			return FrameSlot{}, err
		}
	}
	w.published[i].seq.Store(0) // pairs with the second look of Newest's leases
	// A member of the group can truncate the file: that must not kill the publisher.
	err := shm.Guard(func() {
		w.ring.slots()[i].seq.Store(invalidSeq) // pairs with the second look of readers
		shm.StoreBarrier()                      // before the first pixel
	})
	if err != nil {
		return FrameSlot{}, err
	}
	return FrameSlot{Seq: seq, Index: i, Buffer: w.ring.memory.buffers[i]}, nil
}

// Announce wakes the subscribers that sleep, because the acquired slot will be published within about announced (100 µs): their
// wake-up, which takes longer than the copy of a picture within a GPU, then overlaps that copy. Call it when nothing
// but that copy is left to do. Readers that do not know of it see a wake without a frame, which futexes may always give, and sleep on.
// It does not block.
func (w *FrameWriter) Announce() {
	if w.open {
		_ = shm.Guard(func() { shm.FutexWake(low32(&w.ring.block.hdr.globalSeq)) }) // Publish reports what is wrong with the memory
	}
}

// Publish makes the acquired slot the newest frame and wakes the subscribers. pts is in Unix ns. It does not allocate.
func (w *FrameWriter) Publish(pts int64) (uint64, error) { return w.publish(pts, 0) }

func (w *FrameWriter) publish(pts int64, stream uintptr) (uint64, error) {
	if !w.open {
		return 0, fmt.Errorf("frame ring: publish without acquire: %w", ErrInvalidArg)
	}
	defer w.mu.Unlock()
	w.open = false
	if ipc := w.ring.memory.ipc; ipc != nil {
		if err := ipc.event.Record(stream); err != nil { // before seq: who sees the frame finds the event recorded
			return 0, fmt.Errorf("frame ring: %w", err)
		}
	}
	w.seq++
	i := int(w.seq % uint64(len(w.ring.slots())))
	err := shm.Guard(func() {
		s, h := &w.ring.slots()[i], w.ring.block.hdr
		s.ptsNS.Store(pts)
		s.ackBitmap.Store(0)
		s.writtenBytes.Store(w.ring.frames.Meta.FrameSize)
		s.seq.Store(w.seq)       // after the pixels; pairs with the first look of readers
		h.globalSeq.Store(w.seq) // pairs with the load in Next
		shm.FutexWake(low32(&h.globalSeq))
	})
	if err != nil {
		return 0, fmt.Errorf("frame ring: %w", err)
	}
	if w.p.dialect.eventFD {
		w.p.bells.ring(WantsFrames)
	}
	w.published[i].pts.Store(pts)
	w.published[i].seq.Store(w.seq) // after the pixels; pairs with the first look of Newest
	w.p.frameSeq.Store(w.seq)
	w.frames.Add(1)
	return w.seq, nil
}

// Cancel gives the acquired slot back without a frame. Without one it does nothing.
func (w *FrameWriter) Cancel() {
	if w.open {
		w.open = false
		w.mu.Unlock()
	}
}

// end waits for an open slot and refuses the next one.
func (w *FrameWriter) end() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closed = true
}

// awaitACKs blocks until every subscriber that was there when frame seq was published has acknowledged it or was dropped.
func (w *FrameWriter) awaitACKs(ctx context.Context, i int, seq uint64) error {
	required := w.p.table.required(seq)
	if required == 0 {
		return nil
	}
	start := time.Now()
	defer func() { w.waited.Add(int64(time.Since(start))) }()
	s := &w.ring.slots()[i]
	for {
		var acks uint64
		missing := required & w.p.table.required(seq) // less those who have left since
		err := shm.Guard(func() {
			acks = s.ackBitmap.Load() // pairs with the Or in Release
			missing &^= uint32(acks)
			for m := missing; m != 0; m &= m - 1 {
				bit := bits.TrailingZeros32(m)
				if w.ring.block.subs[bit].lastSeenSeq.Load() >= seq {
					missing &^= 1 << bit // it acknowledged a later one
				}
			}
		})
		if err != nil {
			return err
		}
		if missing == 0 {
			return nil
		}
		left := w.timeout - time.Since(start)
		if left <= 0 {
			for m := missing; m != 0; m &= m - 1 {
				bit := bits.TrailingZeros32(m)
				w.dropped.Add(1)
				w.p.drop(bit, ErrTimeout, fmt.Sprintf("no ACK of frame %d for %v", seq, w.timeout))
			}
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-w.p.stop:
			return os.ErrClosed
		default:
		}
		if err := shm.FutexWait(low32(&s.ackBitmap), uint32(acks), min(left, ackPoll)); err != nil && !errors.Is(err, shm.ErrTimeout) {
			return err
		}
	}
}

// awaitReturn blocks until the subscribers of the generation before are back, or their time is over.
func (w *FrameWriter) awaitReturn(ctx context.Context) error {
	tick := time.NewTicker(ackPoll)
	defer tick.Stop()
	late := time.NewTimer(w.timeout)
	defer late.Stop()
	for w.p.table.owing() < w.expect {
		select {
		case <-tick.C:
		case <-late.C:
			w.expect = 0
			return nil
		case <-w.p.stop:
			return os.ErrClosed
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	w.expect = 0
	return nil
}

// low32 is the word of a counter that futexes wait on: the low half, on the little-endian machines that the format is for.
func low32(a *atomic.Uint64) *uint32 { return (*uint32)(unsafe.Pointer(a)) }
