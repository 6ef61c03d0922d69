package pipeline

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/cudavmm"
	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// gpuFrames is how many frames TestGPUProcesses publishes.
var gpuFrames = func() int {
	if n, err := strconv.Atoi(os.Getenv("CFPIPE_GPU_FRAMES")); err == nil {
		return n
	}
	return 2000
}()

// The tests of frames between processes, where there is no GPU: with a stand-in for the driver whose memory is files.
func TestFramesBetweenProcesses(t *testing.T) {
	testenv.Watchdog(t, 120*time.Second)
	lib := testenv.StandInCUDA(t)
	out, err := exec.Command("cc", "-shared", "-fPIC", "-O2", "-o", lib+"/libcudart.so", "testdata/libcudart.c", lib+"/libcuda.so.1").CombinedOutput()
	require.NoError(t, err, string(out))
	cmd := exec.Command(os.Args[0], "-test.run", "^TestGPU(Processes|Restarts|Snapshot|SnapshotProcess|Legacy|LegacyPython|LegacyKilled|Bridge)$", "-test.v")
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+lib, "CFPIPE_GPU="+lib, "CFPIPE_GPU_FRAMES=300")
	p := testenv.StartCmd(t, cmd)
	require.NoError(t, p.WaitFor(t, 110*time.Second), p.Stdout())
	require.Contains(t, p.Stdout(), "RESULT strict-wait strict: 300 whole, 0 overwritten and reported, 0 torn, 0 gaps, 0 lost")
	require.Contains(t, p.Stdout(), "RESULT 20 restarts followed")
	require.Contains(t, p.Stdout(), "RESULT snapshot from GPU memory")
	for _, what := range []string{
		"protocol 4, handed out by the publisher", "protocol 4, by starting CUDA", "protocol 2, handed out by the publisher", "protocol 2, by starting CUDA",
	} {
		require.Contains(t, p.Stdout(), "RESULT snapshot of "+what)
	}
	for _, what := range []string{"protocol 1 library", "protocol 1 external", "protocol 2 library", "protocol 2 external"} {
		require.Contains(t, p.Stdout(), "RESULT "+what+": 0 torn, 0 handles left")
	}
	require.Contains(t, p.Stdout(), "RESULT CUDA runtime API in Python: 300 frames right")
	require.Contains(t, p.Stdout(), "RESULT protocol 2: 5 kills followed")
	require.Contains(t, p.Stdout(), "RESULT bridge 2 → 4 → 2")
}

// A role makes this test binary a process of a GPU test.
const gpuRole = "CFPIPE_GPU_ROLE"

func init() {
	role := os.Getenv(gpuRole)
	if role == "" {
		return
	}
	if err := gpuProcess(role, os.Getenv("DIR"), os.Getenv("KEY")); err != nil {
		fmt.Fprintln(os.Stderr, role, err)
		os.Exit(1)
	}
	os.Exit(0)
}

type gpuReport struct {
	Read, Torn, Overruns, Gaps, Lost uint64
	Handles                          int // CUDA IPC handles left at the end
	P50, P99, Max                    time.Duration
	CPU                              time.Duration
}

func gpuProcess(role, dir, key string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	defer cancel()
	switch kind, _, _ := strings.Cut(role, " "); kind {
	case "publish": // frames of a changing number until killed
		return gpuPublish(dir, key, 4)
	case "publish-2":
		return gpuPublish(dir, key, 2)
	case "bridge-2", "bridge-4":
		return gpuBridge(ctx, kind, dir, key)
	case "read", "slow", "strict":
		return gpuRead(ctx, kind, dir, key)
	case "latency", "latency-direct", "latency-busy":
		return gpuLatency(ctx, kind, dir, key)
	}
	return fmt.Errorf("unknown role")
}

// gpuPaint fills a slot of 1080p NV12 with a number: its low byte in the luma plane, the next one in the chroma plane.
func gpuPaint(s *cudavmm.Stream, b cudavmm.Buffer, n uint64) error {
	if err := s.Memset2D(cudavmm.Plane{Pointer: b.Pointer(), Pitch: 2048}, byte(n), 2048, 1080); err != nil {
		return err
	}
	if err := s.Memset2D(cudavmm.Plane{Pointer: b.Pointer() + 2048*1080, Pitch: 2048}, byte(n>>8), 2048, 540); err != nil {
		return err
	}
	return s.Synchronize()
}

