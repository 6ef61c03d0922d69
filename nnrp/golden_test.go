package nnrp

import (
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// hx turns hex digits with blanks and "// comment" ends of line into bytes.
func hx(s string) []byte {
	var clean strings.Builder
	for line := range strings.Lines(s) {
		line, _, _ = strings.Cut(line, "//")
		clean.WriteString(strings.Join(strings.Fields(line), ""))
	}
	b, err := hex.DecodeString(clean.String())
	if err != nil {
		panic(err)
	}
	return b
}

// goldenHeader is what the header of every case holds beside type and lengths.
var goldenHeader = Header{Flags: FlagAckRequired | FlagKeyframe, SessionID: 0x11223344, FrameID: 0x55667788, ViewID: 0x99AA, RouteID: 0xBBCC,
	TraceID: 0x0102030405060708}

// head types the 40 bytes of a header: msg_type, meta_len and body_len in wire order.
func head(msgType, metaLen, bodyLen string) string {
	return "4e4e5250 01 00 " + msgType + " 28 21000000 " + metaLen + bodyLen + " 44332211 88776655 aa99 ccbb 0807060504030201\n"
}

// golden cases: bytes typed from the tables of the specification and of its decisions.
var golden = []struct {
	name  string
	bytes string
	msg   Message
}{
	{"client hello", head("01", "40000000", "20000000") + `
		01 02 0100 // min, max version, stage
		01000000 03000000 05000000 06000000 // profile, kind, codec, compression
		ff000000 03000000 // dtype, layout
		0100 3f00 0400 0200 // digest, object, namespaces, lanes
		00010000 00001000 // cache entries, bytes
		b80b 6400 0500 0200 // cadence, latency, quality, degrade
		efbeadde 05000000 18000000 // requested session, auth_bytes, control_extension_bytes
		746f6b656e 000000 // auth, padding
		0140 0100 03000000 616263 0000000000 // ext 0x4001 critical "abc"
		0280 0000 00000000 // ext 0x8002 empty`,
		&ClientHello{MinVersionMajor: 1, MaxVersionMajor: 2, SupportedStageBitmap: 1, SupportedProfileBitmap: 1, SupportedPayloadKindBitmap: 3,
			SupportedCodecBitmap: 5, SupportedCompressionBitmap: 6, SupportedDTypeBitmap: 0xff, SupportedLayoutBitmap: 3, CacheDigestBitmap: 1,
			CacheObjectBitmap: 0x3f, CacheNamespaceCount: 4, MaxLaneCount: 2, MaxCacheEntries: 256, MaxCacheBytes: 1 << 20,
			TargetCadenceX100: 3000, LatencyBudgetMs: 100, QualityTier: 5, DegradePolicy: 2, RequestedSessionID: 0xdeadbeef,
			Auth: []byte("token"), Extensions: hx("0140 0100 03000000 616263 0000000000 0280 0000 00000000")}},
	{"client hello sdk", head("01", "40000000", "0d000000") + `
		01 01 0100  01000000 01000000 01000000 01000000  01000000 01000000
		0000 0000 0000 0100  00000000 00000000  0000 0000 0000 0000  00000000 05000000 08000000
		0280 0000 00000000  746f6b656e // extensions, then auth, no padding`,
		&ClientHello{MinVersionMajor: 1, MaxVersionMajor: 1, SupportedStageBitmap: 1, SupportedProfileBitmap: 1, SupportedPayloadKindBitmap: 1,
			SupportedCodecBitmap: 1, SupportedCompressionBitmap: 1, SupportedDTypeBitmap: 1, SupportedLayoutBitmap: 1, MaxLaneCount: 1,
			Auth: []byte("token"), Extensions: hx("0280 0000 00000000"), SDK: true}},
	{"server hello ack", head("02", "50000000", "08000000") + `
		01 00 01 00 78563412 // version, wire format, auth_status, reserved0, session
		01000000 02000000 03000000 04000000 05000000 06000000 // profile, kind, codec, compression, dtype, layout
		07000000 08000000 09000000 0a000000 // digest, object, entries, bytes
		0b00 0c00 0d00 0e00 0f00 0300 // lanes, concurrent, cadence, latency, quality, degrade
		00000002 10000000 11000000 08000000 05000000 // max_body, ttl, retry, ext bytes, server_flags
		0280 0000 00000000`,
		&ServerHelloAck{SelectedVersionMajor: 1, AuthStatus: 1, SessionID: 0x12345678, AcceptedProfileBitmap: 1, AcceptedPayloadKindBitmap: 2,
			AcceptedCodecBitmap: 3, AcceptedCompressionBitmap: 4, AcceptedDTypeBitmap: 5, AcceptedLayoutBitmap: 6, CacheDigestBitmap: 7,
			CacheObjectBitmap: 8, MaxCacheEntries: 9, MaxCacheBytes: 10, MaxLaneCount: 11, MaxConcurrentFrames: 12, TargetCadenceX100: 13,
			LatencyBudgetMs: 14, QualityTier: 15, DegradePolicy: 3, MaxBodyBytes: 32 << 20, TokenTTLMs: 16, RetryAfterMs: 17,
			ServerFlags: ServerCacheEnabled | ServerClampNeedsPatch, Extensions: hx("0280 0000 00000000")}},
	{"session patch", head("03", "24000000", "10000000") + `
		0100 0000 7f000000 c4090000 0300 0200 // profile, reserved, mask, cadence, quality, degrade
		0807060504030201 03000000 02000000 10000000 // lanes, codec, compression, patch bytes
		01000000 02000000 00040000 00030000 // min w, min h, max w, max h`,
		&SessionPatch{ProfileID: 1, PatchMask: 0x7f, TargetCadenceX100: 2500, QualityTier: 3, DegradePolicy: 2, ActiveLaneMask: 0x0102030405060708,
			PreferredCodecBitmap: 3, PreferredCompressionBitmap: 2, ProfilePatch: TensorClamp{1, 2, 1024, 768}.Append(nil)}},
	{"session patch with extension", head("03", "24000000", "20000000") + `
		0000 0000 40000000 00000000 0000 0000  0000000000000000 00000000 00000000 12000000
		01000000 02000000 00040000 00030000 eeff // 18 bytes of patch block
		000000000000 // padding from the body's start
		0140 0000 00000000`,
		&SessionPatch{PatchMask: PatchProfile, ProfilePatch: hx("01000000 02000000 00040000 00030000 eeff"), Extensions: hx("0140 0000 00000000")}},
	{"session patch ack", head("04", "30000000", "10000000") + `
		0100 0300 01000000 02000000 64000000 // status, reason, applied, rejected, retry
		0100 0000 c4090000 0300 0200 // profile, reserved, cadence, quality, degrade
		0100000000000080 03000000 02000000 10000000 // lanes, codec, compression, ack bytes
		01000000 02000000 00040000 00030000`,
		&SessionPatchAck{Status: PatchPartial, Reason: ReasonUnsupportedValue, AppliedPatchMask: 1, RejectedPatchMask: 2, RetryAfterMs: 100,
			EffectiveProfileID: 1, EffectiveTargetCadenceX100: 2500, EffectiveQualityTier: 3, EffectiveDegradePolicy: 2,
			EffectiveLaneMask: 1<<63 | 1, EffectiveCodecBitmap: 3, EffectiveCompressionBitmap: 2, ProfilePatchAck: TensorClamp{1, 2, 1024, 768}.Append(nil)}},
	{"close", head("05", "00000000", "00000000"), &Close{}},
	{"close with extension", head("05", "00000000", "10000000") + "0140 0000 05000000 6861726421 000000",
		&Close{Extensions: hx("0140 0000 05000000 6861726421 000000")}},
	{"error", head("06", "20000000", "05000000") + `
		0b000000 02000000 01000000 f4010000 44332211 88776655 aa990000 05000000 // code, scope, fatal, retry, session, frame, view, bytes
		62757379 21`,
		&ErrorMessage{Code: CodeServerBusy, Scope: ScopeFrame, IsFatal: 1, RetryAfterMs: 500, SessionID: 0x11223344, FrameID: 0x55667788, ViewID: 0x99AA,
			Diagnostic: []byte("busy!")}},
	{"frame submit, dense, fixed stride", head("10", "20000000", "60000000") + `
		0100 00 00 0000 0000 6400 b80b // profile, kind, class, flags, profile flags, latency, cadence
		00000000 20000000 28000000 18000000 00000000 // dependency, profile block, descriptors, data, reserved
		2000 1000 1000 1000 0200 0100 00 00 0000 // src, tile, count, sections, mode, flags, reserved
		05000000 00000000 00000000 00000000 // base, camera, index, reserved
		0700 00 05 00 00 0200 0a000000 // role, codec, dtype, layout, scale, flags, elements
		00000000 08000000 18000000 0c000000 00000000 // codec table, length table, payload, stride, reserved
		0a000000 0a000000 // lengths
		0102030405060708090a 0000 1112131415161718191a 0000`,
		&FrameSubmit{ProfileID: 1, LatencyBudgetMs: 100, CadenceHintX100: 3000, Tensor: TensorSubmit{SrcWidth: 32, SrcHeight: 16,
			TileWidth: 16, TileHeight: 16},
			TileIndex: TileIndex{Count: 2, Base: 5},
			Sections: []Section{{RoleID: 7, DType: Uint8, Flags: SectionFixedStride, ElementCountPerTile: 10, PayloadStrideBytes: 12,
				LengthTable: hx("0a000000 0a000000"), Payload: hx("0102030405060708090a 0000 1112131415161718191a 0000")}}}},
	{"frame submit, camera, raw index, two sections, codec table", head("10", "20000000", "99000000") + `
		0100 01 01 3412 7856 6400 b80b // payload_kind 1 as the SDKs send it, delta
		99000000 2b000000 5b000000 0d000000 efbe0000 // dependency, 32+5+6, (32+3+12)+(32+12), 8+5, reserved
		0003 0002 8000 4000 0300 0200 01 09 cdab // src, tile, count, sections, raw_u16
		00000000 05000000 06000000 78563412
		cafebabe01 000000 // camera, padding
		0900 0200 ffff 0000 // ids 9, 2, 65535, padding
		0100 00 01 01 02 0100 02000000 03000000 0c000000 08000000 00000000 00000000 // role 1, fp32, nchw, per tile
		010001 // codecs
		03000000 04000000 01000000 // lengths
		a1a2a3 b1b2b3b4 c1 00 // payload, padding
		0200 00 00 00 00 0000 01000000 00000000 0c000000 05000000 00000000 feca0000 // role 2, fp16
		02000000 00000000 03000000
		d1d2 e1e2e3`,
		&FrameSubmit{ProfileID: 1, PayloadKind: PayloadTensorSDK, FrameClass: ClassDelta, SubmitFlags: 0x1234, ProfileFlags: 0x5678, LatencyBudgetMs: 100,
			CadenceHintX100: 3000, DependencyFrameID: 0x99, Reserved0: 0xbeef,
			Tensor: TensorSubmit{SrcWidth: 768, SrcHeight: 512, TileWidth: 128, TileHeight: 64, TensorFlags: 9, Reserved0: 0xabcd, Reserved1: 0x12345678},
			Camera: hx("cafebabe01"), TileIndex: TileIndex{Mode: RawU16, Count: 3, Data: hx("0900 0200 ffff")},
			Sections: []Section{
				{RoleID: 1, DType: FP32, Layout: NCHW, ScalePolicy: ScalePerTile, Flags: SectionCodecTable, ElementCountPerTile: 2,
					CodecTable: hx("010001"), LengthTable: hx("03000000 04000000 01000000"), Payload: hx("a1a2a3 b1b2b3b4 c1")},
				{RoleID: 2, ElementCountPerTile: 1, Reserved: 0xcafe, LengthTable: hx("02000000 00000000 03000000"), Payload: hx("d1d2 e1e2e3")}}}},
	{"frame submit, delta index, nothing changed", head("10", "20000000", "20000000") + `
		0100 00 03 0000 0000 0000 0000  00000000 20000000 00000000 00000000 00000000
		2000 1000 1000 1000 0000 0000 02 00 0000  00000000 00000000 00000000 00000000`,
		&FrameSubmit{ProfileID: 1, FrameClass: ClassDiscardable, Tensor: TensorSubmit{SrcWidth: 32, SrcHeight: 16, TileWidth: 16, TileHeight: 16},
			TileIndex: TileIndex{Mode: DeltaU16}}},
	{"frame cancel", head("11", "00000000", "00000000"), &Bare{Msg: MsgFrameCancel}},
	{"result push, bitset", head("12", "20000000", "42000000") + `
		0100 0600 0100 00 00 0700 0800 1000 0000 // status, flags, profile, kind, reserved, three times, reserved
		12000000 28000000 02000000 00000000 // profile block, descriptors, data, reserved
		0100 0200 03 00 0000 00000000 02000000 // sections, tiles, bitset, flags, reserved, base, index bytes
		0180 000000000000 // tiles 0 and 15, padding
		0900 00 05 00 00 0000 01000000 00000000 08000000 02000000 00000000 00000000
		01000000 01000000
		2a 2b`,
		&ResultPush{StatusCode: StatusDegraded, ResultFlags: ResultFallback | ResultPartial, ActiveProfileID: 1, InferenceMs: 7,
			QueueMs: 8, ServerTotalMs: 16,
			TileIndex: TileIndex{Mode: Bitset, Count: 2, Data: hx("0180")},
			Sections:  []Section{{RoleID: 9, DType: Uint8, ElementCountPerTile: 1, LengthTable: hx("01000000 01000000"), Payload: hx("2a2b")}}}},
	{"result drop", head("13", "00000000", "00000000"), &Bare{Msg: MsgResultDrop}},
	{"cache put", head("14", "28000000", "05000000") + `
		02000000 01000000 efcdab8967452301 1032547698badcfe // namespace, kind, key_hi, key_lo
		60ea0000 05000000 03000000 01000000 // ttl, bytes, codecs, flags
		0102030405`,
		&CachePut{Namespace: 2, ObjectKind: ObjectCamera, CacheKey: CacheKey{0x0123456789abcdef, 0xfedcba9876543210}, TTLMs: 60000, CodecBitmap: 3,
			Flags: CachePinned, Object: hx("0102030405")}},
	{"cache ack", head("15", "28000000", "00000000") + `
		02000000 02000000 efcdab8967452301 1032547698badcfe
		60ea0000 00001000 07000000 00000000 // ttl, max object, detail, reserved`,
		&CacheAck{Namespace: 2, Status: CacheReplaced, CacheKey: CacheKey{0x0123456789abcdef, 0xfedcba9876543210}, AcceptedTTLMs: 60000,
			MaxObjectBytes: 1 << 20, DetailCode: 7}},
	{"cache invalidate", head("16", "20000000", "00000000") + `
		03000000 02000000 efcdab8967452301 1032547698badcfe 01000000 04000000`,
		&CacheInvalidate{Scope: InvalidateKey, Namespace: 2, CacheKey: CacheKey{0x0123456789abcdef, 0xfedcba9876543210}, ObjectKind: 1, ReasonCode: 4}},
	{"ping", head("20", "00000000", "00000000"), &Bare{Msg: MsgPing}},
	{"pong", head("21", "00000000", "00000000"), &Bare{Msg: MsgPong}},
}

func goldenLimits(m Message) *Limits {
	hello, ok := m.(*ClientHello)
	return &Limits{SDK: ok && hello.SDK}
}

// dirty fills a message with what an earlier one may have left behind.
func dirty(t MsgType) Message {
	for _, g := range golden {
		if g.msg.Type() == t {
			h, m, _, err := ParseMessage(hx(g.bytes), goldenLimits(g.msg))
			if err != nil || h.Type != t {
				panic(err)
			}
			switch m := m.(type) {
			case *FrameSubmit:
				m.Sections = append(m.Sections, Section{RoleID: 999, CodecTable: []byte{1}, Payload: []byte{2}})
				m.Camera = []byte{1, 2, 3}
			case *ResultPush:
				m.Sections = append(m.Sections, Section{RoleID: 999, CodecTable: []byte{1}, Payload: []byte{2}})
			case *ClientHello:
				m.SDK = !m.SDK
			}
			return m
		}
	}
	panic(t)
}

// normal drops the difference between no bytes and an empty slice.
func normal(m Message) Message {
	empty := func(ps ...*[]byte) {
		for _, p := range ps {
			if len(*p) == 0 {
				*p = nil
			}
		}
	}
	sections := func(list []Section) []Section {
		if len(list) == 0 {
			return nil
		}
		for i := range list {
			empty(&list[i].CodecTable, &list[i].LengthTable, &list[i].Payload)
		}
		return list
	}
	switch m := m.(type) {
	case *ClientHello:
		empty(&m.Auth, &m.Extensions)
	case *FrameSubmit:
		empty(&m.Camera, &m.TileIndex.Data)
		m.Sections = sections(m.Sections)
	case *ResultPush:
		empty(&m.TileIndex.Data)
		m.Sections = sections(m.Sections)
	}
	return m
}

func TestGolden(t *testing.T) {
	seen := map[MsgType]bool{}
	for _, c := range golden {
		seen[c.msg.Type()] = true
		t.Run(c.name, func(t *testing.T) {
			want := hx(c.bytes)
			got, err := c.msg.Append(nil, goldenHeader)
			require.NoError(t, err)
			require.Equal(t, hex.Dump(want), hex.Dump(got))

			prefixed, err := c.msg.Append([]byte("in front"), goldenHeader)
			require.NoError(t, err)
			require.Equal(t, want, prefixed[8:])

			l := goldenLimits(c.msg)
			h, err := ParseHeader(want)
			require.NoError(t, err)
			header := goldenHeader
			header.Type, header.MetaLen, header.BodyLen = c.msg.Type(), h.MetaLen, h.BodyLen
			require.Equal(t, header, h)
			require.EqualValues(t, len(want), h.Size())

			m := dirty(c.msg.Type())
			require.NoError(t, m.Parse(&h, want[HeaderLen:], l))
			require.Equal(t, c.msg, normal(m))

			_, m, n, err := ParseMessage(append(append([]byte{}, want...), 1, 2, 3), l)
			require.NoError(t, err)
			require.Equal(t, len(want), n)
			require.Equal(t, c.msg, normal(m))
		})
	}
	for i := range 256 {
		if t8 := MsgType(i); t8.Known() != seen[t8] {
			t.Errorf("%s: in section 9 %v, among the golden cases %v", t8, t8.Known(), seen[t8])
		}
	}
}

// TestCut cuts every golden message at every byte, both as a stream that ends and as a body that is shorter than its parts say.
func TestCut(t *testing.T) {
	for _, c := range golden {
		t.Run(c.name, func(t *testing.T) {
			want, l := hx(c.bytes), goldenLimits(c.msg)
			for n := range want {
				_, _, _, err := ParseMessage(want[:n], l)
				require.ErrorIs(t, err, ErrShort, "cut at %d", n)
			}
			meta := HeaderLen + c.msg.Type().MetaLen()
			for n := meta; n < len(want); n++ {
				cut := append([]byte{}, want[:n]...)
				le.PutUint32(cut[16:], uint32(n-meta))
				_, m, _, err := ParseMessage(cut, l)
				if err == nil { // a shorter body may be a whole message where its end is not said elsewhere
					again, aerr := m.Append(nil, goldenHeader)
					require.NoError(t, aerr)
					require.Equal(t, cut, again, "cut at %d", n)
					continue
				}
				require.ErrorIs(t, err, ErrMalformedBody, "cut at %d", n)
			}
		})
	}
}

func TestGather(t *testing.T) {
	big := make([]byte, 3*gatherMin)
	for i := range big {
		big[i] = byte(i * 7)
	}
	lengths := AppendLength(AppendLength(nil, len(big)), 0)
	sections := []Section{
		{RoleID: 1, DType: Uint8, LengthTable: lengths, Payload: big},
		{RoleID: 2, DType: Uint8, LengthTable: AppendLength(AppendLength(nil, 1), 2), Payload: []byte{1, 2, 3}},
		{RoleID: 3, DType: Uint8, LengthTable: AppendLength(AppendLength(nil, 4), len(big)-5), Payload: big[1:]},
	}
	submit := &FrameSubmit{ProfileID: 1, Camera: []byte{9}, TileIndex: TileIndex{Mode: RawU16, Count: 2, Data: []byte{1, 0, 0, 0}}, Sections: sections}
	result := &ResultPush{ActiveProfileID: 1, TileIndex: submit.TileIndex, Sections: sections}
	var g Gather
	for range 2 {
		want, err := submit.Append(nil, goldenHeader)
		require.NoError(t, err)
		require.NoError(t, submit.Gather(&g, goldenHeader))
		require.Len(t, g.Buffers(), 4)
		require.Equal(t, want, join(g.Buffers()))
		require.Same(t, &big[0], &g.Buffers()[1][0])

		want, err = result.Append(nil, goldenHeader)
		require.NoError(t, err)
		require.NoError(t, result.Gather(&g, goldenHeader))
		require.Equal(t, want, join(g.Buffers()))
	}
}

func join(list [][]byte) []byte {
	var b []byte
	for _, p := range list {
		b = append(b, p...)
	}
	return b
}
