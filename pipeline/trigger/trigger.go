// Package trigger starts, prolongs and stops the recording of events: what a recorder is asked for and answers, what it makes of it
// (Plan), and the control sockets by which it is asked (Listen, Send).
//
// A recorder that waits for events has a socket KEY.XXXXXXXX.event in the runtime folder, beside the publishers' KEY.sock. A request
// is a line of JSON, its answer another one, and then the connection ends.
package trigger

import (
	"errors"
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

// Action is what a recorder is asked to do.
type Action string

const (
	// Momentary: something happens now, or from now on for as long as For says.
	Momentary Action = "trigger"
	// Start begins an event that lasts until Stop.
	Start Action = "start"
	// Stop ends the event; what follows it for the post-roll is recorded still.
	Stop Action = "stop"
)

const (
	// MaxReason bounds the reason's text, in bytes.
	MaxReason = 500
	// MaxFor bounds what one request asks for; who wants more asks again.
	MaxFor = 24 * time.Hour
)

// Request asks the recorders of a key for something. The zero value of Action is Momentary.
type Request struct {
	Action Action        `json:"action"`
	For    time.Duration `json:"for_ns,omitempty"` // of a Momentary one
	Reason string        `json:"reason,omitempty"` // for people; it goes with the event
}

// Check says what is wrong with a request.
func (r Request) Check() error {
	switch r.Action {
	case "", Momentary, Start, Stop:
	default:
		return fmt.Errorf("action %.40q: want trigger, start or stop", string(r.Action))
	}
	switch {
	case r.For != 0 && r.Action != "" && r.Action != Momentary:
		return errors.New("for goes with a trigger alone, not with start or stop")
	case r.For < 0 || r.For > MaxFor:
		return fmt.Errorf("for %v: want 0s to %v", r.For, MaxFor)
	case len(r.Reason) > MaxReason:
		return fmt.Errorf("the reason has %d bytes: want %d at most", len(r.Reason), MaxReason)
	case !utf8.ValidString(r.Reason):
		return errors.New("the reason is no UTF-8")
	case strings.ContainsFunc(r.Reason, unicode.IsControl):
		return errors.New("the reason holds control characters")
	}
	return nil
}

// Event is a span of time that is recorded.
type Event struct {
	ID      string     `json:"id"`
	Reason  string     `json:"reason"`  // of the first trigger that gave one
	Trigger time.Time  `json:"trigger"` // when the first trigger came
	Start   time.Time  `json:"start"`   // the trigger less the pre-roll
	End     *time.Time `json:"end"`     // post-roll included; null while it is not known

	Continued bool `json:"continued,omitempty"` // an earlier recorder has begun it
}

// State is what a request has changed.
type State string

// The states.
const (
	Started   State = "started"   // an event has begun
	Prolonged State = "prolonged" // an event goes on
	Stopping  State = "stopping"  // the event ends with its post-roll
	Idle      State = "idle"      // there was nothing to stop
)

// Answer is what a recorder says.
type Answer struct {
	Key   string `json:"key"`
	PID   int    `json:"pid"` // of the recorder, in its own namespace
	State State  `json:"state"`
	Event *Event `json:"event"`          // null when idle; its end is where it ends if nothing more comes, null = when it is stopped
	Note  string `json:"note,omitempty"` // of an event that has begun: what it will lack
}
