package rtsp

import (
	"bufio"
	"bytes"
	"context"
	"crypto/md5"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// fakeCam is an RTSP server that does what a test says: a script answers requests and sends packets, byte by byte.
type fakeCam struct {
	t  *testing.T
	ln net.Listener

	sdp     string                                 // body of DESCRIBE
	base    string                                 // Content-Base; "" = none
	timeout int                                    // of the session, seconds; 0 = not named
	public  string                                 // methods that OPTIONS names
	answer  func(c *camConn, r *camRequest) bool   // true: the request is dealt with
	setup   func(c *camConn, r *camRequest) string // Transport header of the answer; nil = what was asked for
	play    func(c *camConn)                       // runs behind the answer to PLAY, in a goroutine of its own

	mu       sync.Mutex
	requests []camRequest
	conns    []*camConn
	wg       sync.WaitGroup
}

type camRequest struct {
	method, uri string
	header      map[string]string
	raw         string
}

type camConn struct {
	cam  *fakeCam
	nc   net.Conn
	wmu  sync.Mutex
	done chan struct{}

	channels []int // RTP channel of each SETUP, in order
	udp      []*camUDP
}

type camUDP struct {
	rtp, rtcp     *net.UDPConn
	toRTP, toRTCP *net.UDPAddr
}

func newFakeCam(t *testing.T, sdp string) *fakeCam {
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	cam := &fakeCam{t: t, ln: ln, sdp: sdp, public: "OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN, GET_PARAMETER"}
	t.Cleanup(cam.close)
	return cam
}

// start must be called once the script is complete.
func (cam *fakeCam) start() *fakeCam {
	cam.wg.Add(1)
	go func() {
		defer cam.wg.Done()
		for {
			nc, err := cam.ln.Accept()
			if err != nil {
				return
			}
			c := &camConn{cam: cam, nc: nc, done: make(chan struct{})}
			cam.mu.Lock()
			cam.conns = append(cam.conns, c)
			cam.mu.Unlock()
			cam.wg.Add(1)
			go func() {
				defer cam.wg.Done()
				c.serve()
			}()
		}
	}()
	return cam
}

func (cam *fakeCam) close() {
	cam.ln.Close()
	cam.mu.Lock()
	for _, c := range cam.conns {
		c.nc.Close()
	}
	cam.mu.Unlock()
	cam.wg.Wait()
}

func (cam *fakeCam) url(path string) string { return "rtsp://" + cam.ln.Addr().String() + path }

func (cam *fakeCam) count(method string) (n int) {
	cam.mu.Lock()
	defer cam.mu.Unlock()
	for _, r := range cam.requests {
		if r.method == method {
			n++
		}
	}
	return n
}

func (c *camConn) serve() {
	defer close(c.done)
	defer func() {
		for _, u := range c.udp {
			u.rtp.Close()
			u.rtcp.Close()
		}
	}()
	br := bufio.NewReader(c.nc)
	for {
		head, err := br.Peek(1)
		if err != nil {
			return
		}
		if head[0] == '$' { // receiver reports
			var h [4]byte
			if _, err := io.ReadFull(br, h[:]); err != nil {
				return
			}
			if _, err := br.Discard(int(h[2])<<8 | int(h[3])); err != nil {
				return
			}
			continue
		}
		r := camRequest{header: map[string]string{}}
		for n := 0; ; n++ {
			line, err := br.ReadString('\n')
			if err != nil {
				return
			}
			r.raw += line
			if line = strings.TrimRight(line, "\r\n"); line == "" {
				break
			}
			if n == 0 {
				f := strings.Fields(line)
				if len(f) != 3 {
					c.cam.t.Errorf("request line %q", line)
					return
				}
				r.method, r.uri = f[0], f[1]
				continue
			}
			name, value, _ := strings.Cut(line, ":")
			r.header[strings.ToLower(name)] = strings.TrimSpace(value)
		}
		c.cam.mu.Lock()
		c.cam.requests = append(c.cam.requests, r)
		c.cam.mu.Unlock()
		if c.cam.answer != nil && c.cam.answer(c, &r) {
			continue
		}
		c.standard(&r)
		if r.method == "TEARDOWN" {
			return
		}
	}
}

func (c *camConn) standard(r *camRequest) {
	switch r.method {
	case "OPTIONS":
		c.reply(r, "200 OK", "Public: "+c.cam.public)
	case "DESCRIBE":
		h := []string{"Content-Type: application/sdp"}
		if c.cam.base != "" {
			h = append(h, "Content-Base: "+c.cam.base)
		}
		c.replyBody(r, "200 OK", c.cam.sdp, h...)
	case "SETUP":
		transport := r.header["transport"]
		switch {
		case c.cam.setup != nil:
			transport = c.cam.setup(c, r)
		case strings.Contains(transport, "client_port"):
			transport = c.listen(transport)
		}
		if _, v, found := strings.Cut(transport, "interleaved="); found {
			a, _, _ := strings.Cut(v, "-")
			n, _ := strconv.Atoi(a)
			c.channels = append(c.channels, n)
		}
		session := "Session: 12345678"
		if c.cam.timeout > 0 {
			session += fmt.Sprintf(";timeout=%d", c.cam.timeout)
		}
		c.reply(r, "200 OK", "Transport: "+transport, session)
	case "PLAY":
		c.reply(r, "200 OK", "Session: 12345678")
		if c.cam.play != nil {
			c.cam.wg.Add(1)
			go func() {
				defer c.cam.wg.Done()
				c.cam.play(c)
			}()
		}
	default:
		c.reply(r, "200 OK")
	}
}

// listen opens the server's ports for a client's.
func (c *camConn) listen(transport string) string {
	_, v, _ := strings.Cut(transport, "client_port=")
	a, _, _ := strings.Cut(v, "-")
	port, _ := strconv.Atoi(a)
	u := &camUDP{toRTP: &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port}, toRTCP: &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port + 1}}
	var err error
	u.rtp, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(c.cam.t, err)
	u.rtcp, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(c.cam.t, err)
	c.udp = append(c.udp, u)
	return fmt.Sprintf("RTP/AVP;unicast;client_port=%d-%d;server_port=%d-%d", port, port+1,
		u.rtp.LocalAddr().(*net.UDPAddr).Port, u.rtcp.LocalAddr().(*net.UDPAddr).Port)
}

