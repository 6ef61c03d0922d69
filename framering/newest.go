package framering

import (
	"fmt"
	"os"
)

// Newest takes a lease on the newest frame within the publisher's own process, beside its subscribers: without a seat in their table,
// without an ACK that StrictWait would wait for, and without mapping anything. It does not block. The frame is to be released soon: its
// memory, and Close, wait for that. What holds of subscribers' frames holds of it: ask Check or Release whether it was overwritten.
// Errors: ErrNotFound, as long as the generation has no whole frame; os.ErrClosed.
func (p *Publisher) Newest() (Frame, error) {
	f, err := p.newest()
	if err != nil {
		return Frame{}, fmt.Errorf("newest frame of %s: %w", p.key, err)
	}
	return f, nil
}

func (p *Publisher) newest() (Frame, error) {
	p.mu.Lock()
	r := p.ring
	switch {
	case p.closing:
		p.mu.Unlock()
		return Frame{}, os.ErrClosed
	case r.memory == nil:
		p.mu.Unlock()
		return Frame{}, ErrNotFound
	}
	r.users++
	p.mu.Unlock()
	f, err := r.newest()
	if err != nil {
		r.leave()
	}
	return f, err
}

func (r *ring) newest() (Frame, error) {
	f := Frame{ring: r, meta: &r.frames.Meta}
	if r.memory.ipc != nil {
		f.event = r.memory.ipc.event
	}
	for range MaxRingSize { // a writer that goes once around the ring within this loop is tried again
		f.Seq = r.writer.p.frameSeq.Load()
		i := f.Seq % uint64(len(r.memory.buffers))
		p := &r.writer.published[i]
		if f.Seq == 0 || p.seq.Load() != f.Seq { // pairs with the store in Publish, which comes after the pixels
			continue
		}
		f.PTS = p.pts.Load()
		if p.seq.Load() == f.Seq {
			f.Buffer, f.holds = r.memory.buffers[i], &p.seq
			return f, nil
		}
	}
	return Frame{}, ErrNotFound
}

// leave gives back what a user of the memory has taken.
func (r *ring) leave() {
	mu := &r.writer.p.mu
	mu.Lock()
	defer mu.Unlock()
	r.users--
	r.release()
}
