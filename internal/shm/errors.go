package shm

import (
	"errors"
	"fmt"
	"os"
	"strings"
)

var (
	// ErrExists: a living owner holds the segment.
	ErrExists = errors.New("a living publisher holds it")
	// ErrName: a path that is not a plain "cuframes-…" name in /dev/shm.
	ErrName = errors.New("not the name of a segment")
	// ErrNotRegular: the path names a folder, a link, a device or a pipe.
	ErrNotRegular = errors.New("not a plain file")
	// ErrTooSmall: the file is smaller than its reader needs.
	ErrTooSmall = errors.New("file too small")
	// ErrNotSealed: a memfd that its sender could still shrink or grow.
	ErrNotSealed = errors.New("memfd not sealed against shrinking and growing")
	// ErrFault: the memory behind a mapping is gone; its owner has cut the file.
	ErrFault = errors.New("mapped memory is gone (file truncated)")
	// ErrTimeout: a bounded wait ended without a change. It is os.ErrDeadlineExceeded to errors.Is.
	ErrTimeout = fmt.Errorf("wait: %w", os.ErrDeadlineExceeded)
	// ErrClosed: the waiter was closed while it was waited on. It is os.ErrClosed to errors.Is.
	ErrClosed = fmt.Errorf("waiter: %w", os.ErrClosed)
	// ErrTooManyFDs: a message carried more file descriptors than its reader allows. All of them were closed.
	ErrTooManyFDs = errors.New("message carries too many file descriptors")
)

// SpaceError says that a segment does not fit into its file system.
type SpaceError struct {
	Path  string // of the segment
	Asked int64  // bytes
	Free  int64  // bytes left in the file system
	Total int64  // bytes of the file system
}

func (e *SpaceError) Error() string {
	dir := e.Path[:strings.LastIndexByte(e.Path, '/')+1]
	return fmt.Sprintf("create %s: %s asked, %s left of %s in %s: ask for fewer bytes, or make it larger "+
		"(docker: --shm-size, Kubernetes: an emptyDir with medium Memory on /dev/shm, host: mount -o remount,size=SIZE %s)",
		e.Path, size(e.Asked), size(e.Free), size(e.Total), dir, strings.TrimSuffix(dir, "/"))
}

func size(n int64) string {
	switch {
	case n >= 10<<20:
		return fmt.Sprintf("%d MiB", n>>20)
	case n >= 10<<10:
		return fmt.Sprintf("%d KiB", n>>10)
	default:
		return fmt.Sprintf("%d bytes", n)
	}
}
