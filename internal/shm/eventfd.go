package shm

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// NewEventFD makes an eventfd for RingEventFD: close-on-exec, and never blocking.
func NewEventFD() (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, fmt.Errorf("make eventfd: %w", err)
	}
	return fd, nil
}

// one is what RingEventFD adds to the counter. It is never written to.
var one = []byte{1, 0, 0, 0, 0, 0, 0, 0}

// RingEventFD wakes who reads the eventfd. It does not block or allocate; a counter that is full wakes all the same.
func RingEventFD(fd int) error {
	_, err := unix.Write(fd, one)
	if errors.Is(err, unix.EAGAIN) {
		return nil
	}
	return err
}

// EventFDReader takes over a descriptor that another process sent as an eventfd, and returns a file whose Read gives 8 bytes, the count
// of rings since the Read before, and blocks without a thread until there is one. Anything but an eventfd is refused: a Read of it
// could block for good.
func EventFDReader(fd int) (*os.File, error) {
	name, err := os.Readlink(fmt.Sprintf("/proc/self/fd/%d", fd))
	if err == nil && name != "anon_inode:[eventfd]" {
		err = fmt.Errorf("%s is no eventfd", name)
	}
	if err == nil {
		err = unix.SetNonblock(fd, true) // shared with the sender, whose end does not block anyway
	}
	if err != nil {
		_ = unix.Close(fd)
		return nil, fmt.Errorf("take eventfd: %w", err)
	}
	return os.NewFile(uintptr(fd), "eventfd"), nil
}
