package bench

import (
	"context"
	"errors"
	"fmt"
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
	lossyHeight  = 64      // one byte a pixel: 8 KiB a tensor
	lossyLatency = 60_000  // ms: no frame is dropped, all are measured
	lossyTCP     = "cubic" // as QUIC here; BBR would take losses for what they are
)

// Lossy is latency over a path with 50 ms round trip and 2 % loss; milliseconds.
type Lossy struct {
	NNRP LossyLink `json:"nnrp"`
	GRPC LossyLink `json:"grpc"`
	// Pictures of the size of the loopback measurements, one at a time.
	Full    LossyLink `json:"nnrp_full"`
	Changed LossyLink `json:"nnrp_changed_tiles"`
	Whole   LossyLink `json:"grpc_full"`
	BBR     LossyLink `json:"grpc_full_bbr"` // where the kernel has it
}

// LossyLink is the latency of one way of sending.
type LossyLink struct {
	Frames int     `json:"frames"`
	P50    float64 `json:"p50_ms"`
	P90    float64 `json:"p90_ms"`
	P99    float64 `json:"p99_ms"`
	Max    float64 `json:"max_ms"`
}

func lossyLink(took []time.Duration) LossyLink {
	slices.Sort(took)
	n := len(took)
	if n == 0 {
		return LossyLink{}
	}
	ms := func(d time.Duration) float64 { return float64(d.Microseconds()) / 1e3 }
	return LossyLink{Frames: n, P50: ms(took[n/2]), P90: ms(took[n*90/100]), P99: ms(took[n*99/100]), Max: ms(took[n-1])}
}

// runLossy measures all ways at the same time, each over a path of its own of the same kind.
func (r *NNRPResult) runLossy(ctx context.Context, o NNRP) error {
	o.Progress(fmt.Sprintf("50 ms round trip, 2 %% loss, %v", o.Lossy))
	l := &Lossy{}
	picture := inference.Format{Width: o.Side, Height: o.Side, Channels: 3, DType: nnrp.Uint8}
	pictures := func(dial func(*lossylink.Link) (link, error)) func(context.Context, *lossylink.Link, time.Duration) ([]time.Duration, error) {
		return func(ctx context.Context, path *lossylink.Link, d time.Duration) ([]time.Duration, error) {
			l, err := dial(path)
			if err != nil {
				return nil, err
			}
			defer func() { _ = l.close() }()
			return lossyPictures(ctx, l, o, d)
		}
	}
	overNNRP := func(t inference.TilerOptions) func(*lossylink.Link) (link, error) {
		t.Format, t.Latency = picture, lossyLatency
		return func(path *lossylink.Link) (link, error) { return newNNRPLink(ctx, path, t) }
	}
	overGRPC := func(congestion string) func(*lossylink.Link) (link, error) {
		return func(path *lossylink.Link) (link, error) { return newGRPCLink(ctx, path, congestion) }
	}
	runs := []struct {
		out *LossyLink
		run func(context.Context, *lossylink.Link, time.Duration) ([]time.Duration, error)
	}{
		{&l.NNRP, pacedNNRP}, {&l.GRPC, pacedGRPC},
		{&l.Full, pictures(overNNRP(inference.TilerOptions{}))},
		{&l.Changed, pictures(overNNRP(inference.TilerOptions{Tile: o.Tile}))},
		{&l.Whole, pictures(overGRPC(lossyTCP))},
		{&l.BBR, pictures(overGRPC("bbr"))},
	}
	var wg sync.WaitGroup
	errs := make([]error, len(runs))
	for i, run := range runs {
		wg.Go(func() {
			path, err := lossylink.New(lossylink.Options{OneWay: lossyOneWay, Loss: lossyLoss, Rate: lossyBytes, Seed: 1})
			if err == nil {
				var took []time.Duration
				took, err = run.run(ctx, path, o.Lossy)
				*run.out = lossyLink(took)
				_ = path.Close()
			}
			if errors.Is(err, errNoCongestion) { // no BBR here
				err = nil
			}
			errs[i] = err
		})
	}
	wg.Wait()
	err := errors.Join(errs...)
	if errors.Is(err, lossylink.ErrUnavailable) {
		r.NoLossy = err.Error()
		return nil
	}
	r.Lossy = l
	return err
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
