package packetring

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"time"
	"unsafe"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// Defaults of Config (section 10.12 of protocol 2).
const (
	DefaultSlots     = 64
	DefaultDataSize  = 8 << 20
	DefaultMaxPacket = 2 << 20
)

// Config describes a new ring. The zero value is a ring of protocol 4 with 64 slots and 8 MiB, for its owner alone.
type Config struct {
	Slots     int         // 1..1024; 0 = DefaultSlots
	DataSize  int         // bytes, below 4 GiB; 0 = DefaultDataSize
	MaxPacket int         // bytes, at most DataSize; 0 = DefaultMaxPacket, or DataSize where that is less
	CodecID   uint32      // AV_CODEC_ID_*
	Extradata []byte      // at most 4096 bytes; may be set later, see Writer.SetExtradata
	Protocol  uint32      // 2 or 4; 0 = 4
	Mode      os.FileMode // 0 = 0600, or 0660 with a GID
	GID       int         // group of the file; 0 = the process's own
}

func (c Config) withDefaults() (Config, error) {
	if c.Slots == 0 {
		c.Slots = DefaultSlots
	}
	if c.DataSize == 0 {
		c.DataSize = DefaultDataSize
	}
	if c.MaxPacket == 0 {
		c.MaxPacket = min(DefaultMaxPacket, c.DataSize)
	}
	if c.Protocol == 0 {
		c.Protocol = 4
	}
	switch {
	case c.Slots < 1 || c.Slots > MaxSlots:
		return c, fmt.Errorf("%d slots, want 1 to %d", c.Slots, MaxSlots)
	case c.DataSize < 1 || c.DataSize > math.MaxUint32:
		return c, fmt.Errorf("%d data bytes, want 1 to %d", c.DataSize, uint32(math.MaxUint32))
	case c.MaxPacket < 1 || c.MaxPacket > c.DataSize:
		return c, fmt.Errorf("packets of %d bytes in a ring of %d", c.MaxPacket, c.DataSize)
	case len(c.Extradata) > maxExtradata:
		return c, fmt.Errorf("%d bytes of extradata, want at most %d", len(c.Extradata), maxExtradata)
	case c.Protocol != 2 && c.Protocol != 4:
		return c, fmt.Errorf("protocol %d, want 2 or 4", c.Protocol)
	}
	return c, nil
}

// Writer owns a ring. Its methods may be called from any goroutine; packets are published one at a time.
type Writer struct {
	seg       *shm.Segment
	maxPacket int

	mu      sync.Mutex
	x       publication // also holds the writer's own seq and cursor: what readers can write to is not read back
	publish func()      // x's steps; made once, so that Publish does not allocate
	stats   WriterStats
	lastKey uint64
	closed  bool

	bell    shm.Bell // for readers in this process
	moveOut func()

	extradata []byte
}

// WriterStats counts what a writer has published.
type WriterStats struct {
	Packets, Keyframes, Bytes uint64
	Oversized                 uint64 // packets refused
}

// Size is how many bytes of /dev/shm a ring of this configuration takes.
func (c Config) Size() (int64, error) {
	c, err := c.withDefaults()
	if err != nil {
		return 0, fmt.Errorf("packet ring: %w", err)
	}
	return int64(fileSize(uint32(c.Slots), uint32(c.DataSize))), nil
}

// Create makes the ring of a key and owns it until Close or the end of the process. It returns ErrExists when a living writer holds
// the key, and an error that names the sizes when /dev/shm has no room (*shm.SpaceError). It does not block.
func Create(key string, c Config) (*Writer, error) {
	if !shm.ValidKey(key) {
		return nil, fmt.Errorf("create packet ring: key %.100q: want 1 to %d of a-z, A-Z, 0-9, _ and -", key, shm.MaxKey)
	}
	c, err := c.withDefaults()
	if err != nil {
		return nil, fmt.Errorf("create packet ring %s: %w", key, err)
	}
	slots, dataSize := uint32(c.Slots), uint32(c.DataSize)
	name := shm.PacketName(key)
	seg, err := shm.CreateLocked(name, int(fileSize(slots, dataSize)), shm.CreateOptions{
		Mode: c.Mode, GID: c.GID, Foreign: func(old []byte) bool { return foreignAlive(name, old) },
	})
	if err != nil {
		return nil, fmt.Errorf("create packet ring %s: %w", key, err)
	}
	w := &Writer{seg: seg, maxPacket: c.MaxPacket, extradata: bytes.Clone(c.Extradata)}
	w.x.ring = new(ring)
	*w.x.ring = layRing(seg.Bytes(), slots, dataSize)
	initRing(w.x.ring, c)
	w.publish = func() {
		for w.x.next() {
		}
	}
	w.moveOut = moveIn(w)
	return w, nil
}

