package pipeline

import (
	"context"
	"errors"
	"fmt"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/pipeline/inference"
)

// pictureSource takes frames of a key out of shared memory and turns them into tensors.
type pictureSource struct {
	s      *FrameSubscription
	copier frameCopier
	pixels []byte
	narrow []byte // of frames with more than 8 bits a sample
	conv   *inference.Converter
	format inference.Format
}

// bt709Lines is the height from which video is BT.709 rather than BT.601; the frame ring does not say.
const bt709Lines = 720

// next waits for the newest frame that was not read yet and copies it out.
func (p *pictureSource) next(ctx context.Context) (framering.Frame, framering.FrameMeta, error) {
	for {
		f, err := p.s.Next(ctx)
		if err != nil {
			return f, framering.FrameMeta{}, err
		}
		meta := p.s.Meta()
		if err = p.copier.use(meta); err == nil {
			if cap(p.pixels) < p.copier.size {
				p.pixels = make([]byte, p.copier.size)
			}
			p.pixels = p.pixels[:p.copier.size]
			err = p.copier.copy(p.pixels, f)
		}
		if err = errors.Join(err, f.Release()); errors.Is(err, framering.ErrFrameOverrun) {
			continue // overwritten meanwhile: there is a newer one
		}
		return f, meta, err
	}
}

// use sets the tensor that tensor makes.
func (p *pictureSource) use(f inference.Format) (err error) {
	if p.conv != nil && p.format == f {
		return nil
	}
	p.conv, err = inference.NewConverter(f)
	p.format = f
	return err
}

// tensor converts the picture that next copied.
func (p *pictureSource) tensor(dst []byte, meta framering.FrameMeta) error {
	planes, w, h := p.copier.planes, int(meta.Width), int(meta.Height)
	at := func(i int) (b []byte, pitch int) {
		off := 0
		for _, q := range planes[:i] {
			off += q.Bytes * q.Lines
		}
		return p.pixels[off:][:planes[i].Bytes*planes[i].Lines], planes[i].Bytes
	}
	nv12 := inference.NV12{Width: w, Height: h, BT709: h >= bt709Lines}
	switch meta.Format {
	case framering.NV12:
		nv12.Y, nv12.PitchY = at(0)
		nv12.UV, nv12.PitchUV = at(1)
		return p.conv.NV12(dst, &nv12)
	case framering.P010, framering.P016: // the high bytes are the picture in 8 bits
		y, pitchY := at(0)
		uv, pitchUV := at(1)
		p.narrow = p.narrow[:0]
		for i := 1; i < len(y); i += 2 {
			p.narrow = append(p.narrow, y[i])
		}
		for i := 1; i < len(uv); i += 2 {
			p.narrow = append(p.narrow, uv[i])
		}
		nv12.Y, nv12.PitchY = p.narrow[:len(y)/2], pitchY/2
		nv12.UV, nv12.PitchUV = p.narrow[len(y)/2:], pitchUV/2
		return p.conv.NV12(dst, &nv12)
	case framering.RGB24:
		rgb, pitch := at(0)
		return p.conv.RGB(dst, rgb, pitch, w, h)
	}
	return fmt.Errorf("frames are %s; NV12, P010, P016 and RGB24 can be turned into tensors: %w", meta.Format, framering.ErrFormat)
}

func (p *pictureSource) close() error { return errors.Join(p.copier.close(), p.s.Close()) }
