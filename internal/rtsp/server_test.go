package rtsp

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/servercert"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// fakeCatalog has one stream, "live": access units of a size at a rate, a keyframe first.
type fakeCatalog struct {
	size     int
	interval time.Duration
	open     atomic.Int32
	tracks   []media.Track
}

func (c *fakeCatalog) Paths() []string { return []string{"live"} }

func (c *fakeCatalog) Tracks(path string) ([]media.Track, error) {
	if path != "live" {
		return nil, fmt.Errorf("path %s: %w", path, os.ErrNotExist)
	}
	if c.tracks != nil {
		return c.tracks, nil
	}
	return []media.Track{{CodecID: media.H264}, {Kind: media.Audio, CodecID: media.PCMAlaw}}, nil
}

func (c *fakeCatalog) Open(string, []media.Track, []int) (StreamReader, error) {
	c.open.Add(1)
	return &fakeReader{catalog: c, start: time.Now()}, nil
}

type fakeReader struct {
	catalog *fakeCatalog
	start   time.Time
	n       [2]int
}

func (r *fakeReader) Next(ctx context.Context, track int) (media.Packet, error) {
	at := r.start.Add(time.Duration(r.n[track]) * r.catalog.interval)
	select {
	case <-time.After(time.Until(at)):
	case <-ctx.Done():
		return media.Packet{}, ctx.Err()
	}
	p := media.Packet{PTS: at.UnixNano(), DTS: at.UnixNano(), Flags: media.FlagLastInAU, Data: fill(160, 0)}
	if track == 0 {
		typ := byte(1)
		if r.n[0] == 0 {
			typ, p.Flags = 5, p.Flags|media.FlagKey
		}
		p.Data = annexB(h264NAL(typ, r.catalog.size))
	}
	r.n[track]++
	return p, nil
}

func (r *fakeReader) Close() { r.catalog.open.Add(-1) }

func startServer(t *testing.T, o ServerOptions) *Server {
	t.Helper()
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	if o.Logger == nil {
		o.Logger = slog.New(slog.DiscardHandler)
	}
	s, err := NewServer(o)
	require.NoError(t, err)
	t.Cleanup(s.Close)
	return s
}

func dial(t *testing.T, s *Server) *testenv.RTSP {
	return testenv.DialRTSP(t, s.Addr().String(), "live")
}

// A sender report, then the keyframe, arrive at once on the channels that the client chose.
func TestFirstPackets(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	s := startServer(t, ServerOptions{Catalog: &fakeCatalog{size: 5000, interval: 40 * time.Millisecond}, RTPPort: -1})
	c := dial(t, s)
	c.Play(1)
	ch, packet := c.Frame()
	require.Equal(t, byte(5), ch)
	require.Equal(t, byte(200), packet[1])
	ch, packet = c.Frame()
	require.Equal(t, byte(4), ch)
	require.Equal(t, byte(28), packet[12]&0x1F) // FU-A
	require.Equal(t, byte(5), packet[13]&0x1F)  // of an IDR
	status, header, _ := c.Do("GET_PARAMETER", c.URL+"/")
	require.Equal(t, 200, status)
	require.Equal(t, "cfpipe", header["server"])
	status, _, _ = c.Do("SETUP", c.URL+"/trackID=1", "Transport: RTP/AVP/TCP;unicast;interleaved=0-1")
	require.NotEqual(t, 200, status)
}

// A reader that says who it is is answered as fast as any other.
func TestSetupIsNotHeldBack(t *testing.T) {
	s := startServer(t, ServerOptions{Catalog: &fakeCatalog{size: 10, interval: time.Second}, RTPPort: -1})
	c := dial(t, s)
	begin := time.Now()
	status, _, _ := c.Do("SETUP", c.URL+"/trackID=0", "Transport: RTP/AVP/TCP;unicast;interleaved=0-1", "User-Agent: GStreamer/1.22.0")
	require.Equal(t, 200, status)
	require.Less(t, time.Since(begin), 900*time.Millisecond)
}

