// Package cudavmm holds the memory that frames live in: GPU memory through the CUDA driver's virtual memory management
// (one POSIX file descriptor per buffer, specification v4 §3.7), or sealed memfds where there is no GPU.
//
// The CUDA driver is found at run time (dlopen of libcuda.so.1); nothing of CUDA is needed to build. Where it is missing,
// Open and OpenDevice return ErrUnavailable with the reason, and Host works all the same.
//
// Every handle has one owner, whose Close gives it back; Close may be called again. What a failing call had made by then is
// unmade before it returns.
package cudavmm

import (
	"errors"
	"fmt"
)

// Buffer is the memory of one frame. It is an alias of an unnamed interface so that the frame ring can name the same type
// without importing this package.
type Buffer = interface {
	// Size is the number of usable bytes, a multiple of the memory's granularity.
	Size() int
	// Bytes is the memory itself, or nil when the CPU cannot address it.
	Bytes() []byte
	// Pointer is the address: the GPU's where Bytes is nil.
	Pointer() uintptr
	// FD shares the buffer with another process. It belongs to the buffer; -1 for an imported one.
	FD() int
	// Close unmaps the memory and closes FD. Other processes keep their own mappings.
	Close() error
}

// Kinds of memory, as Memory.Kind names them.
const (
	KindHost = "host"
	KindCUDA = "cuda"
)

var (
	// ErrUnavailable says that there is no usable CUDA driver or device here; the text says why.
	ErrUnavailable = errors.New("CUDA is not available")
	// ErrWrongKind says that a file descriptor is not memory of this kind.
	ErrWrongKind = errors.New("file descriptor is not frame memory of this kind")
	// ErrTooSmall says that shared memory is smaller than the frame that it is said to hold.
	ErrTooSmall = errors.New("shared memory is smaller than the frame")
	// ErrOtherDevice says that shared memory lies on another GPU than the one asked for; the text names both.
	ErrOtherDevice = errors.New("memory lies on another GPU")
	// ErrClosed says that a device, stream or buffer was used after Close.
	ErrClosed = errors.New("closed")
)

// Error is a failed call of the CUDA driver.
type Error struct {
	Call string // name of the driver's function
	Code int32  // CUresult
	Name string // the driver's name for Code
}

func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Call, e.Name, e.Code) }

// Codes of the driver that callers branch on.
const (
	codeOutOfMemory    = 2
	codeDeinitialized  = 4
	codeNoDevice       = 100
	codeNotReady       = 600
	codeContextIsGone  = 709
	codeNotPermitted   = 800
	codeNotSupported   = 801
	codeSystemNotReady = 802
)

// IsOutOfMemory tells whether err says that the GPU's memory is full.
func IsOutOfMemory(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == codeOutOfMemory
}
