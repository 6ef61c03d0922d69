package framering

import (
	"context"
	"encoding/binary"
	"fmt"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// eventInMemory is an IPCEvent without a GPU.
type eventInMemory struct {
	handle  [64]byte
	records []uintptr
	waits   []uintptr
	fail    error
	close   func()
}

func (e *eventInMemory) Handle() [64]byte { return e.handle }
func (e *eventInMemory) Record(s uintptr) error {
	e.records = append(e.records, s)
	return e.fail
}
func (e *eventInMemory) WaitOn(s uintptr) error {
	e.waits = append(e.waits, s)
	return e.fail
}
func (e *eventInMemory) Close() error {
	if e.close != nil {
		e.close()
	}
	return nil
}

// ipcInMemory is IPCMemory and IPCImporter on memory of this process: the handle holds its number. The memory is no Go memory, whose
// accesses the race detector would have to see ordered.
type ipcInMemory struct {
	t testing.TB
	slotsInMemfds
	buffers [][]byte
	events  []*eventInMemory
	short   bool
}

type ipcBuffer struct {
	m *ipcInMemory
	b []byte
}

func (b *ipcBuffer) Size() int        { return len(b.b) }
func (b *ipcBuffer) Bytes() []byte    { return b.b }
func (b *ipcBuffer) Pointer() uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b.b))) }
func (b *ipcBuffer) FD() int          { return -1 }
func (b *ipcBuffer) Close() error {
	b.m.live.Add(-1)
	return nil
}

func (m *ipcInMemory) AllocIPC(size int) (Buffer, [64]byte, error) {
	var h [64]byte
	if m.fails() {
		return nil, h, errNoMore
	}
	seg, err := shm.Memfd("frames", size)
	if err != nil {
		return nil, h, err
	}
	m.t.Cleanup(func() { seg.Close() })
	m.live.Add(1)
	m.buffers = append(m.buffers, seg.Bytes())
	binary.LittleEndian.PutUint64(h[8:], uint64(len(m.buffers)))
	return &ipcBuffer{m, m.buffers[len(m.buffers)-1]}, h, nil
}

func (m *ipcInMemory) ShareIPC(_ uintptr, size int) (Buffer, [64]byte, error) {
	return m.AllocIPC(size)
}

func (m *ipcInMemory) NewIPCEvent() (IPCEvent, error) {
	if m.fails() {
		return nil, errNoMore
	}
	m.live.Add(1)
	e := &eventInMemory{handle: handleFrom(byte(len(m.events))), close: func() { m.live.Add(-1) }}
	m.events = append(m.events, e)
	return e, nil
}

func (m *ipcInMemory) OpenIPC(h [64]byte, size int) (Buffer, error) {
	if m.fails() {
		return nil, errNoMore
	}
	i := int(binary.LittleEndian.Uint64(h[8:])) - 1
	b := m.buffers[i]
	if m.short {
		b = b[:16]
	}
	m.live.Add(1)
	return &ipcBuffer{m, b}, nil
}

func (m *ipcInMemory) OpenIPCEvent(h [64]byte) (IPCEvent, error) {
	if m.fails() {
		return nil, errNoMore
	}
	m.live.Add(1)
	e := &eventInMemory{handle: h, close: func() { m.live.Add(-1) }}
	m.events = append(m.events, e)
	return e, nil
}

// Frames of protocols 1 and 2 through the handles in the descriptors: synchronised by the event, woken by EVENT_FD, and all given back.
func TestLegacyFrames(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 60*time.Second)
	for _, protocol := range []uint32{1, 2} {
		for _, external := range []bool{false, true} {
			t.Run(fmt.Sprintf("protocol %d, external %v", protocol, external), func(t *testing.T) {
				dir, key := place(t)
				m := &ipcInMemory{t: t}
				p, err := NewPublisher(PublisherOptions{RuntimeDir: dir, Key: key, Protocol: protocol})
				require.NoError(t, err)
				t.Cleanup(func() { require.NoError(t, p.Close(ReasonNormal)) })
				p.EnablePackets(PacketInfo{Path: PacketShmName(key), CodecID: 27})
				o := FrameOptions{Meta: smallMeta(t, 64), Memory: m, Policy: StrictWait, AckTimeout: 20 * time.Second}
				ownership := OwnershipLibrary
				if external {
					o.External, ownership = []uintptr{0x1000, 0x2000, 0x3000, 0x4000}, OwnershipExternal
				}
				w, err := p.StartFrames(o)
				require.NoError(t, err)
				require.NoError(t, p.Serve())
				require.Equal(t, ownership, p.Header().OwnershipMode)

				s, err := Dial(t.Context(), DialOptions{RuntimeDir: dir, Key: key, Mode: StrictOrder})
				require.NoError(t, err)
				require.Equal(t, protocol, s.Protocol)
				r, err := s.Frames(FrameReaderOptions{Memory: m})
				require.NoError(t, err)
				testenv.Eventually(t, 10*time.Second, func() error {
					if !s.doorbell.rung.Load() {
						return fmt.Errorf("no EVENT_FD yet")
					}
					return nil
				})
				const frames = 200
				done := make(chan error, 1)
				go func() {
					for n := uint64(1); n <= frames; n++ {
						f, err := r.Next(context.Background())
						if err == nil {
							err = f.WaitOn(0xABC)
						}
						if err == nil {
							var got uint64
							if got, err = uniform(f.Buffer.Bytes()); err == nil && (got != n || f.Seq != n) {
								err = fmt.Errorf("frame %d holds %d, expected %d", f.Seq, got, n)
							}
						}
						if err == nil {
							err = f.Release()
						}
						if err != nil {
							done <- err
							return
						}
					}
					done <- nil
				}()
				for range frames {
					slot, err := w.Acquire(t.Context())
					require.NoError(t, err)
					fill(slot.Buffer.Bytes(), slot.Seq)
					_, err = w.PublishOn(int64(slot.Seq), 0x777)
					require.NoError(t, err)
				}
				require.NoError(t, <-done)
				require.Len(t, m.events[0].records, frames)
				require.EqualValues(t, 0x777, m.events[0].records[0])
				require.Len(t, m.events[1].waits, frames)
				require.NotZero(t, s.Rings())
				require.Zero(t, r.strikes, "no wait has run out while a frame had come")
				require.NoError(t, r.Close())
				require.NoError(t, s.Close())
				require.NoError(t, p.Close(ReasonNormal))
				require.Zero(t, m.live.Load(), "buffers and events that were not given back")
			})
		}
	}
}

