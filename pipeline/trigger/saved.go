package trigger

import (
	"errors"
	"fmt"
	"regexp"
	"time"
)

// Saved is a plan while an event is recorded, for a recorder that takes it over: the one before has ended.
type Saved struct {
	Event Event     `json:"event"`
	Until time.Time `json:"until"`         // what triggers have asked for
	Open  time.Time `json:"open,omitzero"` // when the newest Start came that was not stopped
	Last  Request   `json:"last"`          // newest trigger, and when it came
	At    time.Time `json:"at"`
}

// ahead is how far a saved time may lie in front of the clock: it may have been set back.
const ahead = time.Minute

var validID = regexp.MustCompile(`\A[0-9TZ]{16}-[0-9a-z]{6}\z`)

// ValidID says whether s is what the id of an event looks like: 23 characters of ASCII.
func ValidID(s string) bool { return validID.MatchString(s) }

// check says what is wrong with what was saved: it stood in a file.
func (s *Saved) check(now time.Time) error {
	latest := now.Add(ahead)
	switch {
	case !ValidID(s.Event.ID):
		return errors.New("the event has no id")
	case s.Event.Start.IsZero() || s.Event.Trigger.IsZero() || s.Event.Start.After(latest) || s.Event.Trigger.After(latest) || s.At.After(latest) || s.Open.After(latest):
		return errors.New("its times are none of the past")
	case s.Until.After(latest.Add(MaxFor)):
		return fmt.Errorf("it lasts longer than %v", MaxFor)
	}
	return errors.Join(Request{Reason: s.Event.Reason}.Check(), s.Last.Check())
}

// Save returns what a Restore needs; nil = there is no event. changes counts what has happened to the plan.
func (p *Plan) Save() *Saved {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.event == nil {
		return nil
	}
	return &Saved{Event: *p.event, Until: p.until, Open: p.open, Last: p.last, At: p.at}
}

// Changes counts requests and events: where it is the same, Save returns the same.
func (p *Plan) Changes() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.changes
}

// Restore takes over an event that is under way, on an idle plan; false = it is over. What is not plausible is an error.
func (p *Plan) Restore(s Saved, now time.Time) (bool, error) {
	if err := s.check(now); err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	e := s.Event
	e.End, e.Continued = nil, true
	p.event, p.until, p.open, p.last, p.at = &e, s.Until, s.Open, s.Last, s.At
	end, open := p.end()
	if wanted := p.wanted(end); !open && !end.After(now) && !wanted.After(now) {
		p.event, p.open = nil, time.Time{}
		return false, nil
	}
	p.begun()
	return true, nil
}
