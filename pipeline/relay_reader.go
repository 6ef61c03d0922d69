package pipeline

import (
	"context"
	"time"

	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/rtsp"
	"github.com/cfpipe/cfpipe/packetring"
)

// Open implements rtsp.Catalog.
func (c *relayCatalog) Open(path string, described []media.Track, tracks []int) (rtsp.StreamReader, error) {
	r := &relayReader{catalog: c, started: make(chan struct{})}
	for _, i := range tracks {
		t := &r.tracks[min(i, 1)]
		t.track = described[i]
		key := path
		if i > 0 { // audio begins where the video did
			key += AudioSuffix
			t.waits = len(tracks) > 1
		}
		var err error
		if t.hub, err = c.hubs.acquire(c.o, key); err == nil && !t.waits {
			err = t.open(packetring.SeekLive)
		}
		if err != nil {
			r.Close()
			return nil, err
		}
	}
	return r, nil
}

// relayReader is one session's cursors: the path's own track, and its audio.
type relayReader struct {
	catalog *relayCatalog
	tracks  [2]relayTrack
	started chan struct{} // closed when first is known
	first   int64         // pts of the first video packet
}

// relayTrack is touched by its track's goroutine alone.
type relayTrack struct {
	hub    *relayHub // nil: not asked for
	cursor *relayCursor
	waits  bool // for the first video packet
	began  bool // the first packet was handed out
	track  media.Track
}

func (t *relayTrack) open(from packetring.Position) error {
	cursor, err := t.hub.open(from)
	if err != nil {
		return err
	}
	t.cursor = cursor
	return t.update()
}

// update looks at the ring that the cursor reads now.
func (t *relayTrack) update() error {
	now := trackOf(t.cursor.ring.Info())
	if !sameDescription(t.track, now) {
		return rtsp.ErrStreamChanged
	}
	t.track = now
	return nil
}

// Next implements rtsp.StreamReader.
func (r *relayReader) Next(ctx context.Context, track int) (media.Packet, error) {
	t := &r.tracks[min(track, 1)]
	if t.waits {
		select {
		case <-r.started:
		case <-ctx.Done():
			return media.Packet{}, ctx.Err()
		}
		if err := t.open(packetring.SeekTime(time.Unix(0, r.first))); err != nil {
			return media.Packet{}, err
		}
		t.waits = false
	}
	for {
		p, restarted, err := t.cursor.next(ctx)
		if err != nil {
			return media.Packet{}, err
		}
		if restarted {
			if err := t.update(); err != nil {
				return media.Packet{}, err
			}
		}
		if !t.began {
			if track > 0 && r.tracks[0].hub != nil && p.PTS < r.first {
				continue
			}
			if t.began = true; track == 0 {
				r.first = p.PTS
				close(r.started)
			}
		}
		return media.Packet{PTS: p.PTS, DTS: p.DTS, Flags: media.Flags(p.Flags), Data: p.Data}, nil
	}
}

// Close implements rtsp.StreamReader.
func (r *relayReader) Close() {
	for i := range r.tracks {
		t := &r.tracks[i]
		if t.cursor != nil {
			t.cursor.close()
		}
		if t.hub != nil {
			r.catalog.hubs.release(t.hub)
		}
	}
}
