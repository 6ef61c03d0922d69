package session

import (
	"fmt"
	"math/bits"
	"strings"
	"time"

	"github.com/cfpipe/cfpipe/nnrp"
)

// Policy is what a runtime offers. The zero value accepts every dtype and layout, raw tiles, one lane, 8 frames at a time, no cache.
type Policy struct {
	Codecs      []nnrp.Codec // beside raw
	DTypes      uint32       // bitmap; 0 = all of section 12.2
	Layouts     uint32       // bitmap; 0 = NHWC and NCHW
	Lanes       uint16       // 0 = 1; at most 64, the width of active_lane_mask
	Concurrent  uint16       // frames at a time; 0 = 8
	MaxBody     uint32       // bytes; 0 = nnrp.DefaultMaxBody
	MaxSections uint16       // 0 = nnrp.DefaultMaxSections
	MaxTiles    uint16       // 0 = all that the wire can say
	MaxCadence  uint16       // fps × 100; 0 = no limit
	Latency     uint16       // ms, for clients that name none; 0 = none
	MaxQuality  uint16       // highest quality_tier
	Clamp       nnrp.TensorClamp
	Cache       CachePolicy
	// Authenticate judges an auth_block; nil accepts everyone as anonymous. It must compare in constant time.
	Authenticate func(auth []byte) (status uint8, ttl time.Duration)
	// Extensions answers the client's with the server's; nil = none. An error refuses the session.
	Extensions func(hello *nnrp.ClientHello) ([]byte, error)
	// KnownExtension tells which CRITICAL extensions are understood.
	KnownExtension func(extType uint16) bool
	SDK            bool // CLIENT_HELLO bodies in the public SDKs' order
}

func (p *Policy) withDefaults() Policy {
	q := *p
	if q.DTypes == 0 {
		q.DTypes = 0xff
	}
	if q.Layouts == 0 {
		q.Layouts = 1<<nnrp.NHWC | 1<<nnrp.NCHW
	}
	q.Lanes = min(max(q.Lanes, 1), 64)
	if q.Concurrent == 0 {
		q.Concurrent = 8
	}
	if q.MaxBody == 0 {
		q.MaxBody = nnrp.DefaultMaxBody
	}
	if q.Clamp.MaxWidth == 0 {
		q.Clamp.MaxWidth = 65535
	}
	if q.Clamp.MaxHeight == 0 {
		q.Clamp.MaxHeight = 65535
	}
	return q
}

func codecBitmap(codecs []nnrp.Codec) uint32 {
	m := uint32(1) << nnrp.CodecRaw
	for _, c := range codecs {
		m |= 1 << c.ID()
	}
	return m
}

// Agreement is what both sides of a session hold after the handshake. The fields of the second group change by SESSION_PATCH.
type Agreement struct {
	SessionID   uint32
	AuthStatus  uint8
	TokenTTL    time.Duration
	Codecs      uint32 // bitmaps
	Compression uint32
	DTypes      uint32
	Layouts     uint32
	Lanes       uint16
	Concurrent  uint16
	LatencyMs   uint16
	Cache       CachePolicy
	Limits      nnrp.Limits
	Extensions  []byte // the server's control_extension_block

	Cadence          uint32 // fps × 100; 0 = unspecified
	Quality          uint16
	Degrade          uint16
	LaneMask         uint64
	CodecPreferred   uint32
	CompressionPrefd uint32
	Clamp            nnrp.TensorClamp

	maxCadence, maxQuality uint16
	clampLimit             nnrp.TensorClamp
}

