package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"text/tabwriter"
	"time"

	"github.com/cfpipe/cfpipe/cudavmm"
	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/shm"
)

// Frames are the options of RunFrames. The zero value measures 1080p NV12 frames in host memory for 3 s a figure.
type Frames struct {
	Duration      time.Duration // of each measurement; 0 = 3 s
	Rates         []int         // frames a second of the wake-up measurements; nil = 25, 1000
	Width, Height int           // 0 = 1920×1080
	Readers       int           // of the stream; 0 = 4
	Helper        []string      // see Packets
	Progress      func(what string)
}

// FramesResult is what RunFrames has measured.
type FramesResult struct {
	CPUs   int     `json:"cpus"`
	Load   string  `json:"load_average_before"`
	Width  int     `json:"width"`
	Height int     `json:"height"`
	Wakes  []Wake  `json:"wakes"`
	Stream *Stream `json:"stream"` // packets are frames here
	Goals  []Goal  `json:"goals"`
}

const frameSlots = 4

type framesArg struct {
	latencyArg
	Dir           string
	Width, Height int
	Wait          framering.Wait
	Strict        bool
	Index         int
}

func framesSetUp(arg []byte) (a framesArg, b *board, meta framering.FrameMeta, err error) {
	if err = json.Unmarshal(arg, &a); err != nil {
		return a, nil, meta, err
	}
	if meta, err = framering.MetaOf(framering.NV12, a.Width, a.Height); err != nil {
		return a, nil, meta, err
	}
	b, err = openBoard(a.Board)
	return a, b, meta, err
}

func framesPublisher(a framesArg, meta framering.FrameMeta) (*framering.Publisher, *framering.FrameWriter, error) {
	p, err := framering.NewPublisher(framering.PublisherOptions{RuntimeDir: a.Dir, Key: a.Key})
	if err != nil {
		return nil, nil, err
	}
	policy := framering.DropOldest
	if a.Strict {
		policy = framering.StrictWait
	}
	w, err := p.StartFrames(framering.FrameOptions{
		RingSize: frameSlots, Meta: meta, Policy: policy, AckTimeout: 10 * time.Second, Memory: cudavmm.Host{},
	})
	if err == nil {
		err = p.Serve()
	}
	if err != nil {
		return nil, nil, errors.Join(err, p.Close(framering.ReasonError))
	}
	return p, w, nil
}

func framesReader(a framesArg) (*framering.Subscriber, *framering.FrameReader, error) {
	s, err := framering.Dial(context.Background(), framering.DialOptions{RuntimeDir: a.Dir, Key: a.Key, Mode: framering.StrictOrder})
	if err != nil {
		return nil, nil, err
	}
	r, err := s.Frames(framering.FrameReaderOptions{Memory: cudavmm.NewReceiver(0), Wait: a.Wait})
	if err != nil {
		return nil, nil, errors.Join(err, s.Close())
	}
	return s, r, nil
}

