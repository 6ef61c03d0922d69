package framering

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// parseAny parses a payload by its type, as the tests of all messages need it.
func parseAny(t MsgType, p []byte, d *dialect) (message, error) {
	switch t {
	case msgHelloReq:
		return wrap(parseHelloRequest(p, d))
	case msgHelloResp:
		return wrap(parseHelloResponse(p, d))
	case msgSubscribeReq:
		return wrap(parseSubscribeRequest(p))
	case msgSubscribeResp:
		return wrap(parseSubscribeResponse(p, d))
	case msgVMMFDs:
		return wrap(parseVMMFDs(p))
	case msgEventFD:
		return wrap(parseEventFD(p))
	case msgShutdown:
		return wrap(parseShutdown(p))
	case msgError:
		return wrap(parseError(p))
	case msgUnsubscribe:
		return unsubscribe{}, nil
	case msgPing:
		return ping{p}, nil
	case msgPong:
		return pong{p}, nil
	}
	return nil, fmt.Errorf("%s", t)
}

func wrap[M message](m M, err error) (message, error) { return m, err }

// meta1080 is the frame meta of §2.1 for NV12 1920×1080, typed from the table.
const meta1080 = `
	00 00 00 00  80 07 00 00  38 04 00 00  00 08 00 00  00 08 00 00  0C 00 00 00  00 A0 32 00 00 00 00 00
	` + zeros32

const (
	zeros12 = `00 00 00 00 00 00 00 00 00 00 00 00`
	zeros32 = `00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00 00`
)

var nv12 = FrameMeta{Format: NV12, Width: 1920, Height: 1080, PitchY: 2048, PitchUV: 2048, BitsPerPixel: 12, FrameSize: 3317760}

