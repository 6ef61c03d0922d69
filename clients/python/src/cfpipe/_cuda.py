"""GPU memory that another process shares, through the CUDA driver (libcuda.so.1) alone."""

import ctypes
import functools
import os
import threading
import weakref

from .errors import GPUError, ProtocolError

_POSIX_FD, _DEVICE, _READ_WRITE, _PINNED, _MINIMUM = 1, 1, 3, 1, 0

_ptr, _i32, _u32, _u64 = ctypes.c_void_p, ctypes.c_int, ctypes.c_uint, ctypes.c_ulonglong
_size = ctypes.c_size_t


class _Location(ctypes.Structure):
    _fields_ = [("kind", _i32), ("id", _i32)]


class _Prop(ctypes.Structure):  # CUmemAllocationProp
    _fields_ = [("kind", _i32), ("handle_types", _i32), ("location", _Location), ("win32", _ptr), ("flags", ctypes.c_ubyte * 8)]


class _Access(ctypes.Structure):  # CUmemAccessDesc
    _fields_ = [("location", _Location), ("flags", _i32)]


_FUNCTIONS = {
    "cuInit": [_u32],
    "cuGetErrorName": [_i32, ctypes.POINTER(ctypes.c_char_p)],
    "cuDeviceGetCount": [ctypes.POINTER(_i32)],
    "cuDeviceGet": [ctypes.POINTER(_i32), _i32],
    "cuDeviceGetUuid_v2": [_ptr, _i32],
    "cuDevicePrimaryCtxRetain": [ctypes.POINTER(_ptr), _i32],
    "cuCtxPushCurrent_v2": [_ptr],
    "cuCtxPopCurrent_v2": [ctypes.POINTER(_ptr)],
    "cuMemGetAllocationGranularity": [ctypes.POINTER(_size), ctypes.POINTER(_Prop), _i32],
    "cuMemImportFromShareableHandle": [ctypes.POINTER(_u64), _ptr, _i32],
    "cuMemGetAllocationPropertiesFromHandle": [ctypes.POINTER(_Prop), _u64],
    "cuMemRelease": [_u64],
    "cuMemAddressReserve": [ctypes.POINTER(_u64), _size, _size, _u64, _u64],
    "cuMemAddressFree": [_u64, _size],
    "cuMemMap": [_u64, _size, _size, _u64, _u64],
    "cuMemUnmap": [_u64, _size],
    "cuMemSetAccess": [_u64, _size, ctypes.POINTER(_Access), _size],
    "cuMemcpyDtoH_v2": [_ptr, _u64, _size],
}


# The first is on the loader's path where the driver is installed; the others are where containers have it.
_LIBRARIES = ("libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1")


def _load():
    first = None
    for name in _LIBRARIES:
        try:
            return ctypes.CDLL(name)
        except OSError as e:
            first = first or e
    raise GPUError("the frames lie in GPU memory, and there is no CUDA driver for them here: %s" % first)


class _Driver:
    def __init__(self):
        self.lib = _load()
        for name, args in _FUNCTIONS.items():
            try:
                f = getattr(self.lib, name)
            except AttributeError:
                raise GPUError("the CUDA driver has no %s: it is too old, CUDA 11.4 or newer is needed" % name) from None
            f.argtypes, f.restype = args, _i32
        self("cuInit", 0)

    def __call__(self, name, *args):
        r = getattr(self.lib, name)(*args)
        if r:
            text = ctypes.c_char_p()
            self.lib.cuGetErrorName(r, ctypes.byref(text))
            raise GPUError("%s: %s (%d)" % (name, (text.value or b"unknown error").decode(), r))


_lock = threading.Lock()


@functools.lru_cache(maxsize=None)
def _device(ordinal):
    return Device(ordinal)


def device(ordinal):
    """The GPU's primary context, which CuPy and PyTorch use too. It is retained once and stays until the process ends."""
    with _lock:
        return _device(ordinal)


