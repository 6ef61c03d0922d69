package bench

import (
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/cfpipe/cfpipe/nnrp"
	"github.com/cfpipe/cfpipe/pipeline/inference"
)

// NNRP are the options of RunNNRP. The zero value measures 640×640×3 bytes for 3 s a figure.
type NNRP struct {
	Duration time.Duration // of each measurement; 0 = 3 s
	Side     int           // pixels; 0 = 640
	Tile     int           // pixels a side of the tiles of the changed-tiles measurement; 0 = 32
	Lossy    time.Duration // of each measurement over lossy paths; 0 = 45 s, negative = none
	Progress func(what string)

	lossyPaths int // of each kind; 0 = 16
}

func (o NNRP) withDefaults() (NNRP, error) {
	if o.Duration == 0 {
		o.Duration = 3 * time.Second
	}
	if o.Side == 0 {
		o.Side = 640
	}
	if o.Tile == 0 {
		o.Tile = 32
	}
	if o.Lossy == 0 {
		o.Lossy = 45 * time.Second
	}
	if o.lossyPaths == 0 {
		o.lossyPaths = lossyPaths
	}
	if o.Progress == nil {
		o.Progress = func(string) {}
	}
	if o.Side < 64 || o.Side > 2048 || o.Tile < 8 || o.Tile > o.Side || o.Duration < 0 {
		return o, fmt.Errorf("bench: want a side of 64 to 2048, a tile of 8 up to the side, and no negative duration: %w", ErrOptions)
	}
	return o, nil
}

// Link is one way of sending tensors, from submit to result, one at a time. Client and server run in this process: CPU is that of both.
type Link struct {
	Frames int     `json:"frames"`
	P50    float64 `json:"p50_us"`
	P99    float64 `json:"p99_us"`
	CPU    float64 `json:"cpu_us_per_frame"`
	Bytes  float64 `json:"payload_bytes_per_frame"`
}

// NNRPResult is what RunNNRP has measured.
type NNRPResult struct {
	CPUs    int     `json:"cpus"`
	Load    string  `json:"load_average_before"`
	Bytes   int     `json:"tensor_bytes"`
	Full    Link    `json:"nnrp_full"`
	Changed Link    `json:"nnrp_changed_tiles"`
	GRPC    Link    `json:"grpc_full"`
	Rate    float64 `json:"nnrp_bytes_per_second"`     // eight at a time
	RawRate float64 `json:"raw_quic_bytes_per_second"` // the same bytes on bare streams
	Encode  float64 `json:"encode_ns"`
	Decode  float64 `json:"decode_ns"`
	Allocs  float64 `json:"codec_allocations_per_frame"`
	Lossy   *Lossy  `json:"lossy,omitempty"`
	NoLossy string  `json:"no_lossy_because,omitempty"`
	Goals   []Goal  `json:"goals"`
}

// link is a way to send one tensor and wait for its result.
type link interface {
	exchange(ctx context.Context, tensor []byte) (payload int, err error)
	close() error
}

// turns is how often the measurements take turns, so that what else the machine does hits all of them.
const turns = 3

