package shm

import (
	"errors"
	"fmt"
	"math"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

const (
	futexWait = 0 // FUTEX_WAIT, shared between processes
	futexWake = 1 // FUTEX_WAKE

	futex2U32 = 0x02 // FUTEX2_SIZE_U32, shared between processes
)

// FutexWake wakes everybody who waits on addr, in any process that maps the same file. It works on a read-only mapping. It does not
// block, so the Go scheduler need not know of it.
func FutexWake(addr *uint32) {
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(addr)), futexWake, math.MaxInt32, 0, 0, 0)
}

// FutexWait blocks the calling thread while *addr is val, until a wake, a signal (nil: look again) or the timeout (ErrTimeout;
// 0 = no bound). ErrFault says that the memory is gone.
func FutexWait(addr *uint32, val uint32, timeout time.Duration) error {
	var ts *unix.Timespec
	if timeout > 0 {
		t := unix.NsecToTimespec(int64(timeout))
		ts = &t
	}
	return futexError(blockingFutexWait(addr, val, ts))
}

// Nap blocks the calling thread for d, to which the kernel adds about 50 µs: less than time.Sleep can.
func Nap(d time.Duration) {
	t := unix.NsecToTimespec(int64(d))
	_ = unix.Nanosleep(&t, nil) // a signal ends it early, which does no harm
}

func futexError(errno unix.Errno) error {
	switch errno {
	case 0, unix.EAGAIN, unix.EINTR:
		return nil
	case unix.ETIMEDOUT:
		return ErrTimeout
	case unix.EFAULT:
		return ErrFault
	default:
		return fmt.Errorf("futex: %w", errno)
	}
}

// futexWaitv is struct futex_waitv of the kernel.
type futexWaitv struct {
	val   uint64
	addr  uint64
	flags uint32
	_     uint32
}

var _ [24]byte = [unsafe.Sizeof(futexWaitv{})]byte{}

func waitOn(addr *uint32, val uint32) futexWaitv {
	return futexWaitv{val: uint64(val), addr: uint64(uintptr(unsafe.Pointer(addr))), flags: futex2U32}
}

// waitv blocks until one of the futexes is woken, and returns the index of one that was, or differs from its value (index -1).
func waitv(w []futexWaitv) (int, error) {
	i, errno := blockingFutexWaitv(unsafe.SliceData(w), len(w))
	if errno != 0 {
		return -1, futexError(errno)
	}
	return i, nil
}

// hasWaitv probes for Linux 5.16: an empty list is invalid where the call exists.
func hasWaitv() bool {
	_, _, errno := unix.Syscall6(unix.SYS_FUTEX_WAITV, 0, 0, 0, 0, 0, 0)
	return errno == unix.EINVAL
}

// faulty tells whether the kernel cannot read addr. The value never matches, or the wait ends at once.
func faulty(addr *uint32) bool {
	return errors.Is(FutexWait(addr, 0, time.Nanosecond), ErrFault)
}

// FutexWaitBare is FutexWait without a bound and without telling the scheduler: nothing stands between the kernel's wake and the
// caller, and the garbage collector waits for it. It is the yardstick of benchmarks, in processes that do nothing else.
func FutexWaitBare(addr *uint32, val uint32) {
	_, _, _ = unix.RawSyscall6(unix.SYS_FUTEX, uintptr(unsafe.Pointer(addr)), futexWait, uintptr(val), 0, 0, 0)
}
