package recordings

import (
	"database/sql"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/mux"
)

// What an index finds in a span is what a look at every row does: also files that last for long, that overlap, and that are being written.
func TestRowsOfSpan(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	path := filepath.Join(t.TempDir(), "index.db")
	x, err := openWriter(t.Context(), path, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer x.Close()
	chance := rand.New(rand.NewPCG(1, 2))
	seconds := func(most int) time.Duration { return time.Duration(chance.IntN(most*1000)) * time.Millisecond }
	var all []File
	var batch []change
	for i := range 500 {
		f := File{Key: fmt.Sprintf("cam%d", chance.IntN(4)), Path: fmt.Sprintf("/v/%d.mp4", i), Start: at(0).Add(seconds(86400)), Video: 27, Cause: mux.CauseContinuous, Finished: true}
		f.End = f.Start.Add(seconds(120))
		switch i % 50 {
		case 0: // one of hours
			f.End = f.Start.Add(seconds(20_000))
		case 1: // just begun, as far as the index knows
			f.End, f.Finished, f.Open = f.Start, false, true
		case 2:
			f.Finished = false
		}
		all, batch = append(all, f), append(batch, change{File: f})
	}
	require.NoError(t, x.apply(t.Context(), batch))
	slices.SortFunc(all, order)
	paths := func(list []File) []string {
		names := []string{}
		for _, f := range list {
			names = append(names, f.Path)
		}
		return names
	}
	for i := range 60 {
		q := Query{}
		if i%2 > 0 {
			q.From = at(0).Add(seconds(90_000))
		}
		if i%3 > 0 {
			q.To = q.From.Add(seconds(3600))
			if q.From.IsZero() {
				q.To = at(0).Add(seconds(86_400))
			}
		}
		for k := range i % 4 {
			q.Keys = append(q.Keys, fmt.Sprintf("cam%d", 2*k))
		}
		want := slices.DeleteFunc(slices.Clone(all), func(f File) bool {
			if f.Open { // it may last until now
				f.End = at(1e6)
			}
			return !q.matches(&f)
		})
		got, err := x.rows(t.Context(), q, File{}, 0)
		require.NoError(t, err)
		require.Equal(t, paths(want), paths(got), "%+v", q)
		var paged []File
		for after := (File{}); ; after = paged[len(paged)-1] {
			page, err := x.rows(t.Context(), q, after, 23)
			require.NoError(t, err)
			paged = append(paged, page...)
			if len(page) < 23 {
				break
			}
		}
		require.Equal(t, paths(want), paths(paged), "%+v", q)
	}
}

// A query goes to the rows that it is about, by the indexes, and looks at no others.
func TestRowsByIndex(t *testing.T) {
	path := filepath.Join(t.TempDir(), "index.db")
	x, err := openWriter(t.Context(), path, slog.New(slog.DiscardHandler))
	require.NoError(t, err)
	defer x.Close()
	plan := func(text string, args ...any) (steps []string) {
		rows, err := x.db.Query("EXPLAIN QUERY PLAN "+text, args...)
		require.NoError(t, err)
		defer rows.Close()
		for rows.Next() {
			var id, parent, unused int
			var step string
			require.NoError(t, rows.Scan(&id, &parent, &unused, &step))
			steps = append(steps, step)
		}
		require.NoError(t, rows.Err())
		return steps
	}
	got := plan(rowsText(&Query{From: at(0), To: at(1)}), sql.Named("key", "door"), sql.Named("from", 1), sql.Named("to", 2), sql.Named("after", 0),
		sql.Named("path", ""), sql.Named("n", -1))
	require.Contains(t, got, "SEARCH files USING INDEX files_by_time (key=? AND start>? AND start<?)")
	require.Contains(t, got, "SEARCH files USING COVERING INDEX files_by_length (key=?)")
	require.Contains(t, got, "SEARCH files USING INDEX files_open (key=? AND (start,path)>(?,?) AND start<?)")
	got = append(got, plan(keysText)...)
	for _, step := range got {
		require.NotRegexp(t, "^SCAN files|USE TEMP B-TREE", step, "%v", got)
	}
}

// indexOfVersion2 makes an index as the version before did.
const indexOfVersion2 = `CREATE TABLE files (
	path TEXT PRIMARY KEY, key TEXT NOT NULL, start INTEGER NOT NULL, end INTEGER NOT NULL, bytes INTEGER NOT NULL,
	packets INTEGER, keyframes INTEGER, lost INTEGER, video INTEGER NOT NULL, audio INTEGER NOT NULL, width INTEGER NOT NULL, height INTEGER NOT NULL,
	cause TEXT NOT NULL, finished INTEGER NOT NULL, modified INTEGER NOT NULL
) WITHOUT ROWID;
CREATE INDEX files_by_time ON files (key, start);
PRAGMA application_id=1667658360;
PRAGMA user_version=2;
PRAGMA journal_mode=WAL;`

// An index of the version before is read as it is, and brought up to date by who writes it: what only the recorders knew stays.
func TestIndexOfVersion2(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	dir := t.TempDir()
	path := filepath.Join(dir, "index.db")
	recorded := filepath.Join(dir, "a.mkv")
	require.NoError(t, os.WriteFile(recorded, []byte("x"), 0o600))
	start := at(0).UnixNano()
	tamper(t, path, indexOfVersion2+fmt.Sprintf("INSERT INTO files VALUES ('%s', 'door', %d, %d, 1, 1500, 30, 7, 27, 0, 640, 360, 'continuous', 1, 5)", recorded, start, start+6e10))
	read := func() {
		t.Helper()
		for _, q := range []Query{{}, {From: at(59)}, {Keys: []string{"door"}, To: at(1)}} {
			got := list(t, path, q)
			require.Len(t, got, 1)
			require.Equal(t, []int64{1500, 30, 7}, []int64{got[0].Packets, got[0].Keyframes, got[0].Lost})
		}
		require.Empty(t, list(t, path, Query{From: at(61)}))
	}
	before, err := os.ReadFile(path)
	require.NoError(t, err)
	read()
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, before, after, "a reader changes nothing")

	var log testenv.Log
	var writers sync.WaitGroup
	for range 4 { // recorders that share it
		writers.Go(func() {
			x, err := openWriter(t.Context(), path, slog.New(slog.NewTextHandler(&log, nil)))
			if err == nil {
				err = x.Close()
			}
			assert.NoError(t, err)
		})
	}
	writers.Wait()
	require.Contains(t, log.String(), "from_version=2 to_version=3")
	require.NotContains(t, log.String(), "moved aside")
	read()
	x, err := OpenIndex(path)
	require.NoError(t, err)
	defer x.Close()
	v, err := x.check(t.Context())
	require.NoError(t, err)
	require.Equal(t, version, v)
}
