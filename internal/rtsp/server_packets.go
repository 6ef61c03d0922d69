package rtsp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"

	"github.com/bluenviron/gortsplib/v4/pkg/format"

	"github.com/cfpipe/cfpipe/internal/media"
)

var (
	errNoNAL = errors.New("access unit without a start code")
	errNoOBU = errors.New("temporal unit without an OBU")
)

// senderReportInterval in ns of the stream's clock. RFC 3550 suggests 5 s; the first report goes out before the first packet,
// so that a reader has the absolute time from the start.
const senderReportInterval = 5_000_000_000

// senderReportSize: a sender report without report blocks, and an SDES chunk with a CNAME, which is what ties the tracks of a
// session to one clock.
const senderReportSize = 28 + len(sdesCNAME) + 8

// sdesCNAME stands behind the SSRC of the SDES chunk: item 1 (CNAME), 6 bytes, "cfpipe", and zeros to a multiple of 4.
var sdesCNAME = [...]byte{1, 6, 'c', 'f', 'p', 'i', 'p', 'e', 0, 0, 0, 0}

// packetiser turns the access units of one track of one session into RTP and RTCP packets, framed as the transport wants
// them: all in one buffer that is used again.
type packetiser struct {
	payloader payloader
	rate      uint64
	pt        uint8
	ssrc      uint32
	seq       uint16

	shift  int64 // ns that RTP time is ahead of pts: see player.resume
	latest int64 // pts and shift of what was sent that is shown last

	packets, octets uint32
	nextReport      int64 // pts of the next sender report; 0 = at once

	buf     []byte
	ends    []int  // UDP: where each RTP packet ends in buf
	framed  bool   // TCP: each packet has "$", channel and length in front
	channel byte   // TCP
	report  []byte // UDP: a sender report that is due
	time    uint32
	last    bool
}

func newPacketiser(t media.Track, f format.Format, ssrc uint32) (*packetiser, error) {
	p, err := payloaderOf(t, f)
	if err != nil {
		return nil, err
	}
	return &packetiser{payloader: p, rate: uint64(f.ClockRate()), pt: f.PayloadType(), ssrc: ssrc, seq: uint16(ssrc)}, nil
}

// unit makes the packets of u. They stand in buf until the next call.
func (p *packetiser) unit(u media.Packet) error {
	p.buf, p.ends, p.report = p.buf[:0], p.ends[:0], p.report[:0]
	if len(u.Data) > maxAccessUnit {
		return fmt.Errorf("access unit of %d bytes, sessions send at most %d", len(u.Data), maxAccessUnit)
	}
	p.time, p.last = p.ticks(u.PTS), u.Flags&media.FlagLastInAU != 0
	p.latest = max(p.latest, u.PTS+p.shift)
	if u.PTS >= p.nextReport || u.PTS < p.nextReport-2*senderReportInterval {
		p.nextReport = u.PTS + senderReportInterval
		if p.framed {
			p.buf = append(p.buf, '$', p.channel+1, 0, byte(senderReportSize))
			p.buf = p.appendReport(p.buf, u.PTS)
		} else {
			p.report = p.appendReport(p.report, u.PTS)
		}
	}
	return p.payloader.payloads(u.Data, p)
}

// ticks is the RTP time of a pts.
func (p *packetiser) ticks(pts int64) uint32 { return rtpTime(pts+p.shift, p.rate) }

// resume begins anew after a pause, with a report first.
func (p *packetiser) resume(shift int64) { p.shift, p.nextReport = shift, 0 }

// payload implements rtpSink.
func (p *packetiser) payload(head, body []byte, last bool, ticks uint32) {
	size := rtpHeaderSize + len(head) + len(body)
	if p.framed {
		p.buf = append(p.buf, '$', p.channel, byte(size>>8), byte(size))
	}
	pt := p.pt
	if last && p.last {
		pt |= 0x80
	}
	p.buf = append(p.buf, 2<<6, pt)
	p.buf = binary.BigEndian.AppendUint16(p.buf, p.seq)
	p.buf = binary.BigEndian.AppendUint32(p.buf, p.time+ticks)
	p.buf = binary.BigEndian.AppendUint32(p.buf, p.ssrc)
	p.buf = append(p.buf, head...)
	p.buf = append(p.buf, body...)
	p.seq++
	p.packets++
	p.octets += uint32(len(head) + len(body))
	p.ends = append(p.ends, len(p.buf))
}

func (p *packetiser) appendReport(b []byte, pts int64) []byte {
	b = append(b, 2<<6, 200, 0, 6)
	b = binary.BigEndian.AppendUint32(b, p.ssrc)
	b = binary.BigEndian.AppendUint64(b, ntpTime(pts))
	b = binary.BigEndian.AppendUint32(b, p.ticks(pts))
	b = binary.BigEndian.AppendUint32(b, p.packets)
	b = binary.BigEndian.AppendUint32(b, p.octets)
	b = append(b, 2<<6|1, 202, 0, byte((len(sdesCNAME)+8)/4-1))
	b = binary.BigEndian.AppendUint32(b, p.ssrc)
	return append(b, sdesCNAME[:]...)
}

// rtpTime maps Unix time in ns to RTP time: the tick that is nearest, counted from 1970, in its low 32 bits. All sessions that were
// not paused give an access unit the same RTP time, and so do the tracks of a source.
func rtpTime(ns int64, rate uint64) uint32 {
	hi, lo := bits.Mul64(uint64(max(ns, 0)), rate)
	lo, carry := bits.Add64(lo, 500_000_000, 0)
	hi += carry
	q, _ := bits.Div64(hi%1_000_000_000, lo, 1_000_000_000)
	return uint32(q)
}

// ntpTime maps Unix time in ns to NTP: seconds since 1900 and a binary fraction, rounded to the nearest.
func ntpTime(ns int64) uint64 {
	const from1900 = 2208988800
	s, rest := uint64(max(ns, 0))/1_000_000_000, uint64(max(ns, 0))%1_000_000_000
	return (s+from1900)<<32 + (rest<<32+500_000_000)/1_000_000_000
}
