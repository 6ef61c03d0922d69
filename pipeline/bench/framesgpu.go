package bench

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/cfpipe/cfpipe/cudavmm"
	"github.com/cfpipe/cfpipe/framering"
)

// GPUFrames is what RunFrames has measured of frames in the memory of a GPU.
type GPUFrames struct {
	GPU     string  `json:"gpu"`
	Publish Publish `json:"publish"`
	Wakes   []Wake  `json:"wakes"`
	Busy    Wake    `json:"busy_poll"`
	Stream  *Stream `json:"stream"`
}

// Publish is the time to put a picture that lies on the GPU into the ring, nobody reading, beside that of the same driver calls alone:
// the copies of both planes and the wait for them. Both are timed in turn.
type Publish struct {
	Ring     Percentiles `json:"ring"`
	Bare     Percentiles `json:"bare_copy"`
	RatioP50 float64     `json:"ratio_p50"`
}

// pictures moves pictures of a process's own into slots and out of them: in host memory, or within a GPU.
type pictures struct {
	host   []byte
	planes []framering.Plane
	device *cudavmm.Device // nil: host memory
	stream *cudavmm.Stream
	own    cudavmm.Buffer
}

func newPictures(a framesArg, meta framering.FrameMeta) (p pictures, err error) {
	if p.planes, err = meta.Planes(); err != nil {
		return p, err
	}
	if !a.GPU {
		p.host = grey(int(meta.FrameSize))
		return p, nil
	}
	if p.device, err = cudavmm.OpenDevice(a.Device); err != nil {
		return p, err
	}
	if p.stream, err = p.device.NewStream(); err == nil {
		p.own, err = p.device.Alloc("bench", int(meta.FrameSize))
	}
	return p, err
}

func (p *pictures) memory() framering.Memory {
	if p.device == nil {
		return cudavmm.Host{}
	}
	return p.device
}

// into fills a slot.
func (p *pictures) into(slot framering.Buffer) error {
	if p.device == nil {
		copy(slot.Bytes(), p.host)
		return nil
	}
	return p.copy(slot, p.own)
}

// from copies a frame out of its slot.
func (p *pictures) from(f framering.Frame) error {
	if p.device == nil {
		return f.CopyTo(p.host)
	}
	return p.copy(p.own, f.Buffer)
}

// look reads every byte of a frame in host memory where it lies, as a detector does that needs no copy.
func (p *pictures) look(f framering.Frame) error {
	if n := bytes.Count(f.Buffer.Bytes()[:len(p.host)], []byte{greyLevel}); n != len(p.host) {
		return fmt.Errorf("frame %d: %d of %d bytes are what was written", f.Seq, n, len(p.host))
	}
	return f.Check()
}

// copy copies the planes as a decode stage does, and waits for the end.
func (p *pictures) copy(to, from framering.Buffer) error {
	for _, q := range p.planes {
		at := func(b framering.Buffer) cudavmm.Plane {
			return cudavmm.Plane{Pointer: b.Pointer() + uintptr(q.Offset), Pitch: q.Pitch}
		}
		if err := p.stream.Copy2D(at(to), at(from), q.Bytes, q.Lines); err != nil {
			return err
		}
	}
	return p.stream.Synchronize()
}

func (p *pictures) close() error {
	if p.device == nil {
		return nil
	}
	return errors.Join(p.own.Close(), p.stream.Close(), p.device.Close())
}

// copyWithinGPU is the reference of the stream: the same copies between memory of this process's own.
func (a *frameRole) copyWithinGPU() (r streamResult, err error) {
	var slots [frameSlots]cudavmm.Buffer
	for i := range slots {
		if slots[i], err = a.pictures.device.Alloc("bench", int(a.meta.FrameSize)); err != nil {
			return r, err
		}
	}
	r = a.board.copyFrames(int(a.meta.FrameSize), func(i int) { err = errors.Join(err, a.pictures.into(slots[i%frameSlots])) })
	for _, s := range slots {
		err = errors.Join(err, s.Close())
	}
	return r, err
}

func init() {
	helpers["frames-gpu"] = func(arg []byte) (any, error) {
		var ordinal int
		if err := json.Unmarshal(arg, &ordinal); err != nil {
			return nil, err
		}
		return findGPU(ordinal)
	}
	// frames-publish: publishes and copies in turn until it is stopped.
	frameWriter("frames-publish", func(a *frameRole, w *framering.FrameWriter) (any, error) {
		spare, err := a.pictures.device.Alloc("bench", int(a.meta.FrameSize))
		if err != nil {
			return nil, err
		}
		ring, bare := histogram(), histogram()
		a.board.ready()
		for n := 0; !a.board.stopped(); n++ {
			start := time.Now()
			err := a.publish(w, true)
			middle := time.Now()
			if err = errors.Join(err, a.pictures.into(spare)); err != nil {
				return nil, err
			}
			if n >= warmUp {
				_, _ = ring.RecordValue(int64(middle.Sub(start))), bare.RecordValue(int64(time.Since(middle)))
			}
		}
		return Publish{Ring: percentiles(ring), Bare: percentiles(bare)}, spare.Close()
	})
}

