package main

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// container is a shell script that makes a root of its own from namespaces and mounts, as container runtimes do, and runs a command
// there. $1 root, $2 what is mounted on /run/cuframes, $3 on /dev/shm ("tmpfs:SIZE" for one of its own), $4 the repository, $5… command.
// $READ_ONLY: the two mounts cannot be written.
const container = `set -e
root=$1 run=$2 shm=$3 repository=$4
shift 4
mount -t tmpfs tmpfs "$root"
cd "$root"
mkdir -p usr dev/shm run/cuframes proc tmp etc repository
ln -s usr/bin usr/lib usr/lib64 .
mount --rbind /usr usr
mount --bind "$repository" repository
touch dev/null cfpipe clip.mkv
mount --bind /dev/null dev/null
mount --bind "$CFPIPE" cfpipe
mount --bind "$CLIP" clip.mkv
mount -t proc proc proc
printf 'root:x:0:\ncameras:x:2000:\n' >etc/group
mount --bind "$run" run/cuframes
case $shm in
tmpfs:*) mount -t tmpfs -o "size=${shm#tmpfs:}" tmpfs dev/shm ;;
*) mount --bind "$shm" dev/shm ;;
esac
if [ -n "$READ_ONLY" ]; then mount -o remount,bind,ro run/cuframes && mount -o remount,bind,ro dev/shm; fi
exec chroot . "$@"`

type containers struct {
	t              *testing.T
	run, shm, clip string
	unshare        []string
	root           bool
	n              int
	readOnly       string // of the containers started next
}

func newContainers(t *testing.T) *containers {
	t.Helper()
	unshare := []string{testenv.NeedTool(t, "unshare"), "--mount", "--pid", "--ipc", "--net", "--uts", "--fork", "--kill-child"}
	c := &containers{t: t, root: os.Geteuid() == 0, unshare: unshare}
	if !c.root {
		c.unshare = append(c.unshare, "--user", "--map-root-user")
	}
	probe := append(c.unshare[1:], "sh", "-c", "mount -t tmpfs tmpfs /mnt && mount -t proc proc /proc")
	if out, err := exec.Command(c.unshare[0], probe...).CombinedOutput(); err != nil {
		t.Skipf("no namespaces here: %v: %s", err, out)
	}
	dir, err := os.MkdirTemp("", "cf")
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(dir) })
	require.NoError(t, os.Chmod(dir, 0o755))
	c.run, c.clip = filepath.Join(dir, "run"), filepath.Join(dir, "clip.mkv")
	require.NoError(t, os.Mkdir(c.run, 0o777))
	require.NoError(t, os.Chmod(c.run, 0o777))
	c.shm, err = os.MkdirTemp("/dev/shm", "volume-") // a tmpfs volume
	require.NoError(t, err)
	t.Cleanup(func() { os.RemoveAll(c.shm) })
	require.NoError(t, os.Chmod(c.shm, 0o777|os.ModeSticky))
	out, err := exec.Command(testenv.NeedTool(t, "ffmpeg"), "-v", "error", "-f", "lavfi", "-i", "testsrc2=s=320x180:r=25", "-frames:v", "50",
		"-c:v", "libx264", "-preset", "ultrafast", "-g", "10", c.clip).CombinedOutput()
	require.NoError(t, err, string(out))
	return c
}

// start runs a command in a container of its own.
func (c *containers) start(run, shm string, command ...string) *testenv.Process {
	c.t.Helper()
	c.n++
	root := filepath.Join(filepath.Dir(c.run), fmt.Sprintf("root%d", c.n))
	require.NoError(c.t, os.Mkdir(root, 0o755))
	args := []string{"sh", "-c", container, "sh", root, run, shm, testenv.Root(c.t)}
	cmd := exec.Command(c.unshare[0], slices.Concat(c.unshare[1:], args, command)...)
	cmd.Env = append(os.Environ(), "CFPIPE="+testenv.Binary(c.t), "CLIP="+c.clip, "PYTHONPATH=/repository/clients/python/src",
		"PYTHONDONTWRITEBYTECODE=1", "READ_ONLY="+c.readOnly)
	return testenv.StartCmd(c.t, cmd)
}

