package recordings

import (
	"log/slog"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/internal/testenv/clips"
	"github.com/cfpipe/cfpipe/mux"
)

// scarce leaves the process so many file descriptors to open until the test ends, or the returned function is called.
func scarce(t *testing.T, free int) (enough func()) {
	t.Helper()
	var was syscall.Rlimit
	require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &was))
	var held []*os.File
	enough = func() {
		for _, f := range held {
			f.Close()
		}
		held = nil
		require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &was))
	}
	t.Cleanup(enough)
	top, err := os.Open(os.DevNull)
	require.NoError(t, err)
	held = append(held, top)
	require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &syscall.Rlimit{Cur: uint64(top.Fd()) + 20, Max: was.Max}))
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			require.ErrorIs(t, err, syscall.EMFILE)
			break
		}
		held = append(held, f)
	}
	for _, f := range held[len(held)-free:] {
		f.Close()
	}
	held = held[:len(held)-free]
	return enough
}

// What cannot be read for want of descriptors, whether the place, a folder in it or a file, keeps its row; a file that is gone does not.
func TestUnread(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	s := camera(t, "320x180", 10, clips.X264)
	dir := t.TempDir()
	files := s.record(t, dir, "door", mux.MKV, 2*time.Second, s.Packets)
	require.Len(t, files, 5)
	gone, files := files[4], files[:4]
	require.NoError(t, os.Remove(gone.Path))
	day := filepath.Dir(files[0].Path)
	flat, err := PlaceOf("door", filepath.Join(dir, "%{key}", "%Y-%m-%d", "%H-%M-%S.mkv"))
	require.NoError(t, err)
	deep, err := Folder(dir)
	require.NoError(t, err)

	for place, unread := range map[*Place][]string{&flat: {flat.Dir, ".", files[0].Path}, &deep: {dir, ".", day}} {
		x, err := openWriter(t.Context(), filepath.Join(t.TempDir(), "index.db"), slog.New(slog.DiscardHandler))
		require.NoError(t, err)
		defer x.Close()
		_, err = x.reconcile(t.Context(), []Place{*place}, nil)
		require.NoError(t, err)
		require.NoError(t, x.apply(t.Context(), []change{{File: gone}}))
		require.NoError(t, os.Chtimes(files[0].Path, time.Time{}, time.Now())) // it has to be read
		for free := range len(unread) + 1 {
			enough := scarce(t, free)
			st, err := x.reconcile(t.Context(), []Place{*place}, nil)
			enough()
			require.NoError(t, err)
			rows, err := x.rows(t.Context(), Query{}, File{}, 0)
			require.NoError(t, err)
			require.Len(t, rows, len(files), "with %d descriptors", free)
			require.Equal(t, free == 0, st.Gone == 1)
			if free == len(unread) {
				require.Equal(t, Reconciled{Files: 4, Read: 1}, st)
				break
			}
			var of *os.PathError
			require.ErrorAs(t, st.Why, &of)
			require.ErrorIs(t, of, syscall.EMFILE)
			require.Contains(t, unread[free], of.Path, "with %d descriptors", free)
			require.Equal(t, []int{1, 0, 0}, []int{st.Unread, st.Read, st.Other})
		}
	}
}

// A place that cannot be read at all does not keep the others out of the index.
func TestUnreadPlace(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	s := camera(t, "320x180", 10, clips.X264)
	dir := t.TempDir()
	path := filepath.Join(dir, "index.db")
	var places []Place
	for _, key := range []string{"door", "yard"} {
		p, err := PlaceOf(key, filepath.Join(dir, "%{key}", "%Y-%m-%d", "%H-%M-%S.mp4"))
		require.NoError(t, err)
		places = append(places, p)
	}
	s.record(t, dir, "door", mux.FMP4, time.Minute, s.Packets)
	_, err := Rebuild(t.Context(), path, places, slog.New(slog.DiscardHandler), nil)
	require.NoError(t, err)
	door, away := filepath.Join(dir, "door"), filepath.Join(dir, "away")
	require.NoError(t, os.Rename(door, away))
	require.NoError(t, os.WriteFile(door, nil, 0o600)) // ENOTDIR, whoever asks
	s.record(t, dir, "yard", mux.FMP4, time.Minute, s.Packets)

	w := NewWriter(WriterOptions{Path: path, Places: places})
	stop := run(t, w)
	<-w.Ready()
	stop()
	require.Len(t, list(t, path, Query{Keys: []string{"yard"}}), 1)
	require.NoError(t, os.Remove(door))
	require.NoError(t, os.Rename(away, door))
	require.Len(t, list(t, path, Query{Keys: []string{"door"}}), 1, "its row has stayed")
	_, err = Scan(t.Context(), []Place{{Dir: filepath.Join(dir, "index.db")}}, Query{}, nil)
	require.ErrorContains(t, err, "not a directory")
}