// Whatever fails, what was opened is closed.
func TestLegacyMemoryThatFails(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	m := &ipcInMemory{t: t}
	p, err := NewPublisher(PublisherOptions{RuntimeDir: dir, Key: key, Protocol: 1})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close(ReasonNormal)) })
	for n := int64(1); n <= 5; n++ {
		bad := &ipcInMemory{t: t, slotsInMemfds: slotsInMemfds{failAt: n}}
		_, err := p.StartFrames(FrameOptions{Meta: smallMeta(t, 64), Memory: bad})
		require.ErrorIs(t, err, errNoMore)
		require.Zero(t, bad.live.Load())
	}
	_, err = p.StartFrames(FrameOptions{Meta: smallMeta(t, 64), Memory: &slotsInMemfds{}})
	require.ErrorIs(t, err, ErrNotAvailable)
	_, err = p.StartFrames(FrameOptions{Meta: smallMeta(t, 64), Memory: m, External: []uintptr{1}})
	require.ErrorIs(t, err, ErrInvalidArg)
	_, err = p.StartFrames(FrameOptions{Meta: smallMeta(t, 64), Memory: m})
	require.NoError(t, err)
	require.NoError(t, p.Serve())
	dialed := func() *Subscriber {
		s, err := Dial(t.Context(), DialOptions{RuntimeDir: dir, Key: key})
		require.NoError(t, err)
		t.Cleanup(func() { s.Close() })
		return s
	}
	for n := int64(1); n <= 5; n++ {
		in := &ipcInMemory{slotsInMemfds: slotsInMemfds{failAt: n}, buffers: m.buffers}
		s := dialed()
		_, err = s.Frames(FrameReaderOptions{Memory: in})
		require.ErrorIs(t, err, errNoMore)
		require.NotErrorIs(t, err, ErrPIDNamespace)
		require.Zero(t, in.live.Load())
		s.PID = 77777 // what the kernel says, where the publisher lives in another namespace
		in = &ipcInMemory{slotsInMemfds: slotsInMemfds{failAt: n}, buffers: m.buffers}
		_, err = s.Frames(FrameReaderOptions{Memory: in})
		require.ErrorIs(t, err, ErrPIDNamespace)
		require.ErrorContains(t, err, "protocol 4")
		require.NoError(t, s.Close())
	}
	short := &ipcInMemory{buffers: m.buffers, short: true}
	_, err = dialed().Frames(FrameReaderOptions{Memory: short})
	require.ErrorIs(t, err, ErrProtocol)
	require.Zero(t, short.live.Load())
	_, err = dialed().Frames(FrameReaderOptions{Memory: &slotsInMemfds{}})
	require.ErrorIs(t, err, ErrNotAvailable)
}

// The memory of frames outlives the handles that subscribers have opened: the driver wants it so.
func TestLegacyMemoryOutlivesHandles(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	dir, key := place(t)
	m := &ipcInMemory{t: t}
	p, err := NewPublisher(PublisherOptions{RuntimeDir: dir, Key: key, Protocol: 1})
	require.NoError(t, err)
	_, err = p.StartFrames(FrameOptions{Meta: smallMeta(t, 64), Memory: m})
	require.NoError(t, err)
	require.NoError(t, p.Serve())
	in := &ipcInMemory{t: t, buffers: m.buffers}
	s, err := Dial(t.Context(), DialOptions{RuntimeDir: dir, Key: key})
	require.NoError(t, err)
	r, err := s.Frames(FrameReaderOptions{Memory: in})
	require.NoError(t, err)
	closed := make(chan error)
	go func() { closed <- p.Close(ReasonNormal) }()
	wait(t, s.Done(), "SHUTDOWN")
	require.EqualValues(t, 5, m.live.Load(), "4 slots and the event")
	require.NoError(t, r.Close())
	require.NoError(t, s.Close())
	require.NoError(t, <-closed)
	require.Zero(t, m.live.Load())
	require.Zero(t, in.live.Load())
}
