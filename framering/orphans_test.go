package framering

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

func TestOrphansAreThoseOfDeadPublishersAlone(t *testing.T) {
	testenv.CheckLeaks(t)
	dir := t.TempDir()
	dead := shm.Prefix + "orphans-dead"
	alive := shm.Prefix + "orphans-alive"
	require.NoError(t, os.WriteFile(filepath.Join(shm.Dir, dead), make([]byte, 8192), 0o600)) // no lock, no live pid: what a kill leaves
	t.Cleanup(func() { os.Remove(filepath.Join(shm.Dir, dead)) })
	seg, err := shm.CreateLocked(alive, 8192, shm.CreateOptions{})
	require.NoError(t, err)
	t.Cleanup(func() { seg.Close() })

	list, err := Orphans()
	require.NoError(t, err)
	var names []string
	for _, o := range list {
		names = append(names, o.Name)
	}
	require.Contains(t, names, dead)
	require.NotContains(t, names, alive)

	n, err := RemoveOrphan(dir, alive)
	require.NoError(t, err)
	require.Zero(t, n)
	require.FileExists(t, filepath.Join(shm.Dir, alive))

	n, err = RemoveOrphan(dir, dead)
	require.NoError(t, err)
	require.EqualValues(t, 8192, n)
	require.NoFileExists(t, filepath.Join(shm.Dir, dead))

	require.Equal(t, "cam1", Orphan{Name: ShmName("cam1")}.Key())
	require.Equal(t, "cam1", Orphan{Name: PacketShmName("cam1")}.Key())
	require.Equal(t, `"\x1b[2J"`, Orphan{Name: shm.Prefix + "\x1b[2J"}.Key(), "a file that anybody may have made")

	_, err = RemoveOrphan(dir, "../etc/passwd")
	require.Error(t, err)
}
