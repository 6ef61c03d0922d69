package rtsp

import (
	"context"
	"encoding/binary"
	"sync"
	"time"

	"github.com/bluenviron/gortsplib/v4"
	"github.com/bluenviron/gortsplib/v4/pkg/base"
	"github.com/bluenviron/gortsplib/v4/pkg/description"
	"github.com/pion/rtcp"
	"github.com/pion/rtp"
)

// multicastGroup is a path that is sent to a multicast address once for all who listen there. A later listener starts at the
// next keyframe: nothing is sent again for one of them.
type multicastGroup struct {
	server   *Server
	path     string
	sessions int // under Server.mu
	ctx      context.Context
	cancel   context.CancelFunc
	done     sync.WaitGroup

	begin   sync.Once
	failed  error // of begin
	stream  *gortsplib.ServerStream
	packets map[int]*packetiser

	mu      sync.Mutex
	playing bool
	closed  bool
}

func (s *Server) setupMulticast(session *gortsplib.ServerSession, conn *serverConn, path string) (*base.Response, *gortsplib.ServerStream, error) {
	if g, ok := session.UserData().(*multicastGroup); ok { // a further track
		return response(base.StatusOK), g.stream, nil
	}
	s.mu.Lock()
	g := s.groups[path]
	if g == nil {
		g = &multicastGroup{server: s, path: path, packets: map[int]*packetiser{}}
		g.ctx, g.cancel = context.WithCancel(s.ctx)
		s.groups[path] = g
	}
	g.sessions++
	s.mu.Unlock()
	g.begin.Do(func() { // without the server's lock: a publisher may take its time to answer
		if g.failed = g.open(); g.failed != nil {
			g.forget()
		}
	})
	if g.failed != nil {
		g.leave()
		return response(statusOf(g.failed)), nil, nil
	}
	if !s.admit(session, conn) {
		g.leave()
		return response(base.StatusServiceUnavailable), nil, nil
	}
	session.SetUserData(g)
	return response(base.StatusOK), g.stream, nil
}

// open makes the group's stream.
func (g *multicastGroup) open() error {
	tracks, stream, err := g.server.newStream(g.path)
	if err != nil {
		return err
	}
	for i, t := range tracks {
		m := stream.Desc.Medias[i]
		p, err := newPacketiser(t, m.Formats[0], stream.Stats().Medias[m].Formats[m.Formats[0]].LocalSSRC)
		if err != nil {
			stream.Close()
			return err
		}
		g.packets[i] = p
	}
	g.stream = stream
	return nil
}

// play starts the group's sender when the first session plays.
func (g *multicastGroup) play() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.playing {
		return nil
	}
	var tracks []int
	for t := range g.packets {
		tracks = append(tracks, t)
	}
	reader, err := g.server.o.Catalog.Open(g.path, tracks)
	if err != nil {
		return err
	}
	g.playing = true
	g.done.Add(len(tracks))
	for _, t := range tracks {
		go func() {
			defer g.done.Done()
			if err := g.run(reader, t); err != nil && g.ctx.Err() == nil {
				g.server.log.Info("rtsp: multicast ended", "path", g.path, "cause", err)
				go g.drop()
			}
		}()
	}
	g.server.sessions.Add(1)
	go func() {
		defer g.server.sessions.Done()
		g.done.Wait()
		reader.Close()
	}()
	return nil
}

// leave counts a session out; the last one ends the group. The server's lock keeps a session that comes in this moment from
// joining a group that ends.
func (g *multicastGroup) leave() {
	g.server.mu.Lock()
	g.sessions--
	last := g.sessions == 0
	if last && g.server.groups[g.path] == g {
		delete(g.server.groups, g.path)
	}
	g.server.mu.Unlock()
	if last {
		g.close()
	}
}

// drop takes the group out of the server and closes its stream, and so its sessions.
func (g *multicastGroup) drop() {
	g.forget()
	g.close()
}

// forget takes the group out of the server: the next session begins another one.
func (g *multicastGroup) forget() {
	g.server.mu.Lock()
	defer g.server.mu.Unlock()
	if g.server.groups[g.path] == g {
		delete(g.server.groups, g.path)
	}
}

func (g *multicastGroup) close() {
	g.mu.Lock()
	closed := g.closed
	g.closed = true
	g.mu.Unlock()
	if !closed {
		g.cancel()
		g.done.Wait()
		if g.stream != nil {
			g.stream.Close()
		}
	}
}

func (g *multicastGroup) run(reader StreamReader, track int) error {
	p, m := g.packets[track], g.stream.Desc.Medias[track]
	for {
		u, err := reader.Next(g.ctx, track)
		if err != nil {
			return err
		}
		if err := p.unit(u); err != nil {
			continue
		}
		if len(p.report) > 0 {
			if packets, err := rtcp.Unmarshal(p.report); err == nil {
				for _, r := range packets {
					_ = g.stream.WritePacketRTCP(m, r)
				}
			}
		}
		if err := g.send(p, m); err != nil {
			return err
		}
	}
}

func (g *multicastGroup) send(p *packetiser, m *description.Media) error {
	from := 0
	for i, end := range p.ends {
		b := p.buf[from:end]
		from = end
		if i%udpBurst == udpBurst-1 {
			select {
			case <-time.After(udpPause):
			case <-g.ctx.Done():
				return g.ctx.Err()
			}
		}
		err := g.stream.WritePacketRTP(m, &rtp.Packet{Header: rtp.Header{Version: 2, Marker: b[1]&0x80 != 0, PayloadType: b[1] & 0x7F,
			SequenceNumber: binary.BigEndian.Uint16(b[2:]), Timestamp: binary.BigEndian.Uint32(b[4:])}, Payload: b[rtpHeaderSize:]})
		if err != nil {
			return err
		}
	}
	return nil
}
