package framering

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// legacyCases are the messages in which protocols 1 and 2 differ, with their bytes typed from the tables of §3 and §10.9 of their document.
var legacyCases = []struct {
	name  string
	d     *dialect
	bytes string
	msg   message
}{
	{
		name: "HELLO_REQ of protocol 1: the reserved bytes stay zero", d: &protocol1,
		bytes: `01 00 00 00  20 00 00 00
			01 00 00 00  04 00 00 00  63 61 6D 31  FF FF FF FF  01 00 00 00  ` + zeros12,
		msg: helloRequest{Version: 1, Name: "cam1", CUDADevice: -1, Mode: StrictOrder},
	},
	{
		name: "HELLO_REQ of protocol 2 with flags", d: &protocol2,
		bytes: `01 00 00 00  20 00 00 00
			02 00 00 00  04 00 00 00  63 61 6D 31  03 00 00 00  00 00 00 00  02 00 00 00  00 00 00 00  00 00 00 00`,
		msg: helloRequest{Version: 2, Name: "cam1", CUDADevice: 3, Flags: WantsPackets},
	},
	{
		name: "HELLO_RESP of protocol 1, EXTERNAL", d: &protocol1,
		bytes: `02 00 00 00  76 00 00 00
			00 00 00 00  01 00 00 00  06 00 00 00  01 00 00 00 ` + meta1080 + `
			16 00 00 00  2F 64 65 76 2F 73 68 6D 2F 63 75 66 72 61 6D 65 73 2D 63 61 6D 31 ` + zeros12,
		msg: helloResponse{Version: 1, RingSize: 6, Ownership: 1, Meta: nv12, ShmPath: "/dev/shm/cuframes-cam1"},
	},
	{
		name: "HELLO_RESP of protocol 2 with packets", d: &protocol2,
		bytes: `02 00 00 00  8F 00 00 00
			00 00 00 00  02 00 00 00  06 00 00 00  00 00 00 00 ` + meta1080 + `
			16 00 00 00  2F 64 65 76 2F 73 68 6D 2F 63 75 66 72 61 6D 65 73 2D 63 61 6D 31
			15 00 00 00  63 75 66 72 61 6D 65 73 2D 63 61 6D 31 2D 70 61 63 6B 65 74 73
			1B 00 00 00  08 07 06 05 04 03 02 01`,
		msg: helloResponse{
			Version: 2, RingSize: 6, Meta: nv12, ShmPath: "/dev/shm/cuframes-cam1", PacketPath: "cuframes-cam1-packets", CodecID: 27,
			InitialPacketSeq: 0x0102030405060708,
		},
	},
	{
		name: "SUBSCRIBE_REQ", d: &protocol2,
		bytes: `03 00 00 00  10 00 00 00  02 00 00 00 ` + zeros12,
		msg:   subscribeRequest{Version: 2},
	},
	{
		name: "SUBSCRIBE_RESP: 8 bytes of initial_seq", d: &protocol1,
		bytes: `04 00 00 00  1C 00 00 00  00 00 00 00  1F 00 00 00  88 77 66 55 44 33 22 11 ` + zeros12,
		msg:   subscribeResponse{Bit: 31, InitialSeq: 0x1122334455667788},
	},
	{
		name: "EVENT_FD", d: &protocol1,
		bytes: `20 00 00 00  10 00 00 00  01 00 00 00 ` + zeros12,
		msg:   eventFD{Purpose: 1},
	},
	{
		name: "ERROR: no packet ring", d: &protocol2,
		bytes: `FE 00 00 00  16 00 00 00  EB FF FF FF  02 00 00 00  6E 6F ` + zeros12,
		msg:   errorNotice{Code: ErrNoPacketRing, Message: "no"},
	},
}

