package nnrp

import "fmt"

// ClientHelloLen is the size of CLIENT_HELLO's fixed metadata.
const ClientHelloLen = 64

// ClientHello opens a connection (section 6.2.1). Body: auth_block, then control_extension_block (with Limits.SDK the other way round,
// without padding).
//
//	Offset Size Field                          Offset Size Field
//	0      1    min_version_major              32     2    cache_namespace_count
//	1      1    max_version_major              34     2    max_lane_count
//	2      2    supported_stage_bitmap         36     4    max_cache_entries
//	4      4    supported_profile_bitmap       40     4    max_cache_bytes
//	8      4    supported_payload_kind_bitmap  44     2    target_cadence_x100
//	12     4    supported_codec_bitmap         46     2    latency_budget_ms
//	16     4    supported_compression_bitmap   48     2    quality_tier
//	20     4    supported_dtype_bitmap         50     2    degrade_policy
//	24     4    supported_layout_bitmap        52     4    requested_session_id
//	28     2    cache_digest_bitmap            56     4    auth_bytes
//	30     2    cache_object_bitmap            60     4    control_extension_bytes
type ClientHello struct {
	MinVersionMajor            uint8
	MaxVersionMajor            uint8
	SupportedStageBitmap       uint16
	SupportedProfileBitmap     uint32
	SupportedPayloadKindBitmap uint32
	SupportedCodecBitmap       uint32
	SupportedCompressionBitmap uint32
	SupportedDTypeBitmap       uint32
	SupportedLayoutBitmap      uint32
	CacheDigestBitmap          uint16
	CacheObjectBitmap          uint16
	CacheNamespaceCount        uint16
	MaxLaneCount               uint16
	MaxCacheEntries            uint32
	MaxCacheBytes              uint32
	TargetCadenceX100          uint16
	LatencyBudgetMs            uint16
	QualityTier                uint16
	DegradePolicy              uint16
	RequestedSessionID         uint32
	Auth                       []byte // secret: never printed
	Extensions                 []byte // control_extension_block
	SDK                        bool   // the body is in the public SDKs' order
}

// Type returns CLIENT_HELLO.
func (*ClientHello) Type() MsgType { return MsgClientHello }

// Append adds the whole message. m.SDK chooses the order of the body.
func (m *ClientHello) Append(b []byte, h Header) ([]byte, error) {
	if err := validExtensions(MsgClientHello, m.Extensions); err != nil {
		return b, err
	}
	auth, ext := uint64(len(m.Auth)), uint64(len(m.Extensions))
	size := auth + ext
	if !m.SDK && ext > 0 {
		size = align8(auth) + ext
	}
	if size > MaxControlBody {
		return b, fmt.Errorf("nnrp: encode CLIENT_HELLO: body of %d bytes is above %d", size, MaxControlBody)
	}
	b, err := h.begin(b, MsgClientHello, size)
	if err != nil {
		return b, err
	}
	b = append(b, m.MinVersionMajor, m.MaxVersionMajor)
	b = le.AppendUint16(b, m.SupportedStageBitmap)
	b = le.AppendUint32(b, m.SupportedProfileBitmap)
	b = le.AppendUint32(b, m.SupportedPayloadKindBitmap)
	b = le.AppendUint32(b, m.SupportedCodecBitmap)
	b = le.AppendUint32(b, m.SupportedCompressionBitmap)
	b = le.AppendUint32(b, m.SupportedDTypeBitmap)
	b = le.AppendUint32(b, m.SupportedLayoutBitmap)
	b = le.AppendUint16(b, m.CacheDigestBitmap)
	b = le.AppendUint16(b, m.CacheObjectBitmap)
	b = le.AppendUint16(b, m.CacheNamespaceCount)
	b = le.AppendUint16(b, m.MaxLaneCount)
	b = le.AppendUint32(b, m.MaxCacheEntries)
	b = le.AppendUint32(b, m.MaxCacheBytes)
	b = le.AppendUint16(b, m.TargetCadenceX100)
	b = le.AppendUint16(b, m.LatencyBudgetMs)
	b = le.AppendUint16(b, m.QualityTier)
	b = le.AppendUint16(b, m.DegradePolicy)
	b = le.AppendUint32(b, m.RequestedSessionID)
	b = le.AppendUint32(b, uint32(auth))
	b = le.AppendUint32(b, uint32(ext))
	if m.SDK {
		return append(append(b, m.Extensions...), m.Auth...), nil
	}
	start := len(b)
	b = append(b, m.Auth...)
	if ext > 0 {
		b = append(pad(b, start), m.Extensions...)
	}
	return b, nil
}

