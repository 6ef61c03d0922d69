package packetring

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// A reader near the writer is woken by it, each time in good time, and looks after itself once the writer has gone.
func TestNeighbour(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	key := uniqueKey(t)
	w := create(t, key, Config{})
	r := open(t, w.Path(), ReaderOptions{})
	far := open(t, w.Path(), ReaderOptions{stranger: true})
	require.Same(t, &w.bell, r.wait.near)
	require.Nil(t, far.wait.near)
	for range 100 {
		time.AfterFunc(time.Millisecond, func() { publishNext(t, w, 50) })
		for _, r := range []*Reader{r, far} {
			_, err := r.Next(t.Context())
			require.NoError(t, err)
		}
	}
	require.Zero(t, r.wait.missed, "no sleep ran out while there was something to read")

	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	_, err := r.Next(ctx)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	require.NoError(t, w.Close())
	_, err = r.Next(t.Context())
	require.ErrorIs(t, err, ErrShutdown)
	again := create(t, key, Config{})
	require.Same(t, &again.bell, open(t, again.Path(), ReaderOptions{}).wait.near, "not that of the ring before")
	require.NoError(t, again.Close())
	neighbours.Lock()
	defer neighbours.Unlock()
	for _, bell := range neighbours.bells {
		require.NotSame(t, &again.bell, bell)
	}
}