func init() {
	// frames-publisher: as latency-publisher, with frames whose pixels stand already.
	helpers["frames-publisher"] = func(arg []byte) (any, error) {
		a, b, meta, err := framesSetUp(arg)
		if err != nil {
			return nil, err
		}
		p, w, err := framesPublisher(a, meta)
		if err != nil {
			return nil, err
		}
		b.ready()
		half := time.Second / time.Duration(2*a.Rate)
		next := time.Now()
		for !b.stopped() {
			next = sleepUntil(next.Add(half))
			if _, err := w.Acquire(context.Background()); err != nil {
				return nil, err
			}
			if _, err := w.Publish(time.Now().UnixNano()); err != nil {
				return nil, err
			}
			next = sleepUntil(next.Add(half))
			if a.Bare {
				b.word(lineStamp).Store(uint64(time.Now().UnixNano()))
				b.word(lineBare).Add(1)
				shm.FutexWake(b.futex(lineBare))
			}
		}
		b.word(lineBare).Store(1<<32 - 1) // ends the bare waiter
		shm.FutexWake(b.futex(lineBare))
		return nil, p.Close(framering.ReasonNormal)
	}
	helpers["frames-reader"] = func(arg []byte) (any, error) {
		a, b, _, err := framesSetUp(arg)
		if err != nil {
			return nil, err
		}
		s, r, err := framesReader(a)
		if err != nil {
			return nil, err
		}
		h := histogram()
		b.ready()
		for n := 0; ; n++ {
			f, err := r.Next(context.Background())
			now := time.Now().UnixNano()
			if err != nil {
				return percentiles(h), errors.Join(r.Close(), s.Close()) // the publisher has shut down
			}
			if took := now - f.PTS; n >= warmUp && took >= 0 {
				_ = h.RecordValue(took)
			}
			_ = f.Release()
		}
	}
	helpers["framestream-writer"] = func(arg []byte) (any, error) {
		a, b, meta, err := framesSetUp(arg)
		if err != nil {
			return nil, err
		}
		p, w, err := framesPublisher(a, meta)
		if err != nil {
			return nil, err
		}
		picture := make([]byte, meta.FrameSize)
		b.ready()
		var r streamResult
		start, before := time.Now(), mallocs()
		for !b.stopped() {
			slot, err := w.Acquire(context.Background())
			if err != nil {
				return nil, err
			}
			copy(slot.Buffer.Bytes(), picture)
			if _, err := w.Publish(1); err != nil {
				return nil, err
			}
			r.Bytes += meta.FrameSize
			r.Packets++
		}
		r.Allocs, r.Nanos = mallocs()-before, int64(time.Since(start))
		return r, p.Close(framering.ReasonNormal)
	}
	helpers["framestream-reader"] = func(arg []byte) (any, error) {
		a, b, meta, err := framesSetUp(arg)
		if err != nil {
			return nil, err
		}
		s, r, err := framesReader(a)
		if err != nil {
			return nil, err
		}
		picture := make([]byte, meta.FrameSize)
		b.ready()
		var got streamResult
		start, before := time.Now(), mallocs()
		for {
			f, err := r.Next(context.Background())
			if err != nil {
				break // the writer has shut down
			}
			if err := errors.Join(f.CopyTo(picture), f.Release()); err != nil {
				return nil, err
			}
			got.Bytes += meta.FrameSize
			got.Packets++
			got.Lost += f.Lost
		}
		got.Allocs, got.Nanos = mallocs()-before, int64(time.Since(start))
		return got, errors.Join(r.Close(), s.Close())
	}
	// The same copies between the same kind of memory, and nothing else.
	helpers["framecopy-writer"] = func(arg []byte) (any, error) {
		a, b, meta, err := framesSetUp(arg)
		if err != nil {
			return nil, err
		}
		size := int(meta.FrameSize)
		seg, err := shm.CreateLocked(a.Ring, frameSlots*size, shm.CreateOptions{})
		if err != nil {
			return nil, err
		}
		defer seg.Close()
		picture := make([]byte, size)
		return b.copyFrames(size, func(i int) { copy(seg.Bytes()[i%frameSlots*size:], picture) }), nil
	}
	helpers["framecopy-reader"] = func(arg []byte) (any, error) {
		a, b, meta, err := framesSetUp(arg)
		if err != nil {
			return nil, err
		}
		seg, err := shm.Open(a.Ring, shm.OpenOptions{ReadOnly: true})
		if err != nil {
			return nil, err
		}
		defer seg.Close()
		size := int(meta.FrameSize)
		picture := make([]byte, size)
		return b.copyFrames(size, func(i int) { copy(picture, seg.Bytes()[i%frameSlots*size:]) }), nil
	}
}

func (b *board) copyFrames(size int, f func(i int)) streamResult {
	r := b.copyUntilStopped(f)
	r.Bytes = r.Packets * uint64(size)
	return r
}

