package cudavmm

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

func TestBindNamesTheMissingFunction(t *testing.T) {
	for _, s := range (&api{}).symbols() {
		a := &api{}
		find := func(name string) uintptr {
			for _, n := range s.names {
				if n == name {
					return 0
				}
			}
			return 1
		}
		err := a.bind(find, func(any, uintptr) {})
		var missing *missingError
		require.ErrorAs(t, err, &missing)
		require.Equal(t, s.names[0], missing.name)
		require.Contains(t, err.Error(), s.names[0])
	}
	// An older driver has the older of two names.
	var put int
	a := &api{}
	require.NoError(t, a.bind(func(name string) uintptr {
		if strings.HasSuffix(name, "Uuid_v2") {
			return 0
		}
		return 1
	}, func(any, uintptr) { put++ }))
	require.Equal(t, len(a.symbols()), put)
}

// The table's order of names and fields is what the real loader trusts: each address must land in its own field.
func TestBindFillsEachFieldOnce(t *testing.T) {
	a := &api{}
	seen := map[any]string{}
	addresses := map[string]uintptr{}
	byAddress := map[uintptr]string{}
	require.NoError(t, a.bind(func(name string) uintptr {
		addresses[name] = uintptr(len(addresses) + 1)
		byAddress[addresses[name]] = name
		return addresses[name]
	}, func(field any, address uintptr) {
		if _, twice := seen[field]; twice {
			t.Errorf("%s fills a field that is filled already", byAddress[address])
		}
		seen[field] = byAddress[address]
	}))
	require.Equal(t, "cuMemMap", seen[&a.memMap])
	require.Equal(t, "cuMemUnmap", seen[&a.memUnmap])
	require.Equal(t, "cuMemcpy2DAsync_v2", seen[&a.memcpy2DAsync])
	require.Equal(t, "cuDevicePrimaryCtxRelease_v2", seen[&a.primaryCtxRelease])
}

func TestUnavailable(t *testing.T) {
	for name, c := range map[string]struct {
		prepare func(*fakeDriver)
		text    string
	}{
		"init fails": {func(f *fakeDriver) { f.failAt = 0; f.code = codeNoDevice }, "CUDA_VISIBLE_DEVICES"},
		"no gpu":     {func(f *fakeDriver) { f.gpus = 0 }, "no GPU"},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			c.prepare(f)
			_, err := newDriver(f.api())
			require.ErrorIs(t, err, ErrUnavailable)
			require.ErrorContains(t, err, c.text)
		})
	}
	f := newFake()
	d, err := newDriver(f.api())
	require.NoError(t, err)
	_, err = d.Device(7)
	require.ErrorIs(t, err, ErrUnavailable)
	f.noVMM = true
	_, err = d.Device(0)
	require.ErrorIs(t, err, ErrUnavailable)
	require.Empty(t, f.alive())
}

// Without a driver Open says so and does not crash; with one it works. Either is right here.
func TestOpenHere(t *testing.T) {
	d, err := Open()
	if err != nil {
		require.ErrorIs(t, err, ErrUnavailable)
		t.Log(err)
		return
	}
	all, err := d.Devices()
	require.NoError(t, err)
	require.NotEmpty(t, all)
}

// scenario does with the driver all that the product does, and gives back what it got, also when a step failed.
func scenario(f *fakeDriver) (err error) {
	keep := func(e error) { err = errors.Join(err, e) }
	d, e := newDriver(f.api())
	if e != nil {
		return e
	}
	if _, e := d.Devices(); e != nil {
		return e
	}
	v, e := d.Device(0)
	if e != nil {
		return e
	}
	defer func() { keep(v.Close()); keep(v.Close()) }()
	again, e := d.Device(0)
	if e != nil {
		return e
	}
	keep(again.Close())
	b, e := v.Alloc("frame", 3<<20)
	if e != nil {
		return e
	}
	defer func() { keep(b.Close()); keep(b.Close()) }()
	shared, e := syscall.Open("/dev/zero", syscall.O_RDONLY, 0)
	if e != nil {
		return e
	}
	in, e := v.Import(shared, 3<<20, 2<<20)
	if e != nil {
		return e
	}
	defer func() { keep(in.Close()) }()
	s, e := v.NewStream()
	if e != nil {
		return e
	}
	defer func() { keep(s.Close()); keep(s.Close()) }()
	start, e := v.NewEvent(true)
	if e != nil {
		return e
	}
	defer func() { keep(start.Close()); keep(start.Close()) }()
	dst := Plane{Pointer: b.Pointer(), Pitch: 2048}
	for _, step := range []func() error{
		func() error { return start.Record(s) },
		func() error { return s.Memset2D(dst, 16, 1920, 1080) },
		func() error { return s.Copy2D(Plane{Pointer: in.Pointer(), Pitch: 2048}, dst, 1920, 1080) },
		func() error { return s.Copy2D(Plane{Host: make([]byte, 2048*1080), Pitch: 2048}, dst, 1920, 1080) },
		func() error { return s.Wait(start) },
		s.Synchronize,
		start.Synchronize,
		func() error { _, e := start.Done(); return e },
		func() error { _, e := start.Elapsed(start); return e },
		func() error { _, _, e := v.Free(); return e },
	} {
		if e := step(); e != nil {
			return e
		}
	}
	return nil
}

