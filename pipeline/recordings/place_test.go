package recordings

import (
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestUnlessForeign(t *testing.T) {
	for err, passed := range map[error][2]bool{ // of the folder itself, and of what lies below it
		fs.ErrNotExist: {true, true}, syscall.EACCES: {false, true}, syscall.ELOOP: {false, true}, syscall.EMFILE: {}, syscall.EIO: {}, syscall.ENOMEM: {},
	} {
		err := &fs.PathError{Op: "open", Path: "x", Err: err}
		require.Equal(t, passed, [2]bool{unlessForeign(".", err) == nil, unlessForeign("a/x.mp4", err) == nil}, err)
	}
}

// A file whose name fits several places is one of the first alone; what lies elsewhere is not asked for.
func TestDisjoint(t *testing.T) {
	dir := t.TempDir()
	var places []Place
	for _, of := range []struct{ key, pattern string }{{"a-10", "v/%{key}-%H.mp4"}, {"a", "v/%{key}-%H.mp4"}, {"a", "w/%{key}-%H.mp4"}, {"a", "%Y/%{key}-%H.mp4"}} {
		p, err := PlaceOf(of.key, filepath.Join(dir, of.pattern))
		require.NoError(t, err)
		places = append(places, p)
	}
	places = Disjoint(places)
	for name, owner := range map[string]int{"v/a-10-12.mp4": 0, "v/a-10.mp4": 1, "w/a-10.mp4": 2, "2026/a-10.mp4": 3, "v/b-10.mp4": -1} {
		for i, p := range places {
			_, ok := p.Name(filepath.Join(dir, name))
			require.Equal(t, i == owner, ok, "%s in %s", name, p.Pattern)
		}
	}
	require.Empty(t, places[2].others)
}

// A folder goes when it is empty and has been so for long: not the place's own, none outside, no link.
func TestRemoveEmpty(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	p, err := PlaceOf("a", filepath.Join(dir, "%F", "%H.mp4"))
	require.NoError(t, err)
	old := time.Now().Add(-2 * time.Hour)
	for _, name := range []string{"empty", "full", "young", "full/x"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o700))
	}
	require.NoError(t, os.Symlink("empty", filepath.Join(dir, "link")))
	for _, name := range []string{"empty", "full", "full/x", "."} {
		require.NoError(t, os.Chtimes(filepath.Join(dir, name), old, old))
	}
	require.NoError(t, os.Chtimes(outside, old, old))
	for _, name := range []string{"full", "young", "link", "."} {
		require.False(t, p.RemoveEmpty(filepath.Join(dir, name), time.Hour), name)
		_, err := os.Lstat(filepath.Join(dir, name))
		require.NoError(t, err, name)
	}
	require.False(t, p.RemoveEmpty(outside, time.Hour))
	require.DirExists(t, outside)
	require.True(t, p.RemoveEmpty(filepath.Join(dir, "empty"), time.Hour))
	require.NoDirExists(t, filepath.Join(dir, "empty"))
	require.True(t, p.RemoveEmpty(filepath.Join(dir, "never"), time.Hour))
}
