package shm

import (
	"errors"
	"os"

	"golang.org/x/sys/unix"
)

// LockFile takes a lock on a whole file, opened for writing, which lasts until f is closed, by whatever end of the process too. It is a lock of the
// open file description (F_OFD_SETLK, fcntl(2)): unlike flock's it can be asked about without being taken. It does not wait; a file
// system without locks gives an error.
func LockFile(f *os.File) error {
	return fileLock(f, unix.F_OFD_SETLK, &unix.Flock_t{Type: unix.F_WRLCK})
}

// FileLocked says whether somebody else than f holds the lock of LockFile. It takes no lock, and so is in nobody's way.
func FileLocked(f *os.File) (bool, error) {
	l := unix.Flock_t{Type: unix.F_WRLCK}
	err := fileLock(f, unix.F_OFD_GETLK, &l)
	return err == nil && l.Type != unix.F_UNLCK, err
}

// fileLock is about the file from its beginning to its end, wherever that will be.
func fileLock(f *os.File, cmd int, l *unix.Flock_t) error {
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var lockErr error
	err = c.Control(func(fd uintptr) {
		lockErr = retry(func() error { return unix.FcntlFlock(fd, cmd, l) })
	})
	return errors.Join(err, lockErr)
}
