package cudavmm

import (
	"errors"
	"fmt"
	"sync"
)

// Memory and events shared by handles (CUDA IPC), for the frames of protocols 1 and 2. The driver's rules: a handle may be opened only
// once in a process and not at all in the one that made it, both processes must see each other's PID, and what shares a 2 MiB block with
// the memory is shared along with it.

// ipcUnit is what the size of shared memory is rounded up to, so that nothing else lies in its blocks.
const ipcUnit = 2 << 20

// IPCEvent is an interprocess event. Like Buffer it is an alias of an unnamed interface.
type IPCEvent = interface {
	// Handle is the cudaIpcEventHandle_t.
	Handle() [64]byte
	// Record records the event behind the work queued on a stream; 0 is a stream of its own with nothing queued.
	Record(stream uintptr) error
	// WaitOn makes a stream wait for the event as it was recorded last.
	WaitOn(stream uintptr) error
	Close() error
}

// ErrIPC says that the driver does not open a handle; the text says what may be the reason.
var ErrIPC = errors.New("CUDA IPC handle cannot be opened")

// ipcRegistry knows the handles that this process has made or opened, on all of its devices.
var ipcRegistry = struct {
	sync.Mutex
	mem map[[64]byte]*ipcMapping
}{mem: map[[64]byte]*ipcMapping{}}

// ipcMapping is memory under a handle.
type ipcMapping struct {
	device *Device
	handle [64]byte
	ptr    uint64
	size   int
	uses   int
	close  func() error // by the last user
}

// ipcBuffer is one user of a mapping.
type ipcBuffer struct {
	m    *ipcMapping
	once sync.Once
	err  error
}

func (b *ipcBuffer) Size() int        { return b.m.size }
func (b *ipcBuffer) Bytes() []byte    { return nil }
func (b *ipcBuffer) Pointer() uintptr { return uintptr(b.m.ptr) }
func (b *ipcBuffer) FD() int          { return -1 }

// Close gives the memory back with the last of its users in this process.
func (b *ipcBuffer) Close() error {
	b.once.Do(func() {
		ipcRegistry.Lock()
		defer ipcRegistry.Unlock()
		if b.m.uses--; b.m.uses == 0 {
			delete(ipcRegistry.mem, b.m.handle)
			b.err = errors.Join(b.m.close(), b.m.device.Close())
		}
	})
	return b.err
}

// AllocIPC makes a buffer of at least size bytes on the GPU and its cudaIpcMemHandle_t.
func (v *Device) AllocIPC(size int) (Buffer, [64]byte, error) {
	n, err := roundUp(size, ipcUnit)
	if err != nil {
		return nil, [64]byte{}, err
	}
	a := v.driver.api
	var ptr uint64
	if err := v.do("cuMemAlloc", func() result { return a.memAlloc(&ptr, uint64(n)) }); err != nil {
		return nil, [64]byte{}, v.explain(err, n)
	}
	free := func() error { return v.do("cuMemFree", func() result { return a.memFree(ptr) }) }
	b, handle, err := v.export(ptr, n, free)
	if err != nil {
		return nil, handle, errors.Join(err, free())
	}
	return b, handle, nil
}

// ShareIPC returns the handle of GPU memory that stays the caller's. pointer must be the beginning of an allocation of at least size
// bytes: a handle names whole allocations, and readers would find another's bytes.
func (v *Device) ShareIPC(pointer uintptr, size int) (Buffer, [64]byte, error) {
	base, n, err := v.allocation(uint64(pointer))
	if err != nil {
		return nil, [64]byte{}, err
	}
	if base != uint64(pointer) || size <= 0 || n < uint64(size) {
		return nil, [64]byte{}, fmt.Errorf("share %d bytes at %#x: the allocation is %d bytes at %#x: %w", size, pointer, n, base, ErrTooSmall)
	}
	return v.export(base, size, func() error { return nil })
}

