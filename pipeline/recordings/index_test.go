package recordings

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/internal/testenv/clips"
	"github.com/cfpipe/cfpipe/mux"
)

// run starts a Writer and returns what stops it.
func run(t *testing.T, w *Writer) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.Run(ctx)
	}()
	stop = sync.OnceFunc(func() {
		cancel()
		<-ended
	})
	t.Cleanup(stop)
	return stop
}

func list(t *testing.T, path string, q Query) []File {
	t.Helper()
	x, err := OpenIndex(path)
	require.NoError(t, err)
	defer x.Close()
	files, err := x.List(t.Context(), q)
	require.NoError(t, err)
	return files
}

// requireFiles compares all that two lists say of their files.
func requireFiles(t *testing.T, want, got []File, tick time.Duration, exact bool) {
	t.Helper()
	require.Len(t, got, len(want))
	for i, w := range want {
		g := got[i]
		require.WithinDuration(t, w.Start, g.Start, tick, w.Path)
		require.WithinDuration(t, w.End, g.End, max(tick, map[bool]time.Duration{false: 45 * time.Millisecond}[exact]), w.Path)
		g.Start, g.End, g.Modified, g.Open = w.Start, w.End, w.Modified, w.Open
		require.Equal(t, w, g)
	}
}

// What recorders report stands in the index; made anew from the files alone it says the same, exact to the tick of the container.
func TestIndex(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	testenv.CheckLeaks(t)
	s := camera(t, "320x180", 10, clips.X264B, clips.AAC)
	for _, f := range []mux.Format{mux.FMP4, mux.MP4, mux.MKV, mux.TS} {
		dir := t.TempDir()
		path := filepath.Join(dir, "index.db")
		var places []Place
		for _, key := range []string{"door", "yard"} {
			p, err := PlaceOf(key, filepath.Join(dir, "%{key}", "%Y-%m-%d", "%H-%M-%S"+f.Extension()))
			require.NoError(t, err)
			places = append(places, p)
		}
		w := NewWriter(WriterOptions{Path: path, Places: places})
		stop := run(t, w)
		<-w.Ready()
		want := s.record(t, dir, "door", f, 3*time.Second, s.Packets)
		want = append(want, s.record(t, dir, "yard", f, 4*time.Second, s.between(0, 5))...)
		for _, f := range want {
			w.Started(f.Key, f.Path, f.Start, f.Cause)
			w.Finished(f)
		}
		stop()
		got := list(t, path, Query{})
		requireFiles(t, want, got, 0, true)
		require.Equal(t, want[:4], stripped(list(t, path, Query{Keys: []string{"door"}}), want))

		// By time: what has something in the span.
		got = list(t, path, Query{Keys: []string{"door"}, From: at(3.5), To: at(6.01)})
		require.Len(t, got, 1)
		got = list(t, path, Query{Keys: []string{"door"}, From: at(3.5), To: at(6.1)})
		require.Len(t, got, 2)
		require.Empty(t, list(t, path, Query{From: at(60)}))
		require.Empty(t, list(t, path, Query{Keys: []string{"none"}}))

		// Lost: made anew, by the command and by a Writer.
		for _, anew := range []func(){
			func() {
				_, err := Rebuild(t.Context(), path, places, slog.New(slog.DiscardHandler), nil)
				require.NoError(t, err)
			},
			func() {
				w := NewWriter(WriterOptions{Path: path, Places: places})
				stop := run(t, w)
				<-w.Ready()
				stop()
			},
		} {
			require.NoError(t, os.Remove(path))
			anew()
			requireFiles(t, want, list(t, path, Query{}), ticks[f], f == mux.FMP4)
		}
		// Without an index: the files themselves, which say their key.
		folder, err := Folder(dir)
		require.NoError(t, err)
		got, err = Scan(t.Context(), []Place{folder}, Query{}, nil)
		require.NoError(t, err)
		requireFiles(t, want, got, ticks[f], f == mux.FMP4)
		b, err := json.Marshal(got[0])
		require.NoError(t, err)
		require.Contains(t, string(b), `"key":"door"`)
		require.Contains(t, string(b), `"codecs":"h264+aac"`)
	}
}

