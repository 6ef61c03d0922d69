package nnrp

import (
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// goldenBytes returns the bytes of the golden case with that name.
func goldenBytes(name string) []byte {
	for _, c := range golden {
		if c.name == name {
			return hx(c.bytes)
		}
	}
	panic(name)
}

// TestMalformed changes single bytes of golden messages: code, scope and offset of the answer.
func TestMalformed(t *testing.T) {
	const submit, twoSections, push = "frame submit, dense, fixed stride",
		"frame submit, camera, raw index, two sections, codec table", "result push, bitset"
	for _, c := range []struct {
		name   string
		from   string
		at     int
		value  string
		limits Limits
		code   ErrorCode
		scope  Scope
		fatal  bool
		offset int64
	}{
		{"magic", "ping", 3, "51", Limits{}, CodeMalformedHeader, ScopeConnection, true, 0},
		{"version_major", "ping", 4, "02", Limits{}, CodeUnsupportedVersion, ScopeConnection, true, 4},
		{"wire_format", "ping", 5, "01", Limits{}, CodeUnsupportedVersion, ScopeConnection, true, 5},
		{"header_len", "ping", 7, "30", Limits{}, CodeMalformedHeader, ScopeConnection, true, 7},
		{"meta_len", "ping", 12, "01", Limits{}, CodeMalformedHeader, ScopeConnection, true, 12},
		{"unknown type", "ping", 6, "7f", Limits{}, CodeUnsupportedCapability, ScopeSession, false, 6},
		{"unknown type, endless metadata", "ping", 6, "7f 28 00000000 ffffffff", Limits{}, CodeMalformedHeader, ScopeConnection, true, 12},
		{"ping with a body", "session patch", 6, "20 28 00000000 00000000", Limits{}, CodeMalformedBody, ScopeSession, false, 16},
		{"giant body", submit, 16, "ffffffff", Limits{}, CodeLimitExceeded, ScopeSession, false, 16},
		{"body above what was agreed", submit, 16, "60000000", Limits{MaxBody: 0x5f}, CodeLimitExceeded, ScopeSession, false, 16},
		{"giant hello", "client hello", 16, "01000100", Limits{}, CodeLimitExceeded, ScopeSession, false, 16},
		{"auth_bytes", "client hello", 40 + 56, "ffffffff", Limits{}, CodeMalformedBody, ScopeConnection, true, 104},
		{"padding behind auth", "client hello", 104 + 5, "01", Limits{}, CodeMalformedBody, ScopeConnection, true, 109},
		{"extension bytes", "client hello", 40 + 60, "10000000", Limits{}, CodeMalformedBody, ScopeConnection, true, 128},
		{"ext_type 0", "client hello", 112, "0000", Limits{}, CodeMalformedBody, ScopeConnection, true, 112},
		{"ext_len", "client hello", 116, "ffffffff", Limits{}, CodeMalformedBody, ScopeConnection, true, 116},
		{"ext padding", "client hello", 123, "01", Limits{}, CodeMalformedBody, ScopeConnection, true, 123},
		{"patch block", "session patch", 40 + 32, "11000000", Limits{}, CodeMalformedBody, ScopeSession, false, 76},
		{"error scope", "error", 44, "03", Limits{}, CodeMalformedBody, ScopeSession, false, 44},
		{"error text", "error", 73, "ff", Limits{}, CodeMalformedBody, ScopeSession, false, 72},
		{"object bytes", "cache put", 40 + 28, "04000000", Limits{}, CodeMalformedBody, ScopeSession, false, 84},
		{"invalidate scope", "cache invalidate", 40, "04", Limits{}, CodeMalformedBody, ScopeSession, false, 40},

		{"profile", submit, 40, "0200", Limits{}, CodeUnsupportedCapability, ScopeSession, false, 40},
		{"payload kind", submit, 42, "02", Limits{}, CodeUnsupportedCapability, ScopeSession, false, 42},
		{"frame class", submit, 43, "04", Limits{}, CodeMalformedBody, ScopeFrame, false, 43},
		{"profile_block_bytes", submit, 56, "21", Limits{}, CodeMalformedBody, ScopeFrame, false, 56},
		{"payload_descriptor_bytes", submit, 60, "29", Limits{}, CodeMalformedBody, ScopeFrame, false, 60},
		{"payload_data_bytes", submit, 64, "19", Limits{}, CodeMalformedBody, ScopeFrame, false, 64},
		{"tiles", submit, 80, "ffff", Limits{MaxTiles: 100}, CodeLimitExceeded, ScopeSession, false, 80},
		{"sections", submit, 82, "4100", Limits{}, CodeLimitExceeded, ScopeSession, false, 82},
		{"more sections than bytes", submit, 82, "4000", Limits{}, CodeMalformedBody, ScopeFrame, false, 104},
		{"tile index mode", submit, 84, "04", Limits{}, CodeUnsupportedCapability, ScopeSession, false, 84},
		{"index bytes in dense_range", submit, 84, "01", Limits{}, CodeMalformedBody, ScopeFrame, false, 104},
		{"camera_bytes", submit, 92, "ffffffff", Limits{}, CodeMalformedBody, ScopeFrame, false, 56},
		{"codec table takes from the payload", submit, 116, "02", Limits{}, CodeMalformedBody, ScopeFrame, false, 146},
		{"length table", submit, 120, "04", Limits{}, CodeMalformedBody, ScopeFrame, false, 120},
		{"payload_bytes", submit, 124, "ffffffff", Limits{}, CodeMalformedBody, ScopeFrame, false, 144},
		{"stride", submit, 128, "0d", Limits{}, CodeMalformedBody, ScopeFrame, false, 124},
		{"stride without flag", submit, 110, "00", Limits{}, CodeMalformedBody, ScopeFrame, false, 128},
		{"tile longer than its slot", submit, 136, "0d", Limits{}, CodeMalformedBody, ScopeFrame, false, 136},
		{"padding to the stride", submit, 154, "01", Limits{}, CodeMalformedBody, ScopeFrame, false, 154},
		{"padding behind the camera", twoSections, 104 + 5, "01", Limits{}, CodeMalformedBody, ScopeFrame, false, 109},
		{"padding behind the index", twoSections, 118, "01", Limits{}, CodeMalformedBody, ScopeFrame, false, 118},
		{"role does not rise", twoSections, 176, "0100", Limits{}, CodeMalformedBody, ScopeFrame, false, 176},
		{"lengths and payload", twoSections, 155, "04", Limits{}, CodeMalformedBody, ScopeFrame, false, 140},
		{"codec table without flag", twoSections, 126, "0000", Limits{}, CodeMalformedBody, ScopeFrame, false, 132},
		{"bitset count", push, 88, "03", Limits{}, CodeMalformedBody, ScopeFrame, false, 88},
		{"bitset tail", push, 89, "00", Limits{}, CodeMalformedBody, ScopeFrame, false, 88},
		{"result profile", push, 44, "0200", Limits{}, CodeUnsupportedCapability, ScopeSession, false, 44},
		{"result tiles", push, 74, "ffff", Limits{MaxTiles: 100}, CodeLimitExceeded, ScopeSession, false, 74},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := goldenBytes(c.from)
			require.NotPanics(t, func() { copy(b[c.at:], hx(c.value)) })
			_, _, _, err := ParseMessage(b, &c.limits)
			var e *Error
			require.True(t, errors.As(err, &e), "%v", err)
			require.Equal(t, c.code, e.Code, "%v", err)
			require.Equal(t, c.scope, e.Scope, "%v", err)
			require.Equal(t, c.fatal, e.Fatal, "%v", err)
			require.Equal(t, c.offset, e.Offset, "%v", err)
			if h, err := ParseHeader(b); err == nil && h.Type.IsFrame() {
				require.Equal(t, goldenHeader.FrameID, e.FrameID)
				require.Equal(t, goldenHeader.ViewID, e.ViewID)
			}
		})
	}
}

