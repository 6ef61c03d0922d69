package shm

import (
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// The two calls below are known to block. The scheduler takes their thread's processor back at once, and whoever was made runnable before
// runs on it. In an ordinary system call the thread keeps it: until the runtime's monitor takes it away, for which it looks some 50 times,
// 20 µs apart. For the reader of one camera that monitor was most of the work of waiting, and a goroutine that was just woken had to be
// stolen by another thread.
//
// Pointers become numbers only where the goroutine can neither be preempted nor its stack moved.

//go:nosplit
func blockingFutexWait(addr *uint32, val uint32, timeout *unix.Timespec) unix.Errno {
	entersyscallblock()
	_, _, errno := unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(addr)), futexWait, uintptr(val), uintptr(unsafe.Pointer(timeout)), 0, 0)
	exitsyscall()
	runtime.KeepAlive(timeout)
	return errno
}

//go:nosplit
func blockingFutexWaitv(w *futexWaitv, n int) (int, unix.Errno) {
	entersyscallblock()
	i, _, errno := unix.RawSyscall6(unix.SYS_FUTEX_WAITV, uintptr(unsafe.Pointer(w)), uintptr(n), 0, 0, 0, 0)
	exitsyscall()
	runtime.KeepAlive(w)
	return int(i), errno
}

// entersyscallblock is internal to the runtime, but promised to stay: go.dev/issue/67401.
//
//go:linkname entersyscallblock runtime.entersyscallblock
func entersyscallblock()

//go:linkname exitsyscall runtime.exitsyscall
func exitsyscall()
