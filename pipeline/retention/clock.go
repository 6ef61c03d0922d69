package retention

import "time"

const (
	// minClockStep is more than what clock daemons slew away between two looks.
	minClockStep = time.Minute
	// maxClockSteps bounds what is remembered; two of them become one then.
	maxClockSteps = 16
	// Where the newest recording was longer ago than maxIdle when the keeper began, nobody knows whether that time has passed or the clock is wrong, which
	// time servers or people set right within doubtFor.
	maxIdle, doubtFor = 24 * time.Hour, 24 * time.Hour
	// aheadBy is how far in front of the clock a file was written that was written by another clock, and not by that of a file server.
	aheadBy = time.Hour
)

// ages tells how old recordings are by the time that has passed, which is what retention by age means: when the system's clock is set
// forward by a day, what was recorded before is not a day older. The clock is believed as it stands at the first look, but for a time in which nothing was
// recorded.
type ages struct {
	last  time.Time   // with its monotonic reading
	steps []clockStep // forward, in the order of to
	total uint64      // in both directions

	idle      clockStep // the time in front of the first look that may not have passed; by is 0 where there is none
	idleUntil time.Time // when it is believed
}

// clockStep is a clock that was set forward. Files with a time before to were written before it.
type clockStep struct {
	to time.Time
	by time.Duration
}

// look notices that the clock was set since the call before, and by how much.
func (a *ages) look(now time.Time) (by time.Duration) {
	last := a.last
	a.last = now
	if last.IsZero() {
		return 0
	}
	passed := now.Sub(last)
	by = now.Round(0).Sub(last.Round(0)) - passed
	switch {
	case by >= minClockStep:
		a.forward(clockStep{to: now.Round(0).Add(-passed), by: by})
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
		a.steps = a.steps[1:]
	}
	a.steps = append(a.steps, s)
}

// doubts takes the time from the newest recording until the keeper began for a step of the clock, as long as that may be. It returns that time, 0 where
// there is no doubt.
func (a *ages) doubts(newest, begun time.Time) time.Duration {
	by := begun.Round(0).Sub(newest)
	if by <= maxIdle {
		by = 0
	}
	if !a.idleUntil.IsZero() { // as much as is left of it
		by = min(by, a.idle.by)
	}
	a.idle, a.idleUntil = clockStep{to: begun.Round(0), by: by}, begun.Add(doubtFor)
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
		if at.Before(s.to) {
			age -= s.by
		}
	}
	return age
}
