"""The packet ring's arithmetic, and atomics, on files that the tests write themselves."""

import fcntl
import os
import random
import secrets
import struct
import subprocess
import sys
import time
import unittest
import unittest.mock
import zlib

import support

import cfpipe
from cfpipe import _packets, _shm

INVALID = 2**64 - 1


class RingFile:
    """A packet ring, as a publisher writes it: careful (invalid, cursor, payload, fields, seq), or naive, as the protocol's text has it."""

    def __init__(self, slots=16, size=1 << 16, lock=True, naive=False):
        self.name = "cuframes-ring-" + secrets.token_hex(5) + "-packets"
        self.fd = os.open("/dev/shm/" + self.name, os.O_RDWR | os.O_CREAT | os.O_EXCL)
        self.slots, self.size, self.naive, self.seq, self.cursor = slots, size, naive, 0, 0
        if lock:
            fcntl.flock(self.fd, fcntl.LOCK_EX)
        os.ftruncate(self.fd, 0x1040 + 64 * slots + size)
        for i in range(slots):
            self.put(0x1040 + 64 * i, "Q", INVALID)
        self.put(4, "IIIIIQ", 4, slots, size, 27, 3, os.getpid())
        self.put(0x40, "3s", b"sps")
        self.put(0, "I", 0xCC7C1DCD)

    def put(self, at, fmt, *values):
        os.pwrite(self.fd, struct.pack("<" + fmt, *values), at)

    def publish(self, data, flags=0, pts=None):
        self.seq += 1
        slot, data_at = 0x1040 + 64 * (self.seq % self.slots), 0x1040 + 64 * self.slots
        if not self.naive:
            self.put(slot, "Q", INVALID)
            self.put(0x30, "Q", self.cursor + len(data))
        at = self.cursor % self.size
        first = min(len(data), self.size - at)
        os.pwrite(self.fd, data[:first], data_at + at)
        os.pwrite(self.fd, data[first:], data_at)
        pts = 1000 * self.seq if pts is None else pts
        self.put(slot + 8, "qqQII", pts, pts - 1, self.cursor, len(data), flags)
        self.put(slot, "Q", self.seq)
        self.cursor += len(data)
        if self.naive:
            self.put(0x30, "Q", self.cursor)
        self.put(0x20, "Q", self.seq)
        if flags & 1:
            self.put(0x28, "Q", self.seq)

    def close(self):
        os.close(self.fd)
        os.remove("/dev/shm/" + self.name)


