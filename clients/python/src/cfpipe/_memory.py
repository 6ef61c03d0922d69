"""Memory of frames: sealed memfds, or a GPU's."""

import ctypes
import fcntl
import os
import weakref

from . import _shm
from .errors import ProtocolError

# fcntl has these since Python 3.10 or not at all.
_F_GET_SEALS, _F_SEAL_SHRINK, _F_SEAL_GROW = 1034, 2, 4


class HostMemory:
    """A memfd, mapped for reading as long as anybody refers to this object."""

    on_gpu = False

    def __init__(self, fd, size, seals):
        if seals & (_F_SEAL_SHRINK | _F_SEAL_GROW) != _F_SEAL_SHRINK | _F_SEAL_GROW:
            raise ProtocolError("frame memory is not sealed: its owner could cut it under its readers")
        have = os.fstat(fd).st_size  # for ever: it is sealed
        if have < size:
            raise ProtocolError("frame memory has %d bytes, the publisher told of %d" % (have, size))
        self.pointer, self.size = _shm.map_file(fd, size, False, "frame memory"), size
        self._finalize = weakref.finalize(self, _shm.unmap, self.pointer, size)

    def lines(self, at, pitch, line, lines):
        base = self.pointer + at
        return [ctypes.string_at(base + i * pitch, line) for i in range(lines)]


def import_memory(fds, size, granularity, device):
    """Maps what the descriptors share, all or nothing, and closes them in every case."""
    try:
        slots = []
        for fd in fds:
            try:
                seals = fcntl.fcntl(fd, _F_GET_SEALS)
            except OSError:  # no memfd: GPU memory
                from . import _cuda

                slots.append(_cuda.DeviceMemory(_cuda.device(device), fd, size, granularity))
            else:
                slots.append(HostMemory(fd, size, seals))
        return slots
    finally:
        for fd in fds:
            os.close(fd)
