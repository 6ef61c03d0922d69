package pipeline

import (
	"sync"
	"time"

	"github.com/cfpipe/cfpipe/packetring"
)

const (
	// staleAfter is when a stream that brings nothing has a rate of zero, whatever the ring still holds of it.
	staleAfter = 5 * time.Second
	// secondLook is how long streams are looked at again whose newest packet is old by its own time, when they were never seen before: it may be the
	// camera's clock that is late.
	secondLook, lookPace = 500 * time.Millisecond, 50 * time.Millisecond
	// maxLooks bounds what is remembered: more rings than a host has.
	maxLooks = 8192
)

// ringLooks remembers how far rings were, so that it does not take a camera's clock to tell whether packets come. Safe for concurrent use.
type ringLooks struct {
	mu sync.Mutex
	at map[string]ringLook
}

type ringLook struct {
	seq     uint64
	changed time.Time // when seq was first seen; zero = at the first look
}

var looks ringLooks

// moves takes in that a ring is at seq, and says whether packets come; known is false at the first look.
func (l *ringLooks) moves(ring string, seq uint64, now time.Time) (moves, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	old, known := l.at[ring]
	if !known && len(l.at) >= maxLooks || l.at == nil {
		l.at = map[string]ringLook{}
	}
	if !known || old.seq != seq {
		next := ringLook{seq: seq}
		if known {
			next.changed = now
		}
		l.at[ring] = next
		return known, known
	}
	return !old.changed.IsZero() && now.Sub(old.changed) < staleAfter, true
}

// settle takes the rates from keys that bring nothing. Where the newest packet is not old nothing need be asked.
func (l *ringLooks) settle(keys []*KeyStatus) {
	var unknown []*KeyStatus
	look := func(k *KeyStatus, seq uint64) (moves, known bool) { return l.moves(k.Packets.Shm, seq, time.Now()) }
	for _, k := range keys {
		if k.Packets == nil {
			continue
		}
		moves, known := look(k, k.Packets.GlobalSeq)
		switch {
		case k.AgeSeconds == nil || *k.AgeSeconds <= staleAfter.Seconds() || moves:
		case known || !k.Alive:
			k.stands()
		default:
			unknown = append(unknown, k)
		}
	}
	for end := time.Now().Add(secondLook); len(unknown) > 0 && time.Now().Before(end); {
		time.Sleep(lookPace)
		left := unknown[:0]
		for _, k := range unknown {
			ring, err := packetring.Inspect(k.Packets.Shm)
			if err == nil {
				if moves, _ := look(k, ring.GlobalSeq); moves {
					continue
				}
			}
			left = append(left, k)
		}
		unknown = left
	}
	for _, k := range unknown {
		k.stands()
	}
}

// stands says that no packet comes.
func (s *KeyStatus) stands() { s.PacketsPerSecond, s.KbitPerSecond = 0, 0 }
