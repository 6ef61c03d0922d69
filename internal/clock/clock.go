// Package clock turns the media clocks of a source (RTP timestamps) into Unix time.
//
// A run is anchored once: at the NTP time of the source's RTCP sender reports when one is known at the first packet, else at the
// time of arrival. From then on the RTP clock carries it, unwrapped to 64 bits per track, and it is steered toward what it is
// measured against, by at most 500 ppm. It never steps inside a run. What cannot be steered away starts a new run, and the first
// packet of each track in the new run carries a discontinuity:
//
//   - The RTP timestamp jumps (a looped file, a restarted encoder): at once, since the RTP clock has lost its meaning.
//   - The source's NTP time disagrees by more than half a second, arrivals disagree by more than a second for a whole
//     window, or the system clock was set while the run hangs on it: at the next keyframe, so that no picture is lost to a cut.
//   - The RTP timestamps of a video stand still, run backwards, or jump again and again: from there on its times are those of
//     arrival, until the timestamps have kept to arrival for some seconds.
//
// Durations inside a run come from the RTP clock and the monotonic clock alone; setting the system clock cannot change them.
package clock

import "time"

// Instant is one reading of this host's clocks, in ns.
type Instant struct {
	Mono int64 // monotonic, from any origin
	Wall int64 // Unix time; may be set forward and back
}

var start = time.Now()

// Now reads the clocks.
func Now() Instant {
	t := time.Now()
	return Instant{Mono: int64(t.Sub(start)), Wall: t.UnixNano()}
}

const (
	ms = int64(time.Millisecond)
	s  = int64(time.Second)

	// maxSteer is the bound on steering, as a fraction: a stream's pace stays within that of its own crystal.
	maxSteer = 500e-6
	// steerTime is the time in which an error would be steered away if the bound allowed it.
	steerTime = 30 * s
	// deadband keeps measuring noise out of the pace.
	deadbandNTP, deadbandArrival = 1 * ms, 5 * ms

	// stepNTP: a source's own time may differ by network delay from the arrival it was anchored at, and that is steered away
	// in minutes. More than this is another time.
	stepNTP = 500 * ms
	// stepArrival is above what jitter leaves of the least delayed packet of a window.
	stepArrival = 1 * s
	// stepHost: NTP daemons slew below 0.5 ms per second; between two packets only a set clock moves this far.
	stepHost = 500 * ms

	// maxAhead: a packet cannot arrive before it was captured; further ahead of its arrival the RTP clock has jumped. Servers
	// that begin with a stored GOP are ahead in the first moments: burstTime, maxBurst.
	maxAhead  = 3 * s
	burstTime = 2 * s
	maxBurst  = 30 * s
	// maxBack is how far video goes back by reordering alone; a keyframe does not go back at all, nor does audio.
	maxBack, maxBackKey, maxBackAudio = 1 * s, 100 * ms, 500 * ms

	// window is how long the least delayed packet is looked for.
	window = 5 * s
	// tick is how often a track is steered.
	tick = 1 * s
	// minDrift is the relative error of the RTP clock's rate from which on it is a wrong rate and not a crystal.
	minDrift = 0.005
	// maxPace is how many times too fast or too slow such a clock may be. What is faster than that has jumped.
	maxPace = 5
)

// Clock is the common clock of a source's tracks. Not safe for concurrent use.
type Clock struct {
	tracks []*Track
	lead   *Track // the video track; the only one that begins a new run by a decision, since it can wait for a keyframe

	ahead    int64 // of the source's clock, as an earlier connection found it; see SetAhead
	anchored bool
	base     int64 // Unix time of monotonic 0, as of the run's beginning, following slewed changes of the system clock
	offset   int64 // wall - mono at the last packet
	hostStep bool  // the system clock was set since the run began

	// shifted is the sum of all steps; tracks compare it with what they have seen.
	shifted int64
	epoch   int
}

// New returns the clock of one connection to a source.
func New() *Clock { return &Clock{} }

// SetAhead is for another connection to a source whose own clock is known to be ahead of this host's by so much, in ns. Until
// its first sender report comes the time of arrival is corrected by that, so that the report finds nothing to step. It has to be
// called in front of the first packet.
func (c *Clock) SetAhead(ahead int64) { c.ahead = ahead }

// Ahead returns how far the source's clock is ahead of this host's (network delay counts as behind). ok is false when the source
// gives no time of its own.
func (c *Clock) Ahead() (ahead int64, ok bool) {
	for _, t := range c.tracks {
		if t.started && t.srKnown && (t == c.lead || c.lead == nil || !c.lead.srKnown) {
			return c.base - c.offset - t.delay(), true
		}
	}
	return 0, false
}

// Track adds a track. rate is its RTP clock rate. The first track added with video set leads.
func (c *Clock) Track(rate int, video bool) *Track {
	t := &Track{c: c, rate: float64(max(rate, 1)), audio: !video, scale: 1}
	c.tracks = append(c.tracks, t)
	if video && c.lead == nil {
		c.lead = t
	}
	return t
}

// ntpEpoch is the Unix epoch in NTP seconds.
const ntpEpoch = 2208988800

// NTPTime returns the Unix time in ns of a 64-bit NTP timestamp. ok is false for times before 2001 (a clock that was never set:
// zero, seconds since power-on, 1970) and more than a day after now.
func NTPTime(ntp uint64, now int64) (ns int64, ok bool) {
	sec := int64(ntp>>32) - ntpEpoch
	if ntp>>63 == 0 { // era 1 begins in 2036; era 0 below this bit ended in 1968
		sec += 1 << 32
	}
	ns = sec*s + int64((ntp&0xFFFFFFFF)*1e9>>32)
	return ns, sec > 978307200 && ns < now+24*3600*s
}

// follow keeps base beside a slewed system clock and notices a set one.
func (c *Clock) follow(at Instant) {
	offset := at.Wall - at.Mono
	switch d := offset - c.offset; {
	case !c.anchored:
		c.base = offset + c.ahead
		c.anchored = true
	case abs(d) > stepHost:
		c.hostStep = true
		for _, t := range c.tracks {
			if !t.srKnown && t.started {
				t.pending = true
			}
		}
	default:
		c.base += d
	}
	c.offset = offset
}

// now is the time that a packet without history gets: that of its arrival, moved by how the other tracks stand to theirs.
func (c *Clock) now(self *Track, at Instant) int64 {
	if self.started {
		return at.Mono + c.base - max(self.delay(), self.leastDelay) // what ran ahead in this window is no measure
	}
	for _, t := range c.tracks {
		if t != self && t.started {
			return at.Mono + c.base - t.delay()
		}
	}
	return at.Mono + c.base
}

// reports says whether the time of the tracks other than self is that of sender reports, or theirs is still to begin.
func (c *Clock) reports(self *Track) bool {
	started := false
	for _, t := range c.tracks {
		if t == self || !t.started {
			continue
		}
		if t.srKnown {
			return true
		}
		started = true
	}
	return !started
}

func abs(v int64) int64 {
	if v < 0 {
		return -v
	}
	return v
}
