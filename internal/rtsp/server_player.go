package rtsp

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/bluenviron/gortsplib/v4/pkg/base"
	"github.com/bluenviron/gortsplib/v4/pkg/headers"

	"github.com/cfpipe/cfpipe/internal/media"
)

// firstWait is how long PLAY waits to say with which packets it begins. What a reader has waiting comes within it; else the answer
// leaves it out.
const firstWait = 300 * time.Millisecond

// player sends the tracks of a stream from PLAY to PAUSE, and on from the next PLAY with a new reader: like one who comes late. To
// who receives it is one stream: RTP sequence numbers count what was sent, without a gap, and RTP time does not go back where the
// keyframe that comes first was sent before. Its methods are called one at a time.
type player struct {
	server  *Server
	path    string
	tracks  []media.Track
	packets map[int]*packetiser // by track, what was set up

	ctx     context.Context
	cancel  context.CancelFunc
	deliver func(ctx context.Context, track int, u media.Packet) error // sends, unless ctx has ended
	failed  func(cause error)

	now    *stretch // that plays; nil: none
	before *stretch // that played last
	paused time.Time
}

// stretch is what goes out between a PLAY and a PAUSE.
type stretch struct {
	ctx    context.Context
	cancel context.CancelFunc
	firsts chan firstUnit // one of each track
	begin  chan struct{}  // closed when packets may go out
	done   chan struct{}  // closed when nothing goes out any more
	since  time.Time      // the pause ahead of it began
	resume sync.Once      // of the packetisers
}

// firstUnit is what a track begins with.
type firstUnit struct {
	track int
	pts   int64
}

func (s *Server) newPlayer(path string, tracks []media.Track) *player {
	p := &player{server: s, path: path, tracks: tracks, packets: map[int]*packetiser{}}
	p.ctx, p.cancel = context.WithCancel(s.ctx)
	return p
}

// play opens a reader and gets ready. info says with which packet each track begins, as far as it is known; its URLs are below at.
// Nothing goes out before start is called.
func (p *player) play(at *base.URL) (info headers.RTPInfo, start func(), err error) {
	var tracks []int
	for t := range p.packets {
		tracks = append(tracks, t)
	}
	reader, err := p.server.o.Catalog.Open(p.path, p.tracks, tracks)
	if err != nil {
		return nil, nil, err
	}
	s := &stretch{firsts: make(chan firstUnit, len(tracks)), begin: make(chan struct{}), done: make(chan struct{}), since: p.paused}
	s.ctx, s.cancel = context.WithCancel(p.ctx)
	before := p.before
	p.now, p.before = s, s
	var running sync.WaitGroup
	for _, t := range tracks {
		running.Go(func() {
			if before != nil {
				<-before.done
			}
			if err := p.run(s, reader, t); !errors.Is(err, context.Canceled) {
				s.cancel()
				p.failed(err)
			}
		})
	}
	p.server.sessions.Go(func() {
		running.Wait()
		reader.Close()
		s.cancel()
		close(s.done)
	})
	return p.expect(s, at), sync.OnceFunc(func() { close(s.begin) }), nil
}

// run sends one track of a stretch until it ends.
func (p *player) run(s *stretch, reader StreamReader, track int) error {
	u, err := reader.Next(s.ctx, track)
	if err != nil {
		return err
	}
	s.firsts <- firstUnit{track, u.PTS}
	select {
	case <-s.begin:
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
	s.resume.Do(func() { p.resume(u.PTS, s.since) })
	for err == nil {
		if err = p.deliver(s.ctx, track, u); err == nil {
			u, err = reader.Next(s.ctx, track)
		}
	}
	return err
}

// expect waits a moment for what the tracks of s begin with and lets RTP time go on from what was sent before.
func (p *player) expect(s *stretch, at *base.URL) headers.RTPInfo {
	timeout := time.NewTimer(firstWait)
	defer timeout.Stop()
	firsts := map[int]int64{}
	for waiting := true; waiting && len(firsts) < len(p.packets); {
		select {
		case f := <-s.firsts:
			firsts[f.track] = f.pts
		case <-timeout.C:
			waiting = false
		case <-s.ctx.Done():
			waiting = false
		}
	}
	if len(firsts) == 0 { // the stretch before may still be sending
		return nil
	}
	s.resume.Do(func() { p.resume(slices.Min(slices.Collect(maps.Values(firsts))), s.since) })
	var info headers.RTPInfo
	for t := range p.tracks {
		k := p.packets[t]
		if k == nil {
			continue
		}
		seq, e := k.seq, &headers.RTPInfoEntry{URL: at.String() + "/" + controlOf(t)}
		e.SequenceNumber = &seq
		if pts, ok := firsts[t]; ok {
			ticks := k.ticks(pts)
			e.Timestamp = &ticks
		}
		info = append(info, e)
	}
	return info
}

// resume lets the packets begin anew with pts. By RTP time that is not ahead of what was sent until the pause, and its length.
func (p *player) resume(pts int64, paused time.Time) {
	var shift, latest int64
	for _, k := range p.packets {
		shift, latest = k.shift, max(latest, k.latest)
	}
	if latest > 0 && pts+shift <= latest {
		shift = latest + max(int64(time.Since(paused)), int64(time.Millisecond)) - pts
	}
	for _, k := range p.packets {
		k.resume(shift)
	}
}

// pause stops sending. It does not wait: what is sent when it is called may go out to its end, an access unit whole or not at all.
func (p *player) pause() {
	if p.now != nil {
		p.now.cancel()
		p.now, p.paused = nil, time.Now()
	}
}

// wait returns when nothing is sent any more. The player's context must have ended.
func (p *player) wait() {
	if p.before != nil {
		<-p.before.done
	}
}
