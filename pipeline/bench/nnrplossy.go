package bench

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/cfpipe/cfpipe/internal/lossylink"
	"github.com/cfpipe/cfpipe/nnrp"
	"github.com/cfpipe/cfpipe/nnrp/quictransport"
	"github.com/cfpipe/cfpipe/nnrp/session"
	"github.com/cfpipe/cfpipe/pipeline/inference"
)

// The path of the lossy measurement, and what is sent over it: about what changed tiles of a camera need. The rate stays under what
// congestion control leaves of such a path (about 240 kB/s), else queues would be measured.
const (
	lossyOneWay = 25 * time.Millisecond
	lossyLoss   = 0.02 // each direction
	lossyRate   = 12   // tensors a second
	lossyWidth  = 128
	lossyHeight = 64 // one byte a pixel: 8 KiB a tensor
)

// Lossy is latency over a path with 50 ms round trip and 2 % loss; milliseconds.
type Lossy struct {
	NNRP LossyLink `json:"nnrp"`
	GRPC LossyLink `json:"grpc"`
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

// runLossy sends the same tensors at the same rate by NNRP and by gRPC, at the same time over two paths of the same kind.
func (r *NNRPResult) runLossy(ctx context.Context, o NNRP) error {
	o.Progress(fmt.Sprintf("50 ms round trip, 2 %% loss, %v", o.Lossy))
	var wg sync.WaitGroup
	var l Lossy
	errs := make([]error, 2)
	wg.Go(func() { l.NNRP, errs[0] = lossyNNRP(ctx, o.Lossy) })
	wg.Go(func() { l.GRPC, errs[1] = lossyGRPC(ctx, o.Lossy) })
	wg.Wait()
	err := errors.Join(errs...)
	if errors.Is(err, lossylink.ErrUnavailable) {
		r.NoLossy = err.Error()
		return nil
	}
	r.Lossy = &l
	return err
}

func newLossyPath(seed uint64) (*lossylink.Link, error) {
	return lossylink.New(lossylink.Options{OneWay: lossyOneWay, Loss: lossyLoss, Seed: seed})
}

// paced calls send at the rate until d is over.
func paced(ctx context.Context, d time.Duration, send func(i int) error) (int, error) {
	tick := time.NewTicker(time.Second / lossyRate)
	defer tick.Stop()
	n := int(d.Seconds() * lossyRate)
	for i := range n {
		if err := send(i); err != nil {
			return i, err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return i, ctx.Err()
		}
	}
	return n, nil
}

func lossyNNRP(ctx context.Context, d time.Duration) (LossyLink, error) {
	path, err := newLossyPath(1)
	if err != nil {
		return LossyLink{}, err
	}
	defer func() { _ = path.Close() }()
	quiet := slog.New(slog.DiscardHandler)
	var s *inference.Server
	err = path.On(ctx, 0, func() (err error) {
		s, err = inference.NewServer(inference.ServerOptions{Engine: nullEngine{}, Listen: lossylink.AddrA + ":0", Concurrent: 64, Logger: quiet})
		return err
	})
	if err != nil {
		return LossyLink{}, err
	}
	sctx, cancel := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- s.Run(sctx) }()
	defer func() {
		cancel()
		<-done
	}()
	var conn session.Conn
	err = path.On(ctx, 1, func() (err error) {
		conn, err = quictransport.Dial(ctx, "nnrps://"+s.Addr().String(), quictransport.Trust{Fingerprint: s.Fingerprint()})
		return err
	})
	if err != nil {
		return LossyLink{}, err
	}
	c, err := session.Open(ctx, conn, session.ClientOptions{Logger: quiet})
	if err != nil {
		return LossyLink{}, err
	}
	defer func() { _ = c.Close(ctx) }()
	tiler, err := inference.NewTiler(inference.TilerOptions{Format: inference.Format{Width: lossyWidth, Height: lossyHeight, Channels: 1, DType: nnrp.Uint8}, Latency: 30000})
	if err != nil {
		return LossyLink{}, err
	}
	tensor := texture(lossyWidth * lossyHeight)
	var took []time.Duration
	want := make(chan int, 1)
	collected := make(chan error, 1)
	go func() {
		total := -1
		for len(took) != total {
			select {
			case total = <-want:
				continue
			default:
			}
			nctx, cancel := context.WithTimeout(ctx, time.Second)
			o, err := c.Next(nctx)
			cancel()
			if err != nil && nctx.Err() != nil && ctx.Err() == nil {
				continue // look for total again
			}
			if err == nil && o.State != session.Delivered {
				err = notDelivered(o)
			}
			if err != nil {
				collected <- err
				return
			}
			took = append(took, time.Since(o.Tag.(time.Time)))
			o.Release()
		}
		collected <- nil
	}()
	n, err := paced(ctx, d, func(i int) error {
		m, _, err := tiler.Frame(uint32(i+1), tensor)
		if err == nil {
			_, err = c.Submit(ctx, m, session.SubmitOptions{FrameID: uint32(i + 1), Tag: time.Now()})
		}
		return err
	})
	if err != nil {
		return LossyLink{}, err
	}
	want <- n
	if err := <-collected; err != nil {
		return LossyLink{}, err
	}
	return lossyLink(took), nil
}

func lossyGRPC(ctx context.Context, d time.Duration) (LossyLink, error) {
	path, err := newLossyPath(1)
	if err != nil {
		return LossyLink{}, err
	}
	defer func() { _ = path.Close() }()
	var l *grpcLink
	var lis net.Listener
	if err = path.On(ctx, 0, func() (err error) {
		lis, err = net.Listen("tcp4", lossylink.AddrA+":0")
		return err
	}); err != nil {
		return LossyLink{}, err
	}
	l, err = newGRPCLinkOn(ctx, lis, func(ctx context.Context, addr string) (c net.Conn, err error) {
		err = path.On(ctx, 1, func() (err error) {
			c, err = (&net.Dialer{}).DialContext(ctx, "tcp4", addr)
			return err
		})
		return c, err
	})
	if err != nil {
		return LossyLink{}, err
	}
	defer func() { _ = l.close() }()
	tensor := texture(lossyWidth * lossyHeight)
	n := int(d.Seconds() * lossyRate)
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
	if _, err = paced(ctx, d, func(int) error {
		starts <- time.Now()
		return l.stream.SendMsg(wrapperspb.Bytes(tensor))
	}); err != nil {
		return LossyLink{}, err
	}
	if err := <-collected; err != nil {
		return LossyLink{}, err
	}
	return lossyLink(took), nil
}
