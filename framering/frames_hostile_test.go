package framering

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// fakeBuffer is a slot whose descriptor shares something else.
type fakeBuffer struct {
	b []byte
	f *os.File
}

func (b *fakeBuffer) Size() int        { return len(b.b) }
func (b *fakeBuffer) Bytes() []byte    { return b.b }
func (b *fakeBuffer) Pointer() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b.b))) }
func (b *fakeBuffer) FD() int          { return int(b.f.Fd()) }
func (b *fakeBuffer) Close() error     { return b.f.Close() }

// memorySharing makes every slot share what open returns.
type memorySharing struct {
	open func() (*os.File, error)
}

func (m memorySharing) Granularity() int { return 4096 }
func (m memorySharing) Alloc(_ string, size int) (Buffer, error) {
	f, err := m.open()
	if err != nil {
		return nil, err
	}
	return &fakeBuffer{make([]byte, size), f}, nil
}

// Descriptors of the wrong kind, size or seals: an error that says so, nothing mapped, nothing left open, and the next subscriber of
// an honest generation is served.
func TestHostileDescriptors(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	for name, open := range map[string]func() (*os.File, error){
		"a device": func() (*os.File, error) { return os.Open("/dev/zero") },
		"a pipe":   func() (*os.File, error) { r, w, err := os.Pipe(); w.Close(); return r, err },
		"a plain file": func() (*os.File, error) {
			f, err := os.CreateTemp(t.TempDir(), "")
			return f, errors.Join(err, f.Truncate(1<<20))
		},
		"a shared file that can be cut": func() (*os.File, error) {
			f, err := os.CreateTemp("/dev/shm", "cuframes-hostile-")
			return f, errors.Join(err, os.Remove(f.Name()), f.Truncate(1<<20))
		},
		"memory that is too small": func() (*os.File, error) {
			s, err := shm.Memfd("small", 4096)
			if err != nil {
				return nil, err
			}
			defer s.Close()
			return os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", s.File().Fd()), os.O_RDONLY, 0)
		},
	} {
		t.Run(name, func(t *testing.T) {
			p, err := NewPublisher(PublisherOptions{RuntimeDir: dir, Key: key})
			require.NoError(t, err)
			defer p.Close(ReasonNormal)
			_, err = p.StartFrames(FrameOptions{Meta: smallMeta(t, 640), Memory: memorySharing{open}})
			require.NoError(t, err)
			require.NoError(t, p.Serve())
			s, err := Dial(context.Background(), DialOptions{RuntimeDir: dir, Key: key})
			require.NoError(t, err)
			m := &slotsInMemfds{}
			_, err = s.Frames(FrameReaderOptions{Memory: m})
			require.Error(t, err)
			t.Log(err)
			require.Zero(t, m.live.Load())
			require.NoError(t, s.Close())
			_, err = p.StartFrames(FrameOptions{Meta: smallMeta(t, 640), Memory: &slotsInMemfds{}})
			require.NoError(t, err)
			s, r := readFrames(t, dir, key, NewestOnly, WaitShared)
			require.NoError(t, r.Close())
			require.NoError(t, s.Close())
		})
	}
}

// A header that lies about its fields: the subscriber refuses it or reads nothing from it, whatever stands there.
func TestHostileHeader(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	p, w := publishFrames(t, dir, key, FrameOptions{Meta: smallMeta(t, 64), Memory: &slotsInMemfds{}})
	put(t, w)
	h, slots, subs := p.ring.block.hdr, p.ring.block.slots, p.ring.block.subs
	for name, lie := range map[string]func() func(){
		"ring_size 0":    func() func() { h.ringSize = 0; return func() { h.ringSize = 4 } },
		"ring_size 16":   func() func() { h.ringSize = 16; return func() { h.ringSize = 4 } },
		"ring_size 2^60": func() func() { h.ringSize = 1 << 60; return func() { h.ringSize = 4 } },
		"no magic":       func() func() { h.magic.Store(0); return func() { h.magic.Store(MagicV4) } },
		"version":        func() func() { h.protoVersion.Store(9); return func() { h.protoVersion.Store(4) } },
		"width":          func() func() { h.meta[4]++; return func() { h.meta[4]-- } },
		"frame size":     func() func() { h.meta[30] = 0xFF; return func() { h.meta[30] = 0 } },
		"shut down":      func() func() { h.shutdownFlag.Store(7); return func() { h.shutdownFlag.Store(0) } },
		"no such reader": func() func() {
			for i := range subs {
				subs[i].state.Store(0)
			}
			return func() {}
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, err := Dial(context.Background(), DialOptions{RuntimeDir: dir, Key: key})
			require.NoError(t, err)
			defer s.Close()
			undo := lie()
			m := &slotsInMemfds{}
			_, err = s.Frames(FrameReaderOptions{Memory: m})
			undo()
			require.Error(t, err)
			require.Zero(t, m.live.Load())
		})
	}
	// What is read while frames come: numbers that match nothing bring no frame and no crash.
	s, r := readFrames(t, dir, key, StrictOrder, WaitShared)
	for _, seq := range []uint64{0, 2, 77, 1 << 63, invalidSeq - 1, invalidSeq} {
		h.globalSeq.Store(seq)
		for i := range slots {
			slots[i].seq.Store(seq ^ 1<<40)
		}
		_, ok, err := r.TryNext()
		require.NoError(t, err)
		require.False(t, ok, "seq %d", seq)
	}
	require.NoError(t, s.Err())
}

