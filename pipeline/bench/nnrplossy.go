package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cfpipe/cfpipe/internal/lossylink"
	"github.com/cfpipe/cfpipe/nnrp"
	"github.com/cfpipe/cfpipe/nnrp/session"
	"github.com/cfpipe/cfpipe/pipeline/inference"
)

// The path of the lossy measurements, and the small tensors that are sent over it: their rate stays under what loss-based congestion
// control leaves of such a path (about 240 kB/s), else queues would be measured.
const (
	lossyOneWay  = 25 * time.Millisecond
	lossyLoss    = 0.02   // each direction
	lossyBytes   = 12.5e6 // a second: 100 Mbit/s
	lossyRate    = 12     // small tensors a second
	lossyWidth   = 128
	lossyHeight  = 64     // one byte a pixel: 8 KiB a tensor
	lossyLatency = 60_000 // ms: no frame is dropped, all are measured

	// lossyTCP is TCP's usual congestion control. QUIC's here (quic-go) is NewReno that gives way by 30 % for a loss, as CUBIC does; it grows
	// faster than CUBIC where losses are this frequent, and gets a third more. BBR would take losses for what they are.
	lossyTCP = "cubic"
)

// Of each kind there are several paths at the same time, with losses of their own, and all of it several times over.
const (
	lossyTurns = 3
	lossyPaths = 16
)

// Lossy is latency over paths with 50 ms round trip and 2 % loss; milliseconds. Kinds that are compared run at the same time.
type Lossy struct {
	NNRP LossyLink `json:"nnrp"`
	GRPC LossyLink `json:"grpc"`
	// Pictures of the size of the loopback measurements, one at a time on each path.
	Full    LossyLink `json:"nnrp_full"`
	Changed LossyLink `json:"nnrp_changed_tiles"`
	Whole   LossyLink `json:"grpc_full"`
	BBR     LossyLink `json:"grpc_full_bbr"` // where the kernel has it; one path alone, which it fills
}

// LossyLink is the latency of one way of sending, over all its paths and turns.
type LossyLink struct {
	Frames int                 `json:"frames"`
	P50    float64             `json:"p50_ms"`
	P90    float64             `json:"p90_ms"`
	P99    float64             `json:"p99_ms"`
	Max    float64             `json:"max_ms"`
	Turns  [lossyTurns]float64 `json:"p99_ms_of_turns"`
}

func lossyLink(turns [lossyTurns][]time.Duration) (l LossyLink) {
	quantile := func(took []time.Duration, percent int) float64 {
		if len(took) == 0 {
			return 0
		}
		slices.Sort(took)
		return float64(took[min(len(took)*percent/100, len(took)-1)].Microseconds()) / 1e3
	}
	for i, took := range turns {
		l.Turns[i] = quantile(took, 99)
	}
	all := slices.Concat(turns[:]...)
	l.Frames, l.P50, l.P90, l.P99, l.Max = len(all), quantile(all, 50), quantile(all, 90), quantile(all, 99), quantile(all, 100)
	return l
}

// ratios are those of the turns' p99 to another's.
func (l LossyLink) ratios(to LossyLink) (r [lossyTurns]float64) {
	for i := range r {
		r[i] = l.Turns[i] / to.Turns[i]
	}
	return r
}

// lossyRun sends over a path for about d and returns how long each tensor took.
type lossyRun func(ctx context.Context, path *lossylink.Link, d time.Duration) ([]time.Duration, error)

// lossyKind is one way of sending, and what came out.
type lossyKind struct {
	out   *LossyLink
	run   lossyRun
	turns [lossyTurns][]time.Duration
}

// lossyPhase are kinds that run at the same time.
type lossyPhase struct {
	name  string
	paths int           // of each kind
	time  time.Duration // of a turn
	kinds []*lossyKind
}

