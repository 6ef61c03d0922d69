package session

import (
	"fmt"

	"github.com/cfpipe/cfpipe/nnrp"
)

// State is the state of a connection and its session (section 15.1).
type State uint8

// States.
const (
	Init        State = iota // the transport stands, no CLIENT_HELLO yet
	Negotiating              // CLIENT_HELLO is out, SERVER_HELLO_ACK is not
	Active                   // frames and patches flow
	Draining                 // CLOSE or a fatal ERROR: no new frames or patches
	Closed
)

func (s State) String() string {
	if int(s) < len(stateNames) {
		return stateNames[s]
	}
	return fmt.Sprintf("state_%d", uint8(s))
}

var stateNames = [...]string{"INIT", "NEGOTIATING", "ACTIVE", "DRAINING", "CLOSED"}

// next lists the transitions of section 15.1. Every state may also end in CLOSED: transports break.
var next = [...][]State{
	Init:        {Negotiating, Closed},
	Negotiating: {Active, Closed},
	Active:      {Draining, Closed},
	Draining:    {Closed},
	Closed:      {},
}

// To moves to another state and tells whether the specification allows it; if not, s is unchanged. A state may be entered again.
func (s *State) To(to State) bool {
	if *s == to {
		return true
	}
	for _, n := range next[*s] {
		if n == to {
			*s = to
			return true
		}
	}
	return false
}

// Channel is how a message travelled.
type Channel uint8

// Channels (section 5.2).
const (
	OnControl Channel = iota
	OnStream          // a unidirectional stream of its own
	OnDatagram
)

// Accept checks a message that arrived: whether the peer may send the type at all, on that channel, in this state. server tells who
// receives. The answer to a violation is invalid_state.
func (s State) Accept(server bool, t nnrp.MsgType, ch Channel) error {
	if !t.Known() {
		return nnrp.NewError(nnrp.CodeUnsupportedCapability, "message type 0x%02x is not known", uint8(t))
	}
	if !allowedFrom(!server, t) {
		return nnrp.NewError(nnrp.CodeInvalidState, "%s is not for this side to receive", t)
	}
	if !allowedOn(t, ch) {
		return nnrp.NewError(nnrp.CodeInvalidState, "%s does not travel on this channel", t)
	}
	ok := false
	switch s {
	case Init:
		ok = t == nnrp.MsgClientHello
	case Negotiating:
		ok = t == nnrp.MsgServerHelloAck || t == nnrp.MsgError || t == nnrp.MsgClose
	case Active:
		ok = t != nnrp.MsgClientHello && t != nnrp.MsgServerHelloAck
	case Draining: // what is under way is brought to an end
		switch t {
		case nnrp.MsgClientHello, nnrp.MsgServerHelloAck, nnrp.MsgFrameSubmit, nnrp.MsgSessionPatch, nnrp.MsgCachePut:
		default:
			ok = true
		}
	}
	if !ok {
		e := nnrp.NewError(nnrp.CodeInvalidState, "%s in state %s", t, s)
		if s < Active { // nothing was agreed yet that could go on
			e.Scope, e.Fatal = nnrp.ScopeConnection, true
		}
		return e
	}
	return nil
}

func allowedFrom(server bool, t nnrp.MsgType) bool {
	switch t {
	case nnrp.MsgClientHello, nnrp.MsgSessionPatch, nnrp.MsgFrameSubmit, nnrp.MsgFrameCancel:
		return !server
	case nnrp.MsgServerHelloAck, nnrp.MsgSessionPatchAck, nnrp.MsgResultPush, nnrp.MsgResultDrop:
		return server
	}
	return true
}

func allowedOn(t nnrp.MsgType, ch Channel) bool {
	switch t {
	case nnrp.MsgFrameSubmit, nnrp.MsgResultPush:
		return ch == OnStream
	case nnrp.MsgResultDrop:
		return ch != OnControl
	case nnrp.MsgFrameCancel, nnrp.MsgPing, nnrp.MsgPong:
		return ch != OnStream
	}
	return ch == OnControl
}
