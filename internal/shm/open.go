package shm

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// OpenOptions choose how a segment is mapped. The zero value maps it for reading and writing, whatever its size.
type OpenOptions struct {
	ReadOnly bool
	MinSize  int  // bytes that the file must have at least
	Populate bool // take the page faults now, not at the first touch of each page
}

// Open maps a segment that another process owns. path is absolute or relative to /dev/shm and must name a plain file directly in
// it that begins with "cuframes-"; links are not followed. The mapping has the file's size at this moment: check every offset
// against len(Bytes()). The error is os.ErrNotExist when there is no such file.
func Open(path string, o OpenOptions) (*Segment, error) {
	name, err := BaseName(path)
	if err != nil {
		return nil, err
	}
	access, prot := unix.O_RDWR, unix.PROT_READ|unix.PROT_WRITE
	if o.ReadOnly {
		access, prot = unix.O_RDONLY, unix.PROT_READ
	}
	flags := 0
	if o.Populate {
		flags = unix.MAP_POPULATE
	}
	f, st, err := openPlain(Dir+"/"+name, access)
	if err != nil {
		return nil, err
	}
	s := &Segment{name: name, f: f}
	if st.Size < int64(o.MinSize) || st.Size <= 0 || st.Size > maxSize {
		f.Close()
		if st.Size > maxSize {
			return nil, fmt.Errorf("open %s: file of %d bytes is larger than any ring", name, st.Size)
		}
		return nil, fmt.Errorf("open %s: %w: %d bytes, want at least %d", name, ErrTooSmall, st.Size, max(o.MinSize, 1))
	}
	if s.b, err = mmap(f, int(st.Size), prot, flags); err != nil {
		f.Close()
		return nil, fmt.Errorf("open %s: %w", name, err)
	}
	return s, nil
}

func openPlain(path string, access int) (*os.File, unix.Stat_t, error) {
	var st unix.Stat_t
	var fd int
	// O_NONBLOCK: a pipe planted under the name must not hold us.
	err := retry(func() (err error) {
		fd, err = unix.Open(path, access|unix.O_NOFOLLOW|unix.O_CLOEXEC|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
		return err
	})
	switch {
	case errors.Is(err, unix.ELOOP), errors.Is(err, unix.EISDIR), errors.Is(err, unix.ENXIO):
		return nil, st, fmt.Errorf("open %s: %w", path, ErrNotRegular)
	case errors.Is(err, unix.EACCES):
		return nil, st, fmt.Errorf("open %s: %w%s", path, err, ownerHint(path))
	case err != nil:
		return nil, st, fmt.Errorf("open %s: %w", path, err)
	}
	f := os.NewFile(uintptr(fd), path)
	if err := unix.Fstat(fd, &st); err != nil {
		f.Close()
		return nil, st, fmt.Errorf("stat %s: %w", path, err)
	}
	if st.Mode&unix.S_IFMT != unix.S_IFREG {
		f.Close()
		return nil, st, fmt.Errorf("open %s: %w", path, ErrNotRegular)
	}
	return f, st, nil
}

func ownerHint(path string) string {
	var st unix.Stat_t
	if unix.Lstat(path, &st) != nil {
		return ""
	}
	return fmt.Sprintf(": it belongs to uid %d, gid %d, mode %04o, and this process runs as uid %d (start the publisher with --group NAME)",
		st.Uid, st.Gid, st.Mode&0o777, os.Geteuid())
}

// Locked tells whether a living publisher holds the segment's lock. A segment without a lock is orphaned, or belongs to a publisher
// that does not lock.
func Locked(s *Segment) bool {
	if s.owner {
		return true
	}
	fd := int(s.f.Fd())
	// The shared lock is held for a moment only; CreateLocked waits for its end when it meets one.
	if err := retry(func() error { return unix.Flock(fd, unix.LOCK_SH|unix.LOCK_NB) }); err != nil {
		return errors.Is(err, unix.EWOULDBLOCK)
	}
	_ = retry(func() error { return unix.Flock(fd, unix.LOCK_UN) })
	return false
}

// Orphaned tells whether the segment is of CreateLocked's making and its owner is gone. False says nothing about a segment of another
// implementation, which locks nothing.
func Orphaned(s *Segment) bool {
	var st unix.Stat_t
	if err := unix.Fstat(int(s.f.Fd()), &st); err != nil || st.Mode&lockedMark == 0 {
		return false
	}
	return !Locked(s)
}
