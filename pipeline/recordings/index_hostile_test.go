package recordings

import (
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/internal/testenv/clips"
	"github.com/cfpipe/cfpipe/mux"
)

// tamper runs SQL in an index.
func tamper(t *testing.T, path, text string) {
	t.Helper()
	db, err := sql.Open("sqlite", path)
	require.NoError(t, err)
	_, err = db.Exec(text)
	require.NoError(t, err)
	require.NoError(t, db.Close())
}

// What is no index stays where it is, whatever it is, and is not waited for.
func TestForeignFiles(t *testing.T) {
	testenv.Watchdog(t, 30*time.Second)
	for name, put := range map[string]func(path string) error{
		"folder":   func(path string) error { return os.Mkdir(path, 0o700) },
		"pipe":     func(path string) error { return syscall.Mkfifo(path, 0o600) },
		"text":     func(path string) error { return os.WriteFile(path, []byte("cameras: {}\n"), 0o600) },
		"a byte":   func(path string) error { return os.WriteFile(path, []byte{1}, 0o600) },
		"empty":    func(path string) error { return os.WriteFile(path+".yaml", make([]byte, 4096), 0o600) },
		"database": func(path string) error { tamper(t, path, "CREATE TABLE mine (x)"); return nil },
		"damaged database": func(path string) error {
			tamper(t, path, "CREATE TABLE mine (x)")
			return os.Truncate(path, 5000)
		},
	} {
		dir := t.TempDir()
		path := filepath.Join(dir, "index.db")
		require.NoError(t, put(path))
		if name == "empty" {
			path += ".yaml"
		}
		_, err := OpenIndex(path)
		require.ErrorIs(t, err, ErrForeign, name)
		require.ErrorIs(t, CheckIndex(path), ErrForeign, name)
		require.ErrorContains(t, err, path+": this is no index", name)
		require.ErrorContains(t, err, "if it was the index, delete it", name)
		_, err = Rebuild(t.Context(), path, nil, slog.New(slog.DiscardHandler), nil)
		require.ErrorIs(t, err, ErrForeign, name)
		names, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, names, 1, name)
	}
}

// An index whose contents are wrong is seen as damaged and made anew from the files.
func TestTamperedIndex(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	path, place, want, good := rebuilt(t)
	for name, change := range map[string]string{
		"a text for a time": "UPDATE files SET start = 'long ago'",
		"a column less":     "ALTER TABLE files DROP COLUMN cause",
		"a trigger":         "CREATE TRIGGER t AFTER INSERT ON files BEGIN DELETE FROM files; END",
		"a view":            "DROP TABLE files; CREATE VIEW files AS WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i+1 FROM n) SELECT * FROM n",
		"no index of times": "DROP INDEX files_by_time",
	} {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(path, good, 0o600))
			tamper(t, path, change)
			_, err := Library{Index: path}.List(t.Context(), Query{}, slog.New(slog.DiscardHandler), nil)
			require.ErrorIs(t, err, ErrDamaged)
			var log testenv.Log
			w := NewWriter(WriterOptions{Path: path, Places: []Place{place}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			stop := run(t, w)
			<-w.Ready()
			stop()
			require.Contains(t, log.String(), "moved aside")
			requireFiles(t, want, list(t, path, Query{}), ticks[mux.FMP4], true)

			require.NoError(t, os.WriteFile(path, good, 0o600))
			tamper(t, path, change)
			_, err = Rebuild(t.Context(), path, []Place{place}, slog.New(slog.DiscardHandler), nil)
			require.NoError(t, err)
			requireFiles(t, want, list(t, path, Query{}), ticks[mux.FMP4], true)
		})
	}
}

// A process that reads the index it writes keeps its locks: to other programs it stays in use.
func TestIndexStaysLocked(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	path := filepath.Join(t.TempDir(), "index.db")
	w := NewWriter(WriterOptions{Path: path})
	stop := run(t, w)
	<-w.Ready()
	f, err := os.Open(path) // closed at the end: closing it gives up the locks
	require.NoError(t, err)
	defer f.Close()
	defer stop()
	locked := func() bool {
		const sharedFirst, sharedSize = 0x40000002, 510 // SQLite's
		const getLock = 36                              // F_OFD_GETLK: the locks of this process count as those of others
		l := syscall.Flock_t{Type: syscall.F_WRLCK, Start: sharedFirst, Len: sharedSize}
		require.NoError(t, syscall.FcntlFlock(f.Fd(), getLock, &l))
		return l.Type != syscall.F_UNLCK
	}
	require.True(t, locked())
	for range 3 {
		require.Empty(t, list(t, path, Query{}))
		require.True(t, locked())
	}
}

