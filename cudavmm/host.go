package cudavmm

import (
	"errors"
	"fmt"
	"os"
	"syscall"
	"unsafe"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// Host is memory without a GPU: sealed memfds, which travel in the same messages as the file descriptors of GPU memory. It
// holds nothing itself; the zero value is ready. It implements the frame ring's Memory.
type Host struct{}

// Kind is KindHost.
func (Host) Kind() string { return KindHost }

// Granularity is the page size.
func (Host) Granularity() int { return os.Getpagesize() }

// Close does nothing: buffers are closed one by one.
func (Host) Close() error { return nil }

// Alloc makes a buffer of at least size bytes, all of them reserved, mapped for writing.
func (h Host) Alloc(name string, size int) (Buffer, error) {
	n, err := roundUp(size, h.Granularity())
	if err != nil {
		return nil, err
	}
	s, err := shm.Memfd(name, n)
	if err != nil {
		return nil, fmt.Errorf("allocate %d bytes of host memory: %w", n, err)
	}
	return &hostBuffer{segment: s, size: n, shared: true}, nil
}

// Import maps a memfd that another process shares, for reading. It takes fd over in every case. A memfd that its owner could
// still shrink is refused, as is one that is smaller than size.
func (Host) Import(fd, size, granularity int) (Buffer, error) {
	if _, err := roundUp(size, granularity); err != nil {
		return nil, errors.Join(err, syscall.Close(fd))
	}
	if !shm.IsMemfd(fd) {
		return nil, errors.Join(fmt.Errorf("%w: not a memfd", ErrWrongKind), syscall.Close(fd))
	}
	s, err := shm.OpenMemfd(fd, size)
	if errors.Is(err, shm.ErrTooSmall) {
		err = fmt.Errorf("%w: %w", ErrTooSmall, err)
	}
	if err != nil {
		return nil, err
	}
	return &hostBuffer{segment: s, size: len(s.Bytes())}, nil
}

type hostBuffer struct {
	segment *shm.Segment
	size    int
	shared  bool
}

func (b *hostBuffer) Size() int     { return b.size }
func (b *hostBuffer) Bytes() []byte { return b.segment.Bytes() }
func (b *hostBuffer) Pointer() uintptr {
	return uintptr(unsafe.Pointer(unsafe.SliceData(b.segment.Bytes())))
}
func (b *hostBuffer) Close() error { return b.segment.Close() }

func (b *hostBuffer) FD() int {
	if !b.shared {
		return -1
	}
	return int(b.segment.File().Fd())
}