class Device:
    def __init__(self, ordinal):
        self.call = _Driver()
        self.ordinal = ordinal
        count, dev = _i32(), _i32()
        self.call("cuDeviceGetCount", ctypes.byref(count))
        if not 0 <= ordinal < count.value:
            raise GPUError("no GPU %d, the driver has %d" % (ordinal, count.value))
        self.call("cuDeviceGet", ctypes.byref(dev), ordinal)
        self.id = dev.value
        self.context = _ptr()
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(self.context), self.id)
        prop = _Prop(kind=_PINNED, handle_types=_POSIX_FD, location=_Location(_DEVICE, self.id))
        grain = _size()
        with self:
            self.call("cuMemGetAllocationGranularity", ctypes.byref(grain), ctypes.byref(prop), _MINIMUM)
        self.granularity = grain.value

    def __enter__(self):
        self.call("cuCtxPushCurrent_v2", self.context)

    def __exit__(self, *exc):
        self.call("cuCtxPopCurrent_v2", ctypes.byref(_ptr()))

    def uuid(self, dev):
        b = (ctypes.c_ubyte * 16)()
        try:
            self.call("cuDeviceGetUuid_v2", b, dev)
        except GPUError:
            return "?"
        h = bytes(b).hex()
        return "GPU-%s-%s-%s-%s-%s" % (h[:8], h[8:12], h[12:16], h[16:20], h[20:])


def _unmap(device, address, size, pid):
    if pid != os.getpid():  # a forked child has no driver
        return
    try:
        with device:
            device.call("cuMemUnmap", address, size)
            device.call("cuMemAddressFree", address, size)
    except GPUError:
        pass  # the context is gone, and the mapping with it


class DeviceMemory:
    """An imported allocation, mapped as long as anybody refers to this object."""

    on_gpu = True

    def __init__(self, device, fd, size, granularity):
        grain = max(granularity, device.granularity)
        size = (size + grain - 1) & ~(grain - 1)
        call, handle = device.call, _u64()
        with device:
            try:
                call("cuMemImportFromShareableHandle", ctypes.byref(handle), fd, _POSIX_FD)
            except GPUError as e:
                raise ProtocolError("the publisher's descriptor is neither a memfd nor memory of this driver's GPUs: %s" % e) from None
            try:
                self._map(device, handle, size)
            finally:
                call("cuMemRelease", handle)  # the mapping keeps the memory

    def _map(self, device, handle, size):
        call, prop, at = device.call, _Prop(), _u64()
        call("cuMemGetAllocationPropertiesFromHandle", ctypes.byref(prop), handle)
        if prop.location.kind == _DEVICE and prop.location.id != device.id:
            raise GPUError("the frames lie on GPU %d (%s), asked for is GPU %d (%s)" % (
                prop.location.id, device.uuid(prop.location.id), device.ordinal, device.uuid(device.id)))
        call("cuMemAddressReserve", ctypes.byref(at), size, 0, 0, 0)
        try:
            call("cuMemMap", at, size, 0, handle, 0)
            try:
                access = _Access(_Location(_DEVICE, device.id), _READ_WRITE)
                call("cuMemSetAccess", at, size, ctypes.byref(access), 1)
            except GPUError:
                call("cuMemUnmap", at, size)
                raise
        except GPUError:
            call("cuMemAddressFree", at, size)
            raise
        self.device, self.pointer, self.size = device, at.value, size
        # Not at exit: kernels may still run, and the end of the process unmaps.
        weakref.finalize(self, _unmap, device, self.pointer, size, os.getpid()).atexit = False

    def lines(self, at, pitch, line, lines):
        b = ctypes.create_string_buffer(pitch * lines)
        with self.device:
            self.device.call("cuMemcpyDtoH_v2", b, self.pointer + at, pitch * lines)
        view = memoryview(b)
        return [view[i:i + line] for i in range(0, pitch * lines, pitch)]
