package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// A site as systemd runs it: told when it is ready, fed while it turns, told when it stops; its files as JSON lines; no secret in
// its process list, nor in those of its stages.
func TestRunUnderSystemd(t *testing.T) {
	s := newSite(t)
	dir := t.TempDir()
	const password = "hunter2-of-the-site"
	require.NoError(t, os.WriteFile(filepath.Join(dir, "password"), []byte(password+"\n"), 0o600))
	url := s.camera("--username", "viewer", "--password-file", filepath.Join(dir, "password"))
	key := s.key("run")
	file := filepath.Join(dir, "site.yaml")
	require.NoError(t, os.WriteFile(file, []byte(fmt.Sprintf(`
cameras:
  %s:
    source: %s
    username: viewer
    password_file: password
    isolation: process
    record: {out: 'rec/%%s-%%f.mp4', segment: 1s}
`, key, url)), 0o600))

	socket := filepath.Join(dir, "notify")
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	require.NoError(t, err)
	defer l.Close()
	said := make(chan string, 1000)
	go func() {
		b := make([]byte, 4096)
		for {
			n, err := l.Read(b)
			if err != nil {
				close(said)
				return
			}
			said <- string(b[:n])
		}
	}()
	cmd := s.command("run", file, "--json")
	cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+socket, "WATCHDOG_USEC=3000000")
	p := testenv.StartCmd(t, cmd)
	expect := func(want string) {
		t.Helper()
		deadline := time.After(20 * time.Second)
		for {
			select {
			case got := <-said:
				if got == want {
					return
				}
			case <-deadline:
				t.Fatalf("%s was not said: %s", want, p.Stderr())
			}
		}
	}
	expect("READY=1")
	expect("WATCHDOG=1")
	expect("WATCHDOG=1")
	s.published(key, 40)
	testenv.Eventually(t, 20*time.Second, func() error {
		if strings.Count(p.Stdout(), "\n") == 0 {
			return errors.New("no file is finished")
		}
		return nil
	})
	require.NoError(t, p.Process.Signal(syscall.SIGHUP))
	testenv.Eventually(t, 20*time.Second, func() error {
		if !strings.Contains(p.Stderr(), `because="asked to" started=0 stopped=0 untouched=2`) {
			return errors.New("SIGHUP is not followed")
		}
		return nil
	})
	for _, pid := range append(children(t, p.Process.Pid), p.Process.Pid) {
		for _, name := range []string{"cmdline", "environ"} {
			b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", pid, name))
			require.NoError(t, err)
			require.NotContains(t, string(b), password)
		}
	}
	require.Len(t, children(t, p.Process.Pid), 1)
	require.NoError(t, p.Stop(t, syscall.SIGTERM, 30*time.Second))
	expect("STOPPING=1")
	require.NotContains(t, p.Stderr(), password)
	total := 0
	for line := range strings.Lines(p.Stdout()) {
		var f struct {
			Key, Path string
			Packets   int
			Lost      uint64
		}
		require.NoError(t, json.Unmarshal([]byte(line), &f))
		require.Equal(t, key, f.Key)
		require.Equal(t, f.Packets, checkSegment(t, f.Path))
		require.Zero(t, f.Lost)
		total += f.Packets
	}
	require.GreaterOrEqual(t, total, 40)
	require.Empty(t, s.leftovers(key))
}

func children(t *testing.T, pid int) (list []int) {
	t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	require.NoError(t, err)
	for _, f := range tasks {
		b, _ := os.ReadFile(f)
		for _, s := range strings.Fields(string(b)) {
			var n int
			_, err := fmt.Sscan(s, &n)
			require.NoError(t, err)
			list = append(list, n)
		}
	}
	return list
}

// Statuses of run: a good file, a wrong one, none.
func TestRunUsage(t *testing.T) {
	s := newSite(t)
	dir := t.TempDir()
	good, bad := filepath.Join(dir, "good.yaml"), filepath.Join(dir, "bad.yaml")
	require.NoError(t, os.WriteFile(good, []byte("cameras: {a: {source: 'rtsp://h/a'}}\n"), 0o600))
	require.NoError(t, os.WriteFile(bad, []byte("cameras: {a: {sauce: 'rtsp://h/a'}}\n"), 0o600))
	long := filepath.Join(dir, "long.yaml")
	require.NoError(t, os.WriteFile(long, []byte("cameras:\n  a: {source: 'rtsp://h/a', events: {out: 'x/%s.mp4', pre: 5m}}\n"), 0o600))
	misspelt := filepath.Join(dir, "misspelt.yaml")
	require.NoError(t, os.WriteFile(misspelt, []byte("cameras: {a: {source: 'rtsp://h/a', recordd: {out: 'x/%s.mp4'}}}\n"), 0o600))
	doubtful := filepath.Join(dir, "doubtful.yaml")
	require.NoError(t, os.WriteFile(doubtful, []byte("cameras: {a: {source: 'rtsp://h/a', record: {out: 'x/%{key}/%s.mp4'}}}\nretention: {free: 9000000GiB}\n"), 0o600))
	require.NoError(t, os.MkdirAll(filepath.Join(dir, "x/old"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "x/old/1.mp4"), nil, 0o600))
	for _, c := range []struct {
		arg    []string
		status int
		say    string
	}{
		{[]string{"run", doubtful, "--check"}, exitDone, "warning: retention.free: the disk of " + dir + "/x/a has "},
		{[]string{"run", doubtful, "--check"}, exitDone, "warning: " + dir + "/x holds recordings that no camera of this file makes: old (1 files, 0 MB)"},
		{[]string{"run", long, "--check"}, exitDone, "long.yaml:2:"},
		{[]string{"run", long, "--check"}, exitDone, "cameras.a.events.pre: 5m0s before the trigger is more than the ring holds: its 1024 slots are 41s"},
		{[]string{"run", good, "--check"}, exitDone, "ok: 1 cameras"},
		{[]string{"run", bad, "--check"}, exitUsage, "bad.yaml:1:15: cameras.a.sauce: unknown field"},
		{[]string{"run", misspelt, "--check"}, exitUsage, "cameras.a.recordd: unknown field; did you mean record? (allowed here: enabled, "},
		{[]string{"run", bad}, exitUsage, "unknown field"},
		{[]string{"run", filepath.Join(dir, "none.yaml")}, exitNotFound, "no such file"},
		{[]string{"run", dir}, exitFailed, "is a directory"},
		{[]string{"run"}, exitUsage, "FILE is missing: cfpipe run FILE"},
		{[]string{"run", good, "--check", "--schema"}, exitUsage, ""},
		{[]string{"run", "--schema"}, exitDone, `"$schema"`},
	} {
		out, err := s.command(c.arg...).CombinedOutput()
		require.Equal(t, c.status, exitCode(err), "%v: %s", c.arg, out)
		require.Contains(t, string(out), c.say, c.arg)
	}
}
