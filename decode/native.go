package decode

// #cgo pkg-config: libavcodec libavutil libswscale
// #cgo CFLAGS: -O3
// #include <stdlib.h>
// #include <libavutil/error.h>
// #include <libavutil/pixfmt.h>
// #include "native.h"
// enum { cfp_eagain = AVERROR(EAGAIN), cfp_enomem = AVERROR(ENOMEM) };
// enum { cfp_eof = AVERROR_EOF, cfp_external = AVERROR_EXTERNAL, cfp_unknown = AVERROR_UNKNOWN };
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/asticode/go-astiav"

	"github.com/cfpipe/cfpipe/cudavmm"
)

// codec is an open libavcodec decoder with its packet and frame. One goroutine uses it.
type codec struct {
	cc     *astiav.CodecContext
	packet unsafe.Pointer // AVPacket
	frame  unsafe.Pointer // AVFrame
	hw     *C.cfp_hw      // C memory: FFmpeg keeps the pointer
	out    *C.cfp_frame   // C memory: filled for every picture
	scaler unsafe.Pointer // SwsContext, made when a format needs it
}

// codecOptions say how a codec is opened.
type codecOptions struct {
	name      string
	extradata []byte
	threads   int // see Options
	lowDelay  bool

	// NVDEC
	caps     *caps // nil = software
	software bool  // with threads > 1: the CPU takes what is beyond NVDEC
	device   *cudavmm.Device
	stream   uintptr
}

func openCodec(o codecOptions) (*codec, error) {
	found := astiav.FindDecoderByName(o.name)
	if found == nil {
		return nil, fmt.Errorf("%w: this build of FFmpeg has no decoder %q", ErrUnsupported, o.name)
	}
	c := &codec{cc: astiav.AllocCodecContext(found)}
	if c.cc == nil {
		return nil, fmt.Errorf("open decoder %s: out of memory", o.name)
	}
	if err := c.open(found, o); err != nil {
		c.close()
		return nil, fmt.Errorf("open decoder %s: %w", o.name, err)
	}
	return c, nil
}

func (c *codec) open(found *astiav.Codec, o codecOptions) error {
	ctx := c.cc.UnsafePointer()
	if C.cfp_alloc(&c.packet, &c.frame) == nil {
		return fmt.Errorf("out of memory")
	}
	c.out = (*C.cfp_frame)(C.calloc(1, C.sizeof_cfp_frame))
	if len(o.extradata) > 0 {
		if r := C.cfp_extradata(ctx, (*C.uint8_t)(unsafe.SliceData(o.extradata)), C.size_t(len(o.extradata))); r < 0 {
			return astiav.Error(r)
		}
	}
	// Without UNALIGNED FFmpeg crops the left edge to a multiple of its vector size only.
	flags := c.cc.Flags().Add(astiav.CodecContextFlagUnaligned)
	if o.lowDelay {
		flags = flags.Add(astiav.CodecContextFlagLowDelay)
	}
	c.cc.SetFlags(flags)
	switch {
	case o.caps != nil:
		c.cc.SetThreadType(astiav.ThreadTypeFrame)
		c.cc.SetThreadCount(max(1, o.threads))
		c.hw = (*C.cfp_hw)(C.calloc(1, C.sizeof_cfp_hw))
		c.hw.software = cBool(o.software && o.threads > 1)
		c.hw.depths = C.uint32_t(o.caps.depths)
		c.hw.max_width, c.hw.max_height = C.uint32_t(o.caps.maxWidth), C.uint32_t(o.caps.maxHeight)
		c.hw.min_width, c.hw.min_height = C.uint32_t(o.caps.minWidth), C.uint32_t(o.caps.minHeight)
		var r C.int
		err := o.device.With(func() { r = C.cfp_hw_open(ctx, C.int(o.device.Info().Ordinal), C.uintptr_t(o.stream), c.hw) })
		if err != nil {
			return err
		}
		if r < 0 {
			return astiav.Error(r)
		}
	case o.threads == 0:
		c.cc.SetThreadType(astiav.ThreadTypeSlice)
		c.cc.SetThreadCount(sliceThreads())
	default:
		c.cc.SetThreadCount(o.threads)
	}
	return c.cc.Open(found, nil)
}

// close gives everything back. The stream that NVDEC works on must still be open.
func (c *codec) close() {
	if c.frame != nil {
		C.cfp_free(c.packet, c.frame)
	}
	c.cc.Free()
	C.cfp_scale_free(c.scaler)
	C.free(unsafe.Pointer(c.hw))
	C.free(unsafe.Pointer(c.out))
	*c = codec{}
}

// What a codec answers: a picture, "send more", the end, damaged data, or that it is broken.
type answer int

const (
	gotPicture answer = iota
	wantsMore
	atEnd
	badData
	broken
)

func answerOf(r C.int) (answer, error) {
	switch {
	case r >= 0:
		return gotPicture, nil
	case r == C.cfp_eagain:
		return wantsMore, nil
	case r == C.cfp_eof:
		return atEnd, nil
	case r == C.cfp_enomem, r == C.cfp_external, r == C.cfp_unknown: // what hwaccels answer when the engine failed
		return broken, astiav.Error(r)
	default: // the stream's fault, under many names: invalid data, not implemented, invalid argument
		return badData, astiav.Error(r)
	}
}

func (c *codec) send(p Packet) (answer, error) {
	return answerOf(C.cfp_send(c.cc.UnsafePointer(), c.packet, (*C.uint8_t)(unsafe.SliceData(p.Data)), C.size_t(len(p.Data)),
		C.int64_t(p.PTS), C.int64_t(p.DTS), cBool(p.Key), cBool(p.RefOnly)))
}

// drain says that no more packets come before the next flush.
func (c *codec) drain() { C.cfp_send(c.cc.UnsafePointer(), c.packet, nil, 0, 0, 0, 0, 0) }

// flush forgets all pictures in flight; the next packet must be a keyframe.
func (c *codec) flush() { C.cfp_flush(c.cc.UnsafePointer()) }

// receive fills c.out; done gives the picture back.
func (c *codec) receive() (answer, error) {
	return answerOf(C.cfp_receive(c.cc.UnsafePointer(), c.frame, c.out))
}

func (c *codec) done() { C.cfp_unref(c.frame) }

// refused says that the stream asks something of NVDEC that it cannot do.
func (c *codec) refused() bool { return c.hw != nil && c.hw.refused != 0 }

// asked is what the stream asks of NVDEC.
func (c *codec) asked() string {
	what := fmt.Sprintf("%d-bit 4:2:0 of %d×%d", c.hw.depth, c.hw.width, c.hw.height)
	if c.hw.chroma_420 == 0 {
		what = fmt.Sprintf("%d-bit other than 4:2:0 of %d×%d", c.hw.depth, c.hw.width, c.hw.height)
	}
	return what
}

func cBool(b bool) C.int {
	if b {
		return 1
	}
	return 0
}
