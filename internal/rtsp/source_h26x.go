package rtsp

import (
	"github.com/cfpipe/cfpipe/internal/bitstream"
	"github.com/cfpipe/cfpipe/internal/clock"
	"github.com/cfpipe/cfpipe/internal/media"
)

// rtpPacket is a received packet. The payload is valid during the call it is passed in.
type rtpPacket struct {
	seq     uint16
	time    uint32
	ssrc    uint32
	payload []byte
	kind    uint8 // payload type
	marker  bool
	at      clock.Instant
}

// unit is an access unit or an audio frame on its way out of a depacketizer. The data is valid during the call.
type unit struct {
	data    []byte
	time    uint32        // RTP timestamp
	at      clock.Instant // arrival of its first packet
	key     bool
	idr     bool
	corrupt bool // parts of it are missing
	gap     bool // something in front of it is missing
	sets    bool // H.264, H.265: it holds parameter sets
	bare    bool // ... and no picture: to learn from, not to hand on
}

// depacketizer turns the payloads of one RTP stream into units. lost says that packets are missing in front of this one.
type depacketizer interface {
	packet(p *rtpPacket, lost bool)
}

// The RTP payload structures of RFC 6184 and RFC 7798.
const (
	h264STAPA, h264STAPB, h264MTAP16, h264MTAP24, h264FUA, h264FUB = 24, 25, 26, 27, 28, 29
	h265AP, h265FU, h265PACI                                       = 48, 49, 50
)

// h26x assembles access units of H.264 and H.265.
//
// An access unit ends with the marker bit, once it has a slice (cameras set the marker on an SEI in front of it, too), and
// where the timestamp changes (cameras that never set it). A slice that continues the picture behind a marker shows that the
// markers of this stream mean nothing; from then on only the timestamp counts.
//
// Of a unit with a loss inside, the NAL units that are whole are handed on, marked corrupt and not as a keyframe.
type h26x struct {
	hevc    bool
	codec   uint32
	donl    bool // decoding order numbers are present (sprop-max-don-diff)
	max     int  // bytes of a unit
	out     func(unit)
	dropped func() // a unit was larger than max

	buf    []byte
	u      unit
	open   bool
	nal    int  // where the NAL unit that arrives in fragments begins in buf; -1: none
	over   bool // the unit has outgrown max
	begun  bool // a unit was handed out before
	last   uint32
	gap    bool // something is missing since the last unit that was whole
	noMark bool // markers mean nothing

	lostBegin           bool // packets are missing in front of the unit's first
	slice, intra, recov bool
}

func newH26x(codec uint32, donl bool, max int, out func(unit), dropped func()) *h26x {
	return &h26x{hevc: codec == media.HEVC, codec: codec, donl: donl, max: max, out: out, dropped: dropped, nal: -1}
}

func (a *h26x) packet(p *rtpPacket, lost bool) {
	if lost {
		a.gap = true
		a.cutFragment()
		if a.open { // its end may be missing, or its middle
			a.u.corrupt = true
		}
	}
	if a.open && p.time != a.u.time {
		a.finish()
	}
	if !a.open {
		a.begin(p, lost)
	}
	if !a.over {
		a.payload(p.payload)
	}
	if p.marker && !a.noMark {
		a.endNAL()
		if a.slice || a.over {
			a.finish()
		}
	}
}

func (a *h26x) begin(p *rtpPacket, lost bool) {
	a.buf = a.buf[:0]
	a.u = unit{time: p.time, at: p.at}
	a.open, a.over, a.nal = true, false, -1
	a.slice, a.recov, a.intra = false, false, true
	a.lostBegin = lost || !a.begun
}

func (a *h26x) payload(b []byte) {
	if len(b) == 0 {
		return
	}
	if a.hevc {
		a.payloadH265(b)
		return
	}
	switch t := b[0] & 0x1F; t {
	case h264STAPA:
		a.aggregate(b[1:], 0)
	case h264STAPB:
		if len(b) > 3 {
			a.aggregate(b[3:], 0)
		}
	case h264MTAP16, h264MTAP24:
		a.u.corrupt = true // nobody sends interleaved mode; what is inside is missing
	case h264FUA, h264FUB:
		head := 2
		if t == h264FUB {
			head = 4
		}
		if len(b) < head {
			a.u.corrupt = true
			return
		}
		a.fragment(b[1]&0x80 != 0, b[1]&0x40 != 0, []byte{b[0]&0xE0 | b[1]&0x1F}, b[head:])
	default:
		a.whole(b)
	}
}

