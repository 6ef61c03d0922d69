"""Words in shared memory: loads and stores of eight bytes, the futex, the atomic or."""

import ctypes
import mmap
import os
import platform
import struct

_libc = ctypes.CDLL(None, use_errno=True)
_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
try:
    _fetch_or = ctypes.CDLL("libatomic.so.1").__getattr__("__atomic_fetch_or_8")
    _fetch_or.restype, _fetch_or.argtypes = ctypes.c_uint64, (ctypes.c_void_p, ctypes.c_uint64, ctypes.c_int)
except (OSError, AttributeError):
    _fetch_or = None


class _Timespec(ctypes.Structure):
    _fields_ = [("sec", ctypes.c_long), ("nsec", ctypes.c_long)]


class Memory:
    """A file of /dev/shm, mapped. 64-bit words are read and written in one access, as CPython does for aligned native words."""

    def __init__(self, path, write, minimum):
        fd = os.open(path, (os.O_RDWR if write else os.O_RDONLY) | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            size = os.fstat(fd).st_size
            if size < minimum:
                raise ValueError("%s: %d bytes, at least %d are needed" % (path, size, minimum))
            self.map = mmap.mmap(fd, size, mmap.MAP_SHARED, mmap.PROT_READ | (mmap.PROT_WRITE if write else 0))
        finally:
            os.close(fd)
        self.size, self.write = size, write
        self.bytes = memoryview(self.map)
        self.words = self.bytes[:size - size % 8].cast("Q")
        # The address, for the futex: of the page itself, also when it is mapped for reading alone.
        self.address = ctypes.addressof(ctypes.c_char.from_buffer(self.map)) if write else None

    def load(self, offset):
        return self.words[offset // 8]

    def store(self, offset, value):
        self.words[offset // 8] = value

    def u32(self, offset):
        return struct.unpack_from("<I", self.bytes, offset)[0]

    def fetch_or(self, offset, value):
        if _fetch_or and self.address:
            _fetch_or(self.address + offset, value, 5)
        else:
            self.words[offset // 8] |= value  # two readers at once may lose one: last_seen_seq says it all the same

    def wait(self, offset, value, timeout):
        """Sleeps while the word's low half is value, at most timeout seconds; may return early."""
        if not (_SYS_FUTEX and self.address):
            import time
            time.sleep(min(timeout, 0.001))
            return
        t = _Timespec(int(timeout), int(timeout % 1 * 1e9))
        _libc.syscall(_SYS_FUTEX, ctypes.c_void_p(self.address + offset), 0, ctypes.c_uint32(value & 0xFFFFFFFF), ctypes.byref(t), None, 0)

    def wake(self, offset):
        if _SYS_FUTEX and self.address:
            _libc.syscall(_SYS_FUTEX, ctypes.c_void_p(self.address + offset), 1, 0x7FFFFFFF, None, None, 0)

    def close(self):
        self.words.release()
        self.bytes.release()
        try:
            self.map.close()
        except BufferError:
            pass  # ctypes holds the address; the mapping goes with the object
