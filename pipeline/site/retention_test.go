package site

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
)

// shelf is a folder of recordings made by hand.
type shelf struct {
	t   *testing.T
	dir string
	k   *keeper
	now time.Time
}

func newShelf(t *testing.T, text string) *shelf {
	t.Helper()
	s := &shelf{t: t, dir: t.TempDir(), k: newKeeper(slog.New(slog.DiscardHandler)), now: time.Now()}
	s.configure(text)
	return s
}

func (s *shelf) configure(text string) {
	s.t.Helper()
	name := filepath.Join(s.dir, "site.yaml")
	require.NoError(s.t, os.WriteFile(name, []byte(text), 0o600))
	c, err := Load(name)
	require.NoError(s.t, err)
	s.k.configure(c)
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

const shelfSite = `
cameras:
  a: {source: 'rtsp://h/a', record: {out: 'rec/%{key}/%Y-%m-%d/%H.mp4', retention: RETENTION}}
  b: {source: 'rtsp://h/b', record: {out: 'rec/%{key}/%Y-%m-%d/%H.mp4'}}
`

// Only what a pattern has made is removed: not what others have put beside it, no links, no folders, no open file.
func TestRetentionRemovesNothingElse(t *testing.T) {
	s := newShelf(t, strings.Replace(shelfSite, "RETENTION", "{age: 1h}", 1))
	s.put("a/2026-01-01/00.mp4", 48*time.Hour)
	s.put("a/2026-01-01/00-2.mp4", 48*time.Hour)
	keep := []string{"a/2026-01-01/00.mp4.bak", "a/2026-01-01/notes.txt", "a/2026-01-01/0.mp4", "a/2026-01-01/00-02.mp4", "a/2026-01-01/x00.mp4",
		"a/2026-01-01/sub/00.mp4", "a/00.mp4", "b/2026-01-01/00.mp4", "a/2026-01-01/young.mp4"}
	for _, name := range keep {
		s.put(name, 48*time.Hour)
	}
	s.put("a/2026-01-02/23.mp4", time.Minute)
	keep = append(keep, "a/2026-01-02/23.mp4")
	outside := filepath.Join(s.dir, "outside")
	require.NoError(t, os.MkdirAll(outside, 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(outside, "05.mp4"), nil, 0o644))
	require.NoError(t, os.Chtimes(filepath.Join(outside, "05.mp4"), s.now.Add(-99*time.Hour), s.now.Add(-99*time.Hour)))
	require.NoError(t, os.Symlink(outside, filepath.Join(s.dir, "rec/a/2026-01-03")))
	require.NoError(t, os.Symlink(filepath.Join(outside, "05.mp4"), filepath.Join(s.dir, "rec/a/2026-01-01/05.mp4")))
	require.NoError(t, os.MkdirAll(filepath.Join(s.dir, "rec/a/2026-01-01/06.mp4"), 0o755))
	keep = append(keep, "a/2026-01-03", "a/2026-01-01/05.mp4")
	open, err := os.OpenFile(s.put("a/2026-01-01/07.mp4", 48*time.Hour), os.O_WRONLY, 0)
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
	s := newShelf(t, strings.Replace(shelfSite, "RETENTION", "{size: 3500}", 1))
	for i := range 6 {
		s.put(fmt.Sprintf("a/2026-01-0%d/00.mp4", i+1), time.Duration(60-i)*time.Hour)
		s.put(fmt.Sprintf("b/2026-01-0%d/00.mp4", i+1), time.Duration(60-i)*time.Hour)
	}
	s.pass()
	require.Equal(t, []string{"a/2026-01-04/00.mp4", "a/2026-01-05/00.mp4", "a/2026-01-06/00.mp4"}, s.left()[:3])
	require.Len(t, s.left(), 9)
	s.k.finished(Segment{Key: "a", Path: s.put("a/2026-01-07/00.mp4", 0), Bytes: 1000})
	s.pass()
	require.Equal(t, "a/2026-01-05/00.mp4", s.left()[0])
	require.Len(t, s.left(), 9)

	// The site as a whole: the oldest of all goes first.
	s.configure(strings.Replace(shelfSite, "RETENTION", "{size: 3500}", 1) + "retention: {size: 5K}\n")
	s.pass()
	require.Equal(t, []string{"a/2026-01-05/00.mp4", "a/2026-01-06/00.mp4", "a/2026-01-07/00.mp4", "b/2026-01-05/00.mp4", "b/2026-01-06/00.mp4"}, s.left())
}

func TestRetentionByFreeSpace(t *testing.T) {
	s := newShelf(t, strings.Replace(shelfSite, "RETENTION", "off", 1)+"retention: {free: 10000}\n")
	for i := range 6 {
		s.put(fmt.Sprintf("%c/2026-01-0%d/00.mp4", 'a'+i%2, i+1), time.Duration(60-i)*time.Hour)
	}
	s.k.free = func(string) (int64, error) { return 12_500 - 1000*int64(len(s.left())), nil }
	s.pass()
	require.Len(t, s.left(), 2)
	require.Equal(t, []string{"a/2026-01-05/00.mp4", "b/2026-01-06/00.mp4"}, s.left())
	s.k.free = func(string) (int64, error) { return 0, nil }
	s.pass() // all goes, and it ends
	require.Empty(t, s.left())
}

// More files than a ledger remembers.
func TestRetentionManyFiles(t *testing.T) {
	s := newShelf(t, strings.Replace(strings.Replace(shelfSite, "RETENTION", "{size: 500K}", 1), "%H.mp4", "%s.mp4", 1))
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
		s := newShelf(t, strings.Replace(strings.Replace(shelfSite, "RETENTION", "{age: 1h}", 1), "%H.mp4", "%s.mp4", 1))
		var log testenv.Log
		s.k.log = slog.New(slog.NewTextHandler(&log, nil))
		for i := range n {
			s.put(fmt.Sprintf("a/2026-01-01/%d.mp4", 1_000_000+i), time.Duration(2*n-i)*time.Hour)
		}
		s.put("a/2026-01-02/1.mp4", 2*time.Hour)
		s.put("a/2026-01-02/2.mp4", 0)
		var tried int
		s.k.unlink = func(root *os.Root, name string) error {
			if strings.HasPrefix(name, "a/2026-01-01/") || strings.HasPrefix(name, "2026-01-01/") {
				tried++
				return syscall.EROFS
			}
			return root.Remove(name)
		}
		testenv.Watchdog(t, time.Minute)
		s.pass()
		require.Equal(t, n, tried, "each is tried once")
		require.Len(t, s.left(), n+1)
		require.NotContains(t, s.left(), "a/2026-01-02/1.mp4", "those behind them go")
		require.Equal(t, 1, strings.Count(log.String(), "cannot be removed"), log.String())
		require.Contains(t, log.String(), fmt.Sprintf("files=%d", n))
		s.now = s.now.Add(keepPace)
		s.k.unlink = (*os.Root).Remove
		s.pass()
		if n > fewAside {
			require.Len(t, s.left(), n+1, "not at once")
			s.now = s.now.Add(asidePause)
			s.pass()
		}
		require.Equal(t, []string{"a/2026-01-02/2.mp4"}, s.left())
	}
}

