package inference

import (
	"context"
	"encoding/binary"
	"errors"
	"math"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/nnrp"
	"github.com/cfpipe/cfpipe/nnrp/lz4codec"
	"github.com/cfpipe/cfpipe/nnrp/quictransport"
	"github.com/cfpipe/cfpipe/nnrp/session"
)

// sumEngine answers with the sum of a picture's bytes and the size of the batch, and can be held up.
type sumEngine struct {
	spec Spec
	gate chan struct{} // nil = open
	work time.Duration
	mu   sync.Mutex
	max  int
}

func newSumEngine() *sumEngine {
	return &sumEngine{spec: Spec{Name: "sum", Width: 32, Height: 32, Channels: 3, DTypes: []nnrp.DType{nnrp.Uint8},
		Layouts: []nnrp.Layout{nnrp.NHWC}, MaxBatch: 4,
		Outputs: []Output{{Role: 1, Name: "sum", DType: nnrp.FP32, Shape: []int64{1}}}}}
}

func (e *sumEngine) Spec() Spec   { return e.spec }
func (e *sumEngine) Close() error { return nil }
func (e *sumEngine) Infer(items []*Item) error {
	if e.gate != nil {
		<-e.gate
	}
	time.Sleep(e.work)
	e.mu.Lock()
	e.max = max(e.max, len(items))
	e.mu.Unlock()
	for _, it := range items {
		sum := 0
		for _, b := range it.Picture {
			sum += int(b)
		}
		p := binary.LittleEndian.AppendUint32(nil, math.Float32bits(float32(sum)))
		it.Result.TileIndex = nnrp.TileIndex{Count: 1}
		it.Result.Sections = []nnrp.Section{{RoleID: 1, DType: nnrp.FP32, ElementCountPerTile: 1, LengthTable: nnrp.AppendLength(nil, 4), Payload: p}}
	}
	return nil
}

func start(t *testing.T, o ServerOptions) *Server {
	t.Helper()
	s, err := NewServer(o)
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

func dial(t *testing.T, s *Server, o session.ClientOptions) (*session.Client, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, err := quictransport.Dial(ctx, "nnrps://"+s.Addr().String(), quictransport.Trust{Fingerprint: s.Fingerprint()})
	require.NoError(t, err)
	o.Codecs = []nnrp.Codec{lz4codec.Codec{}}
	c, err := session.Open(ctx, conn, o)
	if err == nil {
		t.Cleanup(func() { _ = c.Close(context.Background()) })
	}
	return c, err
}

func mustDial(t *testing.T, s *Server) *session.Client {
	t.Helper()
	c, err := dial(t, s, session.ClientOptions{})
	require.NoError(t, err)
	return c
}

func await(t *testing.T, c *session.Client) *session.Outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	o, err := c.Next(ctx)
	require.NoError(t, err)
	return o
}

func float(p []byte) float32 { return math.Float32frombits(binary.LittleEndian.Uint32(p)) }

