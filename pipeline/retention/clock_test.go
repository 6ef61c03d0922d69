package retention

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Files from before a step, from after it and from while the clock was wrong. How a step is found the test of a whole site shows.
func TestAges(t *testing.T) {
	const hour, day = time.Hour, 24 * time.Hour
	start := time.Now().Round(0)
	a := &ages{}
	a.forward(clockStep{from: start, to: start.Add(day), by: day})
	now := start.Add(2*hour + day)
	require.Equal(t, 3*hour, a.of(start.Add(-hour), now), "written before")
	require.Equal(t, hour, a.of(start.Add(day+hour), now), "written after")
	a.back(day)
	require.Empty(t, a.steps)
	now = start.Add(3 * hour)
	require.Equal(t, 4*hour, a.of(start.Add(-hour), now))
	require.Less(t, a.of(start.Add(day+hour), now), time.Duration(0), "written while it was wrong")

	a.forward(clockStep{from: start, to: start.Add(day), by: day})
	a.back(18 * hour)
	require.Equal(t, 6*hour, a.steps[0].by)
	for i := range 2 * maxClockSteps {
		a.forward(clockStep{from: start.Add(time.Duration(i+2)*day - hour), to: start.Add(time.Duration(i+2) * day), by: hour})
	}
	require.Len(t, a.steps, maxClockSteps)
	require.Equal(t, hour, a.of(start, start.Add(7*hour+2*maxClockSteps*hour)), "nothing is forgotten")
}

// What is not a step: time that passes, slowly slewed or not.
func TestAgesNoStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &ages{}
		for range 100 {
			require.Zero(t, a.look(time.Now(), 0))
			time.Sleep(7 * time.Hour)
		}
		require.Zero(t, a.total)

		// A machine that sleeps: its clock goes on, and the monotonic one does not. Here both do, and the clock is set back by as much.
		require.Equal(t, -8*time.Hour, a.look(time.Now(), 8*time.Hour))
		time.Sleep(time.Hour)
		require.Zero(t, a.look(time.Now(), 8*time.Hour))
	})
}

// A clock that is set forward by a year removes nothing that is young by the time that has passed.
func TestRetentionClockSet(t *testing.T) {
	s := newShelf(t, hourly, Bounds{Age: 12 * time.Hour}, Bounds{})
	s.put("a/2026-01-01/00.mp4", 13*time.Hour)
	s.put("a/2026-01-01/01.mp4", 11*time.Hour)
	s.put("a/2026-01-01/02.mp4", time.Hour)
	s.pass()
	require.Equal(t, []string{"a/2026-01-01/01.mp4", "a/2026-01-01/02.mp4"}, s.left())
	const year = 365 * 24 * time.Hour
	s.k.ages.forward(clockStep{from: s.now.Round(0), to: s.now.Round(0).Add(year), by: year})
	s.now = s.now.Add(year + time.Hour/2)
	s.pass()
	require.Len(t, s.left(), 2)
	s.now = s.now.Add(time.Hour)
	s.pass()
	require.Equal(t, []string{"a/2026-01-01/02.mp4"}, s.left())
}

// A host comes up with a clock that is a year ahead: nothing is removed by age, whether the clock is set right within a day or nobody knows; the other
// bounds hold. When a day has passed the clock is believed.
func TestRetentionClockAheadAtStart(t *testing.T) {
	const day, year = 24 * time.Hour, 365 * 24 * time.Hour
	names := []string{"a/2026-01-01/00.mp4", "a/2026-01-01/01.mp4", "a/2026-01-01/02.mp4"}
	start := func(own Bounds) *shelf {
		s := newShelf(t, hourly, own, Bounds{})
		for i, name := range names {
			s.put(name, year+day*time.Duration(3-i)) // three days, two days, one day by a clock that is right
		}
		s.put("a/2027-01-01/00.mp4", -time.Second) // what is recorded now says nothing of the clock
		s.pass()
		return s
	}
	s := start(Bounds{Age: 5 * day})
	require.Len(t, s.left(), 4)
	s.now = s.now.Add(23 * time.Hour)
	s.pass()
	require.Len(t, s.left(), 4, "three days and 23 hours")
	s.now = s.now.Add(2 * time.Hour)
	s.pass()
	require.Len(t, s.left(), 1, "the clock is believed, and the host was away for a year")

	s = start(Bounds{Age: 5 * day})
	s.k.ages.back(year)
	require.LessOrEqual(t, s.k.ages.idle.by, day, "it is known now how long the host was away")
	require.Len(t, start(Bounds{Age: 5 * day, Size: 3000}).left(), 3)

	// The newest recording is two hours too old, and a host was away for the night.
	s = newShelf(t, hourly, Bounds{Age: 4 * time.Hour}, Bounds{})
	s.put(names[0], 6*time.Hour)
	s.pass()
	require.Empty(t, s.left())
}