class RingTest(unittest.TestCase):
    def ring(self, **how):
        w = RingFile(**how)
        self.addCleanup(w.close)
        return w

    def reader(self, w, start="oldest"):
        r = _packets._Ring(w.name)
        self.addCleanup(r.file.close)
        r.seek(start)
        return r

    def test_reads_and_wraps(self):
        w = self.ring(slots=16, size=1000)
        r = self.reader(w)
        for n in range(1, 200):
            data = bytes([n % 256]) * (1 + 37 * n % 700)
            w.publish(data, 1 if n == 1 else 8)
            p = r.next()
            self.assertEqual((p.seq, p.pts_ns, p.dts_ns, p.flags, p.data), (n, 1000 * n, 1000 * n - 1, 1 if n == 1 else 8, data))
            self.assertIsNone(r.next())
        self.assertEqual((r.read, r.lost, r.overruns), (199, 0, 0))
        self.assertEqual(r.extradata(), b"sps")

    def test_overrun_resumes_at_oldest_keyframe_and_counts(self):
        w = self.ring(slots=16)
        w.publish(b"first", 1)
        r = self.reader(w)
        self.assertEqual(r.next().seq, 1)
        for n in range(2, 41):
            w.publish(b"x%d" % n, 1 if n % 5 == 0 else 0)
        p = r.next()  # 25…40 are there
        self.assertEqual((p.seq, p.flags), (25, 1 | cfpipe.DISCONTINUITY))
        self.assertTrue(p.key and p.discontinuity)
        self.assertEqual((r.lost, r.overruns), (23, 1))
        self.assertEqual([r.next().seq for _ in range(15)], list(range(26, 41)))
        self.assertEqual(r.read + r.lost, 40)

    def test_overrun_without_keyframe_waits_for_one(self):
        w = self.ring(slots=8)
        w.publish(b"k", 1)
        r = self.reader(w)
        r.next()
        for n in range(30):
            w.publish(b"p")
        self.assertIsNone(r.next())
        w.publish(b"p")
        w.publish(b"k", 1)
        p = r.next()
        self.assertEqual((p.seq, r.lost), (33, 31))
        self.assertTrue(p.discontinuity)

    def test_overwritten_data_is_lost_though_its_slot_stands(self):
        w = self.ring(slots=64, size=1000)
        w.publish(b"k" * 400, 1)
        r = self.reader(w)
        w.publish(b"a" * 400, 1)
        w.publish(b"b" * 400, 1)
        self.assertEqual([p.seq for p in (r.next(), r.next())], [2, 3])

    def test_start(self):
        w = self.ring(slots=64)
        for n in range(1, 31):
            w.publish(b"x", 1 if n % 10 == 1 else 0)
        for start, want in (("live", 21), ("oldest", 1), (20500, 11), (21000, 21), (5, 1)):
            self.assertEqual(self.reader(w, start).next().seq, want, start)

    def test_foreign_publisher_gets_room(self):
        """Without the lock the slot that is overwritten next, and a packet's bytes ahead of the cursor, are not trusted."""
        w = self.ring(slots=16, size=1 << 16, lock=False)
        for n in range(1, 33):
            w.publish(b"x", 1)
        self.assertEqual(self.reader(w).next().seq, 18)
        w = self.ring(slots=64, size=1000, lock=False)  # room: a quarter, or the largest
        for n in range(10):
            w.publish(b"x" * 100, 1)
        self.assertEqual(self.reader(w).next().seq, 4)
        w.publish(b"x" * 300, 1)
        self.assertEqual(self.reader(w).next().seq, 7)

    def test_hostile_fields(self):
        w = self.ring(slots=16, size=1000)
        w.publish(b"k", 1)
        w.publish(b"p")
        for at, fmt, value in (
            (0x20, "I", 0xFFFFFFFF), (0x20, "I", 1001), (0x18, "Q", 1 << 63), (0x18, "Q", 1 << 40), (0, "Q", 3), (0, "Q", INVALID),
        ):
            r = self.reader(w)
            slot = 0x1040 + 64 * 1
            keep = os.pread(w.fd, 64, slot)
            w.put(slot + at, fmt, value)
            self.assertIsNone(r.next(), (at, value))
            os.pwrite(w.fd, keep, slot)
        for seq in (INVALID, INVALID - 1, 1 << 63):
            r = self.reader(w)
            w.put(0x20, "Q", seq)
            for _ in range(5):
                r.next()  # anything but an endless loop or an exception
        w.put(0x20, "Q", 2)
        for at, value in ((0, 1), (4, 9), (8, 0), (8, 1025), (12, 0), (12, 1001), (12, 0xFFFFFFFF), (0x14, 4097)):
            keep = os.pread(w.fd, 4, at)
            w.put(at, "I", value)
            with self.assertRaises(cfpipe.ProtocolError, msg=(at, value)):
                self.reader(w)
            os.pwrite(w.fd, keep, at)
        self.assertEqual(self.reader(w).next().seq, 1)

    def test_cut_file_is_an_error(self):
        for n in (0, 0x30, 0x1040, 0x1040 + 64 * 16 + 10):
            w = self.ring()
            w.publish(b"k" * 100, 1)
            r = self.reader(w)
            os.ftruncate(w.fd, n)
            with self.assertRaises(cfpipe.FaultError):
                r.next()
            if n == 0:
                with self.assertRaises(cfpipe.FaultError):
                    r.file.wait(0x20, 1, 0.1)

    def test_only_plain_files_of_ours(self):
        w = self.ring()
        link = "/dev/shm/cuframes-link-" + w.name[-20:]
        os.symlink("/etc/passwd", link)
        self.addCleanup(os.remove, link)
        for name in (os.path.basename(link), "../../etc/passwd", "/etc/passwd", "/dev/shm/../../etc/passwd", "passwd", "cuframes-", "cuframes-a/b",
                     "cuframes-a\0b"):
            with self.assertRaises(cfpipe.ProtocolError, msg=name):
                _shm.File(name)
        with self.assertRaisesRegex(cfpipe.MountError, "findmnt /dev/shm"):
            _shm.File("cuframes-nobody-has-this")

    def test_noise(self):
        """Anything may stand in header and slots: no exception but ours, no endless loop."""
        noise = random.Random(7)
        w = self.ring(slots=16, size=5000)
        for n in range(40):
            w.publish(b"x" * 300, n % 3 == 0)
        whole = os.pread(w.fd, 0x1040 + 64 * 16, 0)
        until, tries = time.monotonic() + 1, 0
        while time.monotonic() < until:
            tries += 1
            for _ in range(noise.randrange(1, 4)):
                at = noise.choice((0x20, 0x28, 0x30, 0x38, 0x14, 8, 12, 0x1040 + 8 * noise.randrange(8 * 16)))
                w.put(at, "Q", noise.choice((0, 1, 40, 1 << 31, 1 << 32, 1 << 63, INVALID, INVALID - 1, noise.getrandbits(64), noise.getrandbits(12))))
            try:
                r = _packets._Ring(w.name)
                try:
                    r.seek(noise.choice(("live", "oldest", 20000)))
                    for _ in range(3):
                        p = r.next()
                        if p:
                            self.assertLessEqual(len(p.data), 5000)
                finally:
                    r.file.close()
            except cfpipe.Error:
                pass
            os.pwrite(w.fd, whole, 0)
        self.assertGreater(tries, 50)

    def torn(self, naive):
        w = self.ring(slots=32, size=1 << 16, lock=not naive)
        child = subprocess.Popen([sys.executable, __file__, w.name, "naive" if naive else "careful"], stdout=subprocess.PIPE)
        self.addCleanup(child.stdout.close)
        self.addCleanup(child.wait)
        self.addCleanup(child.kill)
        child.stdout.readline()
        r, until, read = self.reader(w), time.monotonic() + 1.5, 0
        while time.monotonic() < until:
            p = r.next()
            if p is None:
                r.file.wait(0x20, r.seen, 0.001)
                continue
            read += 1
            self.assertEqual(struct.unpack("<Q", p.data[:8])[0], p.seq)
            self.assertEqual(zlib.crc32(p.data[:-4]), struct.unpack("<I", p.data[-4:])[0], p)
            self.assertEqual(p.pts_ns, 1000 * p.seq)
        self.assertGreater(read, 100)
        self.assertEqual(r.read + r.lost, r.last - r.first + 1)

    def test_never_torn(self):
        self.torn(False)

    def test_never_torn_by_a_publisher_of_the_plain_text(self):
        self.torn(True)


