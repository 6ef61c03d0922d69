"""The connection to a publisher: the handshake of protocol 4, for packets also of protocol 2, and its end."""

import array
import collections
import errno
import os
import re
import socket
import struct
import sys
import time

from . import _shm
from .errors import (BUSY, NO_PACKET_RING, NOT_FOUND, PROTOCOL, EndedError, Error, NoPublisherError, NotAvailableError, ProtocolError,
                     RefusedError)

WANTS_FRAMES, WANTS_PACKETS = 1, 2
NEWEST_ONLY, STRICT_ORDER = 0, 1
RUNTIME_DIR = "/run/cuframes"

_HELLO_REQ, _HELLO_RESP, _SUBSCRIBE_REQ, _SUBSCRIBE_RESP, _VMM_FDS = 0x01, 0x02, 0x03, 0x04, 0x05
_UNSUBSCRIBE, _SHUTDOWN, _PING, _PONG, _ERROR = 0x10, 0x30, 0xF0, 0xF1, 0xFE

_VERSION = 4
_MAGIC_LEGACY = 0xCC7C1DCC  # of the frame SHM in protocols 1 to 3
_MAX_PAYLOAD = 4096  # no message is longer
_MAX_SLOTS = 16
_STEP = 5.0  # seconds that a step of the handshake may take

Meta = collections.namedtuple("Meta", "format width height pitch_y pitch_uv bits_per_pixel frame_size")


def socket_path(runtime_dir, key):
    if not re.match(r"^[a-zA-Z0-9_-]{1,63}\Z", key):
        raise ValueError("key %r: want 1 to 63 of a-z A-Z 0-9 _ -" % key)
    d = runtime_dir or os.environ.get("CUFRAMES_RUNTIME_DIR") or RUNTIME_DIR
    return os.path.join(d, key + ".sock")


class _Payload:
    """Takes fields off a message, each once; bytes behind the known ones are ignored."""

    def __init__(self, kind, data):
        self.kind, self.data, self.at = kind, data, 0

    def take(self, n):
        if self.at + n > len(self.data):
            raise ProtocolError("message %#x: cut short at %d of %d bytes" % (self.kind, self.at, len(self.data)))
        self.at += n
        return self.data[self.at - n:self.at]

    def fields(self, fmt):
        return struct.unpack("<" + fmt, self.take(struct.calcsize("<" + fmt)))

    def text(self):
        (n,) = self.fields("I")
        try:
            return self.take(n).decode()
        except UnicodeDecodeError:
            raise ProtocolError("message %#x: text is not UTF-8" % self.kind) from None


def _printable(s):
    return "".join(c if c.isprintable() else "?" for c in s)


