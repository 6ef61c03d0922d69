package trigger

import (
	"crypto/rand"
	"fmt"
	"strings"
	"sync"
	"time"
)

// PlanOptions say how much is recorded around what triggers ask for.
type PlanOptions struct {
	Pre, Post time.Duration
	// Longest bounds an event, Pre and Post included; 0 = it is not bounded. An event that is started and never stopped ends there; where
	// triggers ask for more, the next event begins there.
	Longest time.Duration
}

// farBehind is longer than a ring remembers: what an event would hold that ended before then is gone. The clock was set forward meanwhile, or the event
// is one of long ago; without this bound it would be made up for by one empty event after another.
const farBehind = time.Hour

// Plan turns triggers into events, one at a time. Requests come from any goroutine; one recorder asks Event, records until End, and calls
// Finish. It has no clock of its own.
type Plan struct {
	o       PlanOptions
	started chan struct{}

	mu    sync.Mutex
	event *Event    // nil = idle
	until time.Time // what triggers have asked for, post-roll not included
	open  time.Time // when the newest Start came; zero = none, or stopped
	last  Request   // newest trigger, and when it came
	at    time.Time

	changes uint64 // of all these
}

// NewPlan returns an idle plan.
func NewPlan(o PlanOptions) *Plan { return &Plan{o: o, started: make(chan struct{}, 1)} }

// Started tells when there is an event.
func (p *Plan) Started() <-chan struct{} { return p.started }

// Handle takes a request that has come now and was checked.
func (p *Plan) Handle(r Request, now time.Time) Answer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if r.Action == Stop && p.event == nil {
		return Answer{State: Idle}
	}
	p.changes++
	if r.Action == Stop {
		if !p.open.IsZero() || now.Before(p.until) {
			p.until = now
		}
		p.open = time.Time{}
		return p.answer(Stopping)
	}
	state := Prolonged
	if p.event == nil {
		p.until = time.Time{}
		p.begin(now.Add(-p.o.Pre), r, now)
		state = Started
	}
	if p.event.Reason == "" {
		p.event.Reason = r.Reason
	}
	p.last, p.at = r, now
	if r.Action == Start {
		p.open = now
	} else if t := now.Add(r.For); t.After(p.until) {
		p.until = t
	}
	return p.answer(state)
}

func (p *Plan) begin(start time.Time, r Request, at time.Time) {
	p.event = &Event{ID: newID(at), Reason: r.Reason, Trigger: at, Start: start}
	p.begun()
}

func (p *Plan) begun() {
	p.changes++
	select {
	case p.started <- struct{}{}:
	default:
	}
}

// newID names an event: its time, for people, and chance.
func newID(at time.Time) string {
	return fmt.Sprintf("%s-%s", at.UTC().Format("20060102T150405Z"), strings.ToLower(rand.Text()[:6]))
}

// end is where the event ends as things are; open: when somebody says so.
func (p *Plan) end() (end time.Time, open bool) {
	most := p.event.Start.Add(p.o.Longest)
	switch end = p.until.Add(p.o.Post); {
	case !p.open.IsZero() && p.o.Longest == 0:
		return time.Time{}, true
	case p.o.Longest > 0 && (!p.open.IsZero() || end.After(most)):
		return most, false
	}
	return end, false
}

// renewed says whether the event was started again: then the start is the next event's where the bound ends this one.
func (p *Plan) renewed() bool { return p.open.After(p.event.Trigger) }

// wanted is until when there is something to record behind the end of the event, where the next one begins then.
func (p *Plan) wanted(start time.Time) time.Time {
	if p.renewed() {
		return start.Add(p.o.Longest)
	}
	return p.until.Add(p.o.Post)
}

func (p *Plan) answer(s State) Answer {
	e := *p.event
	if end, open := p.end(); !open && p.open.IsZero() {
		e.End = &end
	}
	return Answer{State: s, Event: &e}
}

// Event is the event to be recorded now, nil = none. Its End is not known yet.
func (p *Plan) Event() *Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.event == nil {
		return nil
	}
	e := *p.event
	return &e
}

// End is where the event ends as things are; false = there is none, or it is not known.
func (p *Plan) End() (time.Time, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.event == nil {
		return time.Time{}, false
	}
	end, open := p.end()
	return end, !open
}

// Finish ends the event when everything up to at was recorded and no trigger asks for more; else it returns nil, and the recording
// goes on. unstopped says that somebody had started the event and the bound has ended it. What was asked for beyond the bound is the next
// event, which begins where this one ends; where that is farBehind, it begins Pre before at.
func (p *Plan) Finish(at time.Time) (done *Event, unstopped bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.event == nil {
		return nil, false
	}
	end, open := p.end()
	if open || at.Before(end) {
		return nil, false
	}
	done = p.event
	done.End = &end
	start := end
	if at.Sub(end) > farBehind+p.o.Longest {
		start = at.Add(-p.o.Pre)
	}
	more := p.wanted(start).After(start)
	unstopped = !p.open.IsZero() && !p.renewed()
	if !p.renewed() {
		p.open = time.Time{}
	}
	p.event = nil
	p.changes++
	if more {
		next := p.last
		if next.Reason == "" {
			next.Reason = done.Reason
		}
		p.begin(start, next, p.at)
	}
	return done, unstopped
}

// Abandon ends the event where the recorder stops; nil = there is none.
func (p *Plan) Abandon(at time.Time) *Event {
	p.mu.Lock()
	defer p.mu.Unlock()
	done := p.event
	if done != nil {
		if end, open := p.end(); !open && end.Before(at) {
			at = end
		}
		done.End = &at
	}
	p.event, p.open = nil, time.Time{}
	p.changes++
	return done
}
