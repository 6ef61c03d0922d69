package av

/*
#include <stdlib.h>
#include <libavcodec/avcodec.h>
#include "still.h"
*/
import "C"

import (
	"encoding/binary"
	"errors"
	"runtime"
	"sync"
	"unsafe"
)

const (
	// maxStripes bounds how many parts of a JPEG are encoded at once: 8 take a fifth of the time that one takes, more gain nothing.
	maxStripes = 8
	// stripeLines is the least height of a stripe that is worth a thread.
	stripeLines = 128
	// mcu is the side of JPEG's coding unit in 4:2:0.
	mcu = 16
	// maxInterval is how many coding units a restart interval can have: DRI says it in 16 bits.
	maxInterval = 1<<16 - 1
)

// stripesOf is how many stripes a picture is encoded in.
func stripesOf(lines int) int { return max(1, min(maxStripes, runtime.NumCPU(), lines/stripeLines)) }

// encodeCamera encodes a picture as n stripes in parallel, or as more where they would be too large, and joins them to one JPEG, whose restart
// intervals they are. The planes are read where they lie.
func encodeCamera(s Still, quality, n int) ([]byte, error) {
	in := s.picture()
	defer C.free(unsafe.Pointer(in))
	var pins runtime.Pinner
	defer pins.Unpin()
	in.direct = 1
	for i, p := range s.Planes {
		pins.Pin(unsafe.SliceData(p.Data))
		in.data[i], in.linesize[i] = (*C.uint8_t)(unsafe.SliceData(p.Data)), C.int(p.Pitch)
	}
	rows, cols := (s.Height+mcu-1)/mcu, (s.Width+mcu-1)/mcu
	each := (rows + n - 1) / n
	if n > 1 {
		each = min(each, maxInterval/cols)
	}
	n = (rows + each - 1) / each
	parts, errs := make([][]byte, n), make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			parts[i], errs[i] = encodeStill(in, JPEG, quality, i*each*mcu, min(each*mcu, s.Height-i*each*mcu))
		})
	}
	all.Wait()
	if err := errors.Join(errs...); err != nil {
		return nil, err
	}
	if n == 1 {
		return parts[0], nil
	}
	return joinStripes(parts, s.Height, each*cols)
}

var errStripe = errors.New("encode still: not the JPEG that was expected")

// joinStripes makes one JPEG of JPEGs with the same tables that stand below one another. interval is the number of coding units in each but the
// last.
func joinStripes(parts [][]byte, lines, interval int) ([]byte, error) {
	var out []byte
	for i, p := range parts {
		frame, scan, ok := jpegParts(p)
		if !ok {
			return nil, errStripe
		}
		if i == 0 {
			binary.BigEndian.PutUint16(p[frame+5:], uint16(lines))
			start := len(p) - len(scan) - 2 - scanHeader
			out = append(out, p[:start]...)
			out = append(out, 0xFF, 0xDD, 0, 4, byte(interval>>8), byte(interval)) // DRI
			out = append(out, p[start:start+scanHeader]...)
		} else {
			out = append(out, 0xFF, 0xD0+byte((i-1)&7)) // RST
		}
		out = append(out, scan...)
	}
	return append(out, 0xFF, 0xD9), nil
}

// scanHeader is the length of SOS with three components.
const scanHeader = 14

// jpegParts finds the frame header of a baseline JPEG of one scan, and the scan's data.
func jpegParts(b []byte) (frame int, scan []byte, ok bool) {
	for i := 2; i+4 <= len(b) && b[i] == 0xFF; i += 2 + int(binary.BigEndian.Uint16(b[i+2:])) {
		switch b[i+1] {
		case 0xC0:
			frame = i
		case 0xDA:
			data, end := i+scanHeader, len(b)-2
			if frame == 0 || frame+9 > i || data > end || b[end] != 0xFF || b[end+1] != 0xD9 {
				return 0, nil, false
			}
			return frame, b[data:end], true
		}
	}
	return 0, nil, false
}
