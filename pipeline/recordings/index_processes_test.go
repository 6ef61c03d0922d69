package recordings

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/mux"
)

func TestMain(m *testing.M) {
	testenv.Roles{"index older": playOlder, "index writer": playWriter, "index transaction": playTransaction}.Main(m)
}

// report is a file of this many that a process writes, and what it says of it.
func report(key string, i int) File {
	return File{
		Key: key, Start: at(float64(i)), End: at(float64(i + 1)), Packets: int64(i), Keyframes: 1, Lost: 3, Video: 27, Cause: mux.CauseContinuous, Finished: true,
	}
}

// playOlder is a recorder of the version before: it opened the index before that was brought up to date, and goes on to write it.
func playOlder(args []string) error {
	db, err := sql.Open("sqlite", "file:"+args[0]+"?_txlock=immediate&_pragma=busy_timeout(60000)&_pragma=synchronous(NORMAL)")
	if err != nil {
		return err
	}
	defer db.Close()
	n, _ := strconv.Atoi(args[2])
	for i := range n {
		f, err := put(args[1], "older", i)
		if err == nil {
			_, err = db.Exec("INSERT OR REPLACE INTO files VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)", f.Path, f.Key, f.Start.UnixNano(),
				f.End.UnixNano(), f.Bytes, f.Packets,
				f.Keyframes, f.Lost, f.Video, 0, 0, 0, f.Cause, stateFinished, f.Modified.UnixNano())
		}
		if err != nil {
			return fmt.Errorf("row %d: %w", i, err)
		}
		if i == 0 {
			fmt.Println("it writes")
		}
		time.Sleep(2 * time.Millisecond)
	}
	return nil
}

// put makes a file of which something is reported.
func put(dir, key string, i int) (File, error) {
	f := report(key, i)
	f.Path = filepath.Join(dir, fmt.Sprintf("%s-%d.mkv", key, i))
	if err := os.WriteFile(f.Path, []byte("x"), 0o600); err != nil {
		return f, err
	}
	info, err := os.Stat(f.Path)
	if err == nil {
		f.Bytes, f.Modified = info.Size(), info.ModTime()
	}
	return f, err
}

// playWriter is a recorder with an index.
func playWriter(args []string) error {
	w := NewWriter(WriterOptions{Path: args[0], Logger: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		w.Run(ctx)
	}()
	<-w.Ready()
	fmt.Println("it writes")
	n, _ := strconv.Atoi(args[2])
	for i := range n {
		f, err := put(args[1], args[3], i)
		if err != nil {
			return err
		}
		w.Finished(f)
		time.Sleep(2 * time.Millisecond)
	}
	cancel()
	<-ended
	if n := w.dropped.Load(); n > 0 {
		return fmt.Errorf("%d reports were dropped", n)
	}
	return nil
}

// playTransaction holds the index in the middle of a change until it is killed.
func playTransaction(args []string) error {
	x, err := openToWrite(args[0])
	if err != nil {
		return err
	}
	if _, err := x.db.Exec("PRAGMA cache_size=10"); err != nil { // a part of the change is in the log
		return err
	}
	tx, err := x.db.Begin()
	if err != nil {
		return err
	}
	for i := range 300 {
		path := strings.Repeat("never", 100) + strconv.Itoa(i)
		if _, err := tx.Exec("INSERT INTO files VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?)", path, "never", 0, 1, 1, 1, 1, 0, 27, 0, 0, 0, "x", 1, 1); err != nil {
			return err
		}
	}
	fmt.Println("it writes")
	time.Sleep(time.Hour)
	return nil
}

// A recorder of the version before has the index open while two of this version bring it up to date and write it too, and three are killed in the middle of a
// change: each row that was written is there, none of those that were not, readers see no error, and the index is sound.
func TestIndexOfProcesses(t *testing.T) {
	testenv.Watchdog(t, 2*time.Minute)
	dir := t.TempDir()
	path := filepath.Join(dir, "index.db")
	tamper(t, path, indexOfVersion2)
	const rows = 1500
	start := func(role string, args ...string) *testenv.Process {
		p := testenv.StartCmd(t, testenv.Child(role, append([]string{path, dir, strconv.Itoa(rows)}, args...)...))
		testenv.Eventually(t, 20*time.Second, func() error {
			if !strings.Contains(p.Stdout(), "it writes") {
				return errors.New("it does not write yet")
			}
			return nil
		})
		return p
	}
	older := start("index older")
	writers := []*testenv.Process{start("index writer", "one"), start("index writer", "two")}
	for range 3 {
		p := start("index transaction")
		_ = list(t, path, Query{Keys: []string{"older"}})
		time.Sleep(100 * time.Millisecond) // the others wait for it
		p.Kill()
		_ = list(t, path, Query{Keys: []string{"one"}})
	}
	require.NoError(t, older.WaitFor(t, time.Minute))
	for _, p := range writers {
		require.NoError(t, p.WaitFor(t, time.Minute), p.Stderr())
		require.NotContains(t, p.Stderr(), "moved aside")
	}
	require.NoError(t, sound(t.Context(), path))
	x, err := OpenIndex(path)
	require.NoError(t, err)
	defer x.Close()
	v, err := x.check(t.Context())
	require.NoError(t, err)
	require.Equal(t, version, v)
	counts := map[string]int{}
	for _, f := range list(t, path, Query{}) {
		require.Equal(t, report(f.Key, int(f.Packets)).Start, f.Start)
		require.EqualValues(t, 3, f.Lost)
		counts[f.Key]++
	}
	require.Equal(t, map[string]int{"older": rows, "one": rows, "two": rows}, counts)
}
