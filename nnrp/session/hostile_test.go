package session

import (
	"context"
	"io"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/nnrp"
)

// raw is a client that writes what it likes.
type raw struct {
	t       *testing.T
	conn    *memConn
	control ControlStream
	errs    chan *nnrp.ErrorMessage
	eof     chan struct{}
}

func rawClient(t *testing.T, s *server) *raw {
	r := &raw{t: t, conn: s.conn, errs: make(chan *nnrp.ErrorMessage, 100), eof: make(chan struct{})}
	var err error
	r.control, err = s.conn.OpenControl(t.Context())
	require.NoError(t, err)
	o := ClientOptions{}
	hello := o.hello()
	r.write(r.control, &hello, nnrp.Header{})
	h, _ := r.read()
	require.Equal(t, nnrp.MsgServerHelloAck, h.Type)
	go func() {
		defer close(r.eof)
		for {
			h, m := r.read()
			if m == nil {
				return
			}
			if h.Type == nnrp.MsgError {
				r.errs <- m.(*nnrp.ErrorMessage)
			}
		}
	}()
	return r
}

func (r *raw) write(w io.Writer, m nnrp.Message, h nnrp.Header) {
	b, err := m.Append(nil, h)
	require.NoError(r.t, err)
	_, err = w.Write(b)
	require.NoError(r.t, err)
}

func (r *raw) read() (nnrp.Header, nnrp.Message) {
	buf := make([]byte, nnrp.HeaderLen)
	if _, err := io.ReadFull(r.control, buf); err != nil {
		return nnrp.Header{}, nil
	}
	h, err := nnrp.ParseHeader(buf)
	require.NoError(r.t, err)
	rest := make([]byte, h.Size()-nnrp.HeaderLen)
	_, err = io.ReadFull(r.control, rest)
	require.NoError(r.t, err)
	m := nnrp.NewMessage(h.Type)
	require.NoError(r.t, m.Parse(&h, rest, &nnrp.Limits{}))
	return h, m
}

func (r *raw) stream(b []byte) SendStream {
	w, err := r.conn.OpenSend(r.t.Context())
	require.NoError(r.t, err)
	_, _ = w.Write(b) // the server may hang up in between
	return w
}

func (r *raw) frame(id uint32, m *nnrp.FrameSubmit) []byte {
	b, err := m.Append(nil, nnrp.Header{SessionID: 1, FrameID: id})
	require.NoError(r.t, err)
	return b
}

func TestErrorsStopWhatTheyMust(t *testing.T) {
	good := picture("ok", nnrp.ClassKeyframe, 0)
	for name, c := range map[string]struct {
		do    func(*raw)
		code  nnrp.ErrorCode
		scope nnrp.Scope
		frame uint32
		fatal bool
	}{
		"malformed frame": {func(r *raw) {
			b := r.frame(7, good)
			b[nnrp.HeaderLen+16]++ // profile_block_bytes
			r.stream(b)
		}, nnrp.CodeMalformedBody, nnrp.ScopeFrame, 7, false},
		"frame for another session": {func(r *raw) {
			b, _ := good.Append(nil, nnrp.Header{SessionID: 2, FrameID: 7})
			r.stream(b)
		}, nnrp.CodeInvalidState, nnrp.ScopeSession, 7, false},
		"frame 0": {func(r *raw) { r.stream(r.frame(0, good)) }, nnrp.CodeInvalidState, nnrp.ScopeSession, 0, false},
		"giant body": {func(r *raw) {
			r.stream((&nnrp.Header{Type: nnrp.MsgFrameSubmit, MetaLen: 32, BodyLen: 1<<32 - 1, SessionID: 1, FrameID: 7}).Append(nil))
		}, nnrp.CodeLimitExceeded, nnrp.ScopeSession, 7, false},
		"result by client": {func(r *raw) { b, _ := answerTo(7).Append(nil, nnrp.Header{SessionID: 1, FrameID: 7}); r.stream(b) }, nnrp.CodeInvalidState,
			nnrp.ScopeSession, 7, false},
		"second hello": {func(r *raw) { o := ClientOptions{}; h := o.hello(); r.write(r.control, &h, nnrp.Header{SessionID: 1}) },
			nnrp.CodeInvalidState, nnrp.ScopeSession, 0, false},
		"frame on control": {func(r *raw) { _, _ = r.control.Write(r.frame(7, good)) }, nnrp.CodeInvalidState, nnrp.ScopeSession, 0, false},
		"unknown type": {func(r *raw) { _, _ = r.control.Write((&nnrp.Header{Type: 0x7f, SessionID: 1}).Append(nil)) }, nnrp.CodeUnsupportedCapability,
			nnrp.ScopeSession, 0, false},
		"garbage": {func(r *raw) { _, _ = r.control.Write(make([]byte, nnrp.HeaderLen)) }, nnrp.CodeMalformedHeader,
			nnrp.ScopeConnection, 0, true},
		"version": {func(r *raw) { b := (&nnrp.Header{Type: nnrp.MsgPing}).Append(nil); b[4] = 2; _, _ = r.control.Write(b) },
			nnrp.CodeUnsupportedVersion, nnrp.ScopeConnection, 0, true},
		"giant control": {func(r *raw) {
			_, _ = r.control.Write((&nnrp.Header{Type: nnrp.MsgClose, BodyLen: 1 << 31, SessionID: 1}).Append(nil))
		}, nnrp.CodeLimitExceeded, nnrp.ScopeConnection, 0, true},
		"lone retransmit": {func(r *raw) { r.stream(r.frame(7, picture("x", nnrp.ClassRetransmit, 0))) }, nnrp.CodeInvalidState,
			nnrp.ScopeSession, 7, false},
		"too many tiles": {func(r *raw) {
			m := picture("x", nnrp.ClassDelta, 0)
			m.Tensor.TileWidth = 8
			m.TileIndex.Base = 4
			r.stream(r.frame(7, m))
		}, nnrp.CodeMalformedBody, nnrp.ScopeFrame, 7, false},
		"dtype not agreed": {func(r *raw) { m := picture("x", nnrp.ClassDelta, 0); m.Sections[0].DType = 31; r.stream(r.frame(7, m)) },
			nnrp.CodeUnsupportedCapability, nnrp.ScopeSession, 7, false},
		"patch for session": {func(r *raw) { r.write(r.control, &nnrp.SessionPatch{}, nnrp.Header{SessionID: 9}) }, nnrp.CodeInvalidState,
			nnrp.ScopeSession, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := serve(t, &engine{instant: true}, Policy{})
				r := rawClient(t, s)
				c.do(r)
				e := <-r.errs
				require.Equal(t, c.code, e.Code, "%s", e.Diagnostic)
				require.Equal(t, c.scope, e.Scope)
				require.Equal(t, c.frame, e.FrameID)
				require.Equal(t, c.fatal, e.IsFatal != 0)
				if c.fatal {
					<-r.eof
					_ = s.conn.CloseWithError(0, "")
					require.ErrorIs(t, <-s.err, &nnrp.Error{Code: c.code})
					return
				}
				// The session goes on.
				w := r.stream(r.frame(8, good))
				_ = w.Close()
				res, err := s.conn.AcceptReceive(t.Context())
				require.NoError(t, err)
				b, err := io.ReadAll(res)
				require.NoError(t, err)
				h, m, _, err := nnrp.ParseMessage(b, &nnrp.Limits{})
				require.NoError(t, err)
				require.EqualValues(t, 8, h.FrameID)
				require.Equal(t, "ok", string(m.(*nnrp.ResultPush).Sections[0].Payload))
				_ = s.conn.CloseWithError(0, "")
				require.Error(t, <-s.err)
			})
		})
	}
}

