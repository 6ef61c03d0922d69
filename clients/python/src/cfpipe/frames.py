"""Frames: pictures in host memory as NumPy views, in GPU memory as arrays with __cuda_array_interface__."""

import fcntl
import mmap
import os
import struct
import time

from . import control
from .control import CfpipeError, Disconnected, Subscription
from .shared import Memory

MAGIC = 0xCC7C1DCE
INVALID = 0xFFFFFFFFFFFFFFFF
FORMATS = ("NV12", "P010", "YUV420P", "RGB24", "BGR24", "RGBA32", "BGRA32", "GRAY8", "P016")
_HEADER, _SLOT, _SUBSCRIBER, _FILE = 0x100, 192, 128, 7424
_GLOBAL_SEQ, _SHUTDOWN = 0xC0, 0xD0
F_GET_SEALS, SEAL_SHRINK = 1034, 2


class Plane:
    """Where a plane stands in a slot: offset and pitch in bytes, shape as an array has it, dtype "u1" or "<u2"."""

    def __init__(self, offset, pitch, shape, dtype):
        self.offset, self.pitch, self.shape, self.dtype = offset, pitch, shape, dtype

    @property
    def strides(self):
        item = int(self.dtype[-1])
        return (self.pitch,) + ((item * self.shape[2], item) if len(self.shape) == 3 else (item,))


class Meta:
    """The layout of a ring's frames."""

    def __init__(self, raw):
        f, self.width, self.height, self.pitch_y, self.pitch_uv, _, self.size = struct.unpack_from("<IIIIIIQ", raw)
        if f >= len(FORMATS):
            raise CfpipeError("pixel format %d" % f)
        self.format = FORMATS[f]
        w, h, cw, ch, y, uv = self.width, self.height, (self.width + 1) // 2, (self.height + 1) // 2, self.pitch_y, self.pitch_uv
        if not (0 < w <= 65536 and 0 < h <= 65536 and y <= 1 << 20 and uv <= 1 << 20 and self.size <= 1 << 32):
            raise CfpipeError("the publisher's layout is impossible: %dx%d, pitches %d and %d" % (w, h, y, uv))
        if self.format in ("NV12", "P010", "P016"):
            t = "|u1" if self.format == "NV12" else "<u2"
            self.planes = [Plane(0, y, (h, w), t), Plane(y * h, uv, (ch, cw, 2), t)]
        elif self.format == "YUV420P":
            self.planes = [Plane(0, y, (h, w), "|u1"), Plane(y * h, uv, (ch, cw), "|u1"), Plane(y * h + uv * ch, uv, (ch, cw), "|u1")]
        elif self.format == "GRAY8":
            self.planes = [Plane(0, y, (h, w), "|u1")]
        else:
            self.planes = [Plane(0, y, (h, w, 4 if "32" in self.format else 3), "|u1")]
        for p in self.planes:
            line = int(p.dtype[-1]) * p.shape[1] * (p.shape[2] if len(p.shape) == 3 else 1)
            if line > p.pitch or p.offset + p.pitch * p.shape[0] > self.size:
                raise CfpipeError("the publisher's layout is impossible: a plane lies beyond the frame")


class GPUArray:
    """A plane in GPU memory; PyTorch (torch.as_tensor), CuPy (cupy.asarray) and Numba take it without a copy."""

    def __init__(self, frame, plane, pointer):
        self.frame = frame
        self.__cuda_array_interface__ = {
            "shape": plane.shape, "strides": plane.strides, "typestr": plane.dtype, "data": (pointer + plane.offset, False), "version": 3,
        }


class Frame:
    """A picture in its slot. Its memory may be overwritten until release, which says whether it was."""

    def __init__(self, ring, seq, pts, slot):
        self.seq, self.pts_ns, self.meta, self._ring, self._slot, self._released = seq, pts, ring.meta, ring, slot, False

    @property
    def on_gpu(self):
        return self._ring.cuda is not None

    def memory(self):
        """The slot's bytes (host memory), read-only."""
        if self.on_gpu:
            raise CfpipeError("the frame lies in GPU memory: use cuda()")
        return self._ring.slots[self._slot]

    def numpy(self):
        """The planes as NumPy views of shared memory: NV12 gives (height, width) and (height/2, width/2, 2)."""
        import numpy
        m = self.memory()
        return [numpy.ndarray(p.shape, p.dtype, m, p.offset, p.strides) for p in self.meta.planes]

    def cuda(self):
        """The planes as arrays in GPU memory, for torch.as_tensor(plane, device="cuda") or cupy.asarray(plane)."""
        if not self.on_gpu:
            raise CfpipeError("the frame lies in host memory: use numpy()")
        return [GPUArray(self, p, self._ring.slots[self._slot]) for p in self.meta.planes]

    def intact(self):
        """False: the publisher has begun to overwrite the picture. Ask after the last read (on a GPU: after synchronising)."""
        return self._ring.shm.load(_HEADER + self._slot * _SLOT) == self.seq

    def release(self):
        """Acknowledges the frame and returns intact()."""
        ok = self.intact()
        if ok and not self._released:
            self._released = True
            self._ring._acknowledge(self._slot, self.seq)
        return ok


