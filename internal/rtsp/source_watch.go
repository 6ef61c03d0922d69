package rtsp

import (
	"errors"
	"fmt"
	"time"

	"github.com/cfpipe/cfpipe/internal/clock"
)

// watch keeps the session alive, reports reception and notices silence.
func (ss *clientSession) watch(done <-chan struct{}) {
	period := min(time.Second, ss.s.o.Timeout/4, ss.timeout/8)
	ticker := time.NewTicker(period)
	defer ticker.Stop()
	start := clock.Now().Mono
	alive, report := start, start
	keepalive := int64(ss.timeout) / 2
	if !ss.options["GET_PARAMETER"] {
		keepalive = int64(ss.timeout) / 3 // both methods take turns
	}
	for turn := 0; ; {
		select {
		case <-done:
			return
		case <-ticker.C:
		}
		now := clock.Now()
		if silence := time.Duration(now.Mono - ss.feed.lastPacket.Load()); silence > ss.s.o.Timeout {
			ss.fail(fmt.Errorf("no packet for %v: %w", silence.Round(100*time.Millisecond), errSilent))
			return
		}
		if barren := time.Duration(now.Mono - max(ss.feed.lastUnit.Load(), start)); barren > max(unitPatience, ss.s.o.Timeout) {
			ss.fail(fmt.Errorf("packets come, but no access unit for %v: %w", barren.Round(100*time.Millisecond), errSilent))
			return
		}
		if bye := ss.feed.bye.Load(); bye != 0 && now.Mono-bye > int64(byePatience) {
			ss.fail(errors.New("the server ended the stream (RTCP goodbye)"))
			return
		}
		if now.Mono-alive >= keepalive-int64(period)/2 {
			alive = now.Mono
			ss.keepAlive(turn)
			turn++
		}
		if now.Mono-report >= int64(reportPeriod) {
			report = now.Mono
			ss.report(now)
		}
	}
}

var errSilent = errors.New("the camera has fallen silent")

// keepAlive: servers that name GET_PARAMETER want that (some count nothing else), for the others it takes turns with OPTIONS.
func (ss *clientSession) keepAlive(turn int) {
	ss.conn.mu.Lock()
	get := !ss.noGet && (ss.options["GET_PARAMETER"] || turn%2 == 0)
	ss.conn.mu.Unlock()
	method := "OPTIONS"
	if get {
		method = "GET_PARAMETER"
	}
	if err := ss.conn.sendAsync(method, ss.base); err != nil {
		ss.fail(err)
	}
}

func (ss *clientSession) report(now clock.Instant) {
	for _, m := range ss.media {
		ss.feed.mu.Lock()
		t := m.track
		ready := t.order.started
		b := receiverReport(nil, ss.ssrc, t.ssrc, &t.order, t.lastSR, t.lastSRAt, now)
		ss.feed.mu.Unlock()
		switch {
		case !ready:
		case m.udp != nil:
			m.udp.report(b)
		default:
			_ = ss.conn.writeFrame(m.rtcp, b) // a broken connection shows where it is read
		}
	}
}