// Parse reads metadata and body.
func (m *ClientHello) Parse(h *Header, payload []byte, l *Limits) error {
	p, body, err := split(h, MsgClientHello, payload, l)
	if err != nil {
		return err
	}
	*m = ClientHello{
		MinVersionMajor: p[0], MaxVersionMajor: p[1],
		SupportedStageBitmap:       le.Uint16(p[2:]),
		SupportedProfileBitmap:     le.Uint32(p[4:]),
		SupportedPayloadKindBitmap: le.Uint32(p[8:]),
		SupportedCodecBitmap:       le.Uint32(p[12:]),
		SupportedCompressionBitmap: le.Uint32(p[16:]),
		SupportedDTypeBitmap:       le.Uint32(p[20:]),
		SupportedLayoutBitmap:      le.Uint32(p[24:]),
		CacheDigestBitmap:          le.Uint16(p[28:]),
		CacheObjectBitmap:          le.Uint16(p[30:]),
		CacheNamespaceCount:        le.Uint16(p[32:]),
		MaxLaneCount:               le.Uint16(p[34:]),
		MaxCacheEntries:            le.Uint32(p[36:]),
		MaxCacheBytes:              le.Uint32(p[40:]),
		TargetCadenceX100:          le.Uint16(p[44:]),
		LatencyBudgetMs:            le.Uint16(p[46:]),
		QualityTier:                le.Uint16(p[48:]),
		DegradePolicy:              le.Uint16(p[50:]),
		RequestedSessionID:         le.Uint32(p[52:]),
		SDK:                        l.SDK,
	}
	auth, ext := uint64(le.Uint32(p[56:])), uint64(le.Uint32(p[60:]))
	if l.SDK {
		if m.Extensions, err = body.take(ext, "control_extension_block"); err != nil {
			return err
		}
		if m.Auth, err = body.take(auth, "auth_block"); err != nil {
			return err
		}
		if err := checkExtensions(MsgClientHello, m.Extensions, body.base); err != nil {
			return err
		}
		return body.end()
	}
	if m.Auth, err = body.block(auth, "auth_block"); err != nil {
		return err
	}
	m.Extensions, err = extensionBlock(&body, ext)
	return err
}

// extensionBlock reads the last block of a body, a control_extension_block of exactly n bytes.
func extensionBlock(body *bodyReader, n uint64) ([]byte, error) {
	block, err := body.block(n, "control_extension_block")
	if err != nil {
		return nil, err
	}
	if err := checkExtensions(body.t, block, body.at()-len(block)); err != nil {
		return nil, err
	}
	return block, body.end()
}

// ServerHelloAckLen is the size of SERVER_HELLO_ACK's fixed metadata.
const ServerHelloAckLen = 80

// ServerHelloAck answers CLIENT_HELLO (section 6.3.1). Body: control_extension_block.
//
//	Offset Size Field                         Offset Size Field
//	0      1    selected_version_major        44     4    max_cache_bytes
//	1      1    selected_wire_format          48     2    max_lane_count
//	2      1    auth_status                   50     2    max_concurrent_frames
//	3      1    reserved0                     52     2    target_cadence_x100
//	4      4    session_id                    54     2    latency_budget_ms
//	8      4    accepted_profile_bitmap       56     2    quality_tier
//	12     4    accepted_payload_kind_bitmap  58     2    degrade_policy
//	16     4    accepted_codec_bitmap         60     4    max_body_bytes
//	20     4    accepted_compression_bitmap   64     4    token_ttl_ms
//	24     4    accepted_dtype_bitmap         68     4    retry_after_ms
//	28     4    accepted_layout_bitmap        72     4    control_extension_bytes
//	32     4    cache_digest_bitmap           76     4    server_flags
//	36     4    cache_object_bitmap
//	40     4    max_cache_entries
type ServerHelloAck struct {
	SelectedVersionMajor      uint8
	SelectedWireFormat        uint8
	AuthStatus                uint8
	Reserved0                 uint8
	SessionID                 uint32
	AcceptedProfileBitmap     uint32
	AcceptedPayloadKindBitmap uint32
	AcceptedCodecBitmap       uint32
	AcceptedCompressionBitmap uint32
	AcceptedDTypeBitmap       uint32
	AcceptedLayoutBitmap      uint32
	CacheDigestBitmap         uint32
	CacheObjectBitmap         uint32
	MaxCacheEntries           uint32
	MaxCacheBytes             uint32
	MaxLaneCount              uint16
	MaxConcurrentFrames       uint16
	TargetCadenceX100         uint16
	LatencyBudgetMs           uint16
	QualityTier               uint16
	DegradePolicy             uint16
	MaxBodyBytes              uint32
	TokenTTLMs                uint32
	RetryAfterMs              uint32
	ServerFlags               uint32
	Extensions                []byte // control_extension_block
}

