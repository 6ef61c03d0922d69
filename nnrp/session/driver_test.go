package session

import (
	"context"
	"io"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/nnrp"
)

// engine is a Handler that keeps frames until a test lets them go, or answers them at once.
type engine struct {
	instant bool
	mu      sync.Mutex
	frames  []*Frame
	opened  int
	ended   int
	refuse  error
}

func (e *engine) Opened(*Session) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.refuse == nil {
		e.opened++
	}
	return e.refuse
}

func (e *engine) Ended(*Session) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.ended++
}

func (e *engine) Submitted(f *Frame) {
	if e.instant {
		if f.Start() {
			f.Reply(answer(f))
		} else {
			f.Drop()
		}
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.frames = append(e.frames, f)
}

func (e *engine) take() []*Frame {
	e.mu.Lock()
	defer e.mu.Unlock()
	l := e.frames
	e.frames = nil
	return l
}

// answer echoes the first section.
func answer(f *Frame) *nnrp.ResultPush {
	p := append([]byte(nil), f.Submit.Sections[0].Payload...)
	return &nnrp.ResultPush{ActiveProfileID: 1, QueueMs: 1, InferenceMs: 2, TileIndex: nnrp.TileIndex{Count: 1}, Sections: []nnrp.Section{section(5, p)}}
}

// section is the bytes of one tile.
func section(role uint16, p []byte) nnrp.Section {
	return nnrp.Section{RoleID: role, DType: nnrp.Uint8, ElementCountPerTile: uint32(len(p)), LengthTable: nnrp.AppendLength(nil, len(p)), Payload: p}
}

func picture(payload string, class nnrp.FrameClass, budgetMs uint16) *nnrp.FrameSubmit {
	return &nnrp.FrameSubmit{
		ProfileID: 1, FrameClass: class, LatencyBudgetMs: budgetMs,
		Tensor:    nnrp.TensorSubmit{SrcWidth: 16, SrcHeight: 16, TileWidth: 16, TileHeight: 16},
		TileIndex: nnrp.TileIndex{Count: 1}, Sections: []nnrp.Section{section(1, []byte(payload))},
	}
}

type server struct {
	e    *engine
	stop context.CancelFunc
	err  chan error
	conn *memConn // the client's end
}

func serve(t *testing.T, e *engine, p Policy) *server {
	client, srv := memPair()
	ctx, cancel := context.WithCancel(t.Context())
	s := &server{e: e, stop: cancel, err: make(chan error, 1), conn: client}
	go func() { s.err <- Serve(ctx, srv, e, ServerOptions{Policy: p}) }()
	return s
}

func open(t *testing.T, s *server) *Client {
	c, err := Open(t.Context(), s.conn, ClientOptions{Hello: nnrp.ClientHello{
		MaxLaneCount: 2, MaxCacheEntries: 4, MaxCacheBytes: 1000, CacheDigestBitmap: 1, CacheObjectBitmap: 1, CacheNamespaceCount: 1,
	}})
	require.NoError(t, err)
	return c
}

// end closes the session in order.
func (s *server) end(t *testing.T, c *Client) {
	t.Helper()
	require.NoError(t, c.Close(t.Context()))
	require.NoError(t, <-s.err)
}

// deliver answers a frame, whose result comes.
func deliver(t *testing.T, c *Client, f *Frame) {
	t.Helper()
	require.True(t, f.Start())
	f.Reply(answer(f))
	require.Equal(t, Delivered, nextOf(t, c).State)
}

func nextOf(t *testing.T, c *Client) *Outcome {
	t.Helper()
	o, err := c.Next(t.Context())
	require.NoError(t, err)
	return o
}

func submit(t *testing.T, c *Client, payload string, class nnrp.FrameClass, budgetMs uint16) uint32 {
	t.Helper()
	id, err := c.Submit(t.Context(), picture(payload, class, budgetMs), SubmitOptions{Tag: payload})
	require.NoError(t, err)
	return id
}

func TestResults(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, &engine{instant: true}, Policy{Concurrent: 2, Lanes: 2})
		c := open(t, s)
		for i := range 50 {
			id := submit(t, c, string(rune('a'+i%26)), nnrp.ClassKeyframe, 100)
			o := nextOf(t, c)
			require.Equal(t, Delivered, o.State)
			require.Equal(t, id, o.FrameID)
			require.Equal(t, o.Tag, string(o.Result.Sections[0].Payload))
			require.NotZero(t, o.Header.Flags&nnrp.FlagKeyframe)
			require.Zero(t, o.Header.Flags&nnrp.FlagCanDrop, "a keyframe's result must arrive")
			o.Release()
		}
		submit(t, c, "d", nnrp.ClassDiscardable, 0)
		require.NotZero(t, nextOf(t, c).Header.Flags&nnrp.FlagCanDrop)
		// Lanes: one id, two frames.
		for view := range uint16(2) {
			_, err := c.Submit(t.Context(), picture("v", nnrp.ClassDelta, 0), SubmitOptions{View: view, FrameID: 4000})
			require.NoError(t, err)
		}
		require.Equal(t, uint16(1), nextOf(t, c).View+nextOf(t, c).View)
		_, err := c.Submit(t.Context(), picture("v", nnrp.ClassDelta, 0), SubmitOptions{View: 2})
		require.ErrorIs(t, err, nnrp.ErrLimitExceeded)
		rtt, err := c.Ping(t.Context())
		require.NoError(t, err)
		require.Zero(t, rtt)
		s.end(t, c)
		require.Equal(t, 1, s.e.ended)
		require.NoError(t, c.Err())
		_, err = c.Next(t.Context())
		require.Error(t, err)
	})
}

