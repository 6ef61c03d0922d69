package cudavmm

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"unsafe"

	"github.com/ebitengine/purego"
)

// libraries are the names that libcuda goes by: with the driver installed the first is on the loader's path, in containers
// and on Jetson it may only be found by its full path.
var libraries = []string{
	"libcuda.so.1",
	"/usr/lib/x86_64-linux-gnu/libcuda.so.1",
	"/usr/lib/aarch64-linux-gnu/libcuda.so.1",
	"/usr/lib64/libcuda.so.1",
	"/usr/local/nvidia/lib64/libcuda.so.1",
	"/usr/lib/wsl/lib/libcuda.so.1",
}

var loaded struct {
	sync.Once
	driver *Driver
	err    error
	done   atomic.Bool // driver and err stand
}

// Open loads the CUDA driver and initialises it, once for the process; the library stays loaded.
// The error is an ErrUnavailable that says what is missing.
func Open() (*Driver, error) {
	loaded.Do(func() {
		defer loaded.done.Store(true)
		a, err := load(libraries)
		if err != nil {
			loaded.err = fmt.Errorf("%w: %w", ErrUnavailable, err)
			return
		}
		loaded.driver, loaded.err = newDriver(a)
	})
	return loaded.driver, loaded.err
}

// InUse says whether this process has the GPU open, so that opening it again takes no time.
func InUse(ordinal int) bool {
	if !loaded.done.Load() || loaded.driver == nil {
		return false
	}
	d := loaded.driver
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.devices[ordinal] != nil
}

func load(libraries []string) (*api, error) {
	runtime.LockOSThread() // dlerror answers the thread that has called dlopen
	defer runtime.UnlockOSThread()
	var handle uintptr
	var first error
	for _, name := range libraries {
		h, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_GLOBAL)
		if err == nil {
			handle = h
			break
		}
		if first == nil {
			if first = err; err.Error() == "" {
				first = fmt.Errorf("%s cannot be opened", name)
			}
		}
	}
	if handle == 0 {
		return nil, fmt.Errorf("no NVIDIA driver: %w", first)
	}
	a := &api{}
	find := func(name string) uintptr {
		p, err := purego.Dlsym(handle, name)
		if err != nil {
			return 0
		}
		return p
	}
	if err := a.bind(find, register); err != nil {
		_ = purego.Dlclose(handle)
		return nil, err
	}
	return a, nil
}

// register makes the Go function of a driver function. purego's generic way goes through reflection and allocates, so the
// functions that are called for every frame are made by hand.
func register(field any, address uintptr) {
	switch f := field.(type) {
	case *func(uintptr) result: // cuCtxSetCurrent, cuStreamSynchronize, cuStreamQuery, cuEvent…
		*f = func(h uintptr) result { return call(address, h, 0, 0) }
	case *func(uintptr, uintptr) result: // cuEventRecord
		*f = func(a, b uintptr) result { return call(address, a, b, 0) }
	case *func(uintptr, uintptr, uint32) result: // cuStreamWaitEvent
		*f = func(stream, event uintptr, flags uint32) result { return call(address, stream, event, uintptr(flags)) }
	case *func(*copy2D, uintptr) result: // cuMemcpy2DAsync; the Stream that the copy2D is of holds it
		*f = func(c *copy2D, stream uintptr) result { return call(address, uintptr(unsafe.Pointer(c)), stream, 0) }
	case *func(*uint64, *[64]byte, uint32) result: // cuIpcOpenMemHandle
		*f = func(ptr *uint64, handle *[64]byte, flags uint32) result {
			return result(callWithHandle(address, uintptr(unsafe.Pointer(ptr)), handle, uintptr(flags)))
		}
	case *func(*uintptr, *[64]byte) result: // cuIpcOpenEventHandle
		*f = func(event *uintptr, handle *[64]byte) result {
			return result(callWithHandle(address, uintptr(unsafe.Pointer(event)), handle, 0))
		}
	default:
		purego.RegisterFunc(field, address)
	}
}

// callWithHandle calls f(out, handle, flags), whose handle is a struct of 64 bytes passed by value: on amd64 it lies on the stack and does
// not count among the six arguments in registers, on arm64 a pointer to a copy goes in its place. A function without flags does not look
// at them.
func callWithHandle(address, out uintptr, handle *[64]byte, flags uintptr) uintptr {
	if runtime.GOARCH == "arm64" {
		own := *handle
		r, _, _ := purego.SyscallN(address, out, uintptr(unsafe.Pointer(&own)), flags)
		return r
	}
	h := (*[8]uintptr)(unsafe.Pointer(handle))
	r, _, _ := purego.SyscallN(address, out, flags, 0, 0, 0, 0, h[0], h[1], h[2], h[3], h[4], h[5], h[6], h[7])
	return r
}

// newDriver initialises the driver and counts its devices.
func newDriver(a *api) (*Driver, error) {
	d := &Driver{api: a, devices: map[int]*Device{}}
	if err := d.check("cuInit", a.init(0)); err != nil {
		return nil, fmt.Errorf("%w: %w%s", ErrUnavailable, err, initHint(err))
	}
	var n int32
	if err := d.check("cuDeviceGetCount", a.deviceGetCount(&n)); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	if n < 1 {
		return nil, fmt.Errorf("%w: the driver reports no GPU", ErrUnavailable)
	}
	d.count = int(n)
	return d, nil
}

// initHint adds what the driver's code leaves open.
func initHint(err error) string {
	var e *Error
	if !errors.As(err, &e) {
		return ""
	}
	switch e.Code {
	case codeNoDevice:
		return " (no GPU is visible: is CUDA_VISIBLE_DEVICES set, was the container given a GPU?)"
	case codeSystemNotReady:
		return " (is the fabric manager running?)"
	case 803: // CUDA_ERROR_SYSTEM_DRIVER_MISMATCH
		return " (libcuda and the kernel module are of different versions)"
	case 999: // CUDA_ERROR_UNKNOWN
		return " (is /dev/nvidia-uvm there and open to this user?)"
	}
	return ""
}
