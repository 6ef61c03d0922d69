package rtsp

import (
	"encoding/binary"

	"github.com/cfpipe/cfpipe/internal/clock"
)

// parseRTP reads an RTP header (RFC 3550). The payload is a part of b.
func parseRTP(b []byte, p *rtpPacket) bool {
	if len(b) < 12 || b[0]>>6 != 2 {
		return false
	}
	n := 12 + 4*int(b[0]&15)
	if b[0]&0x10 != 0 { // extension
		if len(b) < n+4 {
			return false
		}
		n += 4 + 4*int(binary.BigEndian.Uint16(b[n+2:]))
	}
	if n > len(b) {
		return false
	}
	end := len(b)
	if b[0]&0x20 != 0 && end > n { // padding; a count that makes no sense is taken as none
		if pad := int(b[end-1]); pad > 0 && pad <= end-n {
			end -= pad
		}
	}
	p.marker, p.kind = b[1]&0x80 != 0, b[1]&0x7F
	p.seq = binary.BigEndian.Uint16(b[2:])
	p.time = binary.BigEndian.Uint32(b[4:])
	p.ssrc = binary.BigEndian.Uint32(b[8:])
	p.payload = b[n:end]
	return true
}

// senderReport is what is used of an RTCP sender report.
type senderReport struct {
	ntp  uint64
	time uint32
}

// parseRTCP looks through a compound packet for a sender report and a goodbye.
func parseRTCP(b []byte) (sr senderReport, report, bye bool) {
	for len(b) >= 4 && b[0]>>6 == 2 {
		n := 4 + 4*int(binary.BigEndian.Uint16(b[2:]))
		if n > len(b) {
			return
		}
		switch b[1] {
		case 200:
			if n >= 28 {
				sr = senderReport{binary.BigEndian.Uint64(b[8:]), binary.BigEndian.Uint32(b[16:])}
				report = true
			}
		case 203:
			bye = true
		}
		b = b[n:]
	}
	return
}

// order puts packets of a datagram transport in order and finds loss on every transport. A missing packet is waited for until
// wait has passed since the first one behind it arrived, or the window is full: latency and memory stay bounded whatever the packet
// rate. Duplicates go.
type order struct {
	wait    int64 // ns; 0: the transport keeps order, nothing is held
	deliver func(p *rtpPacket, lost bool)

	started bool
	next    uint16
	ssrc    uint32
	held    int
	stale   int // packets in a row from before next
	slots   [orderWindow]heldPacket

	// for receiver reports
	received, missing uint64
	highest           uint32 // with cycles
	reordered         uint64
}

// orderWindow is how many packets may be held. At 8 Mbit/s, 150 ms are about 110 packets.
const orderWindow = 256

type heldPacket struct {
	used bool
	p    rtpPacket
	buf  []byte
}

func (o *order) push(p *rtpPacket) {
	o.received++
	if !o.started || p.ssrc != o.ssrc {
		restarted := o.started
		if restarted {
			o.flush()
		}
		o.started, o.ssrc, o.next, o.stale = true, p.ssrc, p.seq, 0
		o.highest = uint32(p.seq)
		o.pass(p, restarted)
		return
	}
	switch d := int(int16(p.seq - o.next)); {
	case d == 0:
		o.stale = 0
		o.pass(p, false)
		o.drain()
	case o.wait == 0:
		switch {
		case d == -1: // a server that does not count
			o.deliver(p, false)
		case d < 0 && d > -orderWindow && o.stale < 8:
			o.stale++ // old news; a stream of it is a server that has started to count afresh
		default:
			if d > 0 {
				o.missing += uint64(d)
			}
			o.next, o.stale = p.seq, 0
			o.pass(p, true)
		}
	case d < 0:
		if o.stale++; o.stale > 32 { // not late: the sender has started to count afresh
			o.flush()
			o.next, o.stale = p.seq, 0
			o.pass(p, true)
		}
	case d >= orderWindow:
		o.flush()
		o.missing += uint64(p.seq - o.next)
		o.next, o.stale = p.seq, 0
		o.pass(p, true)
	default:
		o.stale = 0
		o.reordered++
		s := &o.slots[p.seq%orderWindow]
		if s.used {
			return
		}
		s.used, s.p = true, *p
		s.buf = append(s.buf[:0], p.payload...)
		s.p.payload = s.buf
		o.held++
	}
}

func (o *order) pass(p *rtpPacket, lost bool) {
	o.next = p.seq + 1
	if d := int16(p.seq - uint16(o.highest)); d > 0 {
		o.highest += uint32(d)
	}
	o.deliver(p, lost)
}

// drain hands on what is held and follows without a gap.
func (o *order) drain() {
	for o.held > 0 {
		s := &o.slots[o.next%orderWindow]
		if !s.used {
			return
		}
		s.used = false
		o.held--
		o.pass(&s.p, false)
	}
}

// skip gives up the missing packets in front of the first one held.
func (o *order) skip() {
	lost := false
	for o.held > 0 {
		s := &o.slots[o.next%orderWindow]
		if s.used {
			s.used = false
			o.held--
			o.pass(&s.p, lost)
			break
		}
		lost = true
		o.missing++
		o.next++
	}
	o.drain()
}

func (o *order) flush() {
	for o.held > 0 {
		o.skip()
	}
}

// deadline is when the first gap is given up, on the monotonic clock.
func (o *order) deadline() (at int64, waiting bool) {
	if o.held == 0 {
		return 0, false
	}
	for i := range uint16(orderWindow) {
		if s := &o.slots[(o.next+i)%orderWindow]; s.used && (!waiting || s.p.at.Mono < at) {
			at, waiting = s.p.at.Mono, true
		}
	}
	return at + o.wait, waiting
}

// expire gives up what has been waited for long enough.
func (o *order) expire(now int64) {
	for {
		at, waiting := o.deadline()
		if !waiting || now < at {
			return
		}
		o.skip()
	}
}

// receiverReport makes an RTCP receiver report with a CNAME. Some cameras take the absence of reports for a dead client.
func receiverReport(b []byte, local, remote uint32, o *order, lastSR uint64, lastSRAt clock.Instant, now clock.Instant) []byte {
	var r [32]byte
	r[0], r[1], r[3] = 0x81, 201, 7
	binary.BigEndian.PutUint32(r[4:], local)
	binary.BigEndian.PutUint32(r[8:], remote)
	binary.BigEndian.PutUint32(r[12:], uint32(min(o.missing, 0x7FFFFF)))
	binary.BigEndian.PutUint32(r[16:], o.highest)
	if lastSR != 0 {
		binary.BigEndian.PutUint32(r[24:], uint32(lastSR>>16))
		binary.BigEndian.PutUint32(r[28:], uint32((now.Mono-lastSRAt.Mono)*65536/1e9))
	}
	b = append(b, r[:]...)
	// SDES: one chunk, CNAME "cfpipe", padded to 4 bytes
	b = append(b, 0x81, 202, 0, 4)
	b = binary.BigEndian.AppendUint32(b, local)
	return append(b, 1, 6, 'c', 'f', 'p', 'i', 'p', 'e', 0, 0, 0, 0)
}
