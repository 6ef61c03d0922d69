package rtsp

import (
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/cfpipe/cfpipe/internal/clock"
)

// errOtherTransport: the server wants the media another way.
var errOtherTransport = errors.New("the server does not offer this transport")

// setup agrees on a transport for all media. datagrams says that they come by UDP.
func (ss *clientSession) setup() (datagrams bool, err error) {
	var modes []Transport
	switch t := ss.s.o.Transport; {
	case t != TransportAuto:
		modes = []Transport{t}
	case ss.s.preferUDP:
		modes = []Transport{TransportUDP, TransportTCP}
	default:
		modes = []Transport{TransportTCP, TransportUDP}
	}
	if ss.s.o.Transport == TransportAuto && ss.media[0].sdp.address != nil {
		modes = append(modes, TransportMulticast)
	}
	for i := 0; i < len(modes); i++ {
		for n, m := range ss.media {
			if err = ss.setupMedia(m, modes[i], 2*n); err != nil {
				break
			}
		}
		if err == nil {
			ss.s.o.Logger.Debug("transport agreed", "transport", modes[i])
			return modes[i] != TransportTCP, nil
		}
		if !errors.Is(err, errOtherTransport) {
			return false, err
		}
		ss.undoSetup()
	}
	return false, err
}

func (ss *clientSession) undoSetup() {
	for _, m := range ss.media {
		if m.udp != nil {
			m.udp.close()
			m.udp = nil
		}
		m.channel = -1
	}
	clear(ss.channels)
	c := ss.conn
	c.mu.Lock()
	session := c.session
	c.mu.Unlock()
	if session != "" {
		_, _ = c.do(nil, "TEARDOWN", ss.base)
		c.mu.Lock()
		c.session = ""
		c.mu.Unlock()
	}
}

func (ss *clientSession) setupMedia(m *sessionMedia, mode Transport, channel int) error {
	var transport string
	var err error
	switch mode {
	case TransportTCP:
		transport = fmt.Sprintf("RTP/AVP/TCP;unicast;interleaved=%d-%d", channel, channel+1)
	case TransportUDP:
		if m.udp, err = listenDatagrams(); err != nil {
			return err
		}
		transport = fmt.Sprintf("RTP/AVP;unicast;client_port=%d-%d", m.udp.port(), m.udp.port()+1)
	case TransportMulticast:
		transport = "RTP/AVP;multicast"
	}
	r, err := ss.conn.do(nil, "SETUP", m.control, "Transport", transport)
	if err != nil {
		return err
	}
	ss.sessionHeader(r.get("session"))
	// 461 is the answer of the standard; in automatic mode the others with which servers refuse a transport count as well.
	if r.status == 461 || ss.s.o.Transport == TransportAuto && (r.status == 400 || r.status == 406 || r.status == 415 || r.status == 501) {
		return fmt.Errorf("SETUP %s: %w", mode, errOtherTransport)
	}
	if r.status != 200 {
		return ss.conn.refused("SETUP", r.status, r.reason)
	}
	t := parseTransport(r.get("transport"))
	switch mode {
	case TransportTCP:
		if t.profile != "" && !strings.HasSuffix(t.profile, "/TCP") && t.params["interleaved"] == "" {
			return fmt.Errorf("SETUP %s: %w", mode, errOtherTransport)
		}
		return ss.interleaved(m, t, channel)
	case TransportUDP:
		if strings.HasSuffix(t.profile, "/TCP") || t.multicast {
			return fmt.Errorf("SETUP %s: %w", mode, errOtherTransport)
		}
		m.udp.unicast(ss.conn.nc, t, ss.s.o.Logger)
		return nil
	default:
		if !t.multicast && t.params["destination"] == "" {
			return fmt.Errorf("SETUP %s: %w", mode, errOtherTransport)
		}
		m.udp, err = joinGroup(ss.conn.nc, t, m.sdp)
		return err
	}
}

