package retention

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A folder that cannot be read is not an empty one: what is known of it stays, and it is read again after a pause.
func TestRetentionUnreadFolder(t *testing.T) {
	s := newShelf(t, hourly, Bounds{Size: 100 << 10}, Bounds{})
	known := func() (files int64, counted bool) {
		for _, kept := range s.k.Kept() {
			if kept.Key == "a" {
				files, counted = kept.Files, kept.Counted
			}
		}
		return files, counted
	}
	for i := range 3 {
		s.put(fmt.Sprintf("a/2026-01-0%d/00.mp4", i+1), 48*time.Hour)
	}
	folder, away := filepath.Join(s.dir, "rec/a"), filepath.Join(s.dir, "away")
	require.NoError(t, os.Rename(folder, away))
	require.NoError(t, os.WriteFile(folder, nil, 0o600)) // ENOTDIR, whoever asks
	s.pass()
	_, counted := known()
	require.False(t, counted, "nothing is known yet")

	require.NoError(t, os.Remove(folder))
	require.NoError(t, os.Rename(away, folder))
	s.pass()
	_, counted = known()
	require.False(t, counted, "it is tried again after a pause")
	s.now = s.now.Add(2 * rescanFailed)
	s.pass()
	files, counted := known()
	require.Equal(t, []any{int64(3), true}, []any{files, counted})

	require.NoError(t, os.Rename(folder, away))
	require.NoError(t, os.WriteFile(folder, nil, 0o600))
	s.now = s.now.Add(2 * rescanAfter)
	s.pass()
	files, counted = known()
	require.Equal(t, []any{int64(3), true}, []any{files, counted}, "the old numbers stay")

	require.NoError(t, os.Remove(folder))
	s.now = s.now.Add(2 * rescanAfter)
	s.pass()
	files, counted = known()
	require.Equal(t, []any{int64(0), true}, []any{files, counted}, "a folder that is not there is empty")
}
