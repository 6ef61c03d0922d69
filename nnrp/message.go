package nnrp

import "fmt"

// Message is any message of section 9.
type Message interface {
	Type() MsgType
	// Append adds header, metadata and body to b. It sets the header's type and lengths; the other fields are the caller's.
	Append(b []byte, h Header) ([]byte, error)
	// Parse reads metadata and body, which follow the header in payload; bytes behind them are ignored. Slices of the message alias
	// payload.
	Parse(h *Header, payload []byte, l *Limits) error
}

// NewMessage returns an empty message of the type, nil for a type that section 9 does not name.
func NewMessage(t MsgType) Message {
	switch t {
	case MsgClientHello:
		return new(ClientHello)
	case MsgServerHelloAck:
		return new(ServerHelloAck)
	case MsgSessionPatch:
		return new(SessionPatch)
	case MsgSessionPatchAck:
		return new(SessionPatchAck)
	case MsgClose:
		return new(Close)
	case MsgError:
		return new(ErrorMessage)
	case MsgFrameSubmit:
		return new(FrameSubmit)
	case MsgResultPush:
		return new(ResultPush)
	case MsgCachePut:
		return new(CachePut)
	case MsgCacheAck:
		return new(CacheAck)
	case MsgCacheInvalidate:
		return new(CacheInvalidate)
	case MsgFrameCancel, MsgResultDrop, MsgPing, MsgPong:
		return &Bare{Msg: t}
	}
	return nil
}

// ParseMessage reads one whole message from the front of b and returns it with its size. ErrShort: b ends inside the message.
func ParseMessage(b []byte, l *Limits) (Header, Message, int, error) {
	h, err := ParseHeader(b)
	if err != nil {
		return h, nil, 0, err
	}
	if err := h.Check(l); err != nil {
		return h, nil, 0, err
	}
	m := NewMessage(h.Type)
	if m == nil {
		e := NewError(CodeUnsupportedCapability, "message type 0x%02x is not known", uint8(h.Type))
		e.Offset = 6
		return h, nil, 0, e
	}
	if int64(len(b)) < h.Size() {
		return h, nil, 0, ErrShort
	}
	if err := m.Parse(&h, b[HeaderLen:], l); err != nil {
		return h, nil, 0, err
	}
	return h, m, int(h.Size()), nil
}

// Codec compresses and decompresses the tiles of a section.
type Codec interface {
	ID() uint8
	// Append adds the encoded form of src to dst. ok is false, and dst unchanged, when src does not shrink.
	Append(dst, src []byte) (out []byte, ok bool)
	// Decode fills dst; an encoded form that is not exactly len(dst) bytes long is an error.
	Decode(dst, src []byte) error
}

// DecodeTile writes one tile's elements to dst, which has the section's TileBytes. codecs are those agreed beside raw.
func DecodeTile(dst []byte, codec uint8, data []byte, codecs []Codec) error {
	if codec == CodecRaw {
		if len(data) != len(dst) {
			return fmt.Errorf("raw tile of %d bytes, element_count_per_tile makes %d", len(data), len(dst))
		}
		copy(dst, data)
		return nil
	}
	for _, c := range codecs {
		if c.ID() == codec {
			return c.Decode(dst, data)
		}
	}
	return fmt.Errorf("codec %d was not agreed", codec)
}
