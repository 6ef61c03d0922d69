package framering

import (
	"encoding/binary"
	"fmt"
)

// Format is the pixel format of the frames (cuframes_format_t).
type Format uint32

// The numbers are part of the wire contract; the specification leaves them open.
const (
	NV12    Format = 0
	P010    Format = 1
	YUV420P Format = 2
	RGB24   Format = 3
	BGR24   Format = 4
	RGBA32  Format = 5
	BGRA32  Format = 6
	GRAY8   Format = 7
	P016    Format = 8
)

var formatNames = [...]string{"NV12", "P010", "YUV420P", "RGB24", "BGR24", "RGBA32", "BGRA32", "GRAY8", "P016"}

func (f Format) String() string { return nameOf(f, "format(%d)", formatNames[:]...) }

// FrameMeta says what the pixels of every frame of a ring are (§2.1).
//
//	Offset  Size  Field             Comments
//	0x00       4  format            Format
//	0x04       4  width             pixels
//	0x08       4  height            lines
//	0x0C       4  pitch_y           bytes a line of the Y plane, or of the single plane
//	0x10       4  pitch_uv          bytes a line of UV, 0 without a chroma plane
//	0x14       4  bits_per_pixel    for information
//	0x18       8  frame_size_bytes  all planes
//	0x20      32  reserved          0
//
// The zero value is that of a packet-only publisher.
type FrameMeta struct {
	Format        Format
	Width, Height uint32
	PitchY        uint32
	PitchUV       uint32
	BitsPerPixel  uint32
	FrameSize     uint64
}

const metaSize = 64

// Bounds of what a reader takes for a picture: above every camera and every decoder, and small enough that no product of
// them overflows.
const (
	maxSide       = 1 << 16 // pixels
	maxPitch      = 1 << 20 // bytes
	maxFrameBytes = 1 << 32 // bytes of one frame, also of its mapping
)

// NV12Meta returns the layout of NV12 frames: both pitches are the width rounded up to 256 and the UV plane begins at
// pitch_y × height (1920×1080: pitch 2048, 3,317,760 bytes).
func NV12Meta(width, height uint32) FrameMeta {
	pitch := (width + 255) &^ 255
	return FrameMeta{
		Format: NV12, Width: width, Height: height, PitchY: pitch, PitchUV: pitch, BitsPerPixel: 12,
		FrameSize: uint64(pitch) * uint64(height+(height+1)/2),
	}
}

// Check returns an error when the fields cannot belong to a picture: no size, planes larger than the frame, bounds exceeded.
func (m FrameMeta) Check() error {
	switch {
	case m.Width == 0 || m.Height == 0 || m.Width > maxSide || m.Height > maxSide:
		return fmt.Errorf("frame meta: %d×%d pixels: %w", m.Width, m.Height, ErrFormat)
	case m.PitchY == 0 || m.PitchY > maxPitch || m.PitchUV > maxPitch:
		return fmt.Errorf("frame meta: pitches %d and %d: %w", m.PitchY, m.PitchUV, ErrFormat)
	case m.FrameSize > maxFrameBytes || uint64(m.PitchY)*uint64(m.Height) > m.FrameSize:
		return fmt.Errorf("frame meta: %d bytes for %d lines of %d: %w", m.FrameSize, m.Height, m.PitchY, ErrFormat)
	}
	return nil
}

func (m FrameMeta) append(b []byte) []byte {
	le := binary.LittleEndian
	for _, v := range [...]uint32{uint32(m.Format), m.Width, m.Height, m.PitchY, m.PitchUV, m.BitsPerPixel} {
		b = le.AppendUint32(b, v)
	}
	b = le.AppendUint64(b, m.FrameSize)
	return append(b, make([]byte, 32)...)
}

// parseFrameMeta reads the 64 bytes of b; whether the values make sense is Check's question.
func parseFrameMeta(b *[metaSize]byte) FrameMeta {
	le := binary.LittleEndian
	return FrameMeta{
		Format: Format(le.Uint32(b[0:])), Width: le.Uint32(b[4:]), Height: le.Uint32(b[8:]),
		PitchY: le.Uint32(b[12:]), PitchUV: le.Uint32(b[16:]), BitsPerPixel: le.Uint32(b[20:]),
		FrameSize: le.Uint64(b[24:]),
	}
}
