package main

import (
	"os"
	"runtime/debug"
)

// tuneMemory keeps the heap of a process that moves packets small: what it keeps is some hundred kilobytes, so that the
// collector's usual doubling costs nothing, and the limit gives memory back that a burst has taken. GOGC and GOMEMLIMIT
// in the environment win.
func tuneMemory() {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(50)
	}
	if os.Getenv("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(24 << 20)
	}
}
