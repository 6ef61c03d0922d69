package site

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/pipeline/trigger"
)

// A result that has waited for a recorder that hangs makes no event any more; of those that wait, the newest counts.
func TestRulerDropsOldResults(t *testing.T) {
	testenv.Watchdog(t, 30*time.Second)
	testenv.CheckLeaks(t)
	dir, err := os.MkdirTemp("", "cf")
	require.NoError(t, err)
	defer os.RemoveAll(dir)
	asked := make(chan string, 10)
	server, err := trigger.Listen(trigger.ListenOptions{RuntimeDir: dir, Key: "door", Handle: func(r trigger.Request, _ time.Time) trigger.Answer {
		asked <- r.Reason
		return trigger.Answer{Key: "door", State: trigger.Started}
	}})
	require.NoError(t, err)
	defer server.Close()
	r := &ruler{
		spec: spec{RuntimeDir: dir, Key: "door", Infer: &Infer{Trigger: &Rule{Output: "person"}}}, log: slog.New(slog.DiscardHandler),
		seen: make(chan sighting, 1),
	}
	start := func() (stop func()) {
		ctx, cancel := context.WithCancel(context.Background())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			r.run(ctx)
		}()
		return func() { cancel(); <-ended }
	}
	r.seen <- sighting{1, time.Now().Add(-5500 * time.Millisecond)}
	stop := start()
	testenv.Eventually(t, 10*time.Second, func() error {
		if len(r.seen) > 0 {
			return context.DeadlineExceeded
		}
		return nil
	})
	r.saw(2)
	require.Equal(t, "person 2", <-asked, "the old one was dropped")
	stop()
	r.saw(3)
	r.saw(4)
	stop = start()
	require.Equal(t, "person 4", <-asked)
	stop()
	require.Empty(t, asked)
}
