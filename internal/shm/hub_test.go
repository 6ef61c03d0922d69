package shm

import (
	"context"
	"errors"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// hubs runs a test on hubs that share threads, do not, and do both.
func hubs(t *testing.T, f func(t *testing.T, h *Hub)) {
	t.Run("waitv", func(t *testing.T) {
		if !hasWaitv() {
			t.Skip("this kernel has no futex_waitv")
		}
		testenv.CheckLeaks(t)
		f(t, &Hub{own: ownThreads})
	})
	t.Run("some with a thread of their own", func(t *testing.T) {
		testenv.CheckLeaks(t)
		f(t, &Hub{})
	})
	t.Run("thread each", func(t *testing.T) {
		testenv.CheckLeaks(t)
		f(t, &Hub{probed: true, noWaitv: true})
	})
}

// words returns n futexes in shared memory, as two mappings of it see them: the publisher's and the reader's.
func words(t *testing.T, n int) (w, r []*uint32) {
	t.Helper()
	name := unique(t)
	seg, err := CreateLocked(name, 64*n, CreateOptions{})
	require.NoError(t, err)
	ro, err := Open(name, OpenOptions{ReadOnly: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, errors.Join(seg.Close(), ro.Close())) })
	for i := range n {
		w = append(w, (*uint32)(unsafe.Pointer(&seg.Bytes()[64*i])))
		r = append(r, (*uint32)(unsafe.Pointer(&ro.Bytes()[64*i])))
	}
	return w, r
}

func TestHubServesMany(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	hubs(t, func(t *testing.T, h *Hub) {
		const n, steps = 300, 50 // three threads of futex_waitv
		w, r := words(t, n)
		var wg sync.WaitGroup
		token := make([]chan struct{}, n) // one step at a time: every wake is needed
		for i := range n {
			token[i] = make(chan struct{}, 1)
			wg.Go(func() {
				x := h.Register(r[i])
				defer x.Close()
				for val := uint32(0); val < steps; {
					if err := x.Wait(t.Context(), val, 0); err != nil {
						t.Error(err)
						return
					}
					if now := atomic.LoadUint32(r[i]); now != val {
						val = now
						token[i] <- struct{}{}
					}
				}
			})
		}
		for range steps {
			for i := range n {
				atomic.AddUint32(w[i], 1)
				FutexWake(w[i])
			}
			for i := range n {
				<-token[i]
			}
		}
		wg.Wait()
	})
}

// lastError repeats f until it ends with an error.
func lastError(f func() error) error {
	for {
		if err := f(); err != nil {
			return err
		}
	}
}

// untilChanged waits, through wakes that were meant for others, until the word is not val any more.
func untilChanged(t *testing.T, w FutexWaiter, word *uint32, val uint32) {
	t.Helper()
	for atomic.LoadUint32(word) == val {
		require.NoError(t, w.Wait(t.Context(), val, 0))
	}
}

func TestHubWaitEnds(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	hubs(t, func(t *testing.T, h *Hub) {
		w, r := words(t, 1)
		x := h.Register(r[0])
		require.NoError(t, x.Wait(t.Context(), 7, 0), "differs already")
		require.ErrorIs(t, lastError(func() error { return x.Wait(t.Context(), 0, time.Millisecond) }), ErrTimeout)
		require.ErrorIs(t, x.Wait(t.Context(), 0, time.Millisecond), os.ErrDeadlineExceeded)

		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(5*time.Millisecond, cancel)
		require.ErrorIs(t, lastError(func() error { return x.Wait(ctx, 0, 0) }), context.Canceled)

		time.AfterFunc(5*time.Millisecond, x.Close)
		require.ErrorIs(t, lastError(func() error { return x.Wait(t.Context(), 0, 0) }), ErrClosed)
		x.Close()

		// A new waiter on the same word is served, also when the old one's thread has just gone.
		y := h.Register(r[0])
		woken := make(chan struct{})
		time.AfterFunc(5*time.Millisecond, func() { atomic.StoreUint32(w[0], 1); FutexWake(w[0]); close(woken) })
		untilChanged(t, y, r[0], 0)
		<-woken
		y.Close()
	})
}

// Truncating one file fails its own waiter and leaves the others served.
func TestHubFault(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	hubs(t, func(t *testing.T, h *Hub) {
		w, r := words(t, 1)
		good := h.Register(r[0])
		defer good.Close()

		name := unique(t)
		seg, err := CreateLocked(name, 8192, CreateOptions{})
		require.NoError(t, err)
		defer seg.Close()
		word := (*uint32)(unsafe.Pointer(&seg.Bytes()[4096]))
		bad := h.Register(word)
		defer bad.Close()
		require.NoError(t, os.Truncate(Dir+"/"+name, 100))
		require.ErrorIs(t, lastError(func() error { return bad.Wait(t.Context(), 0, time.Second) }), ErrFault)

		for i := range uint32(100) {
			var wg sync.WaitGroup
			wg.Go(func() { atomic.AddUint32(w[0], 1); FutexWake(w[0]) })
			untilChanged(t, good, r[0], i)
			wg.Wait()
		}
	})
}

// A word that vanished under the sleeping thread: the kernel finds it when the list is taken anew.
func TestHubFaultFoundByTheKernel(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	testenv.CheckLeaks(t)
	name := unique(t)
	seg, err := CreateLocked(name, 8192, CreateOptions{})
	require.NoError(t, err)
	defer seg.Close()
	require.False(t, faulty((*uint32)(unsafe.Pointer(&seg.Bytes()[4096]))))
	require.NoError(t, os.Truncate(Dir+"/"+name, 100))
	require.True(t, faulty((*uint32)(unsafe.Pointer(&seg.Bytes()[4096]))))
	_, err = waitv([]futexWaitv{waitOn((*uint32)(unsafe.Pointer(&seg.Bytes()[4096])), 0)})
	require.ErrorIs(t, err, ErrFault)
}

func TestHubWaitDoesNotAllocate(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	testenv.CheckLeaks(t)
	_, r := words(t, 1)
	x := (&Hub{own: ownThreads}).Register(r[0])
	defer x.Close()
	ctx := t.Context()
	_ = x.Wait(ctx, 0, time.Microsecond)
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = x.Wait(ctx, 0, time.Microsecond) }))
}

// Waiters come and go while others are being served.
func TestHubChurn(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	hubs(t, func(t *testing.T, h *Hub) {
		w, r := words(t, 16)
		stop := make(chan struct{})
		var writers, readers sync.WaitGroup
		writers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				for i := range w {
					atomic.AddUint32(w[i], 1)
					FutexWake(w[i])
				}
			}
		})
		for i := range r {
			readers.Go(func() {
				for range 100 {
					x := h.Register(r[i])
					for range 3 {
						if err := x.Wait(t.Context(), atomic.LoadUint32(r[i]), 10*time.Second); err != nil {
							t.Error(err)
						}
					}
					x.Close()
				}
			})
		}
		readers.Wait()
		close(stop)
		writers.Wait()
	})
}
