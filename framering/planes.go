package framering

import "fmt"

// Plane is where one plane of a frame stands in its slot.
type Plane struct {
	Offset int // bytes from the slot's start
	Pitch  int // bytes from one line to the next
	Bytes  int // of a line that hold pixels
	Lines  int
}

// MetaOf returns the layout that this project gives frames: pitches are the bytes of a line rounded up to 256, the chroma plane
// begins at pitch_y × height, a second one behind it.
func MetaOf(f Format, width, height int) (FrameMeta, error) {
	if width <= 0 || height <= 0 || width > maxSide || height > maxSide {
		return FrameMeta{}, fmt.Errorf("frame meta: %d×%d pixels: %w", width, height, ErrFormat)
	}
	w, h := uint32(width), uint32(height)
	m := NV12Meta(w, h)
	m.Format = f
	switch f {
	case NV12:
	case YUV420P:
		m.PitchUV = ((w+1)/2 + 255) &^ 255
		m.FrameSize = uint64(m.PitchY)*uint64(h) + 2*uint64(m.PitchUV)*uint64((h+1)/2)
	case P010, P016:
		m.PitchY = (4*((w+1)/2) + 255) &^ 255
		m.PitchUV, m.BitsPerPixel = m.PitchY, 24
		m.FrameSize = uint64(m.PitchY) * uint64(h+(h+1)/2)
	case RGB24, BGR24, RGBA32, BGRA32, GRAY8:
		n := packedBytes(f)
		m.PitchY, m.PitchUV, m.BitsPerPixel = (uint32(n)*w+255)&^255, 0, uint32(8*n)
		m.FrameSize = uint64(m.PitchY) * uint64(h)
	default:
		return FrameMeta{}, fmt.Errorf("frame meta: no layout for %s: %w", f, ErrFormat)
	}
	return m, m.Check()
}

// packedBytes is the bytes of a pixel of the formats with one plane, 0 for the others.
func packedBytes(f Format) int {
	switch f {
	case GRAY8:
		return 1
	case RGB24, BGR24:
		return 3
	case RGBA32, BGRA32:
		return 4
	}
	return 0
}

// Planes returns where the planes stand, checked: each lies within FrameSize, each line within its pitch. The meta of a publisher
// may claim anything.
func (m FrameMeta) Planes() ([]Plane, error) {
	if err := m.Check(); err != nil {
		return nil, err
	}
	w, h, cw, ch := int(m.Width), int(m.Height), (int(m.Width)+1)/2, (int(m.Height)+1)/2
	y, uv := int(m.PitchY), int(m.PitchUV)
	var p []Plane
	switch m.Format {
	case NV12:
		p = []Plane{{0, y, w, h}, {y * h, uv, 2 * cw, ch}}
	case P010, P016:
		p = []Plane{{0, y, 2 * w, h}, {y * h, uv, 4 * cw, ch}}
	case YUV420P:
		p = []Plane{{0, y, w, h}, {y * h, uv, cw, ch}, {y*h + uv*ch, uv, cw, ch}}
	default:
		n := packedBytes(m.Format)
		if n == 0 {
			return nil, fmt.Errorf("frame meta: %s: %w", m.Format, ErrFormat)
		}
		p = []Plane{{0, y, n * w, h}}
	}
	for i, q := range p {
		if q.Bytes > q.Pitch || uint64(q.Offset)+uint64(q.Pitch)*uint64(q.Lines) > m.FrameSize {
			return nil, fmt.Errorf("frame meta: plane %d of %s %d×%d: %d bytes a line of %d, at %d of %d: %w",
				i, m.Format, m.Width, m.Height, q.Bytes, q.Pitch, q.Offset, m.FrameSize, ErrFormat)
		}
	}
	return p, nil
}
