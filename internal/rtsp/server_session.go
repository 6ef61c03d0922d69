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
	"time"

	"github.com/bluenviron/gortsplib/v4"
	"github.com/bluenviron/gortsplib/v4/pkg/base"
	"github.com/bluenviron/gortsplib/v4/pkg/headers"

	"github.com/cfpipe/cfpipe/internal/media"
)

// session is one reader of one path over TCP or unicast UDP. The library negotiates it, on a stream of its own (nobody else
// reads it, so its SSRCs are the session's); the packets go from the catalog's reader straight to the socket.
type session struct {
	*player
	stream *gortsplib.ServerStream
	sends  map[int]*packetSender // by track, what was set up
	played bool
}

// packetSender is where one track's packets go.
type packetSender struct {
	conn     *serverConn // TCP
	channel  byte
	rtp      netip.AddrPort // UDP
	rtcp     netip.AddrPort
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
		return s.setupMulticast(ctx.Session, ctx.Conn, path)
	}
	ss, ok := ctx.Session.UserData().(*session)
	if !ok {
		tracks, stream, err := s.newStream(path)
		if err != nil {
			return s.refuse(ctx.Conn, ctx.Path, err), nil, nil
		}
		if !s.admit(ctx.Session, conn) {
			stream.Close()
			return response(base.StatusServiceUnavailable), nil, nil
		}
		ss = &session{player: s.newPlayer(path, tracks), stream: stream, sends: map[int]*packetSender{}}
		ss.deliver = ss.send
		ss.failed = func(cause error) {
			s.log.Info("rtsp: reader dropped", "path", path, "peer", conn.RemoteAddr().String(), "cause", cause)
			ctx.Session.Close()
		}
		ctx.Session.SetUserData(ss)
	}
	track := trackID(ctx.Request.URL)
	conn.amend = func(res *base.Response) { // which shows the channels or ports that were agreed
		var transport headers.Transport
		if res.StatusCode != base.StatusOK || transport.Unmarshal(res.Header["Transport"]) != nil {
			return
		}
		if err := ss.agree(track, conn, &transport); err != nil {
			s.log.Warn("rtsp: cannot serve the track", "path", path, "track", track, "error", err)
		}
	}
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
	if methods := res.Header["Public"]; s.o.Publish == nil && len(methods) == 1 { // the library names all that it has a hook for
		res.Header["Public"] = base.HeaderValue{strings.NewReplacer("ANNOUNCE, ", "", "RECORD, ", "").Replace(methods[0])}
	}
	if c := connOf(conn); c.amend != nil {
		c.amend(res)
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
	send := &packetSender{}
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
	ss.sends[track], ss.packets[track] = send, p
	return nil
}

// OnPlay implements a hook of the library.
func (s *Server) OnPlay(ctx *gortsplib.ServerHandlerOnPlayCtx) (*base.Response, error) {
	conn := connOf(ctx.Conn)
	at := &base.URL{Scheme: ctx.Request.URL.Scheme, Host: ctx.Request.URL.Host, Path: ctx.Session.SetuppedPath(), RawQuery: ctx.Session.SetuppedQuery()}
	var info headers.RTPInfo
	var err error
	start := func() {}
	switch u := ctx.Session.UserData().(type) {
	case *multicastGroup:
		info, start, err = u.join(ctx.Session, at)
	case *session:
		if len(u.sends) == 0 {
			return response(base.StatusBadRequest), nil
		}
		if u.now != nil { // PLAY again: it plays already
			break
		}
		if info, start, err = u.play(at); err != nil {
			break
		}
		s.mu.Lock()
		s.active[u] = struct{}{}
		s.mu.Unlock()
		if !u.played {
			u.played = true
			s.log.Info("rtsp: reader", "path", u.path, "peer", conn.RemoteAddr().String(), "transport", ctx.Session.SetuppedTransport().String())
		}
		if u.interleaved() {
			conn.setPlaying(true)
		}
	default:
		return response(base.StatusBadRequest), nil
	}
	if err != nil {
		if errors.Is(err, ErrStreamChanged) {
			ctx.Session.Close() // the reader has to ask for the description again
		}
		return s.refuse(ctx.Conn, ctx.Path, err), nil
	}
	conn.amend = func(res *base.Response) {
		res.Header["Range"] = base.HeaderValue{"npt=now-"}
		if len(info) > 0 {
			res.Header["RTP-Info"] = info.Marshal()
		}
	}
	conn.follow(start) // packets follow the response
	return response(base.StatusOK), nil
}

