package retention

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/mux"
	"github.com/cfpipe/cfpipe/pipeline/recordings"
)

// shelf is a folder of recordings made by hand.
type shelf struct {
	t   *testing.T
	dir string
	k   *Keeper
	log testenv.Log
	now time.Time
}

// newShelf keeps the files of a by own bounds, those of b by none, and both by those of all.
func newShelf(t *testing.T, pattern string, own, all Bounds) *shelf {
	t.Helper()
	s := &shelf{t: t, dir: t.TempDir()}
	s.k = New(Options{Logger: slog.New(slog.NewTextHandler(&s.log, nil))})
	s.now = time.Now()
	s.configure(pattern, own, all)
	return s
}

func (s *shelf) configure(pattern string, own, all Bounds) {
	s.t.Helper()
	var sets []Set
	for _, key := range []string{"a", "b"} {
		place, err := recordings.PlaceOf(key, filepath.Join(s.dir, "rec", pattern))
		require.NoError(s.t, err)
		sets = append(sets, Set{Kind: "record", Place: place})
	}
	sets[0].Keep = own
	s.k.Configure(sets, all)
}

// put makes a file of 1000 bytes that was last written so long ago.
func (s *shelf) put(name string, ago time.Duration) string {
	s.t.Helper()
	path := filepath.Join(s.dir, "rec", name)
	require.NoError(s.t, os.MkdirAll(filepath.Dir(path), 0o755))
	require.NoError(s.t, os.WriteFile(path, make([]byte, 1000), 0o644))
	require.NoError(s.t, os.Chtimes(path, s.now.Add(-ago), s.now.Add(-ago)))
	return path
}

func (s *shelf) left() (names []string) {
	s.t.Helper()
	require.NoError(s.t, filepath.WalkDir(filepath.Join(s.dir, "rec"), func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			names = append(names, strings.TrimPrefix(path, s.dir+"/rec/"))
		}
		return err
	}))
	slices.Sort(names)
	return names
}

func (s *shelf) pass() { s.k.pass(s.t.Context(), s.now) }

const hourly = "%{key}/%Y-%m-%d/%H.mp4"

// Only what a pattern has made is removed: not what others have put beside it, no links, no folders, no open file.
func TestRetentionRemovesNothingElse(t *testing.T) {
	s := newShelf(t, hourly, Bounds{Age: time.Hour}, Bounds{})
	s.put("a/2026-01-01/00.mp4", 20*time.Hour)
	s.put("a/2026-01-01/00-2.mp4", 20*time.Hour)
	keep := []string{"a/2026-01-01/00.mp4.bak", "a/2026-01-01/notes.txt", "a/2026-01-01/0.mp4", "a/2026-01-01/00-02.mp4", "a/2026-01-01/x00.mp4",
		"a/2026-01-01/sub/00.mp4", "a/00.mp4", "b/2026-01-01/00.mp4", "a/2026-01-01/young.mp4"}
	for _, name := range keep {
		s.put(name, 20*time.Hour)
	}
	s.put("a/2026-01-02/23.mp4", time.Minute)
	keep = append(keep, "a/2026-01-02/23.mp4")
	outside := filepath.Join(s.dir, "outside")
	require.NoError(t, os.MkdirAll(outside, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(outside, "05.mp4"), nil, 0o644))
	require.NoError(t, os.Chtimes(filepath.Join(outside, "05.mp4"), s.now.Add(-20*time.Hour), s.now.Add(-20*time.Hour)))
	require.NoError(t, os.Symlink(outside, filepath.Join(s.dir, "rec/a/2026-01-03")))
	require.NoError(t, os.Symlink(filepath.Join(outside, "05.mp4"), filepath.Join(s.dir, "rec/a/2026-01-01/05.mp4")))
	require.NoError(t, os.MkdirAll(filepath.Join(s.dir, "rec/a/2026-01-01/06.mp4"), 0o755))
	keep = append(keep, "a/2026-01-03", "a/2026-01-01/05.mp4")
	open, err := os.OpenFile(s.put("a/2026-01-01/07.mp4", 20*time.Hour), os.O_WRONLY, 0)
	require.NoError(t, err)
	require.NoError(t, shm.LockFile(open))
	listed, err := os.Open(filepath.Join(s.dir, "rec/a/2026-01-01/00.mp4")) // by somebody who asks whether it is open
	require.NoError(t, err)
	defer listed.Close()
	require.False(t, mux.InUse(listed))
	keep = append(keep, "a/2026-01-01/07.mp4")
	s.pass()
	slices.Sort(keep)
	require.Equal(t, keep, s.left())
	require.FileExists(t, filepath.Join(outside, "05.mp4"))
	require.DirExists(t, filepath.Join(s.dir, "rec/a/2026-01-01/06.mp4"))
	open.Close()
	s.now = s.now.Add(2 * rescanAfter)
	s.put("a/2026-01-02/23.mp4", time.Minute)
	s.pass()
	require.NotContains(t, s.left(), "a/2026-01-01/07.mp4")
	require.Contains(t, s.left(), "a/2026-01-02/23.mp4")
}