// A key that is the beginning of another one: a file that could be either's belongs to the longer.
func TestRetentionLikeNames(t *testing.T) {
	s := newShelf(t, `
cameras:
  a: {source: 'rtsp://h/a', record: {out: 'rec/%{key}-%H.mp4', retention: {age: 1h}}}
  a-10: {source: 'rtsp://h/b', record: {out: 'rec/%{key}-%H.mp4'}}
`)
	s.put("a-10-12.mp4", 48*time.Hour)
	s.put("a-10.mp4", 48*time.Hour)
	s.pass()
	require.Equal(t, []string{"a-10-12.mp4"}, s.left())
}

// A disk that is much too small, and a retention that is shorter than a segment for one camera: both record on without a pause.
func TestRetentionSmallDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting takes root")
	}
	t.Parallel()
	h := newHost(t, 2)
	disk := filepath.Join(h.dir, "disk")
	require.NoError(t, os.Mkdir(disk, 0o755))
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=800k"); err != nil {
		testenv.NoMounts(t, fmt.Errorf("mount a tmpfs: %w", err))
	}
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
	require.NoError(t, os.WriteFile(filepath.Join(disk, "mine.txt"), nil, 0o644))
	h.start(`
stagger: 10ms
cameras:
  KEYa: {source: CAM0, record: {out: 'disk/%{key}/%s-%f.mp4', segment: 2s}}
  KEYb: {source: CAM1, record: {out: 'disk/%{key}/%s-%f.mp4', segment: 1h, retention: {age: 1s}}}
retention: {free: 400KiB}
`)
	testenv.Eventually(t, 40*time.Second, func() error {
		first := h.of("a")
		if len(first) < 6 {
			return fmt.Errorf("%d files", len(first))
		}
		if _, err := os.Stat(first[1].Path); err == nil {
			return fmt.Errorf("nothing was removed")
		}
		return nil
	})
	for _, key := range []string{"a", "b"} {
		r := h.stage(kindRecord, key).Record
		require.Zero(t, r.Failures, key)
		require.Zero(t, r.Lost, key)
	}
	files, err := filepath.Glob(filepath.Join(disk, h.key("b"), "*"))
	require.NoError(t, err)
	require.Len(t, files, 1, "the open file stays")
	require.FileExists(t, filepath.Join(disk, "mine.txt"))
	require.NoError(t, h.stop())
	var gone []bool
	for _, s := range h.of("a") {
		_, err := os.Stat(s.Path)
		gone = append(gone, err != nil)
	}
	require.True(t, slices.IsSortedFunc(gone, func(a, b bool) int { // oldest first
		switch {
		case a == b:
			return 0
		case a:
			return -1
		}
		return 1
	}), gone)
}
