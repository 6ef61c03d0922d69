package packetring

import (
	"fmt"
	"sync/atomic"
	"unsafe"
)

// The ring file, /dev/shm/cuframes-KEY-packets (cuframes protocol 4, section 10.2 and 10.4). Little-endian.
//
//	offset        size    field
//	0x0000           4    magic                  0xCC7C1DCD, stored last by the creator
//	0x0004           4    proto_version          4 (2 in the legacy dialect)
//	0x0008           4    ring_slots             N, 1..1024
//	0x000C           4    data_size              D, bytes of data[]
//	0x0010           4    codec_id               FFmpeg's AV_CODEC_ID_*
//	0x0014           4    codec_extradata_size   ≤ 4096; stored after the bytes
//	0x0018           8    producer_pid
//	0x0020           8    global_seq             atomic; newest packet, the first one is 1; futex word: its low 32 bits
//	0x0028           8    last_keyframe_seq      atomic; 0: none yet
//	0x0030           8    write_offset           atomic; cursor in data[] that only grows
//	0x0038           8    shutdown_flag          atomic; 1: no packet will follow
//	0x0040        4096    codec_extradata
//	0x1040        N×64    slots[N]               packet seq stands in slots[seq % N]
//	0x1040+N×64      D    data[]                 cursor c is data[c % D]
//
//	slot          size    field
//	0x00             8    seq                    atomic; UINT64_MAX: invalid
//	0x08             8    pts_ns                 signed
//	0x10             8    dts_ns                 signed
//	0x18             8    data_offset            cursor of the first payload byte
//	0x20             4    data_size              payload bytes
//	0x24             4    flags                  bit 0 KEY, 1 CORRUPT, 2 DISCONTINUITY, 3 LAST_IN_AU
//	0x28            24    reserved               0
type header struct {
	magic         atomic.Uint32
	version       atomic.Uint32
	slots         atomic.Uint32
	dataSize      atomic.Uint32
	codecID       atomic.Uint32
	extradataSize atomic.Uint32
	producerPID   atomic.Uint64
	globalSeq     atomic.Uint64
	lastKeyframe  atomic.Uint64
	writeOffset   atomic.Uint64
	shutdown      atomic.Uint64
	extradata     [maxExtradata]byte
}

type slot struct {
	seq    atomic.Uint64
	pts    atomic.Int64
	dts    atomic.Int64
	offset atomic.Uint64
	size   atomic.Uint32
	flags  atomic.Uint32
	_      [24]byte
}

const (
	magic = 0xCC7C1DCD
	// MaxSlots is the most packets that a ring can hold (section 10.2).
	MaxSlots = 1024

	maxExtradata = 4096 // the room in the header

	headerSize = 0x1040
	slotSize   = 64

	invalidSeq = 1<<64 - 1
	maxSeq     = invalidSeq - 2 // a larger global_seq is a lie, and seq + 1 must not wrap or be invalid
)

// The layout, proven by the compiler.
var (
	_ [headerSize]byte = [unsafe.Sizeof(header{})]byte{}
	_ [slotSize]byte   = [unsafe.Sizeof(slot{})]byte{}
	_ [0x00]byte       = [unsafe.Offsetof(header{}.magic)]byte{}
	_ [0x04]byte       = [unsafe.Offsetof(header{}.version)]byte{}
	_ [0x08]byte       = [unsafe.Offsetof(header{}.slots)]byte{}
	_ [0x0C]byte       = [unsafe.Offsetof(header{}.dataSize)]byte{}
	_ [0x10]byte       = [unsafe.Offsetof(header{}.codecID)]byte{}
	_ [0x14]byte       = [unsafe.Offsetof(header{}.extradataSize)]byte{}
	_ [0x18]byte       = [unsafe.Offsetof(header{}.producerPID)]byte{}
	_ [0x20]byte       = [unsafe.Offsetof(header{}.globalSeq)]byte{}
	_ [0x28]byte       = [unsafe.Offsetof(header{}.lastKeyframe)]byte{}
	_ [0x30]byte       = [unsafe.Offsetof(header{}.writeOffset)]byte{}
	_ [0x38]byte       = [unsafe.Offsetof(header{}.shutdown)]byte{}
	_ [0x40]byte       = [unsafe.Offsetof(header{}.extradata)]byte{}
	_ [0x00]byte       = [unsafe.Offsetof(slot{}.seq)]byte{}
	_ [0x08]byte       = [unsafe.Offsetof(slot{}.pts)]byte{}
	_ [0x10]byte       = [unsafe.Offsetof(slot{}.dts)]byte{}
	_ [0x18]byte       = [unsafe.Offsetof(slot{}.offset)]byte{}
	_ [0x20]byte       = [unsafe.Offsetof(slot{}.size)]byte{}
	_ [0x24]byte       = [unsafe.Offsetof(slot{}.flags)]byte{}
)

// fileSize returns the bytes of a ring; it cannot overflow for any u32 arguments.
func fileSize(slots, dataSize uint32) uint64 {
	return headerSize + uint64(slots)*slotSize + uint64(dataSize)
}

// ring is a view of a ring's memory whose geometry was checked: no index computed from it leaves the memory.
type ring struct {
	hdr   *header
	slots []slot // N of them
	data  []byte // D bytes, D ≥ 1
}

// layRing returns the view of mem as a ring of the given geometry. mem is 8-byte aligned and at least fileSize long.
func layRing(mem []byte, slots, dataSize uint32) ring {
	base := unsafe.Pointer(unsafe.SliceData(mem))
	begin := headerSize + uint64(slots)*slotSize
	return ring{
		hdr:   (*header)(base),
		slots: unsafe.Slice((*slot)(unsafe.Add(base, headerSize)), slots),
		data:  mem[begin : begin+uint64(dataSize) : begin+uint64(dataSize)],
	}
}

// openRing checks what a stranger's header says, each field read once, against the size of the file.
func openRing(mem []byte) (ring, error) {
	if len(mem) < headerSize {
		return ring{}, fmt.Errorf("%w: %d bytes, the header alone has %d", ErrFormat, len(mem), headerSize)
	}
	hdr := (*header)(unsafe.Pointer(unsafe.SliceData(mem)))
	if m := hdr.magic.Load(); m != magic {
		return ring{}, fmt.Errorf("%w: magic %#x, want %#x", ErrFormat, m, uint32(magic))
	}
	if v := hdr.version.Load(); v < 2 || v > 4 { // the same layout from protocol 2 on
		return ring{}, fmt.Errorf("%w: protocol %d, want 2 to 4", ErrFormat, v)
	}
	slots, dataSize := hdr.slots.Load(), hdr.dataSize.Load()
	if slots < 1 || slots > MaxSlots {
		return ring{}, fmt.Errorf("%w: %d slots, want 1 to %d", ErrFormat, slots, MaxSlots)
	}
	if dataSize < 1 || fileSize(slots, dataSize) > uint64(len(mem)) {
		return ring{}, fmt.Errorf("%w: %d slots and %d data bytes in a file of %d bytes", ErrFormat, slots, dataSize, len(mem))
	}
	if n := hdr.extradataSize.Load(); n > maxExtradata {
		return ring{}, fmt.Errorf("%w: %d bytes of extradata, want at most %d", ErrFormat, n, maxExtradata)
	}
	return layRing(mem, slots, dataSize), nil
}
