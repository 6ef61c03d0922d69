package shm

import (
	"encoding/binary"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

func TestEventFD(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 20*time.Second)
	fd, err := NewEventFD()
	require.NoError(t, err)
	defer unix.Close(fd)
	other, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	require.NoError(t, err)
	f, err := EventFDReader(other)
	require.NoError(t, err)
	defer f.Close()
	require.Zero(t, testing.AllocsPerRun(10, func() { _ = RingEventFD(fd) }))
	var b [8]byte
	_, err = f.Read(b[:])
	require.NoError(t, err)
	require.EqualValues(t, 11, binary.LittleEndian.Uint64(b[:]))
	go func() { _ = RingEventFD(fd) }()
	_, err = f.Read(b[:]) // blocks until the ring
	require.NoError(t, err)
	require.EqualValues(t, 1, b[0])

	// A counter that is full neither blocks nor fails.
	binary.LittleEndian.PutUint64(b[:], ^uint64(0)-1)
	_, err = unix.Write(fd, b[:])
	require.NoError(t, err)
	require.NoError(t, RingEventFD(fd))

	ended := make(chan error)
	_, err = f.Read(b[:])
	require.NoError(t, err)
	go func() { _, err := f.Read(b[:]); ended <- err }()
	require.NoError(t, f.Close())
	require.ErrorIs(t, <-ended, os.ErrClosed)
}

func TestEventFDReaderRefuses(t *testing.T) {
	testenv.CheckLeaks(t)
	for _, open := range []func() (int, error){
		func() (int, error) { return unix.Open("/dev/zero", unix.O_RDONLY|unix.O_CLOEXEC, 0) },
		func() (int, error) { return unix.MemfdCreate("x", unix.MFD_CLOEXEC) },
		func() (int, error) { return 1 << 20, nil },
	} {
		fd, err := open()
		require.NoError(t, err)
		_, err = EventFDReader(fd)
		require.Error(t, err)
	}
}
