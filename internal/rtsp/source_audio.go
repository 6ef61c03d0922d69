package rtsp

import (
	"strconv"

	"github.com/bluenviron/mediacommon/v2/pkg/codecs/mpeg4audio"
)

type aacConfig = mpeg4audio.AudioSpecificConfig

// plainAudio hands on each payload as it is: Opus, G.711, L16, and G.726 in the order of bits that FFmpeg's decoder reads.
type plainAudio struct {
	out  func(unit)
	swap int // bits of a G.726 sample in RFC 3551 order (least significant first); 0: nothing to do
	buf  []byte
	gap  bool
}

func (a *plainAudio) packet(p *rtpPacket, lost bool) {
	a.gap = a.gap || lost
	if len(p.payload) == 0 {
		return
	}
	u := unit{data: p.payload, time: p.time, at: p.at, key: true, gap: a.gap}
	if a.swap > 0 {
		a.buf = swapSamples(a.buf[:0], p.payload, a.swap)
		u.data = a.buf
	}
	a.gap = false
	a.out(u)
}

// swapSamples turns G.726 samples that are packed from the least significant bit on (RFC 3551) into ones packed from the most
// significant (AAL2, FFmpeg's g726).
func swapSamples(dst, src []byte, bits int) []byte {
	var in, out uint64
	var nIn, nOut int
	for _, b := range src {
		in |= uint64(b) << nIn
		nIn += 8
		for nIn >= bits {
			out = out<<bits | in&(1<<bits-1)
			in >>= bits
			nIn -= bits
			for nOut += bits; nOut >= 8; nOut -= 8 {
				dst = append(dst, byte(out>>(nOut-8)))
			}
		}
	}
	return dst
}

// maxAACFrame bounds a frame: 768 bytes a channel is the codec's own limit.
const maxAACFrame = 8 << 10

// maxAACFrames bounds the frames of one packet.
const maxAACFrames = 64

// aacDepacketizer takes MPEG4-GENERIC (RFC 3640).
type aacDepacketizer struct {
	sizeBits, indexBits, deltaBits int
	step                           uint32 // RTP ticks of a frame
	out                            func(unit)
	part                           []byte // a frame that goes on in the next packet
	u                              unit
	want                           int
	gap                            bool
}

func newAAC(f *rtpFormat, out func(unit)) *aacDepacketizer {
	number := func(name string, or int) int {
		if n, err := strconv.Atoi(f.fmtp[name]); err == nil && n >= 0 && n <= 32 {
			return n
		}
		return or
	}
	a := &aacDepacketizer{out: out, step: aacStep(f.aac, f.clockRate)}
	if f.fmtp["sizelength"] == "" && f.fmtp["mode"] != "" && len(f.fmtp["mode"]) >= 7 && f.fmtp["mode"][4] == 'l' { // AAC-lbr
		a.sizeBits, a.indexBits, a.deltaBits = 6, 2, 2
		return a
	}
	a.sizeBits, a.indexBits, a.deltaBits = number("sizelength", 13), number("indexlength", 3), number("indexdeltalength", 3)
	if a.sizeBits == 0 {
		a.sizeBits = 13
	}
	return a
}

// aacStep is the length of a frame in RTP ticks. The RTP clock may be that of the SBR output, twice the core's.
func aacStep(c *aacConfig, clockRate int) uint32 {
	samples := 1024
	if c == nil || c.SampleRate <= 0 {
		return uint32(samples)
	}
	if c.FrameLengthFlag {
		samples = 960
	}
	return uint32(samples * clockRate / c.SampleRate)
}

