package framering

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// The snapshot socket is no part of the cuframes protocol. At it the publisher of frames in GPU memory gives its newest picture to
// processes that have no GPU open; package pipeline/still says what is spoken there. It belongs to who holds the key's lock, and is as
// open as the control socket.

// SnapshotPath returns the path of a key's snapshot socket.
func SnapshotPath(runtimeDir, key string) string {
	return filepath.Join(RuntimeDir(runtimeDir), key+".snap")
}

// SnapshotListener is a publisher's snapshot socket.
type SnapshotListener struct {
	*net.UnixListener
	p    *Publisher
	path string
}

// ListenSnapshot makes the snapshot socket of the key. The listener, or at the latest the publisher, removes it when it is closed. The
// error is ErrInvalidArg when the publisher has one already, or when something that is no socket lies there; os.ErrClosed.
func (p *Publisher) ListenSnapshot() (*SnapshotListener, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, err := p.listenSnapshot()
	if err != nil {
		return nil, fmt.Errorf("snapshot socket of %s: %w", p.key, err)
	}
	p.snapshots = l
	return l, nil
}

func (p *Publisher) listenSnapshot() (*SnapshotListener, error) {
	switch {
	case p.closing:
		return nil, os.ErrClosed
	case p.snapshots != nil:
		return nil, fmt.Errorf("there is one already: %w", ErrInvalidArg)
	}
	path := SnapshotPath(filepath.Dir(p.path), p.key)
	if err := checkNoFile(path); err != nil {
		return nil, err
	}
	// The key is locked and p.mu is held: the name beside the socket, which Serve uses too, is ours.
	l, err := shm.ListenUnix(path, p.gid)
	if err != nil {
		return nil, err
	}
	return &SnapshotListener{UnixListener: l, p: p, path: path}, nil
}

// Close ends the listener and removes the socket. It is idempotent.
func (l *SnapshotListener) Close() error {
	l.p.mu.Lock()
	defer l.p.mu.Unlock()
	if l.p.snapshots != l {
		return nil
	}
	l.p.snapshots = nil
	err := l.UnixListener.Close()
	if rerr := os.Remove(l.path); rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
		err = errors.Join(err, rerr)
	}
	return err
}

// removeDeadSocket removes the socket of a publisher that was killed. The caller holds the lock of its key, so that no other appears there
// meanwhile; one that answers all the same is that of a publisher with another /dev/shm.
func removeDeadSocket(path string) {
	fi, err := os.Lstat(path)
	if err != nil || fi.Mode()&fs.ModeSocket == 0 {
		return
	}
	if alive, err := probe(path); err == nil && !alive {
		_ = os.Remove(path) // another user's, where the folder is shared: it stays
	}
}