class AtomicTest(unittest.TestCase):
    WORDS, BASE = 1000, 0x1040 + 64 * 16

    def test_or_loses_no_bit(self):
        """Two processes set their own bits of the same words at the same time, side by side: a load and a store would lose some."""
        w = RingFile(size=8 * self.WORDS)
        self.addCleanup(w.close)
        children = [subprocess.Popen([sys.executable, __file__, w.name, "or", str(bit)], stdout=subprocess.PIPE, stdin=subprocess.PIPE)
                    for bit in (0, 16)]
        for c in children:
            self.addCleanup(c.stdin.close)
            self.addCleanup(c.stdout.close)
            c.stdout.readline()
        for c in children:
            c.stdin.write(b"\n")
            c.stdin.flush()
        for c in children:
            self.assertEqual(c.wait(30), 0)
        words = struct.unpack("<%dQ" % self.WORDS, os.pread(w.fd, 8 * self.WORDS, self.BASE))
        self.assertEqual(set(words), {0xFFFFFFFF})

    def test_advance(self):
        w = RingFile()
        self.addCleanup(w.close)
        f = _shm.File(w.name, writable=True)
        self.addCleanup(f.close)
        total = 0
        for by in (1, 5, 4095, 1 << 20, (1 << 31) - 1):
            f.advance(0x38, by)
            total += by
            self.assertEqual(f.u64(0x38), total)

    def test_kernel_barrier(self):
        _shm.kernel_barrier()
        with unittest.mock.patch.object(_shm, "_WEAK_ORDER", True), unittest.mock.patch.object(_shm, "kernel_barrier") as b:
            _shm.load_barrier()
            self.assertEqual(b.call_count, 1)

    def test_wait(self):
        w = RingFile()
        self.addCleanup(w.close)
        f = _shm.File(w.name)
        self.addCleanup(f.close)
        w.publish(b"")
        self.assertTrue(f.wait(0x20, 0, 5))
        start = time.monotonic()
        self.assertFalse(f.wait(0x20, 1, 0.05))
        self.assertGreater(time.monotonic() - start, 0.04)


def child():
    if sys.argv[2] == "or":
        f = _shm.File(sys.argv[1], writable=True)
        f._finalize()
        fd = os.open("/dev/shm/" + sys.argv[1], os.O_RDWR)
        f.fd, f._address, f._finalize = fd, _shm.map_file(fd, AtomicTest.BASE + 8 * AtomicTest.WORDS, True, ""), None
        print("ready", flush=True)
        sys.stdin.readline()
        first = int(sys.argv[3])
        for at in range(AtomicTest.BASE, AtomicTest.BASE + 8 * AtomicTest.WORDS, 8):
            for bit in range(first, first + 16):
                f.fetch_or(at, bit)
            for _ in range(500):  # the other one is to be at the same word
                if f.u64(at) >> (16 - first) & 0xFFFF:
                    break
        return
    w = RingFile.__new__(RingFile)
    w.name, w.fd = sys.argv[1], os.open("/dev/shm/" + sys.argv[1], os.O_RDWR)
    w.slots, w.size, w.seq, w.cursor, w.naive = 32, 1 << 16, 0, 0, sys.argv[2] == "naive"
    n = 0
    while True:
        n += 1
        body = struct.pack("<Q", n) + bytes([n % 251]) * (n * 7919 % 5000)
        w.publish(body + struct.pack("<I", zlib.crc32(body)), 1 if n % 7 == 1 else 0)
        if n == 20:
            print("ready", flush=True)


if __name__ == "__main__":
    child()