// turn measures all kinds once, each over as many paths, whose losses are those of the other kinds' paths.
func (p *lossyPhase) turn(ctx context.Context, n int) error {
	var wg sync.WaitGroup
	var mu sync.Mutex // of errs and of the kinds' turns
	var errs error
	flows := p.paths * len(p.kinds)
	for flow := range flows {
		wg.Go(func() {
			// The ticks of the paced ones are spread out, so that they do not wait for each other's processor.
			time.Sleep(time.Second / lossyRate * time.Duration(flow) / time.Duration(flows))
			k, i := p.kinds[flow%len(p.kinds)], flow/len(p.kinds)
			path, err := lossylink.New(lossylink.Options{OneWay: lossyOneWay, Loss: lossyLoss, Rate: lossyBytes, Seed: uint64(n*p.paths + i + 1)})
			var took []time.Duration
			if err == nil {
				took, err = k.run(ctx, path, p.time)
				_ = path.Close()
			}
			if errors.Is(err, errNoCongestion) { // no BBR here
				err = nil
			}
			mu.Lock()
			defer mu.Unlock()
			errs = errors.Join(errs, err)
			k.turns[n] = append(k.turns[n], took...)
		})
	}
	wg.Wait()
	return errs
}

// runLossy measures small tensors first and pictures then, which saturate what they are sent over.
func (r *NNRPResult) runLossy(ctx context.Context, o NNRP) error {
	l := &Lossy{}
	picture := inference.Format{Width: o.Side, Height: o.Side, Channels: 3, DType: nnrp.Uint8}
	pictures := func(dial func(*lossylink.Link) (link, error)) lossyRun {
		return func(ctx context.Context, path *lossylink.Link, d time.Duration) ([]time.Duration, error) {
			l, err := dial(path)
			if err != nil {
				return nil, err
			}
			defer func() { _ = l.close() }()
			return lossyPictures(ctx, l, o, d)
		}
	}
	overNNRP := func(t inference.TilerOptions) lossyRun {
		t.Format, t.Latency = picture, lossyLatency
		return pictures(func(path *lossylink.Link) (link, error) { return newNNRPLink(ctx, path, t) })
	}
	overGRPC := func(congestion string) lossyRun {
		return pictures(func(path *lossylink.Link) (link, error) { return newGRPCLink(ctx, path, congestion) })
	}
	turn := o.Lossy / lossyTurns
	phases := []lossyPhase{
		{"8 KiB tensors", o.lossyPaths, turn, []*lossyKind{{out: &l.NNRP, run: pacedNNRP}, {out: &l.GRPC, run: pacedGRPC}}},
		{"pictures", o.lossyPaths, turn, []*lossyKind{{out: &l.Full, run: overNNRP(inference.TilerOptions{})},
			{out: &l.Changed, run: overNNRP(inference.TilerOptions{Tile: o.Tile})}, {out: &l.Whole, run: overGRPC(lossyTCP)}}},
		{"pictures, gRPC with BBR", 1, turn / 3, []*lossyKind{{out: &l.BBR, run: overGRPC("bbr")}}},
	}
	for n := range lossyTurns {
		for _, p := range phases {
			o.Progress(fmt.Sprintf("50 ms round trip, 2 %% loss: %s (%d of %d)", p.name, n+1, lossyTurns))
			if err := p.turn(ctx, n); errors.Is(err, lossylink.ErrUnavailable) {
				r.NoLossy = err.Error()
				return nil
			} else if err != nil {
				return fmt.Errorf("bench: lossy paths, %s: %w", p.name, err)
			}
		}
	}
	for _, p := range phases {
		for _, k := range p.kinds {
			*k.out = lossyLink(k.turns)
		}
	}
	r.Lossy = l
	return nil
}

// lossyPictures exchanges the pictures of a camera, the newest one whenever the one before has its result.
func lossyPictures(ctx context.Context, l link, o NNRP, d time.Duration) (took []time.Duration, err error) {
	tensor := texture(o.Side * o.Side * 3)
	for step, start := 0, time.Now(); step < 2 || time.Since(start) < d; step++ {
		move(tensor, o.Side, step)
		begin := time.Now()
		if _, err := l.exchange(ctx, tensor); err != nil {
			return nil, err
		}
		if step > 0 { // the first one is whole in any case
			took = append(took, time.Since(begin))
		}
	}
	return took, nil
}