func gpuPublish(dir, key string, protocol uint32) error {
	v, err := cudavmm.OpenDevice(0)
	if err != nil {
		return err
	}
	s, err := v.NewStream()
	if err != nil {
		return err
	}
	p, err := framering.NewPublisher(framering.PublisherOptions{RuntimeDir: dir, Key: key, Protocol: protocol})
	if err != nil {
		return err
	}
	w, err := p.StartFrames(framering.FrameOptions{Meta: framering.NV12Meta(1920, 1080), Memory: v})
	if err != nil {
		return err
	}
	if err := p.Serve(); err != nil {
		return err
	}
	if serveStills(p, v, slog.Default()) == nil {
		return errors.New("no snapshot socket")
	}
	fmt.Println("ready")
	for {
		slot, err := w.Acquire(context.Background())
		if err != nil {
			return err
		}
		if err := gpuPaint(s, slot.Buffer, slot.Seq); err != nil {
			return err
		}
		if _, err := w.Publish(time.Now().UnixNano()); err != nil {
			return err
		}
		time.Sleep(2 * time.Millisecond)
	}
}

// gpuRead checks frames until the publisher ends.
func gpuRead(ctx context.Context, kind, dir, key string) error {
	mode := framering.NewestOnly
	if kind == "strict" {
		mode = framering.StrictOrder
	}
	s, err := SubscribeFrames(ctx, FrameSubscribeOptions{RuntimeDir: dir, Key: key, Mode: mode, NoFollow: true, WaitForKey: 30 * time.Second})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	c := frameCopier{device: s.Device}
	if err := c.use(s.Meta()); err != nil {
		return err
	}
	var r gpuReport
	var last uint64
	b := make([]byte, c.size)
	for {
		f, err := s.Next(ctx)
		if errors.Is(err, ErrEnded) {
			break
		}
		if err != nil {
			return err
		}
		if kind == "slow" {
			time.Sleep(12 * time.Millisecond) // the lease is held while the publisher goes round the ring
		}
		err = errors.Join(c.copy(b, f), f.Release())
		whole := bytes.Count(b[:1920*1080], []byte{byte(f.Seq)}) == 1920*1080 && bytes.Count(b[1920*1080:], []byte{byte(f.Seq >> 8)}) == 1920*540
		switch {
		case errors.Is(err, framering.ErrFrameOverrun):
			r.Overruns++
		case err != nil:
			return err
		case !whole:
			r.Torn++
		default:
			r.Read++
		}
		if mode == framering.StrictOrder && f.Seq != last+1 && last != 0 {
			r.Gaps++
		}
		last, r.Lost = f.Seq, r.Lost+f.Lost
	}
	if err := errors.Join(c.close(), s.Close()); err != nil {
		return err
	}
	r.Handles = cudavmm.IPCHandles()
	return json.NewEncoder(os.Stdout).Encode(r)
}

// gpuLatency measures from the call of Publish in the other process to the return of Next, and of a copy on the GPU behind it.
func gpuLatency(ctx context.Context, kind, dir, key string) error {
	wait := map[string]framering.Wait{"latency": framering.WaitShared, "latency-direct": framering.WaitDirect, "latency-busy": framering.WaitBusy}[kind]
	s, err := SubscribeFrames(ctx, FrameSubscribeOptions{RuntimeDir: dir, Key: key, Mode: framering.NewestOnly, NoFollow: true, Wait: wait, WaitForKey: 30 * time.Second})
	if err != nil {
		return err
	}
	fmt.Println("ready")
	var times []time.Duration
	for {
		f, err := s.Next(ctx)
		if errors.Is(err, ErrEnded) {
			break
		}
		if err != nil {
			return err
		}
		times = append(times, time.Duration(time.Now().UnixNano()-f.PTS))
		if err := f.Release(); err != nil && !errors.Is(err, framering.ErrFrameOverrun) {
			return err
		}
	}
	if err := s.Close(); err != nil {
		return err
	}
	var r gpuReport
	if times = times[min(len(times), 50):]; len(times) > 0 {
		slices.Sort(times)
		r = gpuReport{Read: uint64(len(times)), P50: times[len(times)/2], P99: times[len(times)*99/100], Max: times[len(times)-1]}
	}
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	r.CPU = time.Duration(u.Utime.Nano() + u.Stime.Nano())
	return json.NewEncoder(os.Stdout).Encode(r)
}

