package nnrp

import (
	"crypto/sha256"
	"encoding/binary"
)

// CachePutLen, CacheAckLen and CacheInvalidateLen are the sizes of the fixed metadata.
const (
	CachePutLen        = 40
	CacheAckLen        = 40
	CacheInvalidateLen = 32
)

// DigestSHA256 is the bit of digest bitmaps for the first 128 bits of SHA-256.
const DigestSHA256 = 1 << 0

// Object kinds; the bit of object bitmaps is 1 << (kind-1).
const (
	ObjectCamera         = 1
	ObjectTileIndex      = 2
	ObjectSectionTable   = 3
	ObjectCodecTable     = 4
	ObjectReusableResult = 5
	ObjectLayoutTemplate = 6
	ObjectAllBits        = 1<<6 - 1
)

// CacheKey is the 128-bit digest that names an object.
type CacheKey struct {
	Hi uint64
	Lo uint64
}

// KeyOf returns the first 128 bits of the object's SHA-256: Hi is bytes 0–7, Lo bytes 8–15, both big-endian.
func KeyOf(object []byte) CacheKey {
	d := sha256.Sum256(object)
	return CacheKey{binary.BigEndian.Uint64(d[:8]), binary.BigEndian.Uint64(d[8:16])}
}

// flags of CACHE_PUT.
const (
	CachePinned   = 1
	CacheReusable = 2
)

// CachePut installs an object (section 17.4). Body: the object.
//
//	Offset Size Field          Offset Size Field
//	0      4    namespace      24     4    ttl_ms
//	4      4    object_kind    28     4    object_bytes
//	8      8    key_hi         32     4    codec_bitmap
//	16     8    key_lo         36     4    flags
type CachePut struct {
	Namespace  uint32
	ObjectKind uint32
	CacheKey
	TTLMs       uint32
	CodecBitmap uint32
	Flags       uint32
	Object      []byte
}

// Type returns CACHE_PUT.
func (*CachePut) Type() MsgType { return MsgCachePut }

// Append adds the whole message.
func (m *CachePut) Append(b []byte, h Header) ([]byte, error) {
	b, err := h.begin(b, MsgCachePut, uint64(len(m.Object)))
	if err != nil {
		return b, err
	}
	b = le.AppendUint32(b, m.Namespace)
	b = le.AppendUint32(b, m.ObjectKind)
	b = le.AppendUint64(b, m.Hi)
	b = le.AppendUint64(b, m.Lo)
	b = le.AppendUint32(b, m.TTLMs)
	b = le.AppendUint32(b, uint32(len(m.Object)))
	b = le.AppendUint32(b, m.CodecBitmap)
	b = le.AppendUint32(b, m.Flags)
	return append(b, m.Object...), nil
}

// Parse reads metadata and body. It does not compare the key with the object's digest.
func (m *CachePut) Parse(h *Header, payload []byte, l *Limits) error {
	p, body, err := split(h, MsgCachePut, payload, l)
	if err != nil {
		return err
	}
	*m = CachePut{
		Namespace:   le.Uint32(p[0:]),
		ObjectKind:  le.Uint32(p[4:]),
		CacheKey:    CacheKey{le.Uint64(p[8:]), le.Uint64(p[16:])},
		TTLMs:       le.Uint32(p[24:]),
		CodecBitmap: le.Uint32(p[32:]),
		Flags:       le.Uint32(p[36:]),
	}
	if m.Object, err = body.block(uint64(le.Uint32(p[28:])), "object"); err != nil {
		return err
	}
	return body.end()
}

// Status of CACHE_ACK.
const (
	CacheAccepted = 0
	CacheRejected = 1
	CacheReplaced = 2
)

// CacheAck answers CACHE_PUT. Body: control_extension_block.
//
//	Offset Size Field          Offset Size Field
//	0      4    namespace      24     4    accepted_ttl_ms
//	4      4    status         28     4    max_object_bytes
//	8      8    key_hi         32     4    detail_code
//	16     8    key_lo         36     4    reserved
type CacheAck struct {
	Namespace uint32
	Status    uint32
	CacheKey
	AcceptedTTLMs  uint32
	MaxObjectBytes uint32
	DetailCode     uint32
	Reserved       uint32
	Extensions     []byte
}

