package pipeline

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/cudavmm"
	"github.com/cfpipe/cfpipe/framering"
	"github.com/cfpipe/cfpipe/internal/testenv"
	"github.com/cfpipe/cfpipe/pipeline/still"
)

// Askers beside a publisher that publishes as fast as it can, begins new generations of other sizes, and is replaced by others: every
// picture is whole, of its own size, and not older than the one before it. There is no GPU in it: frames lie in host memory.
func TestStillsBesideGenerations(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, time.Minute)
	dir, key := place(t)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	var got [3]atomic.Int64
	for i := range got {
		wg.Go(func() {
			var last int64
			for ctx.Err() == nil {
				p, err := still.Ask(ctx, dir, key)
				if err != nil { // between two publishers, or two frames
					continue
				}
				// The number in each pixel is the size's too, so that sizes and pixels of two generations would not fit.
				if p.Height != 16 || p.Width != 64*(1+int(p.Seq)/50%3) || bytes.Count(p.Pixels, []byte{byte(p.Seq)}) != len(p.Pixels) || p.PTS < last {
					t.Errorf("%d×%d, frame %d, pts %d after %d, %d of %d bytes", p.Width, p.Height, p.Seq, p.PTS, last,
						bytes.Count(p.Pixels, []byte{byte(p.Seq)}), len(p.Pixels))
					return
				}
				last = p.PTS
				got[i].Add(1)
			}
		})
	}
	for publisher := range 5 {
		p, err := framering.NewPublisher(framering.PublisherOptions{RuntimeDir: dir, Key: key})
		require.NoError(t, err)
		require.NoError(t, p.Serve())
		s := serveStills(p, nil, slog.New(slog.DiscardHandler))
		require.NotNil(t, s)
		var w *framering.FrameWriter
		for seq := 1; seq < 600; seq++ {
			if w == nil || seq%50 == 0 {
				meta, err := framering.MetaOf(framering.NV12, 64*(1+seq/50%3), 16)
				require.NoError(t, err)
				w, err = p.StartFrames(framering.FrameOptions{Meta: meta, Memory: cudavmm.Host{}, RingSize: 1 + seq/50%4})
				require.NoError(t, err)
			}
			slot, err := w.Acquire(ctx)
			require.NoError(t, err)
			b := slot.Buffer.Bytes()
			for i := range b {
				b[i] = byte(slot.Seq)
			}
			_, err = w.Publish(time.Now().UnixNano())
			require.NoError(t, err)
		}
		before := got[0].Load()
		testenv.Eventually(t, 20*time.Second, func() error { // the last frame stands still
			if got[0].Load() < before+2 {
				return errors.New("nothing is got")
			}
			return nil
		})
		if publisher%2 == 0 { // as when the owner of the publication ends it before its decoder
			require.NoError(t, p.Close(framering.ReasonNormal))
			require.NoError(t, s.Close())
		} else {
			require.NoError(t, s.Close())
			require.NoError(t, p.Close(framering.ReasonNormal))
		}
		require.NoFileExists(t, framering.SnapshotPath(dir, key))
	}
	stop()
	wg.Wait()
	for i := range got {
		require.Positive(t, got[i].Load())
	}
}

// A publisher that has no frame yet says so when it has been waited for; one whose frame is about to come is waited for.
func TestStillsBeforeTheFirstFrame(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 20*time.Second)
	dir, key := place(t)
	p, err := framering.NewPublisher(framering.PublisherOptions{RuntimeDir: dir, Key: key})
	require.NoError(t, err)
	defer p.Close(framering.ReasonNormal)
	require.NoError(t, p.Serve())
	var log testenv.Log
	s := serveStills(p, nil, slog.New(slog.NewTextHandler(&log, nil)))
	require.NotNil(t, s)
	defer s.Close()
	require.Empty(t, log.String())
	require.Nil(t, serveStills(p, nil, slog.New(slog.NewTextHandler(&log, nil))))
	require.Contains(t, log.String(), "there is one already")
	w, err := p.StartFrames(framering.FrameOptions{Meta: framering.NV12Meta(64, 16), Memory: cudavmm.Host{}})
	require.NoError(t, err)
	_, err = still.Ask(t.Context(), dir, key)
	require.ErrorContains(t, err, framering.ErrNotFound.Error())
	require.NotErrorIs(t, err, os.ErrNotExist)
	require.False(t, strings.Contains(err.Error(), "deadline"))
	asked := make(chan error, 1)
	go func() {
		_, err := still.Ask(t.Context(), dir, key)
		asked <- err
	}()
	_, err = w.Acquire(t.Context())
	require.NoError(t, err)
	_, err = w.Publish(1)
	require.NoError(t, err)
	require.NoError(t, <-asked)
	require.NoError(t, (*stills)(nil).Close())
}