// RunFrames measures the frame ring in host memory on this machine. It takes about six times o.Duration.
func RunFrames(ctx context.Context, o Frames) (*FramesResult, error) {
	base, err := Packets{Duration: o.Duration, Readers: o.Readers, Helper: o.Helper, Progress: o.Progress}.withDefaults()
	if err != nil {
		return nil, err
	}
	if o.Rates == nil {
		o.Rates = []int{25, 1000}
	}
	if o.Width == 0 && o.Height == 0 {
		o.Width, o.Height = 1920, 1080
	}
	if _, err := framering.MetaOf(framering.NV12, o.Width, o.Height); err != nil {
		return nil, fmt.Errorf("bench: no frames of %d×%d pixels: %w", o.Width, o.Height, ErrOptions)
	}
	for _, rate := range o.Rates {
		if rate < 1 || rate > 5000 {
			return nil, fmt.Errorf("bench: rate %d, want 1 to 5000 frames a second: %w", rate, ErrOptions)
		}
	}
	dir, err := os.MkdirTemp("", "cfpipe-bench-")
	if err != nil {
		return nil, fmt.Errorf("bench: %w", err)
	}
	defer os.RemoveAll(dir)
	r := &FramesResult{CPUs: runtime.NumCPU(), Load: loadAverage(), Width: o.Width, Height: o.Height}
	for _, rate := range o.Rates {
		for _, m := range []struct {
			name string
			wait framering.Wait
		}{{"direct", framering.WaitDirect}, {"shared", framering.WaitShared}} {
			base.Progress(fmt.Sprintf("waking a reader (%s) %d times a second", m.name, rate))
			w, err := base.frameLatency(ctx, o, dir, m.name, m.wait, rate)
			if err != nil {
				return nil, err
			}
			r.Wakes = append(r.Wakes, w)
		}
	}
	base.Progress(fmt.Sprintf("streaming to %d readers, and plain copies", base.Readers))
	if r.Stream, err = base.frameStream(ctx, o, dir); err != nil {
		return nil, err
	}
	r.judge()
	return r, nil
}

func (o Packets) frameLatency(ctx context.Context, f Frames, dir, name string, wait framering.Wait, rate int) (Wake, error) {
	w := Wake{Mode: name, Rate: rate}
	b, err := newBoard()
	if err != nil {
		return w, err
	}
	defer b.seg.Close()
	a := framesArg{
		latencyArg: latencyArg{Board: b.seg.Name(), Key: fmt.Sprintf("bench-%d-%d", os.Getpid(), rounds.Add(1)), Rate: rate, Bare: true},
		Dir:        dir, Width: f.Width, Height: f.Height, Wait: wait,
	}
	var procs [3]*process
	defer func() { kill(procs[:]...) }()
	for i, role := range []string{"frames-publisher", "frames-reader", "latency-bare"} {
		if procs[i], err = o.start(ctx, role, a); err != nil {
			return w, err
		}
		if err := b.await(ctx, i+1, procs[i]); err != nil {
			return w, err
		}
	}
	b.set(lineGo, 1)
	if err := pause(ctx, o.Duration); err != nil {
		return w, err
	}
	b.set(lineGo, 2)
	if err := errors.Join(procs[0].result(nil), procs[1].result(&w.Ring), procs[2].result(&w.Bare)); err != nil {
		return w, err
	}
	w.RatioP50, w.RatioP99 = w.Ring.P50/w.Bare.P50, w.Ring.P99/w.Bare.P99
	return w, nil
}

func (o Packets) frameStream(ctx context.Context, f Frames, dir string) (*Stream, error) {
	s := &Stream{Readers: o.Readers, Rounds: streamRounds, Size: f.Width * f.Height * 3 / 2}
	err := s.measure(o.Duration, "framecopy", "framestream", func(kind string, readers int) ([]streamResult, error) {
		return o.streamRound(ctx, kind, readers, o.Duration/streamRounds, func(b *board, key string, _ int) any {
			return framesArg{
				latencyArg: latencyArg{Board: b.seg.Name(), Key: key, Ring: shm.Prefix + key + "-copies"},
				Dir:        dir, Width: f.Width, Height: f.Height, Strict: true,
			}
		})
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (r *FramesResult) judge() {
	goal := func(name string, value, limit float64, least bool) {
		r.Goals = append(r.Goals, Goal{Name: name, Value: value, Limit: limit, Least: least, Met: least == (value >= limit) || value == limit})
	}
	for _, w := range r.Wakes {
		if w.Mode == "direct" {
			goal(fmt.Sprintf("wake p50 at %d/s, × bare futex", w.Rate), w.RatioP50, 1.3, false)
			goal(fmt.Sprintf("wake p99 at %d/s, × bare futex", w.Rate), w.RatioP99, 1.5, false)
		}
	}
	r.Goals = append(r.Goals, r.Stream.goal())
	goal("frames lost in the stream", float64(r.Stream.Lost), 0, false)
}

// Write prints the result as tables.
func (r *FramesResult) Write(out io.Writer) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%d CPUs, load average before: %s; %d×%d NV12 in host memory, %d slots\n", r.CPUs, r.Load, r.Width, r.Height, frameSlots)
	writeWakes(t, r.Wakes)
	r.Stream.write(t, "frame")
	writeGoals(t, r.Goals)
	return t.Flush()
}
