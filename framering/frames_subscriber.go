package framering

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// ErrFrameOverrun says that a frame was overwritten while it was in use: what was made from its pixels may mix two pictures.
var ErrFrameOverrun = errors.New("frame was overwritten while it was in use")

// FrameReaderOptions choose how frames are read. Memory must be set.
type FrameReaderOptions struct {
	Memory Importer
	Wait   Wait
	Newest bool // begin with the frame that is the newest now, not with the one that follows it

	// Resume begins with the frame after After, for who has read that one in the generation before, or before it lost its connection.
	Resume bool
	After  uint64
}

// FrameReader reads the frames of one generation. Next is for one goroutine; frames may be released by others.
type FrameReader struct {
	sub   *Subscriber
	seg   *shm.Segment
	block *block
	meta  FrameMeta
	mode  Mode
	wait  Wait
	wake  bool // STRICT_WAIT: the publisher waits for ACKs

	slots  []Buffer
	event  IPCEvent        // protocols 1 and 2
	last   uint64          // handed out
	waiter shm.FutexWaiter // nil: WaitBusy

	quiet   bool // the publisher does not wake
	strikes int  // waits in a row that ran out although a frame had come
	woken   int  // waits in a row, while quiet, that did not

	mu     sync.Mutex
	leases int
	closed bool
	stats  FrameReaderStats
	ended  chan struct{} // closed by Close
	gone   chan struct{} // closed when watch has ended
}

// FrameReaderStats counts what a FrameReader has seen.
type FrameReaderStats struct {
	Read     uint64 // frames handed out
	Lost     uint64 // frames of StrictOrder that were overwritten before they could be read
	Skipped  uint64 // frames of NewestOnly that a newer one made needless
	Overruns uint64 // frames that were overwritten in use
}

// Frames opens the frame ring of a subscription that was made with WantsFrames, and takes its descriptors. An error that Is
// ErrDisconnected says that the generation has ended already: dial again.
func (s *Subscriber) Frames(o FrameReaderOptions) (*FrameReader, error) {
	r := &FrameReader{
		sub: s, meta: s.Meta, mode: s.side.hello.Mode, wait: o.Wait, last: s.InitialSeq,
		ended: make(chan struct{}), gone: make(chan struct{}),
	}
	if err := r.open(o.Memory); err != nil {
		if r.seg != nil {
			err = errors.Join(err, r.unmap())
		}
		return nil, fmt.Errorf("frames of %s: %w", s.Key, err)
	}
	switch {
	case o.Resume:
		r.last = min(r.last, o.After)
	case o.Newest && r.last > 0:
		r.last--
	}
	switch o.Wait {
	case WaitShared:
		r.waiter = shm.Shared.Register(low32(&r.block.hdr.globalSeq))
	case WaitDirect:
		r.waiter = shm.NewSleeper(low32(&r.block.hdr.globalSeq))
	}
	go r.watch()
	return r, nil
}

func (r *FrameReader) open(m Importer) error {
	s := r.sub
	if s.RingSize < 1 || s.RingSize > MaxRingSize || s.side.hello.Flags.effective()&WantsFrames == 0 || m == nil {
		return fmt.Errorf("not subscribed to frames: %w", ErrInvalidArg)
	}
	if _, err := r.meta.Planes(); err != nil {
		return err
	}
	var err error
	if r.seg, err = shm.Open(s.ShmName, shm.OpenOptions{MinSize: headerSize}); err != nil {
		if errors.Is(err, os.ErrNotExist) {
			err = fmt.Errorf("%w: %w", err, ErrDisconnected)
		}
		return err
	}
	var head Header
	var me SubscriberState
	var perr error
	var d *dialect
	var handles [][64]byte
	var event [64]byte
	err = shm.Guard(func() {
		if r.block, d, perr = openBlock(r.seg.Bytes()); perr == nil {
			head, me = r.block.header(), SubscriberState(r.block.subs[s.Bit].state.Load())
			for i := range r.block.slots {
				handles = append(handles, r.block.slots[i].memHandle)
			}
			event = r.block.hdr.events
		}
	})
	if err = errors.Join(err, perr); err != nil {
		return err
	}
	switch {
	case me == SubscriberFree || head.ShutDown || d.ipc != s.side.dialect.ipc:
		return fmt.Errorf("the frame ring is of another generation: %w", ErrDisconnected)
	case head.RingSize != s.RingSize || head.Meta != s.Meta:
		return fmt.Errorf("handshake and frame SHM differ: %d slots of %+v and %d of %+v: %w", s.RingSize, s.Meta, head.RingSize, head.Meta, ErrProtocol)
	}
	r.wake = head.Policy == StrictWait
	if d.ipc {
		return r.openIPC(m, handles, event, head.ProducerPID)
	}
	return r.importSlots(m)
}

func (r *FrameReader) importSlots(m Importer) error {
	s := r.sub
	fds := s.TakeFDs()
	if len(fds) != s.RingSize {
		closeFDs(fds)
		return fmt.Errorf("%d descriptors for %d slots: %w", len(fds), s.RingSize, ErrProtocol)
	}
	for i, fd := range fds {
		b, err := m.Import(fd, int(s.MappingSize), int(s.Granularity))
		if err == nil {
			r.slots = append(r.slots, b)
			if uint64(b.Size()) < r.meta.FrameSize {
				err = fmt.Errorf("%d bytes of memory for a frame of %d: %w", b.Size(), r.meta.FrameSize, ErrProtocol)
			}
		}
		if err != nil {
			closeFDs(fds[i+1:])
			return fmt.Errorf("slot %d: %w", i, err)
		}
	}
	return nil
}

