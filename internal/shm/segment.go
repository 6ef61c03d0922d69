package shm

import (
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// maxSize bounds a mapping: the largest ring the formats can describe is 4 GiB of data and its slots, anything beyond is a sparse
// file made to exhaust address space.
const maxSize = 8 << 30

// Segment is a mapped file: named in /dev/shm, or a memfd. Its methods may be called from any goroutine; Close must not run while
// another goroutine still touches Bytes.
type Segment struct {
	name string
	f    *os.File
	b    []byte

	owner bool // holds the exclusive lock; Close removes the name
	once  sync.Once
	err   error
}

// Bytes returns the mapping. It is invalid after Close, and touching it faults when the file was truncated (see Guard).
func (s *Segment) Bytes() []byte { return s.b }

// Name returns the file name relative to /dev/shm, or the name of the memfd.
func (s *Segment) Name() string { return s.name }

// File returns the file behind the mapping. The segment stays its owner.
func (s *Segment) File() *os.File { return s.f }

// Close unmaps and closes. The segment of CreateLocked is removed from /dev/shm first, unless its name belongs to another file by
// now. Calls after the first return the first one's error.
func (s *Segment) Close() error {
	s.once.Do(func() {
		var unlinked, unmapped error
		if s.owner {
			// Nobody replaces the file under this name without the lock that is held here, so check and removal are one step to
			// every creator that takes part in the protocol.
			if same, err := names(s.f, s.path()); err == nil && same {
				unlinked = unix.Unlink(s.path())
			}
		}
		if s.b != nil {
			unmapped = unix.Munmap(s.b)
			s.b = nil
		}
		s.err = errors.Join(unlinked, unmapped, s.f.Close())
		if s.err != nil {
			s.err = fmt.Errorf("close %s: %w", s.name, s.err)
		}
	})
	return s.err
}

func (s *Segment) path() string { return Dir + "/" + s.name }

// names tells whether path is the name of the open file f.
func names(f *os.File, path string) (bool, error) {
	var open, named unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &open); err != nil {
		return false, err
	}
	if err := unix.Lstat(path, &named); err != nil {
		if errors.Is(err, unix.ENOENT) {
			return false, nil
		}
		return false, err
	}
	return open.Dev == named.Dev && open.Ino == named.Ino, nil
}

func mmap(f *os.File, size int, prot, flags int) ([]byte, error) {
	b, err := unix.Mmap(int(f.Fd()), 0, size, prot, unix.MAP_SHARED|flags)
	if err != nil {
		return nil, fmt.Errorf("mmap %d bytes: %w", size, err)
	}
	return b, nil
}

// retry repeats f while a signal interrupts it (the runtime's preemption sends them).
func retry(f func() error) error {
	for {
		if err := f(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
