package clock

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// day0 is when the tests' system clock starts.
var day0 = time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC).UnixNano()

// host is a fake pair of clocks.
type host struct{ mono, step int64 }

func (h *host) now() Instant         { return Instant{Mono: h.mono, Wall: day0 + h.mono + h.step} }
func (h *host) sleep(ns int64)       { h.mono += ns }
func ntpOf(unix int64) uint64        { return uint64(unix/s+ntpEpoch)<<32 | uint64(unix%s)<<32/1e9 }
func near(a, b, within int64) bool   { return abs(a-b) <= within }
func seconds(ns int64) time.Duration { return time.Duration(ns) }

// feed sends n frames of the given RTP step, one each period, and returns the last time and the discontinuities met. A frame in
// every 25 is a key.
func feed(t *testing.T, h *host, tr *Track, rtp *uint32, n int, step uint32, period int64) (last int64, breaks int) {
	t.Helper()
	prev := int64(0)
	for i := range n {
		pts, disc := tr.Time(*rtp, h.now(), i%25 == 0)
		if disc {
			breaks++
		} else if prev != 0 {
			require.InDelta(t, float64(step)*1e9/90000*tr.scale, float64(pts-prev), float64(step)*1e9/90000*0.0006, "steered by more than 500 ppm")
		}
		last, prev = pts, pts
		*rtp += step
		h.sleep(period)
	}
	return last, breaks
}

func TestAnchoredAtArrival(t *testing.T) {
	h := &host{}
	tr := New().Track(90000, true)
	rtp := uint32(12345)
	last, breaks := feed(t, h, tr, &rtp, 250, 3600, 40*ms)
	require.Zero(t, breaks)
	require.True(t, near(last, day0+249*40*ms, ms), seconds(last-day0-249*40*ms))
}

func TestAnchoredAtSenderReport(t *testing.T) {
	h := &host{}
	tr := New().Track(90000, true)
	camera := day0 - 3600*s // the camera's clock is an hour behind ours
	rtp := uint32(90000)
	tr.SenderReport(ntpOf(camera), rtp-90000, h.now())
	pts, disc := tr.Time(rtp, h.now(), true)
	require.False(t, disc)
	require.True(t, near(pts, camera+s, 1000), seconds(pts-camera))
	rtp += 3600
	h.sleep(40 * ms)
	last, breaks := feed(t, h, tr, &rtp, 250, 3600, 40*ms)
	require.Zero(t, breaks)
	require.True(t, near(last, camera+s+250*40*ms, ms))
}

func TestImplausibleNTP(t *testing.T) {
	for name, ntp := range map[string]uint64{
		"zero": 0, "uptime": 3600 << 32, "1970": ntpOf(5 * s), "two days ahead": ntpOf(day0 + 48*3600*s),
	} {
		_, ok := NTPTime(ntp, day0)
		require.False(t, ok, name)
		h := &host{}
		tr := New().Track(90000, true)
		tr.SenderReport(ntp, 0, h.now())
		pts, _ := tr.Time(0, h.now(), true)
		require.Equal(t, day0, pts, name)
	}
	want := time.Date(2036, 3, 1, 0, 0, 0, 5e8, time.UTC).UnixNano()
	ns, ok := NTPTime(ntpOf(want), want)
	require.True(t, ok, "era 1")
	require.True(t, near(ns, want, 1))
}

// A report that comes late and tells another time begins one new run, at a keyframe; a small difference is steered away.
func TestLateSenderReport(t *testing.T) {
	for _, c := range []struct {
		off    int64
		breaks int
	}{{-180 * s, 1}, {180 * s, 1}, {300 * ms, 0}, {-300 * ms, 0}} {
		h := &host{}
		tr := New().Track(90000, true)
		rtp := uint32(1)
		_, breaks := feed(t, h, tr, &rtp, 30, 3600, 40*ms)
		require.Zero(t, breaks)
		total := 0
		var last int64
		for range 12 * 60 {
			tr.SenderReport(ntpOf(h.now().Wall+c.off), rtp, h.now())
			last, breaks = feed(t, h, tr, &rtp, 25, 3600, 40*ms)
			total += breaks
		}
		require.Equal(t, c.breaks, total, seconds(c.off))
		want := h.now().Wall - 40*ms + c.off
		require.True(t, near(last, want, 15*ms), "off by %v", seconds(last-want))
	}
}