func TestLegacyMessagesGolden(t *testing.T) {
	for _, c := range legacyCases {
		t.Run(c.name, func(t *testing.T) {
			want := unhex(t, c.bytes)
			got, err := appendMessage([]byte("dirt"), c.msg, c.d)
			require.NoError(t, err)
			require.Equal(t, want, got[4:])
			typ, n, err := parseFrameHeader((*[frameHeaderSize]byte)(want))
			require.NoError(t, err)
			require.Equal(t, len(want)-frameHeaderSize, n)
			p := want[frameHeaderSize:]
			m, err := parseAny(typ, p, c.d)
			require.NoError(t, err)
			requireSame(t, c.msg, m)
			m, err = parseAny(typ, append(append([]byte(nil), p...), 1, 2, 3), c.d) // of a later version
			require.NoError(t, err)
			requireSame(t, c.msg, m)
			for i := range 4 { // no message is whole in its first bytes but a refusal
				_, err := parseAny(typ, p[:i], c.d)
				require.ErrorIs(t, err, ErrProtocol)
			}
		})
	}
}

// The 24-byte SUBSCRIBE_RESP with an initial_seq of 32 bits is read, and in protocol 4 refused.
func TestShortSubscribeResponse(t *testing.T) {
	p := unhex(t, `00 00 00 00  05 00 00 00  78 56 34 12 `+zeros12)
	require.Len(t, p, 24)
	for _, d := range []*dialect{&protocol1, &protocol2} {
		m, err := parseSubscribeResponse(p, d)
		require.NoError(t, err)
		require.Equal(t, subscribeResponse{Bit: 5, InitialSeq: 0x12345678}, m)
	}
	_, err := parseSubscribeResponse(p, &protocol4)
	require.ErrorIs(t, err, ErrProtocol)
}

// Protocol 1 ignores what stands in the reserved bytes of HELLO_REQ.
func TestReservedBytesOfProtocol1(t *testing.T) {
	p := unhex(t, `01 00 00 00  00 00 00 00  00 00 00 00  00 00 00 00  02 00 00 00  FF FF FF FF  FF FF FF FF`)
	pub := &publisherSide{dialect: &protocol2, seats: bothRings()}
	out := pub.handle(inbound{typ: msgHelloReq, payload: p})
	resp, ok := out[0].msg.(helloResponse)
	require.True(t, ok)
	require.Equal(t, OK, resp.Result)
	require.Empty(t, resp.PacketPath, "the packet ring is not shown to protocol 1")
	require.True(t, pub.wantsFrames())
}

// goldenLegacy is the beginning of a frame SHM of protocol 2 with a packet ring, typed from the table of §2: library 0.4.0, pid 0x1234,
// 2 slots, EXTERNAL, NV12 1920×1080, an event handle of E0, E1, ….
const goldenLegacy = `
	CC 1D 7C CC  02 00 00 00  00 00 00 00  04 00 00 00
	00 00 00 00  00 00 00 00  34 12 00 00  00 00 00 00
	02 00 00 00  00 00 00 00  01 00 00 00  00 00 00 00
	00 00 00 00  00 00 00 00  20 00 00 00  00 00 00 00
	00 00 00 00  80 07 00 00  38 04 00 00  00 08 00 00
	00 08 00 00  0C 00 00 00  00 A0 32 00  00 00 00 00
	00 00 00 00  00 00 00 00  00 00 00 00  00 00 00 00
	00 00 00 00  00 00 00 00  00 00 00 00  00 00 00 00
	E0 E1 E2 E3  E4 E5 E6 E7  E8 E9 EA EB  EC ED EE EF
	F0 F1 F2 F3  F4 F5 F6 F7  F8 F9 FA FB  FC FD FE FF
	00 01 02 03  04 05 06 07  08 09 0A 0B  0C 0D 0E 0F
	10 11 12 13  14 15 16 17  18 19 1A 1B  1C 1D 1E 1F`

// handleFrom counts up from a byte.
func handleFrom(b byte) (h [64]byte) {
	for i := range h {
		h[i] = b + byte(i)
	}
	return h
}