func (v *Device) export(ptr uint64, size int, free func() error) (Buffer, [64]byte, error) {
	var handle [64]byte
	if err := v.do("cuIpcGetMemHandle", func() result { return v.driver.api.ipcGetMem(&handle, ptr) }); err != nil {
		return nil, handle, err
	}
	ipcRegistry.Lock()
	defer ipcRegistry.Unlock()
	if m := ipcRegistry.mem[handle]; m != nil { // the caller's memory, shared once more
		if m.ptr != ptr || m.size < size {
			return nil, handle, fmt.Errorf("cuIpcGetMemHandle: memory at %#x has the handle of other memory", ptr)
		}
		m.uses++
		return &ipcBuffer{m: m}, handle, nil
	}
	v.hold()
	m := &ipcMapping{device: v, handle: handle, ptr: ptr, size: size, uses: 1, close: free}
	ipcRegistry.mem[handle] = m
	return &ipcBuffer{m: m}, handle, nil
}

// allocation returns where the allocation around an address begins and how long it is.
func (v *Device) allocation(ptr uint64) (base, size uint64, err error) {
	err = v.do("cuMemGetAddressRange", func() result { return v.driver.api.memRange(&base, &size, ptr) })
	return base, size, err
}

// OpenIPC maps the memory of a handle that another process made. A handle that is open already, or was made in this process, is the same
// memory once more. size is what the peer claims: less than that is refused.
func (v *Device) OpenIPC(handle [64]byte, size int) (Buffer, error) {
	if _, err := roundUp(size, 1); err != nil {
		return nil, err
	}
	ipcRegistry.Lock()
	defer ipcRegistry.Unlock()
	m := ipcRegistry.mem[handle]
	if m == nil {
		var err error
		if m, err = v.openHandle(handle, size); err != nil {
			return nil, err
		}
	} else if m.size < size {
		return nil, fmt.Errorf("open CUDA IPC handle: %d bytes for a frame of %d: %w", m.size, size, ErrTooSmall)
	} else if m.device.dev != v.dev {
		return nil, v.otherDevice(m.device.info.Ordinal)
	}
	m.uses++
	ipcRegistry.mem[handle] = m
	return &ipcBuffer{m: m}, nil
}

func (v *Device) openHandle(handle [64]byte, size int) (*ipcMapping, error) {
	a := v.driver.api
	var ptr uint64
	if err := v.do("cuIpcOpenMemHandle", func() result { return a.ipcOpenMem(&ptr, &handle, ipcLazyPeerAccess) }); err != nil {
		return nil, ipcError(err)
	}
	closeIt := func() error {
		return v.do("cuIpcCloseMemHandle", func() result { return a.ipcCloseMem(ptr) })
	}
	_, n, err := v.allocation(ptr)
	if err != nil { // a driver that does not tell of others' memory; reads beyond it fail then
		n = uint64(size)
	}
	if n < uint64(size) {
		return nil, errors.Join(fmt.Errorf("open CUDA IPC handle: %d bytes for a frame of %d: %w", n, size, ErrTooSmall), closeIt())
	}
	n = min(n, maxBuffer)
	v.hold()
	return &ipcMapping{device: v, handle: handle, ptr: ptr, size: int(n), close: closeIt}, nil
}

// ipcError adds what the driver's code leaves open: it has no code of its own for a peer that it cannot see.
func ipcError(err error) error {
	return fmt.Errorf("%w: %w (the process that made it has ended, does not share a PID namespace with this one, or uses another GPU)", ErrIPC, err)
}

// ipcEvent is an interprocess event, made here or opened.
type ipcEvent struct {
	device *Device
	event  uintptr
	handle [64]byte
	own    *Stream // of the maker, for Record(0)

	mu     sync.RWMutex // a reader in the maker's process may come when the event is gone
	closed bool
	once   sync.Once
	err    error
}

// ipcEvents knows the events that this process has made: the driver does not open them here.
var ipcEvents = struct {
	sync.Mutex
	made map[[64]byte]*ipcEvent
}{made: map[[64]byte]*ipcEvent{}}

// NewIPCEvent makes an event that other processes can open.
func (v *Device) NewIPCEvent() (IPCEvent, error) {
	a := v.driver.api
	s, err := v.NewStream()
	if err != nil {
		return nil, err
	}
	e := &ipcEvent{device: v, own: s}
	if err := v.do("cuEventCreate", func() result { return a.eventCreate(&e.event, eventDisableTiming|eventInterprocess) }); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	v.hold()
	if err := v.do("cuIpcGetEventHandle", func() result { return a.ipcGetEvent(&e.handle, e.event) }); err != nil {
		return nil, errors.Join(err, e.Close())
	}
	ipcEvents.Lock()
	defer ipcEvents.Unlock()
	ipcEvents.made[e.handle] = e
	return e, nil
}

