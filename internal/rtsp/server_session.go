package rtsp

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/bluenviron/gortsplib/v4"
	"github.com/bluenviron/gortsplib/v4/pkg/base"
	"github.com/bluenviron/gortsplib/v4/pkg/headers"

	"github.com/cfpipe/cfpipe/internal/media"
)

// session is one reader of one path over TCP or unicast UDP. The library negotiates it, on a stream of its own (nobody else
// reads it, so its SSRCs are the session's); the packets go from the catalog's reader straight to the socket.
type session struct {
	server *Server
	path   string
	tracks []media.Track
	stream *gortsplib.ServerStream

	sends   map[int]*packetSender // by track, what was set up
	started bool

	ctx    context.Context
	cancel context.CancelFunc
	done   sync.WaitGroup
}

// setupRequest remembers a SETUP until its response shows which channels or ports were agreed.
type setupRequest struct {
	session *session
	track   int
}

// packetSender is where one track's packets go.
type packetSender struct {
	conn     *serverConn // TCP
	channel  byte
	rtp      netip.AddrPort // UDP
	rtcp     netip.AddrPort
	packets  *packetiser
	burst    int // UDP: packets since the last pause
	lastSent time.Time
	warned   bool
}

// OnSetup implements a hook of the library.
func (s *Server) OnSetup(ctx *gortsplib.ServerHandlerOnSetupCtx) (*base.Response, *gortsplib.ServerStream, error) {
	if !s.authorised(ctx.Conn, ctx.Request) {
		return response(base.StatusUnauthorized), nil, unauthorised
	}
	if ctx.Session.AnnouncedDescription() != nil { // it publishes
		return response(base.StatusOK), nil, nil
	}
	if senseless(ctx.Request.Header["Transport"]) {
		return response(base.StatusBadRequest), nil, nil
	}
	conn := connOf(ctx.Conn)
	if conn.secure && ctx.Transport != gortsplib.TransportTCP {
		return response(base.StatusUnsupportedTransport), nil, nil
	}
	path := pathOf(ctx.Path)
	if ctx.Transport == gortsplib.TransportUDPMulticast {
		return s.setupMulticast(ctx.Session, conn, path)
	}
	ss, ok := ctx.Session.UserData().(*session)
	if !ok {
		tracks, stream, err := s.newStream(path)
		if err != nil {
			return response(statusOf(err)), nil, nil
		}
		if !s.admit(ctx.Session, conn) {
			stream.Close()
			return response(base.StatusServiceUnavailable), nil, nil
		}
		ss = &session{server: s, path: path, tracks: tracks, stream: stream, sends: map[int]*packetSender{}}
		ss.ctx, ss.cancel = context.WithCancel(s.ctx)
		ctx.Session.SetUserData(ss)
	}
	conn.setup = &setupRequest{session: ss, track: trackID(ctx.Request.URL)}
	return response(base.StatusOK), ss.stream, nil
}

// senseless says whether a Transport header offers channels or ports that there are not.
func senseless(header base.HeaderValue) bool {
	var offers headers.Transports
	if offers.Unmarshal(header) != nil {
		return true
	}
	for _, o := range offers {
		if c := o.InterleavedIDs; c != nil && (c[0] < 0 || c[0] > 254 || c[1] < 0 || c[1] > 255) {
			return true
		}
		if p := o.ClientPorts; p != nil && (p[0] < 1 || p[0] > 65535 || p[1] < 1 || p[1] > 65535) {
			return true
		}
	}
	return false
}

// newStream makes a library stream for what the catalog has at path.
func (s *Server) newStream(path string) ([]media.Track, *gortsplib.ServerStream, error) {
	tracks, err := s.o.Catalog.Tracks(path)
	if err != nil {
		return nil, nil, err
	}
	desc, err := describe(tracks)
	if err != nil {
		return nil, nil, err
	}
	stream := &gortsplib.ServerStream{Server: s.lib, Desc: desc}
	if err := stream.Initialize(); err != nil {
		return nil, nil, err
	}
	return tracks, stream, nil
}