class _Ring:
    """One generation of a publisher's frames."""

    def __init__(self, sub, device):
        self.sub, self.meta, self.slots, self.cuda, self.shm, self._maps = sub, Meta(sub.meta), [], None, None, []
        try:
            self.shm = Memory(control.shm_path(sub.shm), True, _HEADER)
            if self.shm.u32(0) != MAGIC or self.shm.load(0x20) != sub.ring_size or bytes(self.shm.bytes[0x40:0x80]) != sub.meta:
                raise Disconnected("the frame ring of %s is of another generation" % sub.key, -11)
            self.table = 0xD00 if self.shm.size >= _FILE else _HEADER + sub.ring_size * _SLOT
            if self.shm.load(self.table + sub.bit * _SUBSCRIBER) == 0:
                raise Disconnected("the frame ring of %s is of another generation" % sub.key, -11)
            self.strict_wait = self.shm.load(0x30) == 1
            fds = sub.take_fds()
            try:
                while fds:
                    self._import(fds[0], device)
                    os.close(fds.pop(0))
            finally:
                for fd in fds:
                    os.close(fd)
        except BaseException:
            self.close()
            raise

    def _import(self, fd, device):
        size = self.sub.mapping_size
        if not 0 < self.meta.size <= size <= 1 << 32:
            raise CfpipeError("mappings of %d bytes for frames of %d" % (size, self.meta.size))
        try:
            seals = fcntl.fcntl(fd, F_GET_SEALS)
        except OSError:  # not a memfd: GPU memory
            from .cuda import Device
            if self.cuda is None:
                self.cuda = Device(device)
            self.slots.append(self.cuda.map(fd, size, self.sub.granularity))
            return
        if not seals & SEAL_SHRINK or os.fstat(fd).st_size < self.meta.size:
            raise CfpipeError("the publisher's memory is too small, or could be cut under its readers")
        m = mmap.mmap(fd, self.meta.size, mmap.MAP_SHARED, mmap.PROT_READ)
        self._maps.append(m)
        self.slots.append(memoryview(m))

    def _acknowledge(self, slot, seq):
        me = self.table + self.sub.bit * _SUBSCRIBER
        self.shm.fetch_or(_HEADER + slot * _SLOT + 0x10, 1 << self.sub.bit)  # first: last_seen_seq counts as an ACK too
        self.shm.store(me + 0x10, seq)
        self.shm.store(me + 0x18, time.time_ns())
        if self.strict_wait:
            self.shm.wake(_HEADER + slot * _SLOT + 0x10)

    def look(self, last, strict):
        """The next frame after last, or None; and the newest number."""
        newest, n = self.shm.load(_GLOBAL_SEQ), self.sub.ring_size
        if newest <= last or newest == INVALID:
            return None, newest
        want = newest
        if strict:
            first = max(last + 1, newest - n + 1)
            want = next((s for s in range(first, newest) if self.shm.load(_HEADER + s % n * _SLOT) == s), newest)
        at = _HEADER + want % n * _SLOT
        if self.shm.load(at) != want:
            return None, newest
        pts = struct.unpack("<q", struct.pack("<Q", self.shm.load(at + 8)))[0]
        if self.shm.load(at) != want:
            return None, newest
        for s in range(max(last + 1, want - n + 1), want):  # passed over: owed all the same
            if self.shm.load(_HEADER + s % n * _SLOT) == s:
                self._acknowledge(s % n, s)
        return Frame(self, want, pts, want % n), newest

    def close(self):
        self.sub.close()
        if self.cuda is not None:
            for pointer in self.slots:
                self.cuda.unmap(pointer)
            self.cuda.close()
        self.slots = []
        for m in self._maps:
            try:
                m.close()
            except BufferError:
                pass  # a view of it is still in use; the mapping goes with the last one
        self._maps = []
        if self.shm is not None:
            self.shm.close()
            self.shm = None


class Frames:
    """The frames of a key. Iterating blocks for each next frame and ends with the publisher, unless follow is set: then the next
    publisher, or generation of frames, is waited for. strict gives all frames in order, else always the newest."""

    def __init__(self, key, strict=False, follow=True, wait=0.0, device=0, directory=None, name=None):
        self.key, self.strict, self.follow, self._o = key, strict, follow, dict(device=device, directory=directory, name=name)
        self.lost, self.generation, self.last, self._ring = 0, 0, 0, None
        self._attach(time.monotonic() + wait)

    def _attach(self, until):
        while True:
            try:
                sub = Subscription(self.key, control.WANTS_FRAMES, self.strict, **self._o)
                ring = _Ring(sub, self._o["device"])
            except (control.NotFound, Disconnected):
                if until is not None and time.monotonic() >= until:
                    raise
                time.sleep(0.02)
                continue
            self._ring, self.last = ring, sub.initial_seq
            return

    @property
    def meta(self):
        return self._ring.meta

    def next(self, timeout=None):
        """The next frame. TimeoutError after timeout seconds; Disconnected when the publisher has ended, without follow."""
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            try:
                self._ring.sub.check()
                ended = None
            except (Disconnected, OSError) as e:
                ended = e
            frame, seen = self._ring.look(self.last, self.strict)
            if frame:
                if self.strict:
                    self.lost += frame.seq - self.last - 1
                self.last = frame.seq
                return frame
            if ended is not None:
                self._ring.close()
                if not self.follow:
                    raise Disconnected("the frames of %s have ended" % self.key, -11) from ended
                self._attach(until)
                self.generation += 1
                continue
            left = 0.2 if until is None else until - time.monotonic()
            if left <= 0:
                raise TimeoutError("no frame of %s" % self.key)
            if seen <= self.last:
                self._ring.shm.wait(_GLOBAL_SEQ, seen, min(left, 0.2))

    def __iter__(self):
        while True:
            try:
                yield self.next()
            except Disconnected:
                return

    def close(self):
        if self._ring is not None:
            self._ring.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