// cases are the messages with their bytes, typed from the tables of §3 and §10.9.
var cases = []struct {
	name  string
	bytes string
	msg   message
	// prefixes are the lengths at which a cut payload is a whole message as well.
	prefixes []int
}{
	{
		name: "HELLO_REQ",
		bytes: `01 00 00 00  20 00 00 00
			04 00 00 00  04 00 00 00  63 61 6D 31  FF FF FF FF  01 00 00 00  ` + zeros12,
		msg: helloRequest{Version: 4, Name: "cam1", CUDADevice: -1, Mode: StrictOrder},
	},
	{
		name: "HELLO_REQ with flags",
		bytes: `01 00 00 00  23 00 00 00
			04 00 00 00  07 00 00 00  C3 BC 62 65 72 20 31  02 00 00 00  00 00 00 00  03 00 00 00  00 00 00 00 00 00 00 00`,
		msg: helloRequest{Version: 4, Name: "über 1", CUDADevice: 2, Flags: WantsFrames | WantsPackets},
	},
	{
		name: "HELLO_REQ without a name",
		bytes: `01 00 00 00  1C 00 00 00
			04 00 00 00  00 00 00 00  00 00 00 00  00 00 00 00  02 00 00 00  00 00 00 00 00 00 00 00`,
		msg: helloRequest{Version: 4, Flags: WantsPackets},
	},
	{
		name: "HELLO_RESP",
		bytes: `02 00 00 00  76 00 00 00
			00 00 00 00  04 00 00 00  06 00 00 00  00 00 00 00 ` + meta1080 + `
			16 00 00 00  2F 64 65 76 2F 73 68 6D 2F 63 75 66 72 61 6D 65 73 2D 63 61 6D 31 ` + zeros12,
		msg:      helloResponse{Version: 4, RingSize: 6, Meta: nv12, ShmPath: "/dev/shm/cuframes-cam1"},
		prefixes: []int{106, 110, 111, 112, 113, 114, 115, 116, 117}, // "no packets" stands there already
	},
	{
		name: "HELLO_RESP with packets",
		bytes: `02 00 00 00  8E 00 00 00
			00 00 00 00  04 00 00 00  00 00 00 00  00 00 00 00 ` + zeros32 + zeros32 + `
			16 00 00 00  2F 64 65 76 2F 73 68 6D 2F 63 75 66 72 61 6D 65 73 2D 63 61 6D 31
			14 00 00 00  63 75 66 72 61 6D 65 73 2D 63 61 6D 31 2D 70 61 63 6B 65 74
			AD 00 00 00  08 07 06 05 04 03 02 01`,
		msg: helloResponse{
			Version: 4, ShmPath: "/dev/shm/cuframes-cam1", PacketPath: "cuframes-cam1-packet", CodecID: 173,
			InitialPacketSeq: 0x0102030405060708,
		},
		prefixes: []int{106},
	},
	{
		name:     "HELLO_RESP refused",
		bytes:    `02 00 00 00  10 00 00 00  F7 FF FF FF ` + zeros12,
		msg:      helloResponse{Result: ErrNotFound},
		prefixes: []int{4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
	},
	{
		name:  "SUBSCRIBE_REQ",
		bytes: `03 00 00 00  10 00 00 00  04 00 00 00 ` + zeros12,
		msg:   subscribeRequest{Version: 4},
	},
	{
		name:  "SUBSCRIBE_RESP",
		bytes: `04 00 00 00  1C 00 00 00  00 00 00 00  1F 00 00 00  88 77 66 55 44 33 22 11 ` + zeros12,
		msg:   subscribeResponse{Bit: 31, InitialSeq: 0x1122334455667788},
	},
	{
		name:     "SUBSCRIBE_RESP refused",
		bytes:    `04 00 00 00  10 00 00 00  F8 FF FF FF ` + zeros12,
		msg:      subscribeResponse{Result: ErrTooMany},
		prefixes: []int{4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
	},
	{
		name:  "VMM_FDS",
		bytes: `05 00 00 00  20 00 00 00  06 00 00 00  00 00 40 00 00 00 00 00  00 00 20 00 00 00 00 00 ` + zeros12,
		msg:   vmmFDs{Count: 6, FrameSize: 4 << 20, Granularity: 2 << 20},
	},
	{
		name:  "VMM_FDS without frames",
		bytes: `05 00 00 00  20 00 00 00 ` + zeros32,
		msg:   vmmFDs{},
	},
	{name: "UNSUBSCRIBE", bytes: `10 00 00 00  00 00 00 00`, msg: unsubscribe{}},
	{name: "SHUTDOWN", bytes: `30 00 00 00  10 00 00 00  02 00 00 00 ` + zeros12, msg: shutdownNotice{ReasonUpgrade}},
	{name: "PING", bytes: `F0 00 00 00  00 00 00 00`, msg: ping{}},
	{name: "PONG with a payload", bytes: `F1 00 00 00  02 00 00 00  AB CD`, msg: pong{[]byte{0xAB, 0xCD}}, prefixes: []int{0, 1}},
	{
		name:  "ERROR",
		bytes: `FE 00 00 00  17 00 00 00  FA FF FF FF  03 00 00 00  6F 6F 70 ` + zeros12,
		msg:   errorNotice{Code: ErrProtocol, Message: "oop"},
	},
}

func TestMessagesGolden(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			want := unhex(t, c.bytes)
			got, err := appendMessage([]byte("dirt"), c.msg, &protocol4)
			require.NoError(t, err)
			require.Equal(t, want, got[4:])

			typ, n, err := parseFrameHeader((*[frameHeaderSize]byte)(want))
			require.NoError(t, err)
			require.Equal(t, c.msg.msgType(), typ)
			require.Equal(t, len(want)-frameHeaderSize, n)
			m, err := parseAny(typ, want[frameHeaderSize:], &protocol4)
			require.NoError(t, err)
			requireSame(t, c.msg, m)
			switch m.(type) {
			case ping, pong:
			default: // nothing of it lies in the receive buffer, which is used again
				p := append([]byte(nil), want[frameHeaderSize:]...)
				m, err := parseAny(typ, p, &protocol4)
				require.NoError(t, err)
				clear(p)
				requireSame(t, c.msg, m)
			}

			// Reserved bytes and what a later version appends are ignored.
			longer := append(append([]byte(nil), want[frameHeaderSize:]...), 1, 2, 3)
			switch c.msg.(type) {
			case ping, pong:
			default:
				m, err = parseAny(typ, longer, &protocol4)
				require.NoError(t, err)
				requireSame(t, c.msg, m)
			}
		})
	}
}