// RunNNRP measures NNRP against gRPC and bare QUIC streams on this machine, over the loopback interface.
func RunNNRP(ctx context.Context, o NNRP) (*NNRPResult, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	r := &NNRPResult{CPUs: runtime.NumCPU(), Load: loadAverage(), Bytes: o.Side * o.Side * 3}
	if err := r.runCodec(o); err != nil {
		return nil, err
	}
	format := inference.Format{Width: o.Side, Height: o.Side, Channels: 3, DType: nnrp.Uint8}
	full, err := newNNRPLink(ctx, nil, inference.TilerOptions{Format: format})
	if err != nil {
		return nil, err
	}
	defer func() { _ = full.close() }()
	changed, err := newNNRPLink(ctx, nil, inference.TilerOptions{Format: format, Tile: o.Tile})
	if err != nil {
		return nil, err
	}
	defer func() { _ = changed.close() }()
	rpc, err := newGRPCLink(ctx, nil, "")
	if err != nil {
		return nil, err
	}
	defer func() { _ = rpc.close() }()
	runs := []struct {
		name string
		l    link
		out  *Link
		s    sample
	}{{"NNRP, full tensors", full, &r.Full, sample{}}, {"NNRP, changed tiles", changed, &r.Changed, sample{}},
		{"gRPC, full tensors", rpc, &r.GRPC, sample{}}}
	for round := range turns {
		for i := range runs {
			o.Progress(fmt.Sprintf("%s (%d of %d)", runs[i].name, round+1, turns))
			if err := runs[i].s.run(ctx, runs[i].l, o, o.Duration/turns); err != nil {
				return nil, fmt.Errorf("bench: %s: %w", runs[i].name, err)
			}
		}
	}
	for i := range runs {
		*runs[i].out = runs[i].s.link()
	}
	if err := r.runRate(ctx, o); err != nil {
		return nil, err
	}
	if o.Lossy > 0 {
		if err := r.runLossy(ctx, o); err != nil {
			return nil, err
		}
	}
	r.judge()
	return r, nil
}

// sample collects exchanges.
type sample struct {
	took    []time.Duration
	cpu     time.Duration
	payload int
	step    int
}

// run exchanges tensors of a camera that stands still: in each, 6 % of the picture has changed.
func (s *sample) run(ctx context.Context, l link, o NNRP, d time.Duration) error {
	tensor := texture(o.Side * o.Side * 3)
	for range 5 { // connections warm up
		if _, err := l.exchange(ctx, tensor); err != nil {
			return err
		}
	}
	runtime.GC()
	cpu := cpuTime()
	for start := time.Now(); time.Since(start) < d; {
		s.step++
		move(tensor, o.Side, s.step)
		begin := time.Now()
		n, err := l.exchange(ctx, tensor)
		if err != nil {
			return err
		}
		s.took = append(s.took, time.Since(begin))
		s.payload += n
	}
	s.cpu += cpuTime() - cpu
	return nil
}

func (s *sample) link() Link {
	slices.Sort(s.took)
	n := len(s.took)
	us := func(d time.Duration) float64 { return float64(d.Nanoseconds()) / 1e3 }
	return Link{Frames: n, P50: us(s.took[n/2]), P99: us(s.took[n*99/100]), CPU: us(s.cpu) / float64(n), Bytes: float64(s.payload) / float64(n)}
}

// texture is a picture with the detail of a real one: neither flat nor noise.
func texture(n int) []byte {
	b := make([]byte, n)
	x := uint32(1)
	for i := range b {
		if i%7 == 0 {
			x = x*1664525 + 1013904223
		}
		b[i] = byte(x>>24) ^ byte(i>>9)
	}
	return b
}

// move draws a square of a quarter of the side somewhere else.
func move(tensor []byte, side, step int) {
	q := side / 4
	x, y := 3*(step*5%(side-q)), step*3%(side-q)
	for row := range q {
		line := tensor[(y+row)*side*3+x:][:3*q]
		for i := 0; i < len(line); i += 4 {
			line[i] += byte(step)
		}
	}
}