// server_flags.
const (
	ServerCacheEnabled    = 0x00000001
	ServerResumeSupported = 0x00000002
	ServerClampNeedsPatch = 0x00000004
)

// Type returns SERVER_HELLO_ACK.
func (*ServerHelloAck) Type() MsgType { return MsgServerHelloAck }

// Append adds the whole message.
func (m *ServerHelloAck) Append(b []byte, h Header) ([]byte, error) {
	if err := validExtensions(MsgServerHelloAck, m.Extensions); err != nil {
		return b, err
	}
	if len(m.Extensions) > MaxControlBody {
		return b, fmt.Errorf("nnrp: encode SERVER_HELLO_ACK: body of %d bytes is above %d", len(m.Extensions), MaxControlBody)
	}
	b, err := h.begin(b, MsgServerHelloAck, uint64(len(m.Extensions)))
	if err != nil {
		return b, err
	}
	b = append(b, m.SelectedVersionMajor, m.SelectedWireFormat, m.AuthStatus, m.Reserved0)
	for _, v := range [...]uint32{m.SessionID, m.AcceptedProfileBitmap, m.AcceptedPayloadKindBitmap, m.AcceptedCodecBitmap,
		m.AcceptedCompressionBitmap, m.AcceptedDTypeBitmap, m.AcceptedLayoutBitmap, m.CacheDigestBitmap, m.CacheObjectBitmap,
		m.MaxCacheEntries, m.MaxCacheBytes} {
		b = le.AppendUint32(b, v)
	}
	for _, v := range [...]uint16{m.MaxLaneCount, m.MaxConcurrentFrames, m.TargetCadenceX100, m.LatencyBudgetMs, m.QualityTier, m.DegradePolicy} {
		b = le.AppendUint16(b, v)
	}
	for _, v := range [...]uint32{m.MaxBodyBytes, m.TokenTTLMs, m.RetryAfterMs, uint32(len(m.Extensions)), m.ServerFlags} {
		b = le.AppendUint32(b, v)
	}
	return append(b, m.Extensions...), nil
}

// Parse reads metadata and body.
func (m *ServerHelloAck) Parse(h *Header, payload []byte, l *Limits) error {
	p, body, err := split(h, MsgServerHelloAck, payload, l)
	if err != nil {
		return err
	}
	*m = ServerHelloAck{
		SelectedVersionMajor: p[0], SelectedWireFormat: p[1], AuthStatus: p[2], Reserved0: p[3],
		SessionID:                 le.Uint32(p[4:]),
		AcceptedProfileBitmap:     le.Uint32(p[8:]),
		AcceptedPayloadKindBitmap: le.Uint32(p[12:]),
		AcceptedCodecBitmap:       le.Uint32(p[16:]),
		AcceptedCompressionBitmap: le.Uint32(p[20:]),
		AcceptedDTypeBitmap:       le.Uint32(p[24:]),
		AcceptedLayoutBitmap:      le.Uint32(p[28:]),
		CacheDigestBitmap:         le.Uint32(p[32:]),
		CacheObjectBitmap:         le.Uint32(p[36:]),
		MaxCacheEntries:           le.Uint32(p[40:]),
		MaxCacheBytes:             le.Uint32(p[44:]),
		MaxLaneCount:              le.Uint16(p[48:]),
		MaxConcurrentFrames:       le.Uint16(p[50:]),
		TargetCadenceX100:         le.Uint16(p[52:]),
		LatencyBudgetMs:           le.Uint16(p[54:]),
		QualityTier:               le.Uint16(p[56:]),
		DegradePolicy:             le.Uint16(p[58:]),
		MaxBodyBytes:              le.Uint32(p[60:]),
		TokenTTLMs:                le.Uint32(p[64:]),
		RetryAfterMs:              le.Uint32(p[68:]),
		ServerFlags:               le.Uint32(p[76:]),
	}
	m.Extensions, err = extensionBlock(&body, uint64(le.Uint32(p[72:])))
	return err
}
