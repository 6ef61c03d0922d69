package site

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/pipeline/retention"
)

// A key that is the beginning of another one: a file that could be either's belongs to the longer. Of one key, results and events are no recordings.
func TestRetentionLikeNames(t *testing.T) {
	name := filepath.Join(t.TempDir(), "site.yaml")
	require.NoError(t, os.WriteFile(name, []byte(`
cameras:
  a:
    source: 'rtsp://h/a'
    record: {out: 'rec/%{key}-%H.mp4', retention: {age: 1h}}
    events: {out: 'rec/%{key}-%H-%M.mp4'}
  a-10: {source: 'rtsp://h/b', record: {out: 'rec/%{key}-%H.mp4'}}
retention: {free: 1K}
`), 0o600))
	c, err := Load(name)
	require.NoError(t, err)
	sets, all := c.retention()
	require.Equal(t, retention.Bounds{Free: 1024}, all)
	for file, owner := range map[string]string{"a-10-12.mp4": "record a-10", "a-11-12.mp4": "events a", "a-10.mp4": "record a", "a-1.mp4": ""} {
		var of string
		for _, s := range sets {
			if _, ok := s.Place.Name(filepath.Join(filepath.Dir(name), "rec", file)); ok {
				of += s.Kind + " " + s.Place.Key
			}
		}
		require.Equal(t, owner, of, file)
	}
	for _, s := range sets {
		require.Equal(t, s.Kind == kindRecord && s.Place.Key == "a", s.Keep == retention.Bounds{Age: time.Hour}, "%s %s", s.Kind, s.Place.Key)
	}
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
