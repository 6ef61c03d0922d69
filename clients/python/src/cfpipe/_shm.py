"""Shared memory files of strangers, without ever touching a mapping of them.

The owner of a file in /dev/shm can cut it at any time, and a load from a mapping of what is gone kills the process. So everything here
goes through the kernel, which answers instead: reads are pread(2) (the same pages, a short read where the file was cut), waits and
the atomic operations are futex(2) (EFAULT where the page is gone). The mapping exists because a futex needs an address.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import platform
import stat
import struct
import time
import weakref

from .errors import FaultError, MountError, ProtocolError

DIR = "/dev/shm"
PREFIX = "cuframes-"

_SYS_FUTEX = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
_WEAK_ORDER = platform.machine() != "x86_64"  # x86-64 keeps loads in order by itself
_WAIT, _WAKE_OP, _PRIVATE = 0, 5, 128
_OP_ADD, _OP_OR, _OP_SHIFT = 1, 2, 8

_libc = ctypes.CDLL(None, use_errno=True)
_mmap, _munmap, _syscall = _libc.mmap, _libc.munmap, _libc.syscall
_mmap.restype = ctypes.c_void_p
_mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_munmap.restype = ctypes.c_int
_munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_syscall.restype = ctypes.c_long
_syscall.argtypes = [ctypes.c_long, ctypes.c_void_p, ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_long]


class _Timespec(ctypes.Structure):
    _fields_ = [("sec", ctypes.c_long), ("nsec", ctypes.c_long)]


def _futex(address, op, value, timeout, address2, value3):
    if _SYS_FUTEX is None:
        raise OSError(errno.ENOSYS, "no futex on " + platform.machine())
    while True:
        if _syscall(_SYS_FUTEX, address, op, value, timeout, address2, value3) >= 0:
            return 0
        e = ctypes.get_errno()
        if e == errno.EFAULT:
            raise FaultError("shared memory: the owner has cut the file")
        if e != errno.EINTR or op == _WAIT:
            return e


def _operation(op, bit):
    """The argument of FUTEX_WAKE_OP for: word = word op (1 << bit). Its comparison (== 0) has nobody to wake."""
    return (op | _OP_SHIFT) << 28 | bit << 12


_scratch = ctypes.create_string_buffer(8)
_scratch_at = (ctypes.addressof(_scratch) + 3) & ~3



def kernel_barrier():
    """A full barrier, as the kernel's atomic operation on a user's word is one."""
    _futex(_scratch_at, _WAKE_OP | _PRIVATE, 0, None, _scratch_at, _operation(_OP_OR, 0))


def load_barrier():
    """What was loaded before is not loaded later."""
    if _WEAK_ORDER:
        kernel_barrier()


def shm_name(path):
    """The name, directly in /dev/shm, of a path that a publisher told. Nothing else is opened."""
    name = path[len(DIR) + 1:] if path.startswith(DIR + "/") else path
    if not name.startswith(PREFIX) or len(name) == len(PREFIX) or len(name) > 255 or "/" in name or "\0" in name:
        raise ProtocolError("%r is no cuframes file directly in %s" % (path[:300], DIR))
    return name


def map_file(fd, size, writable, name):
    """Maps the first size bytes and returns their address."""
    prot = mmap.PROT_READ | (mmap.PROT_WRITE if writable else 0)
    address = _mmap(None, size, prot, mmap.MAP_SHARED, fd, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        e = ctypes.get_errno()
        raise OSError(e, os.strerror(e), name)
    return address


def unmap(address, size):
    _munmap(address, size)


def _release(fd, address, size):
    _munmap(address, size)
    os.close(fd)


class File:
    """A file in /dev/shm. close() may be called twice; what is forgotten is closed by the garbage collector."""

    def __init__(self, name, writable=False):
        self.name = shm_name(name)
        path = DIR + "/" + self.name
        flags = os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
        self.writable = writable
        try:
            fd = os.open(path, flags | (os.O_RDWR if writable else os.O_RDONLY))
        except FileNotFoundError:
            raise MountError(
                "%s is not there although its publisher is: this process has another %s (see findmnt %s); "
                "in a container share the publisher's /dev/shm, by a volume or --ipc" % (path, DIR, DIR)
            ) from None
        except OSError as e:
            if e.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
                raise ProtocolError("%s is no plain file" % path) from None
            raise
        st = os.fstat(fd)
        if not stat.S_ISREG(st.st_mode) or not 0 < st.st_size < 1 << 33:
            os.close(fd)
            raise ProtocolError("%s is no plain file with content" % path)
        self.fd, self.size, self.identity = fd, st.st_size, (st.st_dev, st.st_ino)
        self._length = min(self.size, 2 * mmap.PAGESIZE)
        try:
            self._address = map_file(fd, self._length, writable, path)
        except OSError:
            os.close(fd)
            raise
        self._finalize = weakref.finalize(self, _release, fd, self._address, self._length)

    def close(self):
        self._finalize()

    @property
    def closed(self):
        return not self._finalize.alive

    def read(self, n, at):
        b = os.pread(self.fd, n, at)
        if len(b) != n:
            raise FaultError("%s/%s: the owner has cut the file" % (DIR, self.name))
        return b

    # A word of 8 bytes that the kernel copies could in theory be torn, and is compared or read until that cannot matter:
    # a seq is only compared for equality (a slot's seq passes through all ones), counters only grow.

    def u64(self, at):
        return _U64.unpack(self.read(8, at))[0]

    def counter(self, at):
        """A counter that grows: not newer than it is."""
        return min(self.u64(at), self.u64(at))

    def cursor(self, at):
        """A counter that grows, exactly as it was at some moment; None when it does not stand still."""
        before = self.u64(at)
        for _ in range(64):
            now = self.u64(at)
            if now == before:
                return now
            before = now
        return None

    def wait(self, at, seen, timeout):
        """Sleeps until the word at is not the low 32 bits of seen, a wake, or the timeout, of which it returns False."""
        t = _Timespec(int(timeout), int(timeout % 1 * 1e9))
        return _futex(self._address + at, _WAIT, seen & 0xFFFFFFFF, ctypes.addressof(t), None, 0) != errno.ETIMEDOUT

    def fetch_or(self, at, bit):
        """Sets a bit (0…31) of a word that others change too, atomically, and wakes who waits on it."""
        a = self._address + at
        _check(_futex(a, _WAKE_OP, 0x7FFFFFFF, None, a, _operation(_OP_OR, bit)))

    def advance(self, at, by):
        """Adds to the low 32 bits of a word that only this process changes; no other sees more than the sum."""
        a = self._address + at
        for bit in range(32):
            if by >> bit & 1:
                _check(_futex(a, _WAKE_OP, 0, None, a, _operation(_OP_ADD, bit)))

    def stamp(self, at):
        """Stores the time, for people who look."""
        if os.fstat(self.fd).st_size >= at + 8:
            os.pwrite(self.fd, _I64.pack(time.time_ns()), at)

    def locked(self):
        """Whether a publisher holds the lock of this file: it lives, and it wakes its readers."""
        try:
            fcntl.flock(self.fd, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
        fcntl.flock(self.fd, fcntl.LOCK_UN)
        return False


def _check(e):
    if e:
        raise OSError(e, "futex: " + os.strerror(e))


_U64, _I64 = struct.Struct("<Q"), struct.Struct("<q")


class Waiter:
    """Waits for a counter to move. A publisher that does not wake its readers is noticed and looked at often."""

    def __init__(self, file, at, locked):
        self.file, self.at, self.locked = file, at, locked
        self.polling, self.strikes, self.woken = False, 0, 0

    def wait(self, seen, limit):
        """Sleeps for at most limit seconds, in which the publisher's connection is not looked at."""
        longest = 0.0005 if self.polling else 0.1 if self.locked else 0.02
        if self.file.wait(self.at, seen, max(min(longest, limit), 0.00001)):
            self.strikes = 0
            if self.polling:
                self.woken += 1
                if self.woken >= 4:
                    self.polling, self.woken = False, 0
        elif (self.file.u64(self.at) ^ seen) & 0xFFFFFFFF:
            self.woken = 0
            self.strikes += 1
            # Once may be chance: the publisher was between its store and its wake.
            self.polling = self.polling or self.strikes >= 2 or not self.locked
