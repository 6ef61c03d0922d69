package framering

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// Geometry of the frame SHM (§2). The file that we write always has room for 16 slots, as the C struct has, whatever
// ring_size says.
const (
	MaxRingSize     = 16   // frame slots
	MaxSubscribers  = 31   // bits 1…31; bit 0 is a sentinel and never assigned
	subscriberSlots = 32   // entries of the table, the sentinel's included
	blockSize       = 7424 // bytes of the file: sizeof(cuframes_shared_header_t)

	// ControlBytes is what the control block of a key takes of /dev/shm: whole pages.
	ControlBytes = 8 << 10

	headerSize     = 0x100
	slotSize       = 192
	subscriberSize = 128
	fixedTable     = headerSize + MaxRingSize*slotSize // 0x0D00, where subscribers[] begins in the fixed layout
)

// invalidSeq in a slot says that it holds no frame.
const invalidSeq = ^uint64(0)

// header is the beginning of the frame SHM (§2.0). Little-endian, as are the machines this runs on.
//
//	Offset  Size  Field              Comments
//	0x0000     4  magic              0xCC7C1DCE (protocols 1 and 2: 0xCC7C1DCC); stored last, so that who reads it finds the rest in place
//	0x0004     4  proto_version      4; of protocol 2: 1 until there is a packet ring
//	0x0008     4  lib_version_major
//	0x000C     4  lib_version_minor
//	0x0010     4  lib_version_patch
//	0x0014     4  reserved_a         0
//	0x0018     8  producer_pid       for the liveness check
//	0x0020     8  ring_size          0…16; 0 = packet-only publisher
//	0x0028     8  ownership_mode     Ownership
//	0x0030     8  policy             0 = DROP_OLDEST, 1 = STRICT_WAIT
//	0x0038     8  max_subscribers    32
//	0x0040    64  meta               FrameMeta
//	0x0080    64  reserved_events    0 (protocols 1 and 2: ipc_event_handle, a cudaIpcEventHandle_t)
//	0x00C0     8  global_seq         atomic, monotonic
//	0x00C8     8  subscriber_bitmap  atomic, a bit for each subscriber that owes ACKs
//	0x00D0     8  shutdown_flag      atomic, 1 = shutting down
//	0x00D8    40  reserved_b         0
type header struct {
	magic          atomic.Uint32
	protoVersion   atomic.Uint32
	libVersion     [3]uint32
	_              uint32
	producerPID    uint64
	ringSize       uint64
	ownershipMode  uint64
	policy         uint64
	maxSubscribers uint64
	meta           [metaSize]byte
	events         [64]byte
	globalSeq      atomic.Uint64
	bitmap         atomic.Uint64
	shutdownFlag   atomic.Uint64
	_              [40]byte
}

// slot describes one frame (§2.2).
//
//	Offset  Size  Field                Comments
//	0x00       8  seq                  atomic; published seq, UINT64_MAX = invalid
//	0x08       8  pts_ns               atomic, i64
//	0x10       8  ack_bitmap           atomic; bit i = subscriber i has acknowledged
//	0x18       8  written_bytes        for diagnostics, may be 0
//	0x20      64  reserved_mem_handle  0 (protocols 1 and 2: cuda_mem_handle, a cudaIpcMemHandle_t)
//	0x60      32  reserved_external    0 (protocols 1 and 2 with EXTERNAL: cuda_ptr_external, for information)
//	0x80      16  reserved_a           0
//	0x90      48  reserved_b           0
type slot struct {
	seq          atomic.Uint64
	ptsNS        atomic.Int64
	ackBitmap    atomic.Uint64
	writtenBytes atomic.Uint64
	memHandle    [64]byte
	external     [32]byte
	_            [16]byte
	_            [48]byte
}

// subscriberSlot describes one subscriber (§2.3); its index is its bit in subscriber_bitmap.
//
//	Offset  Size  Field          Comments
//	0x00       8  state          atomic; SubscriberState
//	0x08       8  consumer_pid   for the liveness check; 0 = in another PID namespace
//	0x10       8  last_seen_seq  atomic; the last seq acknowledged
//	0x18       8  last_ack_ns    atomic, i64; wall clock of the last ACK
//	0x20      32  consumer_name  ASCII, zero-terminated, at most 31 characters
//	0x40      64  reserved       0
type subscriberSlot struct {
	state       atomic.Uint64
	consumerPID atomic.Uint64
	lastSeenSeq atomic.Uint64
	lastAckNS   atomic.Int64
	name        [4]atomic.Uint64 // 32 bytes; as words, because it is rewritten while others read the table
	_           [64]byte
}

