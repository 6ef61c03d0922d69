package shm

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// Two threads, Dekker's way: in each round each stores its own word and then loads the other's. Without StoreBarrier both can miss
// the other's store (a thousand of these rounds do on amd64).
func TestStoreBarrier(t *testing.T) {
	testenv.Watchdog(t, time.Minute)
	const rounds = 20000
	var word, saw [2][rounds]byte
	var pos [2]atomic.Int64
	run := func(me int) {
		for i := range rounds {
			pos[me].Store(int64(i) + 1)
			for n := 0; pos[1-me].Load() <= int64(i); n++ {
				if n > 1000 {
					runtime.Gosched()
				}
				Pause()
			}
			storeThenLoad(&word[me][i], &word[1-me][i], &saw[me][i])
		}
	}
	var wg sync.WaitGroup
	wg.Go(func() { run(0) })
	wg.Go(func() { run(1) })
	wg.Wait()
	for i := range rounds {
		if saw[0][i] == 0 && saw[1][i] == 0 {
			t.Fatalf("round %d: both stores came after both loads", i)
		}
	}
}

// storeThenLoad races on purpose.
//
//go:norace
//go:noinline
func storeThenLoad(mine, other, saw *byte) {
	*mine = 1
	StoreBarrier()
	*saw = *other
}

// A prefetch is a hint: of nothing, of a part of a line, and beyond a mapping that is gone.
func TestPrefetchWrite(t *testing.T) {
	b, err := unix.Mmap(-1, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	b[5000] = 7
	PrefetchWrite(nil)
	PrefetchWrite(b[4095:4097])
	PrefetchWrite(b)
	require.Equal(t, byte(7), b[5000])
	require.NoError(t, unix.Munmap(b[:8192]))
	PrefetchWrite(b)
}
