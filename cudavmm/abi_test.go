package cudavmm

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// What is told of a driver that is not there names it, whichever threads the goroutine ran on.
func TestNoDriverIsNamed(t *testing.T) {
	for range 100 {
		_, err := load([]string{"/nowhere/libcuda.so.1", "/nowhere/else"})
		require.ErrorContains(t, err, "no NVIDIA driver: /nowhere/libcuda.so.1")
	}
}

// The loader, the symbol table and the calls, against a library in C with the driver's prototypes.
func TestCallsCrossIntoC(t *testing.T) {
	lib := filepath.Join(testenv.StandInCUDA(t), "libcuda.so.1")
	a, err := load([]string{"/nowhere/libcuda.so.1", lib})
	require.NoError(t, err)
	testenv.CheckLeaks(t)
	d, err := newDriver(a)
	require.NoError(t, err)
	version, err := d.Version()
	require.NoError(t, err)
	require.Equal(t, 12080, version)
	all, err := d.Devices()
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, "Stand-in 0", all[0].Name)
	require.Equal(t, "GPU-abababab-abab-abab-abab-abababababab", all[0].UUID.String())
	require.Equal(t, 9, all[0].ComputeMajor)
	v, err := d.Device(0)
	require.NoError(t, err)
	defer v.Close()
	free, total, err := v.Free()
	require.NoError(t, err)
	require.Equal(t, [2]uint64{1 << 30, 2 << 30}, [2]uint64{free, total})

	b, err := v.Alloc("frame", 3_317_760)
	require.NoError(t, err)
	require.Equal(t, 4<<20, b.Size())
	in, err := v.Import(dup(t, b.FD()), 3_317_760, v.Granularity())
	require.NoError(t, err)
	require.NotEqual(t, b.Pointer(), in.Pointer())
	s, err := v.NewStream()
	require.NoError(t, err)
	require.NoError(t, s.Memset2D(Plane{Pointer: b.Pointer(), Pitch: 2048}, 0x5A, 1920, 1080))
	host := make([]byte, 1920*1080)
	require.NoError(t, s.Copy2D(Plane{Host: host, Pitch: 1920}, Plane{Pointer: in.Pointer(), Pitch: 2048}, 1920, 1080))
	require.NoError(t, s.Synchronize())
	for i, x := range host {
		if x != 0x5A {
			t.Fatalf("byte %d is %#x", i, x)
		}
	}
	e, err := v.NewEvent(true)
	require.NoError(t, err)
	allocs := testing.AllocsPerRun(100, func() {
		if s.Copy2D(Plane{Pointer: b.Pointer(), Pitch: 2048}, Plane{Pointer: in.Pointer(), Pitch: 2048}, 1920, 10) != nil || e.Record(s) != nil || s.Wait(e) != nil || s.Synchronize() != nil {
			t.Fatal("copy")
		}
	})
	require.LessOrEqual(t, allocs, allocsPerCall*8, "of a copy, an event, and a context made current for each")
	require.NoError(t, e.Record(s))
	require.NoError(t, s.Wait(e))
	require.NoError(t, e.Synchronize())
	took, err := e.Elapsed(e)
	require.NoError(t, err)
	require.Equal(t, 1500*time.Microsecond, took)
	_, err = v.Import(openZero(t), 4096, 4096)
	require.ErrorIs(t, err, ErrWrongKind)
	_, err = v.Import(dup(t, b.FD()), 5<<20, v.Granularity())
	var failed *Error
	require.ErrorAs(t, err, &failed)
	require.Equal(t, "cuMemMap", failed.Call)
	require.Equal(t, "CUDA_ERROR_OTHER", failed.Name)
	// IPC handles go by value: all of their 64 bytes, and the flags behind them.
	m, handle, err := v.AllocIPC(3_317_760)
	require.NoError(t, err)
	var opened uint64
	require.NoError(t, v.do("cuIpcOpenMemHandle", func() result { return a.ipcOpenMem(&opened, &handle, ipcLazyPeerAccess) }))
	require.NotEqual(t, m.Pointer(), uintptr(opened))
	require.NoError(t, s.Memset2D(Plane{Pointer: m.Pointer(), Pitch: 2048}, 0xC3, 1920, 1080))
	require.NoError(t, s.Copy2D(Plane{Host: host, Pitch: 1920}, Plane{Pointer: uintptr(opened), Pitch: 2048}, 1920, 1080))
	require.NoError(t, s.Synchronize())
	require.Equal(t, byte(0xC3), host[1920*1080-1])
	base, n, err := v.allocation(opened + 5)
	require.NoError(t, err)
	require.Equal(t, [2]uint64{opened, 4 << 20}, [2]uint64{base, n})
	require.EqualValues(t, 1, a.ipcOpenMem(&opened, &[64]byte{}, ipcLazyPeerAccess))
	require.NoError(t, v.do("cuIpcCloseMemHandle", func() result { return a.ipcCloseMem(opened) }))
	require.NoError(t, m.Close())
	ie, err := v.NewIPCEvent()
	require.NoError(t, err)
	require.NoError(t, ie.Record(0))
	require.NoError(t, ie.WaitOn(s.Handle()))
	var event uintptr
	eventHandle := ie.Handle()
	require.NoError(t, v.do("cuIpcOpenEventHandle", func() result { return a.ipcOpenEvent(&event, &eventHandle) }))
	require.NoError(t, v.do("cuEventDestroy", func() result { return a.eventDestroy(event) }))
	require.NoError(t, ie.Close())

	require.NoError(t, e.Close())
	require.NoError(t, s.Close())
	require.NoError(t, in.Close())
	require.NoError(t, b.Close())
}