func TestLegacyHeaderGolden(t *testing.T) {
	mem := aligned(blockSize)
	initBlock(mem, blockParams{
		dialect: &protocol2, libVersion: [3]uint32{0, 4, 0}, pid: 0x1234, ringSize: 2, packets: true, ownership: OwnershipExternal,
		meta: NV12Meta(1920, 1080),
		ipc: &ipcMemory{
			handles: [][64]byte{handleFrom(0x40), handleFrom(0x80)}, external: []uintptr{0x7F0011223344, 0x7F0055667788},
			event: &eventInMemory{handle: handleFrom(0xE0)},
		},
	})
	want := aligned(blockSize)
	copy(want, unhex(t, goldenLegacy))
	for i, first := range []byte{0x40, 0x80} {
		slot := want[0x100+i*192:]
		copy(slot, unhex(t, "FF FF FF FF FF FF FF FF"))
		h := handleFrom(first)
		copy(slot[0x20:], h[:])
	}
	copy(want[0x100+0x60:], unhex(t, "44 33 22 11 00 7F 00 00"))
	copy(want[0x100+192+0x60:], unhex(t, "88 77 66 55 00 7F 00 00"))
	require.Equal(t, want, mem)
}

// The skeleton of §7 of the document of protocol 1.
func TestLegacyConformance(t *testing.T) {
	require.EqualValues(t, 0xCC7C1DCC, MagicLegacy)
	require.EqualValues(t, 0xCC7C1DCD, MagicPackets)
	require.EqualValues(t, 0x0000, unsafe.Offsetof(header{}.magic))
	require.EqualValues(t, 0x0004, unsafe.Offsetof(header{}.protoVersion))
	require.EqualValues(t, 0x0040, unsafe.Offsetof(header{}.meta))
	require.EqualValues(t, 0x0080, unsafe.Offsetof(header{}.events))
	require.EqualValues(t, 0x0020, unsafe.Offsetof(slot{}.memHandle))
	require.EqualValues(t, 0x0060, unsafe.Offsetof(slot{}.external))
	require.EqualValues(t, 192, unsafe.Sizeof(slot{}))
	require.EqualValues(t, 128, unsafe.Sizeof(subscriberSlot{}))
	// HelloRespMismatchProto
	pub := &publisherSide{dialect: &protocol1, seats: bothRings()}
	out := pub.handle(inboundOf(t, outbound{msg: helloRequest{Version: 2}}))
	require.Equal(t, []outbound{{msg: helloResponse{Result: ErrProtocol}}}, out)
}

