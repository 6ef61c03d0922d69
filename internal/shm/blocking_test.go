package shm

import (
	"errors"
	"io"
	"runtime"
	"runtime/debug"
	"runtime/trace"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

var blockingWord uint32 // not on a stack, which may move between waitOn and waitv

// The collector, stacks that grow and shrink, tracebacks of all goroutines and the tracer get along with goroutines in calls that hand
// their processor back.
func TestBlockingCalls(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	defer debug.SetGCPercent(debug.SetGCPercent(1))
	require.NoError(t, trace.Start(io.Discard))
	defer trace.Stop()
	var stop atomic.Bool
	var waiters sync.WaitGroup
	for i := range 8 {
		waiters.Go(func() {
			var word uint32
			for n := 0; !stop.Load(); n++ {
				behind(n%64, func() {
					if i%2 == 0 {
						if err := FutexWait(&word, 0, time.Duration(1+n%5*50_000)); err != nil && !errors.Is(err, ErrTimeout) {
							t.Error(err)
						}
					} else if _, err := waitv([]futexWaitv{waitOn(&blockingWord, 0)}); err != nil {
						t.Error(err)
					}
				})
			}
		})
	}
	stacks := make([]byte, 1<<20)
	for begin := time.Now(); time.Since(begin) < 500*time.Millisecond; {
		runtime.GC()
		runtime.Stack(stacks, true)
		FutexWake(&blockingWord)
	}
	stop.Store(true)
	atomic.StoreUint32(&blockingWord, 1)
	FutexWake(&blockingWord)
	waiters.Wait()
	blockingWord = 0
}

// behind calls f behind n kilobytes of stack.
func behind(n int, f func()) byte {
	var frame [1 << 10]byte
	if n == 0 {
		f()
		return frame[0]
	}
	frame[n] = behind(n-1, f)
	return frame[n/2]
}
