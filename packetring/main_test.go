package packetring

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// roles are what the test binary can be as its own child process.
var roles = testenv.Roles{}

func TestMain(m *testing.M) { roles.Main(m) }

var keys atomic.Int64

// uniqueKey returns a key that no other test uses, and checks at the end that nothing of it stays in /dev/shm.
func uniqueKey(t testing.TB) string {
	t.Helper()
	key := fmt.Sprintf("test-%d-%d", os.Getpid(), keys.Add(1))
	t.Cleanup(func() {
		entries, _ := os.ReadDir(shm.Dir)
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), shm.Prefix+key+"-packets") {
				if !t.Failed() {
					t.Errorf("left in %s: %s", shm.Dir, e.Name())
				}
				_ = os.Remove(shm.Dir + "/" + e.Name())
			}
		}
	})
	return key
}

func create(t testing.TB, key string, c Config) *Writer {
	t.Helper()
	w, err := Create(key, c)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, w.Close()) })
	return w
}

func open(t testing.TB, path string, o ReaderOptions) *Reader {
	t.Helper()
	r, err := Open(path, o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// heapRing returns a ring on the heap, where the race detector sees it.
func heapRing(slots, dataSize uint32, c Config) *ring {
	r := layRing(heapBytes(int(fileSize(slots, dataSize))), slots, dataSize)
	initRing(&r, c)
	return &r
}

// heapBytes returns zeroed, 8-byte aligned memory.
func heapBytes(n int) []byte {
	words := make([]uint64, n/8+1)
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), n)
}

// Self-checking payloads: seq, then length, then bytes that follow from seq, then a checksum over all of it.
const minPayload = 16

//go:norace
func payload(dst []byte, seq uint64, n int) []byte {
	n = max(n, minPayload)
	dst = append(dst[:0], make([]byte, n)...)
	binary.LittleEndian.PutUint64(dst, seq)
	binary.LittleEndian.PutUint32(dst[8:], uint32(n))
	x := seq*0x9E3779B97F4A7C15 + 1
	for i := 12; i < n-4; i++ {
		x ^= x << 13
		x ^= x >> 7
		x ^= x << 17
		dst[i] = byte(x)
	}
	binary.LittleEndian.PutUint32(dst[n-4:], crc32.ChecksumIEEE(dst[:n-4]))
	return dst
}

// checkPacket returns an error when p is not, byte for byte, what payload and stamp made for its seq.
func checkPacket(p Packet) error {
	b := p.Data
	if len(b) < minPayload {
		return fmt.Errorf("seq %d: %d bytes", p.Seq, len(b))
	}
	seq, n := binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:])
	switch {
	case seq != p.Seq:
		return fmt.Errorf("seq %d: payload of seq %d", p.Seq, seq)
	case int(n) != len(b):
		return fmt.Errorf("seq %d: %d bytes instead of %d", p.Seq, len(b), n)
	case crc32.ChecksumIEEE(b[:n-4]) != binary.LittleEndian.Uint32(b[n-4:]):
		return fmt.Errorf("seq %d: torn payload", p.Seq)
	}
	want := stamp(seq)
	if p.PTS != want.PTS || p.DTS != want.DTS || p.Flags&^FlagDiscontinuity != want.Flags {
		return fmt.Errorf("seq %d: torn fields: pts %d, dts %d, flags %v", p.Seq, p.PTS, p.DTS, p.Flags)
	}
	return nil
}

const keyEvery = 7

// stamp returns the fields of a packet, which follow from its seq.
func stamp(seq uint64) Packet {
	p := Packet{Seq: seq, PTS: int64(seq)*1000 + 1, DTS: int64(seq)*1000 - 500, Flags: FlagLastInAU}
	if seq%keyEvery == 1 {
		p.Flags |= FlagKey
	}
	return p
}

// publishNext publishes the packet that follows, n bytes long.
func publishNext(t testing.TB, w *Writer, n int) uint64 {
	t.Helper()
	seq := w.GlobalSeq() + 1
	p := stamp(seq)
	p.Data = payload(nil, seq, n)
	got, err := w.Publish(p)
	require.NoError(t, err)
	require.Equal(t, seq, got)
	return seq
}

// sizes is a mix of small and large packets, up to limit bytes.
func sizes(rnd *rand.Rand, limit int) int {
	if rnd.IntN(8) == 0 {
		return minPayload + rnd.IntN(limit-minPayload+1)
	}
	return minPayload + rnd.IntN(limit/8)
}

func watch(t testing.TB, what string, f func() bool) {
	t.Helper()
	patience := testenv.Slow(10 * time.Second)
	for deadline := time.Now().Add(patience); !f(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}
