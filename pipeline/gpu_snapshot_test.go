package pipeline

import (
	"bytes"
	"encoding/json"
	"errors"
	"image/jpeg"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// A process that has the GPU open takes a snapshot from the frames there.
func TestGPUSnapshot(t *testing.T) {
	v := gpu(t)
	dir, key := place(t)
	_, w, s := gpuWriter(t, v, dir, key, framering.DropOldest)
	var took []time.Duration
	for i := range 20 {
		slot, err := w.Acquire(t.Context())
		require.NoError(t, err)
		require.NoError(t, gpuPaint(s, slot.Buffer, uint64(i)+128<<8)) // grey
		_, err = w.Publish(int64(i) + 1)
		require.NoError(t, err)
		start := time.Now()
		b, info, err := Snapshot(t.Context(), SnapshotOptions{RuntimeDir: dir, Key: key, Format: av.JPEG})
		took = append(took, time.Since(start))
		require.NoError(t, err)
		require.Equal(t, SnapshotInfo{From: "frames", Seq: slot.Seq, PTS: int64(i) + 1, Width: 1920, Height: 1080}, info)
		img, err := jpeg.Decode(bytes.NewReader(b))
		require.NoError(t, err)
		have, _, _, _ := img.At(960, 540).RGBA()
		require.InDelta(t, max(0, float64(i-16))*255/219, float64(have>>8), 2)
	}
	slices.Sort(took)
	t.Logf("RESULT snapshot from GPU memory by a process that has the GPU open: p50 %v, max %v", took[10], took[19])
}

// A process of its own that takes a snapshot beside frames in GPU memory: from their publisher, without a GPU (there is no GPU 99), and by
// starting CUDA where the publisher hands out none. Each file is what the painted picture gives.
func TestGPUSnapshotProcess(t *testing.T) {
	gpu(t)
	bin, file := testenv.Binary(t), filepath.Join(t.TempDir(), "snap.jpg")
	for protocol, role := range map[int]string{4: "publish", 2: "publish-2"} {
		dir, key := place(t)
		p, _ := gpuChild(t, role, dir, key)
		snapshots := func(what string, n int, arg ...string) {
			var took []time.Duration
			for range n {
				cmd := exec.Command(bin, append([]string{"snapshot", key, "-o", file, "--json", "--runtime-dir", dir}, arg...)...)
				start := time.Now()
				out, err := cmd.Output()
				took = append(took, time.Since(start))
				var exit *exec.ExitError
				if errors.As(err, &exit) {
					require.NoError(t, err, string(exit.Stderr))
				}
				require.NoError(t, err)
				var line struct {
					From string
					Seq  uint64
				}
				require.NoError(t, json.Unmarshal(out, &line))
				require.Equal(t, "frames", line.From)
				require.NotZero(t, line.Seq)
				have, err := os.ReadFile(file)
				require.NoError(t, err)
				want, err := av.EncodeStill(gpuPainted(line.Seq), av.JPEG, 3)
				require.NoError(t, err)
				require.True(t, bytes.Equal(want, have), "frame %d, protocol %d, %s: another picture", line.Seq, protocol, what)
			}
			slices.Sort(took)
			t.Logf("RESULT snapshot of protocol %d, %s, whole process: min %v, p50 %v, max %v of %d", protocol, what, took[0], took[n/2], took[n-1], n)
		}
		snapshots("handed out by the publisher", 20, "--device", "99")
		require.NoError(t, os.Remove(framering.SnapshotPath(dir, key)))
		snapshots("by starting CUDA", 5)
		p.Kill()
	}
}

// gpuPainted is the picture that gpuPaint makes, in host memory.
func gpuPainted(n uint64) av.Still {
	return av.Still{Format: av.NV12, Width: 1920, Height: 1080, Planes: []av.StillPlane{
		{Data: bytes.Repeat([]byte{byte(n)}, 1920*1080), Pitch: 1920}, {Data: bytes.Repeat([]byte{byte(n >> 8)}, 1920*540), Pitch: 1920},
	}}
}
