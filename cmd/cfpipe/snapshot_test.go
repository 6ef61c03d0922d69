package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"image/jpeg"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// snapshotFrom takes a snapshot without a GPU, looks at the file and returns what it came from.
func (s *site) snapshotFrom(key string, arg ...string) (from string, err error) {
	s.t.Helper()
	file := filepath.Join(s.t.TempDir(), "p.jpg")
	cmd := s.command(append([]string{"snapshot", key, "-o", file, "--json", "--max-age", "10s"}, arg...)...)
	out, err := cmd.Output()
	if err != nil {
		return "", err
	}
	var line struct {
		From          string
		Width, Height int
	}
	require.NoError(s.t, json.Unmarshal(out, &line), "%s", out)
	f, err := os.Open(file)
	require.NoError(s.t, err)
	defer f.Close()
	img, err := jpeg.Decode(f)
	require.NoError(s.t, err)
	require.Equal(s.t, [2]int{line.Width, line.Height}, [2]int{img.Bounds().Dx(), img.Bounds().Dy()})
	return line.From, nil
}

// Frames in the memory of a GPU, of all protocols and of all commands that publish them, and snapshots by processes that have none.
func TestSnapshotFromThePublisher(t *testing.T) {
	s := newSite(t)
	lib := testenv.StandInCUDA(t)
	start := func(arg ...string) *testenv.Process { // a process that has the GPU
		cmd := s.command(arg...)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+lib)
		return testenv.StartCmd(t, cmd)
	}
	url := s.camera()
	onGPU := []string{"--decode", "cpu", "--frame-memory", "cuda"}
	own, source := s.key("own"), s.key("source")
	processes := []*testenv.Process{start(append([]string{"ingest", url, "--key", own}, onGPU...)...), s.start("ingest", url, "--key", source)}
	keys := map[string]bool{own: true} // whether they have packets beside frames
	for protocol, packets := range map[string]bool{"2": true, "1": false} {
		key := s.key("v" + protocol)
		keys[key] = packets
		processes = append(processes, start(append([]string{"ingest", url, "--key", key, "--protocol", protocol}, onGPU...)...))
	}
	decoded, bridged := s.key("decoded"), s.key("bridged")
	keys[decoded], keys[bridged] = false, true
	processes = append(processes,
		start(append([]string{"decode", source, "--key", decoded, "--wait", "30s"}, onGPU...)...),
		start("bridge", own, "--key", bridged, "--protocol", "2", "--wait", "30s"))
	for key, packets := range keys {
		testenv.Eventually(t, 20*time.Second, func() error {
			from, err := s.snapshotFrom(key)
			if err == nil && from != "frames" {
				err = fmt.Errorf("of %s: from %s", key, from)
			}
			return err
		})
		// Without the publisher's help: from packets where there are any, else by CUDA, which is not there.
		path := framering.SnapshotPath(s.run, key)
		require.NoError(t, os.Rename(path, path+"-"))
		from, err := s.snapshotFrom(key)
		if packets {
			require.NoError(t, err)
			require.Equal(t, "packets", from)
		} else {
			require.Equal(t, exitFailed, exitCode(err))
		}
		require.NoError(t, os.Rename(path+"-", path))
	}
	out, err := s.command("ls", "--json").Output()
	require.NoError(t, err)
	var list []struct{ Key string }
	require.NoError(t, json.Unmarshal(out, &list))
	require.Len(t, list, len(keys)+2, "protocol 1 has its packets under another key, and there is the source: %s", out)
	for key := range keys {
		_, err = s.command("inspect", key).Output()
		require.NoError(t, err)
	}
	for _, p := range processes {
		require.NoError(t, p.Stop(t, syscall.SIGINT, 20*time.Second))
	}
	for key := range keys {
		require.Empty(t, s.leftovers(key))
	}
}

// A publisher that answers nothing, one that is killed, and those that come after it.
func TestSnapshotFromAFailingPublisher(t *testing.T) {
	s := newSite(t)
	lib := testenv.StandInCUDA(t)
	key := s.key("failing")
	path := framering.SnapshotPath(s.run, key)
	url := s.camera()
	start := func(arg ...string) *testenv.Process {
		cmd := s.command(append([]string{"ingest", url, "--key", key}, arg...)...)
		cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+lib)
		p := testenv.StartCmd(t, cmd)
		s.published(key, 5)
		return p
	}
	from := func(want string, arg ...string) {
		t.Helper()
		testenv.Eventually(t, 20*time.Second, func() error {
			from, err := s.snapshotFrom(key, arg...)
			if err == nil && from != want {
				err = fmt.Errorf("from %s, want %s", from, want)
			}
			return err
		})
	}
	onGPU := []string{"--decode", "cpu", "--frame-memory", "cuda"}
	p := start(onGPU...)
	from("frames")
	require.NoError(t, os.Rename(path, path+"-"))
	silent, err := net.Listen("unix", path)
	require.NoError(t, err)
	begun := time.Now()
	from("packets")
	require.Less(t, time.Since(begun), 10*time.Second, "an answer that does not come is waited for in vain, not for long")
	require.NoError(t, silent.Close())
	require.NoError(t, os.Rename(path+"-", path))
	from("frames")

	p.Kill()
	require.FileExists(t, path, "this is what a kill leaves")
	_, err = s.snapshotFrom(key)
	require.Equal(t, exitNotFound, exitCode(err))
	out, err := s.command("ls", "--json").Output()
	require.NoError(t, err)
	require.JSONEq(t, "[]", string(out))
	waiting := testenv.StartCmd(t, s.command("snapshot", key, "-o", filepath.Join(t.TempDir(), "p.jpg"), "--json", "--wait", "30s"))
	testenv.Eventually(t, 10*time.Second, func() error { // it waits now
		select {
		case <-waiting.Done():
			return fmt.Errorf("it has ended: %s", waiting.Stderr())
		default:
		}
		if waiting.Stderr() == "" {
			return fmt.Errorf("it says nothing")
		}
		return nil
	})
	p = start(onGPU...)
	require.NoError(t, waiting.WaitFor(t, 30*time.Second))
	from("frames")

	// The next publisher has its frames in host memory: what the one before has left goes all the same.
	p.Kill()
	require.FileExists(t, path)
	p = start("--decode", "cpu")
	require.NoFileExists(t, path)
	from("frames")
	require.NoError(t, p.Stop(t, syscall.SIGINT, 20*time.Second))

	p = start(onGPU...)
	from("frames")
	p.Kill()
	_ = s.command("doctor", "--clean", key).Run() // the machine may lack something
	require.Empty(t, s.leftovers(key))
}

// The heap of a snapshot is one of huge pages, whatever threads were there first.
func TestSnapshotHeap(t *testing.T) {
	if _, err := os.Stat("/sys/kernel/mm/transparent_hugepage"); err != nil {
		t.Skip("the kernel has no transparent huge pages")
	}
	s := newSite(t)
	p := s.start("snapshot", "nobody", "-o", "-", "--wait", "20s")
	testenv.Eventually(t, 10*time.Second, func() error {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/smaps", p.Process.Pid))
		if err != nil {
			return err
		}
		inHeap := false
		for line := range strings.Lines(string(b)) {
			f := strings.Fields(line)
			switch {
			case strings.Contains(f[0], "-"): // a mapping begins
				inHeap = f[len(f)-1] == "[heap]"
			case inHeap && f[0] == "VmFlags:" && slices.Contains(f, "hg"):
				return nil
			}
		}
		return errors.New("there is no heap of huge pages")
	})
	p.Kill()
}