// requireSame compares messages; an empty payload is one, whether nil or not.
func requireSame(t testing.TB, want, got message) {
	t.Helper()
	switch w := want.(type) {
	case ping:
		require.Equal(t, string(w.Payload), string(got.(ping).Payload))
	case pong:
		require.Equal(t, string(w.Payload), string(got.(pong).Payload))
	default:
		require.Equal(t, want, got)
	}
}

// TestMessagesCut cuts every payload at every byte: an error that is ErrProtocol, or a whole message where one ends.
func TestMessagesCut(t *testing.T) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p := unhex(t, c.bytes)[frameHeaderSize:]
			whole := map[int]bool{}
			for _, n := range c.prefixes {
				whole[n] = true
			}
			for n := range len(p) {
				m, err := parseAny(c.msg.msgType(), p[:n:n], &protocol4)
				if whole[n] {
					require.NoError(t, err, "cut at %d", n)
					continue
				}
				require.ErrorIs(t, err, ErrProtocol, "cut at %d", n)
				require.Equal(t, m, zeroOf(m), "cut at %d: nothing half-parsed comes out", n)
			}
		})
	}
}

func zeroOf(m message) message {
	switch m.(type) {
	case helloRequest:
		return helloRequest{}
	case helloResponse:
		return helloResponse{}
	case subscribeRequest:
		return subscribeRequest{}
	case subscribeResponse:
		return subscribeResponse{}
	case vmmFDs:
		return vmmFDs{}
	case shutdownNotice:
		return shutdownNotice{}
	case errorNotice:
		return errorNotice{}
	}
	return m
}

func TestMessagesIgnoreReserved(t *testing.T) {
	for _, typ := range []MsgType{msgSubscribeReq, msgShutdown} {
		m, err := parseAny(typ, unhex(t, `01 00 00 00 FF FF FF FF FF FF FF FF FF FF FF FF`), &protocol4)
		require.NoError(t, err)
		b, err := appendMessage(nil, m, &protocol4)
		require.NoError(t, err)
		require.Equal(t, unhex(t, `01 00 00 00 `+zeros12), b[frameHeaderSize:])
	}
}

