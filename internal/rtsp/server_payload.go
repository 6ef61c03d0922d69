package rtsp

import (
	"fmt"

	"github.com/bluenviron/gortsplib/v4/pkg/format"

	"github.com/cfpipe/cfpipe/internal/bitstream"
	"github.com/cfpipe/cfpipe/internal/media"
)

// maxRTPPacket keeps UDP datagrams within an Ethernet frame: 1500 bytes less the IPv4 and UDP headers. Readers of interleaved
// TCP expect packets of the same size.
const (
	maxRTPPacket  = 1472
	rtpHeaderSize = 12
	maxRTPPayload = maxRTPPacket - rtpHeaderSize
)

// payloader splits one access unit into RTP payloads. It belongs to one session's track and keeps scratch memory.
type payloader interface {
	// payloads calls out for each payload in order. The payload is head followed by body; both are valid during the call.
	// last marks the end of what was handed in; ticks is added to the access unit's RTP time.
	payloads(unit []byte, out rtpSink) error
}

// rtpSink takes payloads and makes packets of them.
type rtpSink interface {
	payload(head, body []byte, last bool, ticks uint32)
}

// payloaderOf returns the payloader of a track in format f.
func payloaderOf(t media.Track, f format.Format) (payloader, error) {
	switch f := f.(type) {
	case *format.H264:
		return &h264Payloader{}, nil
	case *format.H265:
		return &h265Payloader{}, nil
	case *format.MPEG4Audio:
		return &aacPayloader{}, nil
	case *format.Opus:
		return wholePayloader{}, nil
	case *format.G711:
		return &samplePayloader{bitsPerTick: 8 * max(f.ChannelCount, 1)}, nil
	case *format.LPCM:
		return &samplePayloader{bitsPerTick: f.BitDepth * max(f.ChannelCount, 1)}, nil
	case *format.G726:
		return &samplePayloader{bitsPerTick: f.BitRate / 8}, nil
	case *format.AV1:
		return &av1Payloader{}, nil
	case *format.MJPEG:
		return &jpegPayloader{}, nil
	}
	return nil, fmt.Errorf("%s: %w", media.CodecName(t.CodecID), ErrUnsupportedCodec)
}

// h264Payloader: RFC 6184, single NAL units and FU-A. No aggregation: every NAL unit, also a delimiter, arrives as it was.
type h264Payloader struct{ head [2]byte }

func (p *h264Payloader) payloads(unit []byte, out rtpSink) error {
	return eachNAL(unit, 1, func(nal []byte, last bool) {
		if len(nal) <= maxRTPPayload {
			out.payload(nil, nal, last, 0)
			return
		}
		const indicator = 28 // FU-A
		p.head = [2]byte{nal[0]&0x60 | indicator, nal[0] & 0x1F}
		fuPayloads(p.head[:], nal[1:], last, out)
	})
}

// h265Payloader: RFC 7798, single NAL units and fragmentation units.
type h265Payloader struct{ head [3]byte }

func (p *h265Payloader) payloads(unit []byte, out rtpSink) error {
	return eachNAL(unit, 2, func(nal []byte, last bool) {
		if len(nal) <= maxRTPPayload {
			out.payload(nil, nal, last, 0)
			return
		}
		const fu = 49
		p.head = [3]byte{nal[0]&0x81 | fu<<1, nal[1], nal[0] >> 1 & 0x3F}
		fuPayloads(p.head[:], nal[2:], last, out)
	})
}

// eachNAL calls f for the NAL units of an access unit; the last one carries the marker. One that is shorter than its header is none, and
// no reader could take it.
func eachNAL(unit []byte, header int, f func(nal []byte, last bool)) error {
	var held []byte // one behind
	for nal := range bitstream.NALs(unit) {
		if len(nal) < header {
			continue
		}
		if held != nil {
			f(held, false)
		}
		held = nal
	}
	if held == nil {
		return errNoNAL
	}
	f(held, true)
	return nil
}

