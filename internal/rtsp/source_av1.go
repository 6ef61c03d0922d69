package rtsp

import "github.com/cfpipe/cfpipe/internal/bitstream"

// av1Depacketizer assembles temporal units (RTP payload format for AV1, version 1.0). The OBUs get the size fields that the RTP
// form leaves out; temporal delimiters go.
type av1Depacketizer struct {
	max     int
	out     func(unit)
	dropped func()

	buf, part []byte // the unit; an OBU that goes on in the next packet
	u         unit
	open      bool
	over      bool
	inPart    bool
	gap       bool
}

func (a *av1Depacketizer) packet(p *rtpPacket, lost bool) {
	if lost {
		a.gap, a.inPart = true, false
		a.u.corrupt = a.u.corrupt || a.open
	}
	if a.open && p.time != a.u.time {
		a.finish()
	}
	if !a.open {
		a.open, a.over, a.inPart = true, false, false
		a.buf, a.part = a.buf[:0], a.part[:0]
		a.u = unit{time: p.time, at: p.at, corrupt: lost}
	}
	if !a.over {
		a.payload(p.payload)
	}
	if p.marker {
		a.finish()
	}
}

func (a *av1Depacketizer) payload(b []byte) {
	if len(b) < 2 {
		return
	}
	head := b[0]
	b = b[1:]
	first, goesOn, count := head&0x80 != 0, head&0x40 != 0, int(head>>4&3)
	for n := 1; len(b) > 0; n++ {
		obu := b
		if count == 0 || n < count {
			size, used := bitstream.LEB128(b)
			if used == 0 || size > uint64(len(b)-used) {
				a.u.corrupt = true
				return
			}
			obu, b = b[used:used+int(size)], b[used+int(size):]
		} else {
			b = nil
		}
		continued := first && n == 1
		last := len(b) == 0
		if continued && !a.inPart {
			a.u.corrupt = true // its start is missing
			continue
		}
		if !continued {
			a.part = a.part[:0]
		}
		if len(a.buf)+len(a.part)+len(obu)+16 > a.max {
			a.over, a.inPart = true, false
			a.buf, a.part = a.buf[:0], a.part[:0]
			a.dropped()
			return
		}
		a.part = append(a.part, obu...)
		a.inPart = last && goesOn
		if !a.inPart {
			a.whole(a.part)
		}
	}
}

func (a *av1Depacketizer) whole(b []byte) {
	for o := range bitstream.OBUs(b) { // one, except from senders that aggregate OBUs with size fields
		switch o.Type {
		case bitstream.OBUTemporalDelimiter, bitstream.OBUTileList:
		default:
			a.buf = bitstream.AppendOBU(a.buf, o)
		}
	}
}

func (a *av1Depacketizer) finish() {
	a.open = false
	if a.inPart {
		a.u.corrupt = true
	}
	if a.over {
		a.gap = true
		return
	}
	if len(a.buf) == 0 {
		return
	}
	a.u.data = a.buf
	a.u.key = !a.u.corrupt && bitstream.AV1IsKey(a.buf)
	a.u.idr = a.u.key
	if !a.u.corrupt {
		a.u.gap, a.gap = a.gap, false
	}
	a.out(a.u)
}
