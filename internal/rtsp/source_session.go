package rtsp

import (
	"bufio"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cfpipe/cfpipe/internal/clock"
	"github.com/cfpipe/cfpipe/internal/media"
)

const userAgent = "cfpipe"

// clientSession is one RTSP session: DESCRIBE to TEARDOWN on one connection.
type clientSession struct {
	s    *Source
	conn *clientConn
	base string // URI of the whole session

	options  map[string]bool // methods that the server names
	noGet    bool            // GET_PARAMETER was refused; of conn.mu
	timeout  time.Duration   // of the session at the server
	media    []*sessionMedia
	feed     *feed
	channels map[int]*sessionMedia // interleaved

	stopOnce sync.Once
	stopping atomic.Bool
	tornDown bool // the answer to TEARDOWN has come; of the connection's reader
	failure  atomic.Pointer[error]
	ssrc     uint32
	wg       sync.WaitGroup
}

// sessionMedia is one stream of the session.
type sessionMedia struct {
	format  *rtpFormat
	sdp     *sdpMedia
	control string
	track   *feedTrack
	channel int           // interleaved, of RTP; RTCP's is the next, or what the server says
	rtcp    int           // interleaved, of RTCP
	udp     *datagramPair // nil with TCP
}

func newClientSession(s *Source, url address, nc net.Conn) *clientSession {
	c := &clientConn{nc: nc, br: bufio.NewReaderSize(nc, readBuffer), url: url, agent: userAgent, timeout: s.o.Timeout}
	c.auth.user, c.auth.password = url.user, url.password
	var b [4]byte
	rand.Read(b[:]) // never fails
	return &clientSession{s: s, conn: c, timeout: defaultSessionTimeout, channels: map[int]*sessionMedia{}, ssrc: binary.BigEndian.Uint32(b[:])}
}

// run plays the session to its end. redirect is where the server sends us instead.
func (ss *clientSession) run(ctx context.Context, sink media.Sink) (redirect string, err error) {
	defer func() {
		ss.stop()
		ss.drain()
		ss.conn.nc.Close()
		for _, m := range ss.media {
			if m.udp != nil {
				m.udp.close()
			}
		}
		ss.wg.Wait()
		if f := ss.failure.Load(); f != nil {
			err = *f
		}
	}()
	release := context.AfterFunc(ctx, ss.stop)
	defer release()
	if redirect, err = ss.describe(); err != nil || redirect != "" {
		return redirect, err
	}
	datagrams, err := ss.setup()
	if err != nil {
		return "", err
	}
	var formats []*rtpFormat
	for _, m := range ss.media {
		formats = append(formats, m.format)
	}
	ss.feed = newFeed(sink, formats, &ss.s.o, datagrams, &ss.s.stats)
	ss.feed.clock.SetAhead(ss.s.ahead)
	for i, m := range ss.media {
		m.track = ss.feed.tracks[i]
	}
	if err := ss.feed.announce(); err != nil {
		return "", err
	}
	ss.feed.lastPacket.Store(clock.Now().Mono)
	for _, m := range ss.media {
		if m.udp != nil {
			m.udp.start(ss, m)
		}
	}
	if err := ss.play(); err != nil {
		return "", err
	}
	done := make(chan struct{})
	ss.wg.Add(1)
	go func() {
		defer ss.wg.Done()
		ss.watch(done)
	}()
	err = ss.receive()
	close(done)
	ss.feed.mu.Lock()
	if ahead, known := ss.feed.clock.Ahead(); known {
		ss.s.ahead = ahead
	}
	ss.feed.mu.Unlock()
	if ss.s.o.Transport == TransportAuto {
		ss.s.preferUDP = !datagrams && ss.feed.tracks != nil && ss.silent()
	}
	return "", err
}

// silent says whether not one packet has come.
func (ss *clientSession) silent() bool {
	ss.feed.mu.Lock()
	defer ss.feed.mu.Unlock()
	for _, t := range ss.feed.tracks {
		if t.order.started {
			return false
		}
	}
	return true
}

// fail ends the session with an error.
func (ss *clientSession) fail(err error) {
	ss.failure.CompareAndSwap(nil, &err)
	ss.stop()
}

// stopGrace is how long the answer to TEARDOWN is waited for. Closing at once would reset the connection while data is unread,
// and the request could be lost with it: the camera would keep the session until its timeout.
const stopGrace = 500 * time.Millisecond

// stop ends the session: TEARDOWN when there is one, then the reader of the connection comes back within stopGrace.
func (ss *clientSession) stop() {
	ss.stopOnce.Do(func() {
		ss.stopping.Store(true)
		c := ss.conn
		c.mu.Lock()
		session := c.session
		c.mu.Unlock()
		if session == "" {
			c.nc.Close()
			return
		}
		time.AfterFunc(stopGrace, func() { c.nc.Close() })
		_ = c.nc.SetWriteDeadline(time.Now().Add(stopGrace))
		_ = c.sendAsync("TEARDOWN", ss.base)
	})
}

