package nnrp

import "encoding/binary"

var le = binary.LittleEndian

// HeaderLen is the size of the common header in bytes.
const HeaderLen = 40

// Header is the common header of every message (section 8).
//
//	Offset Size Field
//	0      4    magic          "NNRP"
//	4      1    version_major  1
//	5      1    wire_format    0
//	6      1    msg_type
//	7      1    header_len     40
//	8      4    flags
//	12     4    meta_len
//	16     4    body_len
//	20     4    session_id
//	24     4    frame_id
//	28     2    view_id
//	30     2    route_id
//	32     8    trace_id
type Header struct {
	Type      MsgType
	Flags     Flags
	MetaLen   uint32 // set by Append
	BodyLen   uint32 // set by Append
	SessionID uint32
	FrameID   uint32
	ViewID    uint16
	RouteID   uint16
	TraceID   uint64
}

// Append adds the 40 bytes of the header.
func (h *Header) Append(b []byte) []byte {
	b = append(b, 'N', 'N', 'R', 'P', VersionMajor, WireFormat, byte(h.Type), HeaderLen)
	b = le.AppendUint32(b, uint32(h.Flags))
	b = le.AppendUint32(b, h.MetaLen)
	b = le.AppendUint32(b, h.BodyLen)
	b = le.AppendUint32(b, h.SessionID)
	b = le.AppendUint32(b, h.FrameID)
	b = le.AppendUint16(b, h.ViewID)
	b = le.AppendUint16(b, h.RouteID)
	return le.AppendUint64(b, h.TraceID)
}

// begin appends the header of a message with the given sizes.
func (h Header) begin(b []byte, t MsgType, bodyLen uint64) ([]byte, error) {
	if bodyLen > 1<<32-1 {
		return b, codeError(CodeLimitExceeded, t, 16, "body of %d bytes does not fit body_len", bodyLen)
	}
	h.Type, h.MetaLen, h.BodyLen = t, uint32(t.MetaLen()), uint32(bodyLen)
	return h.Append(b), nil
}

// Size returns the bytes of the whole message.
func (h *Header) Size() int64 { return HeaderLen + int64(h.MetaLen) + int64(h.BodyLen) }

// ParseHeader reads the first 40 bytes of b. ErrShort: b is shorter. A type that section 9 does not name is accepted: its lengths
// let a reader step over it. The lengths are not bounded yet: call Check.
func ParseHeader(b []byte) (Header, error) {
	var h Header
	if len(b) < HeaderLen {
		// What is there must still be the beginning of a header.
		for i := 0; i < len(b) && i < 4; i++ {
			if b[i] != "NNRP"[i] {
				return h, headerError(i, "magic is not NNRP")
			}
		}
		return h, ErrShort
	}
	switch {
	case string(b[:4]) != "NNRP":
		return h, headerError(0, "magic is not NNRP")
	case b[4] != VersionMajor:
		e := NewError(CodeUnsupportedVersion, "version_major is %d, this is 1", b[4])
		e.Offset = 4
		return h, e
	case b[5] != WireFormat:
		e := NewError(CodeUnsupportedVersion, "wire_format is %d, this is 0", b[5])
		e.Offset = 5
		return h, e
	case b[7] != HeaderLen:
		return h, headerError(7, "header_len is not 40")
	}
	h.Type = MsgType(b[6])
	h.Flags = Flags(le.Uint32(b[8:]))
	h.MetaLen = le.Uint32(b[12:])
	h.BodyLen = le.Uint32(b[16:])
	h.SessionID = le.Uint32(b[20:])
	h.FrameID = le.Uint32(b[24:])
	h.ViewID = le.Uint16(b[28:])
	h.RouteID = le.Uint16(b[30:])
	h.TraceID = le.Uint64(b[32:])
	return h, nil
}

func headerError(off int, detail string) *Error {
	e := NewError(CodeMalformedHeader, "%s", detail)
	e.Offset = int64(off)
	return e
}

// Check compares the header's lengths with the type's metadata size and with the limits: nothing may be allocated for a message
// before it has passed.
func (h *Header) Check(l *Limits) error {
	if h.Type.Known() {
		if h.MetaLen != messages[h.Type].metaLen {
			e := NewError(CodeMalformedHeader, "%s: meta_len is %d, want %d", h.Type, h.MetaLen, messages[h.Type].metaLen)
			e.Offset = 12
			return e
		}
	} else if h.MetaLen > maxUnknownMeta {
		e := NewError(CodeMalformedHeader, "%s: meta_len %d is above %d", h.Type, h.MetaLen, maxUnknownMeta)
		e.Offset = 12
		return e
	}
	if limit := l.bodyLimit(h.Type); uint64(h.BodyLen) > uint64(limit) {
		e := codeError(CodeLimitExceeded, h.Type, 16, "body_len is %d, the limit %d", h.BodyLen, limit)
		if h.Type.IsFrame() {
			_ = e.ForFrame(h.ViewID, h.FrameID)
		}
		return e
	}
	return nil
}
