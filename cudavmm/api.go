package cudavmm

import (
	"fmt"
	"unsafe"
)

// result is CUresult.
type result int32

// api is the part of the CUDA driver API that is used here, as Go functions: the real ones call into libcuda, the tests'
// model the driver and fail where they are told to. Integers have the widths of cuda.h; handles are opaque.
type api struct {
	init             func(flags uint32) result
	driverGetVersion func(version *int32) result
	getErrorName     func(code result, name *uintptr) result

	deviceGetCount     func(n *int32) result
	deviceGet          func(dev *int32, ordinal int32) result
	deviceGetName      func(name *byte, size, dev int32) result
	deviceGetUUID      func(uuid *[16]byte, dev int32) result
	deviceGetAttribute func(value *int32, attribute, dev int32) result

	primaryCtxGetState func(dev int32, flags *uint32, active *int32) result
	primaryCtxSetFlags func(dev int32, flags uint32) result
	primaryCtxRetain   func(ctx *uintptr, dev int32) result
	primaryCtxRelease  func(dev int32) result
	ctxSetCurrent      func(ctx uintptr) result

	memGetInfo        func(free, total *uint64) result
	memGetGranularity func(size *uint64, prop *allocationProp, option int32) result
	memCreate         func(handle *uint64, size uint64, prop *allocationProp, flags uint64) result
	memRelease        func(handle uint64) result
	memGetProperties  func(prop *allocationProp, handle uint64) result
	memAddressReserve func(ptr *uint64, size, alignment, addr, flags uint64) result
	memAddressFree    func(ptr, size uint64) result
	memMap            func(ptr, size, offset, handle, flags uint64) result
	memUnmap          func(ptr, size uint64) result
	memSetAccess      func(ptr, size uint64, desc *accessDesc, count uint64) result
	memExport         func(fd *int32, handle uint64, kind int32, flags uint64) result
	memImport         func(handle *uint64, fd uintptr, kind int32) result
	memAlloc          func(ptr *uint64, size uint64) result
	memFree           func(ptr uint64) result
	memRange          func(base, size *uint64, ptr uint64) result
	ipcGetMem         func(handle *[64]byte, ptr uint64) result
	ipcOpenMem        func(ptr *uint64, handle *[64]byte, flags uint32) result // the handle goes by value
	ipcCloseMem       func(ptr uint64) result
	ipcGetEvent       func(handle *[64]byte, event uintptr) result
	ipcOpenEvent      func(event *uintptr, handle *[64]byte) result // the handle goes by value
	memcpy2DAsync     func(c *copy2D, stream uintptr) result
	memsetD2D8Async   func(ptr, pitch uint64, value uint32, width, height uint64, stream uintptr) result
	streamCreate      func(stream *uintptr, flags uint32) result
	streamDestroy     func(stream uintptr) result
	streamSynchronize func(stream uintptr) result
	streamQuery       func(stream uintptr) result
	streamWaitEvent   func(stream, event uintptr, flags uint32) result
	eventCreate       func(event *uintptr, flags uint32) result
	eventDestroy      func(event uintptr) result
	eventRecord       func(event, stream uintptr) result
	eventQuery        func(event uintptr) result
	eventSynchronize  func(event uintptr) result
	eventElapsedTime  func(ms *float32, start, end uintptr) result
}

// symbol is one function of the driver: its names in libcuda, the newest first, and the field that it fills.
type symbol struct {
	names []string
	field any
}

