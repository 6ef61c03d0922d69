package nnrp

import (
	"fmt"
	"unicode/utf8"
)

// ErrorMessageLen is the size of ERROR's fixed metadata.
const ErrorMessageLen = 32

// MaxDiagnostic bounds the diagnostic text of an ERROR that is sent.
const MaxDiagnostic = 1024

// ErrorMessage is ERROR (section 16.1). Body: UTF-8 diagnostic, control_extension_block.
//
//	Offset Size Field
//	0      4    code
//	4      4    scope          0 connection, 1 session, 2 frame
//	8      4    is_fatal
//	12     4    retry_after_ms
//	16     4    session_id
//	20     4    frame_id
//	24     4    view_id
//	28     4    diagnostic_bytes
type ErrorMessage struct {
	Code         ErrorCode
	Scope        Scope
	IsFatal      uint32
	RetryAfterMs uint32
	SessionID    uint32
	FrameID      uint32
	ViewID       uint32
	Diagnostic   []byte
	Extensions   []byte
}

// Message returns the ERROR that tells the peer about e.
func (e *Error) Message(sessionID uint32) *ErrorMessage {
	d := []byte(e.Detail)
	if len(d) > MaxDiagnostic {
		d = d[:MaxDiagnostic]
		for len(d) > 0 && !utf8.Valid(d) {
			d = d[:len(d)-1]
		}
	}
	m := &ErrorMessage{Code: e.Code, Scope: e.Scope, RetryAfterMs: e.RetryAfterMs, SessionID: sessionID, FrameID: e.FrameID,
		ViewID: uint32(e.ViewID), Diagnostic: d}
	if e.Fatal {
		m.IsFatal = 1
	}
	return m
}

// Err returns the message as an error.
func (m *ErrorMessage) Err() *Error {
	return &Error{Code: m.Code, Scope: m.Scope, Fatal: m.IsFatal != 0, RetryAfterMs: m.RetryAfterMs, FrameID: m.FrameID,
		ViewID: uint16(m.ViewID), Detail: "peer: " + string(m.Diagnostic)}
}

// Type returns ERROR.
func (*ErrorMessage) Type() MsgType { return MsgError }

// Append adds the whole message.
func (m *ErrorMessage) Append(b []byte, h Header) ([]byte, error) {
	if err := validExtensions(MsgError, m.Extensions); err != nil {
		return b, err
	}
	if !utf8.Valid(m.Diagnostic) {
		return b, fmt.Errorf("nnrp: encode ERROR: the diagnostic is not UTF-8")
	}
	b, err := h.begin(b, MsgError, blocksLen(m.Diagnostic, m.Extensions))
	if err != nil {
		return b, err
	}
	for _, v := range [...]uint32{uint32(m.Code), uint32(m.Scope), m.IsFatal, m.RetryAfterMs, m.SessionID, m.FrameID, m.ViewID,
		uint32(len(m.Diagnostic))} {
		b = le.AppendUint32(b, v)
	}
	return appendBlocks(b, m.Diagnostic, m.Extensions), nil
}

// Parse reads metadata and body.
func (m *ErrorMessage) Parse(h *Header, payload []byte, l *Limits) error {
	p, body, err := split(h, MsgError, payload, l)
	if err != nil {
		return err
	}
	*m = ErrorMessage{
		Code:         ErrorCode(le.Uint32(p[0:])),
		Scope:        Scope(le.Uint32(p[4:])),
		IsFatal:      le.Uint32(p[8:]),
		RetryAfterMs: le.Uint32(p[12:]),
		SessionID:    le.Uint32(p[16:]),
		FrameID:      le.Uint32(p[20:]),
		ViewID:       le.Uint32(p[24:]),
	}
	if m.Scope > ScopeFrame {
		return malformedBody(MsgError, HeaderLen+4, "scope %d is none of connection, session, frame", uint32(m.Scope))
	}
	if m.Diagnostic, m.Extensions, err = twoBlocks(&body, uint64(le.Uint32(p[28:])), "diagnostic"); err != nil {
		return err
	}
	if !utf8.Valid(m.Diagnostic) {
		return malformedBody(MsgError, body.base, "the diagnostic is not UTF-8")
	}
	return nil
}

// Close is CLOSE: header, and an optional control_extension_block.
type Close struct {
	Extensions []byte
}

// Type returns CLOSE.
func (*Close) Type() MsgType { return MsgClose }

// Append adds the whole message.
func (m *Close) Append(b []byte, h Header) ([]byte, error) {
	if err := validExtensions(MsgClose, m.Extensions); err != nil {
		return b, err
	}
	b, err := h.begin(b, MsgClose, uint64(len(m.Extensions)))
	return append(b, m.Extensions...), err
}

// Parse reads the body.
func (m *Close) Parse(h *Header, payload []byte, l *Limits) error {
	_, body, err := split(h, MsgClose, payload, l)
	if err != nil {
		return err
	}
	*m = Close{}
	m.Extensions, err = body.rest()
	return err
}

// Bare is a message that is its header alone: FRAME_CANCEL, RESULT_DROP, PING, PONG.
type Bare struct {
	Msg MsgType
}

// Type returns m.Msg.
func (m *Bare) Type() MsgType { return m.Msg }

// Append adds the header.
func (m *Bare) Append(b []byte, h Header) ([]byte, error) {
	if !isBare(m.Msg) {
		return b, fmt.Errorf("nnrp: encode %s: it is not a message without body", m.Msg)
	}
	return h.begin(b, m.Msg, 0)
}

// Parse checks that there is no body.
func (m *Bare) Parse(h *Header, payload []byte, l *Limits) error {
	*m = Bare{Msg: h.Type}
	if !isBare(h.Type) {
		return codeError(CodeInvalidState, h.Type, 6, "it is not a message without body")
	}
	_, body, err := split(h, h.Type, payload, l)
	if err != nil {
		return err
	}
	if len(body.b) != 0 {
		return malformedBody(h.Type, 16, "body_len is %d, the message is its header alone", len(body.b))
	}
	return nil
}

func isBare(t MsgType) bool {
	return t == MsgFrameCancel || t == MsgResultDrop || t == MsgPing || t == MsgPong
}
