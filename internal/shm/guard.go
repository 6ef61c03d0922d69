package shm

import (
	"fmt"
	"runtime"
	"runtime/debug"
)

// Guard runs f, which reads or writes mapped memory, and returns ErrFault when the memory behind the mapping is gone: the owner of
// a file in /dev/shm can truncate it at any time. Any other panic goes on. f must not hold locks that it releases without defer,
// and must not start goroutines that touch the memory.
func Guard(f func()) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		// Only memory faults outside the null page carry an address: nil dereferences and index errors of ours stay panics.
		fault, ok := r.(interface {
			runtime.Error
			Addr() uintptr
		})
		if !ok {
			panic(r)
		}
		err = fmt.Errorf("%w at %#x", ErrFault, fault.Addr())
	}()
	f()
	return nil
}
