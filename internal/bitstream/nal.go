// Package bitstream takes encoded video apart and puts it together: Annex B and length-prefixed NAL units, parameter sets,
// keyframes, OBUs, picture sizes. It never decodes, and nothing in it can fail a stream: what is not understood is passed on.
package bitstream

import (
	"errors"
	"iter"
)

// startCode is the 4-byte start code that stands in front of every NAL unit in a ring.
var startCode = [4]byte{0, 0, 0, 1}

// errTruncated says that a length points past the end.
var errTruncated = errors.New("bitstream: truncated")

// nextStartCode returns the position of the next start code (00 00 01) in b at or after from, and the position behind it, or
// len(b) twice.
func nextStartCode(b []byte, from int) (at, behind int) {
	for i := from; i+2 < len(b); {
		switch {
		case b[i+2] > 1:
			i += 3
		case b[i+2] == 1:
			if b[i] == 0 && b[i+1] == 0 {
				return i, i + 3
			}
			i += 3
		default:
			i++
		}
	}
	return len(b), len(b)
}

// NALs yields the NAL units of an Annex B access unit without their start codes. Both lengths of start code are taken; zero
// bytes in front of a start code belong to it. Bytes in front of the first start code are passed over.
func NALs(au []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		_, begin := nextStartCode(au, 0)
		for begin < len(au) {
			at, behind := nextStartCode(au, begin)
			end := at
			if at < len(au) { // the zeros of a longer start code; at the end of the unit they may be the NAL's own trailing zeros
				for end > begin && au[end-1] == 0 {
					end--
				}
			}
			if end > begin && !yield(au[begin:end]) {
				return
			}
			begin = behind
		}
	}
}

// IsAnnexB says whether b begins with a start code.
func IsAnnexB(b []byte) bool {
	for i, c := range b {
		switch c {
		case 0:
		case 1:
			return i >= 2
		default:
			return false
		}
	}
	return false
}

// AppendNAL appends a start code and the NAL unit.
func AppendNAL(dst, nal []byte) []byte {
	dst = append(dst, startCode[:]...)
	return append(dst, nal...)
}

// AppendAnnexB appends an access unit given as NAL units with length prefixes of lengthSize bytes (1, 2 or 4) in Annex B.
func AppendAnnexB(dst, avcc []byte, lengthSize int) ([]byte, error) {
	for len(avcc) > 0 {
		if len(avcc) < lengthSize {
			return dst, errTruncated
		}
		n := 0
		for _, c := range avcc[:lengthSize] {
			n = n<<8 | int(c)
		}
		avcc = avcc[lengthSize:]
		if n > len(avcc) {
			return dst, errTruncated
		}
		if n > 0 {
			dst = AppendNAL(dst, avcc[:n])
		}
		avcc = avcc[n:]
	}
	return dst, nil
}
