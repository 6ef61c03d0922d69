package shm

import (
	"syscall"

	"golang.org/x/sys/unix"
)

// Writable says why this process cannot make files in a folder; nil = it can. Nothing is written to find out.
func Writable(dir string) error {
	var st unix.Stat_t
	if err := unix.Stat(dir, &st); err != nil {
		return err
	}
	if st.Mode&unix.S_IFMT != unix.S_IFDIR {
		return syscall.ENOTDIR
	}
	return unix.Faccessat(unix.AT_FDCWD, dir, unix.W_OK|unix.X_OK, unix.AT_EACCESS)
}