// OpenIPCEvent opens an event that another process made.
func (v *Device) OpenIPCEvent(handle [64]byte) (IPCEvent, error) {
	ipcEvents.Lock()
	made := ipcEvents.made[handle]
	ipcEvents.Unlock()
	if made != nil {
		return &borrowedEvent{made}, nil
	}
	e := &ipcEvent{device: v, handle: handle}
	err := v.do("cuIpcOpenEventHandle", func() result { return v.driver.api.ipcOpenEvent(&e.event, &handle) })
	if err != nil {
		return nil, ipcError(err)
	}
	v.hold()
	return e, nil
}

// borrowedEvent is an event of this process for a reader in it. Its maker closes it, when its frames have ended.
type borrowedEvent struct{ *ipcEvent }

func (*borrowedEvent) Close() error { return nil }

func (e *ipcEvent) Handle() [64]byte { return e.handle }

func (e *ipcEvent) Record(stream uintptr) error {
	if stream == 0 {
		if e.own == nil {
			return fmt.Errorf("cuEventRecord: the event is another process's: %w", ErrClosed)
		}
		stream = e.own.stream
	}
	return e.device.do("cuEventRecord", func() result { return e.device.driver.api.eventRecord(e.event, stream) })
}

func (e *ipcEvent) WaitOn(stream uintptr) error {
	e.mu.RLock()
	defer e.mu.RUnlock()
	if e.closed { // its frames have ended, and with them what was to be waited for
		return nil
	}
	return e.device.do("cuStreamWaitEvent", func() result { return e.device.driver.api.streamWaitEvent(stream, e.event, 0) })
}

func (e *ipcEvent) Close() error {
	e.once.Do(func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.closed = true
		if e.own != nil {
			ipcEvents.Lock()
			if ipcEvents.made[e.handle] == e {
				delete(ipcEvents.made, e.handle)
			}
			ipcEvents.Unlock()
			e.err = e.own.Close()
		}
		e.err = errors.Join(e.err, e.device.do("cuEventDestroy", func() result { return e.device.driver.api.eventDestroy(e.event) }), e.device.Close())
	})
	return e.err
}

// OpenIPC maps memory by its handle on the receiver's GPU, see [Device.OpenIPC].
func (r *Receiver) OpenIPC(handle [64]byte, size int) (Buffer, error) {
	v, err := r.Device()
	if err != nil {
		return nil, err
	}
	return v.OpenIPC(handle, size)
}

// OpenIPCEvent opens an event by its handle on the receiver's GPU, see [Device.OpenIPCEvent].
func (r *Receiver) OpenIPCEvent(handle [64]byte) (IPCEvent, error) {
	v, err := r.Device()
	if err != nil {
		return nil, err
	}
	return v.OpenIPCEvent(handle)
}

// IPCHandles counts the memory that this process shares by handles or has opened by them.
func IPCHandles() int {
	ipcRegistry.Lock()
	defer ipcRegistry.Unlock()
	return len(ipcRegistry.mem)
}

// localBuffer is GPU memory of this process alone.
type localBuffer struct {
	device *Device
	ptr    uint64
	size   int
	once   sync.Once
	err    error
}

func (b *localBuffer) Size() int        { return b.size }
func (b *localBuffer) Bytes() []byte    { return nil }
func (b *localBuffer) Pointer() uintptr { return uintptr(b.ptr) }
func (b *localBuffer) FD() int          { return -1 }

func (b *localBuffer) Close() error {
	b.once.Do(func() {
		b.err = errors.Join(b.device.do("cuMemFree", func() result { return b.device.driver.api.memFree(b.ptr) }), b.device.Close())
	})
	return b.err
}

// AllocLocal makes a buffer of at least size bytes on the GPU that belongs to this process alone, unless ShareIPC shares it.
func (v *Device) AllocLocal(size int) (Buffer, error) {
	n, err := roundUp(size, ipcUnit)
	if err != nil {
		return nil, err
	}
	b := &localBuffer{device: v, size: n}
	if err := v.do("cuMemAlloc", func() result { return v.driver.api.memAlloc(&b.ptr, uint64(n)) }); err != nil {
		return nil, v.explain(err, n)
	}
	v.hold()
	return b, nil
}
