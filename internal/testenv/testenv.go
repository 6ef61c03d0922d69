// Package testenv holds what tests of several packages need: leak gates, a runner for child processes, a watchdog and the
// rule for missing tools. It is imported by tests alone.
package testenv

import (
	"bufio"
	"bytes"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// Strict is true in scripts/test: what is missing there is a failure, not a skip.
func Strict() bool { return os.Getenv("CFPIPE_TEST_STRICT") != "" }

// NeedTool returns the path of a program, or skips the test (fails it under Strict).
func NeedTool(t testing.TB, name string) string {
	t.Helper()
	p, err := exec.LookPath(name)
	if err != nil {
		if Strict() {
			t.Fatalf("%s is not installed; scripts/test installs it", name)
		}
		t.Skipf("%s is not installed", name)
	}
	return p
}

// Python returns the system's Python, for which scripts/test installs NumPy; another one may come first in PATH.
func Python(t testing.TB) string {
	t.Helper()
	const system = "/usr/bin/python3"
	if _, err := os.Stat(system); err == nil {
		return system
	}
	return NeedTool(t, "python3")
}

// CheckLeaks fails the test when, after all its other cleanups, file descriptors, mappings of rings or goroutines are left
// that were not there when it was called. Call it first.
func CheckLeaks(t testing.TB) {
	t.Helper()
	fds, maps := openFiles(), ringMappings()
	ignore := goleak.IgnoreCurrent()
	t.Cleanup(func() {
		if t.Failed() {
			return
		}
		if err := goleak.Find(ignore); err != nil {
			t.Errorf("goroutines left: %v", err)
		}
		// Closing is asynchronous in places (the runtime's poller, children being reaped): give it a bounded while.
		var fdsLeft, mapsLeft []string
		for deadline := time.Now().Add(3 * time.Second); ; time.Sleep(10 * time.Millisecond) {
			fdsLeft, mapsLeft = added(fds, openFiles()), added(maps, ringMappings())
			if len(fdsLeft)+len(mapsLeft) == 0 {
				return
			}
			if time.Now().After(deadline) {
				break
			}
			runtime.Gosched()
		}
		t.Errorf("left behind: files %v, mappings %v", fdsLeft, mapsLeft)
	})
}

func openFiles() map[string]int {
	m := map[string]int{}
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return m
	}
	for _, e := range entries {
		target, err := os.Readlink("/proc/self/fd/" + e.Name())
		if err != nil || strings.Contains(target, "anon_inode:[event") || strings.HasPrefix(target, "/proc/") {
			continue // gone already, or the runtime's own poller
		}
		if i := strings.IndexByte(target, '['); i > 0 { // socket:[123], pipe:[123]: count the kind, the number is new each time
			target = target[:i]
		}
		m[target]++
	}
	return m
}

func ringMappings() map[string]int {
	m := map[string]int{}
	b, _ := os.ReadFile("/proc/self/maps")
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) >= 6 && (strings.HasPrefix(f[5], "/dev/shm/") || strings.HasPrefix(f[5], "/memfd:")) {
			m[f[5]]++
		}
	}
	return m
}

func added(before, after map[string]int) []string {
	var s []string
	for k, n := range after {
		if n > before[k] {
			s = append(s, fmt.Sprintf("%s (+%d)", k, n-before[k]))
		}
	}
	return s
}

// Slow is d, or $CFPIPE_TEST_SLOW times d: for bounds that only keep a test from hanging, under emulation.
func Slow(d time.Duration) time.Duration {
	if n, err := strconv.Atoi(os.Getenv("CFPIPE_TEST_SLOW")); err == nil {
		return d * time.Duration(n)
	}
	return d
}

// Watchdog dumps all goroutines and ends the process when the test is still running after Slow(d).
func Watchdog(t testing.TB, d time.Duration) {
	t.Helper()
	d = Slow(d)
	timer := time.AfterFunc(d, func() {
		buf := make([]byte, 1<<20)
		n := runtime.Stack(buf, true)
		fmt.Fprintf(os.Stderr, "%s still runs after %v\n%s\n", t.Name(), d, buf[:n])
		os.Exit(2)
	})
	t.Cleanup(func() { timer.Stop() })
}

