package bench

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == "helper" {
		if err := Helper(os.Args[2:]); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// The figures are for a machine that does nothing else; here it is shown that all of them are there and that nothing stays behind.
func TestRunPackets(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 2*time.Minute)
	var steps []string
	r, err := RunPackets(t.Context(), Packets{
		Duration: 600 * time.Millisecond, Rates: []int{200}, Readers: 2, Helper: []string{"/proc/self/exe", "helper"},
		Progress: func(s string) { steps = append(steps, s) },
	})
	require.NoError(t, err)
	require.Len(t, steps, 6)
	require.Len(t, r.Wakes, 2)
	for _, w := range r.Wakes {
		require.Positive(t, w.Ring.Count)
		require.Positive(t, w.Bare.Count)
		require.Positive(t, w.RatioP50)
		require.GreaterOrEqual(t, w.Ring.P99, w.Ring.P50)
	}
	require.Positive(t, r.Busy.Ring.Count)
	require.Zero(t, r.Stream.Lost)
	require.Positive(t, r.Stream.Packets)
	require.Positive(t, r.Stream.Ratio)
	require.Len(t, r.CPU, 2)
	var out bytes.Buffer
	require.NoError(t, r.Write(&out))
	for _, want := range []string{"WAKE-UP", "bare p99", "STREAM", "CPU", "GOAL", "busy-poll p50"} {
		require.Contains(t, out.String(), want)
	}
	t.Log("\n" + out.String())
	requireClean(t)
}

func TestRunPacketsEnds(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	ctx, cancel := context.WithCancel(t.Context())
	_, err := RunPackets(ctx, Packets{
		Duration: time.Hour, Helper: []string{"/proc/self/exe", "helper"}, Progress: func(string) { time.AfterFunc(200*time.Millisecond, cancel) },
	})
	require.ErrorIs(t, err, context.Canceled)
	_, err = RunPackets(t.Context(), Packets{Rates: []int{0}})
	require.ErrorContains(t, err, "rate")
	_, err = RunPackets(t.Context(), Packets{Helper: []string{"/bin/false"}})
	require.Error(t, err)
	require.Error(t, Helper(nil))
	sweep(t)
}

// sweep removes what killed helpers could not.
func sweep(t *testing.T) {
	entries, err := os.ReadDir(shm.Dir)
	require.NoError(t, err)
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), fmt.Sprintf("%sbench-%d", shm.Prefix, os.Getpid())) {
			require.NoError(t, os.Remove(shm.Dir+"/"+e.Name()))
		}
	}
}

func requireClean(t *testing.T) {
	entries, err := os.ReadDir(shm.Dir)
	require.NoError(t, err)
	for _, e := range entries {
		require.False(t, strings.HasPrefix(e.Name(), fmt.Sprintf("%sbench-%d", shm.Prefix, os.Getpid())), e.Name())
	}
}

func TestRunFrames(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 2*time.Minute)
	r, err := RunFrames(t.Context(), Frames{
		Duration: 600 * time.Millisecond, Rates: []int{200}, Width: 640, Height: 360, Readers: 2, Helper: []string{"/proc/self/exe", "helper"},
	})
	require.NoError(t, err)
	require.Len(t, r.Wakes, 2)
	for _, w := range r.Wakes {
		require.Positive(t, w.Ring.Count)
		require.Positive(t, w.Bare.Count)
	}
	for _, s := range []*Stream{r.Stream, r.InPlace} {
		require.Zero(t, s.Lost)
		require.Positive(t, s.Packets)
		require.Positive(t, s.Ratio)
	}
	var out bytes.Buffer
	require.NoError(t, r.Write(&out))
	for _, want := range []string{"WAKE-UP", "copied out", "looked at where it lies", "GOAL", "stream in place", "frames lost"} {
		require.Contains(t, out.String(), want)
	}
	if r.GPU == nil {
		require.NotEmpty(t, r.NoGPU)
		require.Contains(t, out.String(), "Frames in GPU memory are left out: "+r.NoGPU)
	} else {
		require.Empty(t, r.NoGPU)
		requireGPUFrames(t, r, out.String())
	}
	t.Log("\n" + out.String())
	requireClean(t)
}

func requireGPUFrames(t *testing.T, r *FramesResult, text string) {
	g := r.GPU
	require.Positive(t, g.Publish.Ring.P50)
	require.Positive(t, g.Publish.RatioP50)
	require.Len(t, g.Wakes, 2)
	for _, w := range g.Wakes {
		require.Positive(t, w.Ring.Count)
		require.Positive(t, w.Bare.Count)
	}
	require.Positive(t, g.Busy.Ring.Count)
	require.Zero(t, g.Stream.Lost)
	require.Positive(t, g.Stream.Ratio)
	require.Positive(t, g.Stream.ParallelRatio)
	for _, want := range []string{"PUBLISH in the memory of " + g.GPU, "GPU: publish p50", "GPU: busy-poll p50", "GPU: frames lost"} {
		require.Contains(t, text, want)
	}
}

// The part for a GPU, with a stand-in for the driver whose memory is files.
func TestRunFramesGPU(t *testing.T) {
	testenv.Watchdog(t, 2*time.Minute)
	lib := testenv.StandInCUDA(t)
	cmd := exec.Command(os.Args[0], "-test.run", "^TestRunFrames$", "-test.v")
	cmd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+lib)
	p := testenv.StartCmd(t, cmd)
	require.NoError(t, p.WaitFor(t, 100*time.Second), p.Stdout())
	require.Contains(t, p.Stdout(), "PUBLISH in the memory of")
}
