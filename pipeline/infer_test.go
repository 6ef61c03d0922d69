package pipeline

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/cudavmm"
	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/lossylink"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/servercert"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/nnrp"
	"github.com/cfpipe/cfpipe/nnrp/quictransport"
	"github.com/cfpipe/cfpipe/nnrp/session"
	"github.com/cfpipe/cfpipe/packetring"
	"github.com/cfpipe/cfpipe/pipeline/inference"
)

// scene publishes NV12 pictures that a test draws.
type scene struct {
	t   *testing.T
	pub *framering.Publisher
	w   *framering.FrameWriter
	n   int64
}

func newScene(t *testing.T, dir, key string, width, height uint32) *scene {
	t.Helper()
	pub, err := framering.NewPublisher(framering.PublisherOptions{RuntimeDir: dir, Key: key})
	require.NoError(t, err)
	require.NoError(t, pub.Serve())
	w, err := pub.StartFrames(framering.FrameOptions{RingSize: 4, Meta: framering.NV12Meta(width, height), Memory: cudavmm.Host{}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = pub.Close(framering.ReasonNormal) })
	return &scene{t: t, pub: pub, w: w}
}

// show publishes one picture: black, with a white square of 32 pixels at x, y where square is set.
func (s *scene) show(x, y int, square bool) {
	slot, err := s.w.Acquire(s.t.Context())
	require.NoError(s.t, err)
	m, b := s.w.Meta(), slot.Buffer.Bytes()
	for i := range b {
		b[i] = 16
	}
	for i := int(m.PitchY) * int(m.Height); i < len(b); i++ {
		b[i] = 128
	}
	for dy := 0; square && dy < 32; dy++ {
		for dx := range 32 {
			b[(y+dy)*int(m.PitchY)+x+dx] = 235
		}
	}
	s.n++
	_, err = s.w.Publish(1_700_000_000_000_000_000 + s.n)
	require.NoError(s.t, err)
}

// motionRuntime runs a motion engine on addr ("" = any port).
func motionRuntime(t *testing.T, o inference.ServerOptions) (s *inference.Server, stop func()) {
	t.Helper()
	o.Engine = inference.Motion{}
	s, err := inference.NewServer(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = func() {
		if cancel != nil {
			cancel()
			cancel = nil
			require.NoError(t, <-done)
		}
	}
	t.Cleanup(stop)
	return s, stop
}

// Frame ring → tensors → runtime → JSON lines: the square is seen where it is, only changed tiles travel, and a runtime that comes back
// is followed.
func TestInfer(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 60*time.Second)
	dir, key := place(t)
	sc := newScene(t, dir, key, 256, 128)
	cert, err := servercert.SelfSigned()
	require.NoError(t, err)
	server, stop := motionRuntime(t, inference.ServerOptions{Certificate: servercert.Always(cert), Token: []byte("t0ken")})
	addr := server.Addr().String()
	out, w := io.Pipe()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	type ended struct {
		s   InferStats
		err error
	}
	done := make(chan ended, 1)
	sc.show(0, 0, false)
	go func() {
		s, err := Infer(ctx, InferOptions{RuntimeDir: dir, Key: key, To: "nnrps://" + addr, Trust: quictransport.Trust{Fingerprint: server.Fingerprint()},
			Token: []byte("t0ken"), Tile: 32, InFlight: 1, Latency: 5 * time.Second, Out: w,
			Backoff: session.Backoff{Min: 10 * time.Millisecond, Max: 100 * time.Millisecond}})
		_ = w.Close()
		done <- ended{s, err}
	}()
	lines := bufio.NewScanner(out)
	next := func() (l struct {
		Seq     uint64
		PTS     int64
		TileIDs []uint32 `json:"tile_ids"`
		Tensors map[string]struct {
			Name  string
			DType string
			Tiles int
			Data  []float64
		}
	}) {
		t.Helper()
		require.True(t, lines.Scan(), "%v", lines.Err())
		require.NoError(t, json.Unmarshal(lines.Bytes(), &l), "%s", lines.Text())
		return l
	}
	first := next()
	require.Equal(t, 32, first.Tensors["1"].Tiles, "the whole picture")
	require.Equal(t, "luma_difference", first.Tensors["1"].Name)
	require.Equal(t, "fp32", first.Tensors["1"].DType)
	require.EqualValues(t, 1_700_000_000_000_000_001, first.PTS)
	require.EqualValues(t, 1, first.Seq)

	sc.show(64, 32, true) // tile 10
	l := next()
	require.Equal(t, []uint32{10}, l.TileIDs)
	require.Len(t, l.Tensors["1"].Data, 1)
	require.InDelta(t, 255, l.Tensors["1"].Data[0], 1)
	require.EqualValues(t, 2, l.Seq)
	sc.show(224, 96, true) // from 10 to 31
	require.Equal(t, []uint32{10, 31}, next().TileIDs)

	stop()
	motionRuntime(t, inference.ServerOptions{Certificate: servercert.Always(cert), Token: []byte("t0ken"), Listen: addr})
	ticker := time.NewTicker(20 * time.Millisecond)
	defer ticker.Stop()
	moving := make(chan struct{})
	go func() { // a camera goes on
		defer close(moving)
		for i := 0; ; i++ {
			select {
			case <-ticker.C:
				sc.show(32*(i%8), 0, true)
			case <-ctx.Done():
				return
			}
		}
	}()
	again := next()
	require.Equal(t, 32, again.Tensors["1"].Tiles, "the new runtime gets a whole picture")
	require.Greater(t, again.Seq, uint64(3))
	require.LessOrEqual(t, len(next().TileIDs), 4)
	cancel()
	<-moving
	go func() { _, _ = io.Copy(io.Discard, out) }()
	e := <-done
	require.ErrorIs(t, e.err, context.Canceled)
	require.EqualValues(t, 2, e.s.Sessions)
	require.Less(t, e.s.TilesSent, e.s.TilesAll)
}

