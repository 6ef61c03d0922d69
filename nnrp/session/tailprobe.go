package session

import (
	"sync/atomic"
	"time"
)

// tailProbe sends a PING as a datagram (section 5.2) shortly after the last bytes of a message when nothing has followed them. Where they
// are lost, its acknowledgement shows the gap; without it the transport waits for its own timeout, which is longer than a round trip.
// There is one probe a message at most. PONGs are none themselves, so that two ends do not go on for ever.
type tailProbe struct {
	conn  Conn
	times time.Duration // of the transport's delay
	timer *time.Timer
	at    atomic.Int64 // Unix ns of sent
}

// A server waits twice as long as a client: the PONG for the client's probe, which comes when the server has answered at once, does for the
// result then.
const (
	clientProbe = 1
	serverProbe = 2
)

// newTailProbe calls ping when it is time to.
func newTailProbe(c Conn, times time.Duration, ping func()) *tailProbe {
	t := time.AfterFunc(time.Hour, ping)
	t.Stop()
	return &tailProbe{conn: c, times: times, timer: t}
}

// sent notes that the transport has the last bytes of a message.
func (p *tailProbe) sent() {
	if d := p.conn.ProbeDelay(); d > 0 {
		p.at.Store(time.Now().UnixNano())
		p.timer.Reset(d * p.times)
	}
}

// followed notes that a message is sent, or that nothing will be any more: what was sent before needs no probe.
func (p *tailProbe) followed() { p.timer.Stop() }

// answered notes that a PONG is sent. It does for a probe, except where it may have gone out in the same packet as the last bytes.
func (p *tailProbe) answered() {
	if time.Now().UnixNano()-p.at.Load() >= int64(p.conn.ProbeDelay()/2) {
		p.timer.Stop()
	}
}
