package cudavmm

import (
	"encoding/binary"
	"fmt"
	"reflect"
	"sync"
	"syscall"
	"testing"
	"unsafe"
)

// fakeDriver models the driver: it counts what is alive, refuses what the real one refuses, and fails the call that it is told to.
type fakeDriver struct {
	mu     sync.Mutex
	next   uint64
	live   map[string]map[uint64]int // kind → handle → references
	ranges map[uint64]uint64         // reserved address → size
	mapped map[uint64]uint64         // address → handle
	access map[uint64]bool
	sizes  map[uint64]uint64 // handle → size
	device map[uint64]int32  // handle → where it lies

	opened     map[[64]byte]bool // IPC handles that are open
	handles    map[uint64][64]byte
	openedSize uint64 // of opened memory

	calls  []string // every call, in order
	failAt int      // the index in calls that fails; -1 = none
	code   result
	misuse []string

	// what Device(…) sees
	gpus       int32
	noVMM      bool
	ctxActive  int32
	ctxFlags   uint32
	importFrom int32 // ordinal that imported memory lies on
	query      int   // StreamQuery answers "not ready" this many times
}

func newFake() *fakeDriver {
	return &fakeDriver{
		next: 0x1000, live: map[string]map[uint64]int{}, ranges: map[uint64]uint64{}, mapped: map[uint64]uint64{},
		access: map[uint64]bool{}, sizes: map[uint64]uint64{}, device: map[uint64]int32{}, failAt: -1, opened: map[[64]byte]bool{},
		handles: map[uint64][64]byte{}, openedSize: 4 << 20, code: 999, gpus: 2,
	}
}

func (f *fakeDriver) add(kind string) uint64 {
	f.next += 0x1000
	if f.live[kind] == nil {
		f.live[kind] = map[uint64]int{}
	}
	f.live[kind][f.next]++
	return f.next
}

func (f *fakeDriver) drop(kind string, h uint64) result {
	if f.live[kind][h] == 0 {
		f.misuse = append(f.misuse, fmt.Sprintf("%s %#x given back twice or never made", kind, h))
		return 1
	}
	if f.live[kind][h]--; f.live[kind][h] == 0 {
		delete(f.live[kind], h)
	}
	return 0
}

// alive lists all that has not been given back.
func (f *fakeDriver) alive() []string {
	var s []string
	for kind, m := range f.live {
		if len(m) > 0 {
			s = append(s, fmt.Sprintf("%d %s", len(m), kind))
		}
	}
	if len(f.ranges) > 0 {
		s = append(s, fmt.Sprintf("%d address ranges", len(f.ranges)))
	}
	if len(f.mapped) > 0 {
		s = append(s, fmt.Sprintf("%d mappings", len(f.mapped)))
	}
	return s
}

// enter records a call and tells whether it fails. Calls that give something back are not failed: what the driver refuses
// to take back cannot be given back by anyone.
func (f *fakeDriver) enter(name string, releases bool) (result, func()) {
	f.mu.Lock()
	f.calls = append(f.calls, name)
	if len(f.calls)-1 == f.failAt && !releases {
		return f.code, f.mu.Unlock
	}
	return 0, f.mu.Unlock
}

