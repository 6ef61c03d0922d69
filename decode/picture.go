package decode

// #include <libavutil/pixfmt.h>
// #include "native.h"
import "C"

import (
	"fmt"
	"unsafe"

	"github.com/asticode/go-astiav"

	"github.com/cfpipe/cfpipe/cudavmm"
)

// Picture is a decoded picture in the decoder's memory. It is valid until the function it was passed to returns.
type Picture struct {
	Layout Layout
	PTS    int64 // as the packet's
	Key    bool
	OnGPU  bool // decoded by NVDEC; it then lies on the decoder's GPU

	decoder *Decoder
}

// describe reads what the codec has decoded into p.
func (p *Picture) describe(d *Decoder) error {
	f := d.codec.out
	p.decoder, p.PTS, p.Key, p.OnGPU = d, int64(f.pts), f.key != 0, f.on_gpu != 0
	format := NV12
	switch {
	case f.format == C.AV_PIX_FMT_P016LE:
		format = P016
	case C.cfp_depth(f.format) > 8:
		format = P010
	}
	if w, h := int(f.width), int(f.height); p.Layout.Format != format || p.Layout.Width != w || p.Layout.Height != h {
		p.Layout = LayoutOf(format, w, h)
	}
	return p.Layout.check()
}

// CopyTo writes the picture into host memory laid out as p.Layout.
func (p *Picture) CopyTo(dst []byte) error {
	l := p.Layout
	if len(dst) < l.Size() {
		return fmt.Errorf("copy %s: %d bytes, %d needed", l, len(dst), l.Size())
	}
	if p.OnGPU {
		return p.copyFromGPU(func(offset int) cudavmm.Plane { return cudavmm.Plane{Host: dst[offset:], Pitch: l.Pitch} })
	}
	return p.repack(dst)
}

// Store writes the picture into a frame slot laid out as p.Layout and returns when the pixels are there: by one copy on the
// GPU, or straight from the decoder's planes into host memory. A picture of the CPU for a slot on the GPU goes through a buffer
// of the decoder.
func (p *Picture) Store(dst cudavmm.Buffer) error {
	if host := dst.Bytes(); host != nil {
		return p.CopyTo(host)
	}
	l, d := p.Layout, p.decoder
	switch {
	case dst.Size() < l.Size():
		return fmt.Errorf("store %s: slot of %d bytes, %d needed", l, dst.Size(), l.Size())
	case p.OnGPU:
		return p.copyFromGPU(func(offset int) cudavmm.Plane {
			return cudavmm.Plane{Pointer: dst.Pointer() + uintptr(offset), Pitch: l.Pitch}
		})
	case d.stream == nil:
		return fmt.Errorf("store %s: the slot lies on a GPU, the decoder has none", l)
	}
	if len(d.staging) < l.Size() {
		d.staging = make([]byte, l.Size())
	}
	if err := p.repack(d.staging); err != nil {
		return err
	}
	to, from := cudavmm.Plane{Pointer: dst.Pointer(), Pitch: l.Pitch}, cudavmm.Plane{Host: d.staging, Pitch: l.Pitch}
	if err := d.stream.Copy2D(to, from, l.Pitch, l.Height+l.ChromaLines()); err != nil {
		return err
	}
	return d.stream.Synchronize()
}

// copyFromGPU copies to where plane says that the plane at an offset of the layout begins.
func (p *Picture) copyFromGPU(plane func(offset int) cudavmm.Plane) error {
	l, s, f := p.Layout, p.decoder.stream, p.decoder.codec.out
	// FFmpeg leaves the crop of the left and top edge of GPU frames to us; for chroma at half the size the offsets are even.
	left, top := int(f.crop_left), int(f.crop_top)
	y := uintptr(unsafe.Pointer(f.data[0])) + uintptr(top*int(f.linesize[0])+left*l.SampleBytes())
	uv := uintptr(unsafe.Pointer(f.data[1])) + uintptr(top/2*int(f.linesize[1])+left/2*2*l.SampleBytes())
	if err := s.Copy2D(plane(0), cudavmm.Plane{Pointer: y, Pitch: int(f.linesize[0])}, l.LumaBytes(), l.Height); err != nil {
		return err
	}
	if err := s.Copy2D(plane(l.ChromaOffset()), cudavmm.Plane{Pointer: uv, Pitch: int(f.linesize[1])}, l.ChromaBytes(), l.ChromaLines()); err != nil {
		return err
	}
	return s.Synchronize()
}

// repack writes the planes of a software picture as NV12 or P010.
func (p *Picture) repack(b []byte) error {
	l, f := p.Layout, p.decoder.codec.out
	y := (*C.uint8_t)(unsafe.Pointer(&b[0]))
	uv := (*C.uint8_t)(unsafe.Pointer(&b[l.ChromaOffset()]))
	pitch, w, h := C.size_t(l.Pitch), C.size_t(l.Width), C.size_t(l.Height)
	cw, ch := C.size_t(l.ChromaBytes()/2/l.SampleBytes()), C.size_t(l.ChromaLines())
	stride := func(i int) C.ptrdiff_t { return C.ptrdiff_t(f.linesize[i]) }
	switch f.format {
	case C.AV_PIX_FMT_YUV420P, C.AV_PIX_FMT_YUVJ420P:
		C.cfp_copy_plane(y, pitch, f.data[0], stride(0), w, h)
		C.cfp_interleave8(uv, pitch, f.data[1], f.data[2], stride(1), stride(2), cw, ch)
	case C.AV_PIX_FMT_NV12:
		C.cfp_copy_plane(y, pitch, f.data[0], stride(0), w, h)
		C.cfp_copy_plane(uv, pitch, f.data[1], stride(1), C.size_t(l.ChromaBytes()), ch)
	case C.AV_PIX_FMT_GRAY8:
		C.cfp_copy_plane(y, pitch, f.data[0], stride(0), w, h)
		C.cfp_fill_plane(uv, pitch, 128, C.size_t(l.ChromaBytes()), ch)
	case C.AV_PIX_FMT_YUV420P10LE:
		C.cfp_shift16(y, pitch, f.data[0], stride(0), w, h, 6)
		C.cfp_interleave16(uv, pitch, f.data[1], f.data[2], stride(1), stride(2), cw, ch, 6)
	case C.AV_PIX_FMT_P010LE:
		C.cfp_copy_plane(y, pitch, f.data[0], stride(0), C.size_t(l.LumaBytes()), h)
		C.cfp_copy_plane(uv, pitch, f.data[1], stride(1), C.size_t(l.ChromaBytes()), ch)
	default:
		to := C.int(C.AV_PIX_FMT_NV12)
		if l.Format != NV12 {
			to = C.AV_PIX_FMT_P010LE
		}
		if r := C.cfp_scale(&p.decoder.codec.scaler, f, to, y, C.int(l.Pitch), uv, C.int(l.Pitch)); r < 0 {
			return fmt.Errorf("convert %s to %s: %w", astiav.PixelFormat(f.format), l.Format, astiav.Error(r))
		}
	}
	return nil
}
