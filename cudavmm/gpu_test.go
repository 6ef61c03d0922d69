package cudavmm

import (
	"bytes"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// gpu returns the first GPU, or skips: these tests need one. scripts/gpu-test sets CFPIPE_GPU, which makes its absence a failure.
func gpu(t testing.TB) *Device {
	t.Helper()
	v, err := OpenDevice(0)
	if err != nil {
		if os.Getenv("CFPIPE_GPU") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	t.Cleanup(func() { require.NoError(t, v.Close()) })
	return v
}

func TestGPUDevice(t *testing.T) {
	v := gpu(t)
	version, err := v.driver.Version()
	require.NoError(t, err)
	free, total, err := v.Free()
	require.NoError(t, err)
	t.Logf("%+v, UUID %s, driver for CUDA %d, granularity %d, %d of %d MiB free", v.Info(), v.Info().UUID, version, v.Granularity(), free>>20, total>>20)
}

// Memory written through one mapping is read through an imported one, and all of it comes back, also after errors.
func TestGPUMemoryIsSharedAndFreed(t *testing.T) {
	v := gpu(t)
	s, err := v.NewStream()
	require.NoError(t, err)
	defer s.Close()
	const size = 3_317_760
	round := func(value byte) {
		b, err := v.Alloc("cuframes-test", size)
		require.NoError(t, err)
		in, err := v.Import(dup(t, b.FD()), size, v.Granularity())
		require.NoError(t, err)
		require.NoError(t, s.Memset2D(Plane{Pointer: b.Pointer(), Pitch: 2048}, value, 2048, 1620))
		host := make([]byte, size)
		require.NoError(t, s.Copy2D(Plane{Host: host, Pitch: 2048}, Plane{Pointer: in.Pointer(), Pitch: 2048}, 2048, 1620))
		require.NoError(t, s.Synchronize())
		require.Equal(t, bytes.Repeat([]byte{value}, size), host)
		require.NoError(t, b.Close())
		require.NoError(t, in.Close())
	}
	round(1)
	testenv.CheckLeaks(t)
	before, _, err := v.Free()
	require.NoError(t, err)
	for i := range 200 {
		round(byte(i))
		_, err := v.Import(openZero(t), size, v.Granularity())
		require.Error(t, err)
		h, err := Host{}.Alloc("cuframes-test", size)
		require.NoError(t, err)
		_, err = v.Import(dup(t, h.FD()), size, v.Granularity())
		require.ErrorIs(t, err, ErrWrongKind)
		require.NoError(t, h.Close())
		b, err := v.Alloc("cuframes-test", size)
		require.NoError(t, err)
		_, err = v.Import(dup(t, b.FD()), 16<<20, v.Granularity()) // a peer that claims more than there is
		require.Error(t, err)
		require.NoError(t, b.Close())
	}
	after, _, err := v.Free()
	require.NoError(t, err)
	require.Equal(t, before, after, "GPU memory that has not come back")
	_, err = v.Alloc("cuframes-test", maxBuffer)
	if err != nil {
		require.True(t, IsOutOfMemory(err), err)
	}
}

func TestGPUEvents(t *testing.T) {
	v := gpu(t)
	s, err := v.NewStream()
	require.NoError(t, err)
	defer s.Close()
	a, err := v.NewEvent(true)
	require.NoError(t, err)
	defer a.Close()
	b, err := v.NewEvent(true)
	require.NoError(t, err)
	defer b.Close()
	m, err := v.Alloc("cuframes-test", 64<<20)
	require.NoError(t, err)
	defer m.Close()
	require.NoError(t, a.Record(s))
	require.NoError(t, s.Memset2D(Plane{Pointer: m.Pointer(), Pitch: 1 << 20}, 7, 1<<20, 64))
	require.NoError(t, b.Record(s))
	require.NoError(t, s.Wait(a))
	require.NoError(t, b.Synchronize())
	done, err := b.Done()
	require.NoError(t, err)
	require.True(t, done)
	d, err := b.Elapsed(a)
	require.NoError(t, err)
	require.Positive(t, d)
	t.Logf("64 MiB set in %v", d)
}

// What this package adds to the bare driver calls of publishing one 1080p NV12 picture: two copies and the wait.
func TestGPUCopyCost(t *testing.T) {
	v := gpu(t)
	s, err := v.NewStream()
	require.NoError(t, err)
	defer s.Close()
	from, err := v.Alloc("cuframes-test", 3_317_760)
	require.NoError(t, err)
	defer from.Close()
	to, err := v.Alloc("cuframes-test", 3_317_760)
	require.NoError(t, err)
	defer to.Close()
	const y, h = 2048, 1080
	planes := [][2]Plane{
		{{Pointer: to.Pointer(), Pitch: y}, {Pointer: from.Pointer(), Pitch: y}},
		{{Pointer: to.Pointer() + y*h, Pitch: y}, {Pointer: from.Pointer() + y*h, Pitch: y}},
	}
	ours := func() {
		require.NoError(t, s.Copy2D(planes[0][0], planes[0][1], 1920, h))
		require.NoError(t, s.Copy2D(planes[1][0], planes[1][1], 1920, h/2))
		require.NoError(t, s.Synchronize())
	}
	calls := func(wait func(uintptr) result) func() {
		var c [2]copy2D
		for i, p := range planes {
			c[i] = copy2D{
				srcType: memoryTypeDevice, srcDevice: uint64(p[1].Pointer), srcPitch: y, dstType: memoryTypeDevice, dstDevice: uint64(p[0].Pointer),
				dstPitch: y, width: 1920, height: uint64(h >> i),
			}
		}
		return func() {
			for i := range c {
				if r := v.driver.api.memcpy2DAsync(&c[i], s.stream); r != 0 {
					t.Fatal(r)
				}
			}
			if r := wait(s.stream); r != 0 {
				t.Fatal(r)
			}
		}
	}
	a := v.driver.api
	blocking := calls(a.streamSynchronize)
	spinning := calls(func(stream uintptr) (r result) {
		for r = a.streamQuery(stream); r == codeNotReady; r = a.streamQuery(stream) {
		}
		return r
	})
	var times [3][]time.Duration
	require.NoError(t, v.With(func() {
		for i := range 3000 { // in turn, so that all see the same machine
			for k, f := range []func(){ours, blocking, spinning} {
				start := time.Now()
				f()
				if i >= 300 {
					times[k] = append(times[k], time.Since(start))
				}
			}
		}
	}))
	p50 := func(k int) time.Duration { slices.Sort(times[k]); return times[k][len(times[k])/2] }
	t.Logf("FIGURE copy 1080p NV12 + wait, p50: ours %v, bare calls blocking %v, bare calls spinning %v; ours/blocking %.2f, ours/spinning %.2f",
		p50(0), p50(1), p50(2), float64(p50(0))/float64(p50(1)), float64(p50(0))/float64(p50(2)))
}
