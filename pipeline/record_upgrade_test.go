package pipeline

import (
	"path/filepath"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// The recorders of several busy cameras are replaced one after another: stopped, or killed, and started again 2 s later with --pre. The
// union of their files has every access unit that was published between the first and the last of them, bit for bit.
func TestRecordUpgrade(t *testing.T) {
	t.Parallel()
	testenv.Watchdog(t, 2*time.Minute)
	const cameras, away = 4, 2 * time.Second
	dir, _ := place(t)
	var keys []string
	var published []*numbered
	for range cameras {
		_, key := place(t)
		keys = append(keys, key)
		published = append(published, publishNumbered(t, dir, key, 20_000)) // 4 Mbit/s
	}
	folder := t.TempDir()
	start := func(key string) *testenv.Process {
		return testenv.Start(t, testenv.Binary(t), "record", key, "--runtime-dir", dir, "--out", folder+"/%{key}-%s-%f.mp4", "--segment", "2s", "--pre", "10s", "--no-audio")
	}
	recorders := make([]*testenv.Process, cameras)
	var all []*testenv.Process // each that was started
	for i, key := range keys {
		recorders[i] = start(key)
		all = append(all, recorders[i])
	}
	killed := map[string]bool{}
	for round, sig := range []syscall.Signal{syscall.SIGTERM, syscall.SIGKILL, syscall.SIGTERM} {
		for i, key := range keys {
			testenv.Eventually(t, 20*time.Second, func() error {
				if status, err := InspectKey(dir, key); err != nil || len(status.Readers) == 0 {
					return syscall.EAGAIN
				}
				return nil
			})
			published[i].until(t, len(published[i].published())+100/cameras)
		}
		for i := range recorders {
			if sig == syscall.SIGKILL {
				recorders[i].Kill()
			} else {
				require.NoError(t, recorders[i].Stop(t, sig, 10*time.Second))
			}
		}
		if sig == syscall.SIGKILL { // the newest file of each is torn
			for _, key := range keys {
				files, err := filepath.Glob(folder + "/" + key + "-*.mp4")
				require.NoError(t, err)
				slices.Sort(files)
				killed[files[len(files)-1]] = true
			}
		}
		if round == 2 {
			break
		}
		time.Sleep(away) // the upgrade
		for i, key := range keys {
			recorders[i] = start(key)
			all = append(all, recorders[i])
		}
	}
	for _, p := range all {
		require.NotContains(t, p.Stderr(), "lost")
	}
	for i, key := range keys {
		files, err := filepath.Glob(folder + "/" + key + "-*.mp4")
		require.NoError(t, err)
		require.Greater(t, len(files), 6)
		var numbers []int
		for _, f := range files {
			numbers = append(numbers, published[i].fileNumbers(t, f, killed[f])...)
		}
		slices.Sort(numbers)
		twice := len(numbers)
		numbers = slices.Compact(numbers)
		twice -= len(numbers)
		requireNumbers(t, numbers, numbers[0], numbers[len(numbers)-1])
		require.Greater(t, len(numbers), 250+2*int(away/(40*time.Millisecond))) // recorders and their absence; a busy machine takes less of it
		require.NotZero(t, twice, "the new recorder reaches back into the old one's files")
	}
}

// until waits until so many units are published.
func (n *numbered) until(t *testing.T, units int) {
	t.Helper()
	testenv.Eventually(t, 60*time.Second, func() error {
		if len(n.published()) < units {
			return syscall.EAGAIN
		}
		return nil
	})
}
