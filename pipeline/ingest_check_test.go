package pipeline

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/media"
	"github.com/cfpipe/cfpipe/internal/shm"
	"github.com/cfpipe/cfpipe/internal/testenv"
)

// A refused login is tried again slowly from the first time on, and told apart.
func TestIngestLogin(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	refuse := func(context.Context, media.Sink) error { return fmt.Errorf("DESCRIBE: %w", media.ErrLogin) }
	src := &script{conns: []func(context.Context, media.Sink) error{refuse, refuse, refuse}}
	var logs testenv.Log
	in, err := NewIngest(IngestOptions{
		Key: ingestKey(t), RuntimeDir: t.TempDir(), Source: src, Live: true, Backoff: 5 * time.Millisecond,
		Logger: slog.New(slog.NewTextHandler(&logs, nil)),
	})
	require.NoError(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- in.Run(ctx) }()
	testenv.Eventually(t, 20*time.Second, func() error {
		if n := len(src.times()); n < 3 {
			return fmt.Errorf("%d connections", n)
		}
		return nil
	})
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	at := src.times()
	require.GreaterOrEqual(t, at[1].Sub(at[0]), 150*time.Millisecond)
	require.Contains(t, logs.String(), "refuses the login")
	require.NotContains(t, logs.String(), "connection lost")
}

// What cannot work is found before the camera is asked.
func TestIngestChecksFirst(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, o := range []IngestOptions{{Group: "no such group"}, {RuntimeDir: file + "/below"}, {PacketBytes: 4<<30 - 1}} {
		src := &script{}
		if o.RuntimeDir == "" {
			o.RuntimeDir = t.TempDir()
		}
		if free, _, err := shm.Free(); err == nil && free >= int64(o.PacketBytes) && o.PacketBytes > 0 {
			continue // this machine has room for it
		}
		o.Key, o.Source, o.Live = ingestKey(t), src, true
		in, err := NewIngest(o)
		require.NoError(t, err)
		require.Error(t, in.Run(t.Context()))
		require.Empty(t, src.times())
	}
}

// A publisher that is shutting down is waited for; one that lives is not.
func TestIngestTakesOver(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	dir, key := t.TempDir(), ingestKey(t)
	old, err := Publish(PublishOptions{RuntimeDir: dir, Key: key})
	require.NoError(t, err)
	begun := time.Now()
	err = awaitKey(t.Context(), dir, key)
	var taken *KeyTakenError
	require.ErrorAs(t, err, &taken)
	require.EqualValues(t, os.Getpid(), taken.PID)
	require.ErrorIs(t, err, framering.ErrAlreadyExists)
	require.Less(t, time.Since(begun), takeOverPatience)

	done := make(chan error)
	go func() { done <- awaitKey(t.Context(), dir, key) }()
	require.NoError(t, old.Close(framering.ReasonNormal))
	require.NoError(t, <-done)
}

// A file that lies where the key's socket belongs is said before the source is asked, and stays.
func TestIngestKeepsWhatIsNoSocket(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 30*time.Second)
	dir, key, src := t.TempDir(), ingestKey(t), &script{}
	path := framering.SocketPath(dir, key)
	require.NoError(t, os.WriteFile(path, []byte("mine"), 0o600))
	in, err := NewIngest(IngestOptions{Key: key, RuntimeDir: dir, Source: src, Live: true})
	require.NoError(t, err)
	require.ErrorContains(t, in.Run(t.Context()), "is no socket")
	require.Empty(t, src.times())
	mine, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, "mine", string(mine))
}