// fuPayloads sends the body of a NAL unit in parts, behind heads that end with the FU header (RFC 6184, 5.8; RFC 7798, 4.4.3), in which the
// type stands already.
func fuPayloads(head, body []byte, marker bool, out rtpSink) {
	const start, end = 0x80, 0x40
	fu := &head[len(head)-1]
	*fu |= start
	for n := maxRTPPayload - len(head); len(body) > n; body = body[n:] {
		out.payload(head, body[:n], false, 0)
		*fu &^= start
	}
	*fu |= end
	out.payload(head, body, marker, 0)
}

// av1Payloader: the AV1 payload format, one OBU element a packet (W = 1), without size fields and temporal delimiters.
type av1Payloader struct{ head [3]byte }

func (p *av1Payloader) payloads(unit []byte, out rtpSink) error {
	var held bitstream.OBU
	first := byte(0x08) // N: a coded video sequence begins
	if !bitstream.AV1IsKey(unit) {
		first = 0
	}
	for o := range bitstream.OBUs(unit) {
		if o.Type == bitstream.OBUTemporalDelimiter || o.Type == bitstream.OBUTileList || o.Type == bitstream.OBUPadding {
			continue
		}
		if held.Header != nil {
			p.obu(held, first, false, out)
			first = 0
		}
		held = o
	}
	if held.Header == nil {
		return errNoOBU
	}
	p.obu(held, first, true, out)
	return nil
}

func (p *av1Payloader) obu(o bitstream.OBU, aggregation byte, last bool, out rtpSink) {
	const one = 0x10 // W = 1
	p.head[0] = aggregation | one
	n := 1 + copy(p.head[1:], o.Header)
	p.head[1] &^= 2 // no size field
	body := o.Payload
	for ; len(body) > maxRTPPayload-n; n = 1 {
		p.head[0] |= 0x40 // Y: continues in the next packet
		out.payload(p.head[:n], body[:maxRTPPayload-n], false, 0)
		body = body[maxRTPPayload-n:]
		p.head[0] = 0x80 | one // Z: continues
	}
	out.payload(p.head[:n], body, last, 0)
}

// aacPayloader: RFC 3640, AAC-hbr, one access unit a packet, fragmented when it is too long.
type aacPayloader struct{ head [4]byte }

func (p *aacPayloader) payloads(unit []byte, out rtpSink) error {
	const maxAU = 1<<13 - 1 // the size field has 13 bits
	if len(unit) == 0 || len(unit) > maxAU {
		return fmt.Errorf("AAC access unit of %d bytes, the payload format carries 1 to %d", len(unit), maxAU)
	}
	p.head = [4]byte{0, 16, byte(len(unit) >> 5), byte(len(unit) << 3)} // AU-headers-length in bits; size 13, index 3
	for n := maxRTPPayload - len(p.head); len(unit) > n; unit = unit[n:] {
		out.payload(p.head[:], unit[:n], false, 0)
	}
	out.payload(p.head[:], unit, true, 0)
	return nil
}

// wholePayloader: one packet as it is (Opus, RFC 7587).
type wholePayloader struct{}

func (wholePayloader) payloads(unit []byte, out rtpSink) error {
	if len(unit) == 0 || len(unit) > maxRTPPayload {
		return fmt.Errorf("audio packet of %d bytes, an RTP packet carries 1 to %d", len(unit), maxRTPPayload)
	}
	out.payload(nil, unit, false, 0)
	return nil
}

// samplePayloader: audio samples one after another (RFC 3551: G.711, G.726, L16), split where they do not fit one packet.
type samplePayloader struct{ bitsPerTick int }

func (p *samplePayloader) payloads(unit []byte, out rtpSink) error {
	// A packet holds whole ticks and whole bytes: a multiple of bitsPerTick bytes is always both.
	n := maxRTPPayload / p.bitsPerTick * p.bitsPerTick
	ticks := uint32(0)
	for ; len(unit) > n; unit = unit[n:] {
		out.payload(nil, unit[:n], false, ticks)
		ticks += uint32(n * 8 / p.bitsPerTick)
	}
	if len(unit) > 0 {
		out.payload(nil, unit, false, ticks)
	}
	return nil
}
