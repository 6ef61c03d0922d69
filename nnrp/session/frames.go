package session

import (
	"fmt"
	"time"

	"github.com/cfpipe/cfpipe/nnrp"
)

// FrameState is the state of one frame (section 15.2).
type FrameState uint8

// Frame states; Delivered and those behind it are final.
const (
	Announced  FrameState = iota // the id exists, nothing was sent
	Submitted                    // FRAME_SUBMIT is under way or waits for its turn
	Processing                   // the engine has it
	Ready                        // the result exists and is being sent or applied
	Delivered
	Dropped
	Cancelled
	Expired
)

var frameStateNames = [...]string{"ANNOUNCED", "SUBMITTED", "PROCESSING", "READY", "DELIVERED", "DROPPED", "CANCELLED", "EXPIRED"}

func (s FrameState) String() string {
	if int(s) < len(frameStateNames) {
		return frameStateNames[s]
	}
	return fmt.Sprintf("frame_state_%d", uint8(s))
}

// Final tells whether nothing can follow.
func (s FrameState) Final() bool { return s >= Delivered }

// FrameKey names a frame within its session. Lanes share nothing: the same id in two views is two frames.
type FrameKey struct {
	View uint16
	ID   uint32
}

// frameHistory is how many ended frames a side remembers, for retransmits and to tell a late message from a wrong one.
const frameHistory = 256

type frameEntry struct {
	state FrameState
	class nnrp.FrameClass
}

// Frames holds the lives of a session's frames. The zero value refuses every frame; use NewFrames.
type Frames struct {
	max     int
	live    map[FrameKey]frameEntry
	active  int // in SUBMITTED or PROCESSING
	ended   map[FrameKey]FrameState
	ring    [frameHistory]FrameKey
	ringLen int
	ringPos int
}

// NewFrames returns a table that allows max frames between FRAME_SUBMIT and their result. As many again may be on their way out:
// a peer that has seen a result submits the next frame before this side has noticed that the result was sent.
func NewFrames(max int) *Frames {
	return &Frames{max: max, live: make(map[FrameKey]frameEntry, 2*max), ended: make(map[FrameKey]FrameState, frameHistory)}
}

// Live returns the number of frames that have not ended.
func (f *Frames) Live() int { return len(f.live) }

// Active returns the number of frames that wait for a result.
func (f *Frames) Active() int { return f.active }

// Full tells whether Submit would answer limit_exceeded.
func (f *Frames) Full() bool { return f.active >= f.max || len(f.live) >= 2*f.max }

// State returns a frame's state; false: neither alive nor remembered.
func (f *Frames) State(k FrameKey) (FrameState, bool) {
	if e, ok := f.live[k]; ok {
		return e.state, true
	}
	s, ok := f.ended[k]
	return s, ok
}

// Submit begins a frame's life in SUBMITTED. A retransmit names the frame that it repeats, and that frame must be known.
func (f *Frames) Submit(k FrameKey, class nnrp.FrameClass, dependency uint32) error {
	refuse := func(code nnrp.ErrorCode, format string, args ...any) error {
		return nnrp.NewError(code, format, args...).ForFrame(k.View, k.ID)
	}
	if k.ID == 0 {
		return refuse(nnrp.CodeInvalidState, "frame_id 0 names no frame")
	}
	if _, ok := f.live[k]; ok {
		return refuse(nnrp.CodeInvalidState, "frame %d of view %d is under way already", k.ID, k.View)
	}
	if class == nnrp.ClassRetransmit {
		if dependency == 0 {
			return refuse(nnrp.CodeInvalidState, "retransmit without dependency_frame_id")
		}
		if _, ok := f.State(FrameKey{k.View, dependency}); !ok {
			return refuse(nnrp.CodeInvalidState, "retransmit of frame %d, which is not known", dependency)
		}
	} else if s, ok := f.ended[k]; ok {
		return refuse(nnrp.CodeInvalidState, "frame %d of view %d has been %s", k.ID, k.View, s)
	}
	if f.Full() {
		return refuse(nnrp.CodeLimitExceeded, "%d frames are under way, max_concurrent_frames is %d", len(f.live), f.max)
	}
	f.live[k] = frameEntry{state: Submitted, class: class}
	f.active++
	return nil
}

// frameNext lists the transitions of section 15.2; the final states other than DELIVERED may follow any live one.
var frameNext = [...][]FrameState{
	Announced:  {Submitted},
	Submitted:  {Processing, Ready},
	Processing: {Ready},
	Ready:      {Delivered},
}

// Advance moves a frame on. False: it has ended, is not known, or cannot go there; nothing changes then.
func (f *Frames) Advance(k FrameKey, to FrameState) bool {
	e, ok := f.live[k]
	if !ok {
		return false
	}
	if !to.Final() || to == Delivered {
		ok = false
		for _, n := range frameNext[e.state] {
			ok = ok || n == to
		}
		if !ok {
			return false
		}
	}
	if e.state < Ready && to >= Ready {
		f.active--
	}
	if !to.Final() {
		e.state = to
		f.live[k] = e
		return true
	}
	delete(f.live, k)
	f.remember(k, to)
	return true
}

func (f *Frames) remember(k FrameKey, s FrameState) {
	if _, ok := f.ended[k]; !ok {
		if f.ringLen == frameHistory {
			delete(f.ended, f.ring[f.ringPos])
		} else {
			f.ringLen++
		}
		f.ring[f.ringPos] = k
		f.ringPos = (f.ringPos + 1) % frameHistory
	}
	f.ended[k] = s
}

// Superseded returns the discardable frames of k's view that are older than k and wait for their turn: k makes them useless.
// The caller advances them to DROPPED.
func (f *Frames) Superseded(k FrameKey) []FrameKey {
	var old []FrameKey
	for o, e := range f.live {
		if o.View == k.View && o.ID < k.ID && e.state == Submitted && e.class == nnrp.ClassDiscardable {
			old = append(old, o)
		}
	}
	return old
}

// CanDrop tells whether results of the class may carry CAN_DROP (section 7.2): those of discardable frames may, those of keyframes
// never.
func CanDrop(class nnrp.FrameClass) bool { return class == nnrp.ClassDiscardable }

// budget returns how long a frame may take: its own latency budget, else the session's, else maxFrameLife.
func budget(frameMs, sessionMs uint16) time.Duration {
	switch {
	case frameMs > 0:
		return time.Duration(frameMs) * time.Millisecond
	case sessionMs > 0:
		return time.Duration(sessionMs) * time.Millisecond
	}
	return maxFrameLife
}

// maxFrameLife ends frames for which nobody named a budget: an answer that takes a minute is never one to a live picture.
const maxFrameLife = time.Minute
