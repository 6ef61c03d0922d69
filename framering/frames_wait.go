package framering

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// Wait says how a reader waits for the next frame.
type Wait int

const (
	WaitShared Wait = iota // as WaitDirect for the first four waiters of the process; one thread for up to 31 of the rest costs them a switch
	WaitDirect             // the reader's own thread waits in the kernel
	WaitBusy               // the reader's thread asks without pause: the lowest latency for the price of a core
)

// Bounds of waiting. A publisher of this project wakes its readers; one that does not is noticed by a wait that ran out although a
// frame had come, and is then looked at often.
const (
	waitWoken   = 200 * time.Millisecond
	waitUnwoken = time.Millisecond
	trustAfter  = 16 // wakes that make a publisher count as one that wakes again

	// announced is how long a reader that was woken ahead of a frame (Announce) looks for it before it sleeps again.
	announced = 100 * time.Microsecond
)

// pause waits until the newest frame is no longer seen.
func (r *FrameReader) pause(ctx context.Context, seen uint64) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-r.ended:
		return fmt.Errorf("frames of %s: %w", r.sub.Key, os.ErrClosed)
	default:
	}
	timeout := waitWoken
	if r.quiet {
		timeout = waitUnwoken
	}
	var err error
	switch {
	case r.wait == WaitBusy:
		err = shm.Guard(func() {
			for i := range 1 << 12 { // then look at ctx and the connection
				if uint32(r.block.hdr.globalSeq.Load()) != uint32(seen) {
					return
				}
				if i&63 == 63 {
					shm.Pause()
				}
			}
		})
	case r.wait == WaitShared && r.sub.doorbell.rung.Load() && !r.quiet:
		err = r.sub.doorbell.await(ctx, timeout)
	default:
		err = r.waiter.Wait(ctx, uint32(seen), timeout)
	}
	switch {
	case errors.Is(err, shm.ErrTimeout):
		var now uint64
		err = shm.Guard(func() { now = r.block.hdr.globalSeq.Load() })
		if r.woken = 0; now != seen { // once may be a frame that came in this very moment
			r.strikes++
			r.quiet = r.quiet || r.strikes >= 2
		}
		return err
	case errors.Is(err, shm.ErrClosed): // by watch; Next sees why
		err = nil
	case err == nil:
		if r.strikes = 0; r.quiet {
			if r.woken++; r.woken >= trustAfter {
				r.quiet, r.woken = false, 0
			}
		}
		err = shm.Guard(func() { r.anticipate(seen) })
	}
	return err
}

// anticipate looks for the frame that a wake has announced: nothing newer than seen is there, and the slot after it is being written.
func (r *FrameReader) anticipate(seen uint64) {
	next := &r.block.slots[(seen+1)%uint64(len(r.slots))]
	for start := time.Now(); r.block.hdr.globalSeq.Load() == seen && next.seq.Load() == invalidSeq && time.Since(start) < announced; {
		for range 16 { // about half a microsecond
			shm.Pause()
		}
	}
}
