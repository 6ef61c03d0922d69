package av

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"

	"github.com/asticode/go-astiav"

	"github.com/cfpipe/cfpipe/internal/media"
)

// ErrInvalidData: what came is not what its format says.
var ErrInvalidData = errors.New("invalid data")

// Error is a failed call into FFmpeg.
type Error struct {
	Op   string // what was tried, for people: "open", "read", "write header" …
	Code int    // AVERROR
	Said string // what FFmpeg told of it, a line; may be ""
}

func (e *Error) Error() string {
	text := astiav.Error(e.Code).Error()
	if e.Said != "" && !strings.Contains(e.Said, text) {
		text += " (" + e.Said + ")"
	}
	return e.Op + ": " + Mask(text)
}

// Unwrap gives the cause in Go's terms, so that errors.Is(err, os.ErrNotExist), io.EOF, syscall.ENOSPC, context.Canceled
// (an interrupted call), os.ErrDeadlineExceeded, ErrInvalidData and media.ErrUnsupported work.
func (e *Error) Unwrap() error {
	switch code := astiav.Error(e.Code); code {
	case astiav.ErrEof:
		return io.EOF
	case astiav.ErrExit:
		return context.Canceled
	case astiav.ErrEtimedout:
		return os.ErrDeadlineExceeded
	case astiav.ErrHttpNotFound, astiav.ErrStreamNotFound:
		return os.ErrNotExist
	case astiav.ErrHttpUnauthorized, astiav.ErrHttpForbidden:
		return media.ErrLogin
	case astiav.ErrInvaliddata:
		return ErrInvalidData
	case astiav.ErrDemuxerNotFound, astiav.ErrMuxerNotFound, astiav.ErrProtocolNotFound, astiav.ErrDecoderNotFound,
		astiav.ErrEncoderNotFound, astiav.ErrBsfNotFound, astiav.ErrPatchwelcome, astiav.ErrOptionNotFound:
		return media.ErrUnsupported
	}
	if e.Code < 0 && e.Code > -4096 { // AVERROR(errno)
		return syscall.Errno(-e.Code)
	}
	return nil
}

// wrap turns an error of astiav into an *Error; nil stays nil.
func wrap(op string, err error) error {
	if err == nil {
		return nil
	}
	var code astiav.Error
	if errors.As(err, &code) {
		return &Error{Op: op, Code: int(code)}
	}
	return fmt.Errorf("%s: %w", op, err)
}

// codeError is wrap for the return value of a C call.
func codeError(op string, code int) error {
	if code >= 0 {
		return nil
	}
	return &Error{Op: op, Code: code}
}
