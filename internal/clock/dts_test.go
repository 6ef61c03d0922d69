package clock

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// frames gives presentation times in frames of 40 ms; a negative number -n is an IDR at n.
func run(t *testing.T, d *DTS, frames ...int64) (dts []int64, breaks int) {
	t.Helper()
	last := int64(-1 << 62)
	for _, f := range frames {
		idr := f < 0
		if idr {
			f = -f
		}
		v, disc := d.Next(f*40*ms, idr)
		if disc {
			breaks++
		} else {
			require.Greater(t, v, last, "strictly increasing")
		}
		last = v
		dts = append(dts, v)
	}
	return dts, breaks
}

func frames(n ...float64) (v []int64) {
	for _, f := range n {
		v = append(v, int64(f*40*float64(ms)))
	}
	return v
}

func TestDTS(t *testing.T) {
	for name, c := range map[string]struct {
		reorder int
		pts     []int64
		want    []int64
	}{
		"no reordering":    {0, []int64{-100, 101, 102, 103}, frames(100, 101, 102, 103)},
		"one B":            {1, []int64{-100, 102, 101, 104, 103}, frames(99, 100, 101, 102, 103)},
		"pyramid":          {2, []int64{-100, 104, 102, 101, 103, 108, 106, 105, 107}, frames(98, 99, 100, 101, 102, 103, 104, 105, 106)},
		"depth not used":   {2, []int64{-100, 101, 102, 103}, frames(98, 99, 100, 101)},
		"varying rate":     {1, []int64{-100, 110, 105, 130, 120}, frames(99, 100, 105, 110, 120)},
		"over two IDRs":    {1, []int64{-100, 102, 101, -103, 105, 104}, frames(99, 100, 101, 102, 103, 104)},
		"unknown, none":    {-1, []int64{-100, 101, 102}, frames(100, 101, 102)},
		"more than 16":     {99, []int64{-100}, frames(84)},
		"one picture only": {0, []int64{-7}, frames(7)},
	} {
		got, breaks := run(t, NewDTS(c.reorder, 40*ms), c.pts...)
		require.Equal(t, c.want, got, name)
		require.Zero(t, breaks)
		for i, p := range c.pts {
			require.LessOrEqual(t, got[i], max(p, -p)*40*ms, name)
		}
	}
}

// A stream that reorders without saying so: the depth is learned, then all is right.
func TestDTSLearns(t *testing.T) {
	var pts []int64
	for i := int64(100); i < 200; i += 4 {
		pts = append(pts, i+4, i+2, i+1, i+3)
	}
	d := NewDTS(-1, 40*ms)
	pts = append([]int64{-100}, pts...)
	got, breaks := run(t, d, pts...)
	require.Zero(t, breaks)
	for i := 40; i < len(pts); i++ {
		require.LessOrEqual(t, got[i], pts[i]*40*ms)
	}
	require.LessOrEqual(t, d.depth, maxLearned)
}

// Case t1: presentation times jump after loss. Decoding times degrade and are right again from the next IDR on.
func TestDTSAfterLoss(t *testing.T) {
	pts := []int64{-100, 104, 102, 101, 103, 120, 106, 105, 107, 112, 110, 109, 111}
	d := NewDTS(2, 40*ms)
	run(t, d, pts...)
	got, breaks := run(t, d, -113, 117, 115, 114, 116)
	require.Zero(t, breaks)
	require.Equal(t, frames(112, 113, 114, 115), got[1:])
	require.True(t, near(got[0], 111*40*ms, minStep), "the outlier still holds one place here")

	// without a known depth the outlier itself became a decoding time
	d = NewDTS(0, 40*ms)
	run(t, d, -100, 101, 150, 102, 103, 104)
	got, breaks = run(t, d, -105, 106, 107)
	require.Equal(t, 1, breaks, "the IDR lies in front of times already given: a new run")
	require.Equal(t, frames(105, 106, 107), got)
}

func TestDTSConfigure(t *testing.T) {
	d := NewDTS(0, 40*ms)
	run(t, d, -100, 101)
	d.Configure(2, 40*ms)
	got, _ := run(t, d, -102, 106, 104, 103, 105)
	for i, p := range []int64{102, 106, 104, 103, 105} {
		require.LessOrEqual(t, got[i], p*40*ms+5*minStep)
	}
	d.Reset()
	got, breaks := run(t, d, -5, 9)
	require.Zero(t, breaks)
	require.Equal(t, frames(3, 4), got)
}