// The next connection begins where the source's reports will be: they find nothing to step.
func TestReconnectKeepsOffset(t *testing.T) {
	h := &host{}
	c := New()
	tr := c.Track(90000, true)
	rtp := uint32(1)
	_, known := c.Ahead()
	require.False(t, known)
	tr.SenderReport(ntpOf(h.now().Wall-180*s), rtp, h.now())
	feed(t, h, tr, &rtp, 250, 3600, 40*ms)
	ahead, known := c.Ahead()
	require.True(t, known)
	require.True(t, near(ahead, -180*s, ms), seconds(ahead))

	h.sleep(30 * s)
	c = New()
	c.SetAhead(ahead)
	tr = c.Track(90000, true)
	rtp = 77
	last, breaks := feed(t, h, tr, &rtp, 100, 3600, 40*ms)
	require.Zero(t, breaks)
	require.True(t, near(last, h.now().Wall-40*ms-180*s, 10*ms))
	tr.SenderReport(ntpOf(h.now().Wall-180*s), rtp, h.now())
	_, breaks = feed(t, h, tr, &rtp, 250, 3600, 40*ms)
	require.Zero(t, breaks)
	ahead, known = c.Ahead()
	require.True(t, known)
	require.True(t, near(ahead, -180*s, 10*ms), seconds(ahead))
}

// Jitter on arrival does not reach the durations, and the run follows the camera's crystal.
func TestSteering(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	h := &host{}
	tr := New().Track(90000, true)
	rtp := uint32(0)
	clock := int64(0)
	var pts int64
	for i := range 25 * 1800 {
		clock += 40*ms + 40*ms*150/1e6 // the camera is 150 ppm slow
		h.mono = clock + rng.Int64N(30*ms)
		p, disc := tr.Time(rtp, h.now(), i%50 == 0)
		require.False(t, disc)
		if i > 0 {
			require.InDelta(t, 40e6, float64(p-pts), 40e6*0.0005+2)
		}
		pts = p
		rtp += 3600
	}
	require.True(t, near(pts, day0+clock, 40*ms), "off by %v", seconds(pts-day0-clock))
}

// Case t4: the timestamp wraps, on each track by itself.
func TestUnwrap(t *testing.T) {
	h := &host{}
	c := New()
	video, audio := c.Track(90000, true), c.Track(8000, false)
	v, a := uint32(0xFFFFF000), uint32(0xFFFFFF00)
	for i := range int64(500) {
		pts, disc := video.Time(v, h.now(), i%25 == 0)
		require.False(t, disc)
		require.True(t, near(pts, day0+i*40*ms, ms))
		pts, disc = audio.Time(a, h.now(), false)
		require.False(t, disc)
		require.True(t, near(pts, day0+i*40*ms, ms))
		v, a = v+3600, a+320
		h.sleep(40 * ms)
	}
	// twice around: 26.5 hours at 90 kHz, a packet a minute
	h2 := &host{}
	tr := New().Track(90000, true)
	v = 5
	for i := range int64(27 * 60) {
		pts, disc := tr.Time(v, h2.now(), true)
		require.False(t, disc)
		require.True(t, near(pts, day0+i*60*s, ms))
		v += 90000 * 60
		h2.sleep(60 * s)
	}
}