// trackID reads the track's number off the end of a control URL; 0 when there is none, as the library does.
func trackID(u *base.URL) int {
	s := u.Path
	if strings.Contains(u.RawQuery, "trackID=") {
		s = u.RawQuery
	}
	if i := strings.LastIndex(s, "trackID="); i >= 0 {
		if n, err := strconv.Atoi(s[i+len("trackID="):]); err == nil {
			return n
		}
	}
	return 0
}

// OnResponse implements a hook of the library: it runs ahead of the response's write.
func (s *Server) OnResponse(conn *gortsplib.ServerConn, res *base.Response) {
	res.Header["Server"] = base.HeaderValue{"cfpipe"}
	c := connOf(conn)
	if c.setup == nil {
		return
	}
	setup := c.setup
	c.setup = nil
	if res.StatusCode != base.StatusOK {
		return
	}
	var transport headers.Transport
	if err := transport.Unmarshal(res.Header["Transport"]); err != nil {
		return
	}
	if err := setup.session.agree(setup.track, c, &transport); err != nil {
		s.log.Warn("rtsp: cannot serve the track", "path", setup.session.path, "track", setup.track, "error", err)
	}
}

// agree notes where the packets of a track go.
func (ss *session) agree(track int, c *serverConn, transport *headers.Transport) error {
	if track < 0 || track >= len(ss.tracks) {
		return fmt.Errorf("no track %d", track)
	}
	m := ss.stream.Desc.Medias[track]
	f := m.Formats[0]
	p, err := newPacketiser(ss.tracks[track], f, ss.stream.Stats().Medias[m].Formats[f].LocalSSRC)
	if err != nil {
		return err
	}
	send := &packetSender{packets: p}
	switch {
	case transport.InterleavedIDs != nil:
		if id := transport.InterleavedIDs[0]; id < 0 || id > 254 { // a channel is one byte in the frame
			return fmt.Errorf("channel %d", id)
		}
		send.conn, send.channel = c, byte(transport.InterleavedIDs[0])
		p.framed, p.channel = true, send.channel
	case transport.ClientPorts != nil:
		ip, _ := netip.AddrFromSlice(c.RemoteAddr().(*net.TCPAddr).IP)
		ip = ip.Unmap()
		if ss.server.rtp.LocalAddr().(*net.UDPAddr).IP.To4() == nil && ip.Is4() {
			ip = netip.AddrFrom16(ip.As16()) // a dual-stack socket
		}
		send.rtp = netip.AddrPortFrom(ip, uint16(transport.ClientPorts[0]))
		send.rtcp = netip.AddrPortFrom(ip, uint16(transport.ClientPorts[1]))
	default:
		return errors.New("neither channels nor ports were agreed")
	}
	ss.sends[track] = send
	return nil
}

