package framering

import (
	"syscall"
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
			before := cpuTime(t)
			for range 50 { // announcements without a frame cost their bound at most, and wake nobody for good
				w.Announce()
				select {
				case err := <-failed:
					t.Fatal("there was no frame: ", err)
				case <-time.After(2 * time.Millisecond):
				}
			}
			require.Less(t, cpuTime(t)-before, 80*time.Millisecond, "of 100 ms and more that have passed")
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

// cpuTime is what this process has used.
func cpuTime(t testing.TB) time.Duration {
	t.Helper()
	var u syscall.Rusage
	require.NoError(t, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
