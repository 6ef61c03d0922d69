package framering

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// TestKilledPublisher: SIGKILL leaves socket and SHM behind; subscribers notice, and the next publisher starts at once.
func TestKilledPublisher(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 2*time.Minute)
	dir, key := place(t)
	for range 3 {
		first, line := child(t, "publish", dir, key)
		require.Equal(t, "ready", line)
		s := subscribe(t, dir, key, WantsPackets)
		require.Equal(t, first.Process.Pid, s.PID)
		l, err := List(dir)
		require.NoError(t, err)
		require.Len(t, l, 1)
		require.EqualValues(t, first.Process.Pid, l[0].Header.ProducerPID)

		_, err = NewPublisher(PublisherOptions{RuntimeDir: dir, Key: key})
		require.ErrorIs(t, err, ErrAlreadyExists)
		require.ErrorIs(t, err, os.ErrExist)
		require.NoError(t, s.Err(), "the attempt disturbed nobody")

		first.Kill()
		wait(t, s.Done(), "the end of the connection")
		require.ErrorIs(t, s.Err(), ErrDisconnected)
		require.FileExists(t, SocketPath(dir, key))
		require.FileExists(t, shm.Dir+"/"+ShmName(key))
		l, err = List(dir)
		require.NoError(t, err)
		require.Empty(t, l, "the dead are not listed")
		_, err = Dial(t.Context(), DialOptions{RuntimeDir: dir, Key: key, Flags: WantsPackets})
		require.ErrorIs(t, err, ErrNotFound)

		requireTakeOver(t, dir, key)
	}
}

// requireTakeOver checks that the key is free: a new publisher has it at once, serves, and leaves nothing.
func requireTakeOver(t *testing.T, dir, key string) {
	t.Helper()
	begin := time.Now()
	p, err := NewPublisher(PublisherOptions{RuntimeDir: dir, Key: key})
	require.NoError(t, err)
	require.NoError(t, p.Serve())
	require.Less(t, time.Since(begin), 5*time.Second) // far above what it takes, for busy machines
	p.EnablePackets(PacketInfo{Path: PacketShmName(key)})
	subscribe(t, dir, key, WantsPackets)
	require.NoError(t, p.Close(ReasonNormal))
	requireNothingLeft(t, dir, key)
}

// TestStoppedPublisherIsAlive: one that hangs keeps its key.
func TestStoppedPublisherIsAlive(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 2*time.Minute)
	dir, key := place(t)
	p, line := child(t, "publish", dir, key)
	require.Equal(t, "ready", line)
	require.NoError(t, p.Process.Signal(syscall.SIGSTOP))
	_, err := NewPublisher(PublisherOptions{RuntimeDir: dir, Key: key})
	require.ErrorIs(t, err, ErrAlreadyExists)
	require.NoError(t, os.Remove(SocketPath(dir, key))) // and without its socket
	_, err = NewPublisher(PublisherOptions{RuntimeDir: dir, Key: key})
	require.ErrorIs(t, err, ErrAlreadyExists)
}

// TestRacingCreators starts several processes at once on what a killed publisher left: exactly one publishes.
func TestRacingCreators(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 2*time.Minute)
	dir, key := place(t)
	dead, line := child(t, "publish", dir, key)
	require.Equal(t, "ready", line)
	dead.Kill()
	for round := range 4 {
		const n = 3
		type result struct {
			p    *testenv.Process
			line string
		}
		results := make(chan result, n)
		for range n {
			go func() {
				p, line := child(t, "publish", dir, key)
				results <- result{p, line}
			}()
		}
		var winner *testenv.Process
		for range n {
			switch r := <-results; r.line {
			case "ready":
				require.Nil(t, winner, "two publishers in round %d", round)
				winner = r.p
			case "exists":
				require.NoError(t, r.p.WaitFor(t, 10*time.Second))
			default:
				t.Fatalf("round %d: %s", round, r.line)
			}
		}
		require.NotNil(t, winner, "no publisher in round %d", round)
		s := subscribe(t, dir, key, WantsPackets)
		require.Equal(t, winner.Process.Pid, s.PID)
		winner.Kill()
		wait(t, s.Done(), "the end of the connection")
	}
}

