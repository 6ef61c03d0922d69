package bitstream

import (
	"iter"

	"github.com/bluenviron/mediacommon/v2/pkg/codecs/av1"

	"github.com/cfpipe/cfpipe/internal/media"
)

// OBU types of AV1.
const (
	OBUSequenceHeader    = 1
	OBUTemporalDelimiter = 2
	OBUFrameHeader       = 3
	OBUTileGroup         = 4
	OBUMetadata          = 5
	OBUFrame             = 6
	OBUTileList          = 8
	OBUPadding           = 15
)

// OBU is one open bitstream unit, cut from a temporal unit.
type OBU struct {
	Type    int
	Header  []byte // one or two bytes
	Payload []byte
	Raw     []byte // header, size field when there was one, payload
}

// OBUs yields the OBUs of a temporal unit in the low-overhead format. An OBU without a size field extends to the end. It stops
// at what cannot be read.
func OBUs(tu []byte) iter.Seq[OBU] {
	return func(yield func(OBU) bool) {
		for len(tu) > 0 {
			o, n := parseOBU(tu)
			if n == 0 || !yield(o) {
				return
			}
			tu = tu[n:]
		}
	}
}

func parseOBU(b []byte) (OBU, int) {
	if len(b) == 0 || b[0]&0x80 != 0 {
		return OBU{}, 0
	}
	o := OBU{Type: int(b[0]>>3) & 15}
	n := 1
	if b[0]&4 != 0 { // obu_extension_flag
		n = 2
	}
	if len(b) < n {
		return OBU{}, 0
	}
	o.Header = b[:n]
	size := len(b) - n
	if b[0]&2 != 0 { // obu_has_size_field
		v, used := LEB128(b[n:])
		if used == 0 || v > uint64(len(b)-n-used) {
			return OBU{}, 0
		}
		n += used
		size = int(v)
	}
	o.Payload = b[n : n+size]
	o.Raw = b[:n+size]
	return o, n + size
}

// LEB128 reads a little-endian base 128 number and returns how many bytes it took, 0 when it is malformed.
func LEB128(b []byte) (v uint64, n int) {
	for i := 0; i < 8 && i < len(b); i++ {
		v |= uint64(b[i]&0x7F) << (7 * i)
		if b[i]&0x80 == 0 {
			return v, i + 1
		}
	}
	return 0, 0
}

func appendLEB128(dst []byte, v uint64) []byte {
	for v >= 0x80 {
		dst = append(dst, byte(v)|0x80)
		v >>= 7
	}
	return append(dst, byte(v))
}

// AppendOBU appends an OBU with a size field, whether or not it had one.
func AppendOBU(dst []byte, o OBU) []byte {
	dst = append(dst, o.Header[0]|2)
	dst = append(dst, o.Header[1:]...)
	dst = appendLEB128(dst, uint64(len(o.Payload)))
	return append(dst, o.Payload...)
}

// AV1IsKey says whether a temporal unit has a sequence header and begins with a shown key frame.
func AV1IsKey(tu []byte) bool {
	sequence := false
	for o := range OBUs(tu) {
		switch o.Type {
		case OBUSequenceHeader:
			sequence = true
		case OBUFrameHeader, OBUFrame:
			// show_existing_frame 0, frame_type 0 (KEY_FRAME), show_frame 1; with reduced_still_picture_header, which no camera
			// sends, these bits would not be there
			return sequence && len(o.Payload) > 0 && o.Payload[0]&0xF0 == 0x10
		}
	}
	return false
}

// AV1Format reads picture size and depth from a sequence header OBU.
func AV1Format(sequence []byte) (Format, bool) {
	o, n := parseOBU(sequence)
	if n == 0 || o.Type != OBUSequenceHeader {
		return Format{}, false
	}
	var h av1.SequenceHeader
	if err := h.Unmarshal(append([]byte{OBUSequenceHeader << 3}, o.Payload...)); err != nil {
		return Format{}, false
	}
	f := Format{Codec: media.AV1, Width: h.Width(), Height: h.Height(), Profile: int(h.SeqProfile), BitDepth: h.ColorConfig.BitDepth}
	switch {
	case h.ColorConfig.MonoChrome:
	case h.ColorConfig.SubsamplingY:
		f.ChromaFormat = 1
	case h.ColorConfig.SubsamplingX:
		f.ChromaFormat = 2
	default:
		f.ChromaFormat = 3
	}
	return f, f.Width > 0 && f.Height > 0
}

// AV1Extradata returns what FFmpeg takes as extradata of a temporal unit: its sequence header with a size field. nil when the
// unit has none.
func AV1Extradata(tu []byte) []byte {
	for o := range OBUs(tu) {
		if o.Type == OBUSequenceHeader {
			return AppendOBU(nil, o)
		}
	}
	return nil
}
