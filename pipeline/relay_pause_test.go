package pipeline

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// rtpTrack follows the RTP and RTCP packets of one track and fails the test where a receiver would count a loss or see time go back.
type rtpTrack struct {
	t        *testing.T
	seq      int // -1: none yet
	first    uint32
	last     uint32
	packets  int
	payload  int
	reported bool // a sender report has come since the last begin
	keys     int
	keyed    uint32 // RTP time of the newest one
}

// begin makes the next packet the first one after a PLAY.
func (r *rtpTrack) begin() { r.packets, r.reported, r.keys, r.keyed = 0, false, 0, 0 }

func (r *rtpTrack) rtp(packet []byte) {
	r.t.Helper()
	seq, at := int(binary.BigEndian.Uint16(packet[2:])), binary.BigEndian.Uint32(packet[4:])
	if r.seq >= 0 {
		require.Equal(r.t, (r.seq+1)&0xFFFF, seq, "a gap in the sequence numbers")
		require.Less(r.t, at-r.last, uint32(1<<31), "RTP time goes back by %d", r.last-at)
	}
	if r.packets == 0 {
		require.True(r.t, r.reported, "no sender report ahead of the first packet")
		r.first = at
	}
	if isKey(packet) && at != r.keyed { // a picture may have several slices
		r.keyed = at
		r.keys++
	}
	r.seq, r.last = seq, at
	r.packets++
	r.payload += len(packet) - 12
}

// rtcp checks what a report says against what was received.
func (r *rtpTrack) rtcp(packet []byte) {
	r.t.Helper()
	reportTime(r.t, packet)
	if r.packets == 0 {
		r.reported = true
	}
	require.Equal(r.t, r.payload, int(binary.BigEndian.Uint32(packet[24:])), "the report counts other octets than were sent")
}

// playAgain sends PLAY and checks what the response says.
func playAgain(t *testing.T, c *testenv.RTSP) (seq int, rtptime uint32) {
	t.Helper()
	status, header, _ := c.Do("PLAY", c.URL+"/")
	require.Equal(t, 200, status)
	require.Equal(t, "npt=now-", header["range"])
	m := regexp.MustCompile(`^url=([^;]+)/trackID=0;seq=(\d+);rtptime=(\d+)`).FindStringSubmatch(header["rtp-info"])
	require.NotNil(t, m, header["rtp-info"])
	require.Equal(t, c.URL, m[1])
	_, err := fmt.Sscan(m[2]+" "+m[3], &seq, &rtptime)
	require.NoError(t, err)
	return seq, rtptime
}

func pauseReader(t *testing.T, c *testenv.RTSP) {
	t.Helper()
	status, header, _ := c.Do("PAUSE", c.URL+"/")
	require.Equal(t, 200, status)
	require.True(t, strings.HasPrefix(header["session"], c.Session), header["session"])
}

// Nothing follows the response to PAUSE. PLAY begins anew at the keyframe, at once and out of the ring, also where it was sent before:
// to the receiver the packets are one stream, and the response says with which one it goes on.
func TestRelayPauseTCP(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	l := newLive(t, longGOP(t, "-an"), 3*time.Second)
	addr := l.relay(RelayOptions{})
	c := testenv.DialRTSP(t, addr, l.key)
	track := &rtpTrack{t: t, seq: -1}
	frame := func(ch byte, packet []byte) {
		if ch == 4 {
			track.rtp(packet)
		} else {
			track.rtcp(packet)
		}
	}
	c.Passed = frame
	c.Play(1)
	other := l.play(addr, 1)
	for round := range 3 {
		for track.packets < 100 {
			frame(c.Frame())
		}
		require.Equal(t, 1, track.keys, "it does not begin at the one keyframe")
		ended := track.last
		pauseReader(t, c)
		_ = c.Conn.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		_, _, err := c.TryFrame()
		var timeout net.Error
		require.True(t, errors.As(err, &timeout) && timeout.Timeout(), "after the response to PAUSE: %v", err)
		_ = c.Conn.SetReadDeadline(time.Time{})
		pauseReader(t, c) // twice is once
		status, _, _ := c.Do("GET_PARAMETER", c.URL)
		require.Equal(t, 200, status)
		_, err = c.Conn.Write([]byte{'$', 5, 0, 8, 2 << 6, 201, 0, 1, 1, 2, 3, 4}) // a receiver report, as readers send them in between
		require.NoError(t, err)
		other.Frame()

		track.begin()
		begin := time.Now()
		seq, rtptime := playAgain(t, c)
		require.Equal(t, (track.seq+1)&0xFFFF, seq)
		for track.packets == 0 {
			frame(c.Frame())
		}
		require.Less(t, time.Since(begin), time.Second, "it waits for the camera's next keyframe")
		require.Equal(t, seq, track.seq)
		require.Equal(t, rtptime, track.first)
		require.Greater(t, track.first-ended, uint32(90*300), "RTP time has stood still, round %d", round)
		require.Less(t, track.first-ended, uint32(90*5000))
		status, header, _ := c.Do("PLAY", c.URL+"/") // it plays already
		require.Equal(t, 200, status)
		require.Empty(t, header["rtp-info"])
	}
	status, _, _ := c.Do("TEARDOWN", c.URL)
	require.Equal(t, 200, status)
}

