package bench

import (
	"context"
	"errors"
	"fmt"
	"syscall"

	"github.com/cfpipe/cfpipe/internal/lossylink"
)

// The ends of a path.
const (
	serverEnd = 0
	clientEnd = 1
)

// onPath makes sockets at one end of path, or in this process's own network where that is nil.
func onPath(ctx context.Context, path *lossylink.Link, end int, f func() error) error {
	if path == nil {
		return f()
	}
	return path.On(ctx, end, f)
}

// listenAddr is where a server at its end of path can be reached, at any free port.
func listenAddr(path *lossylink.Link) string {
	if path == nil {
		return "127.0.0.1:0"
	}
	return lossylink.AddrA + ":0"
}

var errNoCongestion = errors.New("the kernel does not have this congestion control")

const tcpCongestion = 13 // TCP_CONGESTION of tcp(7)

// setCongestion chooses a TCP socket's congestion control, "" = the system's.
func setCongestion(c syscall.RawConn, name string) error {
	if name == "" {
		return nil
	}
	var serr error
	if err := c.Control(func(fd uintptr) {
		serr = syscall.SetsockoptString(int(fd), syscall.IPPROTO_TCP, tcpCongestion, name)
	}); err != nil {
		return err
	}
	if serr != nil {
		return fmt.Errorf("bench: %s: %w: %w", name, errNoCongestion, serr)
	}
	return nil
}
