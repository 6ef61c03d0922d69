package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"text/tabwriter"
	"time"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/shm"
)

// Frames are the options of RunFrames. The zero value measures 1080p NV12 frames for 3 s a figure.
type Frames struct {
	Duration      time.Duration // of each measurement; 0 = 3 s
	Rates         []int         // frames a second of the wake-up measurements; nil = 25, 1000
	Width, Height int           // 0 = 1920×1080
	Readers       int           // of the stream; 0 = 4
	Device        int           // GPU whose memory is measured after the host's
	Helper        []string      // see Packets
	Progress      func(what string)

	gpu bool // what is measured now lies in GPU memory
}

// FramesResult is what RunFrames has measured.
type FramesResult struct {
	CPUs    int     `json:"cpus"`
	Load    string  `json:"load_average_before"`
	Width   int     `json:"width"`
	Height  int     `json:"height"`
	Wakes   []Wake  `json:"wakes"`
	Stream  *Stream `json:"stream"`          // packets are frames here
	InPlace *Stream `json:"stream_in_place"` // the same by readers that do not copy

	GPU   *GPUFrames `json:"gpu,omitempty"`
	NoGPU string     `json:"gpu_left_out,omitempty"` // why

	Goals []Goal `json:"goals"`
}

const frameSlots = 4

// RunFrames measures the frame ring on this machine: in host memory, and in that of a GPU where there is one. It takes about nine times
// o.Duration, with a GPU seventeen times.
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
	if o.Device < 0 {
		return nil, fmt.Errorf("bench: GPU %d: %w", o.Device, ErrOptions)
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
	if r.Wakes, err = base.frameWakes(ctx, o, dir); err != nil {
		return nil, err
	}
	base.Progress(fmt.Sprintf("streaming to %d readers, and plain copies", base.Readers))
	if r.Stream, err = base.frameStream(ctx, o, dir, false); err != nil {
		return nil, err
	}
	if r.InPlace, err = base.frameStream(ctx, o, dir, true); err != nil {
		return nil, err
	}
	if err := r.runGPU(ctx, o, base, dir); err != nil {
		return nil, err
	}
	r.judge()
	return r, nil
}

// frameWakes measures all rates and ways to wait.
func (o Packets) frameWakes(ctx context.Context, f Frames, dir string) (all []Wake, err error) {
	where := ""
	if f.gpu {
		where = " of frames in GPU memory"
	}
	for _, rate := range f.Rates {
		for _, m := range []struct {
			name string
			wait framering.Wait
		}{{"direct", framering.WaitDirect}, {"shared", framering.WaitShared}} {
			o.Progress(fmt.Sprintf("waking a reader (%s)%s %d times a second", m.name, where, rate))
			w, err := o.frameLatency(ctx, f, dir, m.name, m.wait, rate)
			if err != nil {
				return nil, err
			}
			all = append(all, w)
		}
	}
	return all, nil
}

// arg is what every helper is told.
func (f Frames) arg(b *board, dir, key string) framesArg {
	return framesArg{
		latencyArg: latencyArg{Board: b.seg.Name(), Key: key}, Dir: dir, Width: f.Width, Height: f.Height, GPU: f.gpu, Device: f.Device,
	}
}

func (o Packets) frameLatency(ctx context.Context, f Frames, dir, name string, wait framering.Wait, rate int) (Wake, error) {
	w := Wake{Mode: name, Rate: rate}
	b, err := newBoard()
	if err != nil {
		return w, err
	}
	defer b.seg.Close()
	a := f.arg(b, dir, fmt.Sprintf("bench-%d-%d", os.Getpid(), rounds.Add(1)))
	a.Rate, a.Wait, a.Bare = rate, wait, wait != framering.WaitBusy
	var procs [3]*process
	defer func() { kill(procs[:]...) }()
	for i, role := range []string{"frames-publisher", "frames-reader", "latency-bare"} {
		if role == "latency-bare" && !a.Bare {
			break
		}
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
	if err := errors.Join(procs[0].result(nil), procs[1].result(&w.Ring)); err != nil || !a.Bare {
		return w, err
	}
	err = procs[2].result(&w.Bare)
	w.RatioP50, w.RatioP99 = w.Ring.P50/w.Bare.P50, w.Ring.P99/w.Bare.P99
	return w, err
}

func (o Packets) frameStream(ctx context.Context, f Frames, dir string, inPlace bool) (*Stream, error) {
	s := &Stream{InPlace: inPlace, Readers: o.Readers, Rounds: streamRounds, Size: f.Width * f.Height * 3 / 2}
	err := s.measure(o.Duration, "framecopy", "framestream", func(kind string, readers int) ([]streamResult, error) {
		return o.streamRound(ctx, kind, readers, o.Duration/streamRounds, func(b *board, key string, _ int) any {
			a := f.arg(b, dir, key)
			a.Ring, a.Strict, a.InPlace = shm.Prefix+key+"-copies", true, inPlace
			return a
		})
	})
	if err != nil {
		return nil, err
	}
	return s, nil
}

func (r *FramesResult) judge() {
	r.Goals = append(wakeGoals(r.Wakes), r.Stream.goal(), r.InPlace.goal(),
		atMost("frames lost in the streams", float64(r.Stream.Lost+r.InPlace.Lost), 0))
	if r.GPU != nil {
		r.Goals = append(r.Goals, r.GPU.goals()...)
	}
}

// Write prints the result as tables.
func (r *FramesResult) Write(out io.Writer) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%d CPUs, load average before: %s; %d×%d NV12 in host memory, %d slots\n", r.CPUs, r.Load, r.Width, r.Height, frameSlots)
	writeWakes(t, r.Wakes)
	r.Stream.write(t, "frame")
	r.InPlace.write(t, "frame")
	if r.GPU != nil {
		r.GPU.write(t)
	} else {
		fmt.Fprintf(t, "\nFrames in GPU memory are left out: %s\n", r.NoGPU)
	}
	writeGoals(t, r.Goals)
	return t.Flush()
}
