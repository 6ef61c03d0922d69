package pipeline

import (
	"bytes"
	"image/jpeg"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/av"
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
