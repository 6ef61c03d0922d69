"""The packet ring: encoded access units."""

import collections
import struct
import time

from . import _control, _shm
from ._subscription import Subscription
from .errors import Error, FaultError, ProtocolError

KEY, CORRUPT, DISCONTINUITY, LAST_IN_AU = 1, 2, 4, 8

CODECS = {
    7: "mjpeg", 27: "h264", 173: "hevc", 225: "av1", 65537: "pcm_s16be", 65542: "pcm_mulaw", 65543: "pcm_alaw", 69643: "adpcm_g726",
    86018: "aac", 86076: "opus",
}

_MAGIC = 0xCC7C1DCD
_HEADER, _SLOT, _MAX_SLOTS, _MAX_EXTRADATA = 0x1040, 64, 1024, 4096
_GLOBAL, _WRITE, _SHUTDOWN = 0x20, 0x30, 0x38
_INVALID = (1 << 64) - 1
_MAX_SEQ = _INVALID - 2
_LIMIT = 32 << 20  # bytes of a packet; larger ones are lost
_IN_FLIGHT = 2 << 20  # bytes that a packet in flight is assumed to have, or a quarter of the ring
_FIELDS = struct.Struct("<qqQII")


class Packet(collections.namedtuple("Packet", "seq pts_ns dts_ns flags data")):
    """One access unit. pts_ns and dts_ns are Unix time in nanoseconds; data is bytes (Annex B for H.264 and H.265)."""

    __slots__ = ()

    key = property(lambda self: bool(self.flags & KEY), doc="A keyframe: decoding can begin here.")
    corrupt = property(lambda self: bool(self.flags & CORRUPT), doc="Damaged on its way from the camera.")
    discontinuity = property(lambda self: bool(self.flags & DISCONTINUITY), doc="Something is missing in front of this packet.")

    def __repr__(self):
        return "Packet(seq=%d, pts_ns=%d, dts_ns=%d, flags=%#x, %d bytes)" % (self[:4] + (len(self.data),))