func stripped(got, want []File) []File {
	for i := range got {
		got[i].Modified = want[i].Modified
	}
	return got
}

// Files that others add, replace and remove while nothing runs are seen at the next start; files of cameras that are no longer asked for stay; what
// is no recording is left out; links are not followed.
func TestReconcile(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	s := camera(t, "320x180", 10, clips.X264)
	dir := t.TempDir()
	path := filepath.Join(dir, "index.db")
	door, err := PlaceOf("door", filepath.Join(dir, "%{key}", "%Y-%m-%d", "%H-%M-%S.mp4"))
	require.NoError(t, err)
	yard, err := PlaceOf("yard", filepath.Join(dir, "%{key}", "%Y-%m-%d", "%H-%M-%S.mp4"))
	require.NoError(t, err)
	files := s.record(t, dir, "door", mux.FMP4, 2*time.Second, s.Packets)
	require.Len(t, files, 5)
	s.record(t, dir, "yard", mux.FMP4, time.Minute, s.Packets)
	day := filepath.Dir(files[0].Path)
	require.NoError(t, os.WriteFile(filepath.Join(day, "10-00-00.mp4"), []byte("no recording at all"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(day, "notes.mp4"), []byte("a note"), 0o600))
	outside := filepath.Join(t.TempDir(), "secret.mp4")
	b, err := os.ReadFile(files[0].Path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(outside, b, 0o600))
	require.NoError(t, os.Symlink(outside, filepath.Join(day, "11-00-00.mp4")))
	st, err := Rebuild(t.Context(), path, []Place{door, yard}, slog.New(slog.DiscardHandler), nil)
	require.NoError(t, err)
	require.Equal(t, Reconciled{Files: 6, Read: 6, Other: 1}, st)
	st, err = Rebuild(t.Context(), path, []Place{door, yard}, slog.New(slog.DiscardHandler), nil)
	require.NoError(t, err)
	require.Equal(t, Reconciled{Files: 6, Other: 1}, st, "nothing has changed: nothing is read")

	require.NoError(t, os.Remove(files[0].Path))
	require.NoError(t, os.Truncate(files[1].Path, files[1].Bytes/2))
	require.NoError(t, os.Rename(files[2].Path, filepath.Join(day, "13-00-00.mp4")))
	require.Len(t, list(t, path, Query{Keys: []string{"door"}}), 3, "what is gone is not listed, whatever the index says")
	st, err = Rebuild(t.Context(), path, []Place{door}, slog.New(slog.DiscardHandler), nil)
	require.NoError(t, err)
	require.Equal(t, Reconciled{Files: 4, Read: 2, Gone: 2, Other: 1}, st)
	got := list(t, path, Query{Keys: []string{"door"}})
	require.Len(t, got, 4)
	require.Equal(t, "cut", got[0].State())
	require.Len(t, list(t, path, Query{Keys: []string{"yard"}}), 1)
}

// rebuilt makes the recordings of a place and their index.
func rebuilt(t *testing.T) (path string, place Place, want []File, index []byte) {
	t.Helper()
	s := camera(t, "320x180", 10, clips.X264)
	dir := t.TempDir()
	path = filepath.Join(dir, "index.db")
	place, err := PlaceOf("door", filepath.Join(dir, "%{key}", "%Y-%m-%d", "%H-%M-%S.mp4"))
	require.NoError(t, err)
	want = s.record(t, dir, "door", mux.FMP4, 2*time.Second, s.Packets)
	_, err = Rebuild(t.Context(), path, []Place{place}, slog.New(slog.DiscardHandler), nil)
	require.NoError(t, err)
	index, err = os.ReadFile(path)
	require.NoError(t, err)
	return path, place, want, index
}

// A database that is damaged, anywhere and in any way, is moved aside with a word in the log and made anew; one of somebody else, or of a newer
// version, is left alone.
func TestDamagedIndex(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	path, place, want, good := rebuilt(t)
	require.NoFileExists(t, path+"-wal")
	damage := map[string][]byte{
		"nothing": {}, "zeros": make([]byte, len(good)), "cut off": good[:len(good)/2+100],
		"a page of noise": slices.Concat(good[:4096], bytes.Repeat([]byte{0xA5, 0x5A}, 2048), good[8192:]),
		"a header alone":  good[:100],
	}
	for name, b := range damage {
		t.Run(name, func(t *testing.T) {
			require.NoError(t, os.WriteFile(path, b, 0o600))
			if x, err := OpenIndex(path); err == nil { // readers say it, and do not crash
				_, err = x.List(t.Context(), Query{})
				require.ErrorIs(t, err, ErrDamaged)
				x.Close()
			} else {
				require.ErrorIs(t, err, ErrDamaged)
			}
			var log testenv.Log
			w := NewWriter(WriterOptions{Path: path, Places: []Place{place}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			stop := run(t, w)
			<-w.Ready()
			stop()
			require.Equal(t, len(b) > 0, strings.Contains(log.String(), "moved aside"), log.String())
			requireFiles(t, want, list(t, path, Query{}), ticks[mux.FMP4], true)
		})
	}
	aside, err := filepath.Glob(path + ".damaged-*")
	require.NoError(t, err)
	require.NotEmpty(t, aside)

	set := func(pragma string) {
		db, err := sql.Open("sqlite", path)
		require.NoError(t, err)
		_, err = db.Exec(pragma)
		require.NoError(t, err)
		require.NoError(t, db.Close())
	}
	for pragma, want := range map[string]error{"PRAGMA user_version=4": ErrNewer, "PRAGMA application_id=7": ErrForeign} {
		require.NoError(t, os.WriteFile(path, good, 0o600))
		set(pragma)
		_, err = OpenIndex(path)
		require.ErrorIs(t, err, want)
		_, err = Rebuild(t.Context(), path, []Place{place}, slog.New(slog.DiscardHandler), nil)
		require.ErrorIs(t, err, want)
		_, err = os.Stat(path)
		require.NoError(t, err)
	}
	_, err = OpenIndex(filepath.Join(filepath.Dir(path), "none.db"))
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// The index is deleted, and damaged, while it is in use: it is made anew, with what was reported meanwhile.
func TestIndexGone(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	testenv.CheckLeaks(t)
	s := camera(t, "320x180", 10, clips.X264)
	dir := t.TempDir()
	path := filepath.Join(dir, "index.db")
	place, err := PlaceOf("door", filepath.Join(dir, "%{key}", "%Y-%m-%d", "%H-%M-%S.mp4"))
	require.NoError(t, err)
	w := NewWriter(WriterOptions{Path: path, Places: []Place{place}})
	stop := run(t, w)
	<-w.Ready()
	files := s.record(t, dir, "door", mux.FMP4, 2*time.Second, s.Packets)
	for _, f := range files[:3] {
		w.Finished(f)
	}
	testenv.Eventually(t, 10*time.Second, func() error { return hasFiles(path, 3) })
	require.NoError(t, os.Remove(path))
	for _, f := range files[3:] {
		w.Finished(f)
	}
	testenv.Eventually(t, 20*time.Second, func() error { return hasFiles(path, 5) })
	stop()
	requireFiles(t, files, list(t, path, Query{}), ticks[mux.FMP4], true)
}

func hasFiles(path string, n int) error {
	x, err := OpenIndex(path)
	if err != nil {
		return err
	}
	defer x.Close()
	files, err := x.List(context.Background(), Query{})
	if err == nil && len(files) != n {
		err = fmt.Errorf("%d files, want %d", len(files), n)
	}
	return err
}

// An index that hangs holds up nobody who reports, however much; what was dropped is found again in the files.
func TestSlowIndex(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	s := camera(t, "320x180", 10, clips.X264)
	dir := t.TempDir()
	path := filepath.Join(dir, "index.db")
	place, err := PlaceOf("door", filepath.Join(dir, "%{key}", "%Y-%m-%d", "%H-%M-%S.mp4"))
	require.NoError(t, err)
	w := NewWriter(WriterOptions{Path: path, Places: []Place{place}})
	hang := make(chan struct{})
	w.delay = func() { <-hang }
	stop := run(t, w)
	files := s.record(t, dir, "door", mux.FMP4, time.Second, s.Packets)
	require.Len(t, files, 10)
	begun := time.Now()
	for range 100 * maxQueue / len(files) {
		for _, f := range files {
			w.Started(f.Key, f.Path, f.Start, f.Cause)
			w.Finished(f)
		}
		w.Removed(filepath.Join(dir, "door", "2026-05-04", "00-00-00.mp4"))
	}
	each := time.Since(begun) / (200 * maxQueue)
	t.Logf("a report takes %v while the index hangs", each)
	require.NotZero(t, w.dropped.Load())
	require.LessOrEqual(t, len(w.queue), maxQueue)
	close(hang)
	testenv.Eventually(t, 30*time.Second, func() error {
		if w.missed.Load() {
			return errors.New("not caught up")
		}
		return hasFiles(path, 10)
	})
	stop()
	requireFiles(t, files, list(t, path, Query{}), ticks[mux.FMP4], true)
}

// Where the index cannot be written at all, reports are taken as well, and the log says so.
func TestUnwritableIndex(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	var log testenv.Log
	w := NewWriter(WriterOptions{Path: filepath.Join(dir, "file", "index.db"), Logger: slog.New(slog.NewTextHandler(&log, nil))})
	stop := run(t, w)
	for range 2 * maxQueue {
		w.Removed("/nothing")
	}
	testenv.Eventually(t, 10*time.Second, func() error {
		if log.String() == "" {
			return errors.New("nothing was said")
		}
		return nil
	})
	stop()
	require.Contains(t, log.String(), "recording goes on")
	require.Contains(t, log.String(), filepath.Join(dir, "file"))
	require.Contains(t, log.String(), "not a directory")
	require.Contains(t, log.String(), "index: in the site file")
}

// A folder that its user may not write is named, with the reason and the remedy.
func TestIndexWithoutRights(t *testing.T) {
	if os.Geteuid() == 0 {
		t.Skip("root may write everywhere")
	}
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o500))
	_, err := Rebuild(t.Context(), filepath.Join(dir, "index.db"), nil, slog.New(slog.DiscardHandler), nil)
	require.ErrorIs(t, err, fs.ErrPermission)
	require.ErrorContains(t, err, "write into "+dir+": permission denied")
	require.ErrorContains(t, err, "index: in the site file")
}

// Retention: a file that was removed leaves the index with its row.
func TestRemoved(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	s := camera(t, "320x180", 10, clips.X264)
	dir := t.TempDir()
	path := filepath.Join(dir, "index.db")
	w := NewWriter(WriterOptions{Path: path})
	stop := run(t, w)
	<-w.Ready()
	files := s.record(t, dir, "door", mux.FMP4, 2*time.Second, s.Packets)
	for _, f := range files {
		w.Finished(f)
	}
	require.NoError(t, os.Remove(files[0].Path))
	w.Removed(files[0].Path)
	stop()
	x, err := OpenIndex(path)
	require.NoError(t, err)
	defer x.Close()
	rows, err := x.rows(t.Context(), Query{}, File{}, 0)
	require.NoError(t, err)
	requireFiles(t, files[1:], rows, 0, true)
}

// Who reads an index leaves nothing beside it, also where the folder is not theirs to write.
func TestReaderLeavesNothing(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "index.db")
	w := NewWriter(WriterOptions{Path: path})
	stop := run(t, w)
	<-w.Ready()
	recorded := filepath.Join(dir, "a.mp4")
	require.NoError(t, os.WriteFile(recorded, []byte("x"), 0o600))
	w.Finished(File{Key: "door", Path: recorded, Start: time.Unix(1, 0), End: time.Unix(2, 0), Finished: true})
	testenv.Eventually(t, 10*time.Second, func() error { // with the writer at work
		if n := len(list(t, path, Query{})); n != 1 {
			return fmt.Errorf("%d files", n)
		}
		return nil
	})
	stop()
	require.NoError(t, os.Chmod(dir, 0o500))
	defer func() { _ = os.Chmod(dir, 0o700) }()
	require.Len(t, list(t, path, Query{}), 1)
	names, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, names, 2, "%v", names)
}

