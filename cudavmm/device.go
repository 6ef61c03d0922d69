package cudavmm

import (
	"fmt"
	"runtime"
	"strings"
	"sync"
	"unsafe"
)

// Driver is the loaded CUDA driver.
type Driver struct {
	api   *api
	count int

	mu      sync.Mutex
	devices map[int]*Device // opened, by ordinal
}

// UUID names a GPU: the same in every process, container and order of devices.
type UUID [16]byte

func (u UUID) String() string {
	return fmt.Sprintf("GPU-%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}

// DeviceInfo describes a GPU.
type DeviceInfo struct {
	Ordinal      int
	Name         string
	UUID         UUID
	ComputeMajor int
	ComputeMinor int
	Sharing      bool // VMM with POSIX file descriptors: what the frame ring needs
}

func (d *Driver) check(call string, r result) error {
	if r == 0 {
		return nil
	}
	e := &Error{Call: call, Code: int32(r), Name: "unknown error"}
	var p uintptr
	if d.api.getErrorName(r, &p) == 0 && p != 0 {
		e.Name = cString(p)
	}
	return e
}

// cString copies a C string of the driver; its names of errors are short.
func cString(p uintptr) string {
	b := unsafe.Slice(*(**byte)(unsafe.Pointer(&p)), 128)
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

// Version returns the CUDA version that the driver serves, as 1000×major + 10×minor.
func (d *Driver) Version() (int, error) {
	var v int32
	err := d.check("cuDriverGetVersion", d.api.driverGetVersion(&v))
	return int(v), err
}

// Devices describes all GPUs.
func (d *Driver) Devices() ([]DeviceInfo, error) {
	all := make([]DeviceInfo, 0, d.count)
	for i := range d.count {
		info, err := d.info(i)
		if err != nil {
			return nil, err
		}
		all = append(all, info)
	}
	return all, nil
}

func (d *Driver) handle(ordinal int) (int32, error) {
	if ordinal < 0 || ordinal >= d.count {
		return 0, fmt.Errorf("%w: no GPU %d, the driver has %d", ErrUnavailable, ordinal, d.count)
	}
	var dev int32
	err := d.check("cuDeviceGet", d.api.deviceGet(&dev, int32(ordinal)))
	return dev, err
}

func (d *Driver) info(ordinal int) (DeviceInfo, error) {
	info := DeviceInfo{Ordinal: ordinal}
	dev, err := d.handle(ordinal)
	if err != nil {
		return info, err
	}
	var name [128]byte
	if err := d.check("cuDeviceGetName", d.api.deviceGetName(&name[0], int32(len(name)), dev)); err != nil {
		return info, err
	}
	info.Name, _, _ = strings.Cut(string(name[:]), "\x00")
	var uuid [16]byte
	if err := d.check("cuDeviceGetUuid", d.api.deviceGetUUID(&uuid, dev)); err != nil {
		return info, err
	}
	info.UUID = uuid
	var vmm, posix, major, minor int32
	for _, q := range []struct {
		value     *int32
		attribute int32
	}{{&vmm, attributeVMM}, {&posix, attributePosixFD}, {&major, attributeComputeMajor}, {&minor, attributeComputeMinor}} {
		if err := d.check("cuDeviceGetAttribute", d.api.deviceGetAttribute(q.value, q.attribute, dev)); err != nil {
			return info, err
		}
	}
	info.ComputeMajor, info.ComputeMinor, info.Sharing = int(major), int(minor), vmm != 0 && posix != 0
	return info, nil
}

// Device is a GPU's primary context, which all code of the process shares (FFmpeg's decoders, CUDA libraries). It implements
// the frame ring's Memory. Its methods may be called from any goroutine.
type Device struct {
	driver *Driver
	info   DeviceInfo
	dev    int32
	ctx    uintptr
	prop   allocationProp
	grain  int

	uses int // Open calls not yet closed; guarded by driver.mu
}

// OpenDevice is Open and the Driver's Device.
func OpenDevice(ordinal int) (*Device, error) {
	d, err := Open()
	if err != nil {
		return nil, err
	}
	return d.Device(ordinal)
}

// Device retains the primary context of a GPU. Each call needs a Close. Where the context is not active yet it is set to
// block in waits, so that a waiting stream costs no core (FFmpeg sets the same).
func (d *Driver) Device(ordinal int) (*Device, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if v := d.devices[ordinal]; v != nil {
		v.uses++
		return v, nil
	}
	info, err := d.info(ordinal)
	if err != nil {
		return nil, err
	}
	if !info.Sharing {
		return nil, fmt.Errorf("%w: %s (GPU %d) cannot share memory through file descriptors", ErrUnavailable, info.Name, ordinal)
	}
	v := &Device{driver: d, info: info, uses: 1}
	if v.dev, err = d.handle(ordinal); err != nil {
		return nil, err
	}
	v.prop = allocationProp{
		kind: allocationTypePinned, handleTypes: handleTypePosixFD,
		location: location{kind: locationTypeDevice, id: v.dev},
	}
	var flags uint32
	var active int32
	if err := d.check("cuDevicePrimaryCtxGetState", d.api.primaryCtxGetState(v.dev, &flags, &active)); err != nil {
		return nil, err
	}
	if want := flags&^ctxSchedMask | ctxSchedBlockingSync; active == 0 && flags != want {
		if err := d.check("cuDevicePrimaryCtxSetFlags", d.api.primaryCtxSetFlags(v.dev, want)); err != nil {
			return nil, err
		}
	}
	if err := d.check("cuDevicePrimaryCtxRetain", d.api.primaryCtxRetain(&v.ctx, v.dev)); err != nil {
		return nil, err
	}
	var grain uint64
	err = v.do("cuMemGetAllocationGranularity", func() result { return d.api.memGetGranularity(&grain, &v.prop, granularityMinimum) })
	if err == nil && (grain == 0 || grain > 1<<30 || grain&(grain-1) != 0) {
		err = fmt.Errorf("cuMemGetAllocationGranularity: impossible value %d", grain)
	}
	if err != nil {
		d.api.primaryCtxRelease(v.dev)
		return nil, err
	}
	v.grain = int(grain)
	d.devices[ordinal] = v
	return v, nil
}

// hold keeps the context for something that was made in it, until that calls Close: a driver that is asked to destroy a stream or
// memory of a context that is gone crashes, and who made them need not be who opened the device.
func (v *Device) hold() {
	v.driver.mu.Lock()
	defer v.driver.mu.Unlock()
	v.uses++
}

// Close gives the primary context back with the last of the calls that opened the device, and the last of the buffers, streams and
// events that were made in it.
func (v *Device) Close() error {
	d := v.driver
	d.mu.Lock()
	defer d.mu.Unlock()
	if v.uses == 0 {
		return nil
	}
	if v.uses--; v.uses > 0 {
		return nil
	}
	delete(d.devices, v.info.Ordinal)
	return d.check("cuDevicePrimaryCtxRelease", d.api.primaryCtxRelease(v.dev))
}

// Info describes the GPU.
func (v *Device) Info() DeviceInfo { return v.info }

// Kind is KindCUDA.
func (v *Device) Kind() string { return KindCUDA }

// Granularity is the multiple that sizes are rounded up to (2 MiB on most GPUs).
func (v *Device) Granularity() int { return v.grain }

// Context is the primary context (CUcontext), for libraries that share it.
func (v *Device) Context() uintptr { return v.ctx }

// Free returns the GPU's free and total memory in bytes.
func (v *Device) Free() (free, total uint64, err error) {
	err = v.do("cuMemGetInfo", func() result { return v.driver.api.memGetInfo(&free, &total) })
	return free, total, err
}

// With calls f on a thread that has the context current, for libraries that look for it there.
func (v *Device) With(f func()) error {
	return v.do("", func() result { f(); return 0 })
}

// do makes the context current on this thread and calls the driver. A context belongs to a thread, a goroutine does not:
// the two are held together for the length of the call.
func (v *Device) do(call string, f func() result) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if r := v.driver.api.ctxSetCurrent(v.ctx); r != 0 {
		return v.driver.check("cuCtxSetCurrent", r)
	}
	return v.driver.check(call, f())
}
