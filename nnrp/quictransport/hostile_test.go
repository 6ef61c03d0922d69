package quictransport

import (
	"context"
	"crypto/sha256"
	"crypto/tls"
	"errors"
	"io"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/quic-go/quic-go"
	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/nnrp"
	"github.com/cfpipe/cfpipe/nnrp/session"
)

// TestHostilePeers: thousands of streams, half-open ones, slow ones and garbage on raw connections. Memory stays bounded and a good
// session beside them gets every result.
func TestHostilePeers(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 60*time.Second)
	s := startServer(t, "127.0.0.1:0", nil, session.Policy{})
	good := s.mustOpen(t, s.url())
	exchange(t, good, noise(1000))
	runtime.GC()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)

	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	attack := func(hello bool, f func(*quic.Conn, *quic.Stream)) {
		q, err := quic.DialAddr(ctx, s.l.Addr().String(), &tls.Config{InsecureSkipVerify: true, NextProtos: []string{nnrp.ALPN}},
			&quic.Config{EnableDatagrams: true})
		require.NoError(t, err)
		wg.Go(func() {
			defer func() { _ = q.CloseWithError(0, "") }()
			control, err := q.OpenStreamSync(ctx)
			if err != nil {
				return
			}
			if hello {
				h := nnrp.ClientHello{MinVersionMajor: 1, MaxVersionMajor: 1, SupportedStageBitmap: 1, SupportedProfileBitmap: 1, SupportedPayloadKindBitmap: 1,
					SupportedCodecBitmap: 1, SupportedDTypeBitmap: 0xff, SupportedLayoutBitmap: 3}
				b, _ := h.Append(nil, nnrp.Header{})
				_, _ = control.Write(b)
				_, _ = io.ReadFull(control, make([]byte, nnrp.HeaderLen+nnrp.ServerHelloAckLen))
			}
			f(q, control)
		})
	}
	whole, err := tensor(noise(100)).Append(nil, nnrp.Header{SessionID: 1, FrameID: 1})
	require.NoError(t, err)
	giant := (&nnrp.Header{Type: nnrp.MsgFrameSubmit, MetaLen: 32, BodyLen: nnrp.DefaultMaxBody, SessionID: 1, FrameID: 2}).Append(nil)
	giant = append(giant, whole[nnrp.HeaderLen:nnrp.HeaderLen+32]...)
	streams := func(n int, b []byte) func(*quic.Conn, *quic.Stream) {
		return func(q *quic.Conn, _ *quic.Stream) {
			for range n {
				w, err := q.OpenUniStreamSync(ctx)
				if err != nil {
					return
				}
				_, _ = w.Write(b)
			}
			<-ctx.Done()
		}
	}
	attack(true, streams(10000, whole[:1]))   // half-open
	attack(true, streams(10000, giant))       // much announced, little sent
	attack(true, streams(10000, whole[:200])) // stopped in the body
	attack(true, streams(10000, make([]byte, 64)))
	attack(false, streams(10000, whole))               // no hello
	attack(false, func(_ *quic.Conn, c *quic.Stream) { // slow hello
		for _, b := range whole {
			if _, err := c.Write([]byte{b}); err != nil {
				return
			}
			select {
			case <-ctx.Done():
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	})
	attack(true, func(q *quic.Conn, c *quic.Stream) { // frames without end on one id, results never read
		for id := uint32(1); ctx.Err() == nil; id++ {
			w, err := q.OpenUniStreamSync(ctx)
			if err != nil {
				return
			}
			b, _ := tensor(noise(100)).Append(nil, nnrp.Header{SessionID: 1, FrameID: id})
			_, _ = w.Write(b)
			_ = w.Close()
		}
	})
	attack(true, func(q *quic.Conn, c *quic.Stream) { // pings without end, pongs never read
		b := (&nnrp.Header{Type: nnrp.MsgPing, SessionID: 1}).Append(nil)
		for ctx.Err() == nil {
			if _, err := c.Write(b); err != nil {
				return
			}
		}
	})
	deadline := time.Now().Add(3 * time.Second)
	peak, n := uint64(0), 0
	for time.Now().Before(deadline) {
		exchange(t, good, noise(1000))
		n++
		if n%50 == 0 {
			runtime.ReadMemStats(&after)
			peak = max(peak, after.HeapAlloc)
		}
	}
	t.Logf("%d results beside the attack, heap %d KiB → at most %d KiB", n, before.HeapAlloc>>10, peak>>10)
	require.Greater(t, n, 20)
	require.Less(t, peak, before.HeapAlloc+160<<20)
	cancel()
	wg.Wait()
	require.NoError(t, good.Close(t.Context()))
	testenv.Eventually(t, 10*time.Second, func() error {
		if n := s.h.sessions.Load(); n != 0 {
			return errors.New("sessions are left")
		}
		return nil
	})
}

// TestStoppedReader: a client that takes no outcomes, and one that reads no result streams, block themselves and nobody else; when the
// first goes on, everything is there.
func TestStoppedReader(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 60*time.Second)
	s := startServer(t, "127.0.0.1:0", nil, session.Policy{Concurrent: 8})
	idle, busy := s.mustOpen(t, s.url()), s.mustOpen(t, s.url())
	payload := noise(1 << 20)
	const agreed = 8
	m := tensor(payload)
	m.LatencyBudgetMs = 60000
	for range agreed {
		_, err := idle.Submit(t.Context(), m, session.SubmitOptions{})
		require.NoError(t, err)
	}
	_, err := idle.TrySubmit(t.Context(), m, session.SubmitOptions{})
	require.ErrorIs(t, err, session.ErrFull)
	waiting, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = idle.Submit(waiting, m, session.SubmitOptions{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	for range 20 {
		exchange(t, busy, payload)
	}
	sum := sha256.Sum256(payload)
	for range agreed {
		o, err := idle.Next(t.Context())
		require.NoError(t, err)
		require.Equal(t, session.Delivered, o.State)
		require.Equal(t, sum[:], o.Result.Sections[0].Payload)
		o.Release()
	}
	for range 20 { // and it goes on
		exchange(t, idle, payload)
	}
}
