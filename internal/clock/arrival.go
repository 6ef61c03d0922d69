package clock

const (
	// A video whose RTP time has not advanced for so long and so many units has no RTP clock. Pictures go back by their reordering
	// for less than both, and all slices of a picture have one time.
	stillTime  = maxBack + 500*ms
	stillUnits = 8

	// leapsToDoubt leaps in a row, that is with fewer than leapUnits units or less than leapTime between them, or ahead all the time,
	// are no accident.
	leapsToDoubt = 4
	leapUnits    = 8
	leapTime     = 900 * ms
	// A unit leaps when the clock has jumped, and when it is further ahead than the one before by minLeap, and than anything that
	// was seen in peace by doubtAhead: also while a burst is waited for.
	minLeap, doubtAhead = 1 * s, 2 * s

	// RTP time is taken again once it has kept to arrival within trialError for minTrial; twice as long each time, up to maxTrial.
	minTrial, maxTrial = 5 * s, 60 * s
	trialError         = 1 * s
)

// doubt is what speaks against a video's RTP clock, and, once it is not counted any more, for it.
type doubt struct {
	byArrival bool // times are those of arrival

	high       int64 // extended RTP time, of this run
	advancedAt int64 // mono, when high was last raised
	still      int   // units since
	leaps      int   // in a row
	leapAt     int64 // mono, of the last one
	sinceLeap  int   // units

	home int64 // the least delay when nothing spoke against the clock: arrival minus time

	trial             int64 // how long it has to behave; 0 = minTrial
	trialAt, trialExt int64 // since when it does: mono, RTP
	trialUnits        int
}

// ByArrival says whether the track's times are those of arrival, since its RTP timestamps are none.
func (t *Track) ByArrival() bool { return t.doubt.byArrival }

// contradicted takes note of a unit and says whether RTP time can be kept. jumped: a new run begins with it already.
func (t *Track) contradicted(at Instant, pts int64, jumped bool) bool {
	if t.audio {
		return false
	}
	d := &t.doubt
	if t.ext > d.high {
		d.high, d.advancedAt, d.still = t.ext, at.Mono, 0
	} else {
		d.still++
		if jumped {
			d.high = t.ext // an advance is one from here; going back again is none
		}
	}
	delay := at.Mono + t.c.base - pts
	leapt := jumped || delay < t.lastMono+t.c.base-t.lastPTS-minLeap && delay < d.home-doubtAhead
	d.sinceLeap++
	switch near := d.sinceLeap < leapUnits || at.Mono-d.leapAt < leapTime || delay < d.home-doubtAhead; {
	case leapt && (near || d.leaps == 0):
		d.leaps, d.leapAt, d.sinceLeap = d.leaps+1, at.Mono, 0
	case leapt:
		d.leaps, d.leapAt, d.sinceLeap = 1, at.Mono, 0
	case !near:
		d.leaps = 0
	}
	return d.leaps >= leapsToDoubt || d.still >= stillUnits && at.Mono-d.advancedAt >= stillTime
}

// leaveRTP begins a run that counts the time of arrival.
func (t *Track) leaveRTP(at Instant) (pts int64) {
	d := &t.doubt
	d.byArrival = true
	d.trialAt, d.trialExt, d.trialUnits = at.Mono, t.ext, 0
	t.srKnown, t.srSteady, t.newScale = false, false, 0
	t.pending = t.c.hostStep
	pts = at.Mono + t.c.base - d.home
	t.arrived(at, pts)
	return pts
}

// arrived notes a time that does not come from the RTP clock.
func (t *Track) arrived(at Instant, pts int64) {
	t.winMin, t.prevMin = t.doubt.home, t.doubt.home
	t.lastPTS, t.lastMono, t.maxPTS = pts, at.Mono, pts
}

// arrivalTime is Time while the RTP clock is not counted.
func (t *Track) arrivalTime(at Instant, key bool) (pts int64, discontinuity bool) {
	d := &t.doubt
	if t.epoch != t.c.epoch {
		d.home -= t.c.shifted - t.shifted
		t.shifted, t.epoch = t.c.shifted, t.c.epoch
		discontinuity = true
	}
	if t.pending && t.mayStep(key) {
		old := at.Mono + t.c.base - d.home
		t.c.base, t.c.hostStep, t.pending = t.c.offset+t.c.ahead, false, false
		d.home = 0
		t.c.shifted += at.Mono + t.c.base - old
		t.c.epoch++
		t.shifted, t.epoch = t.c.shifted, t.c.epoch
		discontinuity = true
	}
	pts = at.Mono + t.c.base - d.home
	if pts <= t.lastPTS && !discontinuity {
		pts = t.lastPTS + minStep // several units that arrived at once
	}
	if t.behaves(at) && key && !t.pending {
		d.byArrival = false
		d.trial = min(2*max(d.trial, minTrial), maxTrial)
		d.high, d.advancedAt, d.still, d.leaps = t.ext, at.Mono, 0, 0
		t.anchor(pts, at)
		discontinuity = true
	}
	t.arrived(at, pts)
	return pts, discontinuity
}

// behaves says whether RTP time has kept to arrival for long enough.
func (t *Track) behaves(at Instant) bool {
	d := &t.doubt
	passed := at.Mono - d.trialAt
	said := int64(float64(t.ext-d.trialExt) * 1e9 / t.rate * t.scale)
	d.trialUnits++
	if abs(said-passed) > trialError {
		d.trialAt, d.trialExt, d.trialUnits = at.Mono, t.ext, 0
		return false
	}
	return passed >= max(d.trial, minTrial) && d.trialUnits >= stillUnits
}
