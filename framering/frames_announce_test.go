package framering

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/cfpipe/cfpipe/internal/testenv"
)

// A reader that an announcement wakes looks for the frame for a moment, gets it, and sleeps again when it does not come.
func TestAnnounce(t *testing.T) {
	for name, wait := range map[string]Wait{"direct": WaitDirect, "shared": WaitShared} {
		t.Run(name, func(t *testing.T) {
			testenv.CheckLeaks(t)
			testenv.Watchdog(t, 20*time.Second)
			dir, key := place(t)
			_, w := publishFrames(t, dir, key, FrameOptions{RingSize: 4, Meta: smallMeta(t, 64), Memory: &slotsInMemfds{}})
			_, r := readFrames(t, dir, key, NewestOnly, wait)
			w.Announce() // without a slot it does nothing

			next := make(chan Frame, 1)
			failed := make(chan error, 1)
			go func() {
				f, err := r.Next(t.Context())
				failed <- err
				next <- f
			}()
			slot, err := w.Acquire(t.Context())
			require.NoError(t, err)
			for range 50 { // announcements without a frame wake nobody for good
				w.Announce()
				select {
				case err := <-failed:
					t.Fatal("there was no frame: ", err)
				case <-time.After(time.Millisecond):
				}
			}
			fill(slot.Buffer.Bytes(), slot.Seq)
			w.Announce()
			seq, err := w.Publish(7)
			require.NoError(t, err)
			require.NoError(t, <-failed)
			f := <-next
			require.Equal(t, seq, f.Seq)
			require.NoError(t, f.Release())
		})
	}
}

// A reader looks for an announced frame for as long as announced says, and not at all when no slot is being written.
func TestAnticipateIsBounded(t *testing.T) {
	dir, key := place(t)
	_, w := publishFrames(t, dir, key, FrameOptions{RingSize: 4, Meta: smallMeta(t, 64), Memory: &slotsInMemfds{}})
	for range 5 { // every slot has held a frame
		put(t, w)
	}
	_, r := readFrames(t, dir, key, NewestOnly, WaitDirect)
	least := func(f func()) time.Duration { // of several: what else runs here makes single ones longer
		d := time.Hour
		for range 20 {
			start := time.Now()
			f()
			d = min(d, time.Since(start))
		}
		return d
	}
	require.Less(t, least(func() { r.anticipate(5) }), announced/2, "nothing is being written")
	_, err := w.Acquire(t.Context())
	require.NoError(t, err)
	took := least(func() { r.anticipate(5) })
	require.GreaterOrEqual(t, took, announced)
	require.Less(t, took, 3*announced)
	require.Less(t, least(func() { r.anticipate(4) }), announced/2, "a newer frame is there")
	w.Cancel()
}
