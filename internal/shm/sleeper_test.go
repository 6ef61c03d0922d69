package shm

import (
	"context"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

func TestSleeper(t *testing.T) {
	testenv.CheckLeaks(t)
	var word uint32
	s := NewSleeper(&word)
	require.NoError(t, s.Wait(t.Context(), 1, 0), "the word has another value")
	require.ErrorIs(t, s.Wait(t.Context(), 0, time.Millisecond), ErrTimeout)

	time.AfterFunc(5*time.Millisecond, func() {
		atomic.StoreUint32(&word, 1)
		FutexWake(&word)
	})
	require.NoError(t, s.Wait(context.Background(), 0, time.Minute))

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Millisecond)
	defer cancel()
	for ctx.Err() == nil { // the end of a context looks like a wake to a sleep in progress
		require.NoError(t, s.Wait(ctx, 1, time.Minute))
	}
	require.ErrorIs(t, s.Wait(ctx, 1, time.Minute), context.DeadlineExceeded)
	require.ErrorIs(t, s.Wait(t.Context(), 1, time.Millisecond), ErrTimeout, "a context of before ends nothing")

	time.AfterFunc(5*time.Millisecond, s.Close)
	for err := error(nil); err == nil; {
		if err = s.Wait(t.Context(), 1, time.Minute); err != nil {
			require.ErrorIs(t, err, ErrClosed)
		}
	}
	s.Close()
	require.ErrorIs(t, s.Wait(t.Context(), 1, time.Minute), ErrClosed)
}

// Contexts that end, and a Close, at the very moment a sleep begins: none is slept through.
func TestSleeperRaces(t *testing.T) {
	testenv.CheckLeaks(t)
	var word uint32
	for i := range 2000 {
		s := NewSleeper(&word)
		ctx, cancel := context.WithCancel(t.Context())
		end := cancel
		if i%2 == 0 {
			end = s.Close
		}
		ended := make(chan struct{})
		go func() { end(); close(ended) }()
		start := time.Now()
		for err := error(nil); err == nil; {
			err = s.Wait(ctx, 0, time.Minute)
		}
		require.Less(t, time.Since(start), 10*time.Second)
		<-ended
		cancel()
		s.Close()
	}
}

// Close returns when the word may be unmapped, also when a context has just ended.
func TestSleeperCloseWaits(t *testing.T) {
	testenv.CheckLeaks(t)
	stacks := make([]byte, 1<<20)
	for range 200 {
		var word uint32
		s := NewSleeper(&word)
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(100*time.Microsecond, cancel)
		require.ErrorIs(t, lastError(func() error { return s.Wait(ctx, 0, time.Minute) }), context.Canceled)
		s.Close()
		require.NotContains(t, string(stacks[:runtime.Stack(stacks, true)]), "wakeWhile")
		s.Close()
	}
}

func TestSleeperDoesNotAllocate(t *testing.T) {
	var word uint32
	s := NewSleeper(&word)
	defer s.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	require.Zero(t, testing.AllocsPerRun(100, func() { _ = s.Wait(ctx, 1, 0) }))
	require.Zero(t, testing.AllocsPerRun(10, func() { _ = s.Wait(ctx, 0, time.Microsecond) }))
}
