package packetring

import (
	"fmt"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// Error is an error with a number of the wire protocol (cuframes section 10.13).
type Error struct {
	Code int32
	text string
}

func (e *Error) Error() string { return e.text }

var (
	// ErrOversized: the packet is larger than Config.MaxPacket.
	ErrOversized error = &Error{-20, "packet is too large for the ring"}
	// ErrOverrun: the writer has overwritten what was to be read next. Readers meet it with ReaderOptions.ReportOverruns alone.
	ErrOverrun error = &Error{-23, "reader was overrun"}
	// ErrFormat: the file is not a packet ring, or its header contradicts itself.
	ErrFormat error = &Error{-7, "not a valid packet ring"}
	// ErrShutdown: the writer has closed the ring and everything in it was read.
	ErrShutdown error = &Error{-11, "publisher has shut down"}
	// ErrGone: the writer ended without closing the ring, and everything in it was read. It is ErrShutdown to errors.Is.
	ErrGone = fmt.Errorf("publisher ended unexpectedly: %w", ErrShutdown)
	// ErrExists: a living writer holds the key.
	ErrExists = shm.ErrExists
	// ErrFault: the memory of the ring is gone; its owner has truncated the file.
	ErrFault = shm.ErrFault
	// ErrClosed: the reader or writer is closed. It is os.ErrClosed to errors.Is.
	ErrClosed = shm.ErrClosed
	// ErrExtradataFixed: other extradata than the ring has, after its first packet. Start a new ring.
	ErrExtradataFixed error = &Error{-1, "extradata is fixed after the first packet"}
)
