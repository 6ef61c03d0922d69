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

// Track is one RTP clock.
type Track struct {
	c     *Clock
	rate  float64
	audio bool

	started  bool
	last     uint32
	ext      int64 // last, unwrapped
	lastPTS  int64
	maxPTS   int64
	lastMono int64

	// The model: time(x) = refTime + (x - refExt) * nsPerTick.
	refExt   int64
	refTime  int64
	scale    float64 // measured over declared rate: 1, except for sources whose RTP clock is no clock
	steer    float64
	anchorAt int64 // mono

	// Least delay: the smallest (arrival - model) in this window and the one before, and in the first whole window of the run.
	winStart, winMin, prevMin int64
	winMinAt                  int64
	firstMin, firstMinAt      int64
	windows                   int

	// Newest sender report.
	srKnown, srSteady bool // steady: the one before says the same
	srRTP             uint32
	srTime            int64
	srPace            float64 // real over RTP time between the last two reports
	newScale          float64 // takes effect with the next run; 0 = as it is

	nextTick int64
	pending  bool // a new run has to begin
	shifted  int64
	epoch    int
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

func (t *Track) nsPerTick() float64 { return 1e9 / t.rate * t.scale * (1 + t.steer) }

func (t *Track) model(ext int64) int64 {
	return t.refTime + int64(float64(ext-t.refExt)*t.nsPerTick())
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

// SenderReport takes an RTCP sender report's NTP and RTP timestamps. Implausible ones are ignored.
func (t *Track) SenderReport(ntp uint64, rtp uint32, at Instant) {
	ns, ok := NTPTime(ntp, at.Wall)
	if !ok {
		return
	}
	if t.srKnown {
		said := t.srTime + int64(float64(int32(rtp-t.srRTP))*1e9/t.rate*t.scale)
		t.srSteady = abs(said-ns) < 100*ms
		if passed := float64(int32(rtp-t.srRTP)) * 1e9 / t.rate; passed > 5e8 {
			pace := float64(ns-t.srTime) / passed
			if wrongPace(pace, t.scale) && !wrongPace(pace, t.srPace) {
				t.newScale, t.pending = pace, t.started // two pairs of reports agree that the RTP clock runs wrong
			}
			t.srPace = pace
		}
	}
	first := !t.srKnown
	t.srKnown, t.srRTP, t.srTime = true, rtp, ns
	if !t.started {
		return
	}
	if err := t.reported(t.ext) - t.model(t.ext); abs(err) > stepNTP && (first || t.srSteady) {
		t.pending = true
	}
}

// reported is the time of ext by the newest sender report.
func (t *Track) reported(ext int64) int64 {
	return t.srTime + int64((float64(int32(t.last-t.srRTP))+float64(ext-t.ext))*1e9/t.rate*t.scale)
}

// Time returns the Unix time in ns of a packet with this RTP timestamp that arrived at this instant, and whether a new run begins
// with it. key says that decoding can start here. Timestamps come in the order of arrival: pictures may step back by their
// reordering.
func (t *Track) Time(rtp uint32, at Instant, key bool) (pts int64, discontinuity bool) {
	t.c.follow(at)
	if !t.started {
		t.begin(rtp, at)
		return t.lastPTS, false
	}
	t.ext += int64(int32(rtp - t.last))
	t.last = rtp
	if t.epoch != t.c.epoch { // another track has begun a new run
		discontinuity = t.join(at)
	}
	pts = t.model(t.ext)
	switch {
	case t.jumped(pts, at, key):
		t.srKnown = false // its RTP timestamp is of the time before
		t.anchor(max(t.c.now(t, at), t.maxPTS+ms), at)
		discontinuity = true
	case t.pending && t.mayStep(key):
		t.step(at)
		discontinuity = true
	}
	pts = t.model(t.ext)
	t.observe(at, pts)
	t.lastPTS, t.lastMono = pts, at.Mono
	if pts > t.maxPTS || discontinuity {
		t.maxPTS = pts
	}
	return pts, discontinuity
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
		return at.Mono + c.base - self.delay()
	}
	for _, t := range c.tracks {
		if t != self && t.started {
			return at.Mono + c.base - t.delay()
		}
	}
	return at.Mono + c.base
}

func (t *Track) begin(rtp uint32, at Instant) {
	t.last, t.ext = rtp, int64(rtp)
	t.shifted, t.epoch = t.c.shifted, t.c.epoch
	anchor := t.c.now(t, at)
	if t.srKnown {
		// Reports bind the tracks, however far apart they arrive: a server may begin the video at an older keyframe. Tracks that
		// count the time of arrival so far change together with this one.
		if r := t.reported(t.ext); t.c.reports(t) || abs(r-anchor) < stepNTP {
			anchor = r
		} else {
			t.pending = true
		}
	}
	t.started = true
	t.anchor(anchor, at)
	t.lastPTS, t.maxPTS, t.lastMono = anchor, anchor, at.Mono
	t.observe(at, anchor)
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

// anchor begins a run of this track.
func (t *Track) anchor(time int64, at Instant) {
	t.refExt, t.refTime, t.steer = t.ext, time, 0
	t.anchorAt = at.Mono
	t.winStart, t.winMin, t.prevMin, t.windows = at.Mono, at.Mono+t.c.base-time, at.Mono+t.c.base-time, 0
	t.winMinAt = at.Mono
	t.nextTick = at.Mono + tick
	t.maxPTS = time
	t.newScale = 0
}

// wrongPace: more apart than crystals are, and still a pace.
func wrongPace(pace, scale float64) bool {
	d := pace/scale - 1
	return (d > minDrift || d < -minDrift) && d > -0.8 && d < 4
}

// delay is the least delay seen lately: arrival minus model.
func (t *Track) delay() int64 { return min(t.winMin, t.prevMin) }

// jumped says whether this packet's RTP timestamp does not continue the run.
func (t *Track) jumped(pts int64, at Instant, key bool) bool {
	back := maxBack
	switch {
	case t.audio:
		back = maxBackAudio
	case key:
		back = maxBackKey
	}
	if pts < t.maxPTS-back {
		return true
	}
	ahead := maxAhead
	if at.Mono-t.anchorAt < burstTime {
		ahead = maxBurst
	}
	return at.Mono+t.c.base-pts < t.delay()-ahead
}

// mayStep: the lead waits for a keyframe, the others for the lead; without a lead that delivers, a track goes alone.
func (t *Track) mayStep(key bool) bool {
	lead := t.c.lead
	if t == lead {
		return key
	}
	return lead == nil || !lead.started || t.lastMono-lead.lastMono > 10*s
}

// step begins a new run at the time that this one was found to miss.
func (t *Track) step(at Instant) {
	old := t.model(t.ext)
	target := t.target(at)
	if t.c.hostStep && !t.srKnown {
		t.c.base = t.c.offset + t.c.ahead
		target = at.Mono + t.c.base
		t.c.hostStep = false
	}
	if t.newScale != 0 {
		t.scale = t.newScale
	}
	t.pending = false
	t.c.shifted += target - old
	t.c.epoch++
	t.shifted, t.epoch = t.c.shifted, t.c.epoch
	t.anchor(target, at)
}

// target is where the model should be now.
func (t *Track) target(at Instant) int64 {
	if t.srKnown {
		return t.reported(t.ext)
	}
	if t.prevMin > 0 { // late, and perhaps later still by now
		return t.model(t.ext) + max(t.prevMin, t.winMin)
	}
	return t.model(t.ext) + t.delay()
}

// join follows a step that another track took. It returns false when this track's time was right before.
func (t *Track) join(at Instant) (moved bool) {
	old := t.model(t.ext)
	target := old + t.c.shifted - t.shifted
	if t.srKnown {
		target = t.reported(t.ext)
	}
	t.shifted, t.epoch = t.c.shifted, t.c.epoch
	if t.srKnown && abs(target-old) < stepNTP {
		return false // steering does it
	}
	t.pending = false
	t.anchor(target, at)
	return true
}

// observe measures the delay and steers.
func (t *Track) observe(at Instant, pts int64) {
	d := at.Mono + t.c.base - pts
	if at.Mono-t.winStart >= window {
		if t.windows == 0 {
			t.firstMin, t.firstMinAt = t.winMin, t.winMinAt
		}
		t.prevMin, t.winMin, t.winStart, t.winMinAt = t.winMin, d, at.Mono, at.Mono
		t.windows++
	}
	if d < t.winMin {
		t.winMin, t.winMinAt = d, at.Mono
	}
	if at.Mono < t.nextTick {
		return
	}
	t.nextTick = at.Mono + tick
	var err int64
	dead := deadbandNTP
	if t.srKnown {
		err = t.reported(t.ext) - pts
		if abs(err) > stepNTP && t.srSteady {
			t.pending = true
		}
	} else {
		if t.windows == 0 || t.c.hostStep {
			return
		}
		dead = deadbandArrival
		err = t.prevMin // of a whole window
		if t.winMin < err {
			err = t.winMin
		}
		if abs(err) > stepArrival {
			t.pending = true
			if passed := float64(t.winMinAt - t.firstMinAt); t.windows > 1 && passed > float64(window) {
				grown := float64(t.winMin - t.firstMin)
				if pace := passed / (passed - grown) * t.scale; wrongPace(pace, t.scale) {
					t.newScale = pace
				}
			}
		}
	}
	steer := 0.0
	if abs(err) > dead {
		steer = max(-maxSteer, min(maxSteer, float64(err)/float64(steerTime)))
	}
	if steer != t.steer {
		t.refTime, t.refExt = pts, t.ext
		t.steer = steer
	}
}

func abs(v int64) int64 {
	if v < 0 {
		return -v
	}
	return v
}
