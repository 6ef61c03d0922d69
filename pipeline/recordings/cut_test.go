package recordings

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/internal/testenv/clips"
	"github.com/cfpipe/cfpipe/mux"
)

// A file that was cut off is read once, when its recorder begins the next one: from then on a query that is not about its time leaves it alone. One that
// grows all the same is asked again.
func TestCutIsReadOnce(t *testing.T) {
	for _, f := range []mux.Format{mux.MKV, mux.TS} {
		t.Run(string(f), func(t *testing.T) { testCutIsReadOnce(t, f) })
	}
}

func testCutIsReadOnce(t *testing.T, format mux.Format) {
	testenv.Watchdog(t, time.Minute)
	testenv.CheckLeaks(t)
	s := camera(t, "320x180", 10, clips.X264)
	dir := t.TempDir()
	path := filepath.Join(dir, "index.db")
	out, err := mux.ParsePattern(filepath.Join(dir, "%{key}-%H-%M-%S"+format.Extension()), "door")
	require.NoError(t, err)
	w := NewWriter(WriterOptions{Path: path})
	stop := run(t, w)
	<-w.Ready()
	begin := func(start time.Time) *os.File {
		t.Helper()
		f, err := out.Create(start)
		require.NoError(t, err)
		m, err := mux.NewWriter(mux.WriterOptions{Format: format, Video: s.Video, Key: s.Packets[0].Data, Out: f, Seek: true, Start: s.Packets[0].DTS, Title: "door"})
		require.NoError(t, err)
		for _, p := range s.Packets {
			if p.Track == mux.VideoTrack {
				require.NoError(t, m.Write(p.Track, p.Packet))
			}
		}
		require.NoError(t, m.Flush())
		m.Close()
		w.Started("door", f.Name(), start, "")
		return f
	}
	state := func(path string) (n int) {
		t.Helper()
		x, err := OpenIndex(w.o.Path)
		require.NoError(t, err)
		defer x.Close()
		err = x.db.QueryRow("SELECT finished FROM files WHERE path = ?", path).Scan(&n)
		if err != nil {
			return -1
		}
		return n
	}
	eventually := func(path string, want int) {
		t.Helper()
		testenv.Eventually(t, 10*time.Second, func() error {
			if state(path) != want {
				return errors.New("the index does not say it")
			}
			return nil
		})
	}
	first := begin(at(0))
	eventually(first.Name(), stateOpen)
	require.Equal(t, "recording", list(t, path, Query{})[0].State())
	require.NoError(t, first.Close()) // its recorder was killed
	require.Equal(t, "cut", list(t, path, Query{})[0].State(), "whatever the index says")
	second := begin(at(20))
	eventually(first.Name(), stateCut)
	eventually(second.Name(), stateOpen)

	x, err := OpenIndex(path)
	require.NoError(t, err)
	rows, err := x.rows(t.Context(), Query{From: at(15)}, File{}, 0)
	require.NoError(t, err)
	require.NoError(t, x.Close())
	require.Len(t, rows, 1, "what was cut off ends where it does")
	require.Equal(t, second.Name(), rows[0].Path)
	got := list(t, path, Query{To: at(15)})
	require.Equal(t, first.Name(), got[0].Path)
	require.WithinDuration(t, at(10), got[0].End, 100*time.Millisecond)
	require.Equal(t, "cut", got[0].State())

	// A file system without locks: it was open all the time.
	b, err := os.ReadFile(first.Name())
	require.NoError(t, err)
	require.NoError(t, os.Truncate(first.Name(), int64(len(b)/2)))
	got = list(t, path, Query{To: at(15)})
	require.Less(t, got[0].End.Sub(at(0)), 8*time.Second)
	require.NoError(t, second.Close())
	stop()
}
