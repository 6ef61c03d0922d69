package shm

import (
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// maxFDs is the kernel's SCM_MAX_FD.
const maxFDs = 253

// SendFDs writes payload, which must not be empty, with the file descriptors attached to its first byte. The caller keeps fds.
func SendFDs(c *net.UnixConn, payload []byte, fds []int) error {
	if len(payload) == 0 || len(fds) > maxFDs {
		return fmt.Errorf("send fds: %d bytes with %d file descriptors cannot be sent", len(payload), len(fds))
	}
	var oob []byte
	if len(fds) > 0 {
		oob = unix.UnixRights(fds...)
	}
	n, _, err := c.WriteMsgUnix(payload, oob, nil)
	if err == nil && n < len(payload) {
		_, err = c.Write(payload[n:]) // the descriptors went with the first part
	}
	if err != nil {
		return fmt.Errorf("send fds: %w", err)
	}
	return nil
}

// RecvFDs reads up to len(buf) bytes and at most limit file descriptors, which are close-on-exec and the caller's to close. A
// message that carries more gives ErrTooManyFDs, and all of its descriptors are closed.
func RecvFDs(c *net.UnixConn, buf []byte, limit int) (n int, fds []int, err error) {
	if limit < 0 || limit > maxFDs {
		return 0, nil, fmt.Errorf("receive fds: limit %d is out of range", limit)
	}
	oob := make([]byte, unix.CmsgSpace(4*max(limit, 1)))
	n, oobn, flags, _, err := c.ReadMsgUnix(buf, oob) // package net sets MSG_CMSG_CLOEXEC
	if oobn > 0 {
		var perr error
		if fds, perr = parseRights(oob[:oobn]); perr != nil && err == nil {
			err = perr
		}
	}
	if err == nil && (len(fds) > limit || flags&unix.MSG_CTRUNC != 0) {
		err = ErrTooManyFDs
	}
	if err != nil {
		closeAll(fds)
		return n, nil, fmt.Errorf("receive fds: %w", err)
	}
	return n, fds, nil
}

func parseRights(oob []byte) (fds []int, err error) {
	msgs, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil, err
	}
	for i := range msgs {
		got, err := unix.ParseUnixRights(&msgs[i])
		if errors.Is(err, unix.EINVAL) {
			continue // credentials and the like
		}
		if err != nil {
			return fds, err
		}
		fds = append(fds, got...)
	}
	return fds, nil
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}
