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
	a.forward(clockStep{to: start.Add(day), by: day})
	now := start.Add(2*hour + day)
	require.Equal(t, 3*hour, a.of(start.Add(-hour), now), "written before")
	require.Equal(t, hour, a.of(start.Add(day+hour), now), "written after")
	a.back(day)
	require.Empty(t, a.steps)
	now = start.Add(3 * hour)
	require.Equal(t, 4*hour, a.of(start.Add(-hour), now))
	require.Less(t, a.of(start.Add(day+hour), now), time.Duration(0), "written while it was wrong")

	a.forward(clockStep{to: start.Add(day), by: day})
	a.back(18 * hour)
	require.Equal(t, 6*hour, a.steps[0].by)
	for i := range 2 * maxClockSteps {
		a.forward(clockStep{to: start.Add(time.Duration(i+2) * day), by: hour})
	}
	require.Len(t, a.steps, maxClockSteps)
	require.Equal(t, hour, a.of(start, start.Add(7*hour+2*maxClockSteps*hour)), "nothing is forgotten")
}

// What is not a step: time that passes, slowly slewed or not.
func TestAgesNoStep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &ages{}
		for range 100 {
			require.Zero(t, a.look(time.Now()))
			time.Sleep(7 * time.Hour)
		}
		require.Zero(t, a.total)
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
	s.k.ages.forward(clockStep{to: s.now.Round(0).Add(year), by: year})
	s.now = s.now.Add(year + time.Hour/2)
	s.pass()
	require.Len(t, s.left(), 2)
	s.now = s.now.Add(time.Hour)
	s.pass()
	require.Equal(t, []string{"a/2026-01-01/02.mp4"}, s.left())
}
