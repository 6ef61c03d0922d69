package pipeline

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/packetring"
)

// SubscribeOptions describe a subscription. Key must be set.
type SubscribeOptions struct {
	RuntimeDir string          // "" = $CUFRAMES_RUNTIME_DIR, else framering.DefaultRuntimeDir
	Key        string          // of the publication
	Name       string          // shown to operators in the publisher's table; "" = the program's name
	Start      Start           // where reading begins: StartLive, StartOldest, StartAt
	Wait       packetring.Wait // how Next waits

	// WaitForKey is how long Subscribe waits for a publisher; 0 = not at all, negative = as long as the context lets it.
	WaitForKey time.Duration
	// NoFollow ends the subscription with its publisher: Next returns ErrEnded then. Else it waits for the next publisher.
	NoFollow bool
	Logger   *slog.Logger // nil = silent

	quiet  bool // what comes and goes is told of by another subscription
	noData bool // packets come without Data
}

// Start is a position to begin at. Whatever it is, the first packet is a keyframe.
type Start struct{ position packetring.Position }

// The zero Start is StartLive.
var (
	StartLive   = Start{packetring.SeekLive}   // the newest keyframe in the ring
	StartOldest = Start{packetring.SeekOldest} // the oldest keyframe in the ring
)

// StartAt is the newest keyframe at or before t, else the oldest one.
func StartAt(t time.Time) Start { return Start{packetring.SeekTime(t)} }

var (
	// ErrNoKey: nobody publishes the key. errors.Is(err, os.ErrNotExist). The error says which keys there are.
	ErrNoKey = fmt.Errorf("no such key: %w", os.ErrNotExist)
	// ErrNoPackets: the key has no packet ring.
	ErrNoPackets = errors.New("it has frames and no packets: these are under the key of the camera that it is decoded from")
	// ErrEnded: the publisher has ended and everything in its ring was read (with NoFollow).
	ErrEnded = errors.New("the publication has ended")
	// ErrSubscriptionClosed: Close was called. errors.Is(err, os.ErrClosed).
	ErrSubscriptionClosed = fmt.Errorf("subscription: %w", os.ErrClosed)
)

// NoKeyError is ErrNoKey with what helps: where was looked, and what is there instead.
type NoKeyError struct {
	Key    string
	Path   string        // of the control socket
	Others []string      // keys that are published
	Waited time.Duration // for the key, in vain; 0 = not at all
	PID    int           // that publishes it for another runtime directory; 0 = none known
}

func (e *NoKeyError) Error() string {
	s := fmt.Sprintf("key %q: no publisher at %s", e.Key, e.Path)
	if len(e.Others) > 0 {
		s += " (published here: " + strings.Join(e.Others, ", ") + ")"
	}
	if e.Waited > 0 {
		s += fmt.Sprintf(" after waiting %v", e.Waited)
	}
	if e.PID != 0 {
		return s + fmt.Sprintf("; pid %d publishes it with another --runtime-dir or $CUFRAMES_RUNTIME_DIR", e.PID)
	}
	return s + "; if its ingest runs, it has not reached the camera yet"
}

func (e *NoKeyError) Unwrap() error { return ErrNoKey }

// SubscriptionStats count over all publishers that the subscription has followed.
type SubscriptionStats struct {
	Read, Lost, Overruns, Bytes uint64
	LastSeq                     uint64 // newest seq handed out, of the present ring
	GlobalSeq                   uint64 // newest seq published, of the present ring
	Restarts                    int    // how often another publisher took over; Generation
}

// Subscription reads the packets of a key and stays with it when publishers come and go: what is left in the ring of one that
// has ended is read to the end, then reading goes on at the oldest keyframe of the next one. A publisher that is silent is
// waited for. Next is for one goroutine at a time; the other methods may be called from any.
type Subscription struct {
	o   SubscribeOptions
	log *slog.Logger

	life    context.Context // ends with Close
	endLife context.CancelFunc

	mu         sync.Mutex
	at         *attachment // nil between two publishers
	generation int
	past       SubscriptionStats // of rings that were left
	info       packetring.Info   // of the newest ring

	// Of Next alone.
	draining  bool // the control connection has ended: read what is left and do not wait
	mark      bool // the next packet is the first one of another publisher
	fruitless int  // attachments in a row that brought no packet
	parked    parked
}