// The oldest files go first, as many as needed, and what a recorder finishes is counted.
func TestRetentionBySize(t *testing.T) {
	s := newShelf(t, hourly, Bounds{Size: 3500}, Bounds{})
	for i := range 6 {
		s.put(fmt.Sprintf("a/2026-01-0%d/00.mp4", i+1), time.Duration(60-i)*time.Hour)
		s.put(fmt.Sprintf("b/2026-01-0%d/00.mp4", i+1), time.Duration(60-i)*time.Hour)
	}
	s.pass()
	require.Equal(t, []string{"a/2026-01-04/00.mp4", "a/2026-01-05/00.mp4", "a/2026-01-06/00.mp4"}, s.left()[:3])
	require.Len(t, s.left(), 9)
	s.k.Finished("record", "a", s.put("a/2026-01-07/00.mp4", 0), 1000)
	s.pass()
	require.Equal(t, "a/2026-01-05/00.mp4", s.left()[0])
	require.Len(t, s.left(), 9)

	// The site as a whole: the oldest of all goes first.
	s.configure(hourly, Bounds{Size: 3500}, Bounds{Size: 5 << 10})
	s.pass()
	require.Equal(t, []string{"a/2026-01-05/00.mp4", "a/2026-01-06/00.mp4", "a/2026-01-07/00.mp4", "b/2026-01-05/00.mp4", "b/2026-01-06/00.mp4"}, s.left())
}

// The log says whose files went and why: the first at once, then their sum after a while.
func TestRetentionTellsRemoved(t *testing.T) {
	s := newShelf(t, hourly, Bounds{Age: 9 * time.Hour}, Bounds{Size: 1 << 20})
	put := func(n int) { s.put(fmt.Sprintf("a/2026-01-01/%02d.mp4", n), 10*time.Hour) }
	lines := func() int { return strings.Count(s.log.String(), "oldest recordings removed") }
	put(1)
	s.pass()
	require.Regexp(t, `oldest recordings removed" key=a of=record folder=\S+/rec/a files=1 bytes=1000 because=age\n`, s.log.String())
	for i := range 5 {
		s.now = s.now.Add(passPace)
		s.k.Finished("record", "a", s.put(fmt.Sprintf("a/2026-01-01/%02d.mp4", 2+i), 0), 1000)
		s.pass()
	}
	require.Len(t, s.left(), 5)
	s.now = s.now.Add(10 * time.Hour)
	s.pass()
	require.Equal(t, 2, lines())
	require.Contains(t, s.log.String(), "files=5 bytes=5000 because=age")
	s.configure(hourly, Bounds{Age: 9 * time.Hour}, Bounds{Size: 500})
	s.k.Finished("record", "b", s.put("b/2026-01-01/01.mp4", 0), 1000)
	s.k.Finished("record", "a", s.put("a/2026-01-01/09.mp4", 0), 1000)
	s.pass()
	require.Contains(t, s.log.String(), "key=b of=record folder="+s.dir+"/rec/b files=1 bytes=1000 because=size")
	require.Equal(t, 3, lines(), "of b at once, of a later")
}