// Cases t2 and t3: the RTP timestamp jumps, the time of day does not.
func TestJumps(t *testing.T) {
	for name, jump := range map[string]int32{
		"back at a loop of 10 s": -900000, "back at a loop of 1 s": -90000, "back 2.5 M ticks": -2500000, "on 8520 s": 8520 * 90000,
		"on 20 s": 20 * 90000, "half around": -0x80000000,
	} {
		h := &host{}
		tr := New().Track(90000, true)
		rtp := uint32(4000000)
		before, breaks := feed(t, h, tr, &rtp, 250, 3600, 40*ms)
		require.Zero(t, breaks)
		rtp += uint32(jump)
		after, breaks := feed(t, h, tr, &rtp, 250, 3600, 40*ms)
		require.Equal(t, 1, breaks, name)
		require.True(t, near(after-before, 250*40*ms, 50*ms), "%s: %v", name, seconds(after-before))
		require.True(t, near(after, h.now().Wall-40*ms, 50*ms), name)
	}
}

// A jump keeps the camera's own time, also when that is not ours.
func TestJumpKeepsCameraTime(t *testing.T) {
	h := &host{}
	tr := New().Track(90000, true)
	camera := -3600 * s
	rtp := uint32(0)
	tr.SenderReport(ntpOf(h.now().Wall+camera), rtp, h.now())
	feed(t, h, tr, &rtp, 250, 3600, 40*ms)
	rtp += 8520 * 90000
	last, breaks := feed(t, h, tr, &rtp, 100, 3600, 40*ms)
	require.Equal(t, 1, breaks)
	require.True(t, near(last, h.now().Wall+camera-40*ms, 50*ms))
}

// A connection that stalls and catches up is no jump, nor are frames that the server drops meanwhile, nor loss in transit.
func TestStall(t *testing.T) {
	h := &host{}
	tr := New().Track(90000, true)
	rtp := uint32(0)
	feed(t, h, tr, &rtp, 250, 3600, 40*ms)
	h.sleep(8 * s)
	_, breaks := feed(t, h, tr, &rtp, 100, 3600, 0) // 4 s at once
	require.Zero(t, breaks)
	rtp += 90000 * 4 // and 4 s dropped
	last, breaks := feed(t, h, tr, &rtp, 250, 3600, 40*ms)
	require.Zero(t, breaks)
	require.True(t, near(last, h.now().Wall-40*ms, 10*ms))
	h.sleep(20 * s) // loss of 20 s: the timestamp went on
	rtp += 20 * 90000
	last, breaks = feed(t, h, tr, &rtp, 250, 3600, 40*ms)
	require.Zero(t, breaks)
	require.True(t, near(last, h.now().Wall-40*ms, 10*ms))
}

// A server that begins with a stored GOP is ahead at first; the run that follows is right.
func TestBurstAtStart(t *testing.T) {
	h := &host{}
	tr := New().Track(90000, true)
	rtp := uint32(0)
	_, breaks := feed(t, h, tr, &rtp, 100, 3600, ms/10)
	require.Zero(t, breaks)
	total := 0
	var last int64
	for range 20 {
		last, breaks = feed(t, h, tr, &rtp, 25, 3600, 40*ms)
		total += breaks
	}
	require.Equal(t, 1, total)
	require.True(t, near(last, h.now().Wall-40*ms, 50*ms), seconds(last-h.now().Wall))
	require.Equal(t, 1.0, tr.scale)
}

// Case t5: 25 frames a second by the RTP clock, 21 in truth: durations become real.
func TestRTPClockOfAnotherRate(t *testing.T) {
	for _, reports := range []bool{false, true} {
		h := &host{}
		tr := New().Track(90000, true)
		rtp := uint32(0)
		period := s / 21
		total := 0
		var last int64
		for range 240 {
			if reports {
				tr.SenderReport(ntpOf(h.now().Wall), rtp, h.now())
			}
			var breaks int
			last, breaks = feed(t, h, tr, &rtp, 25, 3600, period)
			total += breaks
		}
		require.LessOrEqual(t, total, 3)
		require.GreaterOrEqual(t, total, 1)
		require.InDelta(t, 25.0/21, tr.scale, 0.01)
		require.True(t, near(last, h.now().Wall, s), "reports %v: off by %v", reports, seconds(last-h.now().Wall))
	}
}

