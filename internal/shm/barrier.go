package shm

import "unsafe"

// LoadBarrier orders the loads before it, plain copies of memory included, before the loads after it. Go's atomics order
// themselves and give no fence around plain memory, so these are assembly, which the compiler moves nothing across.
//
//go:noescape
func LoadBarrier()

// StoreBarrier orders all loads and stores before it before all loads and stores after it, non-temporal stores (large copies on
// amd64) included.
//
//go:noescape
func StoreBarrier()

// Pause tells the processor that the caller spins.
//
//go:noescape
func Pause()

// PrefetchWrite asks the processor to fetch b's cache lines for writing, and returns at once. It is a hint: memory that is gone
// faults nobody.
func PrefetchWrite(b []byte) {
	if len(b) > 0 {
		p := unsafe.Pointer(unsafe.SliceData(b))
		prefetchWrite(p, int((uintptr(p)%64+uintptr(len(b))+63)/64))
	}
}

//go:noescape
func prefetchWrite(p unsafe.Pointer, lines int)