// Every version that a subscriber may say against every version that a publisher may be.
func TestVersionMatrix(t *testing.T) {
	ringless := bothRings()
	ringless.o.packetPath = ""
	for _, c := range []struct {
		publisher *dialect
		seats     *fakeSeats
		version   uint32
		flags     Flags
		result    Code
		actual    uint32 // proto_version_actual
		packets   bool
	}{
		{publisher: &protocol1, version: 0, result: ErrProtocol},
		{publisher: &protocol1, version: 1, actual: 1},
		{publisher: &protocol1, version: 2, result: ErrProtocol},
		{publisher: &protocol1, version: 2, flags: WantsPackets, result: ErrProtocol},
		{publisher: &protocol1, version: 3, result: ErrProtocol},
		{publisher: &protocol1, version: 4, result: ErrProtocol},
		{publisher: &protocol1, version: 5, result: ErrProtocol},

		{publisher: &protocol2, version: 0, result: ErrProtocol},
		{publisher: &protocol2, version: 1, actual: 2},
		{publisher: &protocol2, version: 2, actual: 2, packets: true},
		{publisher: &protocol2, version: 2, flags: WantsPackets, actual: 2, packets: true},
		{publisher: &protocol2, version: 3, result: ErrProtocol},
		{publisher: &protocol2, version: 4, result: ErrProtocol},
		{publisher: &protocol2, version: 5, result: ErrProtocol},

		// Without a packet ring it is one of protocol 1 to who asks for frames.
		{publisher: &protocol2, seats: ringless, version: 1, actual: 1},
		{publisher: &protocol2, seats: ringless, version: 2, actual: 1},
		{publisher: &protocol2, seats: ringless, version: 2, flags: WantsPackets, result: ErrNoPacketRing},
		{publisher: &protocol2, seats: ringless, version: 4, result: ErrProtocol},

		{publisher: &protocol4, version: 1, result: ErrProtocol},
		{publisher: &protocol4, version: 2, result: ErrProtocol},
		{publisher: &protocol4, version: 2, flags: WantsPackets, result: ErrProtocol},
		{publisher: &protocol4, version: 3, result: ErrProtocol},
		{publisher: &protocol4, version: 4, actual: 4, packets: true},
		{publisher: &protocol4, version: 5, result: ErrProtocol},
		{publisher: &protocol4, seats: ringless, version: 4, flags: WantsPackets, result: ErrNotFound},
	} {
		t.Run(fmt.Sprintf("%d to %d flags %d", c.version, c.publisher.version, c.flags), func(t *testing.T) {
			seats := c.seats
			if seats == nil {
				seats = bothRings()
			}
			if c.publisher == &protocol1 {
				seats.o.packetPath = "" // EnablePackets does nothing there
			}
			pub := &publisherSide{dialect: c.publisher, seats: seats}
			out := pub.handle(inboundOf(t, outbound{msg: helloRequest{Version: c.version, Flags: c.flags}}))
			require.Len(t, out, 1)
			resp := out[0].msg.(helloResponse)
			require.Equal(t, c.result, resp.Result)
			require.Equal(t, c.actual, resp.Version)
			require.Equal(t, c.packets, resp.PacketPath != "")
			require.Equal(t, c.result == OK, pub.state == wantSubscribe)
			if c.result == ErrProtocol {
				require.ErrorContains(t, pub.err, fmt.Sprintf("subscriber speaks protocol %d, this publisher %d", c.version, c.publisher.version))
			}
		})
	}
}

// Subscribers in every version against publishers in every version, over sockets: who does not fit is refused and learns what the other
// side speaks, and who asks in no version of its own takes the publisher's.
func TestVersionsOverSockets(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 60*time.Second)
	for _, publisher := range []uint32{1, 2, 4} {
		for _, packets := range []bool{false, true} {
			dir, key := place(t)
			p := publish(t, PublisherOptions{RuntimeDir: dir, Key: key, Protocol: publisher}, packets)
			announced := publisher
			if publisher == 2 && !packets {
				announced = 1
			}
			require.Equal(t, announced, p.Header().Version)
			for _, version := range []uint32{0, 1, 2, 4} {
				name := fmt.Sprintf("%d to %d, packets %v", version, publisher, packets)
				s, err := Dial(t.Context(), DialOptions{RuntimeDir: dir, Key: key, Flags: WantsPackets, Protocol: version})
				fits := packets && publisher != 1 && (version == 0 || version == publisher)
				if fits {
					require.NoError(t, err, name)
					require.Equal(t, publisher, s.Protocol)
					require.EqualValues(t, 41, s.InitialPacketSeq)
					require.NoError(t, s.Close())
					continue
				}
				require.Error(t, err, name)
				switch {
				case version == 1 || version == 0 && announced == 1:
					require.ErrorIs(t, err, ErrNoPacketRing, name)
				case version == 2 && publisher == 2:
					require.ErrorIs(t, err, ErrNoPacketRing, name)
				case version == 0 || version == publisher: // 4
					require.ErrorIs(t, err, ErrNotFound, name)
				default:
					require.ErrorIs(t, err, ErrProtocol, name)
					require.ErrorContains(t, err, fmt.Sprintf("the publisher speaks protocol %d", announced), name)
				}
			}
			require.NoError(t, p.Close(ReasonNormal))
		}
	}
}