// shared runs a command in a container that shares the runtime folder and /dev/shm.
func (c *containers) shared(command ...string) *testenv.Process {
	c.t.Helper()
	return c.start(c.run, c.shm, command...)
}

// fails waits for the end of p and returns what it says; its exit status must be the one given.
func (c *containers) fails(status int, p *testenv.Process) string {
	c.t.Helper()
	var exit *exec.ExitError
	require.ErrorAs(c.t, p.WaitFor(c.t, 30*time.Second), &exit, p.Stdout())
	require.Equal(c.t, status, exit.ExitCode(), p.Stderr())
	return p.Stderr()
}

func publish(key string) []string {
	return []string{"/cfpipe", "ingest", "/clip.mkv", "--key", key, "--loop", "--realtime", "--no-audio", "--decode", "cpu"}
}

// Publisher and readers in containers that share two mounts and nothing else: no PIDs, no network, no IPC namespace.
func TestContainers(t *testing.T) {
	testenv.Watchdog(t, 2*time.Minute)
	c := newContainers(t)
	publisher := c.shared(publish("cam1")...)

	packets := c.shared("/cfpipe", "packets", "cam1", "--count", "30", "--wait", "20s", "--follow")
	frames := c.shared("/cfpipe", "frames", "cam1", "-f", "raw", "--count", "5", "--wait", "20s")
	python := c.shared("/usr/bin/python3", "/repository/clients/python/tests/check.py", "frames", "cam1", "5")
	require.NoError(t, packets.WaitFor(t, 30*time.Second))
	require.True(t, strings.HasPrefix(packets.Stdout(), "\x00\x00\x00\x01"))
	require.NoError(t, frames.WaitFor(t, 30*time.Second))
	require.Len(t, frames.Stdout(), 5*320*180*3/2)
	if _, err := os.Stat("/usr/bin/python3"); err == nil || testenv.Strict() {
		require.NoError(t, python.WaitFor(t, 30*time.Second))
		require.Contains(t, python.Stdout(), `{"lost": 0}`)
	}

	// Readers of packets change nothing, and neither do Python's of frames that nobody waits for.
	c.readOnly = "yes"
	packets = c.shared("/cfpipe", "packets", "cam1", "--count", "10")
	python = c.shared("/usr/bin/python3", "/repository/clients/python/tests/check.py", "frames", "cam1", "5")
	require.NoError(t, packets.WaitFor(t, 30*time.Second))
	if _, err := os.Stat("/usr/bin/python3"); err == nil {
		require.NoError(t, python.WaitFor(t, 30*time.Second))
	}
	require.Contains(t, c.fails(exitFailed, c.shared("/cfpipe", "frames", "cam1", "--count", "1")), "read-only file system")
	c.readOnly = ""

	// In its own PID namespace every process is number 1: whether the publisher lives is seen by its socket and its lock.
	inspect := c.shared("/cfpipe", "inspect", "cam1", "--json")
	require.NoError(t, inspect.WaitFor(t, 20*time.Second))
	var state struct{ Alive bool }
	require.NoError(t, json.Unmarshal([]byte(inspect.Stdout()), &state), inspect.Stdout())
	require.True(t, state.Alive)
	require.Contains(t, c.fails(exitFailed, c.shared(publish("cam1")...)), "is published by pid")

	follower := c.shared("/cfpipe", "packets", "cam1", "--count", "100", "--follow", "--log-level", "info")
	testenv.Eventually(t, 20*time.Second, func() error {
		if len(follower.Stdout()) == 0 {
			return fmt.Errorf("no packet yet")
		}
		return nil
	})
	publisher.Kill()
	publisher = c.shared(publish("cam1")...)
	require.NoError(t, follower.WaitFor(t, 30*time.Second))
	require.Contains(t, follower.Stderr(), "the publisher of cam1 is back")

	// What is not shared is named.
	for _, command := range [][]string{{"/cfpipe", "packets", "cam1"}, {"/cfpipe", "frames", "cam1"}, {"/cfpipe", "packets", "cam1", "--wait", "1s"},
		{"/cfpipe", "inspect", "cam1"}} {
		said := c.fails(exitFailed, c.start(c.run, "tmpfs:8m", command...))
		require.Contains(t, said, "/dev/shm/cuframes-cam1", command)
		require.Contains(t, said, "findmnt /dev/shm", command)
	}
	if _, err := os.Stat("/usr/bin/python3"); err == nil {
		said := c.fails(1, c.start(c.run, "tmpfs:8m", "/usr/bin/python3", "/repository/clients/python/tests/check.py", "packets", "cam1", "5"))
		require.Contains(t, said, "cfpipe.errors.MountError: /dev/shm/cuframes-cam1-packets is not there")
	}
	for _, command := range [][]string{{"ls"}, {"top", "-n", "1", "--interval", "50ms"}} {
		p := c.start(c.run, "tmpfs:8m", append([]string{"/cfpipe"}, command...)...)
		require.NoError(t, p.WaitFor(t, 20*time.Second))
		require.Regexp(t, `(?m)^cam1 +not in this /dev/shm$`, p.Stdout(), command)
		require.Contains(t, p.Stdout(), "the publishers of 1 keys answer, but their rings are not here", command)
		require.Contains(t, p.Stdout(), "findmnt /dev/shm", command)
	}
	ls := c.start(c.run, "tmpfs:8m", "/cfpipe", "ls", "--json")
	require.NoError(t, ls.WaitFor(t, 20*time.Second))
	require.Contains(t, ls.Stdout(), `"key":"cam1","alive":true`)
	require.Contains(t, ls.Stdout(), "findmnt /dev/shm")
	doctor := c.start(c.run, "tmpfs:8m", "/cfpipe", "doctor")
	c.fails(exitFailed, doctor)
	require.Contains(t, doctor.Stdout(), "1 publishers answer in /run/cuframes, such as cam1, and their rings are not in this /dev/shm")
	doctor = c.shared("/cfpipe", "doctor")
	_ = doctor.WaitFor(t, 20*time.Second) // what else it says of this machine is another matter
	require.Contains(t, doctor.Stdout(), "every publisher that answers has its rings here")
	other := filepath.Join(filepath.Dir(c.run), "other")
	require.NoError(t, os.Mkdir(other, 0o755))
	require.Contains(t, c.fails(exitNotFound, c.start(other, c.shm, "/cfpipe", "packets", "cam1")), "/run/cuframes/cam1.sock")

	// A small /dev/shm is named with its size.
	said := c.fails(exitFailed, c.start(c.run, "tmpfs:1m", publish("cam2")...))
	require.Contains(t, said, "--shm-size")
	require.NoError(t, publisherStopped(t, publisher))
}

