package shm

import (
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

func socketPair(t *testing.T) (a, b *net.UnixConn) {
	t.Helper()
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: filepath.Join(t.TempDir(), "s"), Net: "unix"})
	require.NoError(t, err)
	defer l.Close()
	a, err = net.DialUnix("unix", nil, l.Addr().(*net.UnixAddr))
	require.NoError(t, err)
	b, err = l.AcceptUnix()
	require.NoError(t, err)
	t.Cleanup(func() { a.Close(); b.Close() })
	return a, b
}

func TestMemfdOverASocket(t *testing.T) {
	testenv.CheckLeaks(t)
	a, b := socketPair(t)
	w, err := Memfd("cuframes-test", 8192)
	require.NoError(t, err)
	copy(w.Bytes()[4096:], "pixels")
	fd := int(w.File().Fd())
	require.NoError(t, SendFDs(a, []byte("take these"), []int{fd, fd}))

	buf := make([]byte, 100)
	n, fds, err := RecvFDs(b, buf, 2)
	require.NoError(t, err)
	require.Equal(t, "take these", string(buf[:n]))
	require.Len(t, fds, 2)
	flags, err := unix.FcntlInt(uintptr(fds[0]), unix.F_GETFD, 0)
	require.NoError(t, err)
	require.NotZero(t, flags&unix.FD_CLOEXEC)
	require.True(t, IsMemfd(fds[0]))

	r, err := OpenMemfd(fds[0], 8192)
	require.NoError(t, err)
	require.Equal(t, "pixels", string(r.Bytes()[4096:4102]))
	_, err = OpenMemfd(fds[1], 8193)
	require.ErrorIs(t, err, ErrTooSmall)

	require.Error(t, r.File().Truncate(100), "sealed")
	require.Error(t, r.File().Truncate(1<<20), "sealed")
	foreign, err := unix.Mmap(int(r.File().Fd()), 0, 4096, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	require.NoError(t, err, "other implementations may map frames for writing, as they do GPU memory")
	require.NoError(t, unix.Munmap(foreign))
	w.Bytes()[0] = 1 // the sender still can
	require.Equal(t, byte(1), r.Bytes()[0])
	require.NoError(t, r.Close())
	require.NoError(t, w.Close())
}

func TestOpenMemfdRefuses(t *testing.T) {
	testenv.CheckLeaks(t)
	fd, err := unix.MemfdCreate("x", unix.MFD_CLOEXEC|unix.MFD_ALLOW_SEALING)
	require.NoError(t, err)
	require.NoError(t, unix.Ftruncate(fd, 4096))
	_, err = OpenMemfd(fd, 4096)
	require.ErrorIs(t, err, ErrNotSealed)

	f, err := os.Create(filepath.Join(t.TempDir(), "f"))
	require.NoError(t, err)
	fd, err = unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	_, err = OpenMemfd(fd, 4096)
	require.ErrorIs(t, err, ErrNotSealed)

	_, err = OpenMemfd(-1, 4096)
	require.ErrorIs(t, err, os.ErrInvalid)
	_, err = Memfd("x", 0)
	require.Error(t, err)
}

func TestRecvFDsBounds(t *testing.T) {
	testenv.CheckLeaks(t)
	a, b := socketPair(t)
	null, err := os.Open("/dev/null")
	require.NoError(t, err)
	defer null.Close()
	fd := int(null.Fd())
	buf := make([]byte, 10)
	for _, c := range []struct{ send, limit int }{{1, 0}, {2, 0}, {2, 1}, {3, 2}, {17, 16}, {253, 16}} {
		fds := make([]int, c.send)
		for i := range fds {
			fds[i] = fd
		}
		require.NoError(t, SendFDs(a, []byte("x"), fds))
		_, got, err := RecvFDs(b, buf, c.limit)
		require.ErrorIs(t, err, ErrTooManyFDs, "%+v", c)
		require.Empty(t, got)
	}
	require.NoError(t, SendFDs(a, []byte("none"), nil))
	n, got, err := RecvFDs(b, buf, 4)
	require.NoError(t, err)
	require.Equal(t, 4, n)
	require.Empty(t, got)
	require.Error(t, SendFDs(a, nil, []int{fd}), "descriptors need a byte to travel with")
	require.Error(t, SendFDs(a, []byte("x"), make([]int, 254)))
	a.Close()
	_, _, err = RecvFDs(b, buf, 4)
	require.ErrorIs(t, err, io.EOF)
}

func TestPeerCred(t *testing.T) {
	testenv.CheckLeaks(t)
	_, b := socketPair(t)
	c, err := PeerCred(b)
	require.NoError(t, err)
	require.Equal(t, Cred{os.Getpid(), os.Getuid(), os.Getgid()}, c)
}

func TestPIDAlive(t *testing.T) {
	testenv.CheckLeaks(t)
	require.True(t, PIDAlive(os.Getpid()))
	require.True(t, PIDAlive(1))
	require.False(t, PIDAlive(0))
	require.False(t, PIDAlive(-1))

	limit, err := os.ReadFile("/proc/sys/kernel/pid_max")
	require.NoError(t, err)
	n, err := strconv.Atoi(strings.TrimSpace(string(limit)))
	require.NoError(t, err)
	require.False(t, PIDAlive(n+1))

	cmd := exec.Command("sleep", "60")
	require.NoError(t, cmd.Start())
	require.True(t, PIDAlive(cmd.Process.Pid))
	require.NoError(t, cmd.Process.Kill())
	require.NoError(t, waitExit(cmd.Process.Pid))
	require.False(t, PIDAlive(cmd.Process.Pid), "ended, not reaped")
	_ = cmd.Wait()
	require.False(t, PIDAlive(cmd.Process.Pid))
}

// waitExit returns when the child has ended and leaves it to be reaped.
func waitExit(pid int) error {
	return retry(func() error { return unix.Waitid(unix.P_PID, pid, nil, unix.WEXITED|unix.WNOWAIT, nil) })
}