// Every call fails in turn: the error names it, nothing that was made stays, no file descriptor is left.
func TestEveryCallFailing(t *testing.T) {
	testenv.CheckLeaks(t)
	f := newFake()
	require.NoError(t, scenario(f))
	require.Empty(t, f.alive())
	require.Empty(t, f.misuse)
	calls := f.calls
	require.Greater(t, len(calls), 40)
	for i := range calls {
		for _, code := range []result{999, codeOutOfMemory} {
			f := newFake()
			f.failAt, f.code = i, code
			err := scenario(f)
			require.Greater(t, len(f.calls), i)
			name := f.calls[i] // of this run: how often a stream is asked before it is waited for depends on the time
			require.Empty(t, f.alive(), "call %d (%s) failed: %v", i, name, err)
			require.Empty(t, f.misuse, "call %d (%s) failed: %v", i, name, err)
			switch name {
			case "cuMemRelease", "cuMemUnmap", "cuMemAddressFree", "cuDevicePrimaryCtxRelease", "cuStreamDestroy", "cuEventDestroy":
				continue // the model does not fail what gives back
			}
			var e *Error
			require.ErrorAs(t, err, &e, "call %d (%s)", i, name)
			require.Equal(t, int32(code), e.Code)
			require.True(t, strings.HasPrefix(e.Call, name), "%s is reported as %s", name, e.Call)
		}
	}
}

func TestPrimaryContextBlocks(t *testing.T) {
	f := newFake()
	d, err := newDriver(f.api())
	require.NoError(t, err)
	v, err := d.Device(1)
	require.NoError(t, err)
	require.Equal(t, uint32(ctxSchedBlockingSync), f.ctxFlags)
	require.NoError(t, v.Close())

	// What another part of the process has made active is left as it is.
	f.ctxActive, f.ctxFlags = 1, 1
	v, err = d.Device(1)
	require.NoError(t, err)
	require.Equal(t, uint32(1), f.ctxFlags)
	require.NoError(t, v.Close())
	require.Empty(t, f.alive())
}

// openZero returns a descriptor that is no memfd.
func openZero(t *testing.T) int {
	t.Helper()
	fd, err := syscall.Open("/dev/zero", syscall.O_RDONLY, 0)
	require.NoError(t, err)
	return fd
}

func TestImportFromAnotherGPU(t *testing.T) {
	testenv.CheckLeaks(t)
	f := newFake()
	f.importFrom = 1
	v := openFake(t, f)
	_, err := v.Import(openZero(t), 1<<20, 2<<20)
	require.ErrorIs(t, err, ErrOtherDevice)
	require.ErrorContains(t, err, "GPU-a0000000-")
	require.ErrorContains(t, err, "GPU-a1000000-")
	require.Empty(t, f.misuse)
}

// A peer may claim any size: more than there is, nothing, or what overflows.
func TestImportHostileSizes(t *testing.T) {
	testenv.CheckLeaks(t)
	f := newFake()
	v := openFake(t, f)
	for _, c := range [][2]int{{0, 4096}, {-1, 4096}, {1 << 62, 4096}, {1 << 20, 0}, {1 << 20, 3}, {1 << 20, 1 << 62},
		{1 << 20, -4096}, {5 << 20, 4096}} {
		_, err := v.Import(openZero(t), c[0], c[1])
		require.Error(t, err, "size %d, granularity %d", c[0], c[1])
	}
	require.Empty(t, f.misuse)
	require.Empty(t, f.live["allocation"])
}

func TestSynchronizeAsksThenBlocks(t *testing.T) {
	for name, c := range map[string]struct{ notReady, blocking int }{"short work": {3, 0}, "long work": {1 << 30, 1}} {
		t.Run(name, func(t *testing.T) {
			f := newFake()
			v := openFake(t, f)
			s, err := v.NewStream()
			require.NoError(t, err)
			f.query = c.notReady
			require.NoError(t, s.Synchronize())
			require.Equal(t, c.blocking, strings.Count(fmt.Sprint(f.calls), "cuStreamSynchronize"))
			f.query = 0
			require.NoError(t, s.Close())
			require.ErrorIs(t, s.Synchronize(), ErrClosed)
		})
	}
}

func TestCopyChecksItsBounds(t *testing.T) {
	f := newFake()
	v := openFake(t, f)
	s, err := v.NewStream()
	require.NoError(t, err)
	defer s.Close()
	gpu := Plane{Pointer: 1 << 40, Pitch: 2048}
	require.Error(t, s.Copy2D(gpu, gpu, 2049, 1))
	require.Error(t, s.Copy2D(gpu, gpu, 0, 1))
	require.Error(t, s.Copy2D(Plane{Host: make([]byte, 2048*9+1919), Pitch: 2048}, gpu, 1920, 10))
	require.NoError(t, s.Copy2D(Plane{Host: make([]byte, 2048*9+1920), Pitch: 2048}, gpu, 1920, 10))
}
