package session

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/nnrp"
	"github.com/cfpipe/cfpipe/nnrp/lz4codec"
)

func TestStates(t *testing.T) {
	allowed := map[[2]State]bool{{Init, Negotiating}: true, {Negotiating, Active}: true, {Active, Draining}: true, {Draining, Closed}: true,
		{Init, Closed}: true, {Negotiating, Closed}: true, {Active, Closed}: true}
	for from := Init; from <= Closed; from++ {
		for to := Init; to <= Closed; to++ {
			s := from
			require.Equal(t, allowed[[2]State{from, to}] || from == to, s.To(to), "%s to %s", from, to)
		}
	}
}

// TestMessageOrder: which message a side takes, by state and channel; all else is invalid_state.
func TestMessageOrder(t *testing.T) {
	type rule struct {
		server bool // who receives
		states string
		ch     map[Channel]bool
	}
	on := func(chs ...Channel) map[Channel]bool {
		m := map[Channel]bool{}
		for _, ch := range chs {
			m[ch] = true
		}
		return m
	}
	rules := map[nnrp.MsgType][]rule{
		nnrp.MsgClientHello:     {{true, "I", on(OnControl)}},
		nnrp.MsgServerHelloAck:  {{false, "N", on(OnControl)}},
		nnrp.MsgSessionPatch:    {{true, "A", on(OnControl)}},
		nnrp.MsgSessionPatchAck: {{false, "AD", on(OnControl)}},
		nnrp.MsgClose:           {{true, "NAD", on(OnControl)}, {false, "NAD", on(OnControl)}},
		nnrp.MsgError:           {{true, "NAD", on(OnControl)}, {false, "NAD", on(OnControl)}},
		nnrp.MsgFrameSubmit:     {{true, "A", on(OnStream)}},
		nnrp.MsgFrameCancel:     {{true, "AD", on(OnControl, OnDatagram)}},
		nnrp.MsgResultPush:      {{false, "AD", on(OnStream)}},
		nnrp.MsgResultDrop:      {{false, "AD", on(OnStream, OnDatagram)}},
		nnrp.MsgCachePut:        {{true, "A", on(OnControl)}, {false, "A", on(OnControl)}},
		nnrp.MsgCacheAck:        {{true, "AD", on(OnControl)}, {false, "AD", on(OnControl)}},
		nnrp.MsgCacheInvalidate: {{true, "AD", on(OnControl)}, {false, "AD", on(OnControl)}},
		nnrp.MsgPing:            {{true, "AD", on(OnControl, OnDatagram)}, {false, "AD", on(OnControl, OnDatagram)}},
		nnrp.MsgPong:            {{true, "AD", on(OnControl, OnDatagram)}, {false, "AD", on(OnControl, OnDatagram)}},
	}
	for typ := nnrp.MsgType(1); typ != 0; typ++ {
		for _, server := range []bool{true, false} {
			for st := Init; st <= Closed; st++ {
				for ch := OnControl; ch <= OnDatagram; ch++ {
					want := false
					for _, r := range rules[typ] {
						want = want || r.server == server && r.ch[ch] && containsState(r.states, st)
					}
					err := st.Accept(server, typ, ch)
					switch {
					case want:
						require.NoError(t, err, "%s in %s on %d", typ, st, ch)
					case typ.Known():
						require.ErrorIs(t, err, nnrp.ErrInvalidState, "%s in %s on %d", typ, st, ch)
					default:
						require.ErrorIs(t, err, nnrp.ErrUnsupportedCapability)
					}
				}
			}
		}
	}
}

func containsState(set string, s State) bool {
	for _, r := range set {
		if "INADC"[s] == byte(r) {
			return true
		}
	}
	return false
}

