package bitstream

import "github.com/cfpipe/cfpipe/internal/media"

// H.264 NAL unit types that matter here.
const (
	H264Slice         = 1
	H264PartitionA    = 2
	H264IDR           = 5
	H264SEI           = 6
	H264SPS           = 7
	H264PPS           = 8
	H264AUD           = 9
	H264EndOfSequence = 10
	H264SPSExt        = 13
)

// H.265 NAL unit types that matter here.
const (
	H265BLAWLP    = 16 // first of the intra random access points (16..23)
	H265IDRWRADL  = 19
	H265IDRNLP    = 20
	H265CRA       = 21
	H265LastIRAP  = 23
	H265LastVCL   = 31
	H265VPS       = 32
	H265SPS       = 33
	H265PPS       = 34
	H265AUD       = 35
	H265PrefixSEI = 39
	H265SuffixSEI = 40
)

// H264Type returns the type of a NAL unit (0 for an empty one).
func H264Type(nal []byte) int {
	if len(nal) == 0 {
		return 0
	}
	return int(nal[0] & 0x1F)
}

// H265Type returns the type of a NAL unit (-1 for one that is too short).
func H265Type(nal []byte) int {
	if len(nal) < 2 {
		return -1
	}
	return int(nal[0]>>1) & 0x3F
}

// Class says what a NAL unit is to those that assemble and cut.
type Class struct {
	Slice      bool // carries picture data
	FirstSlice bool // the first slice of a picture
	IRAP       bool // a slice that decoding can start at (IDR; H.265: IDR, CRA, BLA)
	IDR        bool // no later picture is shown before it
	ParamSet   bool // VPS, SPS or PPS
	AUD        bool // access unit delimiter
	Suffix     bool // belongs behind the picture (suffix SEI, end of sequence), so it begins no access unit
}

// Classify looks at a NAL unit's first bytes. codec is media.H264 or media.HEVC.
func Classify(codec uint32, nal []byte) Class {
	if codec == media.HEVC {
		return classifyH265(nal)
	}
	return classifyH264(nal)
}

func classifyH264(nal []byte) Class {
	switch t := H264Type(nal); t {
	case H264Slice, H264PartitionA, H264IDR:
		return Class{
			Slice:      true,
			FirstSlice: len(nal) > 1 && nal[1]&0x80 != 0, // first_mb_in_slice == 0 is the one bit 1
			IRAP:       t == H264IDR,
			IDR:        t == H264IDR,
		}
	case 3, 4: // data partitions B and C
		return Class{Slice: true}
	case H264SPS, H264PPS, H264SPSExt, 15:
		return Class{ParamSet: t == H264SPS || t == H264PPS}
	case H264AUD:
		return Class{AUD: true}
	case H264EndOfSequence, 11, 12, 19, 20, 21: // end of sequence, end of stream, filler, auxiliary and extension slices
		return Class{Suffix: true}
	}
	return Class{}
}

func classifyH265(nal []byte) Class {
	switch t := H265Type(nal); {
	case t < 0:
		return Class{}
	case t <= H265LastVCL:
		return Class{
			Slice:      true,
			FirstSlice: len(nal) > 2 && nal[2]&0x80 != 0, // first_slice_segment_in_pic_flag
			IRAP:       t >= H265BLAWLP && t <= H265LastIRAP,
			IDR:        t == H265IDRWRADL || t == H265IDRNLP,
		}
	case t == H265VPS, t == H265SPS, t == H265PPS:
		return Class{ParamSet: true}
	case t == H265AUD:
		return Class{AUD: true}
	case t == 36, t == 37, t == 38, t == H265SuffixSEI: // end of sequence, end of bitstream, filler
		return Class{Suffix: true}
	}
	return Class{}
}

// Info is what one pass over an access unit tells.
type Info struct {
	Slice bool // there is picture data
	Key   bool // decoding can start here
	IDR   bool // ... and nothing later is shown before it
}

// Inspect looks through an Annex B access unit of H.264 or H.265.
//
// Key is true for an IDR picture, for H.265's other random access pictures, and for H.264 pictures of I slices behind a recovery
// point SEI with a count of 0: there are cameras that send IDR once and such pictures from then on.
func Inspect(codec uint32, au []byte) Info {
	var info Info
	recovery := false
	intra := true
	for nal := range NALs(au) {
		c := Classify(codec, nal)
		switch {
		case c.Slice:
			info.Slice = true
			info.Key = info.Key || c.IRAP
			info.IDR = info.IDR || c.IDR
			if recovery && !c.IRAP {
				intra = intra && IntraSlice(nal)
			}
		case codec == media.H264 && !info.Slice && H264Type(nal) == H264SEI:
			recovery = recovery || RecoveryPoint(nal)
		}
	}
	if recovery && intra && info.Slice {
		info.Key = true
	}
	return info
}

// IntraSlice reads the slice_type of an H.264 slice: 2 and 7 are I, 4 and 9 SI.
func IntraSlice(nal []byte) bool {
	if t := H264Type(nal); t != H264Slice && t != H264PartitionA {
		return true // partitions B and C and extensions follow what partition A said
	}
	r := newBitReader(nal[1:min(len(nal), 24)])
	r.ue() // first_mb_in_slice
	switch r.ue() {
	case 2, 7, 4, 9:
		return !r.bad
	}
	return false
}

// RecoveryPoint looks in an H.264 SEI for a recovery point message (type 6) with recovery_frame_cnt 0.
func RecoveryPoint(nal []byte) bool {
	b := nal[min(1, len(nal)):]
	for len(b) > 2 {
		typ, size := 0, 0
		for len(b) > 0 && b[0] == 0xFF {
			typ, b = typ+255, b[1:]
		}
		if len(b) == 0 {
			return false
		}
		typ, b = typ+int(b[0]), b[1:]
		for len(b) > 0 && b[0] == 0xFF {
			size, b = size+255, b[1:]
		}
		if len(b) == 0 {
			return false
		}
		size, b = size+int(b[0]), b[1:]
		if size > len(b) {
			return false
		}
		if typ == 6 && size > 0 {
			r := newBitReader(b[:size])
			return r.ue() == 0 && !r.bad
		}
		b = b[size:]
	}
	return false
}