func TestTileIndexModes(t *testing.T) {
	for _, c := range []struct {
		mode TileIndexMode
		ids  []uint32
		base uint32
		data string
	}{
		{DenseRange, []uint32{70000, 70001}, 70000, ""},
		{RawU16, []uint32{3, 1, 2}, 0, "0300 0100 0200"},
		{DeltaU16, []uint32{300, 301, 65535}, 0, "2c01 0100 d2fe"},
		{DeltaU16, []uint32{0, 1}, 0, "0000 0100"},
		{Bitset, []uint32{0, 7, 8, 17}, 0, "81 01 02"},
		{Bitset, nil, 0, ""},
	} {
		x, err := MakeTileIndex(c.mode, c.ids, nil)
		require.NoError(t, err)
		require.Equal(t, c.base, x.Base)
		require.Equal(t, hx(c.data), append([]byte{}, x.Data...))
		require.NoError(t, x.check(MsgFrameSubmit, 0, 0))
		require.Equal(t, c.ids, x.AppendIDs(nil))
	}
	for _, bad := range []TileIndex{
		{Mode: DenseRange, Count: 2, Base: 0xffffffff},
		{Mode: DenseRange, Count: 1, Data: []byte{0, 0}},
		{Mode: RawU16, Count: 2, Data: []byte{0, 0, 1}},
		{Mode: DeltaU16, Count: 2, Data: []byte{5, 0, 0, 0}},
		{Mode: Bitset, Count: 1, Data: []byte{1, 0}},
		{Mode: Bitset, Count: 1, Data: []byte{3}},
		{Mode: Bitset, Count: 1, Data: append(make([]byte, maxBitset), 1)},
	} {
		require.ErrorIs(t, bad.check(MsgFrameSubmit, 0, 0), ErrMalformedBody, "%+v", bad)
	}
	require.ErrorIs(t, (&TileIndex{Mode: 9}).check(MsgFrameSubmit, 0, 0), ErrUnsupportedCapability)
	for _, ids := range [][]uint32{{2, 1}, {1, 1}, {65536}} {
		_, err := MakeTileIndex(DeltaU16, ids, nil)
		require.Error(t, err)
	}
	require.Equal(t, DenseRange, SmallestMode([]uint32{5, 6, 7}))
	require.Equal(t, DeltaU16, SmallestMode([]uint32{5, 6000}))
	require.Equal(t, Bitset, SmallestMode([]uint32{0, 2, 4, 6, 8}))
}

