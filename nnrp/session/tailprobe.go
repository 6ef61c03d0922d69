package session

import "time"

// tailProbe sends a PING as a datagram (section 5.2) shortly after the last bytes of a message when nothing has followed them. Where they
// are lost, its acknowledgement shows the gap; without it the transport waits for its own timeout, which is longer than a round trip.
// There is one probe a message at most. PONGs are none themselves, so that two ends do not go on for ever.
type tailProbe struct {
	conn  Conn
	timer *time.Timer
}

// newTailProbe calls ping when it is time to.
func newTailProbe(c Conn, ping func()) *tailProbe {
	t := time.AfterFunc(time.Hour, ping)
	t.Stop()
	return &tailProbe{conn: c, timer: t}
}

// sent notes that the transport has the last bytes of a message.
func (p *tailProbe) sent() {
	if d := p.conn.ProbeDelay(); d > 0 {
		p.timer.Reset(d)
	}
}

// followed notes that something else is sent, or that nothing will be any more: what was sent before needs no probe.
func (p *tailProbe) followed() { p.timer.Stop() }
