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

// Save returns what Adopt needs; nil = there is no event.
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

// Adopt takes over an event that another recorder was recording; false = it is over, and the plan stays as it is. An event that the plan has already
// becomes a part of it: the triggers came to both. What is not plausible is an error.
func (p *Plan) Adopt(s Saved, now time.Time) (bool, error) {
	if err := s.check(now); err != nil {
		return false, err
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	own := Saved{Until: p.until, Open: p.open, Last: p.last, At: p.at}
	mine := p.event
	e := s.Event
	e.End, e.Continued = nil, true
	p.event, p.until, p.open, p.last, p.at = &e, s.Until, s.Open, s.Last, s.At
	end, open := p.end()
	if wanted := p.wanted(end); !open && !end.After(now) && !wanted.After(now) {
		p.event, p.until, p.open, p.last, p.at = mine, own.Until, own.Open, own.Last, own.At
		return false, nil
	}
	if mine != nil {
		p.join(mine.ID == e.ID, own)
	}
	p.begun()
	return true, nil
}

// join adds what triggers have asked this plan for to the event that it has adopted; same: it has adopted the event before, and a start that
// is no longer open was stopped meanwhile.
func (p *Plan) join(same bool, own Saved) {
	p.until = later(p.until, own.Until)
	if p.open = later(p.open, own.Open); same && own.Open.IsZero() {
		p.open = time.Time{}
	}
	if own.At.After(p.at) {
		p.last, p.at = own.Last, own.At
	}
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}