// interleaved takes the channels that the server chose (case r2: not always those asked for, in any order of parameters).
func (ss *clientSession) interleaved(m *sessionMedia, t transportHeader, channel int) error {
	m.channel, m.rtcp = channel, channel+1
	if a, b, ok := pair(t.params["interleaved"], 255); ok {
		m.channel, m.rtcp = a, b
	}
	if ss.channels[m.channel] != nil {
		return fmt.Errorf("SETUP: the server gave channel %d twice", m.channel)
	}
	ss.channels[m.channel] = m
	if ss.channels[m.rtcp] == nil {
		ss.channels[m.rtcp] = m
	}
	return nil
}

// transportHeader is a server's Transport header.
type transportHeader struct {
	profile   string // "RTP/AVP/TCP"
	multicast bool
	params    map[string]string
}

func parseTransport(v string) transportHeader {
	v, _, _ = strings.Cut(v, ",")
	t := transportHeader{params: map[string]string{}}
	for p := range strings.SplitSeq(v, ";") {
		name, value, found := strings.Cut(strings.TrimSpace(p), "=")
		switch {
		case found:
			t.params[strings.ToLower(strings.TrimSpace(name))] = strings.Trim(strings.TrimSpace(value), `"`)
		case strings.HasPrefix(strings.ToUpper(name), "RTP/"):
			t.profile = strings.ToUpper(name)
		case strings.EqualFold(name, "multicast"):
			t.multicast = true
		}
	}
	return t
}

// pair reads "a-b" or "a" (then b is a+1). Neither is above limit.
func pair(s string, limit int) (a, b int, ok bool) {
	first, second, two := strings.Cut(s, "-")
	a, err := strconv.Atoi(strings.TrimSpace(first))
	if err != nil || a < 0 || a > limit {
		return 0, 0, false
	}
	b = a + 1
	if two {
		if n, err := strconv.Atoi(strings.TrimSpace(second)); err == nil && n >= 0 {
			b = n
		}
	}
	return a, b, b <= limit
}

// datagramPair is the pair of UDP sockets of one stream.
type datagramPair struct {
	rtp, rtcp     *net.UDPConn
	from          netip.Addr     // the only sender that is listened to
	toRTP, toRTCP netip.AddrPort // invalid: not known
	punch         bool           // open firewalls on the way
	multicast     bool
}

// receiveBuffer is asked for: a keyframe of several hundred packets comes at once.
const receiveBuffer = 2 << 20

// listenDatagrams opens an even port and the next one.
func listenDatagrams() (*datagramPair, error) {
	var err error
	for range 100 {
		port := 20000 + 2*rand.IntN(20000)
		d := &datagramPair{punch: true}
		if d.rtp, err = net.ListenUDP("udp", &net.UDPAddr{Port: port}); err != nil {
			continue
		}
		if d.rtcp, err = net.ListenUDP("udp", &net.UDPAddr{Port: port + 1}); err != nil {
			d.rtp.Close()
			continue
		}
		_ = d.rtp.SetReadBuffer(receiveBuffer) // the system may allow less
		return d, nil
	}
	return nil, fmt.Errorf("no free pair of UDP ports: %w", err)
}

func (d *datagramPair) port() int { return d.rtp.LocalAddr().(*net.UDPAddr).Port }

func remoteAddr(nc net.Conn) netip.Addr {
	if a, ok := nc.RemoteAddr().(*net.TCPAddr); ok {
		return a.AddrPort().Addr().Unmap()
	}
	return netip.Addr{}
}

// unicast takes the server's ports. The media comes from, and reports go to, the server itself: a source that it names besides
// (cameras behind address translation name their inner one) could be anybody's address.
func (d *datagramPair) unicast(nc net.Conn, t transportHeader, log *slog.Logger) {
	d.from = remoteAddr(nc)
	if named := t.params["source"]; named != "" {
		if ip, err := netip.ParseAddr(named); err != nil || ip.Unmap().WithZone("") != d.from.WithZone("") {
			log.Debug("the server names another source of its datagrams, ignored", "source", named, "peer", d.from)
		}
	}
	if a, b, ok := pair(t.params["server_port"], 65535); ok && a > 1 {
		d.toRTP, d.toRTCP = netip.AddrPortFrom(d.from, uint16(a)), netip.AddrPortFrom(d.from, uint16(b))
	}
}