// foreignShm leaves the SHM of a publisher of another implementation, which holds no lock.
func foreignShm(t testing.TB, key string, magic, version uint32, pid uint64) string {
	t.Helper()
	mem := make([]byte, blockSize)
	copy(mem, unhex(t, goldenHeader))
	binary.LittleEndian.PutUint32(mem[0:], magic)
	binary.LittleEndian.PutUint32(mem[4:], version)
	binary.LittleEndian.PutUint64(mem[0x18:], pid)
	path := shm.Dir + "/" + ShmName(key)
	require.NoError(t, os.WriteFile(path, mem, 0o600))
	return path
}

func TestForeignShm(t *testing.T) {
	testenv.CheckLeaks(t)
	sleeper := testenv.Start(t, "sleep", "60")
	for name, c := range map[string]struct {
		magic, version uint32
		pid            uint64
	}{
		"pid 1, of another namespace": {MagicV4, 4, 1},
		"a reused pid":                {MagicV4, 4, uint64(sleeper.Process.Pid)},
		"a reused pid, legacy":        {MagicLegacy, 1, uint64(sleeper.Process.Pid)},
		"our own pid":                 {MagicV4, 4, uint64(os.Getpid())},
		"no such pid":                 {MagicV4, 4, 1<<22 - 1},
		"pid 0":                       {MagicV4, 4, 0},
		"a pid of 64 bits":            {MagicV4, 4, 1<<63 + 5},
		"no magic":                    {0, 0, uint64(sleeper.Process.Pid)},
	} {
		t.Run(name, func(t *testing.T) {
			dir, key := place(t)
			foreignShm(t, key, c.magic, c.version, c.pid)
			l, err := net.ListenUnix("unix", &net.UnixAddr{Name: SocketPath(dir, key), Net: "unix"})
			require.NoError(t, err)
			l.SetUnlinkOnClose(false) // a stale socket is no obstacle either
			require.NoError(t, l.Close())
			i, _ := Inspect(dir, key)
			require.False(t, i.Alive)
			requireTakeOver(t, dir, key)
		})
	}
}

// TestForeignPublisher: a living publisher without a lock keeps its key, by its socket or by mapping its SHM.
func TestForeignPublisher(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 2*time.Minute)
	python := testenv.NeedTool(t, "python3")
	dir, key := place(t)
	path := foreignShm(t, key, MagicV4, 4, 0)
	mapper := testenv.Start(t, python, "-u", "-c", fmt.Sprintf(`
import mmap, os, struct, sys, time
f = open(%q, "r+b")
m = mmap.mmap(f.fileno(), 0)
m[0x18:0x20] = struct.pack("<Q", os.getpid())
print("ready")
time.sleep(60)`, path))
	testenv.Eventually(t, 30*time.Second, func() error {
		if mapper.Stdout() != "ready\n" {
			return fmt.Errorf("not ready: %s", mapper.Stderr())
		}
		return nil
	})
	_, err := NewPublisher(PublisherOptions{RuntimeDir: dir, Key: key})
	require.ErrorIs(t, err, ErrAlreadyExists)
	i, err := Inspect(dir, key)
	require.NoError(t, err)
	require.True(t, i.Alive)
	mapper.Kill()

	// Dead now, but somebody listens at its socket.
	l, err := shm.ListenUnix(SocketPath(dir, key), 0)
	require.NoError(t, err)
	_, err = NewPublisher(PublisherOptions{RuntimeDir: dir, Key: key})
	require.ErrorIs(t, err, ErrAlreadyExists)
	require.FileExists(t, path)
	require.NoError(t, l.Close())

	p, err := NewPublisher(PublisherOptions{RuntimeDir: dir, Key: key})
	require.NoError(t, err)
	require.NoError(t, p.Close(ReasonNormal))
}