func TestFrames(t *testing.T) {
	f := NewFrames(2)
	k := func(id uint32) FrameKey { return FrameKey{0, id} }
	require.ErrorIs(t, f.Submit(k(0), nnrp.ClassKeyframe, 0), nnrp.ErrInvalidState)
	require.NoError(t, f.Submit(k(1), nnrp.ClassKeyframe, 0))
	require.ErrorIs(t, f.Submit(k(1), nnrp.ClassDelta, 0), nnrp.ErrInvalidState, "the same frame twice")
	require.NoError(t, f.Submit(FrameKey{1, 1}, nnrp.ClassKeyframe, 0), "another lane")
	err := f.Submit(k(2), nnrp.ClassDelta, 1)
	require.ErrorIs(t, err, nnrp.ErrLimitExceeded)
	require.EqualValues(t, 2, asError(err).FrameID)
	require.Equal(t, nnrp.ScopeSession, asError(err).Scope)
	require.False(t, asError(err).Fatal)

	require.False(t, f.Advance(k(1), Delivered), "no result yet")
	require.True(t, f.Advance(k(1), Processing))
	require.False(t, f.Advance(k(1), Submitted), "no way back")
	require.True(t, f.Advance(k(1), Ready))
	require.NoError(t, f.Submit(k(2), nnrp.ClassDelta, 1), "a result on its way out takes no place")
	require.True(t, f.Advance(k(1), Delivered))
	require.False(t, f.Advance(k(1), Cancelled), "final")
	st, ok := f.State(k(1))
	require.True(t, ok)
	require.Equal(t, Delivered, st)
	require.ErrorIs(t, f.Submit(k(1), nnrp.ClassKeyframe, 0), nnrp.ErrInvalidState, "an id is used once")

	for _, final := range []FrameState{Dropped, Cancelled, Expired} {
		for _, from := range []FrameState{Submitted, Processing, Ready} {
			g := NewFrames(1)
			require.NoError(t, g.Submit(k(1), nnrp.ClassKeyframe, 0))
			for s := Processing; s <= from; s++ {
				require.True(t, g.Advance(k(1), s))
			}
			require.True(t, g.Advance(k(1), final))
			require.Zero(t, g.Live())
			require.Zero(t, g.Active())
			for s := Announced; s <= Expired; s++ {
				require.False(t, g.Advance(k(1), s), "%s after %s", s, final)
			}
		}
	}
}

func TestRetransmit(t *testing.T) {
	f := NewFrames(4)
	k := func(id uint32) FrameKey { return FrameKey{3, id} }
	require.ErrorIs(t, f.Submit(k(9), nnrp.ClassRetransmit, 0), nnrp.ErrInvalidState, "without its dependency")
	require.ErrorIs(t, f.Submit(k(9), nnrp.ClassRetransmit, 5), nnrp.ErrInvalidState, "of a frame that never was")
	require.NoError(t, f.Submit(k(5), nnrp.ClassDelta, 0))
	require.NoError(t, f.Submit(k(9), nnrp.ClassRetransmit, 5), "the first is still under way")
	require.True(t, f.Advance(k(5), Dropped))
	require.NoError(t, f.Submit(k(5), nnrp.ClassRetransmit, 5), "under its own id once that has ended")
	require.ErrorIs(t, f.Submit(FrameKey{4, 10}, nnrp.ClassRetransmit, 5), nnrp.ErrInvalidState, "lanes share nothing")

	// What has ended is remembered for a while, in bounded memory.
	g := NewFrames(1)
	for id := uint32(1); id <= frameHistory+50; id++ {
		require.NoError(t, g.Submit(k(id), nnrp.ClassKeyframe, 0))
		require.True(t, g.Advance(k(id), Dropped))
	}
	require.Len(t, g.ended, frameHistory)
	_, known := g.State(k(50))
	require.False(t, known)
	_, known = g.State(k(51))
	require.True(t, known)
}

