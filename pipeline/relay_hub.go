package pipeline

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/cfpipe/cfpipe/packetring"
)

// keyTimeout bounds the handshake with a publisher that does not answer.
const keyTimeout = 3 * time.Second

// relayGrace is how long sessions wait for the next publisher of their key: as long as a supervisor may take to start it again.
const relayGrace = 60 * time.Second

// errKeyGone ends the sessions of a key that is not published any more.
var errKeyGone = errors.New("the key is not published any more")

// relayHubs are the keys that a relay reads now. A publisher's table has room for about 30 subscribers, all other programs
// included; so all sessions of a key share one subscription, and have cursors of their own in its ring.
type relayHubs struct {
	mu   sync.Mutex
	keys map[string]*relayHub
}

// relayHub is the subscription to one key. It follows the publisher and says which ring is the newest one.
type relayHub struct {
	key    string
	grace  time.Duration
	users  int // of relayHubs.mu
	begin  sync.Once
	failed error // of begin
	sub    *Subscription
	stop   context.CancelFunc
	done   chan struct{}

	mu         sync.Mutex
	generation int
	path       string        // of the newest ring
	changed    chan struct{} // closed at the next change
	ended      error
}

// acquire returns the hub of a key; each call needs one of release. The error Is os.ErrNotExist where nobody publishes the key.
func (r *relayHubs) acquire(o RelayOptions, key string) (*relayHub, error) {
	r.mu.Lock()
	h := r.keys[key]
	if h == nil {
		h = &relayHub{key: key, grace: cmp.Or(o.grace, relayGrace), changed: make(chan struct{}), done: make(chan struct{})}
		if r.keys == nil {
			r.keys = map[string]*relayHub{}
		}
		r.keys[key] = h
	}
	h.users++
	r.mu.Unlock()
	h.begin.Do(func() {
		ctx, cancel := context.WithTimeout(context.Background(), keyTimeout)
		defer cancel()
		h.sub, h.failed = Subscribe(ctx, SubscribeOptions{RuntimeDir: o.RuntimeDir, Key: key, Name: "relay", Logger: o.Logger, noData: true})
		if h.failed != nil {
			return
		}
		h.generation, h.path = h.sub.Generation(), h.sub.ringPath()
		ctx, h.stop = context.WithCancel(context.Background())
		go h.follow(ctx)
	})
	if h.failed != nil {
		r.release(h)
		return nil, h.failed
	}
	return h, nil
}

// release ends the subscription with its last user.
func (r *relayHubs) release(h *relayHub) {
	r.mu.Lock()
	h.users--
	last := h.users == 0
	if last && r.keys[h.key] == h {
		delete(r.keys, h.key)
	}
	r.mu.Unlock()
	if last && h.failed == nil {
		h.stop()
		<-h.done
		h.sub.Close()
	}
}

// follow reads along, without the packets' data, which is how the subscription notices that another publisher has taken over.
func (h *relayHub) follow(ctx context.Context) {
	defer close(h.done)
	for {
		_, err := h.sub.Next(ctx)
		g := h.sub.Generation()
		h.mu.Lock()
		if g != h.generation || err != nil {
			h.generation, h.path, h.ended = g, h.sub.ringPath(), err
			close(h.changed)
			h.changed = make(chan struct{})
		}
		h.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// newest returns the newest ring, and what is closed when there is a newer one.
func (h *relayHub) newest() (generation int, path string, changed <-chan struct{}, err error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.generation, h.path, h.changed, h.ended
}

// relayCursor reads a key for one track of one session.
type relayCursor struct {
	hub        *relayHub
	generation int
	ring       *packetring.Reader // nil: between two publishers
	last       int64              // DTS of the packet handed out last
}

// open begins to read at a position.
func (h *relayHub) open(from packetring.Position) (*relayCursor, error) {
	c := &relayCursor{hub: h}
	generation, path, _, err := h.newest()
	if err == nil {
		err = c.attach(generation, path, from)
	}
	if err != nil {
		return nil, err
	}
	return c, nil
}

func (c *relayCursor) attach(generation int, path string, from packetring.Position) error {
	ring, err := packetring.Open(path, packetring.ReaderOptions{})
	if err != nil {
		return fmt.Errorf("relay %s: %w", c.hub.key, err)
	}
	if err := ring.Seek(from); err != nil {
		ring.Close()
		return err
	}
	c.ring, c.generation = ring, generation
	return nil
}

// next returns the next packet, of the next publisher where one ends. restarted says that it is the first one of its ring.
func (c *relayCursor) next(ctx context.Context) (p packetring.Packet, restarted bool, err error) {
	var gone <-chan time.Time
	for {
		if c.ring != nil {
			p, err := c.ring.Next(ctx)
			switch {
			case err == nil && restarted && p.DTS <= c.last && c.last-p.DTS < int64(time.Minute):
				continue // a ring that was read already: its publisher was killed, and the next one is not there yet
			case err == nil:
				c.last = p.DTS
				return p, restarted, nil
			case !errors.Is(err, packetring.ErrShutdown) && !errors.Is(err, packetring.ErrFault):
				return p, false, err
			}
			c.ring.Close()
			c.ring = nil
		}
		generation, path, changed, err := c.hub.newest()
		if err != nil {
			return p, false, err
		}
		if generation != c.generation && path != "" {
			c.generation = generation
			if c.attach(generation, path, packetring.SeekOldest) == nil {
				restarted = true
				continue
			}
		}
		if gone == nil {
			gone = time.After(c.hub.grace)
		}
		select {
		case <-changed:
		case <-gone:
			return p, false, errKeyGone
		case <-ctx.Done():
			return p, false, ctx.Err()
		}
	}
}

func (c *relayCursor) close() {
	if c.ring != nil {
		c.ring.Close()
	}
}

// ringPath is the ring that s reads now; "" between two publishers.
func (s *Subscription) ringPath() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.at == nil {
		return ""
	}
	return s.at.control.PacketPath
}
