package framering

import (
	"errors"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// The publisher's own look at its newest frame: none before there is one, and nobody waits for it but the memory.
func TestNewest(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 20*time.Second)
	dir, key := place(t)
	memory := &slotsInMemfds{}
	p, err := NewPublisher(PublisherOptions{RuntimeDir: dir, Key: key})
	require.NoError(t, err)
	_, err = p.Newest()
	require.ErrorIs(t, err, ErrNotFound, "a publisher without frames")
	o := FrameOptions{Meta: smallMeta(t, 64), Memory: memory, Policy: StrictWait, AckTimeout: time.Minute}
	w, err := p.StartFrames(o)
	require.NoError(t, err)
	_, err = p.Newest()
	require.ErrorIs(t, err, ErrNotFound, "no frame yet")

	buf := make([]byte, o.Meta.FrameSize)
	for range 10 {
		seq := put(t, w)
		f, err := p.Newest()
		require.NoError(t, err)
		require.Equal(t, seq, f.Seq)
		require.EqualValues(t, seq*40e6, f.PTS)
		require.Equal(t, o.Meta, f.Meta())
		require.NoError(t, f.WaitOn(0))
		require.NoError(t, f.CopyTo(buf))
		require.NoError(t, f.Release())
		have, err := uniform(buf)
		require.NoError(t, err)
		require.Equal(t, seq, have)
	}
	require.Empty(t, p.Subscribers())

	f, err := p.Newest()
	require.NoError(t, err)
	for range DefaultRingSize - 1 { // nobody owes an ACK, so that StrictWait does not wait
		put(t, w)
	}
	require.NoError(t, f.Check())
	put(t, w)
	require.ErrorIs(t, f.CopyTo(buf), ErrFrameOverrun)
	require.ErrorIs(t, f.Release(), ErrFrameOverrun)

	// While the only slot is written there is no whole frame.
	o.RingSize = 1
	held, err := p.Newest()
	require.NoError(t, err)
	w, err = p.StartFrames(o)
	require.NoError(t, err)
	require.EqualValues(t, DefaultRingSize+1, memory.live.Load(), "the frame that is held keeps its generation's memory")
	require.NoError(t, held.Release())
	require.EqualValues(t, 1, memory.live.Load())
	_, err = p.Newest()
	require.ErrorIs(t, err, ErrNotFound, "a new generation, no frame yet")
	seq := put(t, w)
	slot, err := w.Acquire(t.Context())
	require.NoError(t, err)
	_, err = p.Newest()
	require.ErrorIs(t, err, ErrNotFound)
	fill(slot.Buffer.Bytes(), slot.Seq)
	_, err = w.Publish(1)
	require.NoError(t, err)
	f, err = p.Newest()
	require.NoError(t, err)
	require.Equal(t, seq+1, f.Seq)

	closed := make(chan error, 1)
	go func() { closed <- p.Close(ReasonNormal) }()
	testenv.Eventually(t, 5*time.Second, func() error {
		if f, err := p.Newest(); !errors.Is(err, os.ErrClosed) {
			return errors.Join(errors.New("not closing yet"), f.Release())
		}
		return nil
	})
	require.Empty(t, closed, "the memory is in use")
	require.NoError(t, f.Release())
	require.NoError(t, <-closed)
	require.Zero(t, memory.live.Load())
}

// A writer at full speed, generations in between, and many who look: what passes the check is never torn.
func TestNewestBesideTheWriter(t *testing.T) {
	testenv.CheckLeaks(t)
	testenv.Watchdog(t, 60*time.Second)
	dir, key := place(t)
	memory := &slotsInMemfds{}
	p, w := publishFrames(t, dir, key, FrameOptions{Meta: smallMeta(t, 64), Memory: memory, RingSize: 2})
	stop := make(chan struct{})
	var wg sync.WaitGroup
	var whole [4]int
	for i := range whole {
		wg.Go(func() {
			buf := make([]byte, 16<<10)
			for last := uint64(0); ; {
				select {
				case <-stop:
					return
				default:
				}
				f, err := p.Newest()
				if errors.Is(err, ErrNotFound) {
					continue
				}
				if err != nil {
					t.Error(err)
					return
				}
				n := f.Meta().FrameSize
				err = f.CopyTo(buf)
				if err = errors.Join(err, f.Release()); errors.Is(err, ErrFrameOverrun) {
					continue
				}
				seq, uerr := uniform(buf[:n])
				if err = errors.Join(err, uerr); err != nil || seq != f.Seq || seq < last {
					t.Errorf("frame %d after %d holds %d: %v", f.Seq, last, seq, err)
					return
				}
				last = seq
				whole[i]++
			}
		})
	}
	for i := range 4000 {
		if i%500 == 499 {
			var err error
			w, err = p.StartFrames(FrameOptions{Meta: smallMeta(t, 64+i%3*64), Memory: memory, RingSize: 1 + i%2})
			require.NoError(t, err)
		}
		put(t, w)
	}
	testenv.Eventually(t, 10*time.Second, func() error { // the last frame stands still
		put(t, w)
		time.Sleep(10 * time.Millisecond)
		f, err := p.Newest()
		if err == nil {
			err = f.Release()
		}
		return err
	})
	close(stop)
	wg.Wait()
	for _, n := range whole {
		require.Positive(t, n)
	}
}
