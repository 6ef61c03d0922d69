"""What the tests share: processes of cfpipe, a clip whose pixels are known, counts of what is open."""

import ctypes
import gc
import os
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "src")
if ROOT not in sys.path:
    sys.path.insert(0, ROOT)

BINARY = os.environ.get("CFPIPE_BIN") or shutil.which("cfpipe")
_libc = ctypes.CDLL(None)


def _die_with_parent():
    _libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG


class Place:
    """A runtime folder with a key of its own, and the processes in it."""

    def __init__(self):
        self.dir = tempfile.mkdtemp(prefix="cf")
        self.key = "py-" + secrets.token_hex(5)
        self.processes = []

    def start(self, *args, **how):
        log = open(os.path.join(self.dir, "log-%d" % len(self.processes)), "w+b")
        p = subprocess.Popen([BINARY, "--runtime-dir", self.dir] + list(args), stderr=how.pop("stderr", log),
                             preexec_fn=_die_with_parent, **how)
        p.log = log
        self.processes.append(p)
        return p

    def ingest(self, source, *args):
        return self.start("ingest", source, "--key", self.key, "--no-audio", *args)

    def run(self, *args):
        return subprocess.run([BINARY, "--runtime-dir", self.dir] + list(args), stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                              timeout=60, check=True)

    def logs(self):
        out = ""
        for p in self.processes:
            p.log.flush()
            p.log.seek(0)
            out += "%s\n%s\n" % (" ".join(p.args), p.log.read().decode(errors="replace"))
        return out

    def close(self):
        for p in self.processes:
            p.kill()
        for p in self.processes:
            p.wait()
        self.log = self.logs()
        for p in self.processes:
            p.log.close()
            if p.stdout:
                p.stdout.close()
        shutil.rmtree(self.dir, ignore_errors=True)
        for name in os.listdir("/dev/shm"):
            if name.startswith("cuframes-" + self.key):
                os.remove("/dev/shm/" + name)


class Case(unittest.TestCase):
    """A test in a place of its own, after which nothing is open that was not open before."""

    def setUp(self):
        before = opened()
        self.addCleanup(self._nothing_left, before)
        self.place = Place()
        self.addCleanup(self.place.close)

    def run(self, result=None):
        result = result or self.defaultTestResult()
        before = len(result.failures) + len(result.errors)
        super().run(result)
        if len(result.failures) + len(result.errors) > before:
            print(self.place.log, file=sys.stderr)
        return result

    def _nothing_left(self, before):
        gc.collect()
        after = opened()
        self.assertEqual({k: n for k, n in after.items() if n > before.get(k, 0)}, {}, "left open")

    def camera(self):
        """The URL of a running test camera."""
        p = self.place.start("testcam", "--listen", "127.0.0.1:0", stdout=subprocess.PIPE)
        return p.stdout.readline().decode().strip()

    def clip(self, frames=50):
        path = os.path.join(self.place.dir, "clip.h264")
        with open(path, "wb") as f:
            f.write(pcm_clip(frames))
        return path

    def eventually(self, f, seconds=10):
        deadline = time.monotonic() + seconds
        while True:
            r = f()
            if r:
                return r
            self.assertLess(time.monotonic(), deadline, "not within %d s" % seconds)
            time.sleep(0.01)


def opened():
    """Descriptors and shared mappings of this process, counted by kind."""
    n = {}
    for fd in os.listdir("/proc/self/fd"):
        try:
            target = os.readlink("/proc/self/fd/" + fd).split("[")[0]
        except OSError:
            continue
        if not target.startswith("/proc/"):
            n[target] = n.get(target, 0) + 1
    with open("/proc/self/maps") as f:
        for line in f:
            name = line.split(None, 5)[5].strip() if len(line.split()) > 5 else ""
            if name.startswith(("/dev/shm/", "/memfd:")):
                n["map " + name] = n.get("map " + name, 0) + 1
    return n


# The clip: H.264 of I_PCM macroblocks, so that every pixel that a decoder gives is known, and no encoder is needed.

WIDTH, HEIGHT = 320, 192


def luma(n, block):
    """The luma of 16×16 block number `block` of picture n. Block 0 tells n (below 200)."""
    return 16 + n if block == 0 else 16 + (7 * n + 13 * block) % 200


def chroma(n):
    """U and V of picture n."""
    return 30 + n % 100, 220 - n % 100


class _Bits:
    def __init__(self):
        self.s = ""

    def u(self, n, v):
        self.s += format(v, "0%db" % n)
        return self

    def ue(self, *values):
        for v in values:
            b = format(v + 1, "b")
            self.s += "0" * (len(b) - 1) + b
        return self

    def align(self, stop=False):
        if stop:
            self.s += "1"
        self.s += "0" * (-len(self.s) % 8)
        return bytes(int(self.s[i:i + 8], 2) for i in range(0, len(self.s), 8))


def pcm_clip(frames):
    assert frames <= 200
    start = b"\0\0\0\1"
    across, down = WIDTH // 16, HEIGHT // 16
    sps = b"\x67\x42\xc0\x1e" + _Bits().ue(0, 0, 2, 1).u(1, 0).ue(across - 1, down - 1).u(1, 1).u(1, 1).u(1, 0).u(1, 0).align(True)
    pps = b"\x68" + _Bits().ue(0, 0).u(1, 0).u(1, 0).ue(0, 0, 0).u(1, 0).u(2, 0).ue(0, 0, 0).u(1, 1).u(1, 0).u(1, 0).align(True)
    out = b""
    for n in range(frames):
        u, v = chroma(n)
        head = _Bits().ue(0, 7, 0).u(4, 0).ue(n % 2).u(2, 0).ue(0).ue(1)  # deblocking off
        body = head.ue(25).align()
        for block in range(across * down):
            body += (b"" if block == 0 else b"\x0d\x00") + bytes([luma(n, block)]) * 256 + bytes([u]) * 64 + bytes([v]) * 64
        out += start + sps + start + pps + start + b"\x65" + body + b"\x80"
    return out


def expected_planes(n):
    """Picture n as NV12, packed."""
    across = WIDTH // 16
    y = b"".join(b"".join(bytes([luma(n, row * across + i)]) * 16 for i in range(across)) * 16 for row in range(HEIGHT // 16))
    return y, bytes(chroma(n)) * (WIDTH * HEIGHT // 4)