func TestSuperseded(t *testing.T) {
	f := NewFrames(8)
	for id, class := range map[uint32]nnrp.FrameClass{1: nnrp.ClassDiscardable, 2: nnrp.ClassKeyframe, 3: nnrp.ClassDiscardable,
		9: nnrp.ClassDiscardable} {
		require.NoError(t, f.Submit(FrameKey{0, id}, class, 0))
	}
	require.NoError(t, f.Submit(FrameKey{1, 1}, nnrp.ClassDiscardable, 0))
	require.True(t, f.Advance(FrameKey{0, 3}, Processing))
	require.Equal(t, []FrameKey{{0, 1}}, f.Superseded(FrameKey{0, 8}), "older, of the lane, waiting, and discardable")
}

func TestCache(t *testing.T) {
	now := time.Unix(1000, 0)
	policy := CachePolicy{Entries: 3, Bytes: 100, Objects: 1<<0 | 1<<1, Namespaces: 2, TTL: time.Minute}
	put := func(object string, change func(*nnrp.CachePut)) *nnrp.CachePut {
		p := &nnrp.CachePut{ObjectKind: nnrp.ObjectCamera, CacheKey: nnrp.KeyOf([]byte(object)), Object: []byte(object)}
		if change != nil {
			change(p)
		}
		return p
	}
	big := func(c byte, n int) string { return string(append(make([]byte, n-1), c)) }
	refused := func(t *testing.T, ack nnrp.CacheAck, code nnrp.ErrorCode) {
		t.Helper()
		require.EqualValues(t, nnrp.CacheRejected, ack.Status)
		require.EqualValues(t, code, ack.DetailCode)
	}
	c := NewCache(policy)
	ack := c.Put(put("a", nil), now)
	require.EqualValues(t, nnrp.CacheAccepted, ack.Status)
	require.EqualValues(t, 60000, ack.AcceptedTTLMs)
	require.EqualValues(t, nnrp.CacheReplaced, c.Put(put("a", nil), now).Status)
	got, ok := c.Get(0, nnrp.KeyOf([]byte("a")), now)
	require.True(t, ok)
	require.Equal(t, "a", string(got))
	_, ok = c.Get(1, nnrp.KeyOf([]byte("a")), now)
	require.False(t, ok, "another namespace")

	refused(t, c.Put(put("b", func(p *nnrp.CachePut) { p.Lo++ }), now), nnrp.CodeMalformedBody)
	refused(t, c.Put(put("b", func(p *nnrp.CachePut) { p.ObjectKind = nnrp.ObjectReusableResult }), now), nnrp.CodeUnsupportedCapability)
	refused(t, c.Put(put("b", func(p *nnrp.CachePut) { p.ObjectKind = 0 }), now), nnrp.CodeUnsupportedCapability)
	refused(t, c.Put(put("b", func(p *nnrp.CachePut) { p.Namespace = 2 }), now), nnrp.CodeLimitExceeded)
	refused(t, c.Put(put(big('x', 101), nil), now), nnrp.CodeLimitExceeded)
	refused(t, NewCache(CachePolicy{}).Put(put("b", nil), now), nnrp.CodeUnsupportedCapability)

	// Life: the shorter of the object's and the policy's.
	ack = c.Put(put("short", func(p *nnrp.CachePut) { p.TTLMs = 10 }), now)
	require.EqualValues(t, 10, ack.AcceptedTTLMs)
	require.EqualValues(t, 60000, c.Put(put("long", func(p *nnrp.CachePut) { p.TTLMs = 1 << 30 }), now).AcceptedTTLMs)
	_, ok = c.Get(0, nnrp.KeyOf([]byte("short")), now.Add(9*time.Millisecond))
	require.True(t, ok)
	_, ok = c.Get(0, nnrp.KeyOf([]byte("short")), now.Add(10*time.Millisecond))
	require.False(t, ok)
	require.Equal(t, 2, c.Len())

	// Budget: the least recently used goes first, pinned ones stay.
	c = NewCache(policy)
	pin := func(p *nnrp.CachePut) { p.Flags = nnrp.CachePinned }
	require.EqualValues(t, nnrp.CacheAccepted, c.Put(put(big('p', 50), pin), now).Status)
	refused(t, c.Put(put("q", pin), now), nnrp.CodeLimitExceeded)
	require.EqualValues(t, nnrp.CacheAccepted, c.Put(put(big('1', 25), nil), now).Status)
	require.EqualValues(t, nnrp.CacheAccepted, c.Put(put(big('2', 25), nil), now).Status)
	_, ok = c.Get(0, nnrp.KeyOf([]byte(big('1', 25))), now)
	require.True(t, ok)
	require.EqualValues(t, nnrp.CacheAccepted, c.Put(put(big('3', 25), nil), now).Status)
	_, ok = c.Get(0, nnrp.KeyOf([]byte(big('2', 25))), now)
	require.False(t, ok, "evicted")
	_, ok = c.Get(0, nnrp.KeyOf([]byte(big('p', 50))), now)
	require.True(t, ok, "pinned")
	refused(t, c.Put(put(big('4', 51), nil), now), nnrp.CodeLimitExceeded)
	require.Equal(t, 3, c.Len(), "a refused object evicts nothing")
	require.EqualValues(t, 100, c.Bytes())

	require.Equal(t, 1, c.Invalidate(&nnrp.CacheInvalidate{Scope: nnrp.InvalidateKey, CacheKey: nnrp.KeyOf([]byte(big('p', 50)))}))
	require.EqualValues(t, 50, c.Bytes())
	require.EqualValues(t, nnrp.CacheAccepted, c.Put(put("i", func(p *nnrp.CachePut) { p.ObjectKind = nnrp.ObjectTileIndex }), now).Status)
	require.Equal(t, 1, c.Invalidate(&nnrp.CacheInvalidate{Scope: nnrp.InvalidateKind, ObjectKind: nnrp.ObjectTileIndex}))
	require.Equal(t, 0, c.Invalidate(&nnrp.CacheInvalidate{Scope: nnrp.InvalidateNamespace, Namespace: 1}))
	require.Equal(t, 2, c.Invalidate(&nnrp.CacheInvalidate{Scope: nnrp.InvalidateSession}))
	require.Zero(t, c.Bytes())
}