func (a *aacDepacketizer) packet(p *rtpPacket, lost bool) {
	if lost {
		a.gap, a.part = true, a.part[:0]
	}
	b := p.payload
	if len(b) < 2 {
		return
	}
	headerBits := int(b[0])<<8 | int(b[1])
	b = b[2:]
	n := (headerBits + 7) / 8
	if n > len(b) {
		a.gap = true
		return
	}
	headers, b := b[:n], b[n:]
	bit := 0
	read := func(n int) int {
		v := 0
		for range n {
			v <<= 1
			if bit < len(headers)*8 {
				v |= int(headers[bit/8]>>(7-bit%8)) & 1
			}
			bit++
		}
		return v
	}
	time := p.time
	for i := 0; bit+a.sizeBits <= headerBits && i < maxAACFrames; i++ {
		size := read(a.sizeBits)
		if i == 0 {
			read(a.indexBits)
		} else {
			time += a.step * uint32(1+read(a.deltaBits))
		}
		if size == 0 || size > maxAACFrame {
			a.gap = true
			return
		}
		if len(a.part) > 0 || size > len(b) { // the size is that of the whole frame, the packet holds a part
			a.fragment(b, size, time, p)
			return
		}
		a.emit(b[:size], time, p)
		b = b[size:]
	}
}

func (a *aacDepacketizer) fragment(b []byte, size int, time uint32, p *rtpPacket) {
	if len(a.part) == 0 {
		a.want, a.u = size, unit{time: time, at: p.at}
	}
	if size != a.want || time != a.u.time || len(a.part)+len(b) > a.want {
		a.part, a.gap = a.part[:0], true
		return
	}
	a.part = append(a.part, b...)
	if len(a.part) == a.want {
		a.emit(a.part, time, &rtpPacket{at: a.u.at})
		a.part = a.part[:0]
	}
}

func (a *aacDepacketizer) emit(b []byte, time uint32, p *rtpPacket) {
	if len(b) > 7 && b[0] == 0xFF && b[1]&0xF6 == 0xF0 { // an ADTS header, which does not belong here and is sent all the same
		head := 7
		if b[1]&1 == 0 {
			head = 9
		}
		b = b[min(head, len(b)):]
	}
	a.out(unit{data: b, time: time, at: p.at, key: true, gap: a.gap})
	a.gap = false
}

// latmDepacketizer takes MP4A-LATM (RFC 6416).
type latmDepacketizer struct {
	inBand bool // the configuration is in the stream
	config *mpeg4audio.StreamMuxConfig
	clock  int
	out    func(unit)
	learn  func(*aacConfig)
	buf    []byte
	u      unit
	gap    bool
}

// maxLATM bounds an audioMuxElement.
const maxLATM = 64 << 10

func (a *latmDepacketizer) packet(p *rtpPacket, lost bool) {
	if lost || len(a.buf) > 0 && p.time != a.u.time {
		a.gap = a.gap || lost || len(a.buf) > 0
		a.buf = a.buf[:0]
	}
	if len(a.buf)+len(p.payload) > maxLATM {
		a.buf, a.gap = a.buf[:0], true
		return
	}
	if len(a.buf) == 0 {
		a.u = unit{time: p.time, at: p.at}
	}
	a.buf = append(a.buf, p.payload...)
	if !p.marker {
		return
	}
	e := mpeg4audio.AudioMuxElement{MuxConfigPresent: a.inBand, StreamMuxConfig: a.config}
	err := e.Unmarshal(a.buf)
	a.buf = a.buf[:0]
	if err != nil {
		a.gap = true
		return
	}
	if a.inBand && e.StreamMuxConfig != a.config {
		a.config = e.StreamMuxConfig
		if len(a.config.Programs) > 0 && len(a.config.Programs[0].Layers) > 0 {
			a.learn(a.config.Programs[0].Layers[0].AudioSpecificConfig)
		}
	}
	var c *aacConfig
	if len(a.config.Programs) > 0 && len(a.config.Programs[0].Layers) > 0 {
		c = a.config.Programs[0].Layers[0].AudioSpecificConfig
	}
	step := aacStep(c, a.clock)
	for i, programs := range e.Payloads {
		if len(programs) == 0 || len(programs[0]) == 0 {
			continue
		}
		a.out(unit{data: programs[0][0], time: a.u.time + uint32(i)*step, at: a.u.at, key: true, gap: a.gap})
		a.gap = false
	}
}
