package pipeline

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// recordedIn are the files of a key in a folder.
func recordedIn(t *testing.T, folder, key string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, key+"-*.mp4"))
	require.NoError(t, err)
	slices.Sort(files)
	return files
}

// gone waits until nothing says of an event in a folder, nor leads there.
func gone(t *testing.T, folders ...string) {
	t.Helper()
	testenv.Eventually(t, 15*time.Second, func() error {
		for _, f := range folders {
			links, _ := filepath.Glob(filepath.Join(f, "*.left"))
			if names := append(left(t, f), links...); len(names) > 0 {
				return errors.New("it stays noted: " + strings.Join(names, " "))
			}
		}
		return nil
	})
}

// While the recorder before it still runs, one that was started for its upgrade records nothing that the first one does, and goes on where it ends: when it
// is stopped or killed in the event, and with what only the new one was asked for. Of three that may take an event over one does.
func TestEventStandby(t *testing.T) {
	t.Parallel()
	for _, sig := range []syscall.Signal{syscall.SIGKILL, syscall.SIGTERM} {
		t.Run(sig.String(), func(t *testing.T) {
			t.Parallel()
			testenv.Watchdog(t, 2*time.Minute)
			dir, key := place(t)
			n := publishNumbered(t, dir, key, 0)
			n.older(t, 3*time.Second)
			folder := t.TempDir()
			start := func() *eventProcess {
				return startEventRecorder(t, dir, key, "--pre", "2s", "--post", "1s", "--segment", "3s", "--out", filepath.Join(folder, "%{key}-%s-%f.mp4"))
			}
			first := start()
			second := start() // before the event, and one in it
			answers := second.pull("--for", "10s", "--reason", "bell")
			require.Len(t, answers, 2)
			testenv.Eventually(t, 20*time.Second, func() error {
				if len(recordedIn(t, folder, key)) < 2 {
					return errors.New("no second file yet")
				}
				return nil
			})
			third := start()
			n.until(t, len(n.published())+60)
			all := []*eventProcess{first, second, third}
			is := func(p *eventProcess) bool { return !strings.Contains(p.Stderr(), "another recorder records the event") }
			owner := slices.IndexFunc(all, is)
			require.Equal(t, 1, len(slices.DeleteFunc(slices.Clone(all), func(p *eventProcess) bool { return !is(p) })), "one records, the others wait")
			require.Len(t, left(t, folder), 1)
			old := recordedIn(t, folder, key)
			if sig == syscall.SIGKILL {
				all[owner].Kill()
			} else {
				require.NoError(t, all[owner].Stop(t, sig, 10*time.Second))
			}
			old = append(old, recordedIn(t, folder, key)[len(old):]...)
			gone(t, folder, dir)
			rest := slices.Delete(slices.Clone(all), owner, owner+1)
			goes := 0
			for _, p := range rest {
				if strings.Contains(p.Stderr(), "the event goes on that was recorded before") {
					goes++
				}
			}
			require.Equal(t, 1, goes)
			var numbers []int
			files := recordedIn(t, folder, key)
			for i, f := range files {
				numbers = append(numbers, n.fileNumbers(t, f, sig == syscall.SIGKILL && i == len(old)-1)...)
			}
			slices.Sort(numbers)
			once := slices.Compact(slices.Clone(numbers))
			e := answers[0].Event
			var end time.Time
			for _, p := range rest {
				if lines := p.lines(); len(lines) > 0 {
					require.Zero(t, end)
					end = *lines[len(lines)-1].Event.End
				}
			}
			require.InDelta(t, 11, end.Sub(e.Trigger).Seconds(), 0.5)
			requireNumbers(t, once, n.keyAt(t, e.Start), n.lastAt(end))
			require.Less(t, len(numbers)-len(once), 60, "the event is in the files once, but for where one recorder follows another")
			require.InDelta(t, 13, float64(len(once))/25, 2.5)
			for _, p := range rest {
				require.NoError(t, p.Stop(t, syscall.SIGTERM, 10*time.Second))
			}
		})
	}
}