func TestStatus(t *testing.T) {
	testenv.CheckLeaks(t)
	s := startServer(t, ServerOptions{Catalog: &fakeCatalog{size: 100, interval: time.Second}, RTPPort: -1})
	base := "rtsp://" + s.Addr().String()
	c := dial(t, s)
	status, _, _ := c.Do("DESCRIBE", base+"/nothing")
	require.Equal(t, 404, status)
	for _, url := range []string{base, "*", base + "/live"} {
		status, header, _ := c.Do("OPTIONS", url)
		require.Equal(t, 200, status)
		require.Equal(t, "DESCRIBE, SETUP, PLAY, PAUSE, GET_PARAMETER, TEARDOWN", header["public"], "what it does, and nothing else")
	}
	status, _, _ = c.Do("GET_PARAMETER", base+"/live")
	require.Equal(t, 200, status, "before there is a session, too")
	status, _, _ = c.Do("PLAY", base+"/live")
	require.Equal(t, 501, status)
	status, _, _ = c.Do("SETUP", base+"/live/trackID=0", "Transport: RTP/AVP;unicast;client_port=5000-5001")
	require.Equal(t, 461, status, "UDP is refused where it is not served")
	status, _, _ = dial(t, s).Do("SETUP", base+"/live/trackID=7", "Transport: RTP/AVP/TCP;unicast;interleaved=0-1")
	require.Equal(t, 400, status)

	s = startServer(t, ServerOptions{Catalog: &fakeCatalog{size: 100, interval: time.Second}})
	for _, transport := range []string{
		"RTP/AVP/TCP;unicast;interleaved=300-301", "RTP/AVP/TCP;unicast;interleaved=255-256", "RTP/AVP;unicast;client_port=99999-100000",
		"RTP/AVP;unicast;client_port=65535", "RTP/AVP;unicast;client_port=0-1",
	} {
		status, _, _ = dial(t, s).Do("SETUP", "rtsp://"+s.Addr().String()+"/live/trackID=0", "Transport: "+transport)
		require.Equal(t, 400, status, transport)
	}
	status, _, _ = dial(t, s).Do("SETUP", "rtsp://"+s.Addr().String()+"/live/trackID=0", "Transport: RTP/AVP/TCP;unicast;interleaved=254-255")
	require.Equal(t, 200, status)
}

// A reader that takes nothing is dropped after the write timeout; until then and after, others get every access unit.
func TestStalledReader(t *testing.T) {
	for _, scheme := range []string{"rtsp", "rtsps"} {
		t.Run(scheme, func(t *testing.T) { stalledReader(t, scheme == "rtsps") })
	}
}

func stalledReader(t *testing.T, secure bool) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	catalog := &fakeCatalog{size: 200_000, interval: 10 * time.Millisecond} // 160 Mbit/s
	made, err := servercert.SelfSigned()
	require.NoError(t, err)
	s := startServer(t, ServerOptions{Catalog: catalog, WriteTimeout: 3 * time.Second, RTPPort: -1,
		ListenTLS: "127.0.0.1:0", Certificate: func() *tls.Certificate { return made }})
	dial := func() (*testenv.RTSP, *net.TCPConn) {
		if secure {
			c := testenv.DialRTSPS(t, s.TLSAddr().String(), "live")
			return c, c.Conn.(*tls.Conn).NetConn().(*net.TCPConn)
		}
		c := dial(t, s)
		return c, c.Conn.(*net.TCPConn)
	}
	stalled, socket := dial()
	require.NoError(t, socket.SetReadBuffer(4096))
	stalled.Play(1)
	before := heap()

	other, _ := dial()
	other.Play(1)
	markers, seq := 0, -1
	var worst time.Duration
	for last := time.Now(); s.Sessions() == 2 || markers < 100; {
		ch, packet := other.Frame()
		if ch != 4 {
			continue
		}
		n := int(packet[2])<<8 | int(packet[3])
		if seq >= 0 {
			require.Equal(t, (seq+1)&0xFFFF, n)
		}
		seq = n
		if packet[1]&0x80 != 0 {
			markers++
			worst = max(worst, time.Since(last))
			last = time.Now()
		}
	}
	require.Less(t, worst, 2500*time.Millisecond, "the other reader waited for the stalled one")
	require.Less(t, heap(), before+16<<20, "a stalled reader's packets pile up")
	testenv.Eventually(t, 5*time.Second, func() error {
		if n := catalog.open.Load(); n != 1 {
			return fmt.Errorf("%d readers are open", n)
		}
		return nil
	})
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// Connections that come and go, in every state, leave nothing behind.
func TestComingAndGoing(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	catalog := &fakeCatalog{size: 2000, interval: 5 * time.Millisecond}
	s := startServer(t, ServerOptions{Catalog: catalog})
	settled := func() {
		testenv.Eventually(t, 5*time.Second, func() error {
			if o, n := catalog.open.Load(), s.Sessions(); o != 0 || n != 0 {
				return fmt.Errorf("%d readers, %d sessions", o, n)
			}
			return nil
		})
	}
	round := func(i int) {
		c := dial(t, s)
		switch i % 5 {
		case 0:
			c.Play(1)
			c.Frame()
		case 1:
			c.Play(1) // and away with unread data
		case 2:
			c.Do("SETUP", c.URL+"/trackID=0", "Transport: RTP/AVP/TCP;unicast;interleaved=0-1")
		case 3:
			c.Do("SETUP", c.URL+"/trackID=0", "Transport: RTP/AVP;unicast;client_port=45000-45001")
			c.Do("PLAY", c.URL)
			c.Do("TEARDOWN", c.URL)
		case 4:
			c.Do("SETUP", c.URL+"/trackID=0", "Transport: RTP/AVP/TCP;unicast;interleaved=0-1")
			c.Do("PLAY", c.URL)
			c.Do("TEARDOWN", c.URL)
		}
		c.Conn.Close()
	}
	for i := range 10 {
		round(i)
	}
	settled()
	goroutines := runtime.NumGoroutine()
	for i := range 100 {
		round(i)
	}
	settled()
	testenv.Eventually(t, 5*time.Second, func() error {
		if n := runtime.NumGoroutine(); n > goroutines+2 {
			return fmt.Errorf("%d goroutines, %d before", n, goroutines)
		}
		return nil
	})
}

