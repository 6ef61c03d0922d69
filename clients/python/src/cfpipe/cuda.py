"""GPU memory that a publisher shares, mapped through the CUDA driver (ctypes; no CUDA toolkit is needed)."""

import ctypes
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint64, c_void_p

from .control import CfpipeError


class _Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class _Access(ctypes.Structure):
    _fields_ = [("location", _Location), ("flags", c_int)]


def _driver():
    error = None
    for name in ("libcuda.so.1", "/usr/local/nvidia/lib64/libcuda.so.1", "/usr/lib/wsl/lib/libcuda.so.1"):
        try:
            return ctypes.CDLL(name)
        except OSError as e:
            error = error or e
    raise CfpipeError("the frames lie on a GPU, and there is no CUDA driver here: %s" % error, -14)


class Device:
    """A GPU's primary context, which PyTorch and CuPy use too."""

    def __init__(self, ordinal):
        self.lib, self.context, self.sizes, self.ordinal = _driver(), c_void_p(), {}, ordinal
        self._call("cuInit", 0)
        device = c_int()
        self._call("cuDeviceGet", byref(device), ordinal)
        self.device = device.value
        self._call("cuDevicePrimaryCtxRetain", byref(self.context), device)

    def _call(self, name, *args):
        code = getattr(self.lib, name)(*args)
        if code:
            text = c_char_p()
            self.lib.cuGetErrorName(code, byref(text))
            raise CfpipeError("%s: %s (%d)" % (name, (text.value or b"?").decode(), code), -3)

    def map(self, fd, size, granularity):
        """Maps what fd shares and returns its address; fd stays the caller's."""
        size = -(-size // granularity) * granularity
        handle, pointer = c_uint64(), c_uint64()
        self._call("cuCtxSetCurrent", self.context)
        self._call("cuMemImportFromShareableHandle", byref(handle), c_void_p(fd), 1)
        try:
            self._call("cuMemAddressReserve", byref(pointer), c_size_t(size), c_size_t(0), c_uint64(0), c_uint64(0))
            try:
                self._call("cuMemMap", pointer, c_size_t(size), c_size_t(0), handle, c_uint64(0))
                try:
                    access = _Access(_Location(1, self.device), 3)
                    self._call("cuMemSetAccess", pointer, c_size_t(size), byref(access), c_size_t(1))
                except BaseException:
                    self.lib.cuMemUnmap(pointer, c_size_t(size))
                    raise
            except BaseException:
                self.lib.cuMemAddressFree(pointer, c_size_t(size))
                raise
        finally:
            self.lib.cuMemRelease(handle)
        self.sizes[pointer.value] = size
        return pointer.value

    def unmap(self, pointer):
        size = c_size_t(self.sizes.pop(pointer))
        self.lib.cuCtxSetCurrent(self.context)
        self.lib.cuMemUnmap(c_uint64(pointer), size)
        self.lib.cuMemAddressFree(c_uint64(pointer), size)

    def close(self):
        if self.context:
            self.context = None
            self.lib.cuDevicePrimaryCtxRelease_v2(self.device)