// Case t5, the other reading: the timestamps are true, the declared rate is not looked at.
func TestDeclaredRateIsNotUsed(t *testing.T) {
	h := &host{}
	tr := New().Track(90000, true)
	rtp := uint32(0)
	last, breaks := feed(t, h, tr, &rtp, 21*60, 90000/21, s/21)
	require.Zero(t, breaks)
	require.True(t, near(last, h.now().Wall, 100*ms))
}

// Case t6: audio that starts two seconds earlier keeps its offset; sender reports then bind both.
func TestAudioEarlier(t *testing.T) {
	h := &host{}
	c := New()
	video, audio := c.Track(90000, true), c.Track(8000, false)
	a, _ := audio.Time(777, h.now(), false)
	h.sleep(2 * s)
	a2, _ := audio.Time(777+16000, h.now(), false)
	v, _ := video.Time(999999, h.now(), true)
	require.Equal(t, 2*s, v-a)
	require.Equal(t, a2, v)

	// with reports the capture times count, not the arrival
	c = New()
	video, audio = c.Track(90000, true), c.Track(8000, false)
	captured := h.now().Wall - 500*ms
	video.SenderReport(ntpOf(captured), 1000, h.now())
	audio.SenderReport(ntpOf(captured), 50, h.now())
	v, _ = video.Time(1000, h.now(), true)
	h.sleep(300 * ms)
	a, _ = audio.Time(50, h.now(), false)
	require.True(t, near(a, v, 2), seconds(a-v))
}

// A server begins the video at an older keyframe and goes on at its own pace: the video arrives later than the audio for good, and
// the reports say so. Nothing has to step.
func TestTracksArriveApart(t *testing.T) {
	h := &host{}
	c := New()
	video, audio := c.Track(90000, true), c.Track(8000, false)
	const behind = 1155 * ms
	v, a := uint32(1000), uint32(50)
	for i := range 1000 {
		if i%125 == 0 {
			video.SenderReport(ntpOf(h.now().Wall-behind), v, h.now())
			audio.SenderReport(ntpOf(h.now().Wall), a, h.now())
		}
		tv, dv := video.Time(v, h.now(), i%25 == 0)
		ta, da := audio.Time(a, h.now(), false)
		require.False(t, dv || da, i)
		require.True(t, near(ta-tv, behind, ms), "%v", seconds(ta-tv))
		v, a = v+3600, a+320
		h.sleep(40 * ms)
	}
}

// All tracks change together: the lead at its keyframe, the others with their next packet.
func TestTracksStepTogether(t *testing.T) {
	h := &host{}
	c := New()
	video, audio := c.Track(90000, true), c.Track(8000, false)
	v, a := uint32(0), uint32(0)
	var breaksV, breaksA, keys int
	for i := range 500 {
		if i == 60 {
			video.SenderReport(ntpOf(h.now().Wall+60*s), v, h.now())
			audio.SenderReport(ntpOf(h.now().Wall+60*s), a, h.now())
		}
		key := i%50 == 0
		tv, dv := video.Time(v, h.now(), key)
		ta, da := audio.Time(a, h.now(), false)
		if dv {
			breaksV++
			require.True(t, key)
			keys++
		}
		if da {
			breaksA++
			require.True(t, dv)
		}
		require.True(t, near(tv, ta, 2*ms), "%d: %v", i, seconds(tv-ta))
		v, a = v+3600, a+320
		h.sleep(40 * ms)
	}
	require.Equal(t, [3]int{1, 1, 1}, [3]int{breaksV, breaksA, keys})
}