// Subscribe connects to the publisher of a key, waiting for one as long as the options say. Errors: ErrNoKey, ErrNoPackets,
// framering.ErrTooMany and other refusals, the context's.
func Subscribe(ctx context.Context, o SubscribeOptions) (*Subscription, error) {
	if err := framering.CheckKey(o.Key); err != nil {
		return nil, err
	}
	s := &Subscription{o: o, log: o.Logger}
	if s.log == nil {
		s.log = slog.New(slog.DiscardHandler)
	}
	s.log = s.log.With("key", o.Key)
	s.life, s.endLife = context.WithCancel(context.Background())
	a, err := s.connect(ctx)
	if err != nil {
		s.endLife()
		return nil, err
	}
	s.install(a, o.Start.position)
	return s, nil
}

// Next returns the next packet and blocks until there is one. Its Data is valid until the next call. FlagDiscontinuity is set
// where packets are missing in front of it and on the first packet of another publisher (see Generation). Errors: the
// context's, ErrEnded with NoFollow, ErrSubscriptionClosed; after any of them Next may be called again. It does not allocate
// as long as it is called with the same context.
func (s *Subscription) Next(ctx context.Context) (packetring.Packet, error) {
	for {
		if err := ctx.Err(); err != nil {
			return packetring.Packet{}, err
		}
		if s.life.Err() != nil {
			return packetring.Packet{}, ErrSubscriptionClosed
		}
		a := s.attached()
		if a == nil {
			if err := s.reconnect(ctx); err != nil {
				return packetring.Packet{}, err
			}
			continue
		}
		p, ok, err := s.read(ctx, a)
		if err != nil {
			return packetring.Packet{}, err
		}
		if ok {
			return s.handOut(a, p), nil
		}
	}
}

// tryNext is Next where the ring holds a packet; else, whatever the reason, it leaves things to Next.
func (s *Subscription) tryNext() (p packetring.Packet, ok bool) {
	a := s.attached()
	if a == nil {
		return p, false
	}
	if p, ok, _ = a.ring.TryNext(); ok {
		p = s.handOut(a, p)
	}
	return p, ok
}

func (s *Subscription) handOut(a *attachment, p packetring.Packet) packetring.Packet {
	s.fruitless = 0
	if s.mark {
		s.mark = false
		p.Flags |= packetring.FlagDiscontinuity
	}
	a.control.SawPacket(p.Seq)
	return p
}

// read takes a packet from the ring. ok is false when something has changed: look again.
func (s *Subscription) read(ctx context.Context, a *attachment) (p packetring.Packet, ok bool, err error) {
	if s.draining {
		p, ok, err = a.ring.TryNext()
		if !ok && err == nil {
			// The publisher is gone without a word of the ring's, or has dropped this subscriber. Connecting tells.
			return p, false, s.lost(ctx, a)
		}
	} else {
		wait := s.parked.until(ctx, a.control.Done())
		p, err = a.ring.Next(wait)
		ok = err == nil
		if err != nil && wait.Err() != nil && !errors.Is(err, packetring.ErrShutdown) {
			// The caller has had enough (Next sees to it), or the control connection has ended: what is in the ring comes first.
			s.draining = a.control.Err() != nil
			return p, false, nil
		}
	}
	switch {
	case ok:
		return p, true, nil
	case errors.Is(err, packetring.ErrClosed):
		return p, false, ErrSubscriptionClosed
	case errors.Is(err, packetring.ErrShutdown), errors.Is(err, packetring.ErrFault):
		return p, false, s.leave(a, err)
	}
	return p, false, err
}

// Info describes the stream, as the newest ring's header says it now. It changes with the Generation, and once when a
// publisher learns the extradata late.
func (s *Subscription) Info() packetring.Info {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at != nil {
		if i := s.at.ring.Info(); i.CodecID != 0 {
			s.info = i
		}
	}
	return s.info
}

// Generation counts how often another publisher took over. After Next it belongs to the packet that Next returned.
func (s *Subscription) Generation() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.generation
}

// Stats returns a snapshot.
func (s *Subscription) Stats() SubscriptionStats {
	s.mu.Lock()
	defer s.mu.Unlock()
	t := s.past
	if s.at != nil {
		t = t.plus(s.at)
	}
	t.Restarts = s.generation
	return t
}

// Close ends the subscription and a Next that waits. It is idempotent.
func (s *Subscription) Close() error {
	s.endLife()
	s.parked.wake()
	s.mu.Lock()
	a := s.at
	s.at = nil
	if a != nil {
		s.past = s.past.plus(a)
	}
	s.mu.Unlock()
	s.parked.release()
	if a == nil {
		return nil
	}
	return a.close()
}
