"""The control socket of cuframes protocol 4: handshake, descriptors, and the end of the publisher."""

import array
import os
import select
import socket
import struct
import sys

PROTOCOL = 4
HELLO_REQ, HELLO_RESP, SUBSCRIBE_REQ, SUBSCRIBE_RESP, VMM_FDS = 1, 2, 3, 4, 5
UNSUBSCRIBE, SHUTDOWN, PING, PONG, ERROR = 0x10, 0x30, 0xF0, 0xF1, 0xFE
WANTS_FRAMES, WANTS_PACKETS = 1, 2
MAX_PAYLOAD, MAX_FDS = 4096, 16

ERRORS = {
    -1: "invalid argument", -2: "out of memory", -3: "CUDA error", -4: "input/output error", -5: "timed out", -6: "protocol error",
    -7: "format not supported", -8: "too many subscribers", -9: "not found", -10: "already exists", -11: "disconnected", -12: "busy",
    -13: "internal error", -14: "not available", -20: "packet too large", -21: "no packet ring", -22: "no codec parameters",
    -23: "packet overwritten",
}


class CfpipeError(Exception):
    """What went wrong between this process and a publisher. code is the protocol's number, 0 when it was found here."""

    def __init__(self, text, code=0):
        super().__init__(text)
        self.code = code


class NotFound(CfpipeError):
    """Nobody publishes the key, or it has no frames or no packets."""


class Disconnected(CfpipeError):
    """The publisher has ended or begins a new generation of its frames: subscribe again."""


def runtime_dir(path=None):
    return path or os.environ.get("CUFRAMES_RUNTIME_DIR") or "/run/cuframes"


def _refuse(code, what):
    kind = NotFound if code in (-9, -21) else Disconnected if code in (-11, -12) else CfpipeError
    raise kind("%s: the publisher answers: %s (%d)" % (what, ERRORS.get(code, "error"), code), code)


def shm_path(name):
    """The file of a ring that a publisher names; only plain names directly in /dev/shm are taken."""
    name = name[len("/dev/shm/"):] if name.startswith("/dev/shm/") else name
    if not name.startswith("cuframes-") or "/" in name or "\0" in name or len(name) > 255:
        raise CfpipeError("the publisher names %r, which is no ring" % name)
    return "/dev/shm/" + name


class Subscription:
    """A connection to the publisher of a key after the handshake. Its fields are what the publisher told."""

    def __init__(self, key, wants=WANTS_FRAMES, strict=False, name=None, device=0, directory=None, timeout=5.0):
        self.key, self.fds, self._buffer = key, [], b""
        path = os.path.join(runtime_dir(directory), key + ".sock")
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self.socket.settimeout(timeout)
            try:
                self.socket.connect(path)
            except (FileNotFoundError, ConnectionRefusedError):
                raise NotFound("no publisher at %s" % path, -9) from None
            self._handshake(wants, strict, (name or os.path.basename(sys.argv[0]) or "python").encode()[:255], device)
        except BaseException:
            self.close()
            raise

    def _handshake(self, wants, strict, name, device):
        self._send(HELLO_REQ, struct.pack("<II", PROTOCOL, len(name)) + name + struct.pack("<iII8x", device, int(strict), wants))
        p = self._expect(HELLO_RESP)
        (result,) = struct.unpack_from("<i", p)
        if result < 0:
            _refuse(result, "subscribe to %s" % self.key)
        version, self.ring_size, _ = struct.unpack_from("<III", p, 4)
        if version != PROTOCOL or self.ring_size > MAX_FDS:
            raise CfpipeError("the publisher speaks protocol %d with %d slots" % (version, self.ring_size))
        self.meta = p[16:80]
        (n,) = struct.unpack_from("<I", p, 80)
        self.shm = p[84:84 + n].decode()
        self.packet_shm, self.codec_id, self.last_keyframe = "", 0, 0
        rest = p[84 + n:]
        if len(rest) >= 4:
            (m,) = struct.unpack_from("<I", rest)
            if m and len(rest) >= 16 + m:
                self.packet_shm = rest[4:4 + m].decode()
                self.codec_id, self.last_keyframe = struct.unpack_from("<IQ", rest, 4 + m)
        if wants & WANTS_PACKETS and not self.packet_shm:
            raise NotFound("%s has no packet ring" % self.key, -9)
        self._send(SUBSCRIBE_REQ, struct.pack("<I12x", PROTOCOL))
        p = self._expect(SUBSCRIBE_RESP)
        result, self.bit = struct.unpack_from("<iI", p)
        if result < 0:
            _refuse(result, "subscribe to %s" % self.key)
        if not 1 <= self.bit <= 31:
            raise CfpipeError("the publisher gives bit %d" % self.bit)
        (self.initial_seq,) = struct.unpack_from("<Q", p, 8)
        p = self._expect(VMM_FDS)
        count, self.mapping_size, self.granularity = struct.unpack_from("<IQQ", p)
        if count != len(self.fds) or (wants & WANTS_FRAMES and count != self.ring_size):
            raise CfpipeError("%d descriptors came for %d slots" % (len(self.fds), self.ring_size))

    def _send(self, kind, payload=b""):
        self.socket.sendall(struct.pack("<II", kind, len(payload)) + payload)

    def _fill(self, n):
        while len(self._buffer) < n:
            data, ancillary, flags, _ = self.socket.recvmsg(65536, socket.CMSG_SPACE(MAX_FDS * 4), getattr(socket, "MSG_CMSG_CLOEXEC", 0))
            for level, kind, raw in ancillary:
                if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                    fds = array.array("i")
                    fds.frombytes(raw[:len(raw) - len(raw) % fds.itemsize])
                    self.fds.extend(fds)
            if flags & socket.MSG_CTRUNC or len(self.fds) > MAX_FDS:
                raise CfpipeError("the publisher sends too many descriptors")
            if not data:
                raise Disconnected("the publisher of %s is gone" % self.key, -11)
            self._buffer += data

    def _message(self):
        self._fill(8)
        kind, n = struct.unpack_from("<II", self._buffer)
        if n > MAX_PAYLOAD:
            raise CfpipeError("a message of %d bytes" % n)
        self._fill(8 + n)
        payload, self._buffer = self._buffer[8:8 + n], self._buffer[8 + n:]
        return kind, payload

    def _expect(self, want):
        while True:
            kind, payload = self._message()
            if kind == want:
                return payload
            self._handle(kind, payload)

    def _handle(self, kind, payload):
        if kind == PING:
            self._send(PONG, payload)
        elif kind == SHUTDOWN:
            raise Disconnected("the publisher of %s has ended" % self.key, -11)
        elif kind == ERROR:
            code, n = struct.unpack_from("<iI", payload)
            raise Disconnected("the publisher of %s ends the subscription: %s" % (self.key, payload[8:8 + n].decode(errors="replace")), code)

    def check(self):
        """Takes what the publisher has said since; raises Disconnected when that was the end. Does not block."""
        while self._buffer or select.select([self.socket], [], [], 0)[0]:
            self._handle(*self._message())

    def take_fds(self):
        fds, self.fds = self.fds, []
        return fds

    def close(self):
        for fd in self.take_fds():
            os.close(fd)
        if self.socket.fileno() >= 0:
            try:
                self._send(UNSUBSCRIBE)
            except OSError:
                pass
            self.socket.close()