// Case t8: the system clock is set by a day. What hangs on it begins a new run at a keyframe, durations inside runs stay; a
// source with its own time does not notice.
func TestSystemClockSet(t *testing.T) {
	for _, step := range []int64{24 * 3600 * s, -24 * 3600 * s, 5 * s} {
		h := &host{}
		c := New()
		video, audio := c.Track(90000, true), c.Track(8000, false)
		v, a := uint32(0), uint32(0)
		var last, lastA int64
		var breaks, breaksA int
		for i := range 1000 {
			if i == 510 {
				h.step = step
			}
			pts, disc := video.Time(v, h.now(), i%25 == 0)
			ptsA, discA := audio.Time(a, h.now(), false)
			if disc {
				breaks++
				require.Equal(t, 525, i)
			} else if i > 0 {
				require.InDelta(t, 40e6, float64(pts-last), 40e6*0.0006)
			}
			if discA {
				breaksA++
			} else if i > 0 {
				require.InDelta(t, 40e6, float64(ptsA-lastA), 40e6*0.0006)
			}
			require.True(t, near(pts, ptsA, ms))
			last, lastA = pts, ptsA
			v, a = v+3600, a+320
			h.sleep(40 * ms)
		}
		require.Equal(t, [2]int{1, 1}, [2]int{breaks, breaksA})
		require.True(t, near(last, h.now().Wall-40*ms, 10*ms))

		h = &host{}
		tr := New().Track(90000, true)
		rtp := uint32(0)
		tr.SenderReport(ntpOf(day0), 0, h.now())
		feed(t, h, tr, &rtp, 100, 3600, 40*ms)
		h.step = step
		last, b := feed(t, h, tr, &rtp, 400, 3600, 40*ms)
		require.Zero(t, b)
		require.True(t, near(last, day0+499*40*ms, 10*ms))
	}
}

// Slewing is no step: the run follows.
func TestSystemClockSlewed(t *testing.T) {
	h := &host{}
	tr := New().Track(90000, true)
	rtp := uint32(0)
	var last int64
	for i := range 25 * 3600 {
		h.step += 40 * ms * 300 / 1e6 // 300 ppm for an hour: more than a second
		pts, disc := tr.Time(rtp, h.now(), i%25 == 0)
		require.False(t, disc)
		last = pts
		rtp += 3600
		h.sleep(40 * ms)
	}
	require.True(t, near(last, h.now().Wall, 60*ms), seconds(last-h.now().Wall))
}

func TestBFramesAreNoJump(t *testing.T) {
	h := &host{}
	tr := New().Track(90000, true)
	order := []int64{0, 4, 2, 1, 3, 8, 6, 5, 7, 12, 10, 9, 11}
	base := uint32(0xFFFFE000)
	var first int64
	for i, o := range order {
		pts, disc := tr.Time(base+uint32(o*18000), h.now(), i == 0) // 5 frames a second: 200 ms each
		require.False(t, disc)
		if i == 0 {
			first = pts
		}
		require.True(t, near(pts-first, o*200*ms, 1000))
		h.sleep(200 * ms)
	}
}

func FuzzClock(f *testing.F) {
	f.Add([]byte{0, 0, 14, 16, 1, 40, 0, 0, 14, 16, 0, 40, 255, 255, 0, 0, 1, 200})
	f.Fuzz(func(t *testing.T, b []byte) {
		h := &host{}
		c := New()
		tracks := []*Track{c.Track(90000, true), c.Track(8000, false)}
		dts := NewDTS(-1, 0)
		var rtp [2]uint32
		var last int64
		first := true
		for ; len(b) >= 6; b = b[6:] {
			n := int(b[4]>>1) & 1
			rtp[n] += uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
			h.sleep(int64(b[5]) * ms)
			if b[4]&4 != 0 {
				h.step += int64(int8(b[5])) * s
			}
			if b[4]&8 != 0 {
				tracks[n].SenderReport(ntpOf(h.now().Wall+int64(int8(b[0]))*s), rtp[n], h.now())
				continue
			}
			key := b[4]&1 != 0
			pts, disc := tracks[n].Time(rtp[n], h.now(), key)
			require.True(t, near(pts, h.now().Wall, 40*24*3600*s), "nowhere near any clock: %v", seconds(pts-h.now().Wall))
			if n == 1 {
				continue
			}
			if disc {
				dts.Reset()
			}
			d, again := dts.Next(pts, key)
			if !first && !disc && !again {
				require.Greater(t, d, last)
			}
			first, last = false, d
		}
	})
}