func TestMessagesMalformed(t *testing.T) {
	le := binary.LittleEndian
	hello := unhex(t, cases[0].bytes)[frameHeaderSize:]
	resp := unhex(t, cases[3].bytes)[frameHeaderSize:]
	packets := unhex(t, cases[4].bytes)[frameHeaderSize:]
	vmm := unhex(t, `06 00 00 00  00 00 40 00 00 00 00 00  00 00 20 00 00 00 00 00 `+zeros12)
	for _, c := range []struct {
		name    string
		typ     MsgType
		payload []byte
		spoil   func(p []byte)
	}{
		{"name longer than the message", msgHelloReq, hello, func(p []byte) { le.PutUint32(p[4:], 17) }},
		{"name of 4 GiB", msgHelloReq, hello, func(p []byte) { le.PutUint32(p[4:], 0xFFFFFFFF) }},
		{"name is not UTF-8", msgHelloReq, hello, func(p []byte) { p[9] = 0xFF }},
		{"positive result", msgHelloResp, resp, func(p []byte) { p[0] = 1 }},
		{"17 slots", msgHelloResp, resp, func(p []byte) { p[8] = 17 }},
		{"path of 4 GiB", msgHelloResp, resp, func(p []byte) { le.PutUint32(p[80:], 0xFFFFFFF0) }},
		{"packet path of 4 GiB", msgHelloResp, packets, func(p []byte) { le.PutUint32(p[106:], 0xFFFFFFFF) }},
		{"packet path without codec", msgHelloResp, packets, func(p []byte) { le.PutUint32(p[106:], 30) }},
		{"bit 0", msgSubscribeResp, unhex(t, `00 00 00 00  00 00 00 00  00 00 00 00 00 00 00 00 `+zeros12), nil},
		{"bit 32", msgSubscribeResp, unhex(t, `00 00 00 00  20 00 00 00  00 00 00 00 00 00 00 00 `+zeros12), nil},
		{"short initial_seq in protocol 4", msgSubscribeResp, unhex(t, `00 00 00 00  01 00 00 00  00 00 00 00 `+zeros12), nil},
		{"17 descriptors", msgVMMFDs, vmm, func(p []byte) { p[0] = 17 }},
		{"frames of 0 bytes", msgVMMFDs, vmm, func(p []byte) { le.PutUint64(p[4:], 0) }},
		{"frames of 1 TiB", msgVMMFDs, vmm, func(p []byte) { le.PutUint64(p[4:], 1<<40) }},
		{"granularity 0", msgVMMFDs, vmm, func(p []byte) { le.PutUint64(p[12:], 0) }},
		{"granularity no power of two", msgVMMFDs, vmm, func(p []byte) { le.PutUint64(p[12:], 3<<20) }},
		{"granularity of 4 GiB", msgVMMFDs, vmm, func(p []byte) { le.PutUint64(p[12:], 1<<32) }},
		{"text longer than the message", msgError, unhex(t, `FA FF FF FF 03 00 00 00 6F 6F 70 `+zeros12), func(p []byte) { p[4] = 16 }},
		{"text is not UTF-8", msgError, unhex(t, `FA FF FF FF 03 00 00 00 6F FF 70 `+zeros12), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := append([]byte(nil), c.payload...)
			if c.spoil != nil {
				_, err := parseAny(c.typ, p, &protocol4)
				require.NoError(t, err, "the case must start from a good message")
				c.spoil(p)
			}
			_, err := parseAny(c.typ, p, &protocol4)
			require.ErrorIs(t, err, ErrProtocol)
		})
	}
}

func TestFramingLimit(t *testing.T) {
	_, err := appendMessage(nil, helloRequest{Version: 4, Name: strings.Repeat("n", maxPayload)}, &protocol4)
	require.ErrorIs(t, err, ErrInvalidArg)
	_, err = appendMessage(nil, ping{make([]byte, maxPayload)}, &protocol4)
	require.NoError(t, err)

	for n, ok := range map[uint32]bool{0: true, 4096: true, 4097: false, 1 << 31: false, 0xFFFFFFFF: false} {
		b := [frameHeaderSize]byte{0: 1}
		binary.LittleEndian.PutUint32(b[4:], n)
		_, _, err := parseFrameHeader(&b)
		if ok {
			require.NoError(t, err)
		} else {
			require.ErrorIs(t, err, ErrProtocol)
		}
	}
}

func TestErrorNoticeIsBounded(t *testing.T) {
	m := newErrorNotice(ErrInternal, fmt.Errorf("%s", strings.Repeat("ü", 4000)))
	require.LessOrEqual(t, len(m.Message), maxErrorText)
	b, err := appendMessage(nil, m, &protocol4)
	require.NoError(t, err)
	got, err := parseError(b[frameHeaderSize:])
	require.NoError(t, err)
	require.Equal(t, m, got)
}

