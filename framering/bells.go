package framering

import (
	"context"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// bells are the eventfds of a publisher's subscribers (EVENT_FD of protocol 1 and 2): one each, rung with every frame for those who
// take frames and with every packet for those who take packets.
type bells struct {
	mu   sync.RWMutex // a bell is not closed while it is rung
	list []bell
}

type bell struct {
	fd    int
	wants Flags
}

// add makes a bell, -1 when there are no descriptors left: the subscriber goes without then, as the protocol allows.
func (b *bells) add(wants Flags) int {
	fd, err := shm.NewEventFD()
	if err != nil {
		return -1
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.list = append(b.list, bell{fd, wants})
	return fd
}

func (b *bells) remove(fd int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for i := range b.list {
		if b.list[i].fd == fd {
			b.list = append(b.list[:i], b.list[i+1:]...)
			_ = syscall.Close(fd)
			return
		}
	}
}

// ring does not block or allocate.
func (b *bells) ring(what Flags) {
	b.mu.RLock()
	defer b.mu.RUnlock()
	for i := range b.list {
		if b.list[i].wants&what != 0 {
			_ = shm.RingEventFD(b.list[i].fd)
		}
	}
}

// PacketPublished rings for the subscribers of packets (EVENT_FD), after a packet was put into the ring. In protocol 4 it does nothing.
// It does not block or allocate.
func (p *Publisher) PacketPublished() {
	if p.dialect.eventFD {
		p.bells.ring(WantsPackets)
	}
}

// doorbell is a subscriber's end: a goroutine reads the eventfd and passes each ring on to who waits for frames and who waits for packets.
type doorbell struct {
	rung            atomic.Bool   // an EVENT_FD has come
	rings           atomic.Uint64 // reads of the eventfd
	frames, packets chan struct{} // capacity 1: "look again"

	timer *time.Timer // of the reader of frames
	file  *os.File    // of listen alone
	gone  chan struct{}
}

func (d *doorbell) init() {
	d.frames, d.packets = make(chan struct{}, 1), make(chan struct{}, 1)
}

// hang takes the descriptor of an EVENT_FD over. Only the first one counts.
func (d *doorbell) hang(fd int) error {
	if d.file != nil {
		return syscall.Close(fd)
	}
	f, err := shm.EventFDReader(fd)
	if err != nil {
		return err
	}
	d.file, d.gone = f, make(chan struct{})
	d.rung.Store(true)
	go func() {
		defer close(d.gone)
		var b [8]byte
		for d.pass() {
			if n, err := f.Read(b[:]); err != nil || n != len(b) {
				return
			}
			d.rings.Add(1)
		}
	}()
	return nil
}

// pass wakes who waits; the first time so that nothing published before the eventfd came is slept through.
func (d *doorbell) pass() bool {
	for _, c := range []chan struct{}{d.frames, d.packets} {
		select {
		case c <- struct{}{}:
		default:
		}
	}
	return true
}

func (d *doorbell) close() {
	if d.file != nil {
		_ = d.file.Close()
		<-d.gone
	}
	d.rung.Store(false)
	d.pass()
}

// await blocks for a ring of frames; nil says "look again".
func (d *doorbell) await(ctx context.Context, timeout time.Duration) error {
	if d.timer == nil {
		d.timer = time.NewTimer(timeout)
	} else {
		d.timer.Reset(timeout)
	}
	defer d.timer.Stop()
	select {
	case <-d.frames:
		return nil
	case <-d.timer.C:
		return shm.ErrTimeout
	case <-ctx.Done():
		return ctx.Err()
	}
}

// PacketBell returns the channel on which the publisher's EVENT_FD says that a packet may have come, nil where there is none (protocol 4,
// a publisher that sends none, or it has not come yet). It is for one reader.
func (s *Subscriber) PacketBell() <-chan struct{} {
	if !s.doorbell.rung.Load() {
		return nil
	}
	return s.doorbell.packets
}

// Rings counts the wake-ups that came through EVENT_FD.
func (s *Subscriber) Rings() uint64 { return s.doorbell.rings.Load() }
