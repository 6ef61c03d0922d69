package av

//#include "native.h"
import "C"

import (
	"bytes"
	"unsafe"

	"github.com/asticode/go-astiav"

	"github.com/cfpipe/cfpipe/internal/bitstream"
	"github.com/cfpipe/cfpipe/internal/media"
)

// inputTrack turns the packets of one stream into access units.
type inputTrack struct {
	media.Track
	num, den   int64                    // time base
	frame      int64                    // ns per packet as declared, 0 = unknown
	lengthSize int                      // of length-prefixed NAL units; 0 = Annex B
	sets       *bitstream.ParameterSets // H.264, H.265
	sequence   []byte                   // AV1: sequence header
	adts       bool
	buf, key   []byte
	delay      int   // pictures between decoding and showing, as FFmpeg found them
	next       int64 // input time of the next packet if it does not say
	counting   bool
}

// newInputTrack looks at a stream; ok is false for what is neither video nor audio.
func newInputTrack(in *Input, st *astiav.Stream) (*inputTrack, bool) {
	par := st.CodecParameters()
	c := streamPointer(st)
	t := &inputTrack{num: int64(st.TimeBase().Num()), den: int64(st.TimeBase().Den())}
	t.CodecID = uint32(par.CodecID())
	switch par.MediaType() {
	case astiav.MediaTypeVideo:
		if C.cfav_is_attached_pic(c) != 0 {
			return nil, false
		}
		t.Kind, t.Name, t.ClockRate = media.Video, "video", 90000
		t.frame = frameTime(st)
		t.delay = int(c.codecpar.video_delay)
		t.setExtradata(par.ExtraData())
	case astiav.MediaTypeAudio:
		t.Kind, t.Name = media.Audio, "audio"
		t.ClockRate, t.Channels = par.SampleRate(), int(C.cfav_channels(c))
		t.Extradata = par.ExtraData()
		if t.CodecID == media.G726 {
			t.BitsPerSample = int(C.cfav_bits_per_coded_sample(c))
		}
		if t.CodecID == media.AAC {
			t.adts = len(t.Extradata) == 0
		} else if len(t.Extradata) == 0 {
			t.Extradata = media.AudioText(t.ClockRate, t.Channels, t.BitsPerSample)
		}
	default:
		return nil, false
	}
	if t.CodecID == 0 || t.den == 0 {
		return nil, false
	}
	return t, true
}

func frameTime(st *astiav.Stream) int64 {
	for _, r := range []astiav.Rational{st.AvgFrameRate(), st.RFrameRate()} {
		if r.Num() > 0 && r.Den() > 0 {
			return int64(1e9) * int64(r.Den()) / int64(r.Num())
		}
	}
	return 40e6
}

// setExtradata takes a decoder's configuration: Annex B, avcC, hvcC or av1C.
func (t *inputTrack) setExtradata(b []byte) {
	switch t.CodecID {
	case media.H264, media.HEVC:
		if t.sets == nil {
			t.sets = bitstream.NewParameterSets(t.CodecID)
		}
		if len(b) > 6 && !bitstream.IsAnnexB(b) {
			_, t.lengthSize, _ = bitstream.ParseConfigRecord(t.CodecID, b)
		}
		_ = t.sets.AddExtradata(b) // the stream itself may bring what is missing
		t.Extradata = t.sets.Extradata()
	case media.AV1:
		if len(b) > 4 && b[0] == 0x81 { // av1C: 4 bytes in front of the OBUs
			b = b[4:]
		}
		if s := bitstream.AV1Extradata(b); s != nil {
			t.sequence, t.Extradata = s, s
		}
	default:
		t.Extradata = b
	}
}

// times returns the packet's times in ns on the input's clock, and its duration (0 = unknown).
func (t *inputTrack) times(pkt *astiav.Packet) (inputTimes, int64) {
	interval := ticks(pkt.Duration(), t.num, t.den)
	if interval <= 0 {
		interval = t.frame
	}
	in := inputTimes{pts: noTime, dts: noTime}
	if v := pkt.Dts(); v != noTime {
		in.dts = ticks(v, t.num, t.den)
	}
	if v := pkt.Pts(); v != noTime {
		in.pts = ticks(v, t.num, t.den)
	}
	if in.dts == noTime { // the first packets of containers without it (Matroska), and streams without any times
		switch {
		case t.counting:
			in.dts = t.next
		case in.pts != noTime:
			in.dts = in.pts - int64(t.delay)*t.frame
		default:
			in.dts = 0
		}
	}
	if in.pts == noTime {
		in.pts = in.dts
	}
	t.next, t.counting = in.dts+interval, true
	return in, interval
}

