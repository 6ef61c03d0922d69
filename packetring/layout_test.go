package packetring

import (
	"encoding/hex"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// A ring of two slots and 16 data bytes, typed from the tables of section 10: three packets were published, "ABCDEFGHIJ" (KEY),
// "klmnop" and "QRSTUVWX" (KEY, LAST_IN_AU), of which the second and the third are whole. The third wraps around.
const (
	goldenHeader = `
		cd1d7ccc 04000000  02000000 10000000   magic, proto_version, ring_slots, data_size
		1b000000 05000000  PPPPPPPP 00000000   codec_id, codec_extradata_size, producer_pid
		03000000 00000000  03000000 00000000   global_seq, last_keyframe_seq
		18000000 00000000  00000000 00000000   write_offset, shutdown_flag
		0000000167`
	goldenSlots = `
		02000000 00000000  00ca9a3b 00000000   seq 2, pts_ns 1 s
		ffffffff ffffffff  0a000000 00000000   dts_ns -1, data_offset
		06000000 00000000  00000000 00000000   data_size, flags
		00000000 00000000  00000000 00000000
		03000000 00000000  00943577 00000000   seq 3, pts_ns 2 s
		80f0fa02 00000000  10000000 00000000   dts_ns 50 ms, data_offset
		08000000 09000000  00000000 00000000   data_size, flags
		00000000 00000000  00000000 00000000`
	goldenData = "QRSTUVWXIJklmnop"
)

// bytesOf turns the lines above into bytes: what is no hex digit ends a line.
func bytesOf(t *testing.T, s string, pid uint32) []byte {
	t.Helper()
	le := []byte{byte(pid), byte(pid >> 8), byte(pid >> 16), byte(pid >> 24)}
	s = strings.ReplaceAll(s, "PPPPPPPP", hex.EncodeToString(le))
	var b []byte
	for line := range strings.Lines(s) {
		for _, f := range strings.Fields(line) {
			x, err := hex.DecodeString(f)
			if err != nil {
				break
			}
			b = append(b, x...)
		}
	}
	return b
}

func golden(t *testing.T, pid uint32) []byte {
	t.Helper()
	b := make([]byte, 0x1040+2*64+16)
	copy(b, bytesOf(t, goldenHeader, pid))
	copy(b[0x1040:], bytesOf(t, goldenSlots, pid))
	copy(b[0x1040+2*64:], goldenData)
	return b
}

var goldenPackets = []Packet{
	{Seq: 1, PTS: 500, DTS: 400, Flags: FlagKey, Data: []byte("ABCDEFGHIJ")},
	{Seq: 2, PTS: 1e9, DTS: -1, Data: []byte("klmnop")},
	{Seq: 3, PTS: 2e9, DTS: 5e7, Flags: FlagKey | FlagLastInAU, Data: []byte("QRSTUVWX")},
}

func TestGoldenWrite(t *testing.T) {
	testenv.CheckLeaks(t)
	w := create(t, uniqueKey(t), Config{Slots: 2, DataSize: 16, CodecID: 27, Extradata: []byte{0, 0, 0, 1, 0x67}})
	for _, p := range goldenPackets {
		_, err := w.Publish(p)
		require.NoError(t, err)
	}
	require.Equal(t, golden(t, uint32(os.Getpid())), w.seg.Bytes())
}

// The ring of protocol 2 differs in proto_version alone (§10.3 to §10.8 of its document), and is read as such.
func TestGoldenProtocol2(t *testing.T) {
	testenv.CheckLeaks(t)
	w := create(t, uniqueKey(t), Config{Slots: 2, DataSize: 16, CodecID: 27, Extradata: []byte{0, 0, 0, 1, 0x67}, Protocol: 2})
	for _, p := range goldenPackets {
		_, err := w.Publish(p)
		require.NoError(t, err)
	}
	want := golden(t, uint32(os.Getpid()))
	copy(want[4:], []byte{2, 0, 0, 0})
	require.Equal(t, want, w.seg.Bytes())
	r, err := Open(w.Path(), ReaderOptions{})
	require.NoError(t, err)
	require.EqualValues(t, 2, r.Info().Protocol)
	require.NoError(t, r.Close())
	for _, version := range []uint32{1, 3} { // 1 has no packet ring, 3 no document
		_, err := Create(uniqueKey(t), Config{Protocol: version})
		require.ErrorContains(t, err, "want 2 or 4")
	}
}

// writeRing puts bytes under a fresh ring name.
func writeRing(t testing.TB, b []byte) string {
	t.Helper()
	key := uniqueKey(t)
	path := shm.Dir + "/" + shm.Prefix + key + "-packets"
	require.NoError(t, os.WriteFile(path, b, 0o600))
	t.Cleanup(func() { _ = os.Remove(path) })
	return path
}

func TestGoldenRead(t *testing.T) {
	testenv.CheckLeaks(t)
	// Another implementation locks nothing, so that a packet in flight must be allowed for; here a lock stands in, to read all of it.
	path := writeRing(t, golden(t, 4711))
	r := open(t, path, ReaderOptions{})
	r.c.a.foreign = false
	require.Equal(t, Info{CodecID: 27, Extradata: []byte{0, 0, 0, 1, 0x67}, Slots: 2, DataSize: 16, Protocol: 4, ProducerPID: 4711}, r.Info())
	r.c.want = 2
	r.c.needKey = false
	r.c.a.dst = []byte("dirty dirty dirty dirty")
	for _, want := range goldenPackets[1:] {
		got, ok, err := r.TryNext()
		require.NoError(t, err)
		require.True(t, ok)
		require.Equal(t, want, got)
	}
	_, ok, err := r.TryNext()
	require.NoError(t, err)
	require.False(t, ok)
}

// A file cut at any byte is refused, whatever the header says.
func TestEveryTruncation(t *testing.T) {
	b := heapBytes(len(golden(t, 1)))
	copy(b, golden(t, 1))
	for n := range len(b) {
		_, err := openRing(b[:n])
		require.ErrorIs(t, err, ErrFormat, "%d bytes", n)
	}
	_, err := openRing(b)
	require.NoError(t, err)
}

func TestHostileHeader(t *testing.T) {
	for name, c := range map[string]struct {
		at    int
		bytes []byte
	}{
		"frame ring":         {0, []byte{0xce, 0x1d, 0x7c, 0xcc}},
		"magic not yet":      {0, []byte{0, 0, 0, 0}},
		"protocol 1":         {4, []byte{1, 0, 0, 0}},
		"protocol 5":         {4, []byte{5, 0, 0, 0}},
		"no slots":           {8, []byte{0, 0, 0, 0}},
		"1025 slots":         {8, []byte{1, 4, 0, 0}},
		"a billion slots":    {8, []byte{255, 255, 255, 255}},
		"three slots":        {8, []byte{3, 0, 0, 0}},
		"no data":            {12, []byte{0, 0, 0, 0}},
		"one byte too many":  {12, []byte{17, 0, 0, 0}},
		"4 GiB":              {12, []byte{255, 255, 255, 255}},
		"extradata 4097":     {20, []byte{1, 16, 0, 0}},
		"extradata of 4 GiB": {20, []byte{255, 255, 255, 255}},
	} {
		b := heapBytes(len(golden(t, 1)))
		copy(b, golden(t, 1))
		copy(b[c.at:], c.bytes)
		_, err := openRing(b)
		require.ErrorIs(t, err, ErrFormat, name)
	}
	for _, version := range []byte{2, 3, 4} {
		b := heapBytes(len(golden(t, 1)))
		copy(b, golden(t, 1))
		b[4] = version
		_, err := openRing(b)
		require.NoError(t, err)
	}
}

// A slot or a counter that lies costs packets, nothing else.
func TestHostileSlots(t *testing.T) {
	b := heapBytes(len(golden(t, 1)))
	for name, c := range map[string]struct {
		at    int
		value uint64
	}{
		"offset ahead of the cursor":   {0x1040 + 64 + 0x18, 25},
		"offset at the end of time":    {0x1040 + 64 + 0x18, 1<<64 - 1},
		"offset a turn back":           {0x1040 + 64 + 0x18, 0},
		"payload larger than the ring": {0x1040 + 64 + 0x20, 17},
		"payload of 4 GiB":             {0x1040 + 64 + 0x20, 1<<32 - 1},
		"payload beyond the cursor":    {0x1040 + 64 + 0x20, 9},
		"cursor at the end of time":    {0x30, 1<<64 - 1},
		"cursor back to zero":          {0x30, 0},
		"another seq":                  {0x1040 + 64, 5},
		"seq invalid":                  {0x1040 + 64, 1<<64 - 1},
		"newest seq in the far future": {0x20, 1 << 63},
		"newest seq invalid":           {0x20, 1<<64 - 1},
	} {
		copy(b, golden(t, 1))
		r, err := openRing(b)
		require.NoError(t, err)
		for i := range 8 {
			b[c.at+i] = byte(c.value >> (8 * i))
		}
		k := cursor{a: newAttempt(&r, 1<<20, false), want: 3}
		require.Equal(t, empty, k.next(false), name)
		require.NotZero(t, k.stats.Lost, name)
		require.Zero(t, k.stats.Read, name)
	}
}
