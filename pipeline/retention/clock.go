package retention

import "time"

const (
	// minClockStep is more than what clock daemons slew away between two looks.
	minClockStep = time.Minute
	// maxClockSteps bounds what is remembered; two of them become one then.
	maxClockSteps = 16
	// Where nothing was recorded for longer than maxIdle, nobody knows whether that time has passed or the clock was set, wrongly perhaps, which
	// time servers or people set right within doubtFor.
	maxIdle, doubtFor = 24 * time.Hour, 24 * time.Hour
	// aheadBy is how far in front of the clock a file was written that was written by another clock, and not by that of a file server.
	aheadBy = time.Hour
)

// ages tells how old recordings are by the time that has passed, which is what retention by age means: when the system's clock is set
// forward by a day, what was recorded before is not a day older. The clock is believed as it stands at the first look, but for a time in which nothing was
// recorded: it may have been set then, while this process or one before it ran.
type ages struct {
	last  time.Time // with its monotonic reading
	slept time.Duration
	steps []clockStep // forward, in the order of to
	total uint64      // in both directions

	idle      clockStep // the time in front of the first look, or not long before, that may not have passed; by is 0 where there is none
	idleUntil time.Time // when it is believed
}

// clockStep is a clock that was set forward, from about from. Files with a time until from were written before it; a time between the two is
// none that it has ever shown: it is of another clock, and no younger for this step.
type clockStep struct {
	from, to time.Time
	by       time.Duration
}

// look notices that the clock was set since the call before, and by how much. slept is for how long the machine was suspended, since some time: that has
// passed, and the monotonic clock does not tell.
func (a *ages) look(now time.Time, slept time.Duration) (by time.Duration) {
	last, passed := a.last, now.Sub(a.last)+slept-a.slept
	a.last, a.slept = now, slept
	if last.IsZero() {
		return 0
	}
	by = now.Round(0).Sub(last.Round(0)) - passed
	switch {
	case by >= minClockStep:
		a.forward(clockStep{from: now.Round(0).Add(-by), to: now.Round(0).Add(-passed), by: by})
	case by <= -minClockStep:
		a.back(-by)
	default:
		return 0
	}
	a.total++
	return by
}

func (a *ages) forward(s clockStep) {
	if len(a.steps) == maxClockSteps { // the younger of both times of writing counts for both: nothing goes too early
		a.steps[1].by += a.steps[0].by
		a.steps[1].from = later(a.steps[0].from, a.steps[1].from)
		a.steps = a.steps[1:]
	}
	a.steps = append(a.steps, s)
}

// doubts takes the time between two recordings for a step of the clock, as long as that may be. since may be when the keeper began, and lies less than
// doubtFor before. It returns that time, 0 where there is no doubt.
func (a *ages) doubts(before, since, begun time.Time) time.Duration {
	by := since.Round(0).Sub(before)
	if by <= maxIdle {
		by = 0
	}
	if !a.idleUntil.IsZero() { // as much as is left of it
		by = min(by, a.idle.by)
	}
	a.idle = clockStep{from: before, to: since.Round(0), by: by}
	a.idleUntil = begun.Add(doubtFor - begun.Round(0).Sub(since.Round(0)))
	return by
}

// back takes back what was wrong: a clock that was set forward by mistake is set right. Beyond that files are younger for a while than
// they are, and stay longer.
func (a *ages) back(by time.Duration) {
	for n := len(a.steps); n > 0 && by > 0; n-- {
		s := &a.steps[n-1]
		taken := min(s.by, by)
		s.by, by = s.by-taken, by-taken
		if s.by > 0 {
			return
		}
		a.steps = a.steps[:n-1]
	}
	a.idle.by -= min(a.idle.by, by)
}

// of is how much time has passed since a file was written.
func (a *ages) of(at, now time.Time) time.Duration {
	age := now.Round(0).Sub(at)
	if now.Before(a.idleUntil) && at.Before(a.idle.to) {
		age -= a.idle.by
	}
	for _, s := range a.steps {
		if at.Before(s.to) && !at.After(s.from.Add(aheadBy)) {
			age -= s.by
		}
	}
	return age
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

// idle is a time in which nothing may have been recorded: between the last recording that was longer than doubtFor before the keeper began,
// and the first that was not; zero = there is none.
type idle struct{ before, since time.Time }

// idleAt is that of one file.
func idleAt(at, begun time.Time) (i idle) {
	switch begun = begun.Round(0); {
	case at.Before(begun.Add(-doubtFor)):
		i.before = at
	case at.Before(begun):
		i.since = at
	}
	return i
}

func (i *idle) add(o idle) {
	i.before = later(i.before, o.before)
	if i.since.IsZero() || !o.since.IsZero() && o.since.Before(i.since) {
		i.since = o.since
	}
}