// paced calls send at the rate until d is over.
func paced(ctx context.Context, d time.Duration, send func(i int) error) error {
	tick := time.NewTicker(time.Second / lossyRate)
	defer tick.Stop()
	for i := range lossyCount(d) {
		if err := send(i); err != nil {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	return nil
}

func lossyCount(d time.Duration) int { return int(d.Seconds() * lossyRate) }

// pacedNNRP and pacedGRPC send small tensors at a rate, whatever has become of those before.
func pacedNNRP(ctx context.Context, path *lossylink.Link, d time.Duration) ([]time.Duration, error) {
	format := inference.Format{Width: lossyWidth, Height: lossyHeight, Channels: 1, DType: nnrp.Uint8}
	l, err := newNNRPLink(ctx, path, inference.TilerOptions{Format: format, Latency: lossyLatency})
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.close() }()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var took []time.Duration
	collected := make(chan error, 1)
	go func() {
		for range lossyCount(d) {
			o, err := l.c.Next(ctx)
			if err == nil && o.State != session.Delivered {
				err = notDelivered(o)
			}
			if err != nil {
				cancel() // nothing more need be sent
				collected <- err
				return
			}
			took = append(took, time.Since(o.Tag.(time.Time)))
			o.Release()
		}
		collected <- nil
	}()
	tensor := texture(format.Size())
	err = paced(ctx, d, func(i int) error {
		m, _, err := l.tiler.Frame(uint32(i+1), tensor)
		if err == nil {
			_, err = l.c.Submit(ctx, m, session.SubmitOptions{FrameID: uint32(i + 1), Tag: time.Now()})
		}
		return err
	})
	if err != nil {
		cancel()
	}
	return took, errors.Join(<-collected, err)
}

func pacedGRPC(ctx context.Context, path *lossylink.Link, d time.Duration) ([]time.Duration, error) {
	l, err := newGRPCLink(ctx, path, lossyTCP)
	if err != nil {
		return nil, err
	}
	defer func() { _ = l.close() }()
	n := lossyCount(d)
	starts := make(chan time.Time, n)
	var took []time.Duration
	collected := make(chan error, 1)
	go func() {
		var out wrapperspb.BytesValue
		for range n {
			if err := l.stream.RecvMsg(&out); err != nil {
				collected <- err
				return
			}
			took = append(took, time.Since(<-starts))
		}
		collected <- nil
	}()
	tensor := texture(lossyWidth * lossyHeight)
	err = paced(ctx, d, func(int) error {
		starts <- time.Now()
		return l.stream.SendMsg(wrapperspb.Bytes(tensor))
	})
	if err != nil {
		l.cancel()
	}
	return took, errors.Join(<-collected, err)
}

// goals returns the lossy ones.
func (l *Lossy) goals() (goals []Goal) {
	for _, g := range []struct {
		name     string
		is, than LossyLink
	}{{"8 KiB tensors, × gRPC", l.NNRP, l.GRPC}, {"changed tiles, × gRPC's full tensors", l.Changed, l.Whole},
		{"full tensors, × gRPC", l.Full, l.Whole}} {
		value, turns := g.is.P99/g.than.P99, g.is.ratios(g.than)
		goals = append(goals, Goal{Name: "50 ms, 2 % loss, p99: " + g.name, Value: value, Turns: turns[:], Limit: 0.5, Met: value <= 0.5})
	}
	return goals
}

func (l *Lossy) write(out io.Writer) {
	fmt.Fprintln(out, "\n50 ms, 2 % LOSS, 100 Mbit/s\tFRAMES\tP50 ms\tP90 ms\tP99 ms\tTURNS\tMAX ms")
	for _, w := range []struct {
		name string
		LossyLink
	}{{"NNRP, 8 KiB", l.NNRP}, {"gRPC, 8 KiB", l.GRPC}, {"NNRP, full", l.Full}, {"NNRP, changed tiles", l.Changed}, {"gRPC, full", l.Whole},
		{"gRPC, full, BBR instead of CUBIC", l.BBR}} {
		if w.Frames > 0 {
			fmt.Fprintf(out, "%s\t%d\t%.0f\t%.0f\t%.0f\t%.0f–%.0f\t%.0f\n", w.name, w.Frames, w.P50, w.P90, w.P99, slices.Min(w.Turns[:]),
				slices.Max(w.Turns[:]), w.Max)
		}
	}
}
