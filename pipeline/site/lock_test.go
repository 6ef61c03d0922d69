package site

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// A second run of a file does not record everything again: it waits for a moment, and ends or takes over.
func TestRunTwice(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	dir := t.TempDir()
	file := filepath.Join(dir, "site.yaml")
	key := fmt.Sprintf("twice-%d", os.Getpid())
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "cameras: {%s: {source: 'rtsp://127.0.0.1:1/none'}}\n", key), 0o600))
	link := filepath.Join(dir, "link.yaml")
	require.NoError(t, os.Symlink(file, link))
	var log testenv.Log
	run := func(file string, handOver time.Duration) (ready chan struct{}, ended chan error, stop func()) {
		ready, ended = make(chan struct{}), make(chan error, 1)
		s, err := New(Options{File: file, RuntimeDir: filepath.Join(dir, "run"), Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Ready: func(*Config) { close(ready) }})
		require.NoError(t, err)
		s.handOver = handOver
		ctx, cancel := context.WithCancel(t.Context())
		go func() { ended <- s.Run(ctx) }()
		return ready, ended, cancel
	}
	ready, first, stop := run(file, handOver)
	<-ready
	_, second, giveUp := run(link, 50*time.Millisecond)
	err := <-second
	giveUp()
	require.ErrorIs(t, err, ErrRunning)
	require.ErrorContains(t, err, fmt.Sprintf("by the process %d: stop that one", os.Getpid()))
	require.Contains(t, log.String(), "waiting for that process to end")

	_, impatient, giveUp := run(file, time.Hour)
	giveUp()
	require.NoError(t, <-impatient, "one that waits can be stopped")

	ready, next, stopNext := run(file, time.Minute)
	select {
	case <-ready:
		t.Fatal("two run at a time")
	case <-time.After(5 * lockPace):
	}
	stop()
	require.NoError(t, <-first)
	<-ready
	stopNext()
	require.NoError(t, <-next)
	left, err := filepath.Glob(filepath.Join(dir, "run", ".site*"))
	require.NoError(t, err)
	require.Empty(t, left)

	// What others have left in its place keeps no site from running.
	s := &Site{o: Options{File: file}, runtimeDir: filepath.Join(dir, "run"), log: slog.New(slog.NewTextHandler(&log, nil))}
	path, err := s.lockPath()
	require.NoError(t, err)
	for name, put := range map[string]func() error{
		"link":   func() error { return os.Symlink(filepath.Join(dir, "victim"), path) },
		"folder": func() error { return os.Mkdir(path, 0o700) },
		"old":    func() error { return os.WriteFile(path, []byte("1234567890123456789012345"), 0o600) },
	} {
		require.NoError(t, put(), name)
		release, err := s.lock(t.Context())
		require.NoError(t, err, name)
		release()
		require.NoError(t, os.RemoveAll(path))
	}
	require.NoFileExists(t, filepath.Join(dir, "victim"))
	require.Contains(t, log.String(), "cannot be told")
}