// gpuFound is what a helper knows of a GPU: the benchmark itself does not load the driver.
type gpuFound struct {
	Name    string
	Missing string // why it cannot be measured
}

// findGPU looks for a GPU.
func findGPU(ordinal int) (gpuFound, error) {
	d, err := cudavmm.Open()
	if err != nil {
		return gpuFound{Missing: err.Error()}, nil
	}
	all, err := d.Devices()
	switch {
	case err != nil:
		return gpuFound{}, err
	case ordinal >= len(all):
		return gpuFound{Missing: fmt.Sprintf("no GPU %d, the driver has %d", ordinal, len(all))}, nil
	case !all[ordinal].Sharing:
		return gpuFound{Missing: fmt.Sprintf("%s (GPU %d) cannot share memory through file descriptors", all[ordinal].Name, ordinal)}, nil
	}
	return gpuFound{Name: all[ordinal].Name}, nil
}

// runGPU measures frames in GPU memory, or says why not.
func (r *FramesResult) runGPU(ctx context.Context, o Frames, base Packets, dir string) error {
	p, err := base.start(ctx, "frames-gpu", o.Device)
	if err != nil {
		return err
	}
	var found gpuFound
	if err := p.result(&found); err != nil {
		return err
	}
	if r.NoGPU = found.Missing; r.NoGPU != "" {
		return nil
	}
	o.gpu = true
	g := &GPUFrames{GPU: found.Name}
	base.Progress("publishing frames in GPU memory, and plain copies")
	if g.Publish, err = base.framePublish(ctx, o, dir); err != nil {
		return err
	}
	if g.Wakes, err = base.frameWakes(ctx, o, dir); err != nil {
		return err
	}
	base.Progress("busy-polling reader of frames in GPU memory")
	if g.Busy, err = base.frameLatency(ctx, o, dir, "busy", framering.WaitBusy, 1000); err != nil {
		return err
	}
	base.Progress(fmt.Sprintf("streaming through GPU memory to %d readers, and plain copies within it", base.Readers))
	if g.Stream, err = base.frameStream(ctx, o, dir, false); err != nil {
		return err
	}
	r.GPU = g
	return nil
}

func (o Packets) framePublish(ctx context.Context, f Frames, dir string) (r Publish, err error) {
	b, err := newBoard()
	if err != nil {
		return r, err
	}
	defer b.seg.Close()
	p, err := o.start(ctx, "frames-publish", f.arg(b, dir, fmt.Sprintf("bench-%d-%d", os.Getpid(), rounds.Add(1))))
	if err != nil {
		return r, err
	}
	defer kill(p)
	if err := b.await(ctx, 1, p); err != nil {
		return r, err
	}
	b.set(lineGo, 1)
	if err := pause(ctx, o.Duration); err != nil {
		return r, err
	}
	b.set(lineGo, 2)
	err = p.result(&r)
	r.RatioP50 = r.Ring.P50 / r.Bare.P50
	return r, err
}

// goals are those of host memory, but for the stream: without NVIDIA's MPS processes take turns on a GPU, so that several share a fraction of
// what one copies alone, with a ring or without; as many that only copy are the reference there.
func (g *GPUFrames) goals() []Goal {
	all := append([]Goal{atMost("publish p50, × copy and wait", g.Publish.RatioP50, 1.3)}, wakeGoals(g.Wakes)...)
	all = append(all, atMost("busy-poll p50, µs", g.Busy.Ring.P50, 2),
		atLeast("stream: copied, × parallel memcpy", g.Stream.ParallelRatio, streamLeast),
		atMost("frames lost in the stream", float64(g.Stream.Lost), 0))
	for i := range all {
		all[i].Name = "GPU: " + all[i].Name
	}
	return all
}

func (g *GPUFrames) write(t io.Writer) {
	fmt.Fprintf(t, "\nPUBLISH in the memory of %s: slot, announcement, copy of a picture on the GPU, and the ring; bare: the same copy and\n", g.GPU)
	fmt.Fprintln(t, "the wait for it. In turn, nobody reads. Microseconds.")
	fmt.Fprintln(t, "n\tp50\tp90\tp99\tp99.9\tmax\tbare p50\tbare p90\tbare p99\t× p50")
	p := g.Publish
	fmt.Fprintf(t, "%d\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.1f\t%.2f\n", p.Ring.Count, p.Ring.P50, p.Ring.P90,
		p.Ring.P99, p.Ring.P999, p.Ring.Max,
		p.Bare.P50, p.Bare.P90, p.Bare.P99, p.RatioP50)
	writeWakes(t, append(g.Wakes[:len(g.Wakes):len(g.Wakes)], g.Busy))
	g.Stream.write(t, "frame")
}
