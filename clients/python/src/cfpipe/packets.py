"""Packets: a camera's access units as bytes."""

import struct
import time

from . import control
from .control import CfpipeError, Disconnected, Subscription
from .shared import Memory

MAGIC = 0xCC7C1DCD
KEY, CORRUPT, DISCONTINUITY = 1, 2, 4
_HEADER, _SLOT = 0x1040, 64
_GLOBAL_SEQ, _LAST_KEY, _WRITE_OFFSET, _SHUTDOWN = 0x20, 0x28, 0x30, 0x38


class Packet:
    """One access unit: data (bytes), pts_ns and dts_ns (Unix time), flags, seq. discontinuity: packets are missing before it."""

    __slots__ = ("seq", "pts_ns", "dts_ns", "flags", "data")

    def __init__(self, seq, pts, dts, flags, data):
        self.seq, self.pts_ns, self.dts_ns, self.flags, self.data = seq, pts, dts, flags, data

    @property
    def key(self):
        return bool(self.flags & KEY)


class Packets:
    """The packets of a key from the newest keyframe on. Iterating ends with the publisher."""

    def __init__(self, key, directory=None, name=None):
        self.key, self.lost = key, 0
        self.sub = Subscription(key, control.WANTS_PACKETS, directory=directory, name=name)
        try:
            path = control.shm_path(self.sub.packet_shm)
            try:
                self.shm = Memory(path, True, _HEADER)  # for the futex: nothing is written
            except PermissionError:
                self.shm = Memory(path, False, _HEADER)
            self.slots, self.size, self.codec_id, n = (self.shm.u32(o) for o in (8, 12, 16, 20))
            if self.shm.u32(0) != MAGIC or not 1 <= self.slots <= 1024 or n > 4096 or not self.size:
                raise CfpipeError("%s is no packet ring" % self.sub.packet_shm)
            self.data = _HEADER + self.slots * _SLOT
            if self.data + self.size > self.shm.size:
                raise CfpipeError("the packet ring of %s is shorter than its header says" % key)
            self.extradata = bytes(self.shm.bytes[0x40:0x40 + n])
        except BaseException:
            self.sub.close()
            raise
        self.last = max(self.shm.load(_LAST_KEY), 1) - 1
        self._gap = False

    def _read(self, want):
        """The packet with the number want, or None when it is not whole any more."""
        at = _HEADER + want % self.slots * _SLOT
        if self.shm.load(at) != want:
            return None
        pts, dts, offset, size, flags = struct.unpack_from("<qqQII", self.shm.bytes, at + 8)
        if size > self.size or self.shm.load(_WRITE_OFFSET) - offset > self.size:
            return None
        begin = offset % self.size
        first = min(size, self.size - begin)
        data = bytes(self.shm.bytes[self.data + begin:self.data + begin + first]) + bytes(self.shm.bytes[self.data:self.data + size - first])
        # The publisher moves write_offset before it touches the bytes, so this look tells.
        if self.shm.load(at) != want or self.shm.load(_WRITE_OFFSET) - offset > self.size:
            return None
        return Packet(want, pts, dts, flags, data)

    def next(self, timeout=None):
        """The next packet. After packets were lost it is the oldest keyframe that is left, with the DISCONTINUITY flag."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            newest = self.shm.load(_GLOBAL_SEQ)
            for seq in range(max(self.last + 1, newest - self.slots + 1), newest + 1) if newest > self.last else ():
                p = self._read(seq)
                if p and (seq == self.last + 1 and not self._gap or p.key):
                    self.lost += seq - self.last - 1
                    if self._gap or seq != self.last + 1:
                        p.flags |= DISCONTINUITY
                    self.last, self._gap = seq, False
                    return p
                self._gap = True
            if self.shm.load(_SHUTDOWN) and newest == self.shm.load(_GLOBAL_SEQ) and (newest <= self.last or self._gap):
                raise Disconnected("the packets of %s have ended" % self.key, -11)
            if newest <= self.last:
                self.sub.check()
            left = 0.2 if until is None else until - time.monotonic()
            if left <= 0:
                raise TimeoutError("no packet of %s" % self.key)
            self.shm.wait(_GLOBAL_SEQ, newest, min(left, 0.2))

    def __iter__(self):
        while True:
            try:
                yield self.next()
            except Disconnected:
                return

    def close(self):
        self.sub.close()
        self.shm.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
