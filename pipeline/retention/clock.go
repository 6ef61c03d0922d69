package retention

import "time"

const (
	// minClockStep is more than what clock daemons slew away between two looks.
	minClockStep = time.Minute
	// maxClockSteps bounds what is remembered; two of them become one then.
	maxClockSteps = 16
)

// ages tells how old recordings are by the time that has passed, which is what retention by age means: when the system's clock is set
// forward by a day, what was recorded before is not a day older. The clock is believed as it stands at the first look.
type ages struct {
	last  time.Time   // with its monotonic reading
	steps []clockStep // forward, in the order of to
	total uint64      // in both directions
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
}

// of is how much time has passed since a file was written.
func (a *ages) of(at, now time.Time) time.Duration {
	age := now.Round(0).Sub(at)
	for _, s := range a.steps {
		if at.Before(s.to) {
			age -= s.by
		}
	}
	return age
}
