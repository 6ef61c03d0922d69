package main

import (
	"os"
	"runtime"
	"runtime/debug"

	"github.com/cfpipe/cfpipe/internal/av"
)

// tuneForPackets sets the runtime up for a process that moves the packets of one camera. What the environment says wins.
//
// The heap is kept small: what lives is some hundred kilobytes, so collecting early costs nothing, and the limit gives back
// what a burst has taken. One processor is enough, and with a second one idle the runtime's monitor would watch every sleep in
// the ring for 10 ms in steps of 20 µs, which costs more than all of the work.
func tuneForPackets() { tune(24<<20, 1) }

// tuneForSite is for a process that moves the packets of n streams. A stream lives in about a megabyte, buffers of its reader and
// its files included. One processor serves some hundred streams of 25 pictures a second; a second one helps only beyond that, and
// a call that blocks (a disk, an FFmpeg decoder) hands its processor on in any case.
func tuneForSite(n int) {
	av.SmallHeap()
	tune(24<<20+int64(n)<<20, min(1+n/150, runtime.NumCPU()))
}

func tune(heap int64, processors int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(heap)
	}
	if os.Getenv("GOMAXPROCS") == "" {
		runtime.GOMAXPROCS(processors)
	}
}
