package inference

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/cfpipe/cfpipe/nnrp"
)

// Format is the tensor that a session agreed: what pictures are turned into.
type Format struct {
	Width, Height int
	Channels      int // 1 = luma, 3 = RGB
	DType         nnrp.DType
	Layout        nnrp.Layout
}

// Size returns the bytes of a whole picture.
func (f Format) Size() int { return f.Width * f.Height * f.Channels * f.DType.Size() }

func (f Format) check() error {
	switch {
	case f.Width < 1 || f.Height < 1 || f.Width > 65535 || f.Height > 65535:
		return fmt.Errorf("tensor of %d×%d pixels", f.Width, f.Height)
	case f.Channels != 1 && f.Channels != 3:
		return fmt.Errorf("tensor of %d channels, want 1 or 3", f.Channels)
	case f.Layout > nnrp.NCHW:
		return fmt.Errorf("tensor layout %s", f.Layout)
	}
	switch f.DType {
	case nnrp.Uint8, nnrp.Int8, nnrp.Uint16, nnrp.FP16, nnrp.FP32:
		return nil
	}
	return fmt.Errorf("pictures cannot be turned into %s; uint8, int8, uint16, fp16 and fp32 can be made", f.DType)
}

// NV12 is a picture as the frame ring holds it: a plane of luma and one of interleaved chroma at half the width and height, limited
// range. Pitches are in bytes.
type NV12 struct {
	Y, UV           []byte
	PitchY, PitchUV int
	Width, Height   int
	BT709           bool // else BT.601
}

// Converter scales pictures and turns them into tensors. It keeps its memory between pictures; it is not safe for use by several
// goroutines.
type Converter struct {
	format Format
	srcW   int
	srcH   int
	xs     []sample // by column
	rgb    []byte   // width × height × channels, interleaved
}

// sample is where a destination pixel lies between two source pixels: w/256 of the second.
type sample struct{ a, b, w int32 }

// NewConverter checks the format.
func NewConverter(f Format) (*Converter, error) {
	if err := f.check(); err != nil {
		return nil, fmt.Errorf("infer: %w", err)
	}
	return &Converter{format: f, rgb: make([]byte, f.Width*f.Height*f.Channels)}, nil
}

// samples maps n destination pixels to of source pixels, centres on centres.
func samples(dst []sample, n, of int) []sample {
	dst = dst[:0]
	for i := range n {
		p := ((2*int64(i)+1)*int64(of)*128/int64(n) - 128) // in 256ths of a source pixel
		p = min(max(p, 0), int64(of-1)*256)
		a := int32(p >> 8)
		dst = append(dst, sample{a, min(a+1, int32(of-1)), int32(p & 255)})
	}
	return dst
}

// NV12 writes the tensor of a picture to dst, which has Format.Size bytes. The picture is scaled to the tensor's size, whatever its
// shape, by bilinear interpolation.
func (c *Converter) NV12(dst []byte, p *NV12) error {
	if p.Width < 2 || p.Height < 2 || p.PitchY < p.Width || p.PitchUV < (p.Width+1)&^1 ||
		len(p.Y) < p.PitchY*(p.Height-1)+p.Width || len(p.UV) < p.PitchUV*((p.Height+1)/2-1)+(p.Width+1)&^1 {
		return fmt.Errorf("infer: NV12 picture of %d×%d does not fit its planes", p.Width, p.Height)
	}
	if len(dst) != c.format.Size() {
		return fmt.Errorf("infer: tensor buffer of %d bytes, want %d", len(dst), c.format.Size())
	}
	if c.srcW != p.Width || c.srcH != p.Height {
		c.xs = samples(c.xs, c.format.Width, p.Width)
		c.srcW, c.srcH = p.Width, p.Height
	}
	ys := samples(nil, c.format.Height, p.Height)
	w, ch := c.format.Width, c.format.Channels
	vr, ug, vg, ub := int32(409), int32(100), int32(208), int32(516) // BT.601, limited range, × 256
	if p.BT709 {
		vr, ug, vg, ub = 459, 55, 136, 541
	}
	for row := range c.format.Height {
		y := ys[row]
		top, low := p.Y[int(y.a)*p.PitchY:], p.Y[int(y.b)*p.PitchY:]
		uv := p.UV[int(y.a)/2*p.PitchUV:]
		out := c.rgb[row*w*ch : (row+1)*w*ch]
		for i := range c.xs {
			x := &c.xs[i]
			t := int32(top[x.a])*(256-x.w) + int32(top[x.b])*x.w
			l := int32(low[x.a])*(256-x.w) + int32(low[x.b])*x.w
			luma := ((t*(256-y.w)+l*y.w)>>16 - 16) * 298 // 255/219 × 256
			if ch == 1 {
				out[i] = clamp8((luma + 128) >> 8)
				continue
			}
			k := int(x.a) &^ 1
			u, v := int32(uv[k])-128, int32(uv[k+1])-128
			out[3*i] = clamp8((luma + vr*v + 128) >> 8)
			out[3*i+1] = clamp8((luma - ug*u - vg*v + 128) >> 8)
			out[3*i+2] = clamp8((luma + ub*u + 128) >> 8)
		}
	}
	c.spread(dst)
	return nil
}

