package rtsp

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"time"

	"github.com/bluenviron/gortsplib/v4/pkg/headers"

	"github.com/cfpipe/cfpipe/internal/media"
)

// PushOptions describe one connection to an RTSP server that takes ANNOUNCE and RECORD. URL and Tracks must be set.
type PushOptions struct {
	URL                string
	Username, Password string // in place of those in the URL
	Tracks             []media.Track
	Timeout            time.Duration // for connecting, answers and writes; 0 = 10 s
	OnStart            func()        // called when the server records; may be nil
}

// keepAliveInterval is how often a publisher sends a request: below the 60 s after which servers drop a silent session.
const keepAliveInterval = 25 * time.Second

// Push publishes until the reader ends, the connection fails or ctx ends. open is called once the server has accepted the
// description. Packets go interleaved over the RTSP connection. Errors do not show credentials.
func Push(ctx context.Context, o PushOptions, open func() (StreamReader, error)) error {
	if o.Timeout <= 0 {
		o.Timeout = 10 * time.Second
	}
	a, err := parseAddress(o.URL)
	if err != nil {
		return err
	}
	if o.Username != "" || o.Password != "" {
		a.user, a.password = o.Username, o.Password
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	nc, err := dialPush(ctx, a, o.Timeout)
	if err != nil {
		return fmt.Errorf("push to %s: %w", Redact(o.URL), err)
	}
	defer nc.Close()
	defer context.AfterFunc(ctx, func() { _ = nc.SetDeadline(time.Now()) })()
	c := &clientConn{nc: nc, br: bufio.NewReaderSize(nc, readBuffer), url: a, agent: "cfpipe", timeout: o.Timeout,
		auth: authorizer{user: a.user, password: a.password}}
	p := &pusher{conn: c, o: o, base: a.uri()}
	if err := p.announce(); err != nil {
		return fmt.Errorf("push to %s: %w", Redact(o.URL), err)
	}
	reader, err := open()
	if err != nil {
		return err
	}
	defer reader.Close()
	if o.OnStart != nil {
		o.OnStart()
	}
	err = p.run(ctx, cancel, reader)
	_ = nc.SetDeadline(time.Now().Add(time.Second))
	_, _ = c.send("TEARDOWN", p.base)
	if err != nil {
		err = fmt.Errorf("push to %s: %w", Redact(o.URL), err)
	}
	return err
}

func dialPush(ctx context.Context, a address, timeout time.Duration) (net.Conn, error) {
	d := &net.Dialer{Timeout: timeout}
	if a.scheme == "rtsps" {
		return (&tls.Dialer{NetDialer: d, Config: &tls.Config{ServerName: a.hostname()}}).DialContext(ctx, "tcp", a.dial())
	}
	return d.DialContext(ctx, "tcp", a.dial())
}

// pusher is one publishing connection.
type pusher struct {
	conn    *clientConn
	o       PushOptions
	base    string
	packets []*packetiser
}

// announce describes the tracks and sets all of them up.
func (p *pusher) announce() error {
	desc, err := describe(p.o.Tracks)
	if err != nil {
		return err
	}
	for i, m := range desc.Medias {
		m.Control = fmt.Sprintf("trackID=%d", i)
	}
	if p.conn.description, err = desc.Marshal(false); err != nil {
		return err
	}
	if _, err := p.conn.ok(nil, "ANNOUNCE", p.base); err != nil {
		return err
	}
	for i, m := range desc.Medias {
		var ssrc [4]byte
		_, _ = rand.Read(ssrc[:])
		packets, err := newPacketiser(p.o.Tracks[i], m.Formats[0], binary.BigEndian.Uint32(ssrc[:]))
		if err != nil {
			return err
		}
		transport := fmt.Sprintf("RTP/AVP/TCP;unicast;interleaved=%d-%d;mode=record", 2*i, 2*i+1)
		r, err := p.conn.ok(nil, "SETUP", joinControl(p.base, m.Control), "Transport", transport)
		if err != nil {
			return err
		}
		var agreed headers.Transport
		channel := 2 * i
		if err := agreed.Unmarshal(r.header["transport"]); err == nil && agreed.InterleavedIDs != nil && agreed.InterleavedIDs[0]>>8 == 0 {
			channel = agreed.InterleavedIDs[0] // servers may choose others
		}
		if s := r.get("session"); s != "" {
			p.conn.mu.Lock()
			p.conn.session = sessionID(s)
			p.conn.mu.Unlock()
		}
		packets.framed, packets.channel = true, byte(channel)
		p.packets = append(p.packets, packets)
	}
	_, err = p.conn.ok(nil, "RECORD", p.base, "Range", "npt=0.000-")
	return err
}

// run sends until something ends.
func (p *pusher) run(ctx context.Context, cancel context.CancelFunc, reader StreamReader) error {
	failed := make(chan error, len(p.packets)+2)
	var done sync.WaitGroup
	start := func(f func() error) {
		done.Go(func() {
			failed <- f()
			cancel()
		})
	}
	_ = p.conn.nc.SetReadDeadline(time.Time{})
	start(func() error { // answers, receiver reports
		for {
			if _, err := p.conn.read(nil); err != nil {
				return fmt.Errorf("connection closed: %w", err)
			}
		}
	})
	start(func() error {
		ticker := time.NewTicker(keepAliveInterval)
		defer ticker.Stop()
		for {
			select {
			case <-ticker.C:
				if _, err := p.conn.send("OPTIONS", p.base); err != nil {
					return err
				}
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	})
	for t, packets := range p.packets {
		start(func() error {
			for {
				u, err := reader.Next(ctx, t)
				if err != nil {
					return err
				}
				if err := packets.unit(u); err != nil {
					continue
				}
				if err := p.conn.writeRaw(packets.buf); err != nil {
					return fmt.Errorf("send: %w", err)
				}
			}
		})
	}
	err := <-failed
	cancel()
	_ = p.conn.nc.SetReadDeadline(time.Now())
	done.Wait()
	if errors.Is(err, context.Canceled) {
		return context.Cause(ctx)
	}
	return err
}

// writeRaw writes frames that are put together already.
func (c *clientConn) writeRaw(b []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	_ = c.nc.SetWriteDeadline(time.Now().Add(c.timeout))
	_, err := c.nc.Write(b)
	return err
}

// sessionID takes the identifier from a Session header.
func sessionID(v string) string {
	id, _, _ := strings.Cut(v, ";")
	return strings.TrimSpace(id)
}