// A clock is set back by a year, or a host comes up with one that is a year behind: nothing is removed by age but what is too old by that clock too, and for
// lack of space what was recorded before goes before what is recorded now.
func TestRetentionClockBehind(t *testing.T) {
	const day, year = 24 * time.Hour, 365 * 24 * time.Hour
	for _, c := range []struct {
		own  Bounds
		left []string
	}{
		{Bounds{Age: 25 * time.Hour}, []string{"a/2026-06-01/00.mp4", "a/2026-06-01/01.mp4", "a/2025-06-01/01.mp4"}},
		{Bounds{Size: 2000}, []string{"a/2025-06-01/00.mp4", "a/2025-06-01/01.mp4"}},
		{Bounds{Size: 3000}, []string{"a/2026-06-01/01.mp4", "a/2025-06-01/00.mp4", "a/2025-06-01/01.mp4"}},
	} {
		s := newShelf(t, hourly, c.own, Bounds{})
		s.put("a/2026-06-01/00.mp4", day-year)
		s.put("a/2026-06-01/01.mp4", time.Hour-year)
		s.put("a/2025-06-01/00.mp4", 26*time.Hour)
		s.put("a/2025-06-01/01.mp4", 4*time.Hour)
		s.pass()
		require.ElementsMatch(t, c.left, s.left(), c.own)
	}
}

// A process that begins anew while the clock is wrong does not take for its own what the one before has recorded by the same clock.
func TestRetentionRestartedWhileAhead(t *testing.T) {
	const day, year = 24 * time.Hour, 365 * 24 * time.Hour
	s := newShelf(t, hourly, Bounds{Age: 5 * day}, Bounds{})
	s.put("a/2026-01-01/00.mp4", year+2*day)
	s.put("a/2026-01-01/01.mp4", year+day)
	s.put("a/2027-01-01/00.mp4", 2*time.Hour) // of the process before
	s.put("a/2027-01-01/01.mp4", time.Minute)
	s.pass()
	require.Len(t, s.left(), 4)
	s.now = s.now.Add(21 * time.Hour)
	s.pass()
	require.Len(t, s.left(), 4)
	s.now = s.now.Add(2 * time.Hour)
	s.pass()
	require.Len(t, s.left(), 2, "a day after the first recording the clock is believed")
}

// A host comes up with a clock of 1970 that is set right: what was recorded before it came up is as old as it is.
func TestRetentionClockSetRight(t *testing.T) {
	const day, decades = 24 * time.Hour, 50 * 365 * 24 * time.Hour
	s := newShelf(t, hourly, Bounds{Age: 5 * day}, Bounds{})
	s.put("a/2026-06-01/00.mp4", 6*day-decades)
	s.put("a/2026-06-01/01.mp4", 4*day-decades)
	s.put("a/1970-01-01/00.mp4", time.Minute)
	s.pass()
	require.Len(t, s.left(), 3)
	s.k.ages.forward(clockStep{from: s.now.Round(0), to: s.now.Round(0).Add(decades), by: decades})
	s.now = s.now.Add(decades)
	for _, l := range s.k.ledgers { // the next look at the folders, which has no clock of the test's, finds them so
		l.scanned = s.now
		for i := range l.oldest {
			l.oldest[i].ahead = false
		}
	}
	s.pass()
	require.Equal(t, []string{"a/1970-01-01/00.mp4", "a/2026-06-01/01.mp4"}, s.left())
}