func answerTo(id uint32) *nnrp.ResultPush { return &nnrp.ResultPush{ActiveProfileID: 1} }

// TestTooManyFrames: the frame above the limit is refused, those below go on.
func TestTooManyFrames(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, &engine{}, Policy{Concurrent: 3})
		r := rawClient(t, s)
		for id := uint32(1); id <= 5; id++ {
			_ = r.stream(r.frame(id, picture("x", nnrp.ClassKeyframe, 0))).Close()
			synctest.Wait()
		}
		for id := uint32(4); id <= 5; id++ {
			e := <-r.errs
			require.Equal(t, nnrp.CodeLimitExceeded, e.Code)
			require.Equal(t, id, e.FrameID)
			require.Zero(t, e.IsFatal)
		}
		frames := s.e.take()
		require.Len(t, frames, 3)
		for _, f := range frames {
			f.Drop()
		}
		_ = s.conn.CloseWithError(0, "")
		require.Error(t, <-s.err)
	})
}

// TestSlowPeer: streams that stop in the middle, and a peer that reads nothing, end by time and cost bounded memory.
func TestSlowPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, &engine{instant: true}, Policy{Concurrent: 2})
		r := rawClient(t, s)
		whole := r.frame(9, picture("x", nnrp.ClassKeyframe, 0))
		for _, n := range []int{1, nnrp.HeaderLen, nnrp.HeaderLen + 32, len(whole) - 1} {
			r.stream(whole[:n])
			synctest.Wait()
		}
		giant := &nnrp.Header{Type: nnrp.MsgFrameSubmit, MetaLen: 32, BodyLen: nnrp.DefaultMaxBody, SessionID: 1, FrameID: 20}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		for id := uint32(20); id < 40; id++ {
			giant.FrameID = id
			go func(b []byte) {
				if w, err := r.conn.OpenSend(context.Background()); err == nil {
					_, _ = w.Write(b)
				}
			}(append(giant.Append(nil), whole[nnrp.HeaderLen:nnrp.HeaderLen+32]...))
		}
		synctest.Wait()
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(8<<20), "memory follows what arrived, not what was announced")
		time.Sleep(2 * (headTimeout + bodyTimeout)) // of the bubble's clock
		_ = r.stream(r.frame(50, picture("y", nnrp.ClassKeyframe, 0))).Close()
		res, err := s.conn.AcceptReceive(t.Context())
		require.NoError(t, err)
		b, err := io.ReadAll(res)
		require.NoError(t, err)
		h, _, _, err := nnrp.ParseMessage(b, &nnrp.Limits{})
		require.NoError(t, err)
		require.EqualValues(t, 50, h.FrameID)
		_ = s.conn.CloseWithError(0, "")
		require.Error(t, <-s.err)
	})
}

// TestDeafPeer floods with PING and never reads: the connection ends instead of a queue that grows.
func TestDeafPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, &engine{}, Policy{})
		control, err := s.conn.OpenControl(t.Context())
		require.NoError(t, err)
		o := ClientOptions{}
		hello := o.hello()
		b, err := hello.Append(nil, nnrp.Header{})
		require.NoError(t, err)
		_, err = control.Write(b)
		require.NoError(t, err)
		ping := (&nnrp.Header{Type: nnrp.MsgPing, SessionID: 1}).Append(nil)
		for err == nil {
			_, err = control.Write(ping)
		}
		require.Error(t, <-s.err)
	})
}

// TestSilentPeer says nothing at all.
func TestSilentPeer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := serve(t, &engine{}, Policy{})
		start := time.Now()
		require.Error(t, <-s.err)
		require.Equal(t, handshakeTimeout, time.Since(start))
	})
}
