package framering

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// unhex reads hexadecimal text with blanks and line breaks in it.
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.Join(strings.Fields(s), ""))
	require.NoError(t, err)
	return b
}

// aligned returns n zero bytes at an address that is a multiple of 8, as a mapping is.
func aligned(n int) []byte {
	w := make([]uint64, (n+7)/8)
	return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(w))), n)
}

// goldenHeader is the beginning of a frame SHM, typed from the table of §2.0: library 0.4.0, pid 0x1234, 4 slots,
// strict-wait, NV12 1920×1080.
const goldenHeader = `
	CE 1D 7C CC  04 00 00 00  00 00 00 00  04 00 00 00
	00 00 00 00  00 00 00 00  34 12 00 00  00 00 00 00
	04 00 00 00  00 00 00 00  00 00 00 00  00 00 00 00
	01 00 00 00  00 00 00 00  20 00 00 00  00 00 00 00
	00 00 00 00  80 07 00 00  38 04 00 00  00 08 00 00
	00 08 00 00  0C 00 00 00  00 A0 32 00  00 00 00 00
	00 00 00 00  00 00 00 00  00 00 00 00  00 00 00 00
	00 00 00 00  00 00 00 00  00 00 00 00  00 00 00 00`

func TestConformanceLayout(t *testing.T) {
	// The skeleton of §8; the compiler proves more in layout.go.
	require.EqualValues(t, 0xCC7C1DCE, MagicV4)
	require.EqualValues(t, 4, protocol4.version)
	require.EqualValues(t, 0x0000, unsafe.Offsetof(header{}.magic))
	require.EqualValues(t, 0x0004, unsafe.Offsetof(header{}.protoVersion))
	require.EqualValues(t, 0x0040, unsafe.Offsetof(header{}.meta))
	require.EqualValues(t, 0x00C0, unsafe.Offsetof(header{}.globalSeq))
	require.EqualValues(t, 192, unsafe.Sizeof(slot{}))
	require.EqualValues(t, 128, unsafe.Sizeof(subscriberSlot{}))
	require.Equal(t, 7424, blockSize)
}

func TestHeaderGolden(t *testing.T) {
	mem := aligned(blockSize)
	initBlock(mem, blockParams{
		dialect: &protocol4, libVersion: [3]uint32{0, 4, 0}, pid: 0x1234, ringSize: 4, policy: StrictWait, meta: NV12Meta(1920, 1080),
	})
	want := aligned(blockSize)
	copy(want, unhex(t, goldenHeader))
	for i := range 4 {
		copy(want[0x100+i*192:], bytes.Repeat([]byte{0xFF}, 8)) // seq: no frame
	}
	require.Equal(t, want, mem)
}

func TestHeaderReadsBothLayouts(t *testing.T) {
	for _, c := range []struct {
		name        string
		size, table int
		ring        byte
		fails       bool
	}{
		{name: "fixed", size: 7424, table: 0x0D00, ring: 4},
		{name: "fixed in a page", size: 8192, table: 0x0D00, ring: 4},
		{name: "compact", size: 0x100 + 4*192 + 32*128, table: 0x100 + 4*192, ring: 4},
		{name: "compact with one slot", size: 0x100 + 192 + 32*128, table: 0x100 + 192, ring: 1},
		{name: "16 slots: both are one", size: 7424, table: 0x0D00, ring: 16},
		{name: "packet-only", size: 7424, table: 0x0D00, ring: 0},
		{name: "compact of another size", size: 0x100 + 5*192 + 32*128, ring: 4, fails: true},
		{name: "one byte short", size: 7423, ring: 16, fails: true},
		{name: "17 slots", size: 7424, ring: 17, fails: true},
		{name: "header alone", size: 0x100, ring: 0, fails: true},
		{name: "half a header", size: 0x80, ring: 0, fails: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			mem := aligned(c.size)
			copy(mem, unhex(t, goldenHeader))
			mem[0x20] = c.ring
			b, d, err := openBlock(mem)
			if c.fails {
				require.ErrorIs(t, err, ErrProtocol)
				return
			}
			require.NoError(t, err)
			require.Equal(t, &protocol4, d)
			require.Len(t, b.slots, int(c.ring))
			// Fields of slots and subscribers are written where the tables say and read through the view.
			binary.LittleEndian.PutUint64(mem[0xC0:], 77)
			require.EqualValues(t, 77, b.hdr.globalSeq.Load())
			entry := mem[c.table+9*128:]
			copy(entry, unhex(t, `02 00000000000000 3930000000000000 0807060504030201 FEFFFFFFFFFFFFFF`))
			copy(entry[0x20:], "recorder")
			require.Equal(t, SubscriberSlot{
				Bit: 9, State: SubscriberActive, PID: 12345, LastSeenSeq: 0x0102030405060708, LastAckNS: -2, Name: "recorder",
			}, b.subscriber(9))
			if c.ring > 0 {
				last := int(c.ring) - 1
				copy(mem[0x100+last*192:], unhex(t, `0A00000000000000 0B00000000000000 0C00000000000000 0D00000000000000`))
				require.Equal(t, SlotInfo{Seq: 10, PTS: 11, AckBitmap: 12, WrittenBytes: 13, Valid: true}, b.slot(last))
			}
		})
	}
}