// udpPair binds the two ports of a receiver.
func udpPair(t *testing.T) (rtp, rtcp *net.UDPConn) {
	t.Helper()
	for range 100 {
		a, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		require.NoError(t, err)
		port := a.LocalAddr().(*net.UDPAddr).Port
		if port%2 == 0 {
			if b, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: port + 1}); err == nil {
				t.Cleanup(func() { a.Close(); b.Close() })
				_ = a.SetReadBuffer(1 << 20)
				return a, b
			}
		}
		a.Close()
	}
	t.Fatal("no pair of ports")
	return nil, nil
}

// setupUDP sets up the first track for a pair of ports.
func setupUDP(t *testing.T, c *testenv.RTSP) (rtp, rtcp *net.UDPConn) {
	t.Helper()
	rtp, rtcp = udpPair(t)
	port := rtp.LocalAddr().(*net.UDPAddr).Port
	status, header, _ := c.Do("SETUP", c.URL+"/trackID=0", fmt.Sprintf("Transport: RTP/AVP;unicast;client_port=%d-%d", port, port+1))
	require.Equal(t, 200, status)
	require.Contains(t, header["session"], "timeout=60")
	return rtp, rtcp
}

// receive hands packets to the track until none has come for a while, or enough is true.
func (r *rtpTrack) receive(rtp, rtcp *net.UDPConn, quiet time.Duration, enough func() bool) {
	r.t.Helper()
	b := make([]byte, 2048)
	for !enough() {
		_ = rtp.SetReadDeadline(time.Now().Add(quiet))
		n, err := rtp.Read(b)
		if err != nil {
			return
		}
		packet := append([]byte(nil), b[:n]...)
		for { // the report that went out first
			_ = rtcp.SetReadDeadline(time.Now().Add(time.Millisecond))
			n, err := rtcp.Read(b)
			if err != nil {
				break
			}
			if b[1] == 200 && n > 0 {
				r.reported = true
			}
		}
		r.rtp(packet)
	}
}

func TestRelayPauseUDP(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	l := newLive(t, longGOP(t, "-an"), 3*time.Second)
	c := testenv.DialRTSP(t, l.relay(RelayOptions{}), l.key)
	rtp, rtcp := setupUDP(t, c)
	track := &rtpTrack{t: t, seq: -1}
	playAgain(t, c)
	for range 3 {
		track.receive(rtp, rtcp, 5*time.Second, func() bool { return track.packets >= 100 })
		require.Equal(t, 1, track.keys)
		pauseReader(t, c)
		begin := time.Now()
		track.receive(rtp, rtcp, 300*time.Millisecond, func() bool { return time.Since(begin) > 2*time.Second })
		require.Less(t, time.Since(begin), 1500*time.Millisecond, "packets still come")
		track.begin()
		seq, rtptime := playAgain(t, c)
		track.receive(rtp, rtcp, 5*time.Second, func() bool { return track.packets > 0 })
		require.Equal(t, seq, track.seq)
		require.Equal(t, rtptime, track.first)
	}
}

// One listener's PAUSE does not stop the others; that of the last one stops the sender, and the next PLAY begins at the keyframe.
func TestRelayPauseMulticast(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	l := newLive(t, longGOP(t, "-an"), 3*time.Second)
	addr := l.relay(RelayOptions{Multicast: "239.255.44.0/24", Listen: "0.0.0.0:0"})
	_, port, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	addr = "127.0.0.1:" + port
	a, b := testenv.DialRTSP(t, addr, l.key), testenv.DialRTSP(t, addr, l.key)
	var rtp, rtcp *net.UDPConn
	for _, c := range []*testenv.RTSP{a, b} {
		status, header, _ := c.Do("SETUP", c.URL+"/trackID=0", "Transport: RTP/AVP;multicast")
		require.Equal(t, 200, status)
		m := regexp.MustCompile(`destination=([0-9.]+).*port=(\d+)-`).FindStringSubmatch(header["transport"])
		require.NotNil(t, m, header["transport"])
		if rtp == nil {
			rtp, rtcp = joinGroup(t, m[1], m[2], 0), joinGroup(t, m[1], m[2], 1)
		}
	}
	track := &rtpTrack{t: t, seq: -1}
	some := func(quiet time.Duration) int {
		before := track.packets
		track.receive(rtp, rtcp, quiet, func() bool { return track.packets >= before+60 })
		return track.packets - before
	}
	playAgain(t, a)
	status, _, _ := b.Do("PLAY", b.URL)
	require.Equal(t, 200, status)
	require.Equal(t, 60, some(5*time.Second))
	require.Equal(t, 1, track.keys)
	pauseReader(t, a)
	require.Equal(t, 60, some(5*time.Second), "one PAUSE has stopped the other's")
	pauseReader(t, b)
	silence := func() { // the socket holds what came before
		track.receive(rtp, rtcp, 300*time.Millisecond, func() bool { return track.packets > 5000 })
	}
	begin := time.Now()
	silence()
	require.Less(t, time.Since(begin), 2*time.Second, "nobody listens, and packets still come")
	track.begin()
	seq, rtptime := playAgain(t, b)
	track.receive(rtp, rtcp, 5*time.Second, func() bool { return track.packets > 0 })
	require.Equal(t, seq, track.seq)
	require.Equal(t, rtptime, track.first)
	require.Equal(t, 60, some(5*time.Second))
	require.Equal(t, 1, track.keys)
	status, _, _ = b.Do("TEARDOWN", b.URL)
	require.Equal(t, 200, status)
	begin = time.Now()
	silence()
	require.Less(t, time.Since(begin), 2*time.Second, "the one that is left pauses, and packets still come")
}

