package still

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/shm"
)

// askPatience is for a whole answer: a publisher gives it in a few milliseconds, on a machine that is much too busy in some hundred; there are
// other ways to a picture.
const askPatience = 2 * time.Second

// Ask returns the newest picture of a key from its publisher. It blocks for two seconds at most, or until ctx ends. The error Is
// os.ErrNotExist when the publisher of the key hands out none: its frames lie in host memory, it has none, or it is of another program.
func Ask(ctx context.Context, runtimeDir, key string) (Picture, error) {
	p, err := ask(ctx, runtimeDir, key)
	if err != nil {
		return Picture{}, fmt.Errorf("ask the publisher of %s for a picture: %w", key, err)
	}
	return p, nil
}

func ask(ctx context.Context, runtimeDir, key string) (Picture, error) {
	if err := framering.CheckKey(key); err != nil {
		return Picture{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, askPatience)
	defer cancel()
	nc, err := (&net.Dialer{}).DialContext(ctx, "unix", framering.SnapshotPath(runtimeDir, key))
	if errors.Is(err, syscall.ECONNREFUSED) { // left by a publisher that was killed
		err = fmt.Errorf("%w: %w", os.ErrNotExist, err)
	}
	if err != nil {
		return Picture{}, err
	}
	c := nc.(*net.UnixConn)
	defer c.Close()
	if err := checkOwner(c, framering.SocketPath(runtimeDir, key)); err != nil {
		return Picture{}, err
	}
	defer context.AfterFunc(ctx, func() { c.Close() })()
	p, err := read(c)
	switch {
	case err != nil && errors.Is(ctx.Err(), context.DeadlineExceeded):
		err = fmt.Errorf("no answer: %w", os.ErrDeadlineExceeded)
	case err != nil && ctx.Err() != nil:
		err = ctx.Err()
	}
	return p, err
}

// checkOwner makes sure that who answers is the user whose control socket the key has: in a folder in which all may make files, anybody can
// put a socket where a publisher has none.
func checkOwner(c *net.UnixConn, control string) error {
	peer, err := shm.PeerCred(c)
	if err != nil {
		return err
	}
	fi, err := os.Lstat(control)
	if err != nil {
		return err
	}
	if st, ok := fi.Sys().(*syscall.Stat_t); !ok || int(st.Uid) != peer.UID {
		return fmt.Errorf("uid %d answers, and the key is not published by it: %w", peer.UID, os.ErrPermission)
	}
	return nil
}
