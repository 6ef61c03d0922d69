package pipeline

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/cfpipe/cfpipe/cudavmm"
	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/pipeline/still"
)

// stills hands the newest frame of a publisher in GPU memory to processes that have no GPU open, see pipeline/still. A nil one does
// nothing.
type stills struct {
	publisher *framering.Publisher
	copier    frameCopier // of the server's calls, which come one at a time
	server    *still.Server
}

// serveStills begins to serve, until Close, which comes before the device's. device may be nil where frames lie in host memory. Where the
// snapshot socket cannot be made the log says so, and nil is returned: those who want a picture go another way.
func serveStills(p *framering.Publisher, device *cudavmm.Device, log *slog.Logger) *stills {
	l, err := p.ListenSnapshot()
	if err != nil {
		log.Warn("snapshots by processes without the GPU open take longer", "error", err)
		return nil
	}
	s := &stills{publisher: p, copier: frameCopier{device: func() (*cudavmm.Device, error) { return device, nil }}}
	s.server = still.Serve(l, s.newest, log)
	return s
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