// A frame SHM of protocol 3 or 5: the subscriber names it without a handshake.
func TestVersionsNobodySpeaks(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	p := publish(t, PublisherOptions{RuntimeDir: dir, Key: key, Protocol: 2}, true)
	for _, version := range []uint32{3, 5} {
		p.ring.block.hdr.protoVersion.Store(version)
		_, err := Dial(t.Context(), DialOptions{RuntimeDir: dir, Key: key, Flags: WantsPackets})
		require.ErrorIs(t, err, ErrProtocol)
		require.ErrorContains(t, err, fmt.Sprintf("the publisher speaks protocol %d", version))
	}
	p.ring.block.hdr.protoVersion.Store(2)
}

// The packet ring appears after the first subscribers: the header tells from then on.
func TestPacketRingAppears(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	p := publish(t, PublisherOptions{RuntimeDir: dir, Key: key, Protocol: 2}, false)
	_, err := Dial(t.Context(), DialOptions{RuntimeDir: dir, Key: key, Flags: WantsPackets})
	require.ErrorIs(t, err, ErrNoPacketRing)
	p.EnablePackets(PacketInfo{Path: PacketShmName(key), CodecID: 27})
	s := subscribe(t, dir, key, WantsPackets)
	require.EqualValues(t, 2, s.Protocol)
	require.Equal(t, PacketShmName(key), s.PacketPath)
}

// EVENT_FD: each publish is one ring for who wants packets, none for others, and nothing is left open.
func TestEventFDRings(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	dir, key := place(t)
	p := publish(t, PublisherOptions{RuntimeDir: dir, Key: key, Protocol: 2}, true)
	var subs []*Subscriber
	for range 3 {
		s := subscribe(t, dir, key, WantsPackets)
		testenv.Eventually(t, 10*time.Second, func() error {
			if s.PacketBell() == nil {
				return fmt.Errorf("no EVENT_FD yet")
			}
			return nil
		})
		<-s.PacketBell() // the one that hanging it gives
		subs = append(subs, s)
	}
	for i := range 50 {
		p.PacketPublished()
		for _, s := range subs {
			<-s.PacketBell()
			require.EqualValues(t, i+1, s.Rings())
		}
	}
	require.NoError(t, subs[0].Close())
	require.Nil(t, subs[0].PacketBell())
	testenv.Eventually(t, 10*time.Second, func() error {
		p.bells.mu.RLock()
		defer p.bells.mu.RUnlock()
		if len(p.bells.list) != 2 {
			return fmt.Errorf("%d bells", len(p.bells.list))
		}
		return nil
	})
	p.bells.ring(WantsFrames) // nobody's
	p.PacketPublished()
	<-subs[1].PacketBell()
	require.EqualValues(t, 51, subs[1].Rings())
	require.Zero(t, testing.AllocsPerRun(100, p.PacketPublished))
}

// A hostile publisher's EVENT_FD: what is no eventfd, none, or too many.
func TestHostileEventFD(t *testing.T) {
	testenv.CheckLeaks(t)
	null := func() int {
		f, err := os.Open("/dev/null")
		require.NoError(t, err)
		t.Cleanup(func() { f.Close() })
		return int(f.Fd())
	}
	for n := range 3 {
		sub := &subscriberSide{dialect: &protocol1, state: subscriberReady}
		in := inboundOf(t, outbound{msg: eventFD{1}})
		for range n {
			in.fds = append(in.fds, null())
		}
		sub.handle(&in)
		if n == 1 {
			require.NoError(t, sub.err)
			require.Len(t, sub.bells, 1)
			var d doorbell
			d.init()
			fd, err := shm.NewEventFD() // the number is closed by hang, and must not be the file's
			require.NoError(t, err)
			closeFDs([]int{fd})
			require.Error(t, d.hang(fd))
			require.False(t, d.rung.Load())
			continue
		}
		require.ErrorIs(t, sub.err, ErrProtocol)
	}
	sub := &subscriberSide{dialect: &protocol4, state: subscriberReady}
	in := inboundOf(t, outbound{msg: eventFD{1}})
	require.Empty(t, sub.handle(&in))
	require.NoError(t, sub.err)
}

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