func TestRuntimeWithChangedTiles(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 60*time.Second)
	s := start(t, ServerOptions{Engine: newSumEngine()})
	c := mustDial(t, s)
	spec := ParseModel(c.Agreement().Extensions)
	require.Equal(t, newSumEngine().spec, spec)
	f := Format{Width: 32, Height: 32, Channels: 3, DType: nnrp.Uint8}
	tiler, err := NewTiler(TilerOptions{Format: f, Tile: 8, Codecs: c.Codecs()})
	require.NoError(t, err)
	picture := make([]byte, f.Size())
	sum := 0
	for id := uint32(1); id <= 40; id++ {
		picture[int(id)*61] += 7
		sum += 7
		m, n, err := tiler.Frame(id, picture)
		require.NoError(t, err)
		_, err = c.Submit(t.Context(), m, session.SubmitOptions{FrameID: id})
		require.NoError(t, err)
		o := await(t, c)
		require.Equal(t, session.Delivered, o.State, "%v", o.Err)
		require.Equal(t, float32(sum), float(o.Result.Sections[0].Payload))
		if id > 1 {
			require.LessOrEqual(t, n, 2)
		}
		o.Release()
		tiler.Has(id)
	}
	// A runtime that does not know the base says so, and a whole picture mends it.
	other := mustDial(t, s)
	picture[0]++
	m, _, err := tiler.Frame(50, picture)
	require.NoError(t, err)
	_, err = other.Submit(t.Context(), m, session.SubmitOptions{FrameID: 50})
	require.NoError(t, err)
	require.ErrorIs(t, await(t, other).Err, nnrp.ErrCacheMiss)
	tiler.Reset()
	m, n, err := tiler.Frame(51, picture)
	require.NoError(t, err)
	require.Equal(t, 16, n)
	_, err = other.Submit(t.Context(), m, session.SubmitOptions{FrameID: 51})
	require.NoError(t, err)
	require.Equal(t, float32(sum+1), float(await(t, other).Result.Sections[0].Payload))
}

func TestMismatchNamesBoth(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	s := start(t, ServerOptions{Engine: newSumEngine()})
	_, err := dial(t, s, session.ClientOptions{Hello: nnrp.ClientHello{SupportedDTypeBitmap: 1 << nnrp.FP16}})
	require.ErrorIs(t, err, nnrp.ErrUnsupportedCapability)
	require.ErrorContains(t, err, "fp16")
	require.ErrorContains(t, err, "uint8")
	model := nnrp.AppendExtension(nil, nnrp.Extension{Type: ExtModelName, Data: []byte("yolo")})
	_, err = dial(t, s, session.ClientOptions{Hello: nnrp.ClientHello{Extensions: model}})
	require.ErrorIs(t, err, nnrp.ErrUnsupportedCapability)
	require.ErrorContains(t, err, "yolo")
	require.ErrorContains(t, err, "sum")
	c := mustDial(t, s)
	tiler, err := NewTiler(TilerOptions{Format: Format{Width: 64, Height: 32, Channels: 1, DType: nnrp.Uint8}})
	require.NoError(t, err)
	m, _, err := tiler.Frame(1, make([]byte, 64*32))
	require.NoError(t, err)
	_, err = c.Submit(t.Context(), m, session.SubmitOptions{})
	require.NoError(t, err)
	o := await(t, c)
	require.ErrorIs(t, o.Err, nnrp.ErrUnsupportedCapability)
	require.ErrorContains(t, o.Err, "uint8 nhwc 64×32×1")
	require.ErrorContains(t, o.Err, "uint8 nhwc 32×32×3")
}

