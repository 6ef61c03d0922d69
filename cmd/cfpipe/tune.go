package main

import (
	"os"
	"runtime"
	"runtime/debug"
)

// tuneForPackets sets the runtime up for a process that moves the packets of one camera. What the environment says wins.
//
// The heap is kept small: what lives is some hundred kilobytes, so collecting early costs nothing, and the limit gives back
// what a burst has taken. One processor is enough, and with a second one idle the runtime's monitor would watch every sleep in
// the ring for 10 ms in steps of 20 µs, which costs more than all of the work.
func tuneForPackets() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(24 << 20)
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(1)
	}
}
