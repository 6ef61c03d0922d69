package testenv

import (
	"sync"

	"github.com/cfpipe/cfpipe/internal/media"
)

// Recorder is an rtsp.Publisher that keeps what peers publish, for tests.
type Recorder struct {
	Refuse error // what Publish answers; nil takes everyone

	mu      sync.Mutex
	streams map[string]*Recording
	count   int
}

// Recording is what has been published to a path so far.
type Recording struct {
	Tracks  []media.Track
	Packets [][]media.Packet // by track
	Closed  bool
}

// Publish implements rtsp.Publisher. A path that is published again starts afresh.
func (r *Recorder) Publish(path string) (media.Sink, func(error), error) {
	if r.Refuse != nil {
		return nil, nil, r.Refuse
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := &Recording{}
	if r.streams == nil {
		r.streams = map[string]*Recording{}
	}
	r.streams[path] = rec
	r.count++
	return &recordingSink{r, rec}, func(error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		rec.Closed = true
	}, nil
}

// Get returns a copy of what a path has received.
func (r *Recorder) Get(path string) Recording {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.streams[path]
	if rec == nil {
		return Recording{}
	}
	c := Recording{Tracks: rec.Tracks, Closed: rec.Closed}
	for _, p := range rec.Packets {
		c.Packets = append(c.Packets, append([]media.Packet(nil), p...))
	}
	return c
}

// Count is how many publishers there have been.
func (r *Recorder) Count() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.count
}

type recordingSink struct {
	r   *Recorder
	rec *Recording
}

func (s *recordingSink) Tracks(tracks []media.Track) error {
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.rec.Tracks = tracks
	for len(s.rec.Packets) < len(tracks) {
		s.rec.Packets = append(s.rec.Packets, nil)
	}
	return nil
}

func (s *recordingSink) Packet(track int, p media.Packet) error {
	p.Data = append([]byte(nil), p.Data...)
	s.r.mu.Lock()
	defer s.r.mu.Unlock()
	s.rec.Packets[track] = append(s.rec.Packets[track], p)
	return nil
}