// gpuChild starts a role and waits until it is ready; result reads what it reports at its end.
func gpuChild(t testing.TB, role, dir, key string) (p *testenv.Process, result func() gpuReport) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), gpuRole+"="+role, "DIR="+dir, "KEY="+key)
	p, lines := testenv.StartPiped(t, cmd)
	line, err := lines.ReadString('\n')
	require.NoError(t, err, p.Stderr())
	require.Equal(t, "ready\n", line)
	return p, func() (r gpuReport) {
		b, err := io.ReadAll(lines)
		require.NoError(t, err)
		require.NoError(t, json.Unmarshal(b, &r), "%s %s", b, p.Stderr())
		require.NoError(t, p.WaitFor(t, 20*time.Second))
		return r
	}
}

func gpuWriter(t testing.TB, v *cudavmm.Device, dir, key string, policy framering.Policy) (
	*framering.Publisher, *framering.FrameWriter, *cudavmm.Stream) {
	t.Helper()
	return gpuServe(t, v, framering.PublisherOptions{RuntimeDir: dir, Key: key}, gpuFrameOptions(v, policy))
}

func gpuFrameOptions(v *cudavmm.Device, policy framering.Policy) framering.FrameOptions {
	return framering.FrameOptions{Meta: framering.NV12Meta(1920, 1080), Memory: v, Policy: policy, AckTimeout: 20 * time.Second}
}

// gpuServe runs a publisher of frames until the test ends, and makes a stream to write them on.
func gpuServe(t testing.TB, v *cudavmm.Device, o framering.PublisherOptions, frames framering.FrameOptions) (
	*framering.Publisher, *framering.FrameWriter, *cudavmm.Stream) {
	t.Helper()
	p, err := framering.NewPublisher(o)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close(framering.ReasonNormal)) })
	w, err := p.StartFrames(frames)
	require.NoError(t, err)
	require.NoError(t, p.Serve())
	s, err := v.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return p, w, s
}

// One publisher and four subscriber processes, two of them slow: nothing torn is accepted, every overwrite is reported, and under
// STRICT_WAIT there is no gap.
func TestGPUProcesses(t *testing.T) {
	v := gpu(t)
	for _, policy := range []framering.Policy{framering.DropOldest, framering.StrictWait} {
		t.Run(policy.String(), func(t *testing.T) {
			dir, key := place(t)
			p, w, s := gpuWriter(t, v, dir, key, policy)
			roles := []string{"read", "read", "slow", "slow"}
			if policy == framering.StrictWait {
				roles = []string{"strict", "strict", "strict", "strict"}
			}
			var results []func() gpuReport
			for _, role := range roles {
				_, r := gpuChild(t, role, dir, key)
				results = append(results, r)
			}
			begun := time.Now()
			for range gpuFrames {
				slot, err := w.Acquire(t.Context())
				require.NoError(t, err)
				require.NoError(t, gpuPaint(s, slot.Buffer, slot.Seq))
				_, err = w.Publish(time.Now().UnixNano())
				require.NoError(t, err)
				if policy == framering.DropOldest {
					time.Sleep(2 * time.Millisecond)
				}
			}
			took := time.Since(begun)
			require.NoError(t, p.Close(framering.ReasonNormal))
			var overruns uint64
			for i, result := range results {
				r := result()
				t.Logf("RESULT %s %s: %d whole, %d overwritten and reported, %d torn, %d gaps, %d lost; %d frames in %v", policy, roles[i], r.Read, r.Overruns, r.Torn, r.Gaps, r.Lost, gpuFrames, took)
				require.Zero(t, r.Torn)
				overruns += r.Overruns
				if policy == framering.StrictWait {
					require.Equal(t, uint64(gpuFrames), r.Read)
					require.Zero(t, r.Gaps+r.Lost+r.Overruns)
				}
			}
			if policy == framering.DropOldest {
				require.NotZero(t, overruns, "the slow readers must have been overtaken")
			}
		})
	}
}

