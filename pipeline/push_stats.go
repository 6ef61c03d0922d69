package pipeline

import (
	"context"
	"sync"
	"time"

	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/rtsp"
)

// PushStats are the running totals of a Push over all its keys.
type PushStats struct {
	Connections int `json:"connections"` // that stand now
	// DisconnectedSince is since when none stands; zero = one does, or none was tried yet.
	DisconnectedSince time.Time `json:"disconnected_since,omitzero"`
	Connects          uint64    `json:"connects"` // connections that were made
	Packets           uint64    `json:"packets"`  // of all tracks, handed to them
	Bytes             uint64    `json:"bytes"`
	LastError         string    `json:"last_error,omitempty"` // why the last one ended or was not made; without credentials
}

// PushCounter is where a running Push leaves its counts. The zero value is ready.
type PushCounter struct {
	mu sync.Mutex
	s  PushStats
}

// Stats may be called at any time from any goroutine.
func (c *PushCounter) Stats() PushStats {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.s
}

// connected counts a connection that begins (1) or ends (-1).
func (c *PushCounter) connected(n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.s.Connections += n
	if n > 0 {
		c.s.Connects++
	}
	c.note()
}

// trying notes that a connection is about to be made.
func (c *PushCounter) trying() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.note()
}

// note keeps since when there is no connection. The lock is held.
func (c *PushCounter) note() {
	if c.s.Connections > 0 {
		c.s.DisconnectedSince = time.Time{}
	} else if c.s.DisconnectedSince.IsZero() {
		c.s.DisconnectedSince = time.Now()
	}
}

func (c *PushCounter) failed(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		c.s.LastError = av.Mask(err.Error())
	}
}

// countedReader counts what is handed out.
type countedReader struct {
	rtsp.StreamReader
	c *PushCounter
}

// Next implements rtsp.StreamReader.
func (r *countedReader) Next(ctx context.Context, track int) (media.Packet, error) {
	p, err := r.StreamReader.Next(ctx, track)
	if err == nil {
		r.c.mu.Lock()
		r.c.s.Packets++
		r.c.s.Bytes += uint64(len(p.Data))
		r.c.mu.Unlock()
	}
	return p, err
}