// TestBatchesAcrossSessionsAndSheds: while the engine is held, frames of several sessions pile up into one batch; what would have to
// wait too long is refused with a time to come back.
func TestBatchesAcrossSessionsAndSheds(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 60*time.Second)
	e := newSumEngine()
	e.gate = make(chan struct{})
	m, err := NewMetrics(prometheus.NewRegistry())
	require.NoError(t, err)
	s := start(t, ServerOptions{Engine: e, Scheduler: SchedulerOptions{MaxQueue: 6, MaxSessions: 5, Metrics: m}})
	var clients []*session.Client
	for range 5 {
		clients = append(clients, mustDial(t, s))
	}
	_, err = dial(t, s, session.ClientOptions{})
	require.ErrorIs(t, err, nnrp.ErrServerBusy)
	var busy *nnrp.Error
	require.True(t, errors.As(err, &busy))
	require.NotZero(t, busy.RetryAfterMs)

	tiler, err := NewTiler(TilerOptions{Format: Format{Width: 32, Height: 32, Channels: 3, DType: nnrp.Uint8}})
	require.NoError(t, err)
	picture := make([]byte, 32*32*3)
	send := func(c *session.Client, id uint32) {
		f, _, err := tiler.Frame(id, picture)
		require.NoError(t, err)
		_, err = c.Submit(t.Context(), f, session.SubmitOptions{FrameID: id})
		require.NoError(t, err)
	}
	send(clients[0], 1) // in the engine
	testenv.Eventually(t, 5*time.Second, func() error {
		s.sched.mu.Lock()
		defer s.sched.mu.Unlock()
		if s.sched.busy != 1 || s.sched.queued != 0 {
			return errors.New("not in the engine")
		}
		return nil
	})
	for _, c := range clients[1:] {
		send(c, 1)
	}
	send(clients[1], 2)
	send(clients[2], 2)
	testenv.Eventually(t, 5*time.Second, func() error {
		s.sched.mu.Lock()
		defer s.sched.mu.Unlock()
		if s.sched.queued != 6 {
			return errors.New("not queued")
		}
		return nil
	})
	send(clients[3], 2)
	o := await(t, clients[3])
	require.ErrorIs(t, o.Err, nnrp.ErrServerBusy)
	require.NotZero(t, o.Err.RetryAfterMs)
	close(e.gate)
	for i, n := range []int{1, 2, 2, 1, 1} {
		for range n {
			o := await(t, clients[i])
			require.Equal(t, session.Delivered, o.State, "client %d, frame %d: %v", i, o.FrameID, o.Err)
		}
	}
	e.mu.Lock()
	require.Equal(t, 4, e.max, "frames of several sessions in one batch")
	e.mu.Unlock()

	// Once it is known how long a batch takes, a frame that could not make it is refused at once.
	s.sched.mu.Lock()
	s.sched.each, s.sched.busy = 10*time.Second, s.sched.busy+1
	s.sched.mu.Unlock()
	f, _, err := tiler.Frame(9, picture)
	require.NoError(t, err)
	f.LatencyBudgetMs = 100
	_, err = clients[4].Submit(t.Context(), f, session.SubmitOptions{FrameID: 9})
	require.NoError(t, err)
	require.ErrorIs(t, await(t, clients[4]).Err, nnrp.ErrServerBusy)
	s.sched.mu.Lock()
	s.sched.busy--
	s.sched.mu.Unlock()
}

func TestMotion(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	s := start(t, ServerOptions{Engine: Motion{}})
	c := mustDial(t, s)
	f := Format{Width: 40, Height: 32, Channels: 1, DType: nnrp.Uint8}
	tiler, err := NewTiler(TilerOptions{Format: f, Tile: 16, Codecs: c.Codecs()})
	require.NoError(t, err)
	picture := make([]byte, f.Size())
	ask := func(id uint32) map[uint32]float32 {
		m, _, err := tiler.Frame(id, picture)
		require.NoError(t, err)
		_, err = c.Submit(t.Context(), m, session.SubmitOptions{FrameID: id})
		require.NoError(t, err)
		o := await(t, c)
		require.Equal(t, session.Delivered, o.State, "%v", o.Err)
		tiler.Has(id)
		got := map[uint32]float32{}
		for i, tile := range o.Result.TileIndex.AppendIDs(nil) {
			got[tile] = float(o.Result.Sections[0].Payload[4*i:])
		}
		return got
	}
	require.Equal(t, map[uint32]float32{0: 0, 1: 0, 2: 0, 3: 0, 4: 0, 5: 0}, ask(1))
	for y := range 16 {
		for x := range 16 {
			picture[y*40+16+x] = 100 // tile 1
		}
	}
	picture[31*40+39] = 255 // tile 5, which is half padding
	require.Equal(t, map[uint32]float32{1: 100, 5: 255.0 / 256}, ask(2))
	require.Empty(t, ask(3))
}