func TestExtensions(t *testing.T) {
	block := AppendExtension(AppendExtension(nil, Extension{Type: 0x4001, Data: []byte("abc")}), Extension{Type: 0x8001, Flags: ExtCritical})
	e, rest, ok := NextExtension(block)
	require.True(t, ok)
	require.Equal(t, Extension{Type: 0x4001, Data: []byte("abc")}, e)
	e, rest, ok = NextExtension(rest)
	require.True(t, ok)
	require.EqualValues(t, 0x8001, e.Type)
	_, _, ok = NextExtension(rest)
	require.False(t, ok)
	require.ErrorIs(t, CheckCritical(block, nil), ErrUnsupportedCapability)
	require.NoError(t, CheckCritical(block, func(t uint16) bool { return t == 0x8001 }))
	require.NoError(t, CheckCritical(block[:16], nil))
}

func TestErrors(t *testing.T) {
	for code := CodeUnsupportedVersion; code <= CodeInternalError; code++ {
		e := NewError(code, "why")
		m := e.Message(7)
		b, err := m.Append(nil, Header{SessionID: 7})
		require.NoError(t, err)
		_, got, _, err := ParseMessage(b, &Limits{})
		require.NoError(t, err)
		back := got.(*ErrorMessage).Err()
		require.Equal(t, code, back.Code)
		require.Equal(t, e.Scope, back.Scope)
		require.Equal(t, e.Fatal, back.Fatal)
		require.ErrorIs(t, back, &Error{Code: code})
		fatal := code == CodeUnsupportedVersion || code == CodeAuthFailed || code == CodeMalformedHeader || code == CodeInternalError
		require.Equal(t, fatal, e.Fatal, code)
		frame := code == CodeFrameExpired || code == CodeFrameCancelled || code == CodeCacheMiss
		require.Equal(t, frame, e.Scope == ScopeFrame, code)
	}
	long := &Error{Code: CodeServerBusy, Detail: string(make([]byte, MaxDiagnostic-1)) + "é"}
	require.Len(t, long.Message(1).Diagnostic, MaxDiagnostic-1)
}

func TestKeyOf(t *testing.T) {
	// SHA-256("abc") = ba7816bf 8f01cfea 414140de 5dae2223 …
	require.Equal(t, CacheKey{0xba7816bf8f01cfea, 0x414140de5dae2223}, KeyOf([]byte("abc")))
}

// TestAllocations: encoding into a buffer with room and parsing into a used message allocate nothing.
func TestAllocations(t *testing.T) {
	const tiles = 100
	lengths := make([]byte, 0, 4*tiles)
	for range tiles {
		lengths = AppendLength(lengths, 12288)
	}
	payload := make([]byte, tiles*12288)
	submit := &FrameSubmit{ProfileID: 1, Tensor: TensorSubmit{640, 640, 64, 64, 0, 0, 0}, TileIndex: TileIndex{Count: tiles},
		Sections: []Section{{RoleID: 1, DType: Uint8, ElementCountPerTile: 12288, LengthTable: lengths, Payload: payload}}}
	wire, err := submit.Append(nil, Header{})
	require.NoError(t, err)
	h, err := ParseHeader(wire)
	require.NoError(t, err)
	var g Gather
	var got FrameSubmit
	l := &Limits{}
	require.NoError(t, got.Parse(&h, wire[HeaderLen:], l))
	require.Zero(t, testing.AllocsPerRun(100, func() {
		if err := submit.Gather(&g, h); err != nil {
			t.Fatal(err)
		}
		if err := got.Parse(&h, wire[HeaderLen:], l); err != nil {
			t.Fatal(err)
		}
	}))
}

func BenchmarkSubmit(b *testing.B) {
	lengths := AppendLength(nil, 640*640*3)
	submit := &FrameSubmit{ProfileID: 1, Tensor: TensorSubmit{640, 640, 640, 640, 0, 0, 0}, TileIndex: TileIndex{Count: 1},
		Sections: []Section{{RoleID: 1, DType: Uint8, ElementCountPerTile: 640 * 640 * 3, LengthTable: lengths, Payload: make([]byte, 640*640*3)}}}
	wire, err := submit.Append(nil, Header{})
	if err != nil {
		b.Fatal(err)
	}
	b.Run("encode", func(b *testing.B) {
		b.ReportAllocs()
		var g Gather
		for b.Loop() {
			if err := submit.Gather(&g, Header{}); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.ReportAllocs()
		var m FrameSubmit
		for b.Loop() {
			h, err := ParseHeader(wire)
			if err == nil {
				err = m.Parse(&h, wire[HeaderLen:], &Limits{})
			}
			if err != nil {
				b.Fatal(err)
			}
		}
	})
}
