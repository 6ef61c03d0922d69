"""Publishers that lie, each of them in the test itself: what comes of it is an exception, and nothing is left open."""

import fcntl
import os
import socket
import struct
import threading
import unittest
from unittest import mock

import support

import cfpipe
from cfpipe import _control, _cuda, _dlpack, _frames

SHRINK, GROW, ADD_SEALS = 2, 4, 1033
META = (0, 64, 48, 256, 256, 12, 256 * 72)


def memfd(size, seals=SHRINK | GROW):
    fd = os.memfd_create("frames", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    fcntl.fcntl(fd, ADD_SEALS, seals)
    return fd


class Liar:
    """A publisher of one frame slot that tells the truth except where it is told not to."""

    def __init__(self, place, **lies):
        self.place, self.lies, self.fds, self.error = place, lies, [], None
        self.path = "/dev/shm/cuframes-" + place.key
        self.listener = socket.socket(socket.AF_UNIX)
        self.listener.bind(os.path.join(place.dir, place.key + ".sock"))
        self.listener.listen()
        self.listener.settimeout(20)
        self.said, self.done = [], threading.Event()
        self.write()
        self.thread = threading.Thread(target=self.serve)
        self.thread.start()

    def lie(self, name, truth):
        return self.lies.get(name, truth)

    def write(self):
        slots, meta = self.lie("shm_slots", 1), self.lie("shm_meta", META)
        with open(self.path, "wb") as f:
            f.write(struct.pack("<IIIIIIQQQQQ", self.lie("shm_magic", 0xCC7C1DCE), self.lie("shm_version", 4), 0, 1, 0, 0, os.getpid(), slots,
                                0, self.lie("shm_policy", 0), 32))
            f.write(struct.pack("<6IQ32x", *meta))
            f.write(bytes(64) + struct.pack("<QQQ40x", self.lie("shm_seq", 1), 2, self.lie("shm_shutdown", 0)))
            f.write(struct.pack("<Qq176x", 1, 77) + bytes(15 * 192) + bytes(128))
            f.write(struct.pack("<Q", 2) + bytes(31 * 128 - 8))
            f.truncate(self.lie("shm_size", 7424))

    def send(self, kind, payload, fds=()):
        payload = self.lie("payload_%d" % kind, payload)
        data = struct.pack("<II", kind, self.lie("length_%d" % kind, len(payload))) + payload
        socket.send_fds(self.c, [data], fds) if fds else self.c.sendall(data)

    def receive(self):
        head = self.c.recv(8, socket.MSG_WAITALL)
        if len(head) < 8:
            raise EOFError
        kind, n = struct.unpack("<II", head)
        self.said.append((kind, self.c.recv(n, socket.MSG_WAITALL) if n else b""))
        return kind

    def serve(self):
        try:
            self.c, _ = self.listener.accept()
            self.c.settimeout(20)
            with self.c:
                self.receive()
                if self.lie("close_at", 0) == 1:
                    return
                path, packets = self.lie("path", self.path).encode(), self.lie("packets", "").encode()
                hello = struct.pack("<iIII", self.lie("hello_result", 0), self.lie("version", 4), self.lie("slots", 1), 0)
                hello += struct.pack("<6IQ32x", *self.lie("meta", META)) + struct.pack("<I", self.lie("path_len", len(path))) + path
                hello += struct.pack("<I", len(packets)) + packets + struct.pack("<IQ", 27, 1) if packets else bytes(12)
                self.send(2, hello)
                if self.receive() != 3:
                    return
                self.send(4, struct.pack("<iIQ12x", self.lie("subscribe_result", 0), self.lie("bit", 1), 0))
                count, size = self.lie("count", 1), self.lie("memory", 5 * 4096)
                self.fds = self.lie("fds", lambda: [memfd(5 * 4096)])()
                self.send(5, struct.pack("<IQQ12x", count, size, self.lie("granularity", 4096)), self.fds)
                for message in self.lie("after", ()):
                    self.c.sendall(message)
                while True:
                    self.receive()
        except (EOFError, OSError) as e:
            self.error = e
        finally:
            self.done.set()

    def close(self):
        self.listener.close()
        self.thread.join(20)
        for fd in self.fds:
            os.close(fd)


class HostileTest(support.Case):
    def liar(self, **lies):
        liar = Liar(self.place, **lies)
        self.addCleanup(liar.close)
        return liar

    def frames(self, **how):
        s = cfpipe.frames(self.place.key, runtime_dir=self.place.dir, current=True, timeout=5, **how)
        self.addCleanup(s.close)
        return s

    def refuse(self, error, regex="", **lies):
        """The lies raise error, in the constructor or with the first frame."""
        with self.subTest(**{k: str(v) for k, v in lies.items()}):
            before = support.opened()
            liar = Liar(self.place, **lies)
            try:
                with self.assertRaisesRegex(error, regex):
                    with cfpipe.frames(self.place.key, runtime_dir=self.place.dir, current=True, timeout=0.3) as s:
                        next(s).tobytes()
            finally:
                liar.close()
                os.remove(os.path.join(self.place.dir, self.place.key + ".sock"))
                if os.path.exists(liar.path):
                    os.remove(liar.path)
            support.gc.collect()
            self.assertEqual(support.opened(), before)
            return liar

    def test_the_truth(self):
        self.liar()
        with self.frames() as s:
            frame = next(s)
            self.assertEqual((frame.seq, frame.pts_ns, frame.width, frame.height), (1, 77, 64, 48))
            self.assertEqual(frame.tobytes(), bytes(64 * 72))
            self.assertTrue(frame.release())
            with open("/dev/shm/cuframes-" + self.place.key, "rb") as f:
                b = f.read()
            self.assertEqual(struct.unpack_from("<Q", b, 0x100 + 0x10), (2,))  # ack_bitmap
            self.assertEqual(struct.unpack_from("<Q", b, 0xD00 + 128 + 0x10), (1,))  # last_seen_seq

    def test_lies_of_messages(self):
        P = cfpipe.ProtocolError
        for lies in (
            dict(version=3), dict(slots=17), dict(slots=2), dict(hello_result=1), dict(bit=0), dict(bit=32), dict(subscribe_result=5),
            dict(payload_2=b""), dict(payload_2=bytes(40)), dict(length_2=5000), dict(length_2=0xFFFFFFFF), dict(path_len=0xFFFFFFFF),
            dict(path="/etc/passwd"), dict(path="/dev/shm/../../etc/passwd"), dict(path="cuframes-"), dict(path="\0"),
            dict(payload_4=b"\0\0\0\0"), dict(payload_5=b""), dict(count=0), dict(count=2), dict(count=0xFFFFFFFF),
            dict(memory=0), dict(memory=1 << 63), dict(memory=4096), dict(granularity=0), dict(granularity=4095), dict(granularity=1 << 63),
            dict(fds=lambda: []), dict(fds=lambda: [memfd(5 * 4096) for _ in range(2)]), dict(fds=lambda: [memfd(4096) for _ in range(40)]),
        ):
            liar = self.refuse(P, **lies)
            if lies == dict(count=2):
                self.assertEqual(liar.said[-1][0], 0xFE, "is told so")
                self.assertIn(b"fd_count 2", liar.said[-1][1])
        self.refuse(cfpipe.RefusedError, "ERR_TOO_MANY", subscribe_result=-8)
        self.refuse(cfpipe.NotAvailableError, "no frames", hello_result=-9)
        self.refuse(cfpipe.NotAvailableError, "no frames", slots=0)
        self.refuse(cfpipe.EndedError, close_at=1)

    def test_lies_of_memory(self):
        P = cfpipe.ProtocolError
        self.refuse(P, "sealed", fds=lambda: [memfd(5 * 4096, 0)])
        self.refuse(P, "sealed", fds=lambda: [memfd(5 * 4096, SHRINK)])
        self.refuse(P, "sealed", fds=lambda: [memfd(5 * 4096, GROW)])
        self.refuse(P, "4096 bytes", fds=lambda: [memfd(4096)])
        self.refuse(P, "0 bytes", fds=lambda: [memfd(0)])
        self.refuse((P, cfpipe.GPUError), fds=lambda: [os.open("/dev/null", os.O_RDWR)])
        self.refuse((P, cfpipe.GPUError), fds=lambda: [os.open(self.place.dir, os.O_RDONLY)])

    def test_lies_of_layout(self):
        P = cfpipe.ProtocolError
        big = 0xFFFFFFFF
        for meta in (
            (9,) + META[1:], (0, 0, 48) + META[3:], (0, 64, 0) + META[3:], (0, big, 48) + META[3:], (0, 64, big) + META[3:],
            (0, 64, 48, 0, 256) + META[5:], (0, 64, 48, 32, 256) + META[5:], (0, 64, 48, 256, 32) + META[5:], (0, 64, 48, big, big) + META[5:],
            (0, 64, 48, 256, 256, 12, 1), (0, 64, 48, 256, 256, 12, 1 << 63), (1, 200, 48) + META[3:], (5, 65, 48) + META[3:],
            (2, 64, 48, 256, 256, 12, 256 * 72), (0, 64, 50) + META[3:],
        ):
            self.refuse(P, meta=meta, shm_meta=meta)
        self.refuse(P, "differ", shm_meta=(0, 32, 48) + META[3:])
        self.refuse(P, "differ", shm_slots=2)
        self.refuse(P, shm_slots=1 << 63)
        self.refuse(P, shm_magic=0)
        self.refuse(P, shm_magic=0xCC7C1DCC)
        self.refuse(P, shm_version=3)
        for size in (1, 0xFF, 0x100, 0x1000, 7423):
            self.refuse((P, cfpipe.FaultError), shm_size=size)
        self.refuse(cfpipe.EndedError, shm_shutdown=1)
        for seq in (0, 2, (1 << 64) - 1, 1 << 63):
            self.refuse(TimeoutError, shm_seq=seq)

    def test_silence_ends(self):
        with mock.patch.object(_control, "_STEP", 0.2):
            self.refuse(cfpipe.EndedError, "silent", length_2=200)

    def test_cut_while_mapped(self):
        liar = self.liar()
        with self.frames(follow=True) as s:
            frame = next(s)
            os.truncate(liar.path, 0)
            self.assertFalse(frame.release())
            with self.assertRaises(TimeoutError):
                s.next(timeout=0.3)
        liar.listener.close()

    def test_other_dev_shm(self):
        liar = self.liar()
        os.remove(liar.path)
        with self.assertRaisesRegex(cfpipe.MountError, "another /dev/shm"):
            self.frames()

    def test_what_comes_later(self):
        ping, shutdown = struct.pack("<II", 0xF0, 3) + b"hey", struct.pack("<III12x", 0x30, 16, 1)
        unknown = struct.pack("<II", 0x77, 2) + b"??"
        liar = self.liar(after=(ping, unknown, shutdown))
        with self.frames() as s:
            self.assertEqual([f.seq for f in s], [1])
            with self.assertRaises(cfpipe.EndedError) as e:
                s.next()
            self.assertEqual(e.exception.reason, 1)
        liar.done.wait(10)
        self.assertIn((0xF1, b"hey"), liar.said)

    def test_told_why(self):
        text = b"no ACK \x1b[31m"
        self.liar(after=(struct.pack("<IIiI", 0xFE, 8 + len(text), -5, len(text)) + text,))
        with self.frames() as s:
            next(s)
            with self.assertRaisesRegex(cfpipe.RefusedError, r"ERR_TIMEOUT: no ACK \?\[31m$"):
                next(s)


class FakeDriver:
    """Counts what is held, and fails at call number `fail`."""

    def __init__(self, fail=None):
        self.fail, self.calls, self.held = fail, 0, set()

    def __call__(self, name, *args):
        self.calls += 1
        if self.calls == self.fail:
            raise cfpipe.GPUError(name)
        if name == "cuDeviceGetCount":
            args[0]._obj.value = 2
        elif name == "cuMemGetAllocationGranularity":
            args[0]._obj.value = 2 << 20
        elif name == "cuMemImportFromShareableHandle":
            args[0]._obj.value = 5
            self.held.add("handle")
        elif name == "cuMemGetAllocationPropertiesFromHandle":
            args[0]._obj.location.kind, args[0]._obj.location.id = 1, 0
        elif name == "cuMemAddressReserve":
            args[0]._obj.value = 0x7F0000000000
            self.held.add("address")
        elif name in ("cuMemMap", "cuCtxPushCurrent_v2"):
            self.held.add(name)
        else:
            what = {"cuMemRelease": "handle", "cuMemAddressFree": "address", "cuMemUnmap": "cuMemMap", "cuCtxPopCurrent_v2": "cuCtxPushCurrent_v2"}
            if name in what:
                self.held.remove(what[name])


class GPUTest(unittest.TestCase):
    def test_no_failure_leaves_anything(self):
        failed = 0
        for fail in range(1, 20):
            with mock.patch.object(_cuda, "_Driver", FakeDriver):
                device = _cuda.Device(0)
            device.call.calls, device.call.fail = 0, fail
            try:
                memory = _cuda.DeviceMemory(device, 7, 300, 4096)
            except cfpipe.Error:
                failed += 1
                device.call.fail = None
            else:
                self.assertEqual(device.call.held, {"address", "cuMemMap"})
                self.assertEqual(memory.size, 2 << 20)
                device.call.fail = None
                del memory
            support.gc.collect()
            self.assertEqual(device.call.held, {7: {"handle"}}.get(fail, set()), fail)  # its own release failed
        self.assertGreater(failed, 5)

    def test_other_device_is_named(self):
        with mock.patch.object(_cuda, "_Driver", FakeDriver):
            device = _cuda.Device(1)
        device.id = 1
        with self.assertRaisesRegex(cfpipe.GPUError, "GPU 0 .* asked for is GPU 1"):
            _cuda.DeviceMemory(device, 7, 300, 4096)
        self.assertEqual(device.call.held, set())

    def plane(self):
        with mock.patch.object(_cuda, "_Driver", FakeDriver):
            device = _cuda.Device(0)
        ring = mock.Mock(leases=set(), meta=_control.Meta(*META), memory=[_cuda.DeviceMemory(device, 7, META[-1], 4096)])
        ring.layout = _frames._layout(ring.meta)
        return _frames.Frame(ring, 1, 0, 0).planes[1], device

    def test_interfaces(self):
        plane, device = self.plane()
        i = plane.__cuda_array_interface__
        self.assertEqual((i["shape"], i["strides"], i["typestr"], i["data"]), ((24, 32, 2), (256, 2, 1), "|u1", (0x7F0000000000 + 256 * 48, False)))
        self.assertFalse(hasattr(plane, "__array_interface__"))
        with self.assertRaises(TypeError):
            plane.__array__()
        self.assertEqual(plane.__dlpack_device__(), (2, 0))
        before = len(_dlpack._live)
        capsule = plane.__dlpack__(stream=1)
        (m, dims, steps, owner), = [v for v in _dlpack._live.values() if v[3] is plane]
        t = m.tensor
        self.assertEqual((t.data, t.device_type, t.ndim, t.code, t.bits, list(dims), list(steps)),
                         (0x7F0000000000 + 256 * 48, 2, 3, 1, 8, [24, 32, 2], [256, 2, 1]))
        del plane, owner, i, m, dims, steps, t
        self.assertIn("address", device.call.held)
        del capsule  # nobody took it
        support.gc.collect()
        self.assertEqual(len(_dlpack._live), before)
        self.assertEqual(device.call.held, set())

    def test_no_driver(self):
        with mock.patch("ctypes.CDLL", side_effect=OSError("libcuda.so.1: cannot open")):
            with self.assertRaisesRegex(cfpipe.GPUError, "no CUDA driver"):
                _cuda._Driver()


@unittest.skipUnless(os.environ.get("CFPIPE_STANDIN_CUDA"), "CFPIPE_STANDIN_CUDA names no stand-in for libcuda")
class StandInTest(support.Case):
    """Calls cross into C with the driver's prototypes; "GPU memory" is a file of 2 MiB."""

    def test_frames(self):
        fd = os.open(self.place.dir, os.O_RDWR | os.O_TMPFILE)
        os.ftruncate(fd, 2 << 20)
        pixels = bytes(n % 251 for n in range(META[-1]))
        os.pwrite(fd, pixels, 0)
        liar = Liar(self.place, fds=lambda: [fd], memory=2 << 20, granularity=2 << 20)
        self.addCleanup(liar.close)
        with mock.patch.object(_cuda, "_LIBRARIES", (os.environ["CFPIPE_STANDIN_CUDA"],)):
            with cfpipe.frames(self.place.key, runtime_dir=self.place.dir, current=True, timeout=10) as s:
                frame = next(s)
                self.assertTrue(frame.on_gpu)
                self.assertEqual(frame.tobytes(), b"".join(pixels[i:i + 64] for i in range(0, len(pixels), 256)))
                plane = frame.planes[1]
                self.assertEqual(_cuda.ctypes.string_at(plane.pointer, 64), pixels[256 * 48:256 * 48 + 64])
                self.assertTrue(frame.release())
        capsule = plane.__dlpack__()
        pointer = plane.pointer
        del frame, plane
        support.gc.collect()
        self.assertEqual(_cuda.ctypes.string_at(pointer, 64), pixels[256 * 48:256 * 48 + 64])  # as long as the tensor is there
        del capsule
        support.gc.collect()
        with open("/proc/self/maps") as f:
            self.assertNotIn("%x-" % (pointer - 256 * 48), f.read())

    def test_no_memory_of_a_gpu(self):
        with mock.patch.object(_cuda, "_LIBRARIES", (os.environ["CFPIPE_STANDIN_CUDA"],)):
            for fds, size in ((lambda: [os.open("/dev/null", os.O_RDWR)], 4096), (lambda: [os.open(__file__, os.O_RDONLY)], 5 * 4096)):
                place = support.Place()
                liar = Liar(place, fds=fds, memory=5 * 4096)
                try:
                    with self.assertRaises(cfpipe.Error):
                        cfpipe.frames(place.key, runtime_dir=place.dir)
                finally:
                    liar.close()
                    place.close()


if __name__ == "__main__":
    unittest.main()
