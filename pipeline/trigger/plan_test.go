package trigger

import (
	"encoding/json"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// step is a request, or the recorder's word that it has recorded up to a time.
type step struct {
	at     time.Duration
	action Action // "" = Finish
	dur    time.Duration
	state  State
	end    time.Duration // of the event as things are, or of the one that is done; -1 = not known, or not done
}

func TestPlan(t *testing.T) {
	const pre, post = 10 * time.Second, 5 * time.Second
	s := time.Second
	cases := map[string]struct {
		longest time.Duration
		steps   []step
	}{
		"one": {0, []step{{0, Momentary, 0, Started, 5 * s}, {4 * s, "", 0, "", -1}, {5 * s, "", 0, "", 5 * s}, {6 * s, Stop, 0, Idle, -1}}},
		"prolonged by the next, to the latest end": {0, []step{
			{0, Momentary, 20 * s, Started, 25 * s}, {3 * s, Momentary, 0, Prolonged, 25 * s}, {22 * s, Momentary, 0, Prolonged, 27 * s}, {25 * s, "", 0, "", -1},
			{27 * s, "", 0, "", 27 * s}, {28 * s, Momentary, 0, Started, 33 * s}, {40 * s, "", 0, "", 33 * s},
		}},
		"in the post-roll":               {0, []step{{0, Momentary, 0, Started, 5 * s}, {4 * s, Momentary, 0, Prolonged, 9 * s}, {8 * s, "", 0, "", -1}, {9 * s, "", 0, "", 9 * s}}},
		"behind the end, not done yet":   {0, []step{{0, Momentary, 0, Started, 5 * s}, {6 * s, Momentary, 0, Prolonged, 11 * s}, {7 * s, "", 0, "", -1}}},
		"started and stopped":            {0, []step{{0, Start, 0, Started, -1}, {3600 * s, "", 0, "", -1}, {3600 * s, Stop, 0, Stopping, 3605 * s}, {3605 * s, "", 0, "", 3605 * s}}},
		"stop takes back what was asked": {0, []step{{0, Momentary, 60 * s, Started, 65 * s}, {2 * s, Stop, 0, Stopping, 7 * s}}},
		"stop in the post-roll":          {0, []step{{0, Momentary, 0, Started, 5 * s}, {4 * s, Stop, 0, Stopping, 5 * s}}},
		"a trigger while it is open":     {0, []step{{0, Start, 0, Started, -1}, {1 * s, Momentary, 0, Prolonged, -1}, {2 * s, Stop, 0, Stopping, 7 * s}}},
		"never stopped":                  {30 * s, []step{{0, Start, 0, Started, -1}, {19 * s, "", 0, "", -1}, {20 * s, "", 0, "", 20 * s}, {20 * s, "", 0, "", -1}, {21 * s, Stop, 0, Idle, -1}}},
		"more than the longest": {30 * s, []step{
			{0, Momentary, 45 * s, Started, 20 * s}, {20 * s, "", 0, "", 20 * s}, {49 * s, "", 0, "", -1}, {50 * s, "", 0, "", 50 * s}, {60 * s, "", 0, "", -1},
		}},
		"exactly the longest":    {30 * s, []step{{0, Momentary, 15 * s, Started, 20 * s}, {20 * s, "", 0, "", 20 * s}, {21 * s, "", 0, "", -1}}},
		"started again, bounded": {30 * s, []step{{0, Start, 0, Started, -1}, {10 * s, Start, 0, Prolonged, -1}, {20 * s, "", 0, "", 20 * s}, {49 * s, "", 0, "", -1}, {50 * s, "", 0, "", 50 * s}, {51 * s, Stop, 0, Idle, -1}}},
	}
	base := time.Unix(1_700_000_000, 0).UTC()
	for name, c := range cases {
		run := func(t *testing.T, between func(p *Plan, now time.Time) *Plan) {
			p := NewPlan(PlanOptions{Pre: pre, Post: post, Longest: c.longest})
			for i, x := range c.steps {
				now := base.Add(x.at)
				if i > 0 {
					p = between(p, base.Add(c.steps[i-1].at))
				}
				if x.action == "" {
					e, _ := p.Finish(now)
					if x.end < 0 {
						require.Nil(t, e, i)
					} else {
						require.NotNil(t, e, i)
						require.Equal(t, base.Add(x.end), *e.End, i)
					}
					continue
				}
				a := p.Handle(Request{Action: x.action, For: x.dur}, now)
				require.Equal(t, x.state, a.State, i)
				if x.end < 0 {
					require.True(t, a.Event == nil || a.Event.End == nil, i)
				} else {
					require.Equal(t, base.Add(x.end), *a.Event.End, i)
				}
				if x.state == Started {
					require.Equal(t, now.Add(-pre), a.Event.Start)
					require.Equal(t, now, a.Event.Trigger)
				}
			}
		}
		t.Run(name, func(t *testing.T) { run(t, func(p *Plan, _ time.Time) *Plan { return p }) })
		t.Run(name+", each step by another recorder", func(t *testing.T) {
			run(t, func(p *Plan, now time.Time) *Plan {
				s := p.Save()
				if s == nil {
					return p
				}
				b, err := json.Marshal(s)
				require.NoError(t, err)
				var read Saved
				require.NoError(t, json.Unmarshal(b, &read))
				next := NewPlan(p.o)
				going, err := next.Adopt(read, now)
				require.NoError(t, err)
				require.True(t, going)
				require.True(t, next.Event().Continued)
				require.Equal(t, s.Event.ID, next.Event().ID)
				return next
			})
		})
	}
}

// An event that is over when its next recorder comes is not taken over; what triggers asked for beyond its bound is.
func TestAdoptLate(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	for name, c := range map[string]struct {
		longest time.Duration
		asks    []Request
		over    time.Duration // from the first trigger on
	}{
		"a trigger":            {0, []Request{{}}, 5 * time.Second},
		"bounded":              {time.Minute, []Request{{Action: Start}}, time.Minute},
		"more than the bound":  {time.Minute, []Request{{For: 5 * time.Minute}}, 305 * time.Second},
		"started again":        {time.Minute, []Request{{Action: Start}, {Action: Start}}, 2 * time.Minute},
		"started, not stopped": {0, []Request{{Action: Start}}, 1000 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			p := NewPlan(PlanOptions{Post: 5 * time.Second, Longest: c.longest})
			for i, r := range c.asks {
				p.Handle(r, now.Add(time.Duration(i)*time.Second))
			}
			s := *p.Save()
			for at, want := range map[time.Duration]bool{0: true, c.over - time.Second: true, c.over + 2*time.Second: c.over > 500*time.Hour} {
				next := NewPlan(p.o)
				going, err := next.Adopt(s, now.Add(at))
				require.NoError(t, err)
				require.Equal(t, want, going, at)
				require.Equal(t, want, next.Event() != nil, at)
			}
		})
	}
}

