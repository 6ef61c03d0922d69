package bench

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// TestNNRP runs every part for a moment: the figures are there, and mean something.
func TestNNRP(t *testing.T) {
	testenv.Watchdog(t, 60*time.Second)
	r, err := RunNNRP(t.Context(), NNRP{Duration: 300 * time.Millisecond, Side: 128, Lossy: 3 * time.Second, lossyPaths: 2})
	require.NoError(t, err)
	for _, l := range []Link{r.Full, r.Changed, r.GRPC} {
		require.Positive(t, l.Frames)
		require.Positive(t, l.P50)
		require.GreaterOrEqual(t, l.P99, l.P50)
		require.Positive(t, l.CPU)
	}
	require.EqualValues(t, 128*128*3, r.Full.Bytes)
	require.Less(t, r.Changed.Bytes, r.Full.Bytes)
	require.Positive(t, r.Rate)
	require.Positive(t, r.RawRate)
	require.Less(t, r.Allocs, 0.01)
	if r.NoLossy == "" {
		require.Equal(t, 3*2*12, r.Lossy.NNRP.Frames, "turns, paths, tensors a second")
		require.Equal(t, 3*2*12, r.Lossy.GRPC.Frames)
		require.GreaterOrEqual(t, r.Lossy.NNRP.P50, 50.0)
		require.GreaterOrEqual(t, r.Lossy.GRPC.P50, 50.0)
		for _, l := range []LossyLink{r.Lossy.Full, r.Lossy.Changed, r.Lossy.Whole} {
			require.Positive(t, l.Frames)
			require.GreaterOrEqual(t, l.P50, 50.0)
			require.GreaterOrEqual(t, l.P99, l.P50)
			require.GreaterOrEqual(t, l.Max, l.P99)
			for _, p99 := range l.Turns {
				require.GreaterOrEqual(t, p99, 50.0)
				require.LessOrEqual(t, p99, l.Max)
			}
		}
	} else {
		t.Log(r.NoLossy)
	}
	var out bytes.Buffer
	require.NoError(t, r.Write(&out))
	require.Contains(t, out.String(), "gRPC, full")
	_, err = RunNNRP(t.Context(), NNRP{Side: 1})
	require.Error(t, err)
}
