package shm

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// Cred tells who is at the other end of a Unix socket, as the kernel saw it at connect.
type Cred struct{ PID, UID, GID int }

// PeerCred returns the credentials of c's peer.
func PeerCred(c *net.UnixConn) (Cred, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return Cred{}, fmt.Errorf("peer credentials: %w", err)
	}
	var u *unix.Ucred
	var uerr error
	err = raw.Control(func(fd uintptr) { u, uerr = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED) })
	if err = errors.Join(err, uerr); err != nil {
		return Cred{}, fmt.Errorf("peer credentials: %w", err)
	}
	return Cred{PID: int(u.Pid), UID: int(u.Uid), GID: int(u.Gid)}, nil
}

// PIDAlive tells whether the process pid runs; one that has ended but was not reaped does not. It sees this PID namespace alone,
// and a reused pid looks alive: ask the segment's lock first.
func PIDAlive(pid int) bool {
	if pid <= 0 {
		return false
	}
	fd, err := unix.PidfdOpen(pid, 0)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.EMFILE) || errors.Is(err, unix.ENFILE) {
		err = unix.Kill(pid, 0)
		return err == nil || errors.Is(err, unix.EPERM)
	}
	if err != nil {
		return false
	}
	defer unix.Close(fd)
	// A pidfd becomes readable when the process ends.
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n := 0
	err = retry(func() error { n, err = unix.Poll(p, 0); return err })
	return err != nil || n == 0
}