func offer() nnrp.ClientHello {
	o := ClientOptions{Codecs: []nnrp.Codec{lz4codec.Codec{}}, Hello: nnrp.ClientHello{MaxLaneCount: 4, MaxCacheEntries: 10,
		MaxCacheBytes: 1000, CacheDigestBitmap: 1,
		CacheObjectBitmap: 3, CacheNamespaceCount: 2, TargetCadenceX100: 3000, LatencyBudgetMs: 200, QualityTier: 5, DegradePolicy: 2}}
	return o.hello()
}

func TestNegotiate(t *testing.T) {
	hello := offer()
	policy := &Policy{Codecs: []nnrp.Codec{lz4codec.Codec{}}, DTypes: 1<<nnrp.Uint8 | 1<<nnrp.FP32, Layouts: 1 << nnrp.NCHW, Lanes: 2,
		Concurrent: 3, MaxBody: 1 << 20,
		MaxCadence: 2500, MaxQuality: 3, Cache: CachePolicy{Entries: 5, Bytes: 1 << 20, Objects: 1, Namespaces: 1}}
	ack, a, err := Negotiate(&hello, policy, 77)
	require.NoError(t, err)
	require.Equal(t, nnrp.ServerHelloAck{SelectedVersionMajor: 1, AuthStatus: nnrp.AuthAnonymous, SessionID: 77, AcceptedProfileBitmap: 1,
		AcceptedPayloadKindBitmap: 1, AcceptedCodecBitmap: 3, AcceptedCompressionBitmap: 3, AcceptedDTypeBitmap: 0x22, AcceptedLayoutBitmap: 2,
		CacheDigestBitmap: 1, CacheObjectBitmap: 1, MaxCacheEntries: 5, MaxCacheBytes: 1000, MaxLaneCount: 2, MaxConcurrentFrames: 3,
		TargetCadenceX100: 2500, LatencyBudgetMs: 200, QualityTier: 3, DegradePolicy: 2, MaxBodyBytes: 1 << 20, ServerFlags: nnrp.ServerCacheEnabled}, *ack)
	b, err := Agree(&hello, ack)
	require.NoError(t, err)
	require.Equal(t, a.LaneMask, b.LaneMask)
	require.EqualValues(t, 3, b.LaneMask)
	require.Equal(t, a.Codecs, b.Codecs)
	require.True(t, b.Cache.Enabled())

	for name, c := range map[string]struct {
		change func(*nnrp.ClientHello)
		code   nnrp.ErrorCode
	}{
		"version too new": {func(h *nnrp.ClientHello) { h.MinVersionMajor, h.MaxVersionMajor = 2, 3 }, nnrp.CodeUnsupportedVersion},
		"version too old": {func(h *nnrp.ClientHello) { h.MinVersionMajor, h.MaxVersionMajor = 0, 0 }, nnrp.CodeUnsupportedVersion},
		"stage":           {func(h *nnrp.ClientHello) { h.SupportedStageBitmap = 2 }, nnrp.CodeUnsupportedVersion},
		"profile":         {func(h *nnrp.ClientHello) { h.SupportedProfileBitmap = 2 }, nnrp.CodeUnsupportedCapability},
		"payload":         {func(h *nnrp.ClientHello) { h.SupportedPayloadKindBitmap = 4 }, nnrp.CodeUnsupportedCapability},
		"codec":           {func(h *nnrp.ClientHello) { h.SupportedCodecBitmap = 4 }, nnrp.CodeUnsupportedCapability},
		"dtype":           {func(h *nnrp.ClientHello) { h.SupportedDTypeBitmap = 1 << nnrp.FP16 }, nnrp.CodeUnsupportedCapability},
		"layout":          {func(h *nnrp.ClientHello) { h.SupportedLayoutBitmap = 1 << nnrp.NHWC }, nnrp.CodeUnsupportedCapability},
		"critical extension": {func(h *nnrp.ClientHello) {
			h.Extensions = nnrp.AppendExtension(nil, nnrp.Extension{Type: 0x8123, Flags: nnrp.ExtCritical})
		}, nnrp.CodeUnsupportedCapability},
	} {
		h := offer()
		c.change(&h)
		_, _, err := Negotiate(&h, policy, 1)
		require.ErrorIs(t, err, &nnrp.Error{Code: c.code}, name)
	}
	h := offer()
	h.CacheDigestBitmap = 2
	ack, _, err = Negotiate(&h, policy, 1)
	require.NoError(t, err)
	require.Zero(t, ack.ServerFlags&nnrp.ServerCacheEnabled, "no digest in common, no cache")

	for status, code := range map[uint8]nnrp.ErrorCode{nnrp.AuthRejected: nnrp.CodeAuthFailed, nnrp.AuthExpired: nnrp.CodeAuthFailed} {
		p := Policy{Authenticate: func([]byte) (uint8, time.Duration) { return status, 0 }}
		_, _, err := Negotiate(&h, &p, 1)
		require.ErrorIs(t, err, &nnrp.Error{Code: code})
		require.True(t, asError(err).Fatal)
	}

	// A client does not take what it has not offered.
	for name, change := range map[string]func(*nnrp.ServerHelloAck){
		"version":     func(a *nnrp.ServerHelloAck) { a.SelectedVersionMajor = 2 },
		"auth":        func(a *nnrp.ServerHelloAck) { a.AuthStatus = nnrp.AuthRejected },
		"codec":       func(a *nnrp.ServerHelloAck) { a.AcceptedCodecBitmap = 4 },
		"no dtype":    func(a *nnrp.ServerHelloAck) { a.AcceptedDTypeBitmap = 0 },
		"lanes":       func(a *nnrp.ServerHelloAck) { a.MaxLaneCount = 5 },
		"no frames":   func(a *nnrp.ServerHelloAck) { a.MaxConcurrentFrames = 0 },
		"cache bytes": func(a *nnrp.ServerHelloAck) { a.MaxCacheBytes = 1001 },
	} {
		good, _, err := Negotiate(&hello, policy, 1)
		require.NoError(t, err)
		change(good)
		_, err = Agree(&hello, good)
		require.Error(t, err, name)
	}
}