// Negotiate answers a CLIENT_HELLO: each set is the intersection, each number the smaller one. sessionID is the id to use.
func Negotiate(hello *nnrp.ClientHello, policy *Policy, sessionID uint32) (*nnrp.ServerHelloAck, *Agreement, error) {
	p := policy.withDefaults()
	if hello.MinVersionMajor > nnrp.VersionMajor || hello.MaxVersionMajor < nnrp.VersionMajor || hello.SupportedStageBitmap&nnrp.StagePreview1 == 0 {
		return nil, nil, nnrp.NewError(nnrp.CodeUnsupportedVersion, "versions %d to %d, stages %#x offered; version 1, stage preview1 is spoken here",
			hello.MinVersionMajor, hello.MaxVersionMajor, hello.SupportedStageBitmap)
	}
	a := &Agreement{SessionID: sessionID, AuthStatus: nnrp.AuthAnonymous}
	if p.Authenticate != nil {
		a.AuthStatus, a.TokenTTL = p.Authenticate(hello.Auth)
		switch a.AuthStatus {
		case nnrp.AuthAccepted, nnrp.AuthAnonymous:
		case nnrp.AuthExpired:
			return nil, nil, nnrp.NewError(nnrp.CodeAuthFailed, "the token has expired")
		default:
			return nil, nil, nnrp.NewError(nnrp.CodeAuthFailed, "the token is not accepted")
		}
	}
	if err := nnrp.CheckCritical(hello.Extensions, p.KnownExtension); err != nil {
		return nil, nil, err
	}
	a.Codecs = hello.SupportedCodecBitmap & codecBitmap(p.Codecs)
	a.Compression = hello.SupportedCompressionBitmap & codecBitmap(p.Codecs)
	a.DTypes = hello.SupportedDTypeBitmap & p.DTypes
	a.Layouts = hello.SupportedLayoutBitmap & p.Layouts
	for _, c := range [...]struct {
		name            string
		offered, spoken uint32
		ids             func(uint32) string
	}{
		{"profile", hello.SupportedProfileBitmap, nnrp.ProfileTensorBit, hex},
		{"payload kind", hello.SupportedPayloadKindBitmap, nnrp.PayloadTensorBit | nnrp.PayloadTensorBit<<nnrp.PayloadTensorSDK, hex},
		{"codec", hello.SupportedCodecBitmap, codecBitmap(p.Codecs), hex},
		{"dtype", hello.SupportedDTypeBitmap, p.DTypes, names[nnrp.DType]},
		{"layout", hello.SupportedLayoutBitmap, p.Layouts, names[nnrp.Layout]},
	} {
		if c.offered&c.spoken == 0 {
			return nil, nil, nnrp.NewError(nnrp.CodeUnsupportedCapability, "%s: %s offered, %s is spoken here", c.name, c.ids(c.offered), c.ids(c.spoken))
		}
	}
	a.Lanes = min(max(hello.MaxLaneCount, 1), p.Lanes)
	a.Concurrent = p.Concurrent
	a.LatencyMs = hello.LatencyBudgetMs
	if a.LatencyMs == 0 {
		a.LatencyMs = p.Latency
	}
	a.Cadence = uint32(hello.TargetCadenceX100)
	if p.MaxCadence > 0 && (a.Cadence == 0 || a.Cadence > uint32(p.MaxCadence)) {
		a.Cadence = uint32(p.MaxCadence)
	}
	a.Quality = min(hello.QualityTier, p.MaxQuality)
	a.Degrade = hello.DegradePolicy
	if a.Degrade > nnrp.DegradeAllowAggressiveFallback {
		a.Degrade = nnrp.DegradeServerDefault
	}
	a.LaneMask = allLanes(a.Lanes)
	a.CodecPreferred, a.CompressionPrefd = a.Codecs, a.Compression
	a.Clamp, a.clampLimit, a.maxCadence, a.maxQuality = p.Clamp, p.Clamp, p.MaxCadence, p.MaxQuality
	a.Limits = nnrp.Limits{MaxBody: p.MaxBody, MaxSections: p.MaxSections, MaxTiles: p.MaxTiles, SDK: p.SDK}

	digest := hello.CacheDigestBitmap & nnrp.DigestSHA256
	a.Cache = CachePolicy{Entries: min(hello.MaxCacheEntries, p.Cache.Entries), Bytes: min(hello.MaxCacheBytes, p.Cache.Bytes),
		Objects: hello.CacheObjectBitmap & p.Cache.Objects, Namespaces: min(hello.CacheNamespaceCount, p.Cache.Namespaces), TTL: p.Cache.TTL}
	if digest == 0 || !a.Cache.Enabled() {
		a.Cache, digest = CachePolicy{}, 0
	}
	if p.Extensions != nil {
		var err error
		if a.Extensions, err = p.Extensions(hello); err != nil {
			return nil, nil, err
		}
	}
	ack := &nnrp.ServerHelloAck{
		SelectedVersionMajor: nnrp.VersionMajor, SelectedWireFormat: nnrp.WireFormat, AuthStatus: a.AuthStatus, SessionID: sessionID,
		AcceptedProfileBitmap:     nnrp.ProfileTensorBit,
		AcceptedPayloadKindBitmap: hello.SupportedPayloadKindBitmap & (nnrp.PayloadTensorBit | nnrp.PayloadTensorBit<<nnrp.PayloadTensorSDK),
		AcceptedCodecBitmap:       a.Codecs, AcceptedCompressionBitmap: a.Compression, AcceptedDTypeBitmap: a.DTypes, AcceptedLayoutBitmap: a.Layouts,
		CacheDigestBitmap: uint32(digest), CacheObjectBitmap: uint32(a.Cache.Objects), MaxCacheEntries: a.Cache.Entries, MaxCacheBytes: a.Cache.Bytes,
		MaxLaneCount: a.Lanes, MaxConcurrentFrames: a.Concurrent, TargetCadenceX100: uint16(a.Cadence), LatencyBudgetMs: a.LatencyMs,
		QualityTier: a.Quality, DegradePolicy: a.Degrade, MaxBodyBytes: p.MaxBody,
		TokenTTLMs: uint32(min(a.TokenTTL.Milliseconds(), 1<<32-1)), Extensions: a.Extensions,
	}
	if a.Cache.Enabled() {
		ack.ServerFlags |= nnrp.ServerCacheEnabled
	}
	return ack, a, nil
}

