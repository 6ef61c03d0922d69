package framering

import (
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
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