func TestRetentionByFreeSpace(t *testing.T) {
	s := newShelf(t, hourly, Bounds{}, Bounds{Free: 10_000})
	for i := range 6 {
		s.put(fmt.Sprintf("%c/2026-01-0%d/00.mp4", 'a'+i%2, i+1), time.Duration(60-i)*time.Hour)
	}
	used := func() int64 { return 1000 * int64(len(s.left())) }
	s.k.space = func(string) (int64, int64, error) { return 9_000 - used(), 9_000, nil }
	s.pass() // no disk of 9000 bytes has 10000 free: nothing goes for that
	require.Len(t, s.left(), 6)
	require.Contains(t, s.log.String(), "retention.free asks for more than the whole disk has")
	s.k.space = func(string) (int64, int64, error) { return 12_500 - used(), 20_000, nil }
	s.pass()
	require.Len(t, s.left(), 2)
	require.Equal(t, []string{"a/2026-01-05/00.mp4", "b/2026-01-06/00.mp4"}, s.left())
	s.k.space = func(string) (int64, int64, error) { return 0, 20_000, nil }
	s.pass() // all goes, and it ends
	require.Empty(t, s.left())
}

// More files than a ledger remembers.
func TestRetentionManyFiles(t *testing.T) {
	s := newShelf(t, "%{key}/%Y-%m-%d/%s.mp4", Bounds{Size: 500 << 10}, Bounds{})
	const n = 2*ledgerFiles + 700
	for i := range n {
		s.put(fmt.Sprintf("a/2026-01-01/%d.mp4", 1_000_000+i), time.Duration(2*n-i)*time.Minute)
	}
	s.pass()
	left := s.left()
	require.Len(t, left, 512)
	require.Equal(t, fmt.Sprintf("a/2026-01-01/%d.mp4", 1_000_000+n-512), left[0])
}

// Files that cannot be removed are stepped over, however many, told of in one line, and tried again: with the next pass when they are few.
func TestRetentionCannotRemove(t *testing.T) {
	for _, n := range []int{3, ledgerFiles + 500} {
		s := newShelf(t, "%{key}/%Y-%m-%d/%s.mp4", Bounds{Age: time.Hour}, Bounds{})
		var log testenv.Log
		s.k.log = slog.New(slog.NewTextHandler(&log, nil))
		for i := range n {
			s.put(fmt.Sprintf("a/2026-01-01/%d.mp4", 1_000_000+i), time.Duration(2*n-i)*time.Hour)
		}
		s.put("a/2026-01-02/1.mp4", 2*time.Hour)
		s.put("a/2026-01-02/2.mp4", 0)
		var tried int
		s.k.remove = func(p *recordings.Place, path string) error {
			if strings.HasPrefix(path, s.dir+"/rec/a/2026-01-01/") {
				tried++
				return syscall.EROFS
			}
			return p.Remove(path)
		}
		testenv.Watchdog(t, time.Minute)
		s.pass()
		require.Equal(t, n, tried, "each is tried once")
		require.Len(t, s.left(), n+1)
		require.NotContains(t, s.left(), "a/2026-01-02/1.mp4", "those behind them go")
		require.Equal(t, 1, strings.Count(log.String(), "cannot be removed"), log.String())
		require.Contains(t, log.String(), fmt.Sprintf("files=%d", n))
		s.now = s.now.Add(passPace)
		s.k.remove = (*recordings.Place).Remove
		s.pass()
		if n > fewAside {
			require.Len(t, s.left(), n+1, "not at once")
			s.now = s.now.Add(asidePause)
			s.pass()
		}
		require.Equal(t, []string{"a/2026-01-02/2.mp4"}, s.left())
	}
}