// statusPaused is what OnPause tells the library, and the peer hears OK. To the library the session goes on playing, so that it keeps
// to its timeouts and takes the receiver reports that come in between: what is paused is ours alone.
const statusPaused = base.StatusContinue

// OnPause implements a hook of the library.
func (s *Server) OnPause(ctx *gortsplib.ServerHandlerOnPauseCtx) (*base.Response, error) {
	conn := connOf(ctx.Conn)
	switch u := ctx.Session.UserData().(type) {
	case *multicastGroup:
		u.rest(ctx.Session)
	case *session:
		u.pause()
		s.inactive(u)
		if u.interleaved() {
			conn.setPlaying(false)
		}
	default:
		return response(base.StatusMethodNotValidInThisState), nil
	}
	conn.amend = func(res *base.Response) { res.StatusCode = base.StatusOK }
	return response(statusPaused), nil
}

// OnSessionClose implements a hook of the library.
func (s *Server) OnSessionClose(ctx *gortsplib.ServerHandlerOnSessionCloseCtx) {
	s.dismiss(ctx.Session)
	switch u := ctx.Session.UserData().(type) {
	case *session:
		u.cancel()
		if u.played {
			s.log.Info("rtsp: reader left", "path", u.path)
		}
		s.inactive(u)
		u.stream.Close()
	case *multicastGroup:
		u.leave(ctx.Session)
	case *publishing:
		u.end(ctx.Error)
	}
}

func (s *Server) inactive(ss *session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.active, ss)
}

// interleaved says whether the packets go over the control connection.
func (ss *session) interleaved() bool {
	for _, send := range ss.sends {
		return send.conn != nil
	}
	return false
}

// send makes packets of an access unit and sends them. Over TCP that is one piece with what ends ctx: nothing follows the response to PAUSE.
func (ss *session) send(ctx context.Context, track int, u media.Packet) error {
	send, packets := ss.sends[track], ss.packets[track]
	if send.conn != nil {
		send.conn.write.Lock()
		defer send.conn.write.Unlock()
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	if err := packets.unit(u); err != nil {
		if !send.warned { // once: a stream that RTP cannot carry fails with every picture
			send.warned = true
			ss.server.log.Warn("rtsp: access unit not sent", "path", ss.path, "track", ss.tracks[track].Name, "error", err)
		}
		return nil
	}
	if send.conn != nil {
		_, err := send.conn.Conn.Write(packets.buf)
		return err
	}
	return send.datagrams(ss.ctx, ss.server, packets)
}

// A receiver's socket buffer holds about 90 full datagrams by default, and a keyframe or the catch-up of a late joiner is
// longer. So no more than udpBurst packets leave without a pause: 16 × 1472 bytes a millisecond are 188 Mbit/s.
const (
	udpBurst = 16
	udpPause = time.Millisecond
)

// datagrams sends the packets of one access unit by UDP.
func (p *packetSender) datagrams(ctx context.Context, s *Server, packets *packetiser) error {
	if len(packets.report) > 0 {
		_, _ = s.rtcp.WriteToUDPAddrPort(packets.report, p.rtcp)
	}
	if time.Since(p.lastSent) > udpPause {
		p.burst = 0
	}
	from := 0
	for _, end := range packets.ends {
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
		if _, err := s.rtp.WriteToUDPAddrPort(packets.buf[from:end], p.rtp); errors.Is(err, net.ErrClosed) {
			return err
		}
		from = end
	}
	p.lastSent = time.Now()
	return nil
}
