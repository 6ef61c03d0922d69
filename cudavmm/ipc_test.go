package cudavmm

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// openFake opens the model's first GPU, and says after the test what was not given back.
func openFake(t *testing.T, f *fakeDriver) *Device {
	t.Helper()
	d, err := newDriver(f.api())
	require.NoError(t, err)
	v, err := d.Device(0)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, v.Close())
		require.Empty(t, f.alive())
		require.Empty(t, f.misuse)
		require.Empty(t, ipcRegistry.mem)
		require.Empty(t, ipcEvents.made)
	})
	return v
}

func count(f *fakeDriver, call string) (n int) {
	for _, c := range f.calls {
		if c == call {
			n++
		}
	}
	return n
}

// A handle is opened once, however many readers the process has, and closed with the last of them.
func TestIPCHandleIsOpenedOnce(t *testing.T) {
	f := newFake()
	v := openFake(t, f)
	handle := [64]byte{1, 2, 3}
	a, err := v.OpenIPC(handle, 3_317_760)
	require.NoError(t, err)
	b, err := v.OpenIPC(handle, 4<<20)
	require.NoError(t, err)
	require.Equal(t, a.Pointer(), b.Pointer())
	require.Equal(t, 1, count(f, "cuIpcOpenMemHandle"))
	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	require.Zero(t, count(f, "cuIpcCloseMemHandle"))
	_, err = v.OpenIPC(handle, 5<<20)
	require.ErrorIs(t, err, ErrTooSmall)
	require.NoError(t, b.Close())
	require.Equal(t, 1, count(f, "cuIpcCloseMemHandle"))
	_, err = v.OpenIPC(handle, 5<<20) // the peer claims more than there is
	require.ErrorIs(t, err, ErrTooSmall)
	require.Equal(t, 2, count(f, "cuIpcCloseMemHandle"))
	c, err := v.OpenIPC(handle, 4<<20)
	require.NoError(t, err)
	require.NoError(t, c.Close())
}

// In the process that made it a handle is the memory itself, which lives until the last reader is gone.
func TestIPCWithinAProcess(t *testing.T) {
	f := newFake()
	v := openFake(t, f)
	m, handle, err := v.AllocIPC(3_317_760)
	require.NoError(t, err)
	require.Equal(t, 4<<20, m.Size())
	in, err := v.OpenIPC(handle, 3_317_760)
	require.NoError(t, err)
	require.Equal(t, m.Pointer(), in.Pointer())
	require.NoError(t, m.Close())
	require.Zero(t, count(f, "cuMemFree"))
	require.NoError(t, in.Close())
	require.Equal(t, 1, count(f, "cuMemFree"))
	require.Zero(t, count(f, "cuIpcOpenMemHandle"))

	e, err := v.NewIPCEvent()
	require.NoError(t, err)
	r, err := v.OpenIPCEvent(e.Handle())
	require.NoError(t, err)
	require.NoError(t, e.Record(0))
	require.NoError(t, r.WaitOn(7))
	require.NoError(t, e.Close())
	n := count(f, "cuStreamWaitEvent")
	require.NoError(t, r.WaitOn(7))
	require.Equal(t, n, count(f, "cuStreamWaitEvent"), "the event is gone")
	require.NoError(t, r.Close())
	require.Zero(t, count(f, "cuIpcOpenEventHandle"))
}

// The caller's memory: from its beginning, as long as said, shared again while it is shared, and never freed.
func TestIPCExternal(t *testing.T) {
	f := newFake()
	v := openFake(t, f)
	mine, err := v.AllocLocal(4 << 20)
	require.NoError(t, err)
	p := mine.Pointer()
	_, _, err = v.ShareIPC(p+16, 1000)
	require.ErrorIs(t, err, ErrTooSmall)
	_, _, err = v.ShareIPC(p, 5<<20)
	require.ErrorIs(t, err, ErrTooSmall)
	a, ha, err := v.ShareIPC(p, 3_317_760)
	require.NoError(t, err)
	b, hb, err := v.ShareIPC(p, 3_317_760) // the next generation
	require.NoError(t, err)
	require.Equal(t, ha, hb)
	require.Equal(t, 1, IPCHandles())
	require.NoError(t, a.Close())
	require.NoError(t, b.Close())
	require.Zero(t, count(f, "cuMemFree"))
	require.Zero(t, IPCHandles())
	require.NoError(t, mine.Close())
	require.NoError(t, mine.Close())
}

// Whatever call fails: the error names it, and nothing is left.
func TestIPCErrorsGiveBack(t *testing.T) {
	steps := func(v *Device) error {
		m, _, err := v.AllocIPC(1000)
		if err != nil {
			return err
		}
		defer m.Close()
		e, err := v.NewIPCEvent()
		if err != nil {
			return err
		}
		defer e.Close()
		in, err := v.OpenIPC([64]byte{9}, 1000)
		if err != nil {
			return err
		}
		defer in.Close()
		oe, err := v.OpenIPCEvent([64]byte{9})
		if err != nil {
			return err
		}
		defer oe.Close()
		if err := e.Record(0); err != nil {
			return err
		}
		return oe.WaitOn(5)
	}
	f := newFake()
	v := openFake(t, f)
	first := len(f.calls)
	require.NoError(t, steps(v))
	total := len(f.calls)
	failed := map[string]bool{}
	for at := first; at < total; at++ {
		f := newFake()
		v := openFake(t, f)
		f.failAt = at
		err := steps(v)
		var e *Error
		if err != nil {
			require.ErrorAs(t, err, &e)
			failed[e.Call] = true
		}
	}
	for _, call := range []string{
		"cuMemAlloc", "cuIpcGetMemHandle", "cuStreamCreate", "cuEventCreate", "cuIpcGetEventHandle", "cuIpcOpenMemHandle",
		"cuIpcOpenEventHandle", "cuEventRecord", "cuStreamWaitEvent",
	} {
		require.True(t, failed[call], call)
	}
	f = newFake()
	v = openFake(t, f)
	f.failAt = len(f.calls)
	_, err := v.OpenIPC([64]byte{9}, 1000)
	require.ErrorIs(t, err, ErrIPC)
	require.ErrorContains(t, err, "PID namespace")
}