func (a *api) symbols() []symbol {
	return []symbol{
		{[]string{"cuInit"}, &a.init},
		{[]string{"cuDriverGetVersion"}, &a.driverGetVersion},
		{[]string{"cuGetErrorName"}, &a.getErrorName},
		{[]string{"cuDeviceGetCount"}, &a.deviceGetCount},
		{[]string{"cuDeviceGet"}, &a.deviceGet},
		{[]string{"cuDeviceGetName"}, &a.deviceGetName},
		{[]string{"cuDeviceGetUuid_v2", "cuDeviceGetUuid"}, &a.deviceGetUUID},
		{[]string{"cuDeviceGetAttribute"}, &a.deviceGetAttribute},
		{[]string{"cuDevicePrimaryCtxGetState"}, &a.primaryCtxGetState},
		{[]string{"cuDevicePrimaryCtxSetFlags_v2", "cuDevicePrimaryCtxSetFlags"}, &a.primaryCtxSetFlags},
		{[]string{"cuDevicePrimaryCtxRetain"}, &a.primaryCtxRetain},
		{[]string{"cuDevicePrimaryCtxRelease_v2", "cuDevicePrimaryCtxRelease"}, &a.primaryCtxRelease},
		{[]string{"cuCtxSetCurrent"}, &a.ctxSetCurrent},
		{[]string{"cuMemGetInfo_v2"}, &a.memGetInfo},
		{[]string{"cuMemGetAllocationGranularity"}, &a.memGetGranularity},
		{[]string{"cuMemCreate"}, &a.memCreate},
		{[]string{"cuMemRelease"}, &a.memRelease},
		{[]string{"cuMemGetAllocationPropertiesFromHandle"}, &a.memGetProperties},
		{[]string{"cuMemAddressReserve"}, &a.memAddressReserve},
		{[]string{"cuMemAddressFree"}, &a.memAddressFree},
		{[]string{"cuMemMap"}, &a.memMap},
		{[]string{"cuMemUnmap"}, &a.memUnmap},
		{[]string{"cuMemSetAccess"}, &a.memSetAccess},
		{[]string{"cuMemExportToShareableHandle"}, &a.memExport},
		{[]string{"cuMemImportFromShareableHandle"}, &a.memImport},
		{[]string{"cuMemAlloc_v2"}, &a.memAlloc},
		{[]string{"cuMemFree_v2"}, &a.memFree},
		{[]string{"cuMemGetAddressRange_v2"}, &a.memRange},
		{[]string{"cuIpcGetMemHandle"}, &a.ipcGetMem},
		{[]string{"cuIpcOpenMemHandle_v2", "cuIpcOpenMemHandle"}, &a.ipcOpenMem},
		{[]string{"cuIpcCloseMemHandle"}, &a.ipcCloseMem},
		{[]string{"cuIpcGetEventHandle"}, &a.ipcGetEvent},
		{[]string{"cuIpcOpenEventHandle"}, &a.ipcOpenEvent},
		{[]string{"cuMemcpy2DAsync_v2"}, &a.memcpy2DAsync},
		{[]string{"cuMemsetD2D8Async"}, &a.memsetD2D8Async},
		{[]string{"cuStreamCreate"}, &a.streamCreate},
		{[]string{"cuStreamDestroy_v2"}, &a.streamDestroy},
		{[]string{"cuStreamSynchronize"}, &a.streamSynchronize},
		{[]string{"cuStreamQuery"}, &a.streamQuery},
		{[]string{"cuStreamWaitEvent"}, &a.streamWaitEvent},
		{[]string{"cuEventCreate"}, &a.eventCreate},
		{[]string{"cuEventDestroy_v2"}, &a.eventDestroy},
		{[]string{"cuEventRecord"}, &a.eventRecord},
		{[]string{"cuEventQuery"}, &a.eventQuery},
		{[]string{"cuEventSynchronize"}, &a.eventSynchronize},
		{[]string{"cuEventElapsedTime_v2", "cuEventElapsedTime"}, &a.eventElapsedTime},
	}
}

// missingError names a function that the driver lacks.
type missingError struct{ name string }

func (e *missingError) Error() string {
	return fmt.Sprintf("the driver has no %s: it is too old, CUDA 11.2 or newer is needed", e.name)
}

// bind fills the table: find returns a function's address or 0, put makes a Go function of an address.
func (a *api) bind(find func(name string) uintptr, put func(field any, address uintptr)) error {
	for _, s := range a.symbols() {
		var address uintptr
		for _, name := range s.names {
			if address = find(name); address != 0 {
				break
			}
		}
		if address == 0 {
			return &missingError{s.names[0]}
		}
		put(s.field, address)
	}
	return nil
}

// Values of cuda.h.
const (
	allocationTypePinned  = 1
	handleTypePosixFD     = 1
	locationTypeDevice    = 1
	accessReadWrite       = 3
	granularityMinimum    = 0
	memoryTypeHost        = 1
	memoryTypeDevice      = 2
	streamNonBlocking     = 1
	eventBlockingSync     = 1
	eventDisableTiming    = 2
	eventInterprocess     = 4
	ipcLazyPeerAccess     = 1 // CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS
	ctxSchedMask          = 0x07
	ctxSchedBlockingSync  = 0x04
	attributeVMM          = 102 // CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED
	attributePosixFD      = 103 // CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED
	attributeComputeMajor = 75
	attributeComputeMinor = 76
)

// location is CUmemLocation.
type location struct {
	kind, id int32
}

// allocationProp is CUmemAllocationProp.
type allocationProp struct {
	kind        int32
	handleTypes int32
	location    location
	_           uintptr  // win32HandleMetaData
	_           [2]uint8 // compressionType, gpuDirectRDMACapable
	_           uint16   // usage
	_           [4]uint8 // reserved
}

// accessDesc is CUmemAccessDesc.
type accessDesc struct {
	location location
	flags    int32
}

// copy2D is CUDA_MEMCPY2D_v2. Addresses of host memory stand in srcHost and dstHost.
type copy2D struct {
	srcX, srcY uint64
	srcType    uint32
	_          uint32
	srcHost    unsafe.Pointer
	srcDevice  uint64
	srcArray   uintptr
	srcPitch   uint64
	dstX, dstY uint64
	dstType    uint32
	_          uint32
	dstHost    unsafe.Pointer
	dstDevice  uint64
	dstArray   uintptr
	dstPitch   uint64
	width      uint64
	height     uint64
}

var (
	_ [32]byte  = [unsafe.Sizeof(allocationProp{})]byte{}
	_ [12]byte  = [unsafe.Sizeof(accessDesc{})]byte{}
	_ [128]byte = [unsafe.Sizeof(copy2D{})]byte{}
	_ [24]byte  = [unsafe.Offsetof(copy2D{}.srcHost)]byte{}
	_ [80]byte  = [unsafe.Offsetof(copy2D{}.dstHost)]byte{}
	_ [112]byte = [unsafe.Offsetof(copy2D{}.width)]byte{}
)
