package pipeline

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/decode"
	"github.com/cfpipe/cfpipe/framering"
)

// gpuReference is FFmpeg's command line, built with NVDEC, that scripts/gpu-test puts beside the tests.
func gpuReference() (path string, ok bool) {
	path = filepath.Join(os.Getenv("CFPIPE_GPU"), "..", "ffmpeg")
	_, err := os.Stat(path)
	return path, err == nil
}

// The pictures are those of "ffmpeg -hwaccel cuda", byte for byte. It has no sizes that change in raw output, and no crop on the left.
func TestGPUDecodeEqualsFFmpeg(t *testing.T) {
	v := gpu(t)
	ffmpeg, ok := gpuReference()
	if !ok {
		t.Skip("no ffmpeg with NVDEC beside the clips: scripts/gpu-test build puts it there")
	}
	clips, err := filepath.Glob(filepath.Join(os.Getenv("CFPIPE_GPU"), "nvdec-*.ts"))
	require.NoError(t, err)
	require.NotEmpty(t, clips)
	for _, path := range clips {
		name := filepath.Base(path)
		if strings.Contains(name, "resize") || strings.Contains(name, "crop") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			have, layouts, hardware, _ := sums(t, name, decode.Auto, v, 0)
			require.True(t, hardware)
			l := layouts[0]
			meta, err := framering.MetaOf(frameFormats[l.Format], l.Width, l.Height)
			require.NoError(t, err)
			var c frameCopier
			require.NoError(t, c.use(meta))
			var stderr bytes.Buffer
			cmd := exec.Command(ffmpeg, "-nostdin", "-v", "error", "-hwaccel", "cuda", "-hwaccel_output_format", "cuda", "-i", path,
				"-vf", "hwdownload,format="+map[decode.Format]string{decode.NV12: "nv12", decode.P010: "p010le"}[l.Format],
				"-fps_mode", "passthrough", "-f", "rawvideo", "-")
			cmd.Stderr = &stderr
			raw, err := cmd.Output()
			require.NoError(t, err, stderr.String())
			var want []string
			for ; len(raw) >= c.size; raw = raw[c.size:] {
				sum := sha256.Sum256(raw[:c.size])
				want = append(want, fmt.Sprintf("%x", sum[:8]))
			}
			require.Empty(t, raw)
			require.Equal(t, want, have)
			t.Logf("RESULT %s: %d pictures equal those of ffmpeg -hwaccel cuda", name, len(want))
		})
	}
}

// ffmpegFPS is the pictures per second of n processes that decode a clip again and again on the GPU and drop the pictures, counted by
// their own reports while all of them run. threads is ffmpeg's option: pictures in parallel.
func ffmpegFPS(t testing.TB, ffmpeg, clip string, n int, threads string) float64 {
	t.Helper()
	one, err := os.ReadFile(clip)
	require.NoError(t, err)
	long := filepath.Join(t.TempDir(), "long.ts") // longer than the fastest decoder needs
	f, err := os.Create(long)
	require.NoError(t, err)
	for range 300 {
		_, err = f.Write(one)
		require.NoError(t, err)
	}
	require.NoError(t, f.Close())
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	pictures := make([]atomic.Int64, n)
	var started, ended sync.WaitGroup
	started.Add(n)
	for i := range n {
		cmd := exec.CommandContext(ctx, ffmpeg, "-nostdin", "-v", "fatal", "-stats_period", "0.1", "-progress", "pipe:1",
			"-threads", threads, "-hwaccel", "cuda", "-hwaccel_output_format", "cuda", "-i", long, "-fps_mode", "passthrough", "-f", "null", "-")
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		ended.Go(func() {
			first := sync.OnceFunc(started.Done)
			defer first()
			for lines := bufio.NewScanner(out); lines.Scan(); {
				count, ok := strings.CutPrefix(lines.Text(), "frame=")
				if k, err := strconv.ParseInt(strings.TrimSpace(count), 10, 64); ok && err == nil && k > 0 {
					pictures[i].Store(k)
					first()
				}
			}
			if err := cmd.Wait(); ctx.Err() == nil {
				t.Errorf("ffmpeg ended before it was measured: %v", err)
			}
		})
	}
	started.Wait()
	fps := counted(func() (sum int64) {
		for i := range pictures {
			sum += pictures[i].Load()
		}
		return sum
	})
	stop()
	ended.Wait()
	return fps
}
