package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"time"

	"github.com/cfpipe/cfpipe/internal/lossylink"
	"github.com/cfpipe/cfpipe/internal/servercert"
	"github.com/cfpipe/cfpipe/nnrp"
	"github.com/cfpipe/cfpipe/nnrp/lz4codec"
	"github.com/cfpipe/cfpipe/nnrp/quictransport"
	"github.com/cfpipe/cfpipe/nnrp/session"
	"github.com/cfpipe/cfpipe/pipeline/inference"
)

// resultBytes is the size of every answer.
const resultBytes = 64

// nullEngine takes whole pictures and answers at once.
type nullEngine struct{}

func (nullEngine) Spec() inference.Spec {
	return inference.Spec{Name: "null", DTypes: []nnrp.DType{nnrp.Uint8}, Layouts: []nnrp.Layout{nnrp.NHWC}, MaxBatch: 8}
}
func (nullEngine) Close() error { return nil }
func (nullEngine) Infer(items []*inference.Item) error {
	for _, it := range items {
		if len(it.Picture) == 0 {
			return errors.New("no picture")
		}
		it.Result.TileIndex = nnrp.TileIndex{Count: 1}
		it.Result.Sections = []nnrp.Section{{RoleID: 1, DType: nnrp.Uint8, ElementCountPerTile: resultBytes,
			LengthTable: nnrp.AppendLength(nil, resultBytes), Payload: make([]byte, resultBytes)}}
	}
	return nil
}

// nnrpLink is a runtime and a client of it.
type nnrpLink struct {
	stop  context.CancelFunc
	done  chan error
	c     *session.Client
	tiler *inference.Tiler
	id    uint32
}

// newNNRPLink makes a link over path, or over the loopback interface where that is nil.
func newNNRPLink(ctx context.Context, path *lossylink.Link, o inference.TilerOptions) (*nnrpLink, error) {
	quiet := slog.New(slog.DiscardHandler)
	var s *inference.Server
	err := onPath(ctx, path, serverEnd, func() (err error) {
		s, err = inference.NewServer(inference.ServerOptions{Engine: nullEngine{}, Listen: listenAddr(path),
			Concurrent: quictransport.MaxConcurrentFrames, Logger: quiet})
		return err
	})
	if err != nil {
		return nil, err
	}
	sctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	l := &nnrpLink{stop: cancel, done: make(chan error, 1)}
	go func() { l.done <- s.Run(sctx) }()
	var conn session.Conn
	err = onPath(ctx, path, clientEnd, func() (err error) {
		conn, err = quictransport.Dial(ctx, "nnrps://"+s.Addr().String(), quictransport.Trust{Fingerprint: s.Fingerprint()})
		return err
	})
	if err == nil {
		l.c, err = session.Open(ctx, conn, session.ClientOptions{Logger: quiet, Codecs: []nnrp.Codec{lz4codec.Codec{}}})
	}
	if err == nil {
		if o.Tile > 0 {
			o.Codecs = l.c.Codecs()
		}
		l.tiler, err = inference.NewTiler(o)
	}
	if err != nil {
		return nil, errors.Join(err, l.close())
	}
	return l, nil
}

func (l *nnrpLink) exchange(ctx context.Context, tensor []byte) (int, error) {
	l.id++
	m, _, err := l.tiler.Frame(l.id, tensor)
	if err != nil {
		return 0, err
	}
	if _, err := l.c.Submit(ctx, m, session.SubmitOptions{FrameID: l.id}); err != nil {
		return 0, err
	}
	o, err := l.c.Next(ctx)
	if err != nil {
		return 0, err
	}
	if o.State != session.Delivered || len(o.Result.Sections[0].Payload) != resultBytes {
		return 0, notDelivered(o)
	}
	l.tiler.Has(l.id)
	o.Release()
	return len(m.Sections[0].Payload), nil
}

func notDelivered(o *session.Outcome) error {
	err := fmt.Errorf("frame %d: %s", o.FrameID, o.State)
	if o.Err != nil {
		err = fmt.Errorf("%w: %w", err, o.Err)
	}
	return err
}

func (l *nnrpLink) close() error {
	if l.c != nil {
		_ = l.c.Close(context.Background())
	}
	l.stop()
	return <-l.done
}

// inFlight is how many tensors travel at a time in the throughput measurements.
const inFlight = 8