func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, &engine{}, Policy{Concurrent: 2})
		c := open(t, s)
		start := time.Now()
		submit(t, c, "late", nnrp.ClassKeyframe, 50)
		synctest.Wait()
		submit(t, c, "fine", nnrp.ClassKeyframe, 500)
		synctest.Wait()
		frames := s.e.take()
		require.Len(t, frames, 2)
		require.True(t, frames[0].Start())
		o := nextOf(t, c)
		require.Equal(t, "late", o.Tag)
		require.Equal(t, Expired, o.State)
		require.Equal(t, 50*time.Millisecond, time.Since(start))
		synctest.Wait()
		require.False(t, frames[0].Alive())
		frames[0].Reply(answer(frames[0])) // too late: goes nowhere
		deliver(t, c, frames[1])
		// Both places are free again.
		_, err := c.TrySubmit(t.Context(), picture("a", nnrp.ClassKeyframe, 0), SubmitOptions{})
		require.NoError(t, err)
		_, err = c.TrySubmit(t.Context(), picture("b", nnrp.ClassKeyframe, 0), SubmitOptions{})
		require.NoError(t, err)
		_, err = c.TrySubmit(t.Context(), picture("c", nnrp.ClassKeyframe, 0), SubmitOptions{})
		require.ErrorIs(t, err, ErrFull)
		synctest.Wait()
		for _, f := range s.e.take() {
			f.Drop()
		}
		require.Equal(t, Dropped, nextOf(t, c).State)
		require.Equal(t, Dropped, nextOf(t, c).State)
		s.end(t, c)
	})
}

func TestCancel(t *testing.T) {
	for _, lossy := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t, &engine{}, Policy{Concurrent: 1})
			c := open(t, s)
			s.conn.lose.Store(lossy)
			s.conn.peer.lose.Store(lossy)
			id := submit(t, c, "old", nnrp.ClassDelta, 0)
			synctest.Wait()
			old := s.e.take()[0]
			c.Cancel(0, id)
			o := nextOf(t, c)
			require.Equal(t, Cancelled, o.State)
			synctest.Wait()
			require.False(t, old.Alive())
			require.False(t, old.Start())
			old.Drop()
			start := time.Now()
			submit(t, c, "new", nnrp.ClassDelta, 0) // waits for the place
			if lossy {
				require.Equal(t, releaseAfter, time.Since(start), "RESULT_DROP was lost: the place is free after a while")
			} else {
				require.Zero(t, time.Since(start))
			}
			synctest.Wait()
			f := s.e.take()[0]
			deliver(t, c, f)
			s.end(t, c)
		})
	}
}

func TestSupersede(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, &engine{}, Policy{Concurrent: 4})
		c := open(t, s)
		submit(t, c, "1", nnrp.ClassDiscardable, 0)
		synctest.Wait()
		submit(t, c, "key", nnrp.ClassKeyframe, 0)
		synctest.Wait()
		submit(t, c, "2", nnrp.ClassDiscardable, 0)
		o := nextOf(t, c)
		require.Equal(t, "1", o.Tag)
		require.Equal(t, Dropped, o.State)
		synctest.Wait()
		alive := 0
		for _, f := range s.e.take() {
			if f.Start() {
				alive++
				f.Reply(answer(f))
			} else {
				f.Drop()
			}
		}
		require.Equal(t, 2, alive)
		require.Equal(t, Delivered, nextOf(t, c).State)
		require.Equal(t, Delivered, nextOf(t, c).State)
		s.end(t, c)
	})
}

func TestServerBusyAndFrameErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, &engine{}, Policy{Concurrent: 4})
		c := open(t, s)
		submit(t, c, "busy", nnrp.ClassKeyframe, 0)
		submit(t, c, "miss", nnrp.ClassDelta, 0)
		submit(t, c, "fine", nnrp.ClassDelta, 0)
		synctest.Wait()
		byTag := map[string]*Frame{}
		for _, f := range s.e.take() {
			byTag[string(f.Submit.Sections[0].Payload)] = f
		}
		busy := nnrp.NewError(nnrp.CodeServerBusy, "queue is full")
		busy.Scope, busy.RetryAfterMs = nnrp.ScopeFrame, 250
		byTag["busy"].Fail(busy)
		o := nextOf(t, c)
		require.Equal(t, "busy", o.Tag)
		require.ErrorIs(t, o.Err, nnrp.ErrServerBusy)
		require.EqualValues(t, 250, o.Err.RetryAfterMs)
		byTag["miss"].Fail(nnrp.NewError(nnrp.CodeCacheMiss, "context of frame 1 is gone"))
		require.ErrorIs(t, nextOf(t, c).Err, nnrp.ErrCacheMiss)
		require.True(t, byTag["fine"].Start())
		byTag["fine"].Reply(answer(byTag["fine"]))
		require.Equal(t, Delivered, nextOf(t, c).State, "other frames go on")
		s.end(t, c)
	})
}

func TestPatchAndCacheOverTheWire(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, &engine{}, Policy{Lanes: 2, MaxQuality: 3, Cache: CachePolicy{Entries: 4, Bytes: 100, Objects: 1, Namespaces: 1}})
		c := open(t, s)
		ack, err := c.Patch(t.Context(), &nnrp.SessionPatch{PatchMask: nnrp.PatchQualityTier | nnrp.PatchActiveLaneMask, QualityTier: 9, ActiveLaneMask: 1})
		require.NoError(t, err)
		require.EqualValues(t, nnrp.PatchPartial, ack.Status)
		require.EqualValues(t, 1, c.Agreement().LaneMask)
		_, err = c.Submit(t.Context(), picture("x", nnrp.ClassDelta, 0), SubmitOptions{View: 1})
		require.ErrorIs(t, err, nnrp.ErrInvalidState)
		_, err = c.Patch(t.Context(), &nnrp.SessionPatch{Extensions: nnrp.AppendExtension(nil, nnrp.Extension{Type: 0x8888, Flags: nnrp.ExtCritical})})
		require.ErrorIs(t, err, nnrp.ErrUnsupportedCapability)

		object := []byte("camera matrix")
		put := &nnrp.CachePut{ObjectKind: nnrp.ObjectCamera, CacheKey: nnrp.KeyOf(object), Object: object}
		got, err := c.Install(t.Context(), put)
		require.NoError(t, err)
		require.EqualValues(t, nnrp.CacheAccepted, got.Status)
		put.Lo++
		got, err = c.Install(t.Context(), put)
		require.NoError(t, err)
		require.EqualValues(t, nnrp.CacheRejected, got.Status)
		require.NoError(t, c.Invalidate(&nnrp.CacheInvalidate{Scope: nnrp.InvalidateSession}))
		s.end(t, c)
	})
}

func TestDraining(t *testing.T) {
	t.Run("client closes", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t, &engine{}, Policy{})
			c := open(t, s)
			submit(t, c, "last", nnrp.ClassKeyframe, 0)
			synctest.Wait()
			f := s.e.take()[0]
			closed := make(chan struct{})
			go func() { _ = c.Close(t.Context()); close(closed) }()
			synctest.Wait()
			require.Equal(t, Draining, f.Session.State())
			_, err := c.Submit(t.Context(), picture("x", nnrp.ClassDelta, 0), SubmitOptions{})
			require.ErrorIs(t, err, nnrp.ErrInvalidState)
			require.True(t, f.Start())
			f.Reply(answer(f))
			<-closed
			require.Equal(t, Delivered, nextOf(t, c).State, "the frame under way got its result")
			require.NoError(t, <-s.err)
		})
	})
	t.Run("server stops", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t, &engine{}, Policy{})
			c := open(t, s)
			submit(t, c, "last", nnrp.ClassKeyframe, 0)
			synctest.Wait()
			f := s.e.take()[0]
			s.stop()
			synctest.Wait()
			require.Equal(t, Draining, c.State())
			deliver(t, c, f)
			<-c.Done()
			require.ErrorIs(t, c.Err(), ErrClosed)
			s.end(t, c)
		})
	})
	t.Run("a frame that never ends", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			s := serve(t, &engine{}, Policy{})
			c := open(t, s)
			submit(t, c, "stuck", nnrp.ClassKeyframe, 0)
			synctest.Wait()
			start := time.Now()
			require.NoError(t, c.Close(t.Context()))
			require.LessOrEqual(t, time.Since(start), drainTimeout+lastWordsTimeout)
			require.Error(t, <-s.err)
			require.Equal(t, Cancelled, nextOf(t, c).State)
			s.e.take()[0].Reply(&nnrp.ResultPush{ActiveProfileID: 1})
		})
	})
}

