package pipeline

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// A camera whose clock is late has a rate all the same, and one that brings nothing has none.
func TestRateOfLateClock(t *testing.T) {
	testenv.Watchdog(t, 30*time.Second)
	p := newPair(t, false)
	send := func(i int) { p.send(p.video, time.Duration(i)*40*time.Millisecond-time.Minute, i%25 == 0) }
	for i := range 50 {
		send(i)
	}
	s, err := InspectKey(p.dir, p.key)
	require.NoError(t, err)
	require.Greater(t, *s.AgeSeconds, 50.0)
	require.Zero(t, s.PacketsPerSecond, "nothing comes")
	send(50)
	s, err = InspectKey(p.dir, p.key)
	require.NoError(t, err)
	require.InDelta(t, 25, s.PacketsPerSecond, 0.1, "something came since the last look")
	require.NotZero(t, s.KbitPerSecond)
	list, err := ListKeys(p.dir)
	require.NoError(t, err)
	require.InDelta(t, 25, list[0].PacketsPerSecond, 0.1, "it was but now")

	// The first look of a process sees packets come.
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for i := 51; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(10 * time.Millisecond):
				send(i)
			}
		}
	}()
	keys := []*KeyStatus{&list[0]}
	(&ringLooks{}).settle(keys)
	close(stop)
	<-ended
	require.InDelta(t, 25, list[0].PacketsPerSecond, 0.1)
}

// What is remembered of a ring: it moves for a while after its packets have come.
func TestRingLooks(t *testing.T) {
	var l ringLooks
	now := time.Now()
	for _, c := range []struct {
		seq          uint64
		after        time.Duration
		moves, known bool
	}{
		{10, 0, false, false}, {10, time.Second, false, true}, {11, 2 * time.Second, true, true}, {11, 6 * time.Second, true, true},
		{11, 8 * time.Second, false, true}, {12, time.Minute, true, true}, {3, 2 * time.Minute, true, true},
	} {
		moves, known := l.moves("a", c.seq, now.Add(c.after))
		require.Equal(t, []bool{c.moves, c.known}, []bool{moves, known}, "%+v", c)
	}
}
