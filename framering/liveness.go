package framering

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// Who is alive. A publisher of this project holds an exclusive flock on its frame SHM for its life, which the kernel drops
// with the process, in whatever PID namespace it ran. A foreign publisher holds none: its socket accepts connections, and
// its producer_pid is a process that maps the SHM. A pid alone proves nothing: pid 1 is always alive and pids are reused.

const probeTimeout = time.Second // a listening socket of this machine accepts at once

// probe tells whether somebody listens on the socket. A full backlog counts as alive.
func probe(path string) (alive bool, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), probeTimeout)
	defer cancel()
	c, err := (&net.Dialer{}).DialContext(ctx, "unix", path)
	switch {
	case err == nil:
		c.Close()
		return true, nil
	case errors.Is(err, syscall.ENOENT), errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, syscall.ENOTDIR):
		return false, nil
	case errors.Is(err, syscall.EAGAIN), errors.Is(err, os.ErrDeadlineExceeded):
		return true, nil
	}
	return false, fmt.Errorf("probe %s: %w", path, err)
}

// foreignAlive applies the pid rule to the first bytes of an unlocked SHM, which is at /dev/shm/name. The pid stands at the
// same offset in every version, and in packet rings too.
func foreignAlive(name string, head []byte) bool {
	pid := publisherPID(head)
	return pid != 0 && shm.ProcessMaps(pid, name)
}

// publisherPID is who the first bytes of an SHM say has made it; 0 = they are no header, or say no pid that can be one.
func publisherPID(head []byte) int {
	if len(head) < headerSize {
		return 0
	}
	switch binary.LittleEndian.Uint32(head) {
	case MagicV4, MagicLegacy, MagicPackets:
	default:
		return 0
	}
	pid := binary.LittleEndian.Uint64(head[0x18:])
	if pid > 1<<22 { // PID_MAX_LIMIT
		return 0
	}
	return int(pid)
}