func (c *camConn) reply(r *camRequest, status string, header ...string) {
	c.replyBody(r, status, "", header...)
}

func (c *camConn) replyBody(r *camRequest, status, body string, header ...string) {
	s := "RTSP/1.0 " + status + "\r\nCSeq: " + r.header["cseq"] + "\r\n"
	for _, h := range header {
		s += h + "\r\n"
	}
	if body != "" {
		s += fmt.Sprintf("Content-Length: %d\r\n", len(body))
	}
	c.write([]byte(s + "\r\n" + body))
}

func (c *camConn) write(b []byte) bool {
	c.wmu.Lock()
	defer c.wmu.Unlock()
	_, err := c.nc.Write(b)
	return err == nil
}

// sleep waits as a camera's sensor does; false when the client has gone.
func (c *camConn) sleep(d time.Duration) bool {
	select {
	case <-c.done:
		return false
	case <-time.After(d):
		return true
	}
}

// stream numbers RTP packets of one track of a connection.
type stream struct {
	c     *camConn
	track int
	seq   uint16
	ssrc  uint32
	kind  byte
}

func (c *camConn) stream(track int, kind byte) *stream {
	return &stream{c: c, track: track, seq: 65530, ssrc: 0xCAFE0000 + uint32(track), kind: kind}
}

func (s *stream) packet(time uint32, marker bool, payload []byte) []byte {
	b := []byte{0x80, s.kind, byte(s.seq >> 8), byte(s.seq)}
	if marker {
		b[1] |= 0x80
	}
	s.seq++
	b = binary.BigEndian.AppendUint32(b, time)
	b = binary.BigEndian.AppendUint32(b, s.ssrc)
	return append(b, payload...)
}

func (s *stream) send(time uint32, marker bool, payload ...byte) bool {
	return s.raw(s.packet(time, marker, payload))
}

func (s *stream) raw(packet []byte) bool {
	if len(s.c.udp) > 0 {
		u := s.c.udp[s.track]
		_, err := u.rtp.WriteToUDP(packet, u.toRTP)
		return err == nil
	}
	return s.c.write(append([]byte{'$', byte(s.c.channels[s.track]), byte(len(packet) >> 8), byte(len(packet))}, packet...))
}

func (s *stream) report(ntp uint64, time uint32) {
	b := []byte{0x80, 200, 0, 6}
	b = binary.BigEndian.AppendUint32(b, s.ssrc)
	b = binary.BigEndian.AppendUint64(b, ntp)
	b = binary.BigEndian.AppendUint32(b, time)
	b = append(b, make([]byte, 8)...)
	if len(s.c.udp) > 0 {
		u := s.c.udp[s.track]
		_, _ = u.rtcp.WriteToUDP(b, u.toRTCP)
		return
	}
	s.c.write(append([]byte{'$', byte(s.c.channels[s.track] + 1), 0, byte(len(b))}, b...))
}