// runRate measures throughput, NNRP and bare streams of the same sizes in turn.
func (r *NNRPResult) runRate(ctx context.Context, o NNRP) error {
	l, err := newNNRPLink(ctx, nil, inference.TilerOptions{Format: inference.Format{Width: o.Side, Height: o.Side, Channels: 3, DType: nnrp.Uint8}})
	if err != nil {
		return err
	}
	defer func() { _ = l.close() }()
	raw, err := newRawQUIC(ctx)
	if err != nil {
		return err
	}
	defer raw.close()
	var sent, bare float64
	for round := range turns {
		o.Progress(fmt.Sprintf("throughput (%d of %d)", round+1, turns))
		n, err := l.flood(ctx, r.Bytes, o.Duration/turns)
		if err != nil {
			return err
		}
		sent += n
		if n, err = raw.flood(ctx, r.Bytes, o.Duration/turns); err != nil {
			return err
		}
		bare += n
	}
	r.Rate, r.RawRate = sent/turns, bare/turns
	return nil
}

// flood keeps inFlight tensors of size bytes under way for a time d and returns bytes a second: send sends one, take waits for an answer.
func flood(size int, d time.Duration, send, take func() error) (float64, error) {
	start, sent, taken := time.Now(), 0, 0
	for time.Since(start) < d {
		if err := send(); err != nil {
			return 0, err
		}
		if sent++; sent-taken == inFlight {
			if err := take(); err != nil {
				return 0, err
			}
			taken++
		}
	}
	for ; taken < sent; taken++ {
		if err := take(); err != nil {
			return 0, err
		}
	}
	return float64(taken) * float64(size) / time.Since(start).Seconds(), nil
}

func (l *nnrpLink) flood(ctx context.Context, size int, d time.Duration) (float64, error) {
	tensor := texture(size)
	return flood(size, d, func() error {
		l.id++
		m, _, err := l.tiler.Frame(l.id, tensor)
		if err == nil {
			_, err = l.c.Submit(ctx, m, session.SubmitOptions{FrameID: l.id, View: uint16(0)})
		}
		return err
	}, func() error {
		o, err := l.c.Next(ctx)
		if err == nil && o.State != session.Delivered {
			err = notDelivered(o)
		}
		if err == nil {
			o.Release()
		}
		return err
	})
}

// rawQUIC sends the same bytes on bare streams: one there, one with the answer back.
type rawQUIC struct {
	l      *quictransport.Listener
	client session.Conn
	wg     sync.WaitGroup
	cancel context.CancelFunc
}

func newRawQUIC(ctx context.Context) (*rawQUIC, error) {
	cert, err := servercert.SelfSigned()
	if err != nil {
		return nil, err
	}
	r := &rawQUIC{}
	if r.l, err = quictransport.Listen("127.0.0.1:0", servercert.Always(cert)); err != nil {
		return nil, err
	}
	ctx, r.cancel = context.WithCancel(ctx)
	r.wg.Go(func() {
		conn, err := r.l.Accept(ctx)
		if err != nil {
			return
		}
		for {
			s, err := conn.AcceptReceive(ctx)
			if err != nil {
				return
			}
			r.wg.Go(func() { answerRaw(ctx, conn, s) })
		}
	})
	if r.client, err = quictransport.Dial(ctx, "nnrps://"+r.l.Addr().String(),
		quictransport.Trust{Fingerprint: servercert.Fingerprint(cert)}); err != nil {
		r.close()
		return nil, err
	}
	return r, nil
}

var rawBuffers = sync.Pool{New: func() any { return new([]byte) }}

func answerRaw(ctx context.Context, conn session.Conn, s session.ReceiveStream) {
	buf := rawBuffers.Get().(*[]byte)
	defer rawBuffers.Put(buf)
	n := 0
	for {
		if n == len(*buf) {
			*buf = append(*buf, make([]byte, max(64<<10, n))...)
		}
		k, err := s.Read((*buf)[n:])
		n += k
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return
		}
	}
	w, err := conn.OpenSend(ctx)
	if err == nil {
		_, _ = w.Write(make([]byte, resultBytes))
		_ = w.Close()
	}
}

func (r *rawQUIC) flood(ctx context.Context, size int, d time.Duration) (float64, error) {
	tensor := texture(size)
	return flood(size, d, func() error {
		w, err := r.client.OpenSend(ctx)
		if err != nil {
			return err
		}
		if _, err := w.Write(tensor); err != nil {
			return err
		}
		return w.Close()
	}, func() error {
		s, err := r.client.AcceptReceive(ctx)
		if err == nil {
			_, err = io.ReadAll(s)
		}
		return err
	})
}

func (r *rawQUIC) close() {
	if r.client != nil {
		_ = r.client.CloseWithError(0, "")
	}
	r.cancel()
	_ = r.l.Close()
	r.wg.Wait()
}