// Meta is the layout of the frames.
func (r *FrameReader) Meta() FrameMeta { return r.meta }

// Stats returns the counts so far.
func (r *FrameReader) Stats() FrameReaderStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}

// watch ends waits when the connection ends or the reader is closed.
func (r *FrameReader) watch() {
	defer close(r.gone)
	select {
	case <-r.sub.Done():
	case <-r.ended:
	}
	if r.waiter != nil {
		r.waiter.Close()
	}
	r.sub.doorbell.pass()
}

// Next blocks for the next frame and takes a lease on it: the newest one not yet read (NewestOnly), or the one after the last
// (StrictOrder; when that is overwritten the oldest there is, with the count of those lost). Frames that are passed over are
// acknowledged. When the publisher has ended or begun a new generation it returns the subscriber's error.
func (r *FrameReader) Next(ctx context.Context) (Frame, error) {
	if !r.pin() {
		return Frame{}, fmt.Errorf("frames of %s: %w", r.sub.Key, os.ErrClosed)
	}
	defer r.unpin()
	for {
		ended := r.sub.Err() // asked first: what was published before the end is read
		f, seen, err := r.try()
		if err != nil {
			return Frame{}, fmt.Errorf("frames of %s: %w", r.sub.Key, err)
		}
		if f.reader != nil {
			return f, nil
		}
		if ended != nil {
			return Frame{}, ended
		}
		if err := r.pause(ctx, seen); err != nil {
			return Frame{}, err
		}
	}
}

// pin keeps the memory mapped beyond Close, as a lease does.
func (r *FrameReader) pin() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return false
	}
	r.leases++
	return true
}

func (r *FrameReader) unpin() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.leases--; r.closed && r.leases == 0 {
		_ = r.unmap()
	}
}

// TryNext is Next without blocking; false says that there is no new frame.
func (r *FrameReader) TryNext() (Frame, bool, error) {
	f, _, err := r.try()
	return f, f.reader != nil, err
}

// try takes a lease on the next frame if there is one. seen is the newest number it saw.
func (r *FrameReader) try() (f Frame, seen uint64, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return f, 0, os.ErrClosed
	}
	var skipped, lost uint64
	err = shm.Guard(func() {
		for range 2 * MaxRingSize { // a publisher that is faster than this loop is caught up with by waiting
			seen = r.block.hdr.globalSeq.Load() // pairs with the store in Publish
			if seen <= r.last || seen == invalidSeq {
				return
			}
			want := seen
			if r.mode == StrictOrder {
				want = r.next(seen)
			}
			s := &r.block.slots[want%uint64(len(r.slots))]
			if s.seq.Load() != want { // pairs with the store in Publish, which comes after the pixels
				continue
			}
			pts := s.ptsNS.Load()
			shm.LoadBarrier()
			if s.seq.Load() != want {
				continue
			}
			f = Frame{Seq: want, PTS: pts, holds: &s.seq, meta: &r.meta, event: r.event, reader: r, slot: int(want % uint64(len(r.slots)))}
			f.Buffer = r.slots[f.slot]
			passed := want - r.last - 1
			if r.mode == StrictOrder {
				lost = passed
			} else {
				skipped = passed
			}
			r.acknowledgePassed(want, passed)
			return
		}
	})
	if err != nil || f.reader == nil {
		return Frame{}, seen, err
	}
	f.Lost = lost
	r.last = f.Seq
	r.leases++
	r.stats.Read++
	r.stats.Skipped += skipped
	r.stats.Lost += lost
	return f, seen, nil
}

// next is the frame that StrictOrder reads: the one after the last, or the oldest that is still there.
func (r *FrameReader) next(newest uint64) uint64 {
	n := uint64(len(r.slots))
	first := r.last + 1
	if newest-r.last > n {
		first = newest - n + 1
	}
	for seq := first; seq < newest; seq++ {
		if r.block.slots[seq%n].seq.Load() == seq {
			return seq
		}
	}
	return newest
}

// acknowledgePassed acknowledges the frames in front of seq that will not be read, as far as they are still in the ring.
func (r *FrameReader) acknowledgePassed(seq, passed uint64) {
	n := uint64(len(r.slots))
	for back := uint64(1); back <= min(passed, n-1); back++ {
		if s := &r.block.slots[(seq-back)%n]; s.seq.Load() == seq-back {
			r.acknowledge(s)
		}
	}
}

func (r *FrameReader) acknowledge(s *slot) {
	s.ackBitmap.Or(1 << r.sub.Bit) // pairs with the load in awaitACKs
	if r.wake {
		shm.FutexWake(low32(&s.ackBitmap))
	}
}

// Close ends the reader and a Next in progress. The memory stays mapped until the last lease is released. The subscription stays open.
func (r *FrameReader) Close() error {
	r.mu.Lock()
	if r.closed {
		r.mu.Unlock()
		return nil
	}
	r.closed = true
	close(r.ended)
	r.mu.Unlock()
	<-r.gone
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.leases == 0 {
		return r.unmap()
	}
	return nil
}

func (r *FrameReader) unmap() error {
	var err error
	for _, b := range r.slots {
		err = errors.Join(err, b.Close())
	}
	if r.event != nil {
		err = errors.Join(err, r.event.Close())
	}
	return errors.Join(err, r.seg.Close())
}