// pictures sends n access units of one NAL unit each, 40 ms of RTP time apart, every tenth a keyframe. Returns the next RTP time.
func (s *stream) pictures(from uint32, n int, pause time.Duration) uint32 {
	for i := range n {
		nal := h264Slice(i%10 == 0, true, byte(i), 40)
		if !s.send(from, true, nal...) {
			break
		}
		from += 3600
		if pause > 0 && !s.c.sleep(pause) {
			break
		}
	}
	return from
}

const sdpHead = "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=cam\r\nt=0 0\r\na=control:*\r\n"

func sdpH264(fmtp string) string {
	if fmtp != "" {
		fmtp = "a=fmtp:96 " + fmtp + "\r\n"
	}
	return sdpHead + "m=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\n" + fmtp + "a=control:trackID=0\r\n"
}

const sdpAudio = "m=audio 0 RTP/AVP 8\r\na=control:trackID=1\r\n"

// collector is a sink that keeps everything.
type collector struct {
	mu       sync.Mutex
	cond     *sync.Cond
	tracks   [][]media.Track
	packets  []collected
	onPacket func(track int, p media.Packet) error
}

type collected struct {
	track int
	media.Packet
	at time.Time
}

func newCollector() *collector {
	c := &collector{}
	c.cond = sync.NewCond(&c.mu)
	return c
}

func (c *collector) Tracks(t []media.Track) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.tracks = append(c.tracks, t)
	return nil
}

func (c *collector) Packet(track int, p media.Packet) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	p.Data = bytes.Clone(p.Data)
	c.packets = append(c.packets, collected{track, p, time.Now()})
	c.cond.Broadcast()
	if c.onPacket != nil {
		return c.onPacket(track, p)
	}
	return nil
}

// wait returns when n packets are there.
func (c *collector) wait(t *testing.T, n int) []collected {
	t.Helper()
	deadline := time.AfterFunc(10*time.Second, func() { c.cond.Broadcast() })
	defer deadline.Stop()
	end := time.Now().Add(10 * time.Second)
	c.mu.Lock()
	defer c.mu.Unlock()
	for len(c.packets) < n {
		if time.Now().After(end) {
			t.Fatalf("%d packets of %d came", len(c.packets), n)
		}
		c.cond.Wait()
	}
	return append([]collected(nil), c.packets...)
}

func (c *collector) lastTracks() []media.Track {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.tracks) == 0 {
		return nil
	}
	return c.tracks[len(c.tracks)-1]
}

// running is a Source at work.
type running struct {
	*collector
	source *Source
	log    testenv.Log
	cancel context.CancelFunc
	done   chan error
}

func runSource(t *testing.T, o SourceOptions) *running {
	t.Helper()
	r := &running{collector: newCollector(), done: make(chan error, 1)}
	o.Logger = slog.New(slog.NewTextHandler(&r.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	s, err := NewSource(o)
	require.NoError(t, err)
	r.source = s
	ctx, cancel := context.WithCancel(t.Context())
	r.cancel = cancel
	go func() { r.done <- s.Run(ctx, r.collector) }()
	t.Cleanup(func() { _ = r.stop(t) })
	return r
}

// stop ends the source and returns its error.
func (r *running) stop(t *testing.T) error {
	t.Helper()
	r.cancel()
	return r.ended(t)
}

func (r *running) ended(t *testing.T) error {
	t.Helper()
	select {
	case err := <-r.done:
		r.done <- err
		return err
	case <-time.After(10 * time.Second):
		t.Fatal("the source does not end")
		return nil
	}
}

// digestOf is RFC 2617 and 7616 written down once more, for checking what the client computes.
func digestOf(sha bool, user, realm, password, method, uri, nonce, nc, cnonce, qop string) string {
	h := func(s string) string {
		if sha {
			v := sha256.Sum256([]byte(s))
			return hex.EncodeToString(v[:])
		}
		v := md5.Sum([]byte(s))
		return hex.EncodeToString(v[:])
	}
	a1, a2 := h(user+":"+realm+":"+password), h(method+":"+uri)
	if qop == "" {
		return h(a1 + ":" + nonce + ":" + a2)
	}
	return h(a1 + ":" + nonce + ":" + nc + ":" + cnonce + ":" + qop + ":" + a2)
}

var errFromSink = errors.New("sink says no")
