package pipeline

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"syscall"
	"time"

	"github.com/cfpipe/cfpipe/framering"
)

// FrameFormat is how frames are written to a byte stream.
type FrameFormat string

// The formats of ExportFrames.
const (
	Y4M FrameFormat = "y4m" // YUV4MPEG2, planar; one size
	Raw FrameFormat = "raw" // the frames' own pixel format, plane after plane without padding
)

// ExportFramesOptions describe a key's frames as one byte stream. Key and Out must be set.
type ExportFramesOptions struct {
	RuntimeDir string
	Key        string
	Format     FrameFormat // "" = y4m
	Out        io.Writer
	Meta       io.Writer     // a JSON line for each frame; nil = none
	Latest     bool          // always the newest frame; else all, in order
	Current    bool          // begin with the frame that is the newest now
	Count      uint64        // stop after so many; 0 = no limit
	Duration   time.Duration // stop after so much; 0 = no limit
	WaitForKey time.Duration // see FrameSubscribeOptions
	Follow     bool          // go on with the next publisher when this one has ended
	Device     int
	Logger     *slog.Logger
}

// FrameLine is the JSON line of a frame.
type FrameLine struct {
	Seq    uint64    `json:"seq"`
	PTS    int64     `json:"pts_ns"`
	Time   time.Time `json:"time"`
	Format string    `json:"format"`
	Width  uint32    `json:"width"`
	Height uint32    `json:"height"`
	Bytes  int       `json:"bytes"`
	Lost   uint64    `json:"lost"`
	Memory string    `json:"memory"` // host or cuda
}

// ErrLayoutChanged: the frames have another size or format now, and the output can hold one.
var ErrLayoutChanged = errors.New("the frames' layout has changed")

// ExportFrames writes a key's frames to Out as they come. It returns nil at Count or Duration, when the publication has ended (without
// Follow) and when the reader of Out has gone; the context's error when ctx is done; ErrLayoutChanged where y4m cannot go on.
func ExportFrames(ctx context.Context, o ExportFramesOptions) error {
	if o.Format == "" {
		o.Format = Y4M
	}
	log := o.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	mode := framering.StrictOrder
	if o.Latest {
		mode = framering.NewestOnly
	}
	s, err := SubscribeFrames(ctx, FrameSubscribeOptions{
		RuntimeDir: o.RuntimeDir, Key: o.Key, Name: "frames", Mode: mode, Newest: o.Current, Device: o.Device,
		WaitForKey: o.WaitForKey, NoFollow: !o.Follow, Logger: o.Logger,
	})
	if err != nil {
		return err
	}
	e := &frameExporter{o: o, log: log, s: s, copier: frameCopier{device: s.Device}, out: bufio.NewWriterSize(o.Out, 1<<20)}
	inner := ctx
	if o.Duration > 0 {
		var cancel context.CancelFunc
		inner, cancel = context.WithTimeout(ctx, o.Duration)
		defer cancel()
	}
	err = e.run(inner)
	if ctx.Err() == nil && inner.Err() != nil && errors.Is(err, context.DeadlineExceeded) {
		err = nil
	}
	if e.held && (err == nil || ctx.Err() != nil) {
		err = errors.Join(err, e.writeHeld())
	}
	if !errors.Is(err, syscall.EPIPE) {
		err = errors.Join(err, e.out.Flush())
	}
	if errors.Is(err, syscall.EPIPE) || errors.Is(err, io.ErrClosedPipe) { // whoever read has seen enough
		err = nil
	}
	err = errors.Join(err, e.copier.close(), s.Close())
	if err != nil && !errors.Is(err, ctx.Err()) {
		return fmt.Errorf("frames of %s: %w", o.Key, err)
	}
	return err
}

type frameExporter struct {
	o      ExportFramesOptions
	log    *slog.Logger
	s      *FrameSubscription
	copier frameCopier
	out    *bufio.Writer

	meta    framering.FrameMeta // of the output; zero before the first frame
	pixels  []byte              // of the frame, packed
	planar  []byte              // of y4m
	first   []byte              // y4m: the first frame, held until the second tells the rate
	firstAt int64
	held    bool
	n       uint64
	lost    uint64
}

func (e *frameExporter) run(ctx context.Context) error {
	for e.o.Count == 0 || e.n < e.o.Count {
		f, err := e.s.Next(ctx)
		if errors.Is(err, ErrEnded) {
			return nil
		}
		if err != nil {
			return err
		}
		line, err := e.take(f)
		if err = errors.Join(err, f.Release()); errors.Is(err, framering.ErrFrameOverrun) {
			e.lost++
			e.log.Warn("a frame was overwritten while it was copied: left out", "seq", f.Seq)
			continue
		}
		if err != nil {
			return err
		}
		line.Lost, e.lost = f.Lost+e.lost, 0
		if err := e.write(f, line); err != nil {
			return err
		}
		e.n++
	}
	return nil
}