// publisherStopped ends a publisher in its container as a container runtime does.
func publisherStopped(t *testing.T, p *testenv.Process) error {
	t.Helper()
	out, err := exec.Command("ps", "-o", "pid=", "--ppid", fmt.Sprint(p.Process.Pid)).Output()
	require.NoError(t, err)
	var pid int
	_, err = fmt.Sscan(string(out), &pid)
	require.NoError(t, err)
	require.NoError(t, syscall.Kill(pid, syscall.SIGTERM))
	return p.WaitFor(t, 20*time.Second)
}

// Containers with different users meet in a group.
func TestContainersGroup(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	c := newContainers(t)
	if !c.root {
		t.Skip("needs root, to be several users")
	}
	as := func(uid int, groups string, command ...string) *testenv.Process {
		id := fmt.Sprint(uid)
		// A change of user clears what --kill-child has set.
		return c.shared(append([]string{"/usr/bin/setpriv", "--reuid", id, "--regid", id, groups, "--pdeathsig", "KILL"}, command...)...)
	}
	as(1001, "--groups=2000", append(publish("cam1"), "--group", "cameras")...)
	reader := as(1002, "--groups=2000", "/cfpipe", "packets", "cam1", "--count", "10", "--wait", "20s")
	require.NoError(t, reader.WaitFor(t, 30*time.Second))
	reader = as(1002, "--groups=2000", "/cfpipe", "frames", "cam1", "-f", "raw", "--count", "3", "--wait", "20s")
	require.NoError(t, reader.WaitFor(t, 30*time.Second))
	require.Contains(t, c.fails(exitFailed, as(1002, "--clear-groups", "/cfpipe", "packets", "cam1")), "permission denied")
}