// Eventually waits until f returns nil and fails the test with f's last error after d.
func Eventually(t testing.TB, d time.Duration, f func() error) {
	t.Helper()
	deadline := time.Now().Add(d)
	for {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %v", d, err)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// Place returns a runtime directory with a short name, as the paths of sockets are short, and a key of this test alone; both are cleaned up
// behind the test, the rings of keys that begin with it too.
func Place(t testing.TB) (dir, key string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "cf")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	key = "t-" + rand.Text()[:12]
	RemoveRings(t, key)
	return dir, key
}

// RemoveRings removes behind the test what processes that are killed, at its end for instance, leave in /dev/shm of keys that begin so. It
// comes before those processes are started.
func RemoveRings(t testing.TB, key string) {
	t.Helper()
	t.Cleanup(func() {
		left, _ := filepath.Glob("/dev/shm/cuframes-" + key + "*")
		for _, f := range left {
			_ = os.Remove(f)
		}
	})
}

// Root returns the folder of the module.
func Root(t testing.TB) string {
	t.Helper()
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return dir
		}
		up := filepath.Dir(dir)
		if up == dir {
			t.Fatal("no go.mod above the working directory")
		}
		dir = up
	}
}

var build struct {
	sync.Once
	path string
	err  error
}

// Binary returns the path of the cfpipe binary: $CFPIPE_BIN (scripts/test sets it), else one built for this test run.
func Binary(t testing.TB) string {
	t.Helper()
	if p := os.Getenv("CFPIPE_BIN"); p != "" {
		return p
	}
	root := Root(t)
	build.Do(func() {
		dir, err := os.MkdirTemp("", "cfpipe-bin-")
		if err != nil {
			build.err = err
			return
		}
		build.path = filepath.Join(dir, "cfpipe")
		cmd := exec.Command("go", "build", "-o", build.path, "./cmd/cfpipe")
		cmd.Dir = root
		if out, err := cmd.CombinedOutput(); err != nil {
			build.err = fmt.Errorf("go build: %w\n%s", err, out)
		}
	})
	if build.err != nil {
		t.Fatal(build.err)
	}
	return build.path
}

// Process is a child process whose output is kept.
type Process struct {
	*exec.Cmd
	stdout, stderr Log
	done           chan struct{}
	err            error
}

// Log is a text that is written and read at once.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Start runs a program in the background; it is killed when the test ends, and what it wrote is logged when the test failed.
func Start(t testing.TB, name string, arg ...string) *Process {
	t.Helper()
	return StartCmd(t, exec.Command(name, arg...))
}

// StartCmd is Start for a prepared command. Stdout and Stderr that are set already are left alone.
func StartCmd(t testing.TB, cmd *exec.Cmd) *Process {
	t.Helper()
	p := &Process{Cmd: cmd, done: make(chan struct{})}
	if cmd.Stdout == nil {
		cmd.Stdout = &p.stdout
	}
	if cmd.Stderr == nil {
		cmd.Stderr = &p.stderr
	}
	cmd.WaitDelay = 2 * time.Second
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL // a test run that is killed leaves no children
	if err := cmd.Start(); err != nil {
		t.Fatalf("start %s: %v", cmd.Path, err)
	}
	go func() {
		p.err = cmd.Wait()
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("%s\nstdout: %.2000s\nstderr: %s", strings.Join(cmd.Args, " "), p.Stdout(), p.Stderr())
		}
	})
	return p
}

// StartPiped is StartCmd for a program whose output is read while it runs, line by line; what it has written is there after its end, too.
func StartPiped(t testing.TB, cmd *exec.Cmd) (*Process, *bufio.Reader) {
	t.Helper()
	out, in, err := os.Pipe() // not StdoutPipe, which ends with the process
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { out.Close() })
	cmd.Stdout = in
	p := StartCmd(t, cmd)
	in.Close()
	return p, bufio.NewReader(out)
}

// Stdout returns what the process has written to standard output so far.
func (p *Process) Stdout() string { return p.stdout.String() }

// Stderr returns what the process has written to standard error so far.
func (p *Process) Stderr() string { return p.stderr.String() }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Kill ends the process with SIGKILL and waits for it.
func (p *Process) Kill() {
	_ = p.Process.Kill()
	<-p.done
}

// Stop sends sig and returns the process's error after it has ended, or fails the test after d.
func (p *Process) Stop(t testing.TB, sig os.Signal, d time.Duration) error {
	t.Helper()
	_ = p.Process.Signal(sig)
	return p.WaitFor(t, d)
}

// WaitFor returns the process's error once it has ended, or fails the test after d.
func (p *Process) WaitFor(t testing.TB, d time.Duration) error {
	t.Helper()
	select {
	case <-p.done:
		return p.err
	case <-time.After(d):
		t.Fatalf("%s still runs after %v\nstderr: %s", strings.Join(p.Args, " "), d, p.Stderr())
		return nil
	}
}
