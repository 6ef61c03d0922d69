package packetring

import (
	"context"
	"fmt"
	"math"
	"sync"
	"sync/atomic"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// defaultReadLimit bounds the buffer a reader grows for a stranger's packets: far above any access unit, far below a machine's memory.
const defaultReadLimit = 32 << 20

// ReaderOptions choose how a ring is read. The zero value waits as WaitShared does and goes on after overruns by itself.
type ReaderOptions struct {
	Wait      Wait
	MaxPacket int // larger packets are skipped as lost; 0 = 32 MiB

	// NoData hands out packets without their Data, for who follows the ring alone: nothing is copied, and Stats counts no bytes.
	NoData bool

	// ReportOverruns makes Next and TryNext return ErrOverrun once for each overrun, before the packet that follows it.
	ReportOverruns bool

	// Bell returns a channel on which the writer's side says that there may be a packet, where it has another way than the ring's futex
	// (EVENT_FD of protocols 1 and 2); nil while there is none. WaitShared waits on it then. May be nil.
	Bell func() <-chan struct{}

	stranger bool // a test's: a writer in this process is taken for one elsewhere
}

// Info is what the header says about the stream.
type Info struct {
	CodecID     uint32
	Extradata   []byte // nil until the writer has set it
	Slots       int
	DataSize    int
	Protocol    uint32
	ProducerPID int
}

// Reader reads a ring from a position on. Next, TryNext and Seek are for one goroutine at a time; Close may be called by any, and ends
// a Next that waits.
type Reader struct {
	seg    *shm.Segment
	report bool
	wait   waiting
	locked bool // the writer holds the lock for its life: it wakes, and its death shows

	mapping sync.RWMutex // read-locked by whoever touches the mapping, locked by Close; who comes after sees closing
	closing atomic.Bool

	mu   sync.Mutex // guards what follows; never held asleep
	c    cursor
	ring ring
	out  outcome
	step func() // one c.next; made once, so that Next does not allocate
}

// Open maps the ring at path (absolute, or relative to /dev/shm as in the handshake) for reading and sets the position to SeekLive.
// Errors: os.ErrNotExist, ErrFormat (also while its creator is still filling it in), those of the file.
func Open(path string, o ReaderOptions) (*Reader, error) {
	seg, err := shm.Open(path, shm.OpenOptions{ReadOnly: true, MinSize: headerSize, Populate: o.Wait != WaitShared})
	if err != nil {
		return nil, fmt.Errorf("open packet ring: %w", err)
	}
	limit := o.MaxPacket
	if limit <= 0 {
		limit = defaultReadLimit
	}
	r := &Reader{seg: seg, report: o.ReportOverruns, locked: shm.Locked(seg)}
	guarded := shm.Guard(func() { r.ring, err = openRing(seg.Bytes()) })
	if guarded != nil {
		err = guarded
	}
	if err != nil {
		seg.Close()
		return nil, fmt.Errorf("open packet ring %s: %w", seg.Name(), err)
	}
	orphan := shm.Orphaned(seg) // a ring of ours whose writer died before now: to be read to its end
	r.c.a = newAttempt(&r.ring, uint32(min(limit, math.MaxUint32)), !r.locked && !orphan)
	r.c.noData = o.NoData
	r.step = func() { r.out = r.c.next(r.report) }
	r.wait.init(o.Wait, &r.ring, r.locked)
	if r.wait.bell = o.Bell; !o.stranger {
		r.wait.near = neighbour(seg)
	}
	r.wait.orphan = orphan
	if err := r.Seek(SeekLive); err != nil {
		seg.Close()
		return nil, err
	}
	return r, nil
}

func newAttempt(r *ring, limit uint32, foreign bool) attempt {
	// Rings keep packets of up to a quarter of them, by the defaults; a packet in flight is assumed to be no larger, or no larger
	// than the largest that the ring shows.
	return attempt{ring: r, limit: limit, foreign: foreign, floor: uint64(min(len(r.data)/4, DefaultMaxPacket))}
}

// Next returns the next packet and blocks until there is one. Its Data is valid until the next call of Next, TryNext, Seek or Close.
// After an overrun it goes on at the oldest whole keyframe, with FlagDiscontinuity set and the loss counted in Stats. Errors: the
// context's, ErrShutdown and ErrGone after the last packet of a writer that ended, ErrFault, ErrClosed, ErrOverrun if asked for.
func (r *Reader) Next(ctx context.Context) (Packet, error) {
	r.mapping.RLock()
	defer r.mapping.RUnlock()
	for {
		if err := ctx.Err(); err != nil {
			return Packet{}, err
		}
		orphan := r.wait.orphan // before the look: what the writer published last is handed out first
		p, out, seen, err := r.try()
		switch {
		case err != nil || out == got:
			return p, err
		case out == again:
		case orphan:
			return Packet{}, ErrGone
		default:
			if err := r.wait.wait(ctx, r, seen); err != nil {
				return Packet{}, err
			}
		}
	}
}

// TryNext is Next without blocking: ok is false when there is nothing new. It does not notice a writer that was killed.
func (r *Reader) TryNext() (p Packet, ok bool, err error) {
	r.mapping.RLock()
	defer r.mapping.RUnlock()
	p, out, _, err := r.try()
	return p, out == got, err
}

// try looks at the ring once. seen is the futex word at that moment.
func (r *Reader) try() (p Packet, out outcome, seen uint32, err error) {
	if r.closing.Load() {
		return p, empty, 0, ErrClosed
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := shm.Guard(r.step); err != nil {
		return p, empty, 0, r.failed(err)
	}
	switch r.out {
	case got:
		p = r.c.packet()
	case overrun:
		err = ErrOverrun
	case ended:
		err = ErrShutdown
	}
	return p, r.out, uint32(r.c.seen), err
}

// Seek sets the position. What is skipped does not count as lost.
func (r *Reader) Seek(p Position) error {
	return r.guard(func() { r.c.seek(p) })
}

// Info returns what the header says now.
func (r *Reader) Info() Info {
	i := Info{Slots: len(r.ring.slots), DataSize: len(r.ring.data)}
	_ = r.guard(func() {
		h := r.ring.hdr
		i.CodecID, i.Protocol = h.codecID.Load(), h.version.Load()
		i.ProducerPID = int(min(h.producerPID.Load(), math.MaxInt32))
		i.Extradata = r.ring.extradata()
	})
	return i
}

// Stats returns a snapshot; that of the last packet once the reader is closed.
func (r *Reader) Stats() Stats {
	var s Stats
	if r.guard(func() { s = r.c.stats; s.GlobalSeq = r.ring.newest() }) != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		s = r.c.stats
		s.GlobalSeq = r.c.seen
	}
	return s
}

// guard runs f, which touches the mapping and the position.
func (r *Reader) guard(f func()) error {
	if r.closing.Load() {
		return ErrClosed
	}
	r.mapping.RLock()
	defer r.mapping.RUnlock()
	if r.closing.Load() { // it may be gone since the first look
		return ErrClosed
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := shm.Guard(f); err != nil {
		return r.failed(err)
	}
	return nil
}

func (r *Reader) failed(err error) error {
	return fmt.Errorf("read packet ring %s: %w", r.seg.Name(), err)
}

// Close ends a Next that waits and unmaps the ring. It is idempotent.
func (r *Reader) Close() error {
	r.closing.Store(true)
	r.wait.interrupt(r)
	defer r.mapping.Unlock()
	return r.seg.Close()
}