func TestHeaderOfAnotherVersion(t *testing.T) {
	for name, c := range map[string]struct {
		magic, version uint32
		says           string
	}{
		"legacy":          {MagicLegacy, 3, "speaks protocol 3"},
		"legacy with 4":   {MagicLegacy, 4, "speaks protocol 4"},
		"v4 with 2":       {MagicV4, 2, "speaks protocol 2"},
		"v4 with 1":       {MagicV4, 1, "speaks protocol 1"},
		"v4 with 0":       {MagicV4, 0, "speaks protocol 0"},
		"future":          {MagicV4, 5, "speaks protocol 5"},
		"packets":         {MagicPackets, 4, "packet ring"},
		"not initialised": {0, 4, "not initialised"},
		"garbage":         {0x12345678, 4, "unknown magic"},
	} {
		t.Run(name, func(t *testing.T) {
			mem := aligned(blockSize)
			copy(mem, unhex(t, goldenHeader))
			binary.LittleEndian.PutUint32(mem[0:], c.magic)
			binary.LittleEndian.PutUint32(mem[4:], c.version)
			_, _, err := openBlock(mem)
			require.ErrorIs(t, err, ErrProtocol)
			require.ErrorContains(t, err, c.says)
			var v *VersionError
			require.True(t, errors.As(err, &v))
			require.Equal(t, VersionError{c.magic, c.version}, *v)
		})
	}
}

func TestHeaderSnapshot(t *testing.T) {
	mem := aligned(blockSize)
	copy(mem, unhex(t, goldenHeader))
	binary.LittleEndian.PutUint64(mem[0xC0:], 5)
	binary.LittleEndian.PutUint64(mem[0xC8:], 0b1010)
	binary.LittleEndian.PutUint64(mem[0xD0:], 1)
	b, _, err := openBlock(mem)
	require.NoError(t, err)
	require.Equal(t, Header{
		Version: 4, LibVersion: [3]uint32{0, 4, 0}, ProducerPID: 0x1234, RingSize: 4, Policy: StrictWait, MaxSubscribers: 32,
		Meta:      FrameMeta{Format: NV12, Width: 1920, Height: 1080, PitchY: 2048, PitchUV: 2048, BitsPerPixel: 12, FrameSize: 3317760},
		GlobalSeq: 5, SubscriberBitmap: 0b1010, ShutDown: true,
	}, b.header())
}

func TestFrameMetaCheck(t *testing.T) {
	ok := NV12Meta(2304, 1296)
	require.NoError(t, ok.Check())
	for name, spoil := range map[string]func(*FrameMeta){
		"no width":            func(m *FrameMeta) { m.Width = 0 },
		"no height":           func(m *FrameMeta) { m.Height = 0 },
		"huge height":         func(m *FrameMeta) { m.Height = 1 << 31 },
		"no pitch":            func(m *FrameMeta) { m.PitchY = 0 },
		"huge pitch":          func(m *FrameMeta) { m.PitchY = 1 << 30 },
		"planes over the end": func(m *FrameMeta) { m.FrameSize = 2303 * 1296 },
		"huge frame":          func(m *FrameMeta) { m.FrameSize = 1 << 40 },
	} {
		m := ok
		spoil(&m)
		require.ErrorIs(t, m.Check(), ErrFormat, name)
	}
	require.EqualValues(t, 3317760, NV12Meta(1920, 1080).FrameSize)
}
