package shm

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// sizeSeals keep a memfd from being shrunk under a reader, and from these seals being undone.
const sizeSeals = unix.F_SEAL_SHRINK | unix.F_SEAL_GROW

// Memfd makes an anonymous segment of size bytes for sending to other processes: reserved, mapped, and sealed, so that nobody can
// change its size.
func Memfd(name string, size int) (*Segment, error) {
	if size <= 0 || int64(size) > maxSize {
		return nil, fmt.Errorf("memfd %s: size %d is out of range", name, size)
	}
	fd, err := unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING|unix.MFD_NOEXEC_SEAL)
	if errors.Is(err, unix.EINVAL) { // before Linux 6.3
		fd, err = unix.MemfdCreate(name, unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	}
	if err != nil {
		return nil, fmt.Errorf("memfd %s: %w", name, err)
	}
	s := &Segment{name: name, f: os.NewFile(uintptr(fd), name)}
	if err := s.fill(fd, size); err != nil {
		s.Close()
		return nil, fmt.Errorf("memfd %s: %w", name, err)
	}
	return s, nil
}

func (s *Segment) fill(fd, size int) (err error) {
	if err := retry(func() error { return unix.Fallocate(fd, 0, 0, int64(size)) }); err != nil {
		return fmt.Errorf("reserve %d bytes of memory: %w: ask for fewer or smaller pictures, or give this host or container more memory", size, err)
	}
	if s.b, err = mmap(s.f, size, unix.PROT_READ|unix.PROT_WRITE, 0); err != nil {
		return err
	}
	// The seals of A13 and no more: with F_SEAL_FUTURE_WRITE a reader of another implementation that maps its frames for reading
	// and writing, as §3.7 has it for GPU memory, would be refused.
	if _, err = unix.FcntlInt(uintptr(fd), unix.F_ADD_SEALS, sizeSeals|unix.F_SEAL_SEAL); err != nil {
		return fmt.Errorf("seal: %w", err)
	}
	return nil
}

// IsMemfd tells a memfd from the file descriptors of GPU memory: only a memfd has seals (A13).
func IsMemfd(fd int) bool {
	_, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	return err == nil
}

// OpenMemfd maps the first size bytes of a memfd that another process sent, for reading. It takes fd over: Close closes it, and so
// does an error. ErrNotSealed and ErrTooSmall name what a hostile sender could fault its reader with.
func OpenMemfd(fd, size int) (*Segment, error) {
	s := &Segment{name: "memfd", f: os.NewFile(uintptr(fd), "memfd")}
	if s.f == nil {
		return nil, fmt.Errorf("open memfd: %w", os.ErrInvalid)
	}
	if err := s.receive(fd, size); err != nil {
		s.Close()
		return nil, fmt.Errorf("open memfd: %w", err)
	}
	return s, nil
}

func (s *Segment) receive(fd, size int) (err error) {
	seals, err := unix.FcntlInt(uintptr(fd), unix.F_GET_SEALS, 0)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNotSealed, err)
	}
	if seals&sizeSeals != sizeSeals {
		return ErrNotSealed
	}
	// Sealed now, so the size read next stands for ever.
	var st unix.Stat_t
	if err := unix.Fstat(fd, &st); err != nil {
		return err
	}
	if size <= 0 || st.Size < int64(size) {
		return fmt.Errorf("%w: %d bytes, want %d", ErrTooSmall, st.Size, size)
	}
	s.b, err = mmap(s.f, size, unix.PROT_READ, 0)
	return err
}