// runCodec times encoding and decoding alone.
func (r *NNRPResult) runCodec(o NNRP) error {
	o.Progress("encoding and decoding")
	tiler, err := inference.NewTiler(inference.TilerOptions{Format: inference.Format{Width: o.Side, Height: o.Side, Channels: 3, DType: nnrp.Uint8}})
	if err != nil {
		return err
	}
	m, _, err := tiler.Frame(1, make([]byte, r.Bytes))
	if err != nil {
		return err
	}
	wire, err := m.Append(nil, nnrp.Header{})
	if err != nil {
		return err
	}
	var g nnrp.Gather
	var got nnrp.FrameSubmit
	const n = 20000
	var before, after runtime.MemStats
	for warm := range 2 {
		runtime.ReadMemStats(&before)
		start := time.Now()
		for range n {
			if err := m.Gather(&g, nnrp.Header{}); err != nil {
				return err
			}
		}
		mid := time.Now()
		for range n {
			h, err := nnrp.ParseHeader(wire)
			if err == nil {
				err = got.Parse(&h, wire[nnrp.HeaderLen:], &nnrp.Limits{})
			}
			if err != nil {
				return err
			}
		}
		if warm == 1 {
			r.Encode, r.Decode = float64(mid.Sub(start).Nanoseconds())/n, float64(time.Since(mid).Nanoseconds())/n
			runtime.ReadMemStats(&after)
			r.Allocs = float64(after.Mallocs-before.Mallocs) / n
		}
	}
	return nil
}

func (r *NNRPResult) judge() {
	most := func(name string, value, limit float64) { r.Goals = append(r.Goals, atMost(name, value, limit)) }
	most("full tensors, p50, × gRPC", r.Full.P50/r.GRPC.P50, 1.5)
	most("full tensors, CPU a frame, × gRPC", r.Full.CPU/r.GRPC.CPU, 1.5)
	most("changed tiles, p50, × gRPC's full tensors", r.Changed.P50/r.GRPC.P50, 0.3)
	most("changed tiles, CPU a frame, × gRPC's full tensors", r.Changed.CPU/r.GRPC.CPU, 0.3)
	most("encoding, µs", r.Encode/1e3, 5)
	most("decoding, µs", r.Decode/1e3, 5)
	most("allocations of both", r.Allocs, 0.01)
	ratio := r.Rate / r.RawRate
	r.Goals = append(r.Goals, atLeast("throughput, × bare QUIC streams", ratio, 0.9))
	if r.Lossy != nil {
		r.Goals = append(r.Goals, r.Lossy.goals()...)
	}
}

// Write prints the result as tables.
func (r *NNRPResult) Write(out io.Writer) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "%d CPUs, load average before: %s; tensors of %d bytes\n", r.CPUs, r.Load, r.Bytes)
	fmt.Fprintln(t, "\nSUBMIT → RESULT\tFRAMES\tP50 µs\tP99 µs\tCPU µs/FRAME\tPAYLOAD")
	for _, l := range []struct {
		name string
		Link
	}{{"NNRP, full", r.Full}, {"NNRP, changed tiles", r.Changed}, {"gRPC, full", r.GRPC}} {
		fmt.Fprintf(t, "%s\t%d\t%.0f\t%.0f\t%.0f\t%.0f\n", l.name, l.Frames, l.P50, l.P99, l.CPU, l.Bytes)
	}
	fmt.Fprintf(t, "\nTHROUGHPUT\t%.0f MB/s\tbare QUIC streams %.0f MB/s\n", r.Rate/1e6, r.RawRate/1e6)
	fmt.Fprintf(t, "CODEC\tencode %.0f ns\tdecode %.0f ns\t%.3f allocations\n", r.Encode, r.Decode, r.Allocs)
	if l := r.Lossy; l != nil {
		l.write(t)
	} else if r.NoLossy != "" {
		fmt.Fprintln(t, "\nno lossy path:", r.NoLossy)
	}
	fmt.Fprintln(t, "\nGOAL\tVALUE\tLIMIT\t")
	for _, g := range r.Goals {
		sign, met := "≤", "met"
		if g.Least {
			sign = "≥"
		}
		if !g.Met {
			met = "NOT MET"
		}
		fmt.Fprintf(t, "%s\t%.3f\t%s %g\t%s", g.Name, g.Value, sign, g.Limit, met)
		if len(g.Turns) > 0 {
			fmt.Fprintf(t, "\tin turns %.3f–%.3f", slices.Min(g.Turns), slices.Max(g.Turns))
		}
		fmt.Fprintln(t)
	}
	return t.Flush()
}