func TestInferRefusals(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 60*time.Second)
	dir, key := place(t)
	_, err := Infer(t.Context(), InferOptions{RuntimeDir: dir, Key: key, To: "nnrps://127.0.0.1:1", Out: io.Discard})
	require.ErrorIs(t, err, ErrNoKey)
	packets, err := Publish(PublishOptions{RuntimeDir: dir, Key: key, Packets: packetring.Config{CodecID: media.H264}})
	require.NoError(t, err)
	_, err = Infer(t.Context(), InferOptions{RuntimeDir: dir, Key: key, To: "nnrps://127.0.0.1:1", Out: io.Discard})
	require.ErrorIs(t, err, ErrNoFrames)
	require.ErrorContains(t, err, "cfpipe decode "+key+" --key")
	require.NoError(t, packets.Close(framering.ReasonNormal))
	sc := newScene(t, dir, key, 64, 64)
	sc.show(0, 0, false)
	server, _ := motionRuntime(t, inference.ServerOptions{Token: []byte("t0ken")})
	o := InferOptions{RuntimeDir: dir, Key: key, To: "nnrps://" + server.Addr().String(),
		Trust: quictransport.Trust{Fingerprint: server.Fingerprint()}, Out: io.Discard}
	untrusting := o
	untrusting.Trust = quictransport.Trust{}
	_, err = Infer(t.Context(), untrusting)
	require.ErrorContains(t, err, server.Fingerprint())
	_, err = Infer(t.Context(), o)
	require.ErrorIs(t, err, nnrp.ErrAuthFailed)
	o.Token = []byte("t0ken")
	o.Model = "yolo"
	_, err = Infer(t.Context(), o)
	require.ErrorIs(t, err, nnrp.ErrUnsupportedCapability)
	require.ErrorContains(t, err, "motion")
	o.Model, o.Format.DType, o.DTypeIsSet = "", nnrp.FP16, true
	_, err = Infer(t.Context(), o)
	require.ErrorContains(t, err, "fp16")
	require.ErrorContains(t, err, "uint8")
	o.DTypeIsSet, o.Format = false, inference.Format{}
	o.Count = 1
	s, err := Infer(t.Context(), o)
	require.NoError(t, err)
	require.EqualValues(t, 1, s.Results)
}

// TestInferOverALossyPath: 25 pictures a second over 50 ms round trip and 2 % loss. Results keep coming, each for a picture that was new
// a moment ago, and memory stays flat.
func TestInferOverALossyPath(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 60*time.Second)
	dir, key := place(t)
	sc := newScene(t, dir, key, 256, 128)
	sc.show(0, 0, false)
	server, _ := motionRuntime(t, inference.ServerOptions{})
	path, err := lossylink.NewProxy(server.Addr(), lossylink.Options{OneWay: 25 * time.Millisecond, Loss: 0.02, Seed: 7})
	require.NoError(t, err)
	t.Cleanup(func() { _ = path.Close() })

	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var newest atomic.Int64
	moving := make(chan struct{})
	go func() {
		defer close(moving)
		tick := time.NewTicker(40 * time.Millisecond)
		defer tick.Stop()
		for i := 0; ; i++ {
			select {
			case <-tick.C:
				sc.show(32*(i%7), 32*(i%3), true)
				newest.Store(sc.n)
			case <-ctx.Done():
				return
			}
		}
	}()
	var behind []int64
	var heap []uint64
	out := writerFunc(func(b []byte) (int, error) {
		var l struct{ Seq int64 }
		if err := json.Unmarshal(b, &l); err != nil {
			return 0, err
		}
		behind = append(behind, newest.Load()-l.Seq)
		if len(behind)%20 == 0 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			heap = append(heap, m.HeapAlloc)
		}
		return len(b), nil
	})
	s, err := Infer(ctx, InferOptions{RuntimeDir: dir, Key: key, To: "nnrps://" + path.Addr().String(),
		Trust: quictransport.Trust{Fingerprint: server.Fingerprint()},
		Tile:  32, InFlight: 4, Out: out, Duration: 6 * time.Second})
	require.NoError(t, err)
	cancel()
	<-moving
	slices.Sort(behind)
	t.Logf("%+v, pictures behind the newest: median %d, most %d; heap %v", s, behind[len(behind)/2], behind[len(behind)-1], heap)
	require.EqualValues(t, 1, s.Sessions)
	require.Greater(t, s.Results, uint64(40))
	require.LessOrEqual(t, behind[len(behind)/2], int64(6), "the path alone is one or two pictures long")
	require.Less(t, heap[len(heap)-1], heap[0]+8<<20)
}