// Where the clock was set, or an event of long ago is taken over, what was asked for since then is not one empty event after another.
func TestPlanFarBehind(t *testing.T) {
	const pre, post, longest, day = 10 * time.Second, 5 * time.Second, 30 * time.Second, 24 * time.Hour
	base := time.Unix(0, 0).UTC()
	now := base.Add(20_000 * day)
	for name, r := range map[string]Request{"prolonged": {Action: Momentary, For: 50 * time.Second}, "started again": {Action: Start}} {
		p := NewPlan(PlanOptions{Pre: pre, Post: post, Longest: longest})
		p.Handle(Request{Action: Start}, base)
		p.Handle(r, now)
		done, _ := p.Finish(now)
		require.Equal(t, base.Add(longest-pre), *done.End, name)
		require.Equal(t, now.Add(-pre), p.Event().Start, name)
		done, _ = p.Finish(now.Add(longest - pre - 1))
		require.Nil(t, done, name)
		done, _ = p.Finish(now.Add(longest - pre))
		require.NotNil(t, done, name)
		require.Equal(t, r.Action == Momentary, p.Event() != nil, name)
	}
	p := NewPlan(PlanOptions{Pre: pre, Post: post, Longest: longest})
	p.Handle(Request{Action: Momentary, For: 10 * day}, base)
	done, _ := p.Finish(now)
	require.NotNil(t, done)
	require.Nil(t, p.Event(), "nothing was asked for that is not over")
}

