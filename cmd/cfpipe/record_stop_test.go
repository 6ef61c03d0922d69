package main

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/pipeline"
)

// A recording whose disk hangs is waited for when it is to stop, and not for ever.
func TestRecordStopsThoughDiskHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		answers := make(chan struct{})
		hangs := func() error { <-answers; return errors.New("late") }
		begun := time.Now()
		time.AfterFunc(time.Hour, stop)
		require.ErrorContains(t, outwaited(ctx, "record door", hangs), "record door does not stop within 20s")
		require.Equal(t, time.Hour+pipeline.StopTimeout, time.Since(begun))
		require.ErrorContains(t, outwaited(ctx, "record door", func() error { time.Sleep(time.Second); return errors.New("its own") }), "its own")
		close(answers)
	})
}
