package clock

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// An RTP clock that is none: the times are those of arrival, after one discontinuity, and those of the RTP clock again when it
// has become one.
func TestRTPClockThatIsNone(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	for name, c := range map[string]struct {
		next  func(i int) int64 // ticks from one unit to the next
		early int               // discontinuities before the one that counts
		ahead int64             // of arrival, at worst
	}{
		"stands still":           {func(int) int64 { return 0 }, 0, 0},
		"goes back":              {func(int) int64 { return -3600 }, 2, 0},
		"goes back by a tick":    {func(int) int64 { return -1 }, 0, 0},
		"goes back by hours":     {func(int) int64 { return -90000 * 3600 }, 3, s},
		"to and fro":             {func(i int) int64 { return int64(i%2*2-1) * 900 }, 0, 0},
		"2.8 s ahead each":       {func(int) int64 { return 28 * 9000 }, 3, 13 * s},
		"29 s ahead each":        {func(int) int64 { return 29 * 90000 }, 3, 35 * s},
		"0.9 s ahead each":       {func(int) int64 { return 81000 }, 4, 50 * s},
		"0.3 s ahead each":       {func(int) int64 { return 27000 }, 6, 50 * s},
		"anywhere":               {func(int) int64 { return int64(int32(rnd.Uint32())) }, 4, 35 * s},
		"back 2 s every 8 units": {func(i int) int64 { return 3600 - int64((i%8)/7)*180000 }, 4, s},
	} {
		for _, before := range []int{0, 250} {
			t.Run(name, func(t *testing.T) {
				h := &host{}
				tr := New().Track(90000, true)
				rtp := uint32(0xFFFFF000)
				feed(t, h, tr, &rtp, before, 3600, 40*ms)
				breaks, last, settled := 0, int64(0), -1
				for i := range 3000 {
					rtp += uint32(c.next(i))
					pts, disc := tr.Time(rtp, h.now(), i%25 == 0)
					if disc {
						breaks++
					}
					require.LessOrEqual(t, pts, h.now().Wall+c.ahead, "unit %d: ahead by %v", i, seconds(pts-h.now().Wall))
					if tr.ByArrival() && settled < 0 {
						settled = i
						require.True(t, disc)
						require.LessOrEqual(t, breaks, c.early+1)
						require.True(t, near(pts, h.now().Wall, 400*ms), seconds(pts-h.now().Wall))
					} else if tr.ByArrival() {
						require.False(t, disc, "unit %d", i)
						require.Equal(t, 40*ms, pts-last)
					}
					last = pts
					h.sleep(40 * ms)
				}
				require.True(t, tr.ByArrival())
				require.LessOrEqual(t, settled, 280, "units until it was noticed")
				breaks = 0
				for i := range 250 {
					rtp += 3600
					pts, disc := tr.Time(rtp, h.now(), i%25 == 0)
					require.True(t, near(pts, h.now().Wall, 400*ms), seconds(pts-h.now().Wall))
					require.Greater(t, pts, last)
					if last = pts; disc {
						breaks++
					}
					h.sleep(40 * ms)
				}
				require.Equal(t, 1, breaks, "back to the RTP clock at a keyframe")
				require.False(t, tr.ByArrival())
			})
		}
	}
}

// Units that arrive at once while arrival counts are still apart, and a clock that was set begins a run at a keyframe.
func TestByArrival(t *testing.T) {
	h := &host{}
	tr := New().Track(90000, true)
	last := int64(0)
	for i := range 100 {
		last, _ = tr.Time(7, h.now(), i%25 == 0)
		h.sleep(40 * ms)
	}
	require.True(t, tr.ByArrival())
	for range 50 {
		pts, disc := tr.Time(7, h.now(), false)
		require.False(t, disc)
		require.Greater(t, pts, last)
		last = pts
	}
	tr.SenderReport(ntpOf(h.now().Wall-3600*s), 7, h.now()) // of a clock that is none
	h.step += 24 * 3600 * s
	breaks := 0
	for i := range 50 {
		h.sleep(40 * ms)
		pts, disc := tr.Time(7, h.now(), i%25 == 24)
		if disc {
			breaks++
		}
		require.Equal(t, i >= 24, near(pts, h.now().Wall, 100*ms), seconds(pts-h.now().Wall))
	}
	require.Equal(t, 1, breaks)
}

// What cameras send is no reason for doubt: slices with one time each, deep reordering, slow cameras, loops, loss, a stored GOP.
func TestNoDoubt(t *testing.T) {
	for name, c := range map[string]struct {
		units  int
		period int64
		time   func(i int) (rtp int64, wait bool)
	}{
		"40 slices of a picture, 1 a second": {4000, s, func(i int) (int64, bool) { return int64(i/40) * 90000, i%40 == 39 }},
		"reordering by 15 pictures of 1 s/5": {3000, s / 5, func(i int) (int64, bool) {
			return 18000 * int64(i/16*16+map[bool]int{true: 16, false: i % 16}[i%16 == 0]), true
		}},
		"a loop of 5 s":             {3000, 40 * ms, func(i int) (int64, bool) { return int64(i%125) * 3600, true }},
		"loss of 4 s after each 10": {3000, 40 * ms, func(i int) (int64, bool) { return int64(i)*3600 + int64(i/250)*360000, true }},
		"a stored GOP of 20 s":      {3000, 40 * ms, func(i int) (int64, bool) { return int64(i) * 3600, i > 500 }},
	} {
		t.Run(name, func(t *testing.T) {
			h := &host{}
			tr := New().Track(90000, true)
			for i := range c.units {
				rtp, wait := c.time(i)
				tr.Time(uint32(rtp), h.now(), i%25 == 0)
				require.False(t, tr.ByArrival(), i)
				if wait {
					h.sleep(c.period)
				}
			}
		})
	}
}