func TestPortTaken(t *testing.T) {
	s := startServer(t, ServerOptions{Catalog: &fakeCatalog{}, RTPPort: -1})
	_, err := NewServer(ServerOptions{Listen: s.Addr().String(), Catalog: &fakeCatalog{}})
	require.ErrorContains(t, err, "the port is taken")
	require.ErrorContains(t, err, s.Addr().String())
	_, err = NewServer(ServerOptions{Listen: "127.0.0.1:0", RTPPort: 5001, Catalog: &fakeCatalog{}})
	require.ErrorContains(t, err, "odd")
}

func TestPasswordIsNeeded(t *testing.T) {
	testenv.CheckLeaks(t)
	s := startServer(t, ServerOptions{Catalog: &fakeCatalog{size: 10, interval: time.Second}, RTPPort: -1, Username: "u", Password: "p"})
	c := dial(t, s)
	status, header, body := c.Do("DESCRIBE", c.URL)
	require.Equal(t, 401, status)
	require.NotEmpty(t, header["www-authenticate"])
	require.Empty(t, body)
	c = dial(t, s)
	status, _, _ = c.Do("SETUP", c.URL+"/trackID=0", "Transport: RTP/AVP/TCP;unicast;interleaved=0-1")
	require.Equal(t, 401, status)
	c = dial(t, s)
	status, _, body = c.Do("DESCRIBE", c.URL, "Authorization: Basic dTpw") // u:p
	require.Equal(t, 200, status)
	require.True(t, bytes.Contains([]byte(body), []byte("H264")))
}

// The log says what a reader of a path that is not there could have had, and who had the wrong password: once a second, however
// many ask.
func TestLogHelpsReaders(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	var log testenv.Log
	s := startServer(t, ServerOptions{Catalog: &fakeCatalog{size: 10, interval: time.Second}, RTPPort: -1, Username: "viewer", Password: "secret",
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	base := "rtsp://" + s.Addr().String()
	const authorised, wrong = "Authorization: Basic dmlld2VyOnNlY3JldA==", "Authorization: Basic dmlld2VyOmd1ZXNz"
	c := dial(t, s)
	for range 50 {
		status, _, _ := c.Do("DESCRIBE", base+"/Live", authorised)
		require.Equal(t, 404, status)
	}
	require.Equal(t, 1, strings.Count(log.String(), "a reader was refused"), log.String())
	require.Regexp(t, `path=Live peer=127.0.0.1:\d+ status=404 there_is=live\n`, log.String())

	status, _, _ := dial(t, s).Do("DESCRIBE", base+"/live")
	require.Equal(t, 401, status)
	require.NotContains(t, log.String(), "wrong user name", "a reader asks without them first")
	status, _, _ = dial(t, s).Do("DESCRIBE", base+"/live", wrong)
	require.Equal(t, 401, status)
	require.Contains(t, log.String(), "wrong user name or password")
	require.NotContains(t, log.String(), "guess")
	require.NotContains(t, log.String(), "without a user name")
	testenv.Eventually(t, 5*time.Second, func() error { // told once a second
		status, _, _ := dial(t, s).Do("DESCRIBE", base+"/live", "Authorization: Basic OnNlY3JldA==") // :secret
		require.Equal(t, 401, status)
		if !strings.Contains(log.String(), "a login without a user name") {
			return errors.New(log.String())
		}
		return nil
	})
}
