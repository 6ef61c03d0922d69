package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cfpipe/cfpipe/cudavmm"
	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/av"
	"github.com/cfpipe/cfpipe/pipeline/still"
)

// stills hands the newest frame of a publisher in GPU memory to processes that have no GPU open, see pipeline/still. A nil one does
// nothing.
type stills struct {
	publisher *framering.Publisher
	copier    frameCopier // of the server's calls, which come one at a time
	server    *still.Server
}

// serveStills begins to serve, until Close, which comes before the device's. device may be nil where frames lie in host memory.
func serveStills(p *framering.Publisher, device *cudavmm.Device, log *slog.Logger) (*stills, error) {
	l, err := p.ListenSnapshot()
	if err != nil {
		return nil, err
	}
	s := &stills{publisher: p, copier: frameCopier{device: func() (*cudavmm.Device, error) { return device, nil }}}
	s.server = still.Serve(l, s.newest, log)
	return s, nil
}

// Close ends the service. It is idempotent.
func (s *stills) Close() error {
	if s == nil {
		return nil
	}
	return errors.Join(s.server.Close(), s.copier.close())
}

// A publisher that has just begun has its first frame in a moment, and one whose ring has a single slot has it most of the time.
const (
	stillPatience = 100 * time.Millisecond
	stillPause    = 5 * time.Millisecond
)

func (s *stills) newest(ctx context.Context) (p still.Picture, err error) {
	for deadline := time.Now().Add(stillPatience); ; {
		f, err := s.publisher.Newest()
		if err == nil {
			p, err = s.copier.picture(f)
			err = errors.Join(err, f.Release())
		}
		if !errors.Is(err, framering.ErrFrameOverrun) && !errors.Is(err, framering.ErrNotFound) || time.Now().After(deadline) {
			return p, err
		}
		if err := sleep(ctx, stillPause); err != nil {
			return p, err
		}
	}
}

// picture copies a frame. The lease stays.
func (c *frameCopier) picture(f framering.Frame) (still.Picture, error) {
	m := f.Meta()
	if err := c.use(m); err != nil {
		return still.Picture{}, err
	}
	p := still.Picture{Format: m.Format, Width: int(m.Width), Height: int(m.Height), Seq: f.Seq, PTS: f.PTS, Pixels: make([]byte, c.size)}
	return p, c.copy(p.Pixels, f)
}

var stillFormats = map[framering.Format]av.PixelFormat{
	framering.NV12: av.NV12, framering.P010: av.P010, framering.P016: av.P016, framering.YUV420P: av.YUV420P, framering.RGB24: av.RGB24,
	framering.BGR24: av.BGR24, framering.RGBA32: av.RGBA, framering.BGRA32: av.BGRA, framering.GRAY8: av.Gray8,
}

// frameOf is a frame's picture as EncodeStill takes it.
func frameOf(p still.Picture) (av.Still, SnapshotInfo, error) {
	planes, err := p.Planes()
	if err != nil {
		return av.Still{}, SnapshotInfo{}, err
	}
	s := av.Still{Format: stillFormats[p.Format], Width: p.Width, Height: p.Height}
	for _, q := range planes {
		s.Planes = append(s.Planes, av.StillPlane{Data: p.Pixels[q.Offset : q.Offset+q.Bytes*q.Lines], Pitch: q.Pitch})
	}
	return s, SnapshotInfo{From: "frames", Seq: p.Seq, PTS: p.PTS, Width: p.Width, Height: p.Height}, nil
}
