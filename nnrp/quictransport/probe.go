package quictransport

import "time"

const (
	// probeLeastRTT: on shorter ways a loss is rare, and what a probe saves of QUIC's probe timeout is less than what it costs.
	probeLeastRTT = 10 * time.Millisecond
	// probeFraction of the round trip is what QUIC waits beyond one before it takes a gap for a loss (RFC 9002, 6.1.2). The
	// acknowledgement of a probe that is sent then comes back just in time.
	probeFraction = 8
)

// ProbeDelay is session.Conn's. The round trip is 100 ms before it was measured.
func (c *conn) ProbeDelay() time.Duration {
	rtt := c.q.ConnectionStats().SmoothedRTT
	if rtt < probeLeastRTT {
		return 0
	}
	return rtt / probeFraction
}
