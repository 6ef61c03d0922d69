package shm

import (
	"fmt"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

func reported(t testing.TB, a *Appear) {
	t.Helper()
	select {
	case <-a.C:
	case <-time.After(5 * time.Second):
		t.Fatalf("no report for %s", a.name)
	}
}

func TestWatchFor(t *testing.T) {
	testenv.CheckLeaks(t)
	dir := t.TempDir()
	a, err := WatchFor(dir + "/a.sock")
	require.NoError(t, err)
	defer a.Close()
	again, err := WatchFor(dir + "//x/../a.sock")
	require.NoError(t, err)
	b, err := WatchFor(dir + "/b.sock")
	require.NoError(t, err)
	defer b.Close()

	require.NoError(t, os.WriteFile(dir+"/a.sock", nil, 0o600))
	reported(t, a)
	reported(t, again)
	require.NoError(t, os.WriteFile(dir+"/.temp", nil, 0o600))
	require.NoError(t, os.Rename(dir+"/.temp", dir+"/b.sock"))
	reported(t, b)
	require.Empty(t, a.C, "b is not a")
	require.NoError(t, os.Remove(dir+"/a.sock"))
	again.Close()
	again.Close()
	require.NoError(t, os.WriteFile(dir+"/a.sock", nil, 0o600))
	reported(t, a)

	_, err = WatchFor(dir + "/none/x")
	require.ErrorIs(t, err, os.ErrNotExist)
}

// TestWatchForRemovedFolder: the watch of a folder that went away is silent, does no harm, and one of the new folder works.
func TestWatchForRemovedFolder(t *testing.T) {
	testenv.CheckLeaks(t)
	dir := t.TempDir() + "/d"
	require.NoError(t, os.Mkdir(dir, 0o700))
	old, err := WatchFor(dir + "/x")
	require.NoError(t, err)
	other, err := WatchFor(t.TempDir() + "/y")
	require.NoError(t, err)
	defer other.Close()
	require.NoError(t, os.Remove(dir))
	require.NoError(t, os.Mkdir(dir, 0o700))
	var fresh *Appear
	testenv.Eventually(t, 5*time.Second, func() error {
		if fresh, err = WatchFor(dir + "/x"); err != nil {
			return err
		}
		if err := os.WriteFile(dir+"/x", nil, 0o600); err != nil {
			return err
		}
		select {
		case <-fresh.C:
			return nil
		case <-time.After(50 * time.Millisecond): // the kernel's word of the removal was not read yet
			fresh.Close()
			os.Remove(dir + "/x")
			return fmt.Errorf("no report")
		}
	})
	old.Close()
	fresh.Close()
}

func TestWatchForMany(t *testing.T) {
	testenv.CheckLeaks(t)
	dir := t.TempDir()
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			for n := range 50 {
				path := fmt.Sprintf("%s/%d-%d", dir, i, n)
				a, err := WatchFor(path)
				if err != nil {
					t.Error(err)
					return
				}
				if err := os.WriteFile(path, nil, 0o600); err != nil {
					t.Error(err)
				}
				select {
				case <-a.C:
				case <-time.After(5 * time.Second):
					t.Errorf("no report for %s", path)
				}
				a.Close()
			}
		})
	}
	wg.Wait()
}

func TestProcessMaps(t *testing.T) {
	testenv.CheckLeaks(t)
	python := testenv.NeedTool(t, "python3")
	name := unique(t)
	path := Dir + "/" + name
	require.NoError(t, os.WriteFile(path, make([]byte, 4096), 0o600))
	t.Cleanup(func() { os.Remove(path) })
	require.False(t, ProcessMaps(os.Getpid(), name))
	require.False(t, ProcessMaps(1, name), "init maps nothing of ours")
	require.False(t, ProcessMaps(0, name))
	require.False(t, ProcessMaps(-5, name))

	p := testenv.StartCmd(t, exec.Command(python, "-u", "-c", fmt.Sprintf(`
import mmap, time
f = open(%q, "r+b")
m = mmap.mmap(f.fileno(), 0)
print("ready")
time.sleep(60)`, path)))
	testenv.Eventually(t, 10*time.Second, func() error {
		if p.Stdout() != "ready\n" {
			return fmt.Errorf("not ready: %s", p.Stderr())
		}
		return nil
	})
	require.True(t, ProcessMaps(p.Process.Pid, name))
	require.False(t, ProcessMaps(p.Process.Pid, "cuframes-other"))
	// Another file under the name is not the one that it maps.
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.WriteFile(path, make([]byte, 4096), 0o600))
	require.False(t, ProcessMaps(p.Process.Pid, name))
}