func TestRefusedHandshake(t *testing.T) {
	busy := nnrp.NewError(nnrp.CodeServerBusy, "64 sessions")
	busy.RetryAfterMs = 1500
	for name, c := range map[string]struct {
		policy Policy
		refuse error
		code   nnrp.ErrorCode
	}{
		"token":      {Policy{Authenticate: func([]byte) (uint8, time.Duration) { return nnrp.AuthRejected, 0 }}, nil, nnrp.CodeAuthFailed},
		"busy":       {Policy{}, busy, nnrp.CodeServerBusy},
		"broken":     {Policy{}, io.ErrNoProgress, nnrp.CodeInternalError},
		"capability": {Policy{DTypes: 1 << 30}, nil, nnrp.CodeUnsupportedCapability},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := serve(t, &engine{refuse: c.refuse}, c.policy)
				_, err := Open(t.Context(), s.conn, ClientOptions{})
				require.ErrorIs(t, err, &nnrp.Error{Code: c.code})
				require.True(t, asError(err).Fatal)
				if name == "busy" {
					require.EqualValues(t, 1500, asError(err).RetryAfterMs)
				}
				require.Error(t, <-s.err)
				require.Zero(t, s.e.ended)
			})
		})
	}
}

// narrowConn takes a while for what is behind the first 4 KiB of a write.
type narrowConn struct {
	*memConn
	wait time.Duration
}

type narrowStream struct {
	SendStream
	wait time.Duration
}

func (c narrowConn) OpenSend(ctx context.Context) (SendStream, error) {
	w, err := c.memConn.OpenSend(ctx)
	return narrowStream{w, c.wait}, err
}

func (s narrowStream) Write(b []byte) (int, error) {
	first := min(len(b), 4096)
	n, err := s.SendStream.Write(b[:first])
	if err != nil || first == len(b) {
		return n, err
	}
	time.Sleep(s.wait) // of the bubble's clock
	n, err = s.SendStream.Write(b[first:])
	return first + n, err
}

// TestSlowPath: a frame takes its time on a slow path while it is of use, and not longer.
func TestSlowPath(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, &engine{instant: true}, Policy{})
		c, err := Open(t.Context(), narrowConn{s.conn, 15 * time.Second}, ClientOptions{})
		require.NoError(t, err)
		large := strings.Repeat("x", 8192)
		submit(t, c, large, nnrp.ClassKeyframe, 30_000)
		o := nextOf(t, c)
		require.Equal(t, Delivered, o.State)
		require.GreaterOrEqual(t, o.Took, 15*time.Second)
		o.Release()
		submit(t, c, large, nnrp.ClassKeyframe, 5_000)
		o = nextOf(t, c)
		require.Equal(t, Expired, o.State)
		require.Less(t, o.Took, 6*time.Second)
		s.end(t, c)
	})
}

// TestWrites: a small message is one write, so that its head takes no packet of its own; a large one is not copied.
func TestWrites(t *testing.T) {
	for _, x := range []struct{ payload, writes int }{{0, 1}, {8 << 10, 1}, {60 << 10, 1}, {joinMost, 2}, {1 << 20, 2}} {
		w := &countingStream{}
		require.NoError(t, writeStream(t.Context(), w, [][]byte{make([]byte, 140), make([]byte, x.payload)}))
		require.Equal(t, x.writes, w.writes, "%d bytes", x.payload)
		require.Equal(t, 140+x.payload, w.bytes)
		require.True(t, w.closed)
	}
}

type countingStream struct {
	SendStream
	writes, bytes int
	closed        bool
}

func (s *countingStream) Write(b []byte) (int, error) {
	s.writes++
	s.bytes += len(b)
	return len(b), nil
}
func (s *countingStream) Close() error { s.closed = true; return nil }
