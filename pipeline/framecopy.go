package pipeline

import (
	"errors"
	"fmt"

	"github.com/cfpipe/cfpipe/cudavmm"
	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/shm"
)

// frameCopier copies frames out of their slots without the padding of their lines, from host memory or from a GPU.
type frameCopier struct {
	meta   framering.FrameMeta
	planes []framering.Plane
	size   int
	stream *cudavmm.Stream
	device func() (*cudavmm.Device, error)
}

// use prepares for frames of a layout.
func (c *frameCopier) use(meta framering.FrameMeta) error {
	if meta == c.meta && c.planes != nil {
		return nil
	}
	planes, err := meta.Planes()
	if err != nil {
		return err
	}
	c.meta, c.planes, c.size = meta, planes, 0
	for _, p := range planes {
		c.size += p.Bytes * p.Lines
	}
	return nil
}

// copy writes the frame's pixels to dst, plane after plane, c.size bytes, and says whether they are whole.
func (c *frameCopier) copy(dst []byte, f framering.Frame) error {
	if len(dst) < c.size {
		return fmt.Errorf("copy frame %d: %d bytes for %d", f.Seq, len(dst), c.size)
	}
	if f.Buffer.Bytes() == nil {
		if err := c.open(); err != nil {
			return err
		}
		if err := f.WaitOn(c.stream.Handle()); err != nil {
			return err
		}
		if err := c.fromGPU(dst, f.Buffer); err != nil {
			return err
		}
		return f.Check()
	}
	err := shm.Guard(func() {
		src := f.Buffer.Bytes()
		for _, p := range c.planes {
			if p.Bytes == p.Pitch {
				n := copy(dst[:p.Bytes*p.Lines], src[p.Offset:])
				dst = dst[n:]
				continue
			}
			for y := range p.Lines {
				n := copy(dst[:p.Bytes], src[p.Offset+y*p.Pitch:])
				dst = dst[n:]
			}
		}
	})
	if err != nil {
		return fmt.Errorf("copy frame %d: %w", f.Seq, err)
	}
	return f.Check()
}

// open makes the stream.
func (c *frameCopier) open() error {
	if c.stream != nil {
		return nil
	}
	v, err := c.device()
	if err != nil {
		return err
	}
	c.stream, err = v.NewStream()
	return err
}

func (c *frameCopier) fromGPU(dst []byte, b framering.Buffer) error {
	if err := c.open(); err != nil {
		return err
	}
	for _, p := range c.planes {
		n := p.Bytes * p.Lines
		to := cudavmm.Plane{Host: dst[:n], Pitch: p.Bytes}
		from := cudavmm.Plane{Pointer: b.Pointer() + uintptr(p.Offset), Pitch: p.Pitch}
		if err := c.stream.Copy2D(to, from, p.Bytes, p.Lines); err != nil {
			return errors.Join(err, c.stream.Synchronize())
		}
		dst = dst[n:]
	}
	return c.stream.Synchronize()
}

func (c *frameCopier) close() error {
	if c.stream == nil {
		return nil
	}
	return c.stream.Close()
}
