package shm

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// Whoever asks takes nothing: not from others who ask, and not from the one who locks next.
func TestFileLock(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	owner, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o600)
	require.NoError(t, err)
	defer owner.Close()
	var asking [2]*os.File
	for i := range asking {
		asking[i], err = os.Open(path)
		require.NoError(t, err)
		defer asking[i].Close()
	}
	locked := func() (n int) {
		for _, f := range asking {
			l, err := FileLocked(f)
			require.NoError(t, err)
			if l {
				n++
			}
		}
		return n
	}
	require.Zero(t, locked())
	require.NoError(t, LockFile(owner))
	require.Equal(t, 2, locked())
	mine, err := FileLocked(owner)
	require.NoError(t, err)
	require.False(t, mine, "one's own lock is in nobody's way")
	_, err = owner.WriteString("grows")
	require.NoError(t, err)
	require.Equal(t, 2, locked())
	other, err := os.OpenFile(path, os.O_WRONLY, 0)
	require.NoError(t, err)
	defer other.Close()
	require.ErrorIs(t, LockFile(other), unix.EAGAIN)
	require.NoError(t, owner.Close())
	require.Zero(t, locked())
	require.NoError(t, LockFile(other))
}