// The frame SHM is cut under both sides: errors, no crash, and the publisher can begin again.
func TestShmCutUnderBothSides(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 20*time.Second)
	dir, key := place(t)
	p, w := publishFrames(t, dir, key, FrameOptions{Meta: smallMeta(t, 64), Memory: &slotsInMemfds{}})
	_, r := readFrames(t, dir, key, NewestOnly, WaitDirect)
	put(t, w)
	f, err := r.Next(context.Background())
	require.NoError(t, err)
	require.NoError(t, os.Truncate(shm.Dir+"/"+ShmName(key), 0))
	require.ErrorIs(t, f.Check(), shm.ErrFault)
	require.ErrorIs(t, f.Release(), shm.ErrFault)
	_, err = r.Next(context.Background())
	require.ErrorIs(t, err, shm.ErrFault)
	_, err = w.Acquire(context.Background())
	require.ErrorIs(t, err, shm.ErrFault)
	require.NoError(t, os.Truncate(shm.Dir+"/"+ShmName(key), blockSize)) // so that the table can be given back
	require.NoError(t, p.Close(ReasonNormal))
}

// A subscriber that fills the whole frame SHM with rubbish: the publisher goes on, in its own numbers, under both policies.
func TestHostileSubscriberScribbles(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 20*time.Second)
	for _, policy := range []Policy{DropOldest, StrictWait} {
		t.Run(policy.String(), func(t *testing.T) {
			dir, key := place(t)
			p, w := publishFrames(t, dir, key, FrameOptions{
				Meta: smallMeta(t, 64), Memory: &slotsInMemfds{}, Policy: policy, RingSize: 2, AckTimeout: 100 * time.Millisecond,
			})
			_, r := readFrames(t, dir, key, NewestOnly, WaitShared)
			seg, err := shm.Open(ShmName(key), shm.OpenOptions{MinSize: blockSize})
			require.NoError(t, err)
			for round, rubbish := range []byte{0xFF, 0, 0x55} {
				words := unsafe.Slice((*uint64)(unsafe.Pointer(unsafe.SliceData(seg.Bytes()))), blockSize/8)
				for i := range words {
					words[i] = uint64(rubbish) * 0x0101010101010101
				}
				for i := range 5 {
					require.EqualValues(t, 5*round+i+1, put(t, w))
				}
			}
			require.NoError(t, seg.Close())
			require.NoError(t, r.Close())
			_, err = p.StartFrames(FrameOptions{Meta: smallMeta(t, 64), Memory: &slotsInMemfds{}})
			require.NoError(t, err)
			s, err := Dial(context.Background(), DialOptions{RuntimeDir: dir, Key: key})
			require.NoError(t, err)
			require.EqualValues(t, 15, s.InitialSeq)
			require.NoError(t, s.Close())
		})
	}
}

// The layouts that a peer may claim: planes beyond the frame, lines beyond the pitch, products that would overflow.
func TestPlanesOfHostileMeta(t *testing.T) {
	good, err := MetaOf(NV12, 1920, 1080)
	require.NoError(t, err)
	require.Equal(t, NV12Meta(1920, 1080), good)
	planes, err := good.Planes()
	require.NoError(t, err)
	require.Equal(t, []Plane{{0, 2048, 1920, 1080}, {2048 * 1080, 2048, 1920, 540}}, planes)
	for name, lie := range map[string]func(m *FrameMeta){
		"no width":       func(m *FrameMeta) { m.Width = 0 },
		"width > pitch":  func(m *FrameMeta) { m.Width = 2049 },
		"huge width":     func(m *FrameMeta) { m.Width = 1 << 31 },
		"huge height":    func(m *FrameMeta) { m.Height = 1<<32 - 1 },
		"odd height":     func(m *FrameMeta) { m.Height = 1081 },
		"huge pitch":     func(m *FrameMeta) { m.PitchUV = 1<<32 - 1 },
		"no pitch":       func(m *FrameMeta) { m.PitchY = 0 },
		"no chroma":      func(m *FrameMeta) { m.PitchUV = 0 },
		"small frame":    func(m *FrameMeta) { m.FrameSize-- },
		"huge frame":     func(m *FrameMeta) { m.FrameSize = 1 << 40 },
		"unknown format": func(m *FrameMeta) { m.Format = 99 },
		"wider format":   func(m *FrameMeta) { m.Format = P010 },
	} {
		m := good
		lie(&m)
		_, err := m.Planes()
		require.ErrorIs(t, err, ErrFormat, name)
	}
	for _, f := range []Format{NV12, P010, YUV420P, RGB24, BGR24, RGBA32, BGRA32, GRAY8, P016} {
		for _, size := range [][2]int{{1, 1}, {321, 179}, {4096, 2160}} {
			m, err := MetaOf(f, size[0], size[1])
			require.NoError(t, err)
			_, err = m.Planes()
			require.NoError(t, err, "%s %v", f, size)
			require.Zero(t, m.PitchY%256)
		}
	}
}