class Connection:
    """A subscription as the handshake has made it. fds belong to who takes them (take_fds)."""

    def __init__(self, key, flags, mode=NEWEST_ONLY, runtime_dir=None, name=None, device=0, step=None):
        self.key, self.path = key, socket_path(runtime_dir, key)
        self.ended = None  # EndedError or RefusedError, once the connection has ended
        self._fds, self._buffer, self._looked, self._ready = [], b"", 0.0, False
        self._step, self._pid = step or _STEP, os.getpid()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            self._socket.settimeout(self._step)
            try:
                self._socket.connect(self.path)
            except OSError as e:
                if e.errno in (errno.ENOENT, errno.ECONNREFUSED, errno.ENOTDIR):
                    raise NoPublisherError("key %s: no publisher at %s" % (key, self.path)) from None
                raise
            self._handshake(flags, mode, name, device)
            self._socket.setblocking(False)
            self._ready = True
        except BaseException as e:
            self.close()
            if isinstance(e, socket.timeout):
                raise EndedError("%s: the publisher is silent in the handshake" % self.path) from None
            if isinstance(e, (ConnectionResetError, BrokenPipeError)):
                raise EndedError("%s: the publisher closed the connection in the handshake" % self.path) from None
            raise

    # Handshake

    def _handshake(self, flags, mode, name, device):
        name = (os.path.basename((sys.argv or [""])[0]) or "python") if name is None else name
        text = name.encode()[:255].decode(errors="ignore").encode()
        self.version = self._spoken(flags)
        self._send(_HELLO_REQ, struct.pack("<II", self.version, len(text)) + text + struct.pack("<iII8x", device, mode, flags))
        try:
            self._hello(self._expect(_HELLO_RESP), flags)
            self._send(_SUBSCRIBE_REQ, struct.pack("<I12x", self.version))
            p = self._expect(_SUBSCRIBE_RESP)
            self._result(p, flags)
            self.bit, self.initial_seq = p.fields("IQ")
            if not 1 <= self.bit <= 31:
                raise ProtocolError("SUBSCRIBE_RESP: bit %d" % self.bit)
            if self.version == _VERSION:
                self._vmm_fds(self._expect(_VMM_FDS), flags)
        except ProtocolError as e:
            self._complain(e)
            raise

    def _spoken(self, flags):
        """The protocol to speak: the publisher's, as its frame SHM says, and 4 where that cannot be read (the publisher will tell)."""
        try:
            f = _shm.File("cuframes-" + self.key)
            try:
                magic, version = struct.unpack("<II", f.read(8, 0))
            finally:
                f.close()
        except (Error, OSError):
            return _VERSION
        if magic != _MAGIC_LEGACY:
            return _VERSION
        if version == 1 and not flags & WANTS_FRAMES:
            raise NotAvailableError("key %s: the publisher speaks protocol 1, which has no packets" % self.key)
        if version != 2 or flags & WANTS_FRAMES:
            raise ProtocolError(
                "key %s: the publisher speaks protocol %d, this package 4, and 2 for packets (cfpipe bridge %s --key … publishes it in 4)"
                % (self.key, version, self.key)
            )
        return version

    def _complain(self, e):
        text = str(e).encode()[:512].decode(errors="ignore").encode()
        try:
            self._send(_ERROR, struct.pack("<iI", PROTOCOL, len(text)) + text + bytes(12))
        except OSError:
            pass

    def _none(self, what):
        """What to do where the publisher has no frames, or no packets."""
        remedy = {
            "frames": "nobody decodes it: cfpipe ingest … --decode auto, or cfpipe decode %s --key NEW and read NEW; in a site: decode: auto" % self.key,
            "packets": "read its frames, or the key whose packets were decoded into them",
        }
        return NotAvailableError("key %s has no %s: %s" % (self.key, what, remedy[what]))

    def _result(self, p, flags):
        (result,) = p.fields("i")
        if result < 0:
            if result in (NOT_FOUND, NO_PACKET_RING):
                raise self._none("frames" if flags & WANTS_FRAMES and result == NOT_FOUND else "packets")
            raise RefusedError(result)
        if result:
            raise ProtocolError("message %#x: result %d" % (p.kind, result))

    def _hello(self, p, flags):
        self._result(p, flags)
        version, self.ring_size, _ = p.fields("III")
        if version != self.version and not (self.version == 2 and version == 1):  # 1: it has no packet ring
            raise ProtocolError("the publisher speaks protocol %d, this subscriber %d" % (version, self.version))
        self.meta = Meta(*struct.unpack("<6IQ32x", p.take(64)))
        path = p.text()
        self.shm_name = _shm.shm_name(path) if path or flags & WANTS_FRAMES else None
        self.packet_name, self.codec_id, self.initial_packet_seq = None, 0, 0
        if p.at < len(p.data):
            packets = p.text()
            if packets:
                self.packet_name = _shm.shm_name(packets)
                self.codec_id, self.initial_packet_seq = p.fields("IQ")
        if flags & WANTS_PACKETS and not self.packet_name:
            raise self._none("packets")
        if self.ring_size > _MAX_SLOTS:
            raise ProtocolError("HELLO_RESP: ring_size %d" % self.ring_size)
        if flags & WANTS_FRAMES and not self.ring_size:
            raise self._none("frames")

    def _vmm_fds(self, p, flags):
        count, size, self.granularity = p.fields("IQQ")
        if count != len(self._fds):
            raise ProtocolError("VMM_FDS: fd_count %d, %d descriptors came" % (count, len(self._fds)))
        if not flags & WANTS_FRAMES:
            self._drop_fds()
            return
        if count != self.ring_size:
            raise ProtocolError("VMM_FDS: fd_count %d, ring_size is %d" % (count, self.ring_size))
        g = self.granularity
        if not 0 < g <= 1 << 31 or g & (g - 1) or not 0 < size <= 1 << 31:
            raise ProtocolError("VMM_FDS: %d bytes in units of %d" % (size, g))
        self.mapping_size = (size + g - 1) & ~(g - 1)
        if self.mapping_size < self.meta.frame_size:
            raise ProtocolError("VMM_FDS: mappings of %d bytes for frames of %d" % (size, self.meta.frame_size))

    def _expect(self, want):
        deadline = time.monotonic() + self._step
        while True:
            self._drop_fds()
            kind, n = struct.unpack("<II", self._receive(8, deadline))
            if n > _MAX_PAYLOAD:
                raise ProtocolError("message %#x of %d bytes" % (kind, n))
            p = _Payload(kind, self._receive(n, deadline))
            if kind == want:
                return p
            end = self._notice(p)
            if end:
                raise end
            if kind in (_HELLO_RESP, _SUBSCRIBE_RESP, _VMM_FDS):
                raise ProtocolError("message %#x out of order" % kind)

    def _receive(self, n, deadline):
        data = b""
        while len(data) < n:
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            b, ancillary, flags, _ = self._socket.recvmsg(
                n - len(data), socket.CMSG_SPACE(_MAX_SLOTS * array.array("i").itemsize), socket.MSG_CMSG_CLOEXEC)
            for level, kind, cmsg in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds = array.array("i")
                    fds.frombytes(cmsg[:len(cmsg) - len(cmsg) % fds.itemsize])
                    self._fds.extend(fds)
            if flags & socket.MSG_CTRUNC or len(self._fds) > _MAX_SLOTS:
                raise ProtocolError("more than %d descriptors" % _MAX_SLOTS)
            if not b:
                raise EndedError("%s: the publisher closed the connection in the handshake" % self.path)
            data += b
        return data

    def _send(self, kind, payload=b""):
        self._socket.sendall(struct.pack("<II", kind, len(payload)) + payload)

    # Afterwards

    def _notice(self, p):
        """Takes a message that may come at any time, and returns what it ends the connection with."""
        if p.kind == _PING:
            try:
                self._send(_PONG, p.data)
            except OSError:
                pass
        elif p.kind == _SHUTDOWN:
            (reason,) = p.fields("I")
            return EndedError("key %s: the publisher has ended" % self.key, reason)
        elif p.kind == _ERROR:
            (code,) = p.fields("i")
            return RefusedError(code, _printable(p.text()))
        return None

    def poll(self, every=0.0):
        """Looks, without blocking and no oftener than every so many seconds, at what the publisher says. Returns self.ended."""
        now = time.monotonic()
        if self.ended is None and now - self._looked >= every:
            self._looked = now
            try:
                self._read()
            except Error as e:
                self.ended = e
        return self.ended

    def _read(self):
        while True:
            try:
                b = self._socket.recv(_MAX_PAYLOAD + 8)  # descriptors that nobody asked for: the kernel closes them
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                b = b""
            if not b:
                raise EndedError("key %s: the publisher is gone" % self.key)
            self._buffer += b
            while len(self._buffer) >= 8:
                kind, n = struct.unpack_from("<II", self._buffer)
                if n > _MAX_PAYLOAD:
                    raise ProtocolError("message %#x of %d bytes" % (kind, n))
                if len(self._buffer) < 8 + n:
                    break
                p = _Payload(kind, self._buffer[8:8 + n])
                self._buffer = self._buffer[8 + n:]
                end = self._notice(p)
                if end:
                    raise end

    def take_fds(self):
        fds, self._fds = self._fds, []
        return fds

    def _drop_fds(self):
        for fd in self.take_fds():
            os.close(fd)

    def close(self):
        self._drop_fds()
        if self._socket.fileno() < 0:
            return
        if self.ended is None and self._ready and self._pid == os.getpid():  # a forked child has copies of ours
            try:
                self._send(_UNSUBSCRIBE)
            except OSError:
                pass
        self._socket.close()


def connect(deadline, timeout_error, **how):
    """Connects, and tries again until deadline (monotonic; None: for ever) while there is no publisher that can serve."""
    pause = 0.001
    while True:
        step = max(min(_STEP, deadline - time.monotonic()), 0.01) if timeout_error and deadline is not None else _STEP
        try:
            return Connection(step=step, **how)
        except RefusedError as e:
            if e.code != BUSY:
                raise
            last = e
        except (NoPublisherError, NotAvailableError, EndedError) as e:
            last = e
        now = time.monotonic()
        if deadline is not None and now >= deadline:
            raise timeout_error(last) if timeout_error else last
        time.sleep(pause if deadline is None else min(pause, deadline - now))
        pause = min(2 * pause, 0.25)