func TestPatch(t *testing.T) {
	hello := offer()
	_, a, err := Negotiate(&hello, &Policy{Lanes: 2, MaxCadence: 2500, MaxQuality: 3,
		Clamp: nnrp.TensorClamp{MinWidth: 16, MinHeight: 16, MaxWidth: 1024, MaxHeight: 1024}}, 1)
	require.NoError(t, err)
	ack := a.Patch(&nnrp.SessionPatch{PatchMask: nnrp.PatchAll, TargetCadenceX100: 1000, QualityTier: 2, DegradePolicy: 3,
		ActiveLaneMask: 2, PreferredCodecBitmap: 3,
		PreferredCompressionBitmap: 1, ProfilePatch: nnrp.TensorClamp{MinWidth: 64, MinHeight: 64, MaxWidth: 640, MaxHeight: 640}.Append(nil)})
	require.EqualValues(t, nnrp.PatchAccepted, ack.Status)
	require.EqualValues(t, nnrp.PatchAll, ack.AppliedPatchMask)
	require.EqualValues(t, 1, ack.EffectiveCodecBitmap, "preferences that were not agreed have no effect")
	require.EqualValues(t, 640, a.Clamp.MaxWidth)
	client := *a
	client.Patched(ack)
	require.Equal(t, *a, client)

	ack = a.Patch(&nnrp.SessionPatch{PatchMask: nnrp.PatchTargetCadence | nnrp.PatchQualityTier, TargetCadenceX100: 9000, QualityTier: 1})
	require.EqualValues(t, nnrp.PatchPartial, ack.Status)
	require.EqualValues(t, nnrp.PatchQualityTier, ack.AppliedPatchMask)
	require.EqualValues(t, nnrp.PatchTargetCadence, ack.RejectedPatchMask)
	require.EqualValues(t, nnrp.ReasonOutOfRange, ack.Reason)
	require.EqualValues(t, 1000, ack.EffectiveTargetCadenceX100)

	for name, c := range map[string]struct {
		p      nnrp.SessionPatch
		reason uint16
	}{
		"unknown bit":   {nnrp.SessionPatch{PatchMask: 0x80}, nnrp.ReasonInvalidFieldMask},
		"other profile": {nnrp.SessionPatch{ProfileID: 2, PatchMask: nnrp.PatchQualityTier}, nnrp.ReasonImmutableField},
		"degrade":       {nnrp.SessionPatch{PatchMask: nnrp.PatchDegradePolicy, DegradePolicy: 4}, nnrp.ReasonUnsupportedValue},
		"no lane":       {nnrp.SessionPatch{PatchMask: nnrp.PatchActiveLaneMask}, nnrp.ReasonOutOfRange},
		"lane":          {nnrp.SessionPatch{PatchMask: nnrp.PatchActiveLaneMask, ActiveLaneMask: 4}, nnrp.ReasonOutOfRange},
		"codec":         {nnrp.SessionPatch{PatchMask: nnrp.PatchPreferredCodec, PreferredCodecBitmap: 2}, nnrp.ReasonUnsupportedValue},
		"no block":      {nnrp.SessionPatch{PatchMask: nnrp.PatchProfile}, nnrp.ReasonInvalidFieldMask},
		"clamp": {nnrp.SessionPatch{PatchMask: nnrp.PatchProfile, ProfilePatch: nnrp.TensorClamp{MinWidth: 64, MaxWidth: 2000, MinHeight: 64,
			MaxHeight: 640}.Append(nil)}, nnrp.ReasonOutOfRange},
	} {
		before := *a
		ack := a.Patch(&c.p)
		require.EqualValues(t, nnrp.PatchRejected, ack.Status, name)
		require.Equal(t, c.p.PatchMask, ack.RejectedPatchMask, name)
		require.Equal(t, c.reason, ack.Reason, name)
		require.Equal(t, before, *a, name)
	}
}