class _Ring:
    """A ring and a position in it. It knows nothing of connections."""

    def __init__(self, name):
        self.file = _shm.File(name)
        try:
            self._open()
        except BaseException:
            self.file.close()
            raise

    def _open(self):
        f = self.file
        magic, self.protocol, self.slots, self.size, self.codec_id, n = struct.unpack("<6I", f.read(24, 0))
        if magic != _MAGIC or not 2 <= self.protocol <= 4:
            raise ProtocolError("%s: magic %#x, protocol %d: no packet ring" % (f.name, magic, self.protocol))
        if not 1 <= self.slots <= _MAX_SLOTS or self.size < 1 or n > _MAX_EXTRADATA:
            raise ProtocolError("%s: %d slots, %d bytes of data, %d of extradata" % (f.name, self.slots, self.size, n))
        self.data = _HEADER + self.slots * _SLOT
        if self.data + self.size > f.size:
            raise ProtocolError("%s: %d slots and %d bytes of data in a file of %d" % (f.name, self.slots, self.size, f.size))
        locked = f.locked()
        self.foreign = not locked
        self.waiter = _shm.Waiter(f, _GLOBAL, locked)
        self.want, self.need_key, self.gap, self.started = 1, True, False, False
        self.read, self.lost, self.overruns, self.bytes, self.first, self.last, self.seen = 0, 0, 0, 0, 0, 0, 0

    def newest(self):
        return min(self.file.counter(_GLOBAL), _MAX_SEQ)

    def ended(self):
        return self.file.u64(_SHUTDOWN) != 0

    def extradata(self):
        for _ in range(3):
            (n,) = struct.unpack("<I", self.file.read(4, 0x14))
            if not 0 < n <= _MAX_EXTRADATA:
                return b""
            b = self.file.read(n, 0x40)
            _shm.load_barrier()
            if struct.unpack("<I", self.file.read(4, 0x14))[0] == n:
                return b
        return b""

    def attempt(self, want, payload=True):
        """One try to read a packet: validate, copy, validate again. None when it is not whole."""
        f = self.file
        slot = _HEADER + want % self.slots * _SLOT
        if f.u64(slot) != want:
            return None
        _shm.load_barrier()
        pts, dts, offset, size, flags = _FIELDS.unpack(f.read(_FIELDS.size, slot + 8))
        if size > _LIMIT or size > self.size:
            return None
        room = self.room(0) if self.foreign else 0
        if not self.whole(offset, size, room):
            return None
        data = b""
        if payload and size:
            at = offset % self.size
            first = min(size, self.size - at)
            data = f.read(first, self.data + at)
            if first < size:
                data += f.read(size - first, self.data)
        _shm.load_barrier()
        if f.u64(slot) != want:
            return None
        if self.foreign:
            room = self.room(room)
        if not self.whole(offset, size, room):
            return None
        # A publisher that follows the protocol's text alone changes a slot's fields while its old seq stands.
        if self.foreign and self.newest() - want >= self.slots - 1:
            return None
        return Packet(want, pts, dts, flags, data)

    def whole(self, offset, size, room):
        cursor = self.file.cursor(_WRITE)
        if cursor is None:
            return False
        behind = (cursor - offset) & _INVALID
        return size <= behind <= self.size - room

    def room(self, least):
        """Bytes ahead of the cursor that a packet in flight may be overwriting already."""
        slots = self.file.read(self.slots * _SLOT, _HEADER)
        largest = max(
            (size for seq, size in ((struct.unpack_from("<Q", slots, i)[0], struct.unpack_from("<I", slots, i + 0x20)[0])
                                    for i in range(0, len(slots), _SLOT)) if seq != _INVALID), default=0)
        return max(least, min(largest, self.size), min(self.size // 4, _IN_FLIGHT))

    def seek(self, start):
        newest = self.newest()
        oldest = max(newest - self.slots + 1, 1)
        found = None
        if start != "oldest":
            for seq in range(newest, oldest - 1, -1):
                p = self.attempt(seq, False)
                if p and p.key and (start == "live" or p.pts_ns <= start):
                    found = seq
                    break
        if found is None and start != "live":
            found = self.oldest_key(oldest, newest)
        self.want = self.first = newest + 1 if found is None else found
        self.need_key, self.gap, self.started = True, False, found is not None

    def oldest_key(self, first, last):
        for seq in range(first, last + 1):
            p = self.attempt(seq, False)
            if p and p.key:
                return seq
        return None

    def next(self):
        """The next packet, or None when there is nothing new."""
        for _ in range(2 * _MAX_SLOTS):
            self.seen = self.file.counter(_GLOBAL)
            newest = min(self.seen, _MAX_SEQ)
            if self.want > newest:
                return None
            p = None
            if newest - self.want < self.slots:
                p = self.attempt(self.want, not self.need_key)
                if p and self.need_key:
                    if not p.key:
                        self.skip(self.want + 1)
                        continue
                    p = self.attempt(self.want)
            if p:
                return self.take(p)
            self.overrun()
        return None

    def take(self, p):
        if self.gap:
            p = p._replace(flags=p.flags | DISCONTINUITY)
        self.read += 1
        self.bytes += len(p.data)
        self.last = p.seq
        self.want += 1
        self.need_key, self.gap, self.started = False, False, True
        return p

    def overrun(self):
        """Goes on at the oldest whole keyframe that is newer than what could not be read, else behind all there is."""
        if not self.gap:
            self.overruns += 1
        self.gap = self.need_key = self.started = True
        newest = max(self.newest(), self.want)
        seq = self.oldest_key(max(self.want + 1, newest - self.slots + 1, 1), newest)
        self.skip(newest + 1 if seq is None else seq)

    def skip(self, seq):
        if self.started:
            self.lost += seq - self.want
        else:
            self.first = seq
        self.want = seq


class PacketStats(collections.namedtuple("PacketStats", "read lost overruns bytes restarts")):
    """Counts over all publishers followed: packets handed out and lost, losses in a row, payload bytes, publishers that took over."""

    __slots__ = ()


class Packets(Subscription):
    """Packets of a key, as an iterator. See packets()."""

    _flags = _control.WANTS_PACKETS

    def __init__(self, key, start, **options):
        if start not in ("live", "oldest") and not isinstance(start, int):
            raise ValueError('start %r: want "live", "oldest" or a time in Unix ns' % (start,))
        self._start = start
        self._ring, self._draining, self._follows = None, False, False
        self._mark, self._extradata = False, b""
        self._past = PacketStats(0, 0, 0, 0, 0)
        super().__init__(key, **options)

    def _install(self, connection):
        f = None
        if self._ring and not self._ring.file.closed:  # dropped by a publisher that lives on, perhaps
            f = self._open_file(connection, lambda: _Ring(connection.packet_name))
            if f.file.identity == self._ring.file.identity:
                f.file.close()
                self._draining = False
                return
            self._leave_ring()
        self._ring = f or self._open_file(connection, lambda: _Ring(connection.packet_name))
        self._draining = False
        self._ring.seek("oldest" if self._follows else self._start)
        self._mark = self._follows
        if self._follows:
            self.generation += 1
        self._info()

    def _leave_ring(self):
        if self._ring:
            self._forget()
            self._ring, self._follows = None, True

    def _step(self):
        try:
            p = self._ring.next()
            # Asked in this order, a packet in front of the end is not missed.
            ended = self._draining
            self._draining = self._connection.poll(0.05) is not None or self._ring.ended()
        except FaultError as e:
            self._lost(e)
            return None
        if p is None:
            if ended:
                self._lost(None)
            return None
        if self._mark:
            self._mark = False
            p = p._replace(flags=p.flags | DISCONTINUITY)
        return p

    def _lost(self, cause):
        """The publisher has ended and its ring is read, or the ring is gone."""
        gone = cause is not None
        try:
            gone = gone or self._ring.ended()
        except FaultError:
            gone = True
        if gone or not self._follow:
            self._leave_ring()
        self._disconnect(cause)

    def _idle(self, limit):
        if not self._draining:
            self._ring.waiter.wait(self._ring.seen, limit)
            self._connection.poll()

    def _forget(self):
        if self._ring:
            self._info()
            self._past = self.stats
            self._ring.file.close()

    def _info(self):
        if self._ring and not self._ring.file.closed:
            self._codec_id = self._ring.codec_id
            try:
                self._extradata = self._ring.extradata() or self._extradata
            except FaultError:
                pass

    @property
    def codec_id(self):
        """FFmpeg's number of the codec."""
        self._info()
        return self._codec_id

    @property
    def codec(self):
        """FFmpeg's name of the codec, or None for an unknown number."""
        return CODECS.get(self.codec_id)

    @property
    def extradata(self):
        """What decoders and muxers take as extradata; empty as long as the publisher has none."""
        self._info()
        return self._extradata

    @property
    def stats(self):
        """PacketStats until now."""
        t, r = self._past, self._ring
        if r and not r.file.closed:
            lost = r.lost + (r.first - 1 if self._follows and r.read else 0)
            t = PacketStats(t.read + r.read, t.lost + lost, t.overruns + r.overruns, t.bytes + r.bytes, t.restarts)
        return t._replace(restarts=self.generation)


def packets(key, *, start="live", follow=False, wait=0.0, timeout=None, runtime_dir=None, name=None):
    """Subscribes to the packets of a key and returns an iterator of Packet, which is a context manager as well.

    start: "live" (the newest keyframe), "oldest" (all that the ring holds), or Unix ns (the newest keyframe until then).
    follow: go on with the next publisher when this one has ended; else iteration ends.
    wait: seconds to wait for a publisher; None = for ever.
    timeout: seconds after which an iteration without a packet raises TimeoutError; None = never.

    The first packet is a keyframe. After a loss reading goes on at a keyframe, marked as a discontinuity, and stats.lost is exact.
    """
    return Packets(key, start, follow=follow, wait=wait, timeout=timeout, runtime_dir=runtime_dir, name=name)
