package av

/*
#cgo pkg-config: libavcodec libavutil libswscale
#cgo CFLAGS: -O3
#cgo LDFLAGS: -lm
#include <stdlib.h>
#include <string.h>
#include <libavcodec/avcodec.h>
#include "still.h"
*/
import "C"

import (
	"fmt"
	"unsafe"
)

// StillFormat is the file format of a still picture.
type StillFormat int

// The formats of EncodeStill.
const (
	JPEG StillFormat = iota
	PNG
)

// PixelFormat is the layout of a picture's planes.
type PixelFormat int

// The layouts that EncodeStill takes.
const (
	NV12 PixelFormat = iota
	P010
	P016
	YUV420P
	RGB24
	BGR24
	RGBA
	BGRA
	Gray8
)

var pixelFormats = [...]C.int{
	C.AV_PIX_FMT_NV12, C.AV_PIX_FMT_P010LE, C.AV_PIX_FMT_P016LE, C.AV_PIX_FMT_YUV420P, C.AV_PIX_FMT_RGB24, C.AV_PIX_FMT_BGR24,
	C.AV_PIX_FMT_RGBA, C.AV_PIX_FMT_BGRA, C.AV_PIX_FMT_GRAY8,
}

// StillPlane is one plane of a picture.
type StillPlane struct {
	Data  []byte
	Pitch int
}

// Still is a picture in memory.
type Still struct {
	Format        PixelFormat
	Width, Height int
	Planes        []StillPlane // as many as Format has, each with Pitch × lines bytes (the last line may end with its pixels)
	FullRange     bool         // 0…255 rather than video's 16…235
}

// isCamera says whether s is NV12 in video range, as cameras' pictures are: converted from where it lies, without swscale.
func (s Still) isCamera() bool {
	if s.Format != NV12 || s.FullRange || len(s.Planes) != 2 {
		return false
	}
	whole := func(p StillPlane, width, lines int) bool {
		return p.Pitch >= width && len(p.Data) >= p.Pitch*(lines-1)+width
	}
	return whole(s.Planes[0], s.Width, s.Height) && whole(s.Planes[1], (s.Width+1)/2*2, (s.Height+1)/2)
}

// stillPadding is what swscale may read behind a plane: AV_INPUT_BUFFER_PADDING_SIZE, as everywhere in FFmpeg.
const stillPadding = C.AV_INPUT_BUFFER_PADDING_SIZE

// EncodeStill returns a picture as a file. quality is that of JPEG, 1 (best) to 31; 0 = 3.
func EncodeStill(s Still, format StillFormat, quality int) ([]byte, error) {
	if quality == 0 {
		quality = 3
	}
	if s.Width <= 0 || s.Height <= 0 || len(s.Planes) == 0 || len(s.Planes) > 4 || int(s.Format) >= len(pixelFormats) || quality < 1 || quality > 31 {
		return nil, fmt.Errorf("encode still: %d×%d pixels, %d planes, quality %d: out of range", s.Width, s.Height, len(s.Planes), quality)
	}
	if format == JPEG && s.isCamera() {
		return encodeCamera(s, quality, stripesOf(s.Height))
	}
	in := s.picture()
	defer C.free(unsafe.Pointer(in))
	for i, p := range s.Planes {
		// swscale reads whole vectors beyond the last line: neither from a mapping's end nor from that of an allocation.
		b := C.malloc(C.size_t(len(p.Data) + stillPadding))
		defer C.free(b)
		copy(unsafe.Slice((*byte)(b), len(p.Data)), p.Data)
		C.memset(unsafe.Add(b, len(p.Data)), 0, stillPadding)
		in.data[i], in.linesize[i] = (*C.uint8_t)(b), C.int(p.Pitch)
	}
	return encodeStill(in, format, quality, 0, s.Height)
}

// picture describes s to C, without its planes; to be freed.
func (s Still) picture() *C.cfav_picture {
	in := (*C.cfav_picture)(C.calloc(1, C.sizeof_cfav_picture)) // C memory: it holds pointers to the planes
	in.format, in.width, in.height = pixelFormats[s.Format], C.int(s.Width), C.int(s.Height)
	if s.FullRange {
		in.full_range = 1
	}
	return in
}

// encodeStill encodes lines of a picture from one on.
func encodeStill(in *C.cfav_picture, format StillFormat, quality, from, lines int) ([]byte, error) {
	codec := C.int(C.AV_CODEC_ID_MJPEG)
	if format == PNG {
		codec = C.AV_CODEC_ID_PNG
	}
	var code C.int
	packet := C.cfav_still(in, C.int(from), C.int(lines), codec, C.int(quality), &code)
	if packet == nil {
		return nil, &Error{Op: "encode still", Code: int(code)}
	}
	defer C.cfav_still_free(packet)
	var size C.int
	data := C.cfav_still_data(packet, &size)
	return C.GoBytes(unsafe.Pointer(data), size), nil
}
