package framering

import (
	"net"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

func TestSnapshotSocket(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 20*time.Second)
	dir, key := place(t)
	path := SnapshotPath(dir, key)
	require.Len(t, path, len(SocketPath(dir, key)), "where the one has room, so has the other")
	gid := os.Getgid()
	if gid == 0 {
		gid = 65534 // root may give it to any
	}
	for _, c := range []struct {
		gid  int
		mode os.FileMode
	}{{0, 0o600}, {gid, 0o660}} {
		p := publish(t, PublisherOptions{RuntimeDir: dir, Key: key, GID: c.gid}, true)
		l, err := p.ListenSnapshot()
		require.NoError(t, err)
		fi, err := os.Stat(path)
		require.NoError(t, err)
		require.Equal(t, c.mode, fi.Mode().Perm())
		if c.gid != 0 {
			require.EqualValues(t, c.gid, fi.Sys().(*syscall.Stat_t).Gid)
		}
		_, err = p.ListenSnapshot()
		require.ErrorIs(t, err, ErrInvalidArg, "there is one")
		list, err := List(dir)
		require.NoError(t, err)
		require.Len(t, list, 1, "it is no publisher's control socket")

		require.NoError(t, l.Close())
		require.NoError(t, l.Close())
		require.NoFileExists(t, path)
		_, err = p.ListenSnapshot()
		require.NoError(t, err, "another one, later")
		require.NoError(t, l.Close())
		require.FileExists(t, path, "the first one's Close leaves the second alone")
		require.NoError(t, p.Close(ReasonNormal))
		require.NoFileExists(t, path)
		_, err = p.ListenSnapshot()
		require.ErrorIs(t, err, os.ErrClosed)
		requireNothingLeft(t, dir, key)
	}

	// What is no socket was not made by a publisher.
	require.NoError(t, os.WriteFile(path, []byte("mine"), 0o600))
	p := publish(t, PublisherOptions{RuntimeDir: dir, Key: key}, true)
	_, err := p.ListenSnapshot()
	require.ErrorIs(t, err, ErrInvalidArg)
	require.FileExists(t, path)
	require.NoError(t, p.Close(ReasonNormal))
	require.FileExists(t, path)
}

// What a killed publisher leaves goes with the next one of the key, also when that hands out no pictures, or with its orphans.
func TestSnapshotSocketAfterKill(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	dir, key := place(t)
	path := SnapshotPath(dir, key)
	kill := func() {
		p, line := child(t, "publish-snapshots", dir, key)
		require.Equal(t, "ready", line)
		c, err := net.Dial("unix", path)
		require.NoError(t, err)
		require.NoError(t, c.Close())
		p.Kill()
		require.FileExists(t, path)
		_, err = net.Dial("unix", path)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
	}
	kill()
	p := publish(t, PublisherOptions{RuntimeDir: dir, Key: key}, true)
	require.NoFileExists(t, path)
	l, err := p.ListenSnapshot()
	require.NoError(t, err)
	n, err := RemoveOrphan(dir, ShmName(key))
	require.NoError(t, err)
	require.Zero(t, n)
	require.FileExists(t, path, "its publisher lives")
	require.NoError(t, l.Close())
	require.NoError(t, p.Close(ReasonNormal))

	kill()
	n, err = RemoveOrphan(dir, ShmName(key))
	require.NoError(t, err)
	require.Positive(t, n)
	require.NoFileExists(t, path)
	require.NoFileExists(t, SocketPath(dir, key))
	require.NoFileExists(t, filepath.Join(shm.Dir, ShmName(key)))

	// One that answers is that of a publisher with another /dev/shm: it stays.
	other, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	require.NoError(t, err)
	removeDeadSocket(path)
	require.FileExists(t, path)
	require.NoError(t, other.Close())
}
