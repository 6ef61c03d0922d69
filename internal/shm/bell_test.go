package shm

import (
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

func TestBell(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	var word uint32
	var b Bell
	b.Ring() // for nobody
	const n, steps = 8, 200
	var wg sync.WaitGroup
	var behind sync.WaitGroup // readers that have not seen the step
	for range n {
		w := b.Register(&word)
		wg.Go(func() {
			defer w.Close()
			for seen := uint32(0); seen < steps; {
				if err := w.Wait(t.Context(), seen, 0); err != nil {
					t.Error(err)
					return
				}
				if now := atomic.LoadUint32(&word); now != seen {
					seen = now
					behind.Done()
				}
			}
		})
	}
	for range steps {
		behind.Add(n)
		atomic.AddUint32(&word, 1)
		b.Ring()
		behind.Wait()
	}
	wg.Wait()
	require.Empty(t, *b.waiters.Load())

	w := b.Register(&word)
	other := b.Register(&word)
	defer other.Close()
	require.ErrorIs(t, lastError(func() error { return w.Wait(t.Context(), steps, time.Millisecond) }), ErrTimeout)
	require.Zero(t, testing.AllocsPerRun(100, b.Ring))
	closed := make(chan struct{})
	time.AfterFunc(5*time.Millisecond, func() { w.Close(); close(closed) })
	require.ErrorIs(t, lastError(func() error { return w.Wait(t.Context(), steps, 0) }), ErrClosed)
	<-closed
	w.Close()
	require.Len(t, *b.waiters.Load(), 1, "the other one stays")
}

// Waiters come and go while the bell rings.
func TestBellChurn(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	var word uint32
	var b Bell
	stop := make(chan struct{})
	var ringer, readers sync.WaitGroup
	ringer.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				atomic.AddUint32(&word, 1)
				b.Ring()
			}
		}
	})
	for range 4 {
		readers.Go(func() {
			for range 300 {
				w := b.Register(&word)
				if err := w.Wait(t.Context(), atomic.LoadUint32(&word), 10*time.Second); err != nil {
					t.Error(err)
				}
				w.Close()
			}
		})
	}
	readers.Wait()
	close(stop)
	ringer.Wait()
}