// A recorder that is started again with another --out, in the same folder or in another one, finds the event that was left, goes on with it, and removes
// what noted it; what is over is removed.
func TestEventOtherPattern(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name, out string
		late      bool
	}{{"folder", "b/%{key}-%s-%f.mp4", false}, {"name", "a/%{key}-x-%s-%f.mp4", false}, {"over", "b/%{key}-%s-%f.mp4", true}} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			testenv.Watchdog(t, 2*time.Minute)
			dir, key := place(t)
			n := publishNumbered(t, dir, key, 0)
			n.older(t, 2*time.Second)
			top := t.TempDir()
			a, b := filepath.Join(top, "a"), filepath.Join(top, "b")
			require.NoError(t, errors.Join(os.Mkdir(a, 0o755), os.Mkdir(b, 0o755)))
			start := func(out string) *eventProcess {
				return startEventRecorder(t, dir, key, "--pre", "1s", "--post", "1s", "--segment", "3s", "--out", filepath.Join(top, out))
			}
			first := start("a/%{key}-%s-%f.mp4")
			length := map[bool]string{false: "15s", true: "3s"}[c.late]
			event := first.pull("--for", length)[0].Event
			testenv.Eventually(t, 20*time.Second, func() error {
				if len(recordedIn(t, a, key)) < 1 {
					return errors.New("no file yet")
				}
				return nil
			})
			n.until(t, len(n.published())+20)
			first.Kill()
			old := recordedIn(t, a, key)
			if c.late {
				n.until(t, len(n.published())+120)
			}
			second := start(c.out)
			if c.late {
				second.says("an event ended while nothing recorded it")
				gone(t, a, b, dir)
				require.Empty(t, recordedIn(t, b, key))
				return
			}
			second.says("the event goes on that was recorded before")
			testenv.Eventually(t, 5*time.Second, func() error {
				if n := len(left(t, a)) + len(left(t, b)); n != 1 {
					return fmt.Errorf("%d files note it", n)
				}
				return nil
			})
			files := second.events(1)[0]
			gone(t, a, b, dir)
			var numbers []int
			for i, f := range old {
				numbers = append(numbers, n.fileNumbers(t, f, i == len(old)-1)...)
			}
			for _, f := range files {
				require.Equal(t, event.ID, f.Event.ID)
				numbers = append(numbers, n.fileNumbers(t, f.Path, false)...)
			}
			slices.Sort(numbers)
			requireNumbers(t, slices.Compact(numbers), n.keyAt(t, event.Start), n.lastAt(*files[len(files)-1].Event.End))
		})
	}
}

// An event comes while its disk is full, which takes neither its note nor its pictures: it is said that there is nothing of it, and the next one is
// recorded when there is room again.
func TestEventDiskFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting takes root")
	}
	t.Parallel()
	testenv.Watchdog(t, time.Minute)
	dir, key := place(t)
	n := publishNumbered(t, dir, key, 0)
	disk := t.TempDir()
	if err := syscall.Mount("tmpfs", disk, "tmpfs", 0, "size=1m"); err != nil {
		testenv.NoMounts(t, fmt.Errorf("mount a tmpfs: %w", err))
	}
	t.Cleanup(func() { _ = syscall.Unmount(disk, syscall.MNT_DETACH) })
	p := startEventRecorder(t, dir, key, "--pre", "1s", "--post", "1s", "--out", filepath.Join(disk, "%{key}-%s-%f.mp4"))
	ballast := filepath.Join(disk, "ballast")
	require.ErrorIs(t, os.WriteFile(ballast, make([]byte, 2<<20), 0o600), syscall.ENOSPC)
	p.pull()
	p.says("event ended, and nothing of it is in a file")
	p.says("a recorder that is started again will not go on with this event")
	require.Empty(t, recordedIn(t, disk, key))
	gone(t, disk, dir)
	require.NoError(t, os.Remove(ballast))
	event := p.pull()[0].Event
	files := p.events(1)[0]
	require.Equal(t, event.ID, files[0].Event.ID)
	numbers := n.fileNumbers(t, files[0].Path, false)
	requireNumbers(t, numbers, n.keyAt(t, event.Start), n.lastAt(*files[0].Event.End))
}