// What belongs to an index that is in use is removed or cut off: it is seen, and the index says what the files do. Who reads it, or writes, is told of
// an error, and does not crash.
func TestIndexCutOff(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	s := camera(t, "320x180", 10, clips.X264)
	cut := func(suffix string, size int64) func(path string) error {
		return func(path string) error { return os.Truncate(path+suffix, size) }
	}
	for name, spoil := range map[string]func(path string) error{
		"no log":                           func(path string) error { return os.Remove(path + "-wal") },
		"an empty log":                     cut("-wal", 0),
		"the beginning of a log":           cut("-wal", 100),
		"an empty database":                cut("", 0),
		"the first page of a database":     cut("", 4096),
		"no shared memory":                 cut("-shm", 0),
		"the beginning of a shared memory": cut("-shm", 5000),
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			path := filepath.Join(dir, "index.db")
			place, err := PlaceOf("door", filepath.Join(dir, "%{key}", "%Y-%m-%d", "%H-%M-%S.mp4"))
			require.NoError(t, err)
			var log testenv.Log
			w := NewWriter(WriterOptions{Path: path, Places: []Place{place}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			stop := run(t, w)
			<-w.Ready()
			want := s.record(t, dir, "door", mux.FMP4, 2*time.Second, s.Packets)
			for _, f := range want[1:] {
				w.Finished(f)
			}
			testenv.Eventually(t, 10*time.Second, func() error { return hasFiles(path, len(want)-1) })
			if !strings.HasSuffix(name, "log") { // else it begins anew
				tamper(t, path, "PRAGMA wal_checkpoint(PASSIVE)")
			}
			reader, err := OpenIndex(path)
			require.NoError(t, err)
			defer reader.Close()
			require.NoError(t, spoil(path))
			for range 20 { // a log that was cut off has grown by the time that it is looked at
				w.Finished(want[0])
			}
			_, _ = reader.List(t.Context(), Query{})
			testenv.Eventually(t, 20*time.Second, func() error {
				if err := hasFiles(path, len(want)); err != nil {
					return fmt.Errorf("%w; log: %s", err, log.String())
				}
				return nil
			})
			stop()
			requireFiles(t, want, list(t, path, Query{}), ticks[mux.FMP4], true)
			require.NoError(t, sound(t.Context(), path))
		})
	}
}

// A log that is cut off and grows again at once is noticed, also where nobody in this process reads. Until then the database is no stranger's.
func TestIndexLogCutOffWhileWritten(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	s := camera(t, "320x180", 10, clips.X264)
	dir := t.TempDir()
	path := filepath.Join(dir, "index.db")
	place, err := Folder(dir)
	require.NoError(t, err)
	var log testenv.Log
	w := NewWriter(WriterOptions{Path: path, Places: []Place{place}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	stop := run(t, w)
	<-w.Ready()
	want := s.record(t, dir, "door", mux.FMP4, 2*time.Second, s.Packets)
	for _, f := range want {
		w.Finished(f)
	}
	testenv.Eventually(t, 10*time.Second, func() error { return hasFiles(path, len(want)) })
	alone := filepath.Join(t.TempDir(), "index.sqlite") // by its head alone
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(alone, b, 0o600))
	require.NoError(t, foreign(alone))

	require.NoError(t, os.Truncate(path+"-wal", 0))
	for range 20 {
		w.Finished(want[0])
	}
	testenv.Eventually(t, 10*time.Second, func() error {
		if !strings.Contains(log.String(), "moved aside") {
			return errors.New("it was not noticed")
		}
		return nil
	})
	testenv.Eventually(t, 10*time.Second, func() error { return hasFiles(path, len(want)) })
	stop()
}

// An index that is damaged again and again leaves the newest few behind, and nothing else goes away.
func TestNewestAside(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	dir := t.TempDir()
	path := filepath.Join(dir, "index.db")
	mine := filepath.Join(dir, "index.db.damaged-by-me")
	require.NoError(t, os.WriteFile(mine, nil, 0o600))
	for i := range mostAside + 3 {
		old := fmt.Sprintf("%s.damaged-20260504-12000%d.000", path, i)
		require.NoError(t, os.WriteFile(old, nil, 0o600))
		require.NoError(t, os.WriteFile(old+"-wal", nil, 0o600))
	}
	require.NoError(t, os.WriteFile(path, []byte("SQLite"), 0o600))
	require.NoError(t, os.WriteFile(path+"-wal", nil, 0o600))
	var log testenv.Log
	require.NoError(t, moveAside(path, ErrDamaged, slog.New(slog.NewJSONHandler(&log, nil))))
	_, newest, _ := strings.Cut(log.String(), `"moved_to":"`)
	newest, _, _ = strings.Cut(newest, `"`)
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, names, 2*mostAside+1)
	require.FileExists(t, mine)
	require.FileExists(t, newest)
	require.FileExists(t, newest+"-wal")
}

