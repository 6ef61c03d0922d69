package framering

import (
	"fmt"
	"os"
)

// Code is the error number that crosses the wire (cuframes_error_t), and a Go error: errors.Is(err, ErrTooMany) holds for
// an error that the other side sent as well as for one found here.
type Code int32

// The numbers are part of the wire contract; the specification names them and leaves most values open.
const (
	OK               Code = 0
	ErrInvalidArg    Code = -1
	ErrOutOfMemory   Code = -2
	ErrCUDA          Code = -3
	ErrIO            Code = -4
	ErrTimeout       Code = -5 // errors.Is os.ErrDeadlineExceeded
	ErrProtocol      Code = -6
	ErrFormat        Code = -7
	ErrTooMany       Code = -8
	ErrNotFound      Code = -9  // errors.Is os.ErrNotExist
	ErrAlreadyExists Code = -10 // errors.Is os.ErrExist
	ErrDisconnected  Code = -11
	ErrBusy          Code = -12
	ErrInternal      Code = -13
	ErrNotAvailable  Code = -14

	ErrPacketOversized Code = -20
	ErrNoPacketRing    Code = -21
	ErrNoCodecParams   Code = -22
	ErrPacketOverrun   Code = -23
)

var codes = map[Code]struct{ name, text string }{
	OK:                 {"OK", "no error"},
	ErrInvalidArg:      {"ERR_INVALID_ARG", "invalid argument"},
	ErrOutOfMemory:     {"ERR_OUT_OF_MEMORY", "out of memory"},
	ErrCUDA:            {"ERR_CUDA", "CUDA error"},
	ErrIO:              {"ERR_IO", "input/output error"},
	ErrTimeout:         {"ERR_TIMEOUT", "timed out"},
	ErrProtocol:        {"ERR_PROTOCOL", "protocol error"},
	ErrFormat:          {"ERR_FORMAT", "format not supported"},
	ErrTooMany:         {"ERR_TOO_MANY", "too many subscribers"},
	ErrNotFound:        {"ERR_NOT_FOUND", "not found"},
	ErrAlreadyExists:   {"ERR_ALREADY_EXISTS", "already exists"},
	ErrDisconnected:    {"ERR_DISCONNECTED", "disconnected"},
	ErrBusy:            {"ERR_BUSY", "busy"},
	ErrInternal:        {"ERR_INTERNAL", "internal error"},
	ErrNotAvailable:    {"ERR_NOT_AVAILABLE", "not available"},
	ErrPacketOversized: {"ERR_PACKET_OVERSIZED", "packet too large"},
	ErrNoPacketRing:    {"ERR_NO_PACKET_RING", "no packet ring"},
	ErrNoCodecParams:   {"ERR_NO_CODEC_PARAMS", "no codec parameters yet"},
	ErrPacketOverrun:   {"ERR_PACKET_OVERRUN", "packet overwritten before it was read"},
}

// String returns the name that the specification uses, without its prefix: ERR_PROTOCOL.
func (c Code) String() string {
	if s, ok := codes[c]; ok {
		return s.name
	}
	return fmt.Sprintf("ERR(%d)", int32(c))
}

func (c Code) Error() string {
	if s, ok := codes[c]; ok {
		return s.text + " (" + s.name + ")"
	}
	return fmt.Sprintf("error %d of the other side", int32(c))
}

// Is lets the errors of package os match the codes that mean the same.
func (c Code) Is(target error) bool {
	switch c {
	case ErrNotFound:
		return target == os.ErrNotExist
	case ErrAlreadyExists:
		return target == os.ErrExist
	case ErrTimeout:
		return target == os.ErrDeadlineExceeded
	}
	return false
}

// RemoteError is an error that the other side sent: the result of a reply, or an ERROR message with its text.
type RemoteError struct {
	Code    Code
	Message string // may be empty; printable
}

func (e *RemoteError) Error() string {
	if e.Message == "" {
		return "the other side answers: " + e.Code.Error()
	}
	return fmt.Sprintf("the other side answers: %s: %s", e.Code.Error(), e.Message)
}

func (e *RemoteError) Unwrap() error { return e.Code }

// ShutdownError says that the publisher announced its end. errors.Is(err, ErrDisconnected).
type ShutdownError struct{ Reason Reason }

func (e *ShutdownError) Error() string {
	return fmt.Sprintf("publisher shut down (%s): %s", e.Reason, ErrDisconnected.Error())
}

func (e *ShutdownError) Unwrap() error { return ErrDisconnected }
