package testcam

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sort"
	"strconv"
	"strings"
	"time"

	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/rtsp"
)

// Options sets up the cameras. The zero value is one H.264 camera without audio on a free port.
type Options struct {
	Listen string // "" = 127.0.0.1:0
	Count  int    // 0 = 1; paths cam0, cam1, …
	Clip   *Clip  // nil = EmbeddedClip("h264", false)

	Username, Password string     // both empty: no authentication
	Multicast          string     // a range such as "239.255.42.0/24"; "" refuses multicast
	Loss               float64    // part of the RTP packets over UDP that get lost
	Left               func(Sent) // a reader has left, or pauses; called from several goroutines, must not block; may be nil
	Logger             *slog.Logger
}

// Sent is what one reader was given of a camera's video without a pause, by the camera's clock.
type Sent struct {
	Camera int       `json:"camera"`
	Units  int       `json:"access_units"`
	First  time.Time `json:"first"` // of the pictures
	Last   time.Time `json:"last"`
}

// Cameras is a running set of cameras.
type Cameras struct {
	server *rtsp.Server
	count  int
}

// Start starts the cameras.
func Start(o Options) (*Cameras, error) {
	if o.Listen == "" {
		o.Listen = "127.0.0.1:0"
	}
	if o.Count == 0 {
		o.Count = 1
	}
	if o.Clip == nil {
		var err error
		if o.Clip, err = EmbeddedClip("h264", false); err != nil {
			return nil, err
		}
	}
	server, err := rtsp.NewServer(rtsp.ServerOptions{Listen: o.Listen, Catalog: newCatalog(o.Clip, o.Count, time.Now(), o.Left),
		Username: o.Username, Password: o.Password, Multicast: o.Multicast, Loss: o.Loss, MaxSessions: 1024 + 4*o.Count, Logger: o.Logger})
	if err != nil {
		return nil, err
	}
	return &Cameras{server: server, count: o.Count}, nil
}

// Addr is the address that the cameras listen on.
func (c *Cameras) Addr() *net.TCPAddr { return c.server.Addr() }

// URL returns the address of camera i, without credentials.
func (c *Cameras) URL(i int) string {
	host := c.Addr().IP
	if host.IsUnspecified() {
		host = net.IPv4(127, 0, 0, 1)
	}
	return fmt.Sprintf("rtsp://%s/cam%d", net.JoinHostPort(host.String(), strconv.Itoa(c.Addr().Port)), i)
}

// URLs returns the addresses of all cameras.
func (c *Cameras) URLs() []string {
	urls := make([]string, c.count)
	for i := range urls {
		urls[i] = c.URL(i)
	}
	return urls
}

// Sessions returns how many sessions play now.
func (c *Cameras) Sessions() int { return c.server.Sessions() }

// Close ends all sessions.
func (c *Cameras) Close() { c.server.Close() }

// catalog offers the same clip on all paths. Each camera has its own phase, so that their frames do not all fall due in the
// same moment.
type catalog struct {
	clip  *Clip
	count int
	start int64 // Unix ns at which camera 0 began its first round
	left  func(Sent)
}

func newCatalog(clip *Clip, count int, start time.Time, left func(Sent)) *catalog {
	behind := start.Add(-clip.Duration()) // by one round: every camera has a keyframe in the past
	return &catalog{clip: clip, count: count, left: left, start: behind.UnixNano()}
}

func (c *catalog) camera(path string) (int, error) {
	s, ok := strings.CutPrefix(path, "cam")
	i, err := strconv.Atoi(s)
	if !ok || err != nil || i < 0 || i >= c.count {
		return 0, fmt.Errorf("camera %.40q: %w", path, os.ErrNotExist)
	}
	return i, nil
}

// Paths implements rtsp.Catalog.
func (c *catalog) Paths() (paths []string) {
	for i := range c.count {
		paths = append(paths, fmt.Sprintf("cam%d", i))
	}
	return paths
}

// Tracks implements rtsp.Catalog.
func (c *catalog) Tracks(path string) ([]media.Track, error) {
	if _, err := c.camera(path); err != nil {
		return nil, err
	}
	return c.clip.Tracks(), nil
}

// Open implements rtsp.Catalog: a reader starts at the last keyframe, like one who was there a moment longer.
func (c *catalog) Open(path string, _ []media.Track, _ []int) (rtsp.StreamReader, error) {
	i, err := c.camera(path)
	if err != nil {
		return nil, err
	}
	first := c.clip.tracks[0].units
	start := c.start - int64(i)*7_919_000%int64(frameDuration)
	r := &reader{clip: c.clip, sent: Sent{Camera: i}, left: c.left, cursors: make([]cursor, len(c.clip.tracks))}
	elapsed := time.Now().UnixNano() - start - c.clip.tracks[0].delay
	round, at := elapsed/c.clip.duration, elapsed%c.clip.duration
	n := sort.Search(len(first), func(n int) bool { return first[n].dts > at }) - 1
	for ; n > 0 && !first[n].key; n-- {
	}
	if n < 0 { // the clip begins later than its round
		n = 0
	}
	from := first[n].pts
	for t := range r.cursors {
		units := c.clip.tracks[t].units
		m := n
		if t > 0 { // other tracks begin at the same time
			m = sort.Search(len(units), func(m int) bool { return units[m].pts >= from })
		}
		r.cursors[t] = cursor{base: start + round*c.clip.duration, next: m}
	}
	return r, nil
}

// reader is one session's place in the endless loop.
type reader struct {
	clip    *Clip
	cursors []cursor
	sent    Sent // of track 0; belongs to its goroutine
	left    func(Sent)
}

// cursor belongs to the goroutine of one track.
type cursor struct {
	base  int64 // Unix ns of the round's start
	next  int
	timer *time.Timer
}

var errNoUnits = errors.New("the track is empty")

// Next implements rtsp.StreamReader: it waits until the next unit is due.
func (r *reader) Next(ctx context.Context, track int) (media.Packet, error) {
	c, t := &r.cursors[track], &r.clip.tracks[track]
	if len(t.units) == 0 {
		return media.Packet{}, errNoUnits
	}
	if c.next >= len(t.units) {
		c.next, c.base = 0, c.base+r.clip.duration
	}
	u := &t.units[c.next]
	if wait := time.Duration(c.base + u.dts + t.delay - time.Now().UnixNano()); wait > 0 {
		if c.timer == nil {
			c.timer = time.NewTimer(wait)
		} else {
			c.timer.Reset(wait)
		}
		select {
		case <-c.timer.C:
		case <-ctx.Done():
			c.timer.Stop()
			return media.Packet{}, ctx.Err()
		}
	} else if err := ctx.Err(); err != nil {
		return media.Packet{}, err
	}
	c.next++
	p := u.packet(c.base)
	if track == 0 {
		if r.sent.Last = time.Unix(0, p.PTS); r.sent.Units == 0 {
			r.sent.First = r.sent.Last
		}
		r.sent.Units++
	}
	return p, nil
}

// Close implements rtsp.StreamReader.
func (r *reader) Close() {
	if r.left != nil {
		r.left(r.sent)
	}
}