func (a *h26x) payloadH265(b []byte) {
	if len(b) < 3 {
		return
	}
	don := 0
	if a.donl {
		don = 2
	}
	switch b[0] >> 1 & 0x3F {
	case h265AP:
		if len(b) < 2+don {
			a.u.corrupt = true
			return
		}
		a.aggregate(b[2+don:], don/2)
	case h265FU:
		start := b[2]&0x80 != 0
		head := 3
		if start {
			head += don
		}
		if len(b) < head {
			a.u.corrupt = true
			return
		}
		a.fragment(start, b[2]&0x40 != 0, []byte{b[0]&0x81 | b[2]&0x3F<<1, b[1]}, b[head:])
	case h265PACI:
		a.u.corrupt = true
	default:
		if a.donl && len(b) > 4 {
			b = append(append(make([]byte, 0, len(b)-2), b[:2]...), b[4:]...)
		}
		a.whole(b)
	}
}

// aggregate takes NAL units with 16-bit sizes; skip bytes stand in front of the second and later sizes.
func (a *h26x) aggregate(b []byte, skip int) {
	for first := true; len(b) > 2; first = false {
		if !first {
			b = b[min(skip, len(b)):]
			if len(b) < 2 {
				break
			}
		}
		n := int(b[0])<<8 | int(b[1])
		b = b[2:]
		if n > len(b) {
			a.u.corrupt = true
			return
		}
		if n > 0 {
			a.whole(b[:n])
		}
		b = b[n:]
	}
}

// fragment takes part of a NAL unit. Start and end in one packet are accepted (case b7), an end that is never marked as well: the
// unit then ends with the next NAL unit.
func (a *h26x) fragment(start, end bool, header, b []byte) {
	switch {
	case start:
		a.endNAL()
		a.room(4 + len(header) + len(b))
		if a.over {
			return
		}
		a.nal = len(a.buf) + 4
		a.buf = append(a.buf, 0, 0, 0, 1)
		a.buf = append(a.buf, header...)
	case a.nal < 0:
		a.u.corrupt = true // its start is missing
		a.gap = true
		return
	}
	a.room(len(b))
	if a.over {
		return
	}
	a.buf = append(a.buf, b...)
	if end {
		a.endNAL()
	}
}

// whole takes a NAL unit, or several with start codes between them, which some cameras put into one payload.
func (a *h26x) whole(b []byte) {
	a.endNAL()
	if bitstream.IsAnnexB(b) {
		for nal := range bitstream.NALs(b) {
			a.whole(nal)
		}
		return
	}
	a.room(4 + len(b))
	if a.over {
		return
	}
	a.nal = len(a.buf) + 4
	a.buf = bitstream.AppendNAL(a.buf, b)
	a.endNAL()
}

// room gives the unit up when it would outgrow its bound.
func (a *h26x) room(n int) {
	if len(a.buf)+n > a.max && !a.over {
		a.over, a.nal = true, -1
		a.buf = a.buf[:0]
		a.dropped()
	}
}

func (a *h26x) cutFragment() {
	if a.nal >= 0 {
		a.buf = a.buf[:a.nal-4]
		a.nal = -1
	}
}

// endNAL looks at the NAL unit that has just become whole.
func (a *h26x) endNAL() {
	if a.nal < 0 {
		return
	}
	nal := a.buf[a.nal:]
	c := bitstream.Classify(a.codec, nal)
	switch {
	case c.Slice:
		if !a.slice && !c.FirstSlice && a.lostBegin {
			a.u.corrupt = true // the picture's first slice is missing
		}
		if !a.slice && !c.FirstSlice && a.begun && a.u.time == a.last {
			a.noMark, a.u.corrupt, a.gap = true, true, true // the picture went on behind a marker
		}
		a.slice = true
		a.u.key = a.u.key || c.IRAP
		a.u.idr = a.u.idr || c.IDR
		if a.recov && !c.IRAP {
			a.intra = a.intra && bitstream.IntraSlice(nal)
		}
	case c.ParamSet:
		a.u.sets = true
	case !a.hevc && !a.slice && bitstream.H264Type(nal) == bitstream.H264SEI:
		a.recov = a.recov || bitstream.RecoveryPoint(nal)
	}
	a.nal = -1
}

func (a *h26x) finish() {
	a.endNAL()
	a.open = false
	a.last, a.begun = a.u.time, true
	if a.over {
		a.gap = true
		return
	}
	if len(a.buf) == 0 {
		return
	}
	if a.recov && a.intra && a.slice {
		a.u.key = true
	}
	if a.u.corrupt {
		a.u.key, a.u.idr = false, false
	}
	a.u.data = a.buf
	if !a.slice { // parameter sets with a time of their own: learned from, not handed on
		if a.u.sets {
			a.u.bare = true
			a.out(a.u)
		}
		return
	}
	if !a.u.corrupt {
		a.u.gap, a.gap = a.gap, false
	}
	a.out(a.u)
}