// RGB is NV12 for a packed RGB picture, pitch in bytes.
func (c *Converter) RGB(dst, rgb []byte, pitch, width, height int) error {
	if width < 1 || height < 1 || pitch < 3*width || len(rgb) < pitch*(height-1)+3*width {
		return fmt.Errorf("infer: RGB picture of %d×%d does not fit its buffer", width, height)
	}
	if len(dst) != c.format.Size() {
		return fmt.Errorf("infer: tensor buffer of %d bytes, want %d", len(dst), c.format.Size())
	}
	xs, ys := samples(nil, c.format.Width, width), samples(nil, c.format.Height, height)
	w, ch := c.format.Width, c.format.Channels
	for row, y := range ys {
		top, low := rgb[int(y.a)*pitch:], rgb[int(y.b)*pitch:]
		out := c.rgb[row*w*ch : (row+1)*w*ch]
		for i, x := range xs {
			var px [3]byte
			for k := range 3 {
				t := int32(top[3*int(x.a)+k])*(256-x.w) + int32(top[3*int(x.b)+k])*x.w
				l := int32(low[3*int(x.a)+k])*(256-x.w) + int32(low[3*int(x.b)+k])*x.w
				px[k] = byte((t*(256-y.w) + l*y.w) >> 16)
			}
			if ch == 1 {
				out[i] = luma(px[0], px[1], px[2])
			} else {
				copy(out[3*i:], px[:])
			}
		}
	}
	c.spread(dst)
	return nil
}

func clamp8(v int32) byte { return byte(min(max(v, 0), 255)) }

// spread turns interleaved bytes into the format's dtype and layout. Floats are 0 to 1; int8 is the byte minus 128; uint16 fills its
// range.
func (c *Converter) spread(dst []byte) {
	f := c.format
	if f.DType == nnrp.Uint8 && (f.Layout == nnrp.NHWC || f.Channels == 1) {
		copy(dst, c.rgb)
		return
	}
	pixels, e := f.Width*f.Height, f.DType.Size()
	for ch := range f.Channels {
		for i := range pixels {
			v := c.rgb[i*f.Channels+ch]
			at := i*f.Channels + ch
			if f.Layout == nnrp.NCHW {
				at = ch*pixels + i
			}
			switch f.DType {
			case nnrp.Uint8:
				dst[at] = v
			case nnrp.Int8:
				dst[at] = v ^ 0x80
			case nnrp.Uint16:
				binary.LittleEndian.PutUint16(dst[e*at:], uint16(v)*257)
			case nnrp.FP32:
				binary.LittleEndian.PutUint32(dst[e*at:], unit32[v])
			case nnrp.FP16:
				binary.LittleEndian.PutUint16(dst[e*at:], unit16[v])
			}
		}
	}
}

// unit32 and unit16 are v/255 as floats.
var unit32, unit16 = func() (t [256]uint32, h [256]uint16) {
	for v := range t {
		t[v] = math.Float32bits(float32(v) / 255)
		h[v] = halfBits(t[v])
	}
	return t, h
}()

// halfBits rounds a float in [0, 1] to half precision, ties to even.
func halfBits(f uint32) uint16 {
	exp := int(f>>23) - 127
	mant := f&0x7fffff | 0x800000
	if f == 0 {
		return 0
	}
	shift, bias := 13, (exp+15)<<10-1<<10 // the hidden bit adds one to the exponent
	if exp < -14 {                        // subnormal
		shift, bias = 13-14-exp, 0
		if shift > 24 {
			return 0
		}
	}
	half := mant >> shift
	rest := mant & (1<<shift - 1)
	if mid := uint32(1) << (shift - 1); rest > mid || rest == mid && half&1 == 1 {
		half++
	}
	return uint16(bias) + uint16(half)
}
