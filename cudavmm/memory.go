package cudavmm

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"

	"github.com/cfpipe/cfpipe/internal/shm"
)

// deviceBuffer is GPU memory: an allocation (or an imported one), the addresses reserved for it and, where it was made here,
// the file descriptor that shares it.
type deviceBuffer struct {
	device *Device
	size   int
	ptr    uint64
	file   *os.File

	once sync.Once
	err  error
}

func (b *deviceBuffer) Size() int        { return b.size }
func (b *deviceBuffer) Bytes() []byte    { return nil }
func (b *deviceBuffer) Pointer() uintptr { return uintptr(b.ptr) }

func (b *deviceBuffer) FD() int {
	if b.file == nil {
		return -1
	}
	return int(b.file.Fd())
}

// Close unmaps the memory. The driver frees it when no process has it mapped or holds its file descriptor.
func (b *deviceBuffer) Close() error {
	b.once.Do(func() {
		a := b.device.driver.api
		b.err = errors.Join(
			b.device.do("cuMemUnmap", func() result { return a.memUnmap(b.ptr, uint64(b.size)) }),
			b.device.do("cuMemAddressFree", func() result { return a.memAddressFree(b.ptr, uint64(b.size)) }),
		)
		if b.file != nil {
			b.err = errors.Join(b.err, b.file.Close())
		}
		b.err = errors.Join(b.err, b.device.Close())
	})
	return b.err
}

// Alloc makes a buffer of at least size bytes on the GPU, mapped, and the file descriptor that shares it.
func (v *Device) Alloc(name string, size int) (Buffer, error) {
	n, err := roundUp(size, v.grain)
	if err != nil {
		return nil, err
	}
	a := v.driver.api
	var handle uint64
	if err := v.do("cuMemCreate", func() result { return a.memCreate(&handle, uint64(n), &v.prop, 0) }); err != nil {
		return nil, v.explain(err, n)
	}
	// The mapping keeps the allocation alive: the handle is given back here in every case.
	defer func() { _ = v.do("cuMemRelease", func() result { return a.memRelease(handle) }) }()
	b, err := v.mapped(handle, n)
	if err != nil {
		return nil, err
	}
	fd := int32(-1)
	if err := v.do("cuMemExportToShareableHandle", func() result { return a.memExport(&fd, handle, handleTypePosixFD, 0) }); err != nil {
		return nil, errors.Join(err, b.Close())
	}
	if fd < 0 {
		return nil, errors.Join(fmt.Errorf("cuMemExportToShareableHandle: file descriptor %d", fd), b.Close())
	}
	syscall.CloseOnExec(int(fd))
	b.file = os.NewFile(uintptr(fd), name)
	return b, nil
}

// Import maps the memory that another process shares. It takes fd over and closes it in every case: the driver keeps its own
// reference. size is what the peer claims; the driver refuses to map more than there is.
func (v *Device) Import(fd, size, granularity int) (Buffer, error) {
	defer syscall.Close(fd)
	if shm.IsMemfd(fd) {
		return nil, fmt.Errorf("%w: a memfd, not GPU memory", ErrWrongKind)
	}
	if _, err := roundUp(size, granularity); err != nil {
		return nil, err
	}
	n, err := roundUp(size, max(granularity, v.grain))
	if err != nil {
		return nil, err
	}
	a := v.driver.api
	var handle uint64
	if err := v.do("cuMemImportFromShareableHandle", func() result { return a.memImport(&handle, uintptr(fd), handleTypePosixFD) }); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrWrongKind, err)
	}
	defer func() { _ = v.do("cuMemRelease", func() result { return a.memRelease(handle) }) }()
	var prop allocationProp
	if err := v.do("cuMemGetAllocationPropertiesFromHandle", func() result { return a.memGetProperties(&prop, handle) }); err != nil {
		return nil, err
	}
	if prop.location.kind == locationTypeDevice && prop.location.id != v.dev {
		return nil, v.otherDevice(int(prop.location.id))
	}
	b, err := v.mapped(handle, n)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes of shared GPU memory: %w", n, err)
	}
	return b, nil
}

// mapped reserves addresses, maps the allocation there and opens it to this GPU.
func (v *Device) mapped(handle uint64, n int) (*deviceBuffer, error) {
	a, size := v.driver.api, uint64(n)
	var ptr uint64
	if err := v.do("cuMemAddressReserve", func() result { return a.memAddressReserve(&ptr, size, 0, 0, 0) }); err != nil {
		return nil, err
	}
	free := func() error {
		return v.do("cuMemAddressFree", func() result { return a.memAddressFree(ptr, size) })
	}
	if err := v.do("cuMemMap", func() result { return a.memMap(ptr, size, 0, handle, 0) }); err != nil {
		return nil, errors.Join(err, free())
	}
	desc := accessDesc{location: v.prop.location, flags: accessReadWrite}
	if err := v.do("cuMemSetAccess", func() result { return a.memSetAccess(ptr, size, &desc, 1) }); err != nil {
		unmap := v.do("cuMemUnmap", func() result { return a.memUnmap(ptr, size) })
		return nil, errors.Join(err, unmap, free())
	}
	v.hold()
	return &deviceBuffer{device: v, size: n, ptr: ptr}, nil
}

func (v *Device) otherDevice(ordinal int) error {
	theirs := fmt.Sprintf("GPU %d", ordinal)
	if info, err := v.driver.info(ordinal); err == nil {
		theirs = fmt.Sprintf("GPU %d (%s)", ordinal, info.UUID)
	}
	return fmt.Errorf("%w: it lies on %s, asked for is GPU %d (%s)", ErrOtherDevice, theirs, v.info.Ordinal, v.info.UUID)
}

func (v *Device) explain(err error, n int) error {
	if IsOutOfMemory(err) {
		if free, total, e := v.Free(); e == nil {
			return fmt.Errorf("allocate %d bytes on GPU %d: %d of %d bytes are free: %w", n, v.info.Ordinal, free, total, err)
		}
	}
	return fmt.Errorf("allocate %d bytes on GPU %d: %w", n, v.info.Ordinal, err)
}

// maxBuffer bounds one frame's memory: 16 Ki × 16 Ki pixels of 8 bytes. A peer's size is checked against it before use.
const maxBuffer = 2 << 30

func roundUp(size, granularity int) (int, error) {
	if size <= 0 || size > maxBuffer || granularity <= 0 || granularity > maxBuffer || granularity&(granularity-1) != 0 {
		return 0, fmt.Errorf("frame memory of %d bytes in units of %d: out of range", size, granularity)
	}
	return (size + granularity - 1) &^ (granularity - 1), nil
}