func TestCheckSubmit(t *testing.T) {
	hello := offer()
	_, a, err := Negotiate(&hello, &Policy{Lanes: 2, DTypes: 1 << nnrp.Uint8, Clamp: nnrp.TensorClamp{MinWidth: 32, MinHeight: 16,
		MaxWidth: 64, MaxHeight: 64}}, 1)
	require.NoError(t, err)
	good := func() *nnrp.FrameSubmit {
		return &nnrp.FrameSubmit{ProfileID: 1, Tensor: nnrp.TensorSubmit{SrcWidth: 40, SrcHeight: 16, TileWidth: 16, TileHeight: 16},
			TileIndex: nnrp.TileIndex{Count: 3}, Sections: []nnrp.Section{{RoleID: 1, DType: nnrp.Uint8}}}
	}
	require.NoError(t, a.CheckSubmit(1, good()))
	for name, c := range map[string]struct {
		view   uint16
		change func(*nnrp.FrameSubmit)
		code   nnrp.ErrorCode
	}{
		"view":      {2, func(*nnrp.FrameSubmit) {}, nnrp.CodeLimitExceeded},
		"too large": {0, func(m *nnrp.FrameSubmit) { m.Tensor.SrcWidth = 65 }, nnrp.CodeLimitExceeded},
		"too small": {0, func(m *nnrp.FrameSubmit) { m.Tensor.SrcHeight = 15 }, nnrp.CodeLimitExceeded},
		"dense":     {0, func(m *nnrp.FrameSubmit) { m.TileIndex.Base = 1 }, nnrp.CodeMalformedBody},
		"no tiles":  {0, func(m *nnrp.FrameSubmit) { m.Tensor.TileWidth = 0 }, nnrp.CodeMalformedBody},
		"bitset":    {0, func(m *nnrp.FrameSubmit) { m.TileIndex = nnrp.TileIndex{Mode: nnrp.Bitset, Count: 1, Data: []byte{8}} }, nnrp.CodeMalformedBody},
		"delta": {0, func(m *nnrp.FrameSubmit) {
			m.TileIndex = nnrp.TileIndex{Mode: nnrp.DeltaU16, Count: 2, Data: []byte{1, 0, 2, 0}}
		}, nnrp.CodeMalformedBody},
		"raw": {0, func(m *nnrp.FrameSubmit) {
			m.TileIndex = nnrp.TileIndex{Mode: nnrp.RawU16, Count: 2, Data: []byte{3, 0, 1, 0}}
		}, nnrp.CodeMalformedBody},
		"dtype":  {0, func(m *nnrp.FrameSubmit) { m.Sections[0].DType = nnrp.FP32 }, nnrp.CodeUnsupportedCapability},
		"layout": {0, func(m *nnrp.FrameSubmit) { m.Sections[0].Layout = 40 }, nnrp.CodeUnsupportedCapability},
		"codec":  {0, func(m *nnrp.FrameSubmit) { m.Sections[0].CodecID = nnrp.CodecLZ4 }, nnrp.CodeUnsupportedCapability},
		"codec table": {0, func(m *nnrp.FrameSubmit) { m.Sections[0].Flags, m.Sections[0].CodecTable = 1, []byte{0, 0, 1} },
			nnrp.CodeUnsupportedCapability},
	} {
		m := good()
		c.change(m)
		err := a.CheckSubmit(c.view, m)
		require.ErrorIs(t, err, &nnrp.Error{Code: c.code}, name)
		require.False(t, asError(err).Fatal, name)
	}
	a.LaneMask = 1
	require.ErrorIs(t, a.CheckSubmit(1, good()), nnrp.ErrInvalidState)
}