// ticks turns ticks of num/den seconds into ns.
func ticks(v, num, den int64) int64 {
	const second = int64(1e9)
	if num == 1 && den <= 1e9 {
		return v/den*second + (v%den*second+den/2)/den
	}
	return int64(float64(v) * float64(num) / float64(den) * 1e9)
}

// packet returns the access unit in the packet; its Data is valid until the next call and until the packet is unreferenced.
// changed says that the track's description is new; ok is false for a packet without any media in it.
func (t *inputTrack) packet(pkt *astiav.Packet) (p media.Packet, changed, ok bool) {
	data := PacketData(pkt)
	p.Flags = media.FlagLastInAU
	if pkt.Flags().Has(astiav.PacketFlagCorrupt) {
		p.Flags |= media.FlagCorrupt
	}
	if extra := newExtradata(pkt); extra != nil && t.Kind == media.Video {
		before := t.Extradata
		t.setExtradata(extra)
		changed = !bytes.Equal(before, t.Extradata)
	}
	switch t.CodecID {
	case media.H264, media.HEVC:
		return t.nalPacket(p, data, changed)
	case media.AV1:
		return t.av1Packet(p, data, changed)
	case media.AAC:
		if t.adts {
			return t.adtsPacket(p, data)
		}
	}
	if t.Kind == media.Audio || t.CodecID == media.MJPEG || pkt.Flags().Has(astiav.PacketFlagKey) {
		p.Flags |= media.FlagKey
	}
	p.Data = data
	return p, changed, len(data) > 0
}

func newExtradata(pkt *astiav.Packet) []byte {
	var n C.int
	b := C.cfav_new_extradata(packetPointer(pkt), &n)
	if b == nil || n <= 0 {
		return nil
	}
	return C.GoBytes(unsafe.Pointer(b), n)
}

func (t *inputTrack) nalPacket(p media.Packet, data []byte, changed bool) (media.Packet, bool, bool) {
	t.buf = t.buf[:0]
	if t.lengthSize > 0 {
		t.buf, _ = bitstream.AppendAnnexB(t.buf, data, t.lengthSize) // a damaged tail is left out
	} else {
		for nal := range bitstream.NALs(data) {
			t.buf = bitstream.AppendNAL(t.buf, nal)
		}
	}
	if t.sets.Update(t.buf) || t.Extradata == nil {
		before := t.Extradata
		t.Extradata = t.sets.Extradata()
		changed = changed || !bytes.Equal(before, t.Extradata)
	}
	info := bitstream.Inspect(t.CodecID, t.buf)
	p.Data = t.buf
	if info.Key {
		p.Flags |= media.FlagKey
		if t.sets.Missing(t.buf) {
			t.key = t.sets.Insert(t.key[:0], t.buf)
			p.Data = t.key
		}
	}
	return p, changed, info.Slice
}

func (t *inputTrack) av1Packet(p media.Packet, data []byte, changed bool) (media.Packet, bool, bool) {
	t.buf = t.buf[:0]
	sequence := false
	for o := range bitstream.OBUs(data) {
		switch o.Type {
		case bitstream.OBUTemporalDelimiter, bitstream.OBUPadding, bitstream.OBUTileList:
			continue
		case bitstream.OBUSequenceHeader:
			sequence = true
			if s := bitstream.AppendOBU(nil, o); !bytes.Equal(s, t.sequence) {
				t.sequence, t.Extradata, changed = s, s, true
			}
		}
		t.buf = bitstream.AppendOBU(t.buf, o)
	}
	p.Data = t.buf
	if !sequence && t.sequence != nil {
		t.key = append(append(t.key[:0], t.sequence...), t.buf...)
		if bitstream.AV1IsKey(t.key) {
			p.Data = t.key
		}
	}
	if bitstream.AV1IsKey(p.Data) {
		p.Flags |= media.FlagKey
	}
	return p, changed, len(t.buf) > 0
}

// adtsPacket takes the ADTS header off an AAC frame, and makes the AudioSpecificConfig of it.
func (t *inputTrack) adtsPacket(p media.Packet, data []byte) (_ media.Packet, changed, ok bool) {
	if len(data) < 7 || data[0] != 0xFF || data[1]&0xF6 != 0xF0 {
		t.adts = len(t.Extradata) > 0 // bare frames without a configuration cannot be decoded by anyone
		p.Data = data
		return p, false, false
	}
	n := 9
	if data[1]&1 != 0 {
		n = 7 // no CRC
	}
	object := data[2]>>6 + 1
	rate := data[2] >> 2 & 15
	channels := data[2]&1<<2 | data[3]>>6
	config := []byte{object<<3 | rate>>1, rate<<7 | channels<<3}
	if !bytes.Equal(config, t.Extradata) {
		t.Extradata, changed = config, true
	}
	p.Flags |= media.FlagKey
	p.Data = data[min(n, len(data)):]
	return p, changed, len(p.Data) > 0
}