// The compiler proves the tables above: a wrong size or offset is a type mismatch.
var (
	_ [headerSize]byte     = [unsafe.Sizeof(header{})]byte{}
	_ [slotSize]byte       = [unsafe.Sizeof(slot{})]byte{}
	_ [subscriberSize]byte = [unsafe.Sizeof(subscriberSlot{})]byte{}
	_ [blockSize]byte      = [headerSize + MaxRingSize*slotSize + subscriberSlots*subscriberSize]byte{}
	_ [0x0D00]byte         = [fixedTable]byte{}

	_ [0x00]byte = [unsafe.Offsetof(header{}.magic)]byte{}
	_ [0x04]byte = [unsafe.Offsetof(header{}.protoVersion)]byte{}
	_ [0x08]byte = [unsafe.Offsetof(header{}.libVersion)]byte{}
	_ [0x18]byte = [unsafe.Offsetof(header{}.producerPID)]byte{}
	_ [0x20]byte = [unsafe.Offsetof(header{}.ringSize)]byte{}
	_ [0x28]byte = [unsafe.Offsetof(header{}.ownershipMode)]byte{}
	_ [0x30]byte = [unsafe.Offsetof(header{}.policy)]byte{}
	_ [0x38]byte = [unsafe.Offsetof(header{}.maxSubscribers)]byte{}
	_ [0x40]byte = [unsafe.Offsetof(header{}.meta)]byte{}
	_ [0x80]byte = [unsafe.Offsetof(header{}.events)]byte{}
	_ [0xC0]byte = [unsafe.Offsetof(header{}.globalSeq)]byte{}
	_ [0xC8]byte = [unsafe.Offsetof(header{}.bitmap)]byte{}
	_ [0xD0]byte = [unsafe.Offsetof(header{}.shutdownFlag)]byte{}

	_ [0x00]byte = [unsafe.Offsetof(slot{}.seq)]byte{}
	_ [0x08]byte = [unsafe.Offsetof(slot{}.ptsNS)]byte{}
	_ [0x10]byte = [unsafe.Offsetof(slot{}.ackBitmap)]byte{}
	_ [0x18]byte = [unsafe.Offsetof(slot{}.writtenBytes)]byte{}
	_ [0x20]byte = [unsafe.Offsetof(slot{}.memHandle)]byte{}
	_ [0x60]byte = [unsafe.Offsetof(slot{}.external)]byte{}

	_ [0x00]byte = [unsafe.Offsetof(subscriberSlot{}.state)]byte{}
	_ [0x08]byte = [unsafe.Offsetof(subscriberSlot{}.consumerPID)]byte{}
	_ [0x10]byte = [unsafe.Offsetof(subscriberSlot{}.lastSeenSeq)]byte{}
	_ [0x18]byte = [unsafe.Offsetof(subscriberSlot{}.lastAckNS)]byte{}
	_ [0x20]byte = [unsafe.Offsetof(subscriberSlot{}.name)]byte{}
)

// Policy says what a publisher does with a slow subscriber of frames (§6).
type Policy uint64

// DropOldest overwrites, StrictWait waits for the ACKs of all frame subscribers.
const (
	DropOldest Policy = 0
	StrictWait Policy = 1
)

func (p Policy) String() string { return nameOf(p, "policy(%d)", "drop-oldest", "strict-wait") }

// Ownership says whose memory the frames of protocols 1 and 2 lie in; protocol 4 knows the first alone.
type Ownership uint64

// Memory that the publisher allocates, or memory of the program around it that the publisher shares.
const (
	OwnershipLibrary  Ownership = 0
	OwnershipExternal Ownership = 1
)

func (o Ownership) String() string { return nameOf(o, "ownership(%d)", "library", "external") }

// nameOf is the name of a number of the protocol, counted from 0; one that has none is shown in the given form.
func nameOf[T ~uint32 | ~uint64](v T, form string, names ...string) string {
	if uint64(v) < uint64(len(names)) {
		return names[v]
	}
	return fmt.Sprintf(form, uint64(v))
}