// Rows are believed no further than the folders of the recordings: not those of other files, nor through a link that leads out.
func TestRowsOutside(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	s := camera(t, "320x180", 10, clips.X264)
	dir, outside := t.TempDir(), t.TempDir()
	path := filepath.Join(dir, "index.db")
	place, err := PlaceOf("door", filepath.Join(dir, "%{key}", "%Y-%m-%d", "%H-%M-%S.mp4"))
	require.NoError(t, err)
	mine := s.record(t, dir, "door", mux.FMP4, time.Hour, s.Packets)
	foreign := s.record(t, outside, "door", mux.FMP4, time.Hour, s.Packets)[0]
	x, err := openWriter(t.Context(), path, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	linked := foreign
	require.NoError(t, os.Symlink(filepath.Dir(foreign.Path), filepath.Join(dir, "door", "1999-01-01")))
	linked.Path = filepath.Join(dir, "door", "1999-01-01", filepath.Base(foreign.Path))
	for _, f := range []File{foreign, linked} {
		require.NoError(t, x.apply(t.Context(), []change{{File: mine[0]}, {File: f}}))
	}
	require.NoError(t, x.Close())
	require.Len(t, list(t, path, Query{}), 3)
	got := list(t, path, Query{Places: []Place{place}})
	for _, f := range got {
		require.NotEqual(t, foreign.Path, f.Path)
		file, err := f.open()
		if f.Path == linked.Path {
			require.Error(t, err, "a link leads out")
			continue
		}
		require.NoError(t, err)
		file.Close()
	}
}

// A file that lies elsewhere is not asked how far it is.
func TestSpanOutside(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	s := camera(t, "320x180", 10, clips.X264)
	dir := t.TempDir()
	path := filepath.Join(dir, "index.db")
	f := s.record(t, t.TempDir(), "door", mux.FMP4, time.Hour, s.Packets)[0]
	end := f.End
	f.Open, f.Finished, f.End = true, false, f.Start
	x, err := openWriter(t.Context(), path, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	require.NoError(t, x.apply(t.Context(), []change{{File: f}}))
	require.NoError(t, x.Close())
	place, err := PlaceOf("door", filepath.Join(dir, "%{key}", "%H-%M-%S.mp4"))
	require.NoError(t, err)
	for _, c := range []struct {
		places []Place
		to     time.Time
	}{{nil, end}, {[]Place{place}, f.Start}} {
		spans, err := Library{Index: path, Places: c.places}.Spans(t.Context(), nil)
		require.NoError(t, err)
		require.Len(t, spans, 1)
		require.WithinDuration(t, c.to, spans[0].To, time.Millisecond)
	}
}

// A list that is bounded is the beginning of the whole one, whatever stands between its files.
func TestListLimit(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	dir := t.TempDir()
	path := filepath.Join(dir, "index.db")
	x, err := openWriter(t.Context(), path, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	var batch []change
	for i := range 4 * listPage {
		f := File{Key: fmt.Sprintf("cam%d", i%3), Path: filepath.Join(dir, fmt.Sprintf("%d.mp4", i)), Start: at(float64(i / 6)), End: at(float64(i/6 + 1)), Video: 27, Cause: mux.CauseContinuous, Finished: true}
		if i%7 == 0 { // the others are gone
			require.NoError(t, os.WriteFile(f.Path, nil, 0o600))
		}
		batch = append(batch, change{File: f})
	}
	require.NoError(t, x.apply(t.Context(), batch))
	require.NoError(t, x.Close())
	all := list(t, path, Query{})
	require.Len(t, all, (4*listPage+6)/7)
	for _, n := range []int{1, 2, 60, len(all) - 1, len(all), len(all) + 1} {
		require.Equal(t, all[:min(n, len(all))], list(t, path, Query{Limit: n}), n)
	}
}