// Type returns CACHE_ACK.
func (*CacheAck) Type() MsgType { return MsgCacheAck }

// Append adds the whole message.
func (m *CacheAck) Append(b []byte, h Header) ([]byte, error) {
	if err := validExtensions(MsgCacheAck, m.Extensions); err != nil {
		return b, err
	}
	b, err := h.begin(b, MsgCacheAck, uint64(len(m.Extensions)))
	if err != nil {
		return b, err
	}
	b = le.AppendUint32(b, m.Namespace)
	b = le.AppendUint32(b, m.Status)
	b = le.AppendUint64(b, m.Hi)
	b = le.AppendUint64(b, m.Lo)
	for _, v := range [...]uint32{m.AcceptedTTLMs, m.MaxObjectBytes, m.DetailCode, m.Reserved} {
		b = le.AppendUint32(b, v)
	}
	return append(b, m.Extensions...), nil
}

// Parse reads metadata and body.
func (m *CacheAck) Parse(h *Header, payload []byte, l *Limits) error {
	p, body, err := split(h, MsgCacheAck, payload, l)
	if err != nil {
		return err
	}
	*m = CacheAck{
		Namespace:      le.Uint32(p[0:]),
		Status:         le.Uint32(p[4:]),
		CacheKey:       CacheKey{le.Uint64(p[8:]), le.Uint64(p[16:])},
		AcceptedTTLMs:  le.Uint32(p[24:]),
		MaxObjectBytes: le.Uint32(p[28:]),
		DetailCode:     le.Uint32(p[32:]),
		Reserved:       le.Uint32(p[36:]),
	}
	m.Extensions, err = body.rest()
	return err
}

// scope of CACHE_INVALIDATE.
const (
	InvalidateSession   = 0
	InvalidateNamespace = 1
	InvalidateKind      = 2
	InvalidateKey       = 3
)

// CacheInvalidate evicts objects. Body: control_extension_block.
//
//	Offset Size Field          Offset Size Field
//	0      4    scope          16     8    key_lo
//	4      4    namespace      24     4    object_kind
//	8      8    key_hi         28     4    reason_code
type CacheInvalidate struct {
	Scope     uint32
	Namespace uint32
	CacheKey
	ObjectKind uint32
	ReasonCode uint32
	Extensions []byte
}

// Type returns CACHE_INVALIDATE.
func (*CacheInvalidate) Type() MsgType { return MsgCacheInvalidate }

// Append adds the whole message.
func (m *CacheInvalidate) Append(b []byte, h Header) ([]byte, error) {
	if err := validExtensions(MsgCacheInvalidate, m.Extensions); err != nil {
		return b, err
	}
	b, err := h.begin(b, MsgCacheInvalidate, uint64(len(m.Extensions)))
	if err != nil {
		return b, err
	}
	b = le.AppendUint32(b, m.Scope)
	b = le.AppendUint32(b, m.Namespace)
	b = le.AppendUint64(b, m.Hi)
	b = le.AppendUint64(b, m.Lo)
	b = le.AppendUint32(b, m.ObjectKind)
	b = le.AppendUint32(b, m.ReasonCode)
	return append(b, m.Extensions...), nil
}

// Parse reads metadata and body.
func (m *CacheInvalidate) Parse(h *Header, payload []byte, l *Limits) error {
	p, body, err := split(h, MsgCacheInvalidate, payload, l)
	if err != nil {
		return err
	}
	*m = CacheInvalidate{
		Scope:      le.Uint32(p[0:]),
		Namespace:  le.Uint32(p[4:]),
		CacheKey:   CacheKey{le.Uint64(p[8:]), le.Uint64(p[16:])},
		ObjectKind: le.Uint32(p[24:]),
		ReasonCode: le.Uint32(p[28:]),
	}
	if m.Scope > InvalidateKey {
		return malformedBody(MsgCacheInvalidate, HeaderLen, "scope %d is none of session, namespace, kind, key", m.Scope)
	}
	m.Extensions, err = body.rest()
	return err
}