// TestDialectSwitches tries what the table of dialects can switch, with a dialect that has everything the other way round.
func TestDialectSwitches(t *testing.T) {
	legacy := &dialect{version: 1, magic: MagicLegacy, shortInitialSeq: true, noPackets: ErrNoPacketRing}

	b, err := appendMessage(nil, helloRequest{Version: 1, Flags: WantsPackets}, legacy)
	require.NoError(t, err)
	require.Equal(t, unhex(t, `01 00 00 00  1C 00 00 00  01 00 00 00  00 00 00 00  00 00 00 00  00 00 00 00 `+zeros12), b)
	h, err := parseHelloRequest(unhex(t, cases[2].bytes)[frameHeaderSize:], legacy)
	require.NoError(t, err)
	require.Zero(t, h.Flags)

	packets := unhex(t, cases[4].bytes)[frameHeaderSize:]
	r, err := parseHelloResponse(packets, legacy)
	require.NoError(t, err)
	require.Empty(t, r.PacketPath)

	s, err := parseSubscribeResponse(unhex(t, `00 00 00 00  05 00 00 00  88 77 66 55 `+zeros12), legacy)
	require.NoError(t, err)
	require.Equal(t, subscribeResponse{Bit: 5, InitialSeq: 0x55667788}, s)
	s, err = parseSubscribeResponse(unhex(t, `00 00 00 00  05 00 00 00  88 77 66 55 44 33 22 11 `+zeros12), legacy)
	require.NoError(t, err)
	require.Equal(t, subscribeResponse{Bit: 5, InitialSeq: 0x1122334455667788}, s)
}

func TestFlagsDefault(t *testing.T) {
	require.Equal(t, WantsFrames, Flags(0).effective())
	require.Equal(t, WantsFrames, Flags(0xFFFFFFFC).effective())
	require.Equal(t, WantsPackets, Flags(0xFFFFFFFE).effective())
	require.Equal(t, WantsFrames|WantsPackets, Flags(3).effective())
}

func TestShmName(t *testing.T) {
	for path, want := range map[string]string{
		"/dev/shm/cuframes-cam1": "cuframes-cam1", "cuframes-cam1-packets": "cuframes-cam1-packets",
		"": "", "cuframes-": "", "/dev/shm/": "", "cam1": "", "/dev/shm/other": "", "/etc/passwd": "", "../cuframes-x": "",
		"/dev/shm/../shm/cuframes-x": "", "cuframes-x/../../etc/passwd": "", "/dev/shm//cuframes-x": "", "cuframes-x\x00y": "",
		"cuframes-x\x1b[2J": "", "cuframes-x\ny": "", "cuframes-x\u202ey": "",
		"/tmp/cuframes-x": "", "/dev/shm/cuframes-d/x": "", "cuframes-" + strings.Repeat("x", 300): "",
	} {
		got, err := shmName(path)
		require.Equal(t, want, got, path)
		if want == "" {
			require.ErrorIs(t, err, ErrProtocol, path)
		} else {
			require.NoError(t, err, path)
		}
	}
}

// FuzzMessages: what parses can be written, and parses to the same again.
func FuzzMessages(f *testing.F) {
	for _, c := range cases {
		b := unhex(f, c.bytes)
		f.Add(uint32(c.msg.msgType()), b[frameHeaderSize:])
	}
	for _, c := range legacyCases {
		f.Add(uint32(c.msg.msgType()), unhex(f, c.bytes)[frameHeaderSize:])
	}
	f.Add(uint32(msgSubscribeResp), unhex(f, `00 00 00 00  05 00 00 00  78 56 34 12 `+zeros12))
	f.Fuzz(func(t *testing.T, typ uint32, p []byte) {
		if len(p) > maxPayload {
			return // refused by the framing
		}
		for _, d := range dialects {
			m, err := parseAny(MsgType(typ), p, d)
			if err != nil {
				continue
			}
			b, err := appendMessage(nil, m, d)
			require.NoError(t, err)
			again, err := parseAny(MsgType(typ), b[frameHeaderSize:], d)
			require.NoError(t, err)
			requireSame(t, m, again)
		}
	})
}
