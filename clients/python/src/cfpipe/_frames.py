"""The frame ring: decoded pictures, in host memory or on a GPU."""

import collections
import errno
import os
import struct

from . import _control, _memory, _shm
from ._dlpack import CUDA, capsule
from ._subscription import Subscription
from .errors import EndedError, FaultError, FrameOverrun, ProtocolError

_MAGIC = 0xCC7C1DCE
_HEADER, _SLOT, _ENTRY, _ENTRIES = 0x100, 192, 128, 32
_FIXED = 7424  # bytes of a file with room for 16 slots
_GLOBAL, _SHUTDOWN = 0xC0, 0xD0
_SEQ, _PTS, _ACK = 0x00, 0x08, 0x10
_STATE, _SEEN, _STAMP = 0x00, 0x10, 0x18
_INVALID = (1 << 64) - 1
_DROP_OLDEST, _STRICT_WAIT = 0, 1

_MAX_SIDE, _MAX_PITCH, _MAX_FRAME = 1 << 16, 1 << 20, 1 << 32

FORMATS = ("NV12", "P010", "YUV420P", "RGB24", "BGR24", "RGBA32", "BGRA32", "GRAY8", "P016")

_Layout = collections.namedtuple("_Layout", "name offset shape strides bits")


def _layout(m):
    """Where the planes stand, checked: every line within its pitch, every plane within the frame."""
    if m.format >= len(FORMATS):
        raise ProtocolError("frames of format %d" % m.format)
    if not (0 < m.width <= _MAX_SIDE and 0 < m.height <= _MAX_SIDE and 0 < m.pitch_y <= _MAX_PITCH and m.pitch_uv <= _MAX_PITCH
            and m.frame_size <= _MAX_FRAME):
        raise ProtocolError("frames of %d×%d, pitches %d and %d, %d bytes" % (m[1:5] + (m.frame_size,)))
    w, h, cw, ch = m.width, m.height, (m.width + 1) // 2, (m.height + 1) // 2
    y, uv, name = m.pitch_y, m.pitch_uv, FORMATS[m.format]
    if name in ("NV12", "P010", "P016"):
        n = 1 if name == "NV12" else 2
        planes = (_Layout("y", 0, (h, w), (y, n), 8 * n), _Layout("uv", y * h, (ch, cw, 2), (uv, 2 * n, n), 8 * n))
    elif name == "YUV420P":
        planes = (_Layout("y", 0, (h, w), (y, 1), 8), _Layout("u", y * h, (ch, cw), (uv, 1), 8),
                  _Layout("v", y * h + uv * ch, (ch, cw), (uv, 1), 8))
    elif name == "GRAY8":
        planes = (_Layout("y", 0, (h, w), (y, 1), 8),)
    else:
        n = 3 if name.endswith("24") else 4
        planes = (_Layout(name[:-2].lower(), 0, (h, w, n), (y, n, 1), 8),)
    for p in planes:
        line = p.shape[1] * p.strides[1]
        if line > p.strides[0] or p.offset + p.strides[0] * p.shape[0] > m.frame_size:
            raise ProtocolError("%s of %d×%d: plane %s does not fit pitches %d and %d, %d bytes" % (name, w, h, p.name, y, uv, m.frame_size))
    return planes


