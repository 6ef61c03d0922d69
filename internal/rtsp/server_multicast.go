package rtsp

import (
	"context"
	"encoding/binary"
	"sync"
	"time"

	"github.com/bluenviron/gortsplib/v4"
	"github.com/bluenviron/gortsplib/v4/pkg/base"
	"github.com/bluenviron/gortsplib/v4/pkg/headers"
	"github.com/pion/rtcp"
	"github.com/pion/rtp"

	"github.com/cfpipe/cfpipe/internal/media"
)

// multicastGroup is a path that is sent to a multicast address once for all who listen there. A later listener starts at the
// next keyframe: nothing is sent again for one of them. It rests while none of them plays.
type multicastGroup struct {
	*player
	sessions int // under Server.mu

	begin  sync.Once
	opened error // of begin
	stream *gortsplib.ServerStream

	mu      sync.Mutex
	playing map[*gortsplib.ServerSession]struct{}
	closed  bool
}

func (s *Server) setupMulticast(session *gortsplib.ServerSession, conn *gortsplib.ServerConn, path string) (
	*base.Response, *gortsplib.ServerStream, error) {
	if g, ok := session.UserData().(*multicastGroup); ok { // a further track
		return response(base.StatusOK), g.stream, nil
	}
	s.mu.Lock()
	g := s.groups[path]
	if g == nil {
		g = &multicastGroup{player: s.newPlayer(path, nil), playing: map[*gortsplib.ServerSession]struct{}{}}
		g.deliver, g.failed = g.send, func(cause error) {
			s.log.Info("rtsp: multicast ended", "path", path, "cause", cause)
			go g.drop()
		}
		s.groups[path] = g
	}
	g.sessions++
	s.mu.Unlock()
	g.begin.Do(func() { // without the server's lock: a publisher may take its time to answer
		if g.opened = g.open(); g.opened != nil {
			g.forget()
		}
	})
	if g.opened != nil {
		g.leave(session)
		return s.refuse(conn, path, g.opened), nil, nil
	}
	if !s.admit(session, connOf(conn)) {
		g.leave(session)
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
	g.tracks, g.stream = tracks, stream
	return nil
}

// join lets a session listen. The first one starts the sender.
func (g *multicastGroup) join(session *gortsplib.ServerSession, at *base.URL) (info headers.RTPInfo, start func(), err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	start = func() {}
	if g.now == nil && !g.closed {
		if info, start, err = g.play(at); err != nil {
			return nil, nil, err
		}
	}
	g.playing[session] = struct{}{}
	return info, start, nil
}

// rest counts a session out of those that listen. The last one stops the sender.
func (g *multicastGroup) rest(session *gortsplib.ServerSession) {
	g.mu.Lock()
	defer g.mu.Unlock()
	delete(g.playing, session)
	if len(g.playing) == 0 {
		g.pause()
	}
}

// leave counts a session out; the last one ends the group. The server's lock keeps a session that comes in this moment from
// joining a group that ends.
func (g *multicastGroup) leave(session *gortsplib.ServerSession) {
	g.rest(session)
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
		g.wait()
		if g.stream != nil {
			g.stream.Close()
		}
	}
}

// send makes packets of an access unit and sends them.
func (g *multicastGroup) send(ctx context.Context, track int, u media.Packet) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	p, m := g.packets[track], g.stream.Desc.Medias[track]
	if p.unit(u) != nil {
		return nil
	}
	if len(p.report) > 0 {
		if packets, err := rtcp.Unmarshal(p.report); err == nil {
			for _, r := range packets {
				_ = g.stream.WritePacketRTCP(m, r)
			}
		}
	}
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