// joinGroup listens to the multicast group that the server names, else the description.
func joinGroup(nc net.Conn, t transportHeader, m *sdpMedia) (*datagramPair, error) {
	group := net.ParseIP(t.params["destination"])
	if group == nil {
		group = m.address
	}
	if group == nil || !group.IsMulticast() {
		return nil, fmt.Errorf("SETUP: no multicast group: %w", errOtherTransport)
	}
	var a, b int
	ok := false
	for _, name := range []string{"port", "client_port", "server_port"} {
		if a, b, ok = pair(t.params[name], 65535); ok {
			break
		}
	}
	if !ok {
		a, b = m.port, m.port+1
	}
	d := &datagramPair{multicast: true}
	if ip, err := netip.ParseAddr(t.params["source"]); err == nil {
		d.from = ip.Unmap()
	}
	iface := interfaceOf(nc)
	var err error
	if d.rtp, err = net.ListenMulticastUDP("udp", iface, &net.UDPAddr{IP: group, Port: a}); err != nil {
		return nil, fmt.Errorf("join %s: %w", group, err)
	}
	if d.rtcp, err = net.ListenMulticastUDP("udp", iface, &net.UDPAddr{IP: group, Port: b}); err != nil {
		d.rtp.Close()
		return nil, fmt.Errorf("join %s: %w", group, err)
	}
	_ = d.rtp.SetReadBuffer(receiveBuffer)
	return d, nil
}

// interfaceOf returns the interface that the connection goes out by, nil when it is not known.
func interfaceOf(nc net.Conn) *net.Interface {
	local, ok := nc.LocalAddr().(*net.TCPAddr)
	if !ok {
		return nil
	}
	list, _ := net.Interfaces()
	for i := range list {
		addrs, _ := list[i].Addrs()
		for _, a := range addrs {
			if n, ok := a.(*net.IPNet); ok && n.IP.Equal(local.IP) {
				return &list[i]
			}
		}
	}
	return nil
}

func (d *datagramPair) close() {
	d.rtp.Close()
	d.rtcp.Close()
}

// start receives in the background until close. An error of the sink ends the session.
func (d *datagramPair) start(ss *clientSession, m *sessionMedia) {
	if d.punch && d.toRTP.IsValid() {
		_, _ = d.rtp.WriteToUDPAddrPort([]byte{0x80, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, d.toRTP)
		_, _ = d.rtcp.WriteToUDPAddrPort([]byte{0x80, 201, 0, 1, 0, 0, 0, 0}, d.toRTCP)
	}
	ss.wg.Add(2)
	go func() {
		defer ss.wg.Done()
		if err := d.receive(m.track); err != nil {
			ss.fail(err)
		}
	}()
	go func() {
		defer ss.wg.Done()
		b := make([]byte, 2048)
		for {
			n, from, err := d.rtcp.ReadFromUDPAddrPort(b)
			if err != nil {
				return
			}
			if d.accepts(from) {
				m.track.rtcp(b[:n], clock.Now())
			}
		}
	}()
}

func (d *datagramPair) accepts(from netip.AddrPort) bool {
	return !d.from.IsValid() || from.Addr().Unmap() == d.from
}

// receive reads RTP. While a packet is waited for, the read has the gap's deadline.
func (d *datagramPair) receive(t *feedTrack) error {
	b := make([]byte, 16<<10) // jumbo frames
	armed := false
	for {
		n, from, err := d.rtp.ReadFromUDPAddrPort(b)
		now := clock.Now()
		if err != nil {
			var ne net.Error
			if !errors.As(err, &ne) || !ne.Timeout() {
				return nil // closed
			}
		} else if d.accepts(from) {
			if err := t.rtp(b[:n], now); err != nil {
				return err
			}
		}
		deadline, err := t.expire(now.Mono)
		if err != nil {
			return err
		}
		if deadline != 0 || armed {
			armed = deadline != 0
			at := time.Time{}
			if armed {
				at = time.Now().Add(time.Duration(deadline - clock.Now().Mono))
			}
			_ = d.rtp.SetReadDeadline(at)
		}
	}
}

func (d *datagramPair) report(b []byte) {
	if d.toRTCP.IsValid() {
		_, _ = d.rtcp.WriteToUDPAddrPort(b, d.toRTCP)
	}
}
