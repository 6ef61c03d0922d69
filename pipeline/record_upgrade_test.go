package pipeline

import (
	"path/filepath"
	"slices"
	"strings"
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
	for i, key := range keys {
		recorders[i] = start(key)
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
		}
	}
	for i, key := range keys {
		files, err := filepath.Glob(folder + "/" + key + "-*.mp4")
		require.NoError(t, err)
		require.Greater(t, len(files), 6)
		var all []int
		for _, f := range files {
			all = append(all, published[i].fileNumbers(t, f, killed[f])...)
		}
		slices.Sort(all)
		twice := len(all)
		all = slices.Compact(all)
		twice -= len(all)
		requireNumbers(t, all, all[0], all[len(all)-1])
		require.Greater(t, len(all), 300+2*int(away/(40*time.Millisecond)))
		require.NotZero(t, twice, "the new recorder reaches back into the old one's files")
		require.False(t, strings.Contains(recorders[i].Stderr(), "lost"), recorders[i].Stderr())
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
