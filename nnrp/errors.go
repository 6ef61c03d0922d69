package nnrp

import (
	"errors"
	"fmt"
)

// ErrorCode is a stable error code (section 16.2).
type ErrorCode uint32

// Error codes.
const (
	CodeUnsupportedVersion    ErrorCode = 0x0001
	CodeAuthFailed            ErrorCode = 0x0002
	CodeInvalidState          ErrorCode = 0x0003
	CodeMalformedHeader       ErrorCode = 0x0004
	CodeMalformedBody         ErrorCode = 0x0005
	CodeUnsupportedCapability ErrorCode = 0x0006
	CodeLimitExceeded         ErrorCode = 0x0007
	CodeFrameExpired          ErrorCode = 0x0008
	CodeFrameCancelled        ErrorCode = 0x0009
	CodeCacheMiss             ErrorCode = 0x000A
	CodeServerBusy            ErrorCode = 0x000B
	CodeInternalError         ErrorCode = 0x000C
)

var codeNames = [...]string{
	CodeUnsupportedVersion: "unsupported_version", CodeAuthFailed: "auth_failed", CodeInvalidState: "invalid_state",
	CodeMalformedHeader: "malformed_header", CodeMalformedBody: "malformed_body", CodeUnsupportedCapability: "unsupported_capability",
	CodeLimitExceeded: "limit_exceeded", CodeFrameExpired: "frame_expired", CodeFrameCancelled: "frame_cancelled",
	CodeCacheMiss: "cache_miss", CodeServerBusy: "server_busy", CodeInternalError: "internal_error",
}

// String returns the name that the specification gives the code.
func (c ErrorCode) String() string {
	if int(c) < len(codeNames) && codeNames[c] != "" {
		return codeNames[c]
	}
	return fmt.Sprintf("error_0x%04x", uint32(c))
}

// Scope says how much an error stops (section 16.1).
type Scope uint32

// Scopes.
const (
	ScopeConnection Scope = 0
	ScopeSession    Scope = 1
	ScopeFrame      Scope = 2
)

func (s Scope) String() string {
	switch s {
	case ScopeConnection:
		return "connection"
	case ScopeSession:
		return "session"
	case ScopeFrame:
		return "frame"
	}
	return fmt.Sprintf("scope_%d", uint32(s))
}

// Error is what a parser or a state machine answers to a peer that broke the protocol.
type Error struct {
	Code         ErrorCode
	Scope        Scope
	Fatal        bool   // the connection or session must drain (section 16.3)
	Offset       int64  // of the offending field, from the first byte of the message; 0 where no field is to blame
	RetryAfterMs uint32 // server_busy only
	FrameID      uint32 // the frame that caused it, 0 for none
	ViewID       uint16
	Detail       string // for people
}

func (e *Error) Error() string {
	if e.Offset > 0 {
		return fmt.Sprintf("nnrp: %s (%s) at byte %d: %s", e.Code, e.Scope, e.Offset, e.Detail)
	}
	return fmt.Sprintf("nnrp: %s (%s): %s", e.Code, e.Scope, e.Detail)
}

// Is makes errors.Is compare by code: errors.Is(err, ErrServerBusy).
func (e *Error) Is(target error) bool {
	t, ok := target.(*Error)
	return ok && t.Code == e.Code && t.Detail == ""
}

// Sentinels to branch on; they match every Error with the same code.
var (
	ErrUnsupportedVersion    error = &Error{Code: CodeUnsupportedVersion}
	ErrAuthFailed            error = &Error{Code: CodeAuthFailed}
	ErrInvalidState          error = &Error{Code: CodeInvalidState}
	ErrMalformedHeader       error = &Error{Code: CodeMalformedHeader}
	ErrMalformedBody         error = &Error{Code: CodeMalformedBody}
	ErrUnsupportedCapability error = &Error{Code: CodeUnsupportedCapability}
	ErrLimitExceeded         error = &Error{Code: CodeLimitExceeded}
	ErrFrameExpired          error = &Error{Code: CodeFrameExpired}
	ErrFrameCancelled        error = &Error{Code: CodeFrameCancelled}
	ErrCacheMiss             error = &Error{Code: CodeCacheMiss}
	ErrServerBusy            error = &Error{Code: CodeServerBusy}
	ErrInternal              error = &Error{Code: CodeInternalError}
)

// ErrShort means that the input ends inside the message: more bytes may complete it.
var ErrShort = errors.New("nnrp: message is cut short")

// NewError returns an Error with the scope and severity that section 16.3 gives the code.
func NewError(code ErrorCode, format string, args ...any) *Error {
	e := &Error{Code: code, Detail: fmt.Sprintf(format, args...)}
	switch code {
	case CodeUnsupportedVersion, CodeAuthFailed, CodeMalformedHeader, CodeInternalError:
		e.Scope, e.Fatal = ScopeConnection, true
	case CodeFrameExpired, CodeFrameCancelled, CodeCacheMiss:
		e.Scope = ScopeFrame
	default:
		e.Scope = ScopeSession
	}
	return e
}

// ForFrame names the frame that the error is about.
func (e *Error) ForFrame(viewID uint16, frameID uint32) *Error {
	e.ViewID, e.FrameID = viewID, frameID
	return e
}

// malformedBody blames the byte at off (from the message's first byte). A broken frame message concerns that frame, a broken hello
// the connection, any other control message the session.
func malformedBody(t MsgType, off int, format string, args ...any) *Error {
	e := NewError(CodeMalformedBody, "%s: %s", t, fmt.Sprintf(format, args...))
	e.Offset = int64(off)
	switch {
	case t.IsFrame():
		e.Scope = ScopeFrame
	case t == MsgClientHello || t == MsgServerHelloAck:
		e.Scope, e.Fatal = ScopeConnection, true
	}
	return e
}

func codeError(code ErrorCode, t MsgType, off int, format string, args ...any) *Error {
	e := NewError(code, "%s: %s", t, fmt.Sprintf(format, args...))
	e.Offset = int64(off)
	return e
}