// A publisher is killed and started again 20 times; a subscriber follows, and the GPU's memory comes back.
func TestGPURestarts(t *testing.T) {
	v := gpu(t)
	dir, key := place(t)
	ctx, cancel := context.WithTimeout(t.Context(), 120*time.Second)
	defer cancel()
	var s *FrameSubscription
	c := frameCopier{device: func() (*cudavmm.Device, error) { return v, nil }}
	require.NoError(t, c.use(framering.NV12Meta(1920, 1080)))
	b := make([]byte, c.size)
	read := func() {
		for {
			f, err := s.Next(ctx)
			require.NoError(t, err)
			err = errors.Join(c.copy(b, f), f.Release())
			if errors.Is(err, framering.ErrFrameOverrun) {
				continue
			}
			require.NoError(t, err)
			require.Equal(t, byte(f.Seq), b[12345])
			return
		}
	}
	var baseline uint64
	for i := range 21 {
		p, _ := gpuChild(t, "publish", dir, key)
		if s == nil {
			var err error
			s, err = SubscribeFrames(ctx, FrameSubscribeOptions{RuntimeDir: dir, Key: key, WaitForKey: 10 * time.Second})
			require.NoError(t, err)
		}
		for s.Generation() < i {
			read()
		}
		read()
		p.Kill()
		if i == 0 {
			continue
		}
		testenv.Eventually(t, 10*time.Second, func() error {
			free, _, err := v.Free()
			if err != nil {
				return err
			}
			if i == 1 {
				baseline = free
			}
			if free+(16<<20) < baseline { // the subscriber still maps the last 4 slots
				return fmt.Errorf("round %d: %d MiB fewer are free than after the first", i, (baseline-free)>>20)
			}
			return nil
		})
	}
	require.Equal(t, 20, s.Generation())
	require.NoError(t, c.close())
	require.NoError(t, s.Close())
	free, _, err := v.Free()
	require.NoError(t, err)
	t.Logf("RESULT 20 restarts followed; free memory after the first %d MiB, at the end %d MiB", baseline>>20, free>>20)
}

// What publishing costs, and how long a picture takes to another process.
func TestGPULatency(t *testing.T) {
	v := gpu(t)
	dir, key := place(t)
	_, w, s := gpuWriter(t, v, dir, key, framering.DropOldest)
	from, err := v.Alloc("source", 3_317_760)
	require.NoError(t, err)
	defer from.Close()
	copyTo := func(b cudavmm.Buffer) {
		for _, p := range [][2]int{{0, 1080}, {2048 * 1080, 540}} {
			to, src := cudavmm.Plane{Pointer: b.Pointer() + uintptr(p[0]), Pitch: 2048}, cudavmm.Plane{Pointer: from.Pointer() + uintptr(p[0]), Pitch: 2048}
			require.NoError(t, s.Copy2D(to, src, 1920, p[1]))
		}
		require.NoError(t, s.Synchronize())
	}
	spare, err := v.Alloc("spare", 3_317_760)
	require.NoError(t, err)
	defer spare.Close()
	var publish, bare []time.Duration
	for i := range 3000 {
		start := time.Now()
		slot, err := w.Acquire(t.Context())
		require.NoError(t, err)
		w.Announce()
		copyTo(slot.Buffer)
		_, err = w.Publish(start.UnixNano())
		require.NoError(t, err)
		middle := time.Now()
		copyTo(spare)
		if i > 300 {
			publish, bare = append(publish, middle.Sub(start)), append(bare, time.Since(middle))
		}
	}
	slices.Sort(publish)
	slices.Sort(bare)
	n := len(publish)
	t.Logf("FIGURE publish 1080p NV12: p50 %v p99 %v; copy and wait alone: p50 %v p99 %v", publish[n/2], publish[n*99/100], bare[n/2], bare[n*99/100])

	for _, c := range []struct {
		role     string
		announce bool
	}{{"latency", false}, {"latency", true}, {"latency-direct", false}, {"latency-direct", true}, {"latency-busy", false}} {
		dir, key := place(t)
		p, w, _ := gpuWriter(t, v, dir, key, framering.DropOldest)
		_, result := gpuChild(t, c.role, dir, key)
		for range 1500 {
			slot, err := w.Acquire(t.Context())
			require.NoError(t, err)
			if c.announce {
				w.Announce()
			}
			copyTo(slot.Buffer)
			_, err = w.Publish(time.Now().UnixNano())
			require.NoError(t, err)
			time.Sleep(2 * time.Millisecond)
		}
		require.NoError(t, p.Close(framering.ReasonNormal))
		r := result()
		t.Logf("FIGURE publish → other process (%s, announced %v): p50 %v p99 %v max %v of %d; its CPU time %v", c.role, c.announce, r.P50, r.P99, r.Max, r.Read, r.CPU)
	}
}
