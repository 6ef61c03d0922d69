package packetring

import (
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// A reader on the shared thread leaves it while packets come very fast, and is back on it when they no longer do.
func TestDenseStreamIsReadInBursts(t *testing.T) {
	for _, name := range []string{"near", "shared"} {
		t.Run(name, func(t *testing.T) { denseStream(t, waits[name]) })
	}
}

func denseStream(t *testing.T, o ReaderOptions) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	w := create(t, uniqueKey(t), Config{Slots: 1024, DataSize: 1 << 20})
	r := open(t, w.Path(), o)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				publishNext(t, w, 16)
			}
		}
	})
	for !r.wait.dense {
		_, err := r.Next(t.Context())
		require.NoError(t, err)
	}
	for range 1000 { // and reads on
		p, err := r.Next(t.Context())
		require.NoError(t, err)
		require.NoError(t, checkPacket(p))
	}
	close(stop)
	wg.Wait()
	for ok := true; ok; {
		var err error
		_, ok, err = r.TryNext()
		require.NoError(t, err)
	}
	for range 3 {
		wg.Go(func() {
			time.Sleep(2 * denseSpan) // the pause is what is tested
			publishNext(t, w, 16)
		})
		_, err := r.Next(t.Context())
		require.NoError(t, err)
		wg.Wait()
	}
	require.False(t, r.wait.dense)
	require.NotNil(t, r.wait.waiter)
}
