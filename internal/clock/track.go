package clock

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
	burst    bool  // a stored GOP may follow the anchor

	anchorDelay int64 // arrival minus time
	leastDelay  int64 // of all whole windows of the run, and the anchor's; in a burst, of all packets
	doubt       doubt

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

func (t *Track) nsPerTick() float64 { return 1e9 / t.rate * t.scale * (1 + t.steer) }

func (t *Track) model(ext int64) int64 {
	return t.refTime + int64(float64(ext-t.refExt)*t.nsPerTick())
}

// SenderReport takes an RTCP sender report's NTP and RTP timestamps. Implausible ones are ignored.
func (t *Track) SenderReport(ntp uint64, rtp uint32, at Instant) {
	ns, ok := NTPTime(ntp, at.Wall)
	if !ok || t.doubt.byArrival {
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
	if t.doubt.byArrival {
		return t.arrivalTime(at, key)
	}
	if t.epoch != t.c.epoch { // another track has begun a new run
		discontinuity = t.join(at)
	}
	pts = t.model(t.ext)
	jumped := t.jumped(pts, at, key)
	if t.contradicted(at, pts, jumped) {
		return t.leaveRTP(at), true
	}
	switch {
	case jumped:
		t.srKnown = false // its RTP timestamp is of the time before
		t.anchor(max(t.c.now(t, at), t.maxPTS+ms), at)
		t.burst = t.doubt.leaps <= 1 && t.anchorDelay > t.doubt.home-doubtAhead
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
	t.burst, t.doubt.home = true, t.anchorDelay
	t.doubt.high, t.doubt.advancedAt = t.ext, at.Mono
	t.lastPTS, t.maxPTS, t.lastMono = anchor, anchor, at.Mono
	t.observe(at, anchor)
}

// anchor begins a run of this track.
func (t *Track) anchor(time int64, at Instant) {
	t.refExt, t.refTime, t.steer = t.ext, time, 0
	t.anchorAt, t.burst = at.Mono, false
	d := at.Mono + t.c.base - time
	t.anchorDelay, t.leastDelay = d, d
	t.winStart, t.winMin, t.prevMin, t.windows = at.Mono, d, d, 0
	t.winMinAt = at.Mono
	t.nextTick = at.Mono + tick
	t.maxPTS = time
	t.newScale = 0
}

// wrongPace: more apart than crystals are, and still a pace.
func wrongPace(pace, scale float64) bool {
	d := pace/scale - 1
	return (d > minDrift || d < -minDrift) && d > 1.0/maxPace-1 && d < maxPace-1
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
	d := at.Mono + t.c.base - pts
	if t.burst && at.Mono-t.anchorAt < burstTime {
		return d < t.anchorDelay-maxBurst
	}
	// At once it is a jump; little by little it may be a pace that is not measured yet.
	return d < t.leastDelay-maxAhead &&
		(d < t.lastMono+t.c.base-t.lastPTS-maxAhead || d < t.leastDelay-maxAhead-(maxPace-1)*(at.Mono-t.winStart))
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
	t.doubt.home = t.anchorDelay
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
	t.doubt.home = t.anchorDelay
	return true
}

// observe measures the delay and steers.
func (t *Track) observe(at Instant, pts int64) {
	d := at.Mono + t.c.base - pts
	if at.Mono-t.winStart >= window {
		if t.windows == 0 {
			t.firstMin, t.firstMinAt = t.winMin, t.winMinAt
		}
		t.leastDelay = min(t.leastDelay, t.winMin)
		if t.doubt.still == 0 && t.doubt.leaps == 0 && t.winMin > t.doubt.home-doubtAhead {
			t.doubt.home = t.winMin
		}
		t.prevMin, t.winMin, t.winStart, t.winMinAt = t.winMin, d, at.Mono, at.Mono
		t.windows++
	}
	if t.burst && at.Mono-t.anchorAt < burstTime {
		t.leastDelay = min(t.leastDelay, d)
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