func hex(bitmap uint32) string { return fmt.Sprintf("%#x", bitmap) }

// names lists the ids of a bitmap by name.
func names[T interface {
	~uint8
	String() string
}](bitmap uint32) string {
	if bitmap == 0 {
		return "nothing"
	}
	var list []string
	for ; bitmap != 0; bitmap &= bitmap - 1 {
		list = append(list, T(bits.TrailingZeros32(bitmap)).String())
	}
	return strings.Join(list, "|")
}

// Agree reads a SERVER_HELLO_ACK as the client that sent hello. A server that accepts what was not offered is refused.
func Agree(hello *nnrp.ClientHello, ack *nnrp.ServerHelloAck) (*Agreement, error) {
	if ack.SelectedVersionMajor != nnrp.VersionMajor || ack.SelectedWireFormat != nnrp.WireFormat {
		return nil, nnrp.NewError(nnrp.CodeUnsupportedVersion, "the server selected %d.%d", ack.SelectedVersionMajor, ack.SelectedWireFormat)
	}
	if ack.AuthStatus == nnrp.AuthRejected || ack.AuthStatus == nnrp.AuthExpired {
		return nil, nnrp.NewError(nnrp.CodeAuthFailed, "auth_status %d", ack.AuthStatus)
	}
	for _, c := range [...]struct {
		name              string
		offered, accepted uint32
		needed            bool
	}{
		{"profile", hello.SupportedProfileBitmap, ack.AcceptedProfileBitmap, true},
		{"payload kind", hello.SupportedPayloadKindBitmap, ack.AcceptedPayloadKindBitmap, true},
		{"codec", hello.SupportedCodecBitmap, ack.AcceptedCodecBitmap, true},
		{"compression", hello.SupportedCompressionBitmap, ack.AcceptedCompressionBitmap, false},
		{"dtype", hello.SupportedDTypeBitmap, ack.AcceptedDTypeBitmap, true},
		{"layout", hello.SupportedLayoutBitmap, ack.AcceptedLayoutBitmap, true},
		{"cache digest", uint32(hello.CacheDigestBitmap), ack.CacheDigestBitmap, false},
		{"cache object", uint32(hello.CacheObjectBitmap), ack.CacheObjectBitmap, false},
	} {
		if c.accepted&^c.offered != 0 || c.needed && c.accepted == 0 {
			return nil, nnrp.NewError(nnrp.CodeUnsupportedCapability, "%s bitmap %#x offered, the server accepted %#x", c.name, c.offered, c.accepted)
		}
	}
	if ack.MaxConcurrentFrames == 0 || ack.MaxLaneCount > max(hello.MaxLaneCount, 1) || ack.MaxCacheBytes > hello.MaxCacheBytes ||
		ack.MaxCacheEntries > hello.MaxCacheEntries {
		return nil, nnrp.NewError(nnrp.CodeUnsupportedCapability,
			"the server's limits go beyond the client's: %d frames, %d lanes, cache %d entries, %d bytes",
			ack.MaxConcurrentFrames, ack.MaxLaneCount, ack.MaxCacheEntries, ack.MaxCacheBytes)
	}
	if err := nnrp.CheckCritical(ack.Extensions, nil); err != nil {
		return nil, err
	}
	a := &Agreement{
		SessionID: ack.SessionID, AuthStatus: ack.AuthStatus, TokenTTL: time.Duration(ack.TokenTTLMs) * time.Millisecond,
		Codecs: ack.AcceptedCodecBitmap, Compression: ack.AcceptedCompressionBitmap, DTypes: ack.AcceptedDTypeBitmap, Layouts: ack.AcceptedLayoutBitmap,
		Lanes: max(ack.MaxLaneCount, 1), Concurrent: ack.MaxConcurrentFrames, LatencyMs: ack.LatencyBudgetMs,
		Limits:     nnrp.Limits{MaxBody: ack.MaxBodyBytes, SDK: hello.SDK},
		Extensions: append([]byte(nil), ack.Extensions...),
		Cadence:    uint32(ack.TargetCadenceX100), Quality: ack.QualityTier, Degrade: ack.DegradePolicy,
		CodecPreferred: ack.AcceptedCodecBitmap, CompressionPrefd: ack.AcceptedCompressionBitmap,
		Clamp: nnrp.TensorClamp{MaxWidth: 65535, MaxHeight: 65535},
	}
	a.LaneMask = allLanes(a.Lanes)
	if ack.ServerFlags&nnrp.ServerCacheEnabled != 0 {
		a.Cache = CachePolicy{Entries: ack.MaxCacheEntries, Bytes: ack.MaxCacheBytes, Objects: uint16(ack.CacheObjectBitmap),
			Namespaces: hello.CacheNamespaceCount}
	}
	return a, nil
}