// TestHostileShm: what List and Inspect read may be anything.
func TestHostileShm(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	path := shm.Dir + "/" + ShmName(key)
	l, err := shm.ListenUnix(SocketPath(dir, key), 0)
	require.NoError(t, err)
	defer l.Close()
	defer os.Remove(SocketPath(dir, key))
	golden := make([]byte, blockSize)
	copy(golden, unhex(t, goldenHeader))
	for name, content := range map[string][]byte{
		"empty": nil, "short": golden[:100], "header alone": golden[:256], "17 slots": slices.Concat(golden[:0x20], []byte{17}, golden[0x21:]),
		"ones": func() []byte {
			b := make([]byte, blockSize)
			for i := range b {
				b[i] = 0xFF
			}
			return b
		}(),
	} {
		require.NoError(t, os.WriteFile(path, content, 0o600))
		_, err := Inspect(dir, key)
		require.Error(t, err, name)
		_, err = List(dir)
		require.NoError(t, err, name)
	}
	require.NoError(t, os.Remove(path))
	require.NoError(t, os.Symlink("/etc/passwd", path))
	_, err = Inspect(dir, key)
	require.Error(t, err)
	require.NoError(t, os.Remove(path))
	require.NoError(t, syscall.Mkfifo(path, 0o600))
	_, err = Inspect(dir, key)
	require.Error(t, err)
	_, err = NewPublisher(PublisherOptions{RuntimeDir: dir, Key: key})
	require.Error(t, err)
}

// foreignSocket is a publisher's that speaks with one peer; done is closed behind that.
func foreignSocket(t *testing.T, dir, key string, speak func(c *net.UnixConn)) (done <-chan struct{}) {
	t.Helper()
	l, err := shm.ListenUnix(SocketPath(dir, key), 0)
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		c, err := l.AcceptUnix()
		if err != nil {
			t.Error(err)
			return
		}
		defer c.Close()
		speak(c)
	}()
	return ended
}

// TestVersionOfTheOther: the refusal is a number; the SHM says which version the publisher speaks.
func TestVersionOfTheOther(t *testing.T) {
	testenv.CheckLeaks(t)
	dir, key := place(t)
	foreignShm(t, key, MagicLegacy, 2, uint64(os.Getpid()))
	done := foreignSocket(t, dir, key, func(c *net.UnixConn) {
		_, _ = c.Read(make([]byte, 200))
		_, _ = c.Write(framed(t, helloResponse{Result: ErrProtocol}))
	})
	_, err := Dial(t.Context(), DialOptions{RuntimeDir: dir, Key: key, Protocol: 4})
	require.ErrorIs(t, err, ErrProtocol)
	require.ErrorContains(t, err, "the publisher speaks protocol 2")
	wait(t, done, "the publisher")
}

// TestNamespaces: a publisher in a PID namespace of its own, where it is pid 1, as in a container.
func TestNamespaces(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 2*time.Minute)
	dir, key := place(t)
	for range 2 {
		p := inNamespace(t, "publish", dir, key)
		s := subscribe(t, dir, key, WantsPackets)
		i, err := Inspect(dir, key)
		require.NoError(t, err)
		require.True(t, i.Alive)
		require.EqualValues(t, 1, i.Header.ProducerPID, "the pid means nothing here")
		_, err = NewPublisher(PublisherOptions{RuntimeDir: dir, Key: key})
		require.ErrorIs(t, err, ErrAlreadyExists)
		p.Kill()
		wait(t, s.Done(), "the end of the connection")
		i, err = Inspect(dir, key)
		require.NoError(t, err)
		require.False(t, i.Alive, "pid 1 is always alive, the lock is not")
	}
	// And one outside takes over from it.
	publish(t, PublisherOptions{RuntimeDir: dir, Key: key}, true)
	subscribe(t, dir, key, WantsPackets)
}

func inNamespace(t *testing.T, role, dir, key string) *testenv.Process {
	t.Helper()
	cmd := testenv.Child(role, dir, key)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWPID}
	if os.Geteuid() != 0 {
		cmd.SysProcAttr.Cloneflags |= syscall.CLONE_NEWUSER
		cmd.SysProcAttr.UidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getuid(), HostID: os.Getuid(), Size: 1}}
		cmd.SysProcAttr.GidMappings = []syscall.SysProcIDMap{{ContainerID: os.Getgid(), HostID: os.Getgid(), Size: 1}}
	}
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	t.Cleanup(func() { in.Close() })
	probe := exec.Command("/bin/true")
	probe.SysProcAttr = cmd.SysProcAttr
	if err := probe.Run(); err != nil {
		t.Skipf("no PID namespaces here: %v", err)
	}
	p := testenv.StartCmd(t, cmd)
	testenv.Eventually(t, 60*time.Second, func() error {
		if p.Stdout() != "ready\n" {
			return fmt.Errorf("not ready: %q %s", p.Stdout(), p.Stderr())
		}
		return nil
	})
	return p
}