// block is the frame SHM seen as structs. The memory is shared and hostile: every field is read once into a copy.
type block struct {
	hdr   *header
	slots []slot // ring_size of them, checked when the block was opened
	subs  *[subscriberSlots]subscriberSlot
}

// blockParams are the constant fields of a new block.
type blockParams struct {
	dialect    *dialect
	libVersion [3]uint32
	pid        uint64
	ringSize   int // 0…16
	packets    bool
	ownership  Ownership
	ipc        *ipcMemory // nil where slots are not shared by handles
	policy     Policy
	meta       FrameMeta
}

// initBlock lays out a new block in mem, which is zero, 8-byte aligned and at least blockSize long.
func initBlock(mem []byte, p blockParams) *block {
	h := (*header)(unsafe.Pointer(unsafe.SliceData(mem)))
	h.protoVersion.Store(p.dialect.announced(p.packets))
	h.libVersion = p.libVersion
	h.producerPID = p.pid
	h.ringSize = uint64(p.ringSize)
	h.ownershipMode = uint64(p.ownership)
	h.policy = uint64(p.policy)
	h.maxSubscribers = subscriberSlots
	p.meta.append(h.meta[:0])
	b := viewBlock(mem, p.ringSize, fixedTable)
	for i := range b.slots {
		b.slots[i].seq.Store(invalidSeq)
	}
	if p.ipc != nil {
		p.ipc.describe(b)
	}
	h.magic.Store(p.dialect.magic) // pairs with the load in openBlock
	return b
}

// viewBlock makes the pointers; the caller has checked that they lie within mem.
func viewBlock(mem []byte, ring, table int) *block {
	base := unsafe.Pointer(unsafe.SliceData(mem))
	return &block{
		hdr:   (*header)(base),
		slots: unsafe.Slice((*slot)(unsafe.Add(base, headerSize)), ring),
		subs:  (*[subscriberSlots]subscriberSlot)(unsafe.Add(base, table)),
	}
}

// openBlock checks a frame SHM written by anyone and returns the view and its dialect. Both layouts are taken: the fixed one
// (subscribers[] behind 16 slots) when mem is that long, and the compact one (behind ring_size slots) when mem is exactly
// that long.
func openBlock(mem []byte) (*block, *dialect, error) {
	if len(mem) < headerSize {
		return nil, nil, fmt.Errorf("frame SHM: %d bytes, shorter than its header: %w", len(mem), ErrProtocol)
	}
	h := (*header)(unsafe.Pointer(unsafe.SliceData(mem)))
	magic := h.magic.Load() // pairs with the store at the end of initBlock
	version, ring := h.protoVersion.Load(), h.ringSize
	d := dialectOf(magic, version)
	if d == nil {
		return nil, nil, &VersionError{Magic: magic, Version: version}
	}
	if ring > MaxRingSize {
		return nil, nil, fmt.Errorf("frame SHM: ring_size %d: %w", ring, ErrProtocol)
	}
	table := fixedTable
	if len(mem) < blockSize {
		table = headerSize + int(ring)*slotSize
		if len(mem) != table+subscriberSlots*subscriberSize {
			return nil, nil, fmt.Errorf("frame SHM: %d bytes do not fit ring_size %d: %w", len(mem), ring, ErrProtocol)
		}
	}
	return viewBlock(mem, int(ring), table), d, nil
}

// VersionError says that a frame SHM is of another protocol version. errors.Is(err, ErrProtocol).
type VersionError struct{ Magic, Version uint32 }

func (e *VersionError) Error() string {
	switch e.Magic {
	case MagicV4, MagicLegacy:
		return fmt.Sprintf("frame SHM: the publisher speaks protocol %d: %s", e.Version, ErrProtocol.Error())
	case MagicPackets:
		return "frame SHM: this is a packet ring: " + ErrProtocol.Error()
	case 0:
		return "frame SHM: not initialised: " + ErrProtocol.Error()
	}
	return fmt.Sprintf("frame SHM: unknown magic %#08x: %s", e.Magic, ErrProtocol.Error())
}

func (e *VersionError) Unwrap() error { return ErrProtocol }