func TestPlanReason(t *testing.T) {
	p := NewPlan(PlanOptions{Post: time.Second, Longest: 10 * time.Second})
	now := time.Unix(1_700_000_000, 0)
	p.Handle(Request{}, now)
	p.Handle(Request{Reason: "bell"}, now)
	a := p.Handle(Request{Reason: "other", For: time.Minute}, now)
	require.Equal(t, "bell", a.Event.Reason)
	done, unstopped := p.Finish(now.Add(10 * time.Second))
	require.False(t, unstopped)
	next := p.Event()
	require.Equal(t, "other", next.Reason)
	require.NotEqual(t, done.ID, next.ID)
	require.Equal(t, *done.End, next.Start, "no gap")
	require.NotNil(t, p.Abandon(now.Add(11*time.Second)))
	require.Nil(t, p.Event())
	require.Nil(t, p.Abandon(now))
	p.Handle(Request{Action: Start}, now)
	_, unstopped = p.Finish(now.Add(10 * time.Second))
	require.True(t, unstopped)
}

// Whatever comes when: every moment from a trigger less the pre-roll to its end and the post-roll lies in an event, and no event is
// longer than the bound.
func TestPlanCoversAll(t *testing.T) {
	const pre, post, longest = 3 * time.Second, 2 * time.Second, 12 * time.Second
	type span struct{ from, to time.Time }
	for seed := range uint64(300) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		p := NewPlan(PlanOptions{Pre: pre, Post: post, Longest: longest})
		now := time.Unix(1_700_000_000, 0)
		var wanted, got []span
		finish := func(e *Event) {
			require.LessOrEqual(t, e.End.Sub(e.Start), longest)
			got = append(got, span{e.Start, *e.End})
		}
		for range 60 {
			now = now.Add(time.Duration(rnd.IntN(4000)) * time.Millisecond)
			if rnd.IntN(2) == 0 { // the recorder may lag, though not farBehind
				for e, _ := p.Finish(now); e != nil; e, _ = p.Finish(now) {
					finish(e)
				}
			}
			r := Request{Action: Momentary, For: time.Duration(rnd.IntN(3)*rnd.IntN(20)) * time.Second}
			wanted = append(wanted, span{now.Add(-pre), now.Add(r.For + post)})
			p.Handle(r, now)
		}
		now = now.Add(farBehind / 2)
		for e, _ := p.Finish(now); e != nil; e, _ = p.Finish(now) {
			finish(e)
		}
		require.Nil(t, p.Event())
		for _, w := range wanted {
			at := w.from
			for moved := true; moved && at.Before(w.to); {
				moved = false
				for _, g := range got {
					if !g.from.After(at) && g.to.After(at) {
						at, moved = g.to, true
					}
				}
			}
			require.False(t, at.Before(w.to), "seed %d: from %v on nothing of %v is recorded", seed, at, w)
		}
	}
}

// Requests from all sides while a recorder records.
func TestPlanRace(t *testing.T) {
	p := NewPlan(PlanOptions{Post: time.Millisecond, Longest: time.Second})
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 500 {
				p.Handle(Request{Action: Momentary}, time.Now())
				p.Handle(Request{Action: Start}, time.Now())
				p.Handle(Request{Action: Stop}, time.Now())
			}
		})
	}
	stop := make(chan struct{})
	var recorder sync.WaitGroup
	recorder.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-p.Started():
				for p.Event() != nil {
					_, _ = p.End()
					_, _ = p.Finish(time.Now())
				}
			}
		}
	})
	wg.Wait()
	close(stop)
	recorder.Wait()
}