// OnPlay implements a hook of the library.
func (s *Server) OnPlay(ctx *gortsplib.ServerHandlerOnPlayCtx) (*base.Response, error) {
	if g, ok := ctx.Session.UserData().(*multicastGroup); ok {
		if err := g.play(); err != nil {
			return response(statusOf(err)), nil
		}
		return response(base.StatusOK), nil
	}
	ss, ok := ctx.Session.UserData().(*session)
	if !ok {
		return response(base.StatusBadRequest), nil
	}
	if ss.started { // PLAY again: it plays already
		return response(base.StatusOK), nil
	}
	var tracks []int
	for t := range ss.sends {
		tracks = append(tracks, t)
	}
	if len(tracks) == 0 {
		return response(base.StatusBadRequest), nil
	}
	reader, err := s.o.Catalog.Open(ss.path, tracks)
	if err != nil {
		s.log.Debug("rtsp: open", "path", ss.path, "error", err)
		return response(statusOf(err)), nil
	}
	ss.started = true
	s.mu.Lock()
	s.active[ss] = struct{}{}
	s.mu.Unlock()
	s.log.Info("rtsp: reader", "path", ss.path, "peer", ctx.Conn.NetConn().RemoteAddr().String(), "transport", ctx.Session.SetuppedTransport().String())

	ss.done.Add(len(tracks))
	s.sessions.Add(1)
	go func() {
		defer s.sessions.Done()
		ss.done.Wait()
		reader.Close()
	}()
	c := connOf(ctx.Conn)
	if ss.sends[tracks[0]].conn != nil {
		c.setPlaying()
	}
	start := func() { // packets follow the response
		for _, t := range tracks {
			go func() {
				defer ss.done.Done()
				if err := ss.run(reader, t); err != nil && ss.ctx.Err() == nil {
					s.log.Info("rtsp: reader dropped", "path", ss.path, "peer", c.RemoteAddr().String(), "cause", err)
				}
				ss.cancel()
				ctx.Session.Close()
			}()
		}
	}
	c.write.Lock()
	c.afterWrite = start
	c.write.Unlock()
	context.AfterFunc(ss.ctx, func() { // a write that hangs must not outlive the session; a response that never went out must not leave done waiting
		c.write.Lock()
		pending := c.afterWrite != nil
		c.afterWrite = nil
		c.write.Unlock()
		if pending {
			start()
		}
	})
	return response(base.StatusOK), nil
}

// OnSessionClose implements a hook of the library.
func (s *Server) OnSessionClose(ctx *gortsplib.ServerHandlerOnSessionCloseCtx) {
	s.dismiss(ctx.Session)
	switch u := ctx.Session.UserData().(type) {
	case *session:
		u.cancel()
		if u.started {
			s.log.Info("rtsp: reader left", "path", u.path)
		}
		s.mu.Lock()
		delete(s.active, u)
		s.mu.Unlock()
		u.stream.Close()
	case *multicastGroup:
		u.leave()
	case *publishing:
		u.end(ctx.Error)
	}
}

// run sends one track until the reader ends or the peer does not take it any more.
func (ss *session) run(reader StreamReader, track int) error {
	send := ss.sends[track]
	for {
		u, err := reader.Next(ss.ctx, track)
		if err != nil {
			return err
		}
		if err := send.packets.unit(u); err != nil {
			if !send.warned { // once: a stream that RTP cannot carry fails with every picture
				send.warned = true
				ss.server.log.Warn("rtsp: access unit not sent", "path", ss.path, "track", ss.tracks[track].Name, "error", err)
			}
			continue
		}
		if send.conn != nil {
			err = send.conn.writeFrames(send.packets.buf)
		} else {
			err = send.datagrams(ss.ctx, ss.server)
		}
		if err != nil {
			return err
		}
	}
}

// A receiver's socket buffer holds about 90 full datagrams by default, and a keyframe or the catch-up of a late joiner is
// longer. So no more than udpBurst packets leave without a pause: 16 × 1472 bytes a millisecond are 188 Mbit/s.
const (
	udpBurst = 16
	udpPause = time.Millisecond
)

// datagrams sends the packets of one access unit by UDP.
func (p *packetSender) datagrams(ctx context.Context, s *Server) error {
	if len(p.packets.report) > 0 {
		_, _ = s.rtcp.WriteToUDPAddrPort(p.packets.report, p.rtcp)
	}
	if time.Since(p.lastSent) > udpPause {
		p.burst = 0
	}
	from := 0
	for _, end := range p.packets.ends {
		if s.o.Loss > 0 && rand.Float64() < s.o.Loss {
			from = end
			continue
		}
		if p.burst++; p.burst > udpBurst {
			p.burst = 1
			select {
			case <-time.After(udpPause):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		// A closed port on the other side or a full queue is not the session's end: the session times out, or the reader is back.
		if _, err := s.rtp.WriteToUDPAddrPort(p.packets.buf[from:end], p.rtp); errors.Is(err, net.ErrClosed) {
			return err
		}
		from = end
	}
	p.lastSent = time.Now()
	return nil
}