// api returns the table whose functions are the model.
func (f *fakeDriver) api() *api {
	a := &api{}
	make1 := func(name, kind string) func(*uintptr, uint32) result {
		return func(h *uintptr, _ uint32) result {
			r, done := f.enter(name, false)
			defer done()
			if r == 0 {
				*h = uintptr(f.add(kind))
			}
			return r
		}
	}
	drop1 := func(name, kind string) func(uintptr) result {
		return func(h uintptr) result {
			_, done := f.enter(name, true)
			defer done()
			return f.drop(kind, uint64(h))
		}
	}
	plain := func(name string) result { r, done := f.enter(name, false); defer done(); return r }

	a.init = func(uint32) result { return plain("cuInit") }
	a.driverGetVersion = func(v *int32) result { *v = 13000; return plain("cuDriverGetVersion") }
	names := map[result]string{2: "CUDA_ERROR_OUT_OF_MEMORY\x00", 999: "CUDA_ERROR_UNKNOWN\x00"}
	a.getErrorName = func(code result, name *uintptr) result {
		s, ok := names[code]
		if !ok {
			return 1
		}
		*name = uintptr(unsafe.Pointer(unsafe.StringData(s)))
		return 0
	}
	a.deviceGetCount = func(n *int32) result { *n = f.gpus; return plain("cuDeviceGetCount") }
	a.deviceGet = func(d *int32, ordinal int32) result { *d = ordinal; return plain("cuDeviceGet") }
	a.deviceGetName = func(name *byte, size, _ int32) result {
		copy(unsafe.Slice(name, size), "Model GPU\x00")
		return plain("cuDeviceGetName")
	}
	a.deviceGetUUID = func(u *[16]byte, dev int32) result { u[0] = byte(0xA0 + dev); return plain("cuDeviceGetUuid") }
	a.deviceGetAttribute = func(v *int32, attribute, _ int32) result {
		*v = 1
		if f.noVMM && attribute == attributePosixFD {
			*v = 0
		}
		return plain("cuDeviceGetAttribute")
	}
	a.primaryCtxGetState = func(_ int32, flags *uint32, active *int32) result {
		*flags, *active = f.ctxFlags, f.ctxActive
		return plain("cuDevicePrimaryCtxGetState")
	}
	a.primaryCtxSetFlags = func(_ int32, flags uint32) result {
		r := plain("cuDevicePrimaryCtxSetFlags")
		if r == 0 {
			f.ctxFlags = flags
		}
		return r
	}
	a.primaryCtxRetain = func(ctx *uintptr, dev int32) result {
		r, done := f.enter("cuDevicePrimaryCtxRetain", false)
		defer done()
		if r == 0 {
			*ctx = uintptr(0xC0 + dev)
			if f.live["context"] == nil {
				f.live["context"] = map[uint64]int{}
			}
			f.live["context"][uint64(*ctx)]++
		}
		return r
	}
	a.primaryCtxRelease = func(dev int32) result {
		_, done := f.enter("cuDevicePrimaryCtxRelease", true)
		defer done()
		return f.drop("context", uint64(0xC0+dev))
	}
	a.ctxSetCurrent = func(ctx uintptr) result {
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.live["context"][uint64(ctx)] == 0 {
			f.misuse = append(f.misuse, "a context that is not retained was made current")
			return 201
		}
		return 0
	}
	a.memGetInfo = func(free, total *uint64) result { *free, *total = 1, 2; return plain("cuMemGetInfo") }
	a.memGetGranularity = func(n *uint64, p *allocationProp, _ int32) result {
		*n = 2 << 20
		return plain("cuMemGetAllocationGranularity")
	}
	a.memCreate = func(h *uint64, size uint64, p *allocationProp, _ uint64) result {
		r, done := f.enter("cuMemCreate", false)
		defer done()
		if size%(2<<20) != 0 || p.kind != allocationTypePinned || p.handleTypes != handleTypePosixFD || p.location.kind != locationTypeDevice {
			f.misuse = append(f.misuse, "cuMemCreate with wrong properties")
		}
		if r == 0 {
			*h = f.add("allocation")
			f.sizes[*h], f.device[*h] = size, p.location.id
		}
		return r
	}
	a.memRelease = func(h uint64) result {
		_, done := f.enter("cuMemRelease", true)
		defer done()
		return f.drop("allocation", h)
	}
	a.memGetProperties = func(p *allocationProp, h uint64) result {
		r, done := f.enter("cuMemGetAllocationPropertiesFromHandle", false)
		defer done()
		p.location = location{locationTypeDevice, f.device[h]}
		return r
	}
	a.memAddressReserve = func(p *uint64, size, _, _, _ uint64) result {
		r, done := f.enter("cuMemAddressReserve", false)
		defer done()
		if r == 0 {
			f.next += 1 << 32
			*p = f.next
			f.ranges[*p] = size
		}
		return r
	}
	a.memAddressFree = func(p, size uint64) result {
		_, done := f.enter("cuMemAddressFree", true)
		defer done()
		if f.ranges[p] != size || f.mapped[p] != 0 {
			f.misuse = append(f.misuse, "cuMemAddressFree of a range that is mapped or was not reserved")
			return 1
		}
		delete(f.ranges, p)
		return 0
	}
	a.memMap = func(p, size, _, h, _ uint64) result {
		r, done := f.enter("cuMemMap", false)
		defer done()
		if r == 0 && (f.ranges[p] != size || f.live["allocation"][h] == 0 || size > f.sizes[h]) {
			return 1
		}
		if r == 0 {
			f.mapped[p] = h
			f.live["allocation"][h]++ // the mapping keeps the memory
		}
		return r
	}
	a.memUnmap = func(p, size uint64) result {
		_, done := f.enter("cuMemUnmap", true)
		defer done()
		h := f.mapped[p]
		if h == 0 || f.ranges[p] != size {
			f.misuse = append(f.misuse, "cuMemUnmap of what is not mapped")
			return 1
		}
		delete(f.mapped, p)
		delete(f.access, p)
		return f.drop("allocation", h)
	}
	a.memSetAccess = func(p, size uint64, d *accessDesc, n uint64) result {
		r, done := f.enter("cuMemSetAccess", false)
		defer done()
		if f.mapped[p] == 0 || n != 1 || d.flags != accessReadWrite {
			f.misuse = append(f.misuse, "cuMemSetAccess of what is not mapped")
		}
		f.access[p] = r == 0
		return r
	}
	a.memExport = func(fd *int32, h uint64, kind int32, _ uint64) result {
		r, done := f.enter("cuMemExportToShareableHandle", false)
		defer done()
		if r == 0 {
			n, err := syscall.Open("/dev/zero", syscall.O_RDWR, 0)
			if err != nil {
				return 999
			}
			*fd = int32(n)
		}
		return r
	}
	a.memImport = func(h *uint64, _ uintptr, _ int32) result {
		r, done := f.enter("cuMemImportFromShareableHandle", false)
		defer done()
		if r == 0 {
			*h = f.add("allocation")
			f.sizes[*h], f.device[*h] = 4<<20, f.importFrom
		}
		return r
	}
	a.memAlloc = func(p *uint64, size uint64) result {
		r, done := f.enter("cuMemAlloc", false)
		defer done()
		if r == 0 {
			*p = f.add("device memory")
			f.sizes[*p] = size
		}
		return r
	}
	a.memFree = func(p uint64) result {
		_, done := f.enter("cuMemFree", true)
		defer done()
		return f.drop("device memory", p)
	}
	a.memRange = func(base, size *uint64, p uint64) result {
		r, done := f.enter("cuMemGetAddressRange", false)
		defer done()
		*base, *size = p&^0xFFF, f.sizes[p&^0xFFF]
		return r
	}
	a.ipcGetMem = func(h *[64]byte, p uint64) result {
		r, done := f.enter("cuIpcGetMemHandle", false)
		defer done()
		binary.LittleEndian.PutUint64(h[:], p)
		return r
	}
	a.ipcOpenMem = func(p *uint64, h *[64]byte, flags uint32) result {
		r, done := f.enter("cuIpcOpenMemHandle", false)
		defer done()
		if f.opened[*h] || flags != 1 {
			f.misuse = append(f.misuse, "a handle was opened twice, or with other flags")
		}
		if r == 0 {
			*p = f.add("opened memory")
			f.opened[*h], f.handles[*p], f.sizes[*p] = true, *h, f.openedSize
		}
		return r
	}
	a.ipcCloseMem = func(p uint64) result {
		_, done := f.enter("cuIpcCloseMemHandle", true)
		defer done()
		delete(f.opened, f.handles[p])
		return f.drop("opened memory", p)
	}
	a.ipcGetEvent = func(h *[64]byte, e uintptr) result {
		r, done := f.enter("cuIpcGetEventHandle", false)
		defer done()
		binary.LittleEndian.PutUint64(h[:], uint64(e))
		return r
	}
	a.ipcOpenEvent = func(e *uintptr, _ *[64]byte) result {
		r, done := f.enter("cuIpcOpenEventHandle", false)
		defer done()
		if r == 0 {
			*e = uintptr(f.add("event"))
		}
		return r
	}
	a.memcpy2DAsync = func(*copy2D, uintptr) result { return plain("cuMemcpy2DAsync") }
	a.memsetD2D8Async = func(uint64, uint64, uint32, uint64, uint64, uintptr) result { return plain("cuMemsetD2D8Async") }
	a.streamCreate = make1("cuStreamCreate", "stream")
	a.streamDestroy = drop1("cuStreamDestroy", "stream")
	a.streamSynchronize = func(uintptr) result { return plain("cuStreamSynchronize") }
	a.streamQuery = func(uintptr) result {
		r, done := f.enter("cuStreamQuery", false)
		defer done()
		if r == 0 && f.query > 0 {
			f.query--
			return codeNotReady
		}
		return r
	}
	a.streamWaitEvent = func(uintptr, uintptr, uint32) result { return plain("cuStreamWaitEvent") }
	a.eventCreate = make1("cuEventCreate", "event")
	a.eventDestroy = drop1("cuEventDestroy", "event")
	a.eventRecord = func(uintptr, uintptr) result { return plain("cuEventRecord") }
	a.eventQuery = func(uintptr) result { return plain("cuEventQuery") }
	a.eventSynchronize = func(uintptr) result { return plain("cuEventSynchronize") }
	a.eventElapsedTime = func(ms *float32, _, _ uintptr) result { *ms = 1.5; return plain("cuEventElapsedTime") }
	return a
}

// A function that the table holds but the model leaves out would be a nil call in production's place.
func TestModelFillsTheTable(t *testing.T) {
	v := reflect.ValueOf(*newFake().api())
	for i := range v.NumField() {
		if v.Field(i).IsNil() {
			t.Errorf("the model has no %s", v.Type().Field(i).Name)
		}
	}
	if got, want := len((&api{}).symbols()), v.NumField(); got != want {
		t.Errorf("%d symbols for %d fields", got, want)
	}
}
