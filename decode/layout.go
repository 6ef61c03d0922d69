package decode

import "fmt"

// Format is the pixel format of the pictures that a decoder hands out.
type Format int

// Both have a plane of luma and one of interleaved chroma at half the size. P010 holds 10 bits in the upper bits of 16.
const (
	NV12 Format = iota
	P010
	P016 // as P010 with up to 16 bits
)

func (f Format) String() string { return [...]string{"NV12", "P010", "P016"}[f] }

// Layout says where the pixels of a picture stand.
type Layout struct {
	Format        Format
	Width, Height int // pixels, visible
	Pitch         int // bytes from one line to the next, in both planes: the bytes of a line rounded up to 256
}

// LayoutOf returns the layout of a picture.
func LayoutOf(f Format, width, height int) Layout {
	l := Layout{Format: f, Width: width, Height: height}
	l.Pitch = (l.ChromaBytes() + 255) &^ 255
	return l
}

// SampleBytes is 1 for NV12, else 2.
func (l Layout) SampleBytes() int {
	if l.Format == NV12 {
		return 1
	}
	return 2
}

// LumaBytes is the number of bytes of a luma line that hold pixels.
func (l Layout) LumaBytes() int { return l.Width * l.SampleBytes() }

// ChromaBytes is the number of bytes of a chroma line that hold pixels; an odd width has half a pair more.
func (l Layout) ChromaBytes() int { return (l.Width + 1) / 2 * 2 * l.SampleBytes() }

// ChromaLines is the number of chroma lines.
func (l Layout) ChromaLines() int { return (l.Height + 1) / 2 }

// ChromaOffset is where the chroma plane begins.
func (l Layout) ChromaOffset() int { return l.Pitch * l.Height }

// Size is the number of bytes of both planes.
func (l Layout) Size() int { return l.Pitch * (l.Height + l.ChromaLines()) }

func (l Layout) String() string { return fmt.Sprintf("%s %d×%d", l.Format, l.Width, l.Height) }

// maxSide bounds the width and height that a stream can make us allocate for: what the codecs' levels end at.
const maxSide = 16384

func (l Layout) check() error {
	if l.Width <= 0 || l.Height <= 0 || l.Width > maxSide || l.Height > maxSide {
		return fmt.Errorf("%w: picture of %d×%d pixels", ErrUnsupported, l.Width, l.Height)
	}
	return nil
}