// drain waits for the answer to TEARDOWN, for stopGrace at most.
func (ss *clientSession) drain() {
	_ = ss.conn.nc.SetReadDeadline(time.Now().Add(stopGrace))
	for !ss.tornDown {
		r, err := ss.conn.read(nil)
		if err != nil {
			return
		}
		req, found := ss.conn.answered(r)
		ss.tornDown = found && req.method == "TEARDOWN"
	}
}

// describe asks for the methods and the session description and picks the media.
func (ss *clientSession) describe() (redirect string, err error) {
	uri := ss.conn.url.uri()
	ss.options = map[string]bool{}
	if r, err := ss.conn.do(nil, "OPTIONS", uri); err != nil {
		return "", err
	} else if r.status == 200 {
		for _, h := range r.header["public"] {
			for m := range strings.SplitSeq(h, ",") {
				ss.options[strings.ToUpper(strings.TrimSpace(m))] = true
			}
		}
	}
	r, err := ss.conn.do(nil, "DESCRIBE", uri, "Accept", "application/sdp")
	if err != nil {
		return "", err
	}
	if to := r.get("location"); r.status >= 300 && r.status < 400 && to != "" {
		return to, nil
	}
	if r.status != 200 {
		return "", ss.conn.refused("DESCRIBE", r.status, r.reason)
	}
	control, list, err := parseSDP(r.body)
	if err != nil {
		return "", err
	}
	ss.base = sessionBase(uri, control, r)
	var refused []string
	have := map[string]bool{}
	for _, m := range list {
		if m.kind != "video" && m.kind != "audio" || m.inactive || have[m.kind] || m.kind == "audio" && ss.s.o.NoAudio {
			continue
		}
		f, err := m.format()
		if err != nil {
			refused = append(refused, err.Error())
			ss.s.o.Logger.Warn("left out", "track", err)
			continue
		}
		have[m.kind] = true
		ss.media = append(ss.media, &sessionMedia{format: f, sdp: m, control: joinControl(ss.base, m.control), channel: -1})
	}
	if len(ss.media) == 0 {
		return "", fmt.Errorf("no track that can be received (%s): %w", strings.Join(refused, "; "), media.ErrUnsupported)
	}
	return "", nil
}

// sessionBase is the URI of the session: the description's own, the response's, the request's.
func sessionBase(uri, control string, r *reply) string {
	for _, v := range []string{control, r.get("content-base"), r.get("content-location")} {
		v = strings.TrimSpace(v)
		if v == "" || v == "*" {
			continue
		}
		if u, err := url.Parse(v); err == nil && u.Host != "" && (u.Scheme == "rtsp" || u.Scheme == "rtsps") {
			if u.User != nil {
				u.User = nil
				v = u.String()
			}
			return v
		}
		if v[0] == '/' {
			a, err := parseAddress(uri)
			if err == nil {
				a.path = v
				return a.uri()
			}
		}
	}
	return uri
}

func (ss *clientSession) play() error {
	r, err := ss.conn.do(ss.frame, "PLAY", ss.base, "Range", "npt=0.000-")
	if err != nil {
		return err
	}
	if r.status == 459 || r.status == 455 || r.status == 457 { // aggregate operation, range: some servers take neither
		for _, m := range ss.media {
			if r, err = ss.conn.do(ss.frame, "PLAY", m.control); err != nil {
				return err
			}
		}
	}
	if r.status != 200 {
		return ss.conn.refused("PLAY", r.status, r.reason)
	}
	return nil
}

// receive reads the connection until it ends: media when it is interleaved, answers, and the end.
func (ss *clientSession) receive() error {
	_ = ss.conn.nc.SetReadDeadline(time.Time{})
	for {
		r, err := ss.conn.read(ss.frame)
		if err != nil {
			return err
		}
		req, found := ss.conn.answered(r)
		switch {
		case !found:
		case req.method == "TEARDOWN":
			ss.tornDown = true
			return net.ErrClosed
		case r.status == 454 && !ss.stopping.Load():
			return errors.New("the server has dropped the session (454)")
		case req.method == "GET_PARAMETER" && r.status >= 400 && r.status != 401:
			ss.conn.mu.Lock()
			ss.noGet = true
			ss.conn.mu.Unlock()
		}
	}
}

func (ss *clientSession) frame(channel int, payload []byte) error {
	m := ss.channels[channel]
	if m == nil || ss.feed == nil || ss.stopping.Load() {
		return nil
	}
	at := clock.Now()
	if channel == m.rtcp {
		m.track.rtcp(payload, at)
		return nil
	}
	return m.track.rtp(payload, at)
}

// sessionHeader takes the Session header: the id and the timeout.
func (ss *clientSession) sessionHeader(v string) {
	id, params, _ := strings.Cut(v, ";")
	id = strings.TrimSpace(id)
	if id == "" {
		return
	}
	ss.conn.mu.Lock()
	ss.conn.session = id
	ss.conn.mu.Unlock()
	for p := range strings.SplitSeq(params, ";") {
		name, value, _ := strings.Cut(strings.TrimSpace(p), "=")
		if strings.EqualFold(name, "timeout") {
			if n, err := strconv.Atoi(strings.TrimSpace(value)); err == nil && n > 0 && n < 24*3600 {
				ss.timeout = time.Duration(n) * time.Second
			}
		}
	}
}
