package framering

import (
	"encoding/binary"
	"fmt"
)

// MsgType is the message_type of the framing (§3.2).
type MsgType uint32

const (
	msgHelloReq      MsgType = 0x01 // C→P
	msgHelloResp     MsgType = 0x02 // P→C
	msgSubscribeReq  MsgType = 0x03 // C→P
	msgSubscribeResp MsgType = 0x04 // P→C
	msgVMMFDs        MsgType = 0x05 // P→C, with ancillary data
	msgUnsubscribe   MsgType = 0x10 // C→P
	msgEventFD       MsgType = 0x20 // P→C, with ancillary data; protocols 1 and 2
	msgShutdown      MsgType = 0x30 // P→C
	msgPing          MsgType = 0xF0 // both
	msgPong          MsgType = 0xF1 // both
	msgError         MsgType = 0xFE // both
)

var msgNames = map[MsgType]string{
	msgHelloReq: "HELLO_REQ", msgHelloResp: "HELLO_RESP", msgSubscribeReq: "SUBSCRIBE_REQ", msgSubscribeResp: "SUBSCRIBE_RESP",
	msgVMMFDs: "VMM_FDS", msgUnsubscribe: "UNSUBSCRIBE", msgEventFD: "EVENT_FD", msgShutdown: "SHUTDOWN", msgPing: "PING",
	msgPong: "PONG", msgError: "ERROR",
}

func (t MsgType) String() string {
	if s, ok := msgNames[t]; ok {
		return s
	}
	return fmt.Sprintf("message type %#x", uint32(t))
}

// Framing (§3.1): message_type u32, payload_length u32, payload. All little-endian.
const (
	frameHeaderSize = 8
	maxPayload      = 4096        // bytes; a peer that announces more is closed before anything is read
	maxFDs          = MaxRingSize // descriptors of one message; what exceeds it is closed as it arrives
	reservedSize    = 12          // every message but PING, PONG and UNSUBSCRIBE ends in so many zero bytes
)

// message is anything that can be sent. appendPayload appends the payload in the given dialect.
type message interface {
	msgType() MsgType
	appendPayload(b []byte, d *dialect) []byte
}

// appendMessage appends the framed message to b. It fails when the payload would exceed maxPayload.
func appendMessage(b []byte, m message, d *dialect) ([]byte, error) {
	start := len(b)
	b = binary.LittleEndian.AppendUint32(b, uint32(m.msgType()))
	b = append(b, 0, 0, 0, 0)
	b = m.appendPayload(b, d)
	n := len(b) - start - frameHeaderSize
	if n > maxPayload {
		return b[:start], fmt.Errorf("send %s: payload of %d bytes, the limit is %d: %w", m.msgType(), n, maxPayload, ErrInvalidArg)
	}
	binary.LittleEndian.PutUint32(b[start+4:], uint32(n))
	return b, nil
}

// parseFrameHeader reads the 8 bytes in front of a payload and checks the length.
func parseFrameHeader(b *[frameHeaderSize]byte) (MsgType, int, error) {
	t, n := MsgType(binary.LittleEndian.Uint32(b[0:])), binary.LittleEndian.Uint32(b[4:])
	if n > maxPayload {
		return t, 0, fmt.Errorf("%s of %d bytes, the limit is %d: %w", t, n, maxPayload, ErrProtocol)
	}
	return t, int(n), nil
}

// cursor takes fields off the front of a payload. Reading past the end yields zeros and is remembered.
type cursor struct {
	b     []byte
	short bool
}

func (c *cursor) take(n uint64) []byte {
	if c.short || n > uint64(len(c.b)) {
		c.short = true
		return nil
	}
	p := c.b[:n]
	c.b = c.b[n:]
	return p
}

func (c *cursor) u32() uint32 {
	if p := c.take(4); p != nil {
		return binary.LittleEndian.Uint32(p)
	}
	return 0
}

func (c *cursor) u64() uint64 {
	if p := c.take(8); p != nil {
		return binary.LittleEndian.Uint64(p)
	}
	return 0
}

// text takes a u32 length and as many bytes.
func (c *cursor) text() string { return string(c.take(uint64(c.u32()))) }

// end returns the error of a payload that ended early. Bytes behind the known fields are ignored: later versions may add some.
func (c *cursor) end(t MsgType) error {
	if c.short {
		return fmt.Errorf("parse %s: the payload ends early: %w", t, ErrProtocol)
	}
	return nil
}

func malformed(t MsgType, format string, a ...any) error {
	return fmt.Errorf("parse %s: %s: %w", t, fmt.Sprintf(format, a...), ErrProtocol)
}

func appendText(b []byte, s string) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(len(s)))
	return append(b, s...)
}

func appendReserved(b []byte) []byte { return append(b, make([]byte, reservedSize)...) }
