package shm

import (
	"time"

	"golang.org/x/sys/unix"
)

// Suspended is for how long the machine has slept since it was started: Go's monotonic clock stands still meanwhile. Only the difference of two calls
// means something.
func Suspended() time.Duration {
	var boot, mono unix.Timespec
	if unix.ClockGettime(unix.CLOCK_MONOTONIC, &mono) != nil || unix.ClockGettime(unix.CLOCK_BOOTTIME, &boot) != nil {
		return 0
	}
	return time.Duration(boot.Nano() - mono.Nano())
}