class Plane:
    """One plane of a frame, without a copy: NumPy takes it with asarray (host memory), CuPy and PyTorch with asarray, as_tensor or
    from_dlpack (GPU memory). It keeps its frame's lease.

    name: "y", "uv", "u", "v", "rgb" …; shape: (lines, pixels) or (lines, pixels, channels); strides: in bytes; dtype: "|u1" or "<u2".
    """

    def __init__(self, frame, memory, layout):
        self.frame, self._memory, self._bits = frame, memory, layout.bits
        self.name, self.offset, self.shape, self.strides = layout.name, layout.offset, layout.shape, layout.strides
        self.dtype = "|u1" if layout.bits == 8 else "<u2"

    def _interface(self, data):
        return {"version": 3, "shape": self.shape, "strides": self.strides, "typestr": self.dtype, "data": data}

    @property
    def __array_interface__(self):
        if self._memory.on_gpu:
            raise AttributeError("the plane lies in GPU memory")
        return self._interface((self._memory.pointer + self.offset, True))

    def __array__(self, *_, **__):  # NumPy asks for the interface above first
        raise TypeError("the plane lies in GPU memory: use CuPy or PyTorch, or tobytes()")

    @property
    def __cuda_array_interface__(self):
        # Not marked read-only, because PyTorch refuses that: do not write all the same. No stream: the pixels are there.
        return dict(self._interface((self.pointer, False)), stream=None)

    @property
    def pointer(self):
        """Address in GPU memory."""
        if not self._memory.on_gpu:
            raise AttributeError("the plane lies in host memory")
        return self._memory.pointer + self.offset

    def __dlpack_device__(self):
        if not self._memory.on_gpu:
            raise BufferError("the plane lies in host memory: use NumPy")
        return CUDA, self._memory.device.ordinal

    def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
        device = self.__dlpack_device__()
        if copy or dl_device not in (None, device):
            raise BufferError("a frame is shared as it lies")
        n = self._bits // 8
        return capsule(self, self.pointer, device[1], self._bits, self.shape, [s // n for s in self.strides])

    def tobytes(self):
        """The pixels, line after line without padding. From GPU memory this is a copy over the bus."""
        return b"".join(self._memory.lines(self.offset, self.strides[0], self.shape[1] * self.strides[1], self.shape[0]))


class Frame:
    """A lease on one picture. Its memory stays mapped as long as planes or arrays of it are there, but the publisher may overwrite it:
    release() tells. As a context manager it raises FrameOverrun at the end of the block when that has happened.

    seq, pts_ns (Unix time in ns), lost (frames lost in front of this one), format ("NV12" …), width, height.
    """

    def __init__(self, ring, seq, pts_ns, lost):
        self._ring, self.seq, self.pts_ns, self.lost = ring, seq, pts_ns, lost
        self.format, self.width, self.height = FORMATS[ring.meta.format], ring.meta.width, ring.meta.height
        self._memory, self._whole = ring.memory[seq % len(ring.memory)], None
        ring.leases.add(seq)

    @property
    def planes(self):
        """A tuple of Plane."""
        return tuple(Plane(self, self._memory, p) for p in self._ring.layout)

    @property
    def on_gpu(self):
        return self._memory.on_gpu

    def tobytes(self):
        """All planes without padding, as `cfpipe frames --format raw` writes them. Look at check() or release() afterwards."""
        return b"".join(p.tobytes() for p in self.planes)

    def check(self):
        """Whether the picture is still whole. Ask after the last use of its pixels; on a GPU after the stream is synchronised."""
        return self._ring.whole(self.seq) if self._whole is None else self._whole

    def release(self):
        """Gives the lease back, and returns whether the picture was whole until now (see check). False: what was made of its pixels
        may mix two pictures. A second call returns the same."""
        if self._whole is None:
            self._whole = self._ring.release(self.seq)
        return self._whole

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if not self.release() and kind is None:
            raise FrameOverrun("frame %d was overwritten while it was in use" % self.seq)

    def __del__(self):
        try:
            self.release()
        except Exception:  # half made, or the interpreter ends
            pass

    def __repr__(self):
        return "Frame(seq=%d, pts_ns=%d, %s %d×%d%s)" % (
            self.seq, self.pts_ns, self.format, self.width, self.height, ", on GPU" if self.on_gpu else "")


class _Ring:
    """The ring of one generation, and a position in it."""

    def __init__(self, connection, mode, device):
        c = connection
        self.layout = _layout(c.meta)
        self.meta, self.bit, self.mode = c.meta, c.bit, mode
        self.leases = set()
        self.pid = os.getpid()
        self.open, self.read, self.lost, self.skipped, self.overruns, self.progress, self.seen = True, 0, 0, 0, 0, 0, 0
        self.last = c.initial_seq
        try:
            self.file = _shm.File(c.shm_name, writable=True)
        except OSError as e:
            if not isinstance(e, PermissionError) and e.errno != errno.EROFS:
                raise
            self.file = _shm.File(c.shm_name)
        try:
            self._check(c)
            self.memory = _memory.import_memory(c.take_fds(), c.mapping_size, c.granularity, device)
        except BaseException:
            self.file.close()
            raise

    def _check(self, c):
        f = self.file
        if f.size < _HEADER:
            raise ProtocolError("%s: %d bytes are no frame ring" % (f.name, f.size))
        head = f.read(_HEADER, 0)
        magic, version = struct.unpack_from("<II", head)
        slots, _, policy = struct.unpack_from("<QQQ", head, 0x20)
        meta = _control.Meta(*struct.unpack_from("<6IQ", head, 0x40))
        if magic != _MAGIC or version != 4:
            raise ProtocolError("%s: magic %#x, protocol %d: no frame ring of protocol 4" % (f.name, magic, version))
        self.table = 0x0D00
        if f.size < _FIXED:
            self.table = _HEADER + c.ring_size * _SLOT
            if f.size != self.table + _ENTRIES * _ENTRY:
                raise ProtocolError("%s: %d bytes do not fit %d slots" % (f.name, f.size, c.ring_size))
        self.entry = self.table + c.bit * _ENTRY
        if f.u64(_SHUTDOWN) or not f.u64(self.entry + _STATE):
            raise EndedError("key %s: the frame ring is of another generation" % c.key)
        if slots != c.ring_size or meta != c.meta:
            raise ProtocolError("handshake and frame SHM differ: %d slots of %s, %d of %s" % (c.ring_size, c.meta, slots, meta))
        if policy == _STRICT_WAIT and not f.writable:
            raise PermissionError(errno.EACCES, "the publisher waits for acknowledgements, and the file cannot be written", _shm.DIR + "/" + f.name)
        self.count = slots
        self.waiter = _shm.Waiter(f, _GLOBAL, f.locked())

    def slot(self, seq):
        return _HEADER + seq % self.count * _SLOT

    def whole(self, seq):
        _shm.load_barrier()
        try:
            return self.file.u64(self.slot(seq) + _SEQ) == seq
        except (FaultError, OSError):
            return False

    def next(self):
        """The next frame, or None when there is nothing new."""
        f = self.file
        for _ in range(32):  # a publisher that is faster is caught up with by waiting
            self.seen = f.counter(_GLOBAL)
            if self.seen <= self.last or self.seen == _INVALID:
                return None
            want = self.seen if self.mode == _control.NEWEST_ONLY else self.following(self.seen)
            at = self.slot(want)
            if f.u64(at + _SEQ) != want:
                continue
            _shm.load_barrier()
            (pts,) = struct.unpack("<q", f.read(8, at + _PTS))
            _shm.load_barrier()
            if f.u64(at + _SEQ) != want:
                continue
            passed = want - self.last - 1
            for seq in range(max(want - min(passed, self.count - 1), 1), want):
                if f.u64(self.slot(seq) + _SEQ) == seq:
                    self.acknowledge(seq)
            strict = self.mode == _control.STRICT_ORDER
            self.read += 1
            self.lost += passed if strict else 0
            self.skipped += 0 if strict else passed
            self.last = want
            return Frame(self, want, pts, passed if strict else 0)
        return None

    def following(self, newest):
        """The frame after the last one, or the oldest that is still there."""
        for seq in range(max(self.last + 1, newest - self.count + 1), newest):
            if self.file.u64(self.slot(seq) + _SEQ) == seq:
                return seq
        return newest

    def acknowledge(self, seq):
        if self.file.writable and self.open:
            self.file.fetch_or(self.slot(seq) + _ACK, self.bit)

    def release(self, seq):
        if seq not in self.leases or self.pid != os.getpid():  # a forked child acknowledges nothing
            return False
        whole = self.whole(seq)
        self.leases.discard(seq)
        if not whole:
            self.overruns += 1
        elif self.open and self.file.writable:
            try:
                # The bit first: once last_seen_seq says so too, the publisher may put another frame into the slot, and the bit would
                # acknowledge that one.
                self.acknowledge(seq)
                # What is acknowledged in order: not beyond a frame that is still in use.
                seen = min(self.last, min(self.leases, default=_INVALID) - 1)
                if self.progress < seen < 1 << 32:
                    self.file.advance(self.entry + _SEEN, seen - self.progress)
                    self.progress = seen
                self.file.stamp(self.entry + _STAMP)
            except (FaultError, OSError):
                pass
        self._free()
        return whole

    def close(self):
        """Ends reading. The file stays until the last lease is given back, the memory until the last view of it is gone."""
        self.open = False
        self._free()

    def _free(self):
        if not self.open and not self.leases:
            self.file.close()


class FrameStats(collections.namedtuple("FrameStats", "read lost skipped overruns restarts")):
    """Counts over all generations followed: frames handed out, lost (mode "all"), passed over for a newer one (mode "newest"),
    overwritten in use, and generations or publishers that took over."""

    __slots__ = ()


class Frames(Subscription):
    """Frames of a key, as an iterator. See frames()."""

    _flags = _control.WANTS_FRAMES

    def __init__(self, key, mode, current, device, **options):
        if mode not in ("newest", "all"):
            raise ValueError('mode %r: want "newest" or "all"' % (mode,))
        self._mode = _control.NEWEST_ONLY if mode == "newest" else _control.STRICT_ORDER
        self._current, self._device = current, device
        self._ring, self._resume, self._given = None, None, None
        self._past = FrameStats(0, 0, 0, 0, 0)
        super().__init__(key, device=device, **options)

    def _install(self, connection):
        ring = self._open_file(connection, lambda: _Ring(connection, self._mode, self._device))
        if self._resume is not None:
            ring.last = min(ring.last, self._resume)
            self.generation += 1
        elif self._current and ring.last:
            ring.last -= 1
        self._ring = ring

    def _step(self):
        ended = self._connection.poll(0.05)  # asked first: what was published before the end is read
        try:
            frame = self._ring.next()
        except FaultError as e:
            self._lost(e)
            return None
        if frame is None and ended:
            self._lost(None)
        return frame

    def _same_publisher(self):
        return True

    def _lost(self, cause):
        self._connection.poll()
        ended = self._connection.ended
        self._resume = self._ring.last if isinstance(ended, EndedError) and ended.reason == 2 else 0
        self._forget()
        self._disconnect(cause)

    def _idle(self, limit):
        self._ring.waiter.wait(self._ring.seen, limit)
        self._connection.poll()

    def _forget(self):
        if self._ring:
            self._past = self.stats
            self._ring.close()
            self._ring = None

    def __next__(self):
        """The next frame. The one before is released, if nobody has done so yet."""
        if self._given is not None:
            self._given.release()
            self._given = None
        self._given = super().__next__()
        return self._given

    @property
    def stats(self):
        """FrameStats until now."""
        t, r = self._past, self._ring
        if r:
            t = FrameStats(t.read + r.read, t.lost + r.lost, t.skipped + r.skipped, t.overruns + r.overruns, 0)
        return t._replace(restarts=self.generation)

    def close(self):
        given, self._given = self._given, None
        if given is not None:
            given.release()
        super().close()


def frames(key, *, mode="newest", current=False, follow=False, wait=0.0, timeout=None, device=0, runtime_dir=None, name=None):
    """Subscribes to the frames of a key and returns an iterator of Frame, which is a context manager as well.

    mode: "newest" (always the newest picture; others are passed over) or "all" (in order; stats.lost counts what was overwritten).
    current: begin with the picture that is the newest now, not with the next one.
    device: GPU on which frames in GPU memory are mapped, as CUDA numbers them in this process.
    follow, wait, timeout: see packets(). A new generation of the same publisher (another size or format) is followed in any case.

    Iterating releases the frame before. Use next() to hold several leases, and release() each.
    """
    return Frames(key, mode, current, device, follow=follow, wait=wait, timeout=timeout, runtime_dir=runtime_dir, name=name)
