package framering

import (
	"encoding/binary"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Reason says why a publisher shuts down (§3.8).
type Reason uint32

// Normal end, end after an error, or end to make room for a newer publisher of the same key.
const (
	ReasonNormal  Reason = 0
	ReasonError   Reason = 1
	ReasonUpgrade Reason = 2
)

func (r Reason) String() string { return nameOf(r, "reason %d", "normal", "error", "upgrade") }

// shutdownNotice is SHUTDOWN (§3.8).
//
//	4   reason    Reason
//	12  reserved  0
type shutdownNotice struct{ Reason Reason }

func (shutdownNotice) msgType() MsgType { return msgShutdown }

func (m shutdownNotice) appendPayload(b []byte, _ *dialect) []byte {
	return appendReserved(binary.LittleEndian.AppendUint32(b, uint32(m.Reason)))
}

func parseShutdown(p []byte) (shutdownNotice, error) {
	c := cursor{b: p}
	m := shutdownNotice{Reason: Reason(c.u32())}
	c.take(reservedSize)
	if err := c.end(msgShutdown); err != nil {
		return shutdownNotice{}, err
	}
	return m, nil
}

// errorNotice is ERROR (§3.9).
//
//	4   error_code   i32, Code
//	4   message_len  N
//	N   message      UTF-8
//	12  reserved     0
type errorNotice struct {
	Code    Code
	Message string
}

func (errorNotice) msgType() MsgType { return msgError }

func (m errorNotice) appendPayload(b []byte, _ *dialect) []byte {
	b = binary.LittleEndian.AppendUint32(b, uint32(m.Code))
	b = appendText(b, m.Message)
	return appendReserved(b)
}

func parseError(p []byte) (errorNotice, error) {
	c := cursor{b: p}
	m := errorNotice{Code: Code(c.u32()), Message: c.text()}
	c.take(reservedSize)
	if err := c.end(msgError); err != nil {
		return errorNotice{}, err
	}
	if !utf8.ValidString(m.Message) {
		return errorNotice{}, malformed(msgError, "message is not UTF-8")
	}
	return m, nil
}

// maxErrorText keeps an ERROR far below maxPayload, whatever went into its text.
const maxErrorText = 512

// newErrorNotice makes the ERROR for err: its Code, and its text cut to a bounded length.
func newErrorNotice(code Code, err error) errorNotice {
	return errorNotice{Code: code, Message: cut(err.Error(), maxErrorText)}
}

// cut shortens s to at most n bytes without splitting a character.
func cut(s string, n int) string {
	if len(s) <= n {
		return s
	}
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n]
}

// printable replaces what could steer a terminal or forge a log line in text that came from another process.
func printable(s string) string {
	return strings.Map(func(r rune) rune {
		if r == utf8.RuneError || !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, s)
}

// unsubscribe is UNSUBSCRIBE (table of §3.2): no payload is specified; none is sent, any is accepted.
type unsubscribe struct{}

func (unsubscribe) msgType() MsgType                          { return msgUnsubscribe }
func (unsubscribe) appendPayload(b []byte, _ *dialect) []byte { return b }

// ping and pong are PING and PONG: no payload is specified. Ours is empty; a PONG gives back what the PING brought.
type (
	ping struct{ Payload []byte }
	pong struct{ Payload []byte }
)

func (ping) msgType() MsgType                            { return msgPing }
func (m ping) appendPayload(b []byte, _ *dialect) []byte { return append(b, m.Payload...) }
func (pong) msgType() MsgType                            { return msgPong }
func (m pong) appendPayload(b []byte, _ *dialect) []byte { return append(b, m.Payload...) }