// joinGroup listens to a multicast address.
func joinGroup(t *testing.T, ip, port string, next int) *net.UDPConn {
	t.Helper()
	addr, err := net.ResolveUDPAddr("udp4", net.JoinHostPort(ip, port))
	require.NoError(t, err)
	addr.Port += next
	c, err := net.ListenMulticastUDP("udp4", nil, addr)
	require.NoError(t, err)
	t.Cleanup(func() { c.Close() })
	_ = c.SetReadBuffer(1 << 20)
	return c
}

// What became of the stream in between is told: a key that is gone is 404, another stream 410, after which the reader has to begin anew.
func TestRelayPauseStreamChanges(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	l := newLive(t, silent(t), time.Second)
	c := l.play(l.relay(RelayOptions{}), 1)
	c.Frame()
	pauseReader(t, c)
	l.stop()
	status, _, _ := c.Do("PLAY", c.URL)
	require.Equal(t, 404, status)
	l.start()
	playAgain(t, c)
	c.Frame()
	pauseReader(t, c)
	l.stop()
	l.clip = otherClip(t)
	l.start()
	status, _, _ = c.Do("PLAY", c.URL)
	require.Equal(t, 410, status)
	_ = c.Conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	_, _, err := c.TryFrame()
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "the session still stands")
}

// Floods of PAUSE and PLAY, pipelined too, cost nothing that stays, and disturb no other reader.
func TestRelayPauseFlood(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 2*time.Minute)
	l := newLive(t, embedded(t), time.Second)
	addr := l.relay(RelayOptions{})
	good := l.play(addr, 1)
	good.Frame()
	held := testenv.Holds(t)

	tcp := testenv.DialRTSP(t, addr, l.key)
	track, audio := &rtpTrack{t: t, seq: -1, reported: true}, &rtpTrack{t: t, seq: -1, reported: true}
	tcp.Passed = func(ch byte, packet []byte) {
		switch ch {
		case 4:
			track.rtp(packet)
		case 6:
			audio.rtp(packet)
		}
	}
	tcp.Play(2)
	for range 200 {
		pauseReader(t, tcp)
		status, _, _ := tcp.Do("PLAY", tcp.URL)
		require.Equal(t, 200, status)
	}
	before := track.packets
	for track.packets < before+50 || audio.packets == 0 {
		tcp.Passed(tcp.Frame())
	}
	pipelined := l.play(addr, 2)
	var requests strings.Builder
	for i := range 400 {
		fmt.Fprintf(&requests, "%s %s RTSP/1.0\r\nCSeq: %d\r\nSession: %s\r\n\r\n", []string{"PAUSE", "PLAY"}[i%2], pipelined.URL, 100+i, pipelined.Session)
	}
	_, err := pipelined.Conn.Write([]byte(requests.String())) // and the responses are not read
	require.NoError(t, err)
	udp := testenv.DialRTSP(t, addr, l.key)
	setupUDP(t, udp)
	for range 200 {
		status, _, _ := udp.Do("PLAY", udp.URL)
		require.Equal(t, 200, status)
		pauseReader(t, udp)
	}
	for range 50 {
		good.Frame()
	}
	status, _, _ := udp.Do("TEARDOWN", udp.URL)
	require.Equal(t, 200, status)
	for _, c := range []*testenv.RTSP{tcp, pipelined, udp} {
		c.Conn.Close()
	}
	testenv.Eventually(t, 10*time.Second, held.Back(t, testenv.Held{Goroutines: 2, Files: 4})) // two are the test's own sockets
}
