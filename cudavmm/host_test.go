package cudavmm

import (
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

func dup(t *testing.T, fd int) int {
	t.Helper()
	n, err := syscall.Dup(fd)
	require.NoError(t, err)
	syscall.CloseOnExec(n)
	return n
}

func TestHostMemoryIsShared(t *testing.T) {
	testenv.CheckLeaks(t)
	b, err := Host{}.Alloc("cuframes-test-frame", 3_317_760)
	require.NoError(t, err)
	defer b.Close()
	require.Equal(t, 0, b.Size()%os.Getpagesize())
	r := NewReceiver(0)
	defer r.Close()
	in, err := r.Import(dup(t, b.FD()), 3_317_760, Host{}.Granularity())
	require.NoError(t, err)
	require.Equal(t, -1, in.FD())
	b.Bytes()[3_317_759] = 0x5A
	require.Equal(t, byte(0x5A), in.Bytes()[3_317_759])

	// The other side stays whole when this one goes.
	require.NoError(t, b.Close())
	require.NoError(t, b.Close())
	require.Equal(t, byte(0x5A), in.Bytes()[3_317_759])
	require.NoError(t, in.Close())
	require.Nil(t, in.Bytes())
}

// What a hostile publisher may send in place of frame memory.
func TestHostImportRefuses(t *testing.T) {
	testenv.CheckLeaks(t)
	b, err := Host{}.Alloc("cuframes-test-frame", 8192)
	require.NoError(t, err)
	defer b.Close()

	_, err = Host{}.Import(openZero(t), 4096, 4096)
	require.ErrorIs(t, err, ErrWrongKind)
	_, err = Host{}.Import(dup(t, b.FD()), 8193, 4096)
	require.ErrorIs(t, err, ErrTooSmall)
	for _, c := range [][2]int{{0, 4096}, {-1, 4096}, {1 << 62, 4096}, {4096, 0}, {4096, 3}, {4096, -1}} {
		_, err = Host{}.Import(dup(t, b.FD()), c[0], c[1])
		require.Error(t, err, "%v", c)
	}
	plain, err := os.Create(t.TempDir() + "/plain")
	require.NoError(t, err)
	defer plain.Close()
	require.NoError(t, plain.Truncate(8192))
	_, err = Host{}.Import(dup(t, int(plain.Fd())), 4096, 4096)
	require.Error(t, err)
	_, err = Host{}.Import(-1, 4096, 4096)
	require.Error(t, err)

	// Sealed memory cannot be cut under a reader.
	require.Error(t, syscall.Ftruncate(b.FD(), 4096))
	require.Error(t, syscall.Ftruncate(b.FD(), 16384))
}

// GPU memory without a driver is an error that says so, and the descriptor is closed.
func TestReceiverWithoutDriver(t *testing.T) {
	if _, err := Open(); err == nil {
		t.Skip("there is a driver here")
	}
	testenv.CheckLeaks(t)
	r := NewReceiver(0)
	_, err := r.Import(openZero(t), 4096, 4096)
	require.ErrorIs(t, err, ErrUnavailable)
	require.NoError(t, r.Close())
}