// 10,000 files are listed at once, and found by time. They are empty: none of them was opened to be asked.
func TestManyFiles(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	dir := t.TempDir()
	path := filepath.Join(dir, "index.db")
	x, err := openWriter(t.Context(), path, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	var batch []change
	for i := range 10_000 {
		f := File{
			Key: fmt.Sprintf("cam%d", i%10), Path: filepath.Join(dir, fmt.Sprintf("%d.mp4", i)), Start: at(float64(i / 10 * 60)), End: at(float64(i/10*60 + 60)),
			Bytes: 30 << 20, Packets: 1500, Keyframes: 30, Video: 27, Audio: 86018, Width: 1920, Height: 1080, Cause: mux.CauseContinuous, Finished: true,
		}
		require.NoError(t, os.WriteFile(f.Path, nil, 0o600))
		batch = append(batch, change{File: f})
	}
	require.NoError(t, x.apply(t.Context(), batch))
	require.NoError(t, x.Close())
	begun := time.Now()
	require.Len(t, list(t, path, Query{}), 10_000)
	all := time.Since(begun)
	begun = time.Now()
	require.Len(t, list(t, path, Query{Keys: []string{"cam3"}, From: at(6000), To: at(9600)}), 60)
	t.Logf("10,000 files are listed in %v, an hour of one of 10 cameras in %v", all, time.Since(begun))
	require.Less(t, all, 10*time.Second) // with the race detector on a busy machine
}

func TestParseTime(t *testing.T) {
	zone := time.FixedZone("here", 2*3600)
	now := time.Date(2026, 11, 30, 15, 4, 5, 0, zone)
	for text, want := range map[string]time.Time{
		"": {}, "now": now, "-1h": now.Add(-time.Hour), "-1h30m": now.Add(-90 * time.Minute), "-2d": now.Add(-48 * time.Hour), "-1d12h": now.Add(-36 * time.Hour),
		"-1w": now.Add(-7 * 24 * time.Hour), "-1w2d3h": now.Add(-(9*24 + 3) * time.Hour),
		"24:00": time.Date(2026, 12, 1, 0, 0, 0, 0, zone), "24:00:00": time.Date(2026, 12, 1, 0, 0, 0, 0, zone),
		"2026-11-29 24:00": time.Date(2026, 11, 30, 0, 0, 0, 0, zone), "2026-11-29T24:00": time.Date(2026, 11, 30, 0, 0, 0, 0, zone),
		"2026-11-30T12:00:00Z":             time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC),
		"2026-11-30T12:00:00.123456+02:00": time.Date(2026, 11, 30, 10, 0, 0, 123456000, time.UTC),
		"2026-11-30 12:00":                 time.Date(2026, 11, 30, 12, 0, 0, 0, zone),
		"2026-11-30 12:00:07.5":            time.Date(2026, 11, 30, 12, 0, 7, 5e8, zone),
		"2026-11-30T12:00":                 time.Date(2026, 11, 30, 12, 0, 0, 0, zone),
		"2026-11-30":                       time.Date(2026, 11, 30, 0, 0, 0, 0, zone),
		"12:00":                            time.Date(2026, 11, 30, 12, 0, 0, 0, zone),
		"12:00:30":                         time.Date(2026, 11, 30, 12, 0, 30, 0, zone),
	} {
		got, err := ParseTime(text, now)
		require.NoError(t, err, text)
		require.True(t, want.Equal(got), "%s: %v", text, got)
	}
	for _, bad := range []string{"yesterday", "25:00", "-", "--1h", "-1", "-xd", "-1d-1h", "-1d1w", "24:01", "124:00", "-24:00", "2026-13-01 24:00", "2026-13-01", "12", "1h", "2026-11-30 12:00:00 CET", "1600-01-01", "2300-01-01T00:00:00Z", "9999-12-31", "-9999d2562047h"} {
		_, err := ParseTime(bad, now)
		require.Error(t, err, bad)
	}
}