func TestSDKOrderAndToken(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	s := start(t, ServerOptions{Engine: Motion{}, Token: []byte("t0ken"), SDK: true})
	c, err := dial(t, s, session.ClientOptions{Hello: nnrp.ClientHello{SDK: true, Auth: []byte("t0ken"),
		Extensions: nnrp.AppendExtension(nil, nnrp.Extension{Type: ExtModelName, Data: []byte("motion")})}})
	require.NoError(t, err)
	tiler, err := NewTiler(TilerOptions{Format: Format{Width: 16, Height: 16, Channels: 1, DType: nnrp.Uint8}})
	require.NoError(t, err)
	m, _, err := tiler.Frame(1, make([]byte, 256))
	require.NoError(t, err)
	_, err = c.Submit(t.Context(), m, session.SubmitOptions{})
	require.NoError(t, err)
	o := await(t, c)
	require.Equal(t, session.Delivered, o.State)
	require.EqualValues(t, nnrp.PayloadTensorSDK, o.Result.PayloadKind, "the answer speaks as it was spoken to")
	_, err = dial(t, s, session.ClientOptions{Hello: nnrp.ClientHello{SDK: true, Auth: []byte("t0kem")}})
	require.ErrorIs(t, err, nnrp.ErrAuthFailed)
}

// TestUnfoldingIsBounded: small messages cannot make the runtime hold large pictures.
func TestUnfoldingIsBounded(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	s := start(t, ServerOptions{Engine: Motion{}, MaxBody: 1 << 20})
	c := mustDial(t, s)
	for name, m := range map[string]*nnrp.FrameSubmit{
		"one tile of a giant picture": {Tensor: nnrp.TensorSubmit{SrcWidth: 65535, SrcHeight: 65535, TileWidth: 256, TileHeight: 256},
			Sections: []nnrp.Section{{ElementCountPerTile: 65536}}},
		"giant tile": {Tensor: nnrp.TensorSubmit{SrcWidth: 1, SrcHeight: 1, TileWidth: 65535, TileHeight: 65535},
			Sections: []nnrp.Section{{ElementCountPerTile: 65535 * 65535}}},
		"lz4 bomb": {Tensor: nnrp.TensorSubmit{SrcWidth: 2048, SrcHeight: 2048, TileWidth: 2048, TileHeight: 2048},
			Sections: []nnrp.Section{{CodecID: nnrp.CodecLZ4, ElementCountPerTile: 2048 * 2048}}},
	} {
		m.ProfileID = nnrp.ProfileTensor
		m.TileIndex.Count = 1
		m.Sections[0].RoleID, m.Sections[0].DType = 1, nnrp.Uint8
		m.Sections[0].LengthTable, m.Sections[0].Payload = nnrp.AppendLength(nil, 4), []byte{0x1f, 0, 1, 0}
		_, err := c.Submit(t.Context(), m, session.SubmitOptions{})
		require.NoError(t, err)
		require.ErrorIs(t, await(t, c).Err, nnrp.ErrLimitExceeded, name)
	}
}

// Peers that connect and say nothing hold no place of those who have a token: the oldest of them goes.
func TestStrangersHoldNoPlace(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 60*time.Second)
	token := []byte("a-token-of-the-runtime")
	s := start(t, ServerOptions{Engine: newSumEngine(), Token: token, Scheduler: SchedulerOptions{MaxSessions: 1}})
	connect := func() session.Conn {
		conn, err := quictransport.Dial(t.Context(), "nnrps://"+s.Addr().String(), quictransport.Trust{Fingerprint: s.Fingerprint()})
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.CloseWithError(0, "") })
		return conn
	}
	first := connect()
	for range 70 { // more than the sessions and the strangers there is room for
		connect()
	}
	<-first.Done()
	c, err := dial(t, s, session.ClientOptions{Hello: nnrp.ClientHello{Auth: token}})
	require.NoError(t, err)
	for range maxStrangers + 1 { // nor do they push out a session
		connect()
	}
	require.NotEqual(t, session.Closed, c.State())
	require.NoError(t, c.Close(t.Context()))
	_, err = dial(t, s, session.ClientOptions{Hello: nnrp.ClientHello{Auth: []byte("another token")}})
	require.ErrorIs(t, err, nnrp.ErrAuthFailed)
}