// allLanes is the active_lane_mask with every lane on; the mask has room for 64.
func allLanes(lanes uint16) uint64 { return ^uint64(0) >> (64 - min(lanes, 64)) }

// CheckSubmit compares a frame with what was agreed: lane, picture size, tile ids, dtypes, layouts and codecs.
func (a *Agreement) CheckSubmit(view uint16, m *nnrp.FrameSubmit) error {
	if view >= a.Lanes {
		return nnrp.NewError(nnrp.CodeLimitExceeded, "view_id %d, max_lane_count is %d", view, a.Lanes)
	}
	if a.LaneMask>>view&1 == 0 {
		return nnrp.NewError(nnrp.CodeInvalidState, "lane %d is not active", view)
	}
	w, h := uint32(m.Tensor.SrcWidth), uint32(m.Tensor.SrcHeight)
	if w < a.Clamp.MinWidth || h < a.Clamp.MinHeight || w > a.Clamp.MaxWidth || h > a.Clamp.MaxHeight {
		return nnrp.NewError(nnrp.CodeLimitExceeded, "picture of %d×%d, agreed are %d×%d to %d×%d", w, h,
			a.Clamp.MinWidth, a.Clamp.MinHeight, a.Clamp.MaxWidth, a.Clamp.MaxHeight)
	}
	if err := checkTileIDs(m); err != nil {
		return err
	}
	return a.checkSections(m.Sections)
}

func checkTileIDs(m *nnrp.FrameSubmit) error {
	columns, rows := m.Tensor.Grid()
	grid := uint32(columns * rows)
	last := uint32(0)
	switch x := &m.TileIndex; {
	case x.Count == 0:
		return nil
	case x.Mode == nnrp.DenseRange:
		last = x.Base + uint32(x.Count) - 1
	case x.Mode == nnrp.Bitset:
		n := len(x.Data)
		last = uint32(8*n - 1 - bits.LeadingZeros8(x.Data[n-1]))
	default:
		var id uint32
		for i := 0; i+1 < len(x.Data); i += 2 {
			v := uint32(x.Data[i]) | uint32(x.Data[i+1])<<8
			if x.Mode == nnrp.DeltaU16 {
				id += v
			} else {
				id = v
			}
			last = max(last, id)
		}
	}
	if last >= grid {
		e := nnrp.NewError(nnrp.CodeMalformedBody, "tile %d lies outside the %d×%d tiles of the picture", last, columns, rows)
		e.Scope = nnrp.ScopeFrame
		return e
	}
	return nil
}

func (a *Agreement) checkSections(sections []nnrp.Section) error {
	has := func(bitmap uint32, id uint8) bool { return id < 32 && bitmap>>id&1 != 0 }
	for i := range sections {
		s := &sections[i]
		if !has(a.DTypes, uint8(s.DType)) {
			return nnrp.NewError(nnrp.CodeUnsupportedCapability, "section %d: dtype %s was not agreed (bitmap %#x)", i, s.DType, a.DTypes)
		}
		if !has(a.Layouts, uint8(s.Layout)) {
			return nnrp.NewError(nnrp.CodeUnsupportedCapability, "section %d: layout %s was not agreed (bitmap %#x)", i, s.Layout, a.Layouts)
		}
		if s.Flags&nnrp.SectionCodecTable == 0 && !has(a.Codecs, s.CodecID) {
			return nnrp.NewError(nnrp.CodeUnsupportedCapability, "section %d: codec %d was not agreed (bitmap %#x)", i, s.CodecID, a.Codecs)
		}
		for _, c := range s.CodecTable {
			if !has(a.Codecs, c) {
				return nnrp.NewError(nnrp.CodeUnsupportedCapability, "section %d: codec %d was not agreed (bitmap %#x)", i, c, a.Codecs)
			}
		}
	}
	return nil
}