// initRing fills in the header of zeroed memory, the magic last.
func initRing(r *ring, c Config) {
	for i := range r.slots {
		r.slots[i].seq.Store(invalidSeq)
	}
	h := r.hdr
	h.version.Store(c.Protocol)
	h.slots.Store(uint32(len(r.slots)))
	h.dataSize.Store(uint32(len(r.data)))
	h.codecID.Store(c.CodecID)
	h.producerPID.Store(uint64(os.Getpid()))
	r.setExtradata(c.Extradata)
	h.magic.Store(magic) // releases all of it to openRing
}

// foreignAlive judges a ring that nobody locks: its writer is another implementation, and its process id is all there is to ask,
// which is worth something only while that process maps the ring.
func foreignAlive(name string, old []byte) bool {
	if len(old) < 0x40 || binary.LittleEndian.Uint32(old) != magic || binary.LittleEndian.Uint64(old[0x38:]) != 0 {
		return false
	}
	pid := binary.LittleEndian.Uint64(old[0x18:])
	return pid <= math.MaxInt32 && shm.ProcessMaps(int(pid), name)
}

// Path returns the ring's name relative to /dev/shm, as the handshake carries it.
func (w *Writer) Path() string { return w.seg.Name() }

// Publish puts a packet into the ring, over the oldest ones where there is no room, wakes the readers, and returns its seq. p.Data is
// copied; p.Seq is ignored. It never blocks on readers and does not allocate. Errors: ErrOversized, ErrClosed, ErrFault.
func (w *Writer) Publish(p Packet) (uint64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return 0, ErrClosed
	}
	if len(p.Data) > w.maxPacket {
		w.stats.Oversized++
		return 0, fmt.Errorf("publish: %w: %d bytes, at most %d", ErrOversized, len(p.Data), w.maxPacket)
	}
	w.x.begin(p)
	err := shm.Guard(w.publish)
	w.x.end()
	if err != nil {
		return 0, fmt.Errorf("publish: %w", err)
	}
	// Always: whether somebody sleeps is known to nobody but the kernel, and the call costs less than a microsecond.
	shm.FutexWake(w.futex())
	w.bell.Ring()
	w.x.ring.expect(w.x.seq+1, w.x.off, len(p.Data))
	w.stats.Packets++
	w.stats.Bytes += uint64(len(p.Data))
	if p.Flags&FlagKey != 0 {
		w.lastKey = w.x.seq
		w.stats.Keyframes++
	}
	return w.x.seq, nil
}

// futex returns the word that readers sleep on.
func (w *Writer) futex() *uint32 { return w.x.ring.futex() }

// futex returns the low half of global_seq.
func (r *ring) futex() *uint32 { return (*uint32)(unsafe.Pointer(&r.hdr.globalSeq)) }

// SetExtradata stores the codec's parameter sets: any number of times before the first packet, once after it when there were none
// (section 10.3). Later it accepts what it has already and returns ErrExtradataFixed for anything else.
func (w *Writer) SetExtradata(b []byte) error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return ErrClosed
	}
	if len(b) > maxExtradata {
		return fmt.Errorf("set extradata: %d bytes, at most %d", len(b), maxExtradata)
	}
	if w.x.seq > 0 && len(w.extradata) > 0 {
		if !bytes.Equal(w.extradata, b) {
			return fmt.Errorf("set extradata: %w", ErrExtradataFixed)
		}
		return nil
	}
	if err := shm.Guard(func() { w.x.ring.setExtradata(b) }); err != nil {
		return fmt.Errorf("set extradata: %w", err)
	}
	w.extradata = bytes.Clone(b)
	return nil
}

// GlobalSeq returns the seq of the newest packet; 0: none.
func (w *Writer) GlobalSeq() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.x.seq
}

// LastKeyframeSeq returns the seq of the newest keyframe; 0: none. It is the initial_packet_seq of the handshake.
func (w *Writer) LastKeyframeSeq() uint64 {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lastKey
}

// Stats returns a snapshot.
func (w *Writer) Stats() WriterStats {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.stats
}

// Close tells the readers that nothing will come any more, and removes the ring's name. Readers keep what they have mapped and read
// it to the end. It is idempotent.
func (w *Writer) Close() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil
	}
	w.closed = true
	err := shm.Guard(func() { w.x.ring.hdr.shutdown.Store(1) })
	if err == nil {
		// The flag is not the futex word, so a reader that is between its look at the flag and its sleep misses a wake. It looks
		// again by itself (waitLocked); the second wake spares it most of that time.
		shm.FutexWake(w.futex())
		w.bell.Ring()
		time.Sleep(time.Millisecond)
		shm.FutexWake(w.futex())
		w.bell.Ring()
	}
	w.moveOut()
	return errors.Join(err, w.seg.Close())
}
