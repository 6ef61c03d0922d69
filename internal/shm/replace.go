package shm

import (
	"crypto/rand"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// Replace puts a new segment of size bytes under the name of s, which CreateLocked made, in one step: whoever opens the name finds
// either the old one or the new one, filled by init. The new one is locked before it can be seen, so the name has a living owner all
// the time. s stays mapped, and so do the mappings of its readers; its Close no longer removes the name.
func (s *Segment) Replace(size int, o CreateOptions, init func(b []byte)) (_ *Segment, err error) {
	if !s.owner {
		return nil, fmt.Errorf("replace %s: not its owner", s.name)
	}
	if size <= 0 || int64(size) > maxSize {
		return nil, fmt.Errorf("replace %s: size %d is out of range", s.name, size)
	}
	temp := s.path() + "." + rand.Text()[:10] + tempSuffix
	fd, err := unix.Open(temp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL|unix.O_CLOEXEC|unix.O_NOFOLLOW, 0o600)
	if err != nil {
		return nil, fmt.Errorf("replace %s: %w", s.name, err)
	}
	n := &Segment{name: s.name, f: os.NewFile(uintptr(fd), s.path())}
	defer func() {
		if err != nil {
			_ = unix.Unlink(temp)
			err = errors.Join(err, n.Close())
		}
	}()
	if err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("replace %s: lock: %w", s.name, err)
	}
	if err := setAccess(fd, o); err != nil {
		return nil, fmt.Errorf("replace %s: %w", s.name, err)
	}
	if err := n.reserve(size); err != nil {
		return nil, err
	}
	init(n.b)
	if err := unix.Rename(temp, s.path()); err != nil {
		return nil, fmt.Errorf("replace %s: %w", s.name, err)
	}
	s.owner, n.owner = false, true
	return n, nil
}