// take copies the frame's pixels.
func (e *frameExporter) take(f framering.Frame) (FrameLine, error) {
	meta := e.s.Meta()
	if meta != e.meta {
		if e.meta.Width != 0 && e.o.Format == Y4M {
			return FrameLine{}, fmt.Errorf("%w: from %d×%d %s to %d×%d %s (--format raw goes on)", ErrLayoutChanged,
				e.meta.Width, e.meta.Height, e.meta.Format, meta.Width, meta.Height, meta.Format)
		}
		if err := e.copier.use(meta); err != nil {
			return FrameLine{}, err
		}
		e.meta, e.pixels = meta, make([]byte, e.copier.size)
	}
	line := FrameLine{
		Seq: f.Seq, PTS: f.PTS, Time: time.Unix(0, f.PTS).UTC(), Format: meta.Format.String(), Width: meta.Width, Height: meta.Height,
		Bytes: len(e.pixels), Memory: "host",
	}
	if f.Buffer.Bytes() == nil {
		line.Memory = "cuda"
	}
	return line, e.copier.copy(e.pixels, f)
}

func (e *frameExporter) write(f framering.Frame, line FrameLine) error {
	if e.o.Meta != nil {
		if err := json.NewEncoder(e.o.Meta).Encode(line); err != nil {
			return err
		}
	}
	if e.o.Format == Raw {
		if _, err := e.out.Write(e.pixels); err != nil {
			return err
		}
		return e.out.Flush()
	}
	planar, err := e.toPlanar()
	if err != nil {
		return err
	}
	switch {
	case e.n == 0:
		e.first, e.firstAt, e.held = append(e.first[:0], planar...), f.PTS, true
		if e.o.Count == 1 {
			return e.writeHeld()
		}
		return nil
	case e.held:
		if err := e.header(f.PTS - e.firstAt); err != nil {
			return err
		}
	}
	if err := e.y4mFrame(planar); err != nil {
		return err
	}
	return e.out.Flush()
}

// writeHeld writes the only frame there is.
func (e *frameExporter) writeHeld() error { return e.header(0) }

// header writes the stream's header, with the rate that the distance of two frames tells, and the frame held back for it.
func (e *frameExporter) header(interval int64) error {
	e.held = false
	num, den := frameRate(interval)
	colour := "C420mpeg2"
	switch e.meta.Format {
	case framering.P010:
		colour = "C420p10 XYSCSS=420P10"
	case framering.GRAY8:
		colour = "Cmono"
	}
	if _, err := fmt.Fprintf(e.out, "YUV4MPEG2 W%d H%d F%d:%d Ip A1:1 %s\n", e.meta.Width, e.meta.Height, num, den, colour); err != nil {
		return err
	}
	return e.y4mFrame(e.first)
}

func (e *frameExporter) y4mFrame(planar []byte) error {
	if _, err := e.out.WriteString("FRAME\n"); err != nil {
		return err
	}
	_, err := e.out.Write(planar)
	return err
}

// toPlanar turns the packed pixels into the planes of y4m.
func (e *frameExporter) toPlanar() ([]byte, error) {
	w, h := int(e.meta.Width), int(e.meta.Height)
	pairs := (w + 1) / 2 * ((h + 1) / 2)
	switch e.meta.Format {
	case framering.YUV420P, framering.GRAY8:
		return e.pixels, nil
	case framering.NV12:
		e.planar = append(e.planar[:0], e.pixels...)
		uv, u, v := e.pixels[w*h:], e.planar[w*h:], e.planar[w*h+pairs:]
		for i := range pairs {
			u[i], v[i] = uv[2*i], uv[2*i+1]
		}
		return e.planar, nil
	case framering.P010:
		e.planar = append(e.planar[:0], e.pixels...)
		shift := func(dst []byte, at int, src []byte, from int) {
			x := (uint16(src[2*from]) | uint16(src[2*from+1])<<8) >> 6
			dst[2*at], dst[2*at+1] = byte(x), byte(x>>8)
		}
		for i := range w * h {
			shift(e.planar, i, e.pixels, i)
		}
		for i := range pairs {
			shift(e.planar, w*h+i, e.pixels, w*h+2*i)
			shift(e.planar, w*h+pairs+i, e.pixels, w*h+2*i+1)
		}
		return e.planar, nil
	}
	return nil, fmt.Errorf("y4m holds no %s: use --format raw: %w", e.meta.Format, framering.ErrFormat)
}

// frameRate names the usual rate next to an interval in ns, 25:1 where there is none.
func frameRate(interval int64) (num, den int) {
	if interval <= 0 {
		return 25, 1
	}
	rate := 1e9 / float64(interval)
	best, num, den := 0.02, int(math.Round(rate*1000)), 1000 // within 2 %: network time stamps jitter
	for _, r := range [][2]int{{5, 1}, {6, 1}, {8, 1}, {10, 1}, {12, 1}, {25, 2}, {15, 1}, {20, 1}, {24, 1}, {25, 1}, {30, 1}, {50, 1}, {60, 1}} {
		if d := math.Abs(rate*float64(r[1])/float64(r[0]) - 1); d < best {
			best, num, den = d, r[0], r[1]
		}
	}
	return max(num, 1), den
}
