"""Checks frames in GPU memory, on a machine with an NVIDIA GPU, cfpipe, and PyTorch or CuPy (what is there is used).

    gpu_check.py KEY     a running publisher of KEY: the arrays are the ring's own memory, the pictures are pictures
    gpu_check.py         publishes by itself a clip whose picture number stands in the pixels (cfpipe from PATH or $CFPIPE_BIN), and
                         compares every pixel on the GPU: all in order, a reader that is too slow, a publisher that is killed and
                         restarted; at the end the GPU's memory is back

Lines that begin with RESULT are what to keep. Any failure is a traceback and exit status 1.
"""

import gc
import os
import sys
import time

import support

import cfpipe

try:
    import torch
except ImportError:
    torch = None
try:
    import cupy
except ImportError:
    cupy = None


class Torch:
    name = "PyTorch"

    def __init__(self):
        torch.cuda.init()

    def arrays(self, plane):
        """The plane by each way that there is."""
        return torch.as_tensor(plane, device="cuda"), torch.from_dlpack(plane)

    pointer = staticmethod(lambda a: a.data_ptr())
    synchronize = staticmethod(lambda: torch.cuda.synchronize())
    free = staticmethod(lambda: (gc.collect(), torch.cuda.empty_cache(), torch.cuda.mem_get_info()[0])[2])

    def upload(self, data, shape):
        return torch.frombuffer(bytearray(data), dtype=torch.uint8).reshape(shape).cuda()

    equal = staticmethod(lambda a, b: (a == b).all())
    statistics = staticmethod(lambda a: (a.float().mean().item(), a.float().std().item()))


class CuPy:
    name = "CuPy"

    def arrays(self, plane):
        return cupy.asarray(plane), cupy.from_dlpack(plane)

    pointer = staticmethod(lambda a: a.data.ptr)
    synchronize = staticmethod(lambda: cupy.cuda.Device().synchronize())
    free = staticmethod(lambda: (gc.collect(), cupy.get_default_memory_pool().free_all_blocks(), cupy.cuda.runtime.memGetInfo()[0])[2])

    def upload(self, data, shape):
        return cupy.frombuffer(data, dtype="u1").reshape(shape)

    equal = staticmethod(lambda a, b: (a == b).all())
    statistics = staticmethod(lambda a: (float(a.mean()), float(a.std())))


def running(library, key):
    """A publisher of anybody's pictures."""
    whole = 0
    with cfpipe.frames(key, wait=10, timeout=10) as frames:
        for frame in frames:
            assert frame.on_gpu, "the frames do not lie on the GPU"
            y, uv = frame.planes
            for a, b in zip(library.arrays(y), library.arrays(uv)):
                assert tuple(a.shape) == (frame.height, frame.width) and b.shape[2] == 2, (a.shape, b.shape)
                assert library.pointer(a) == y.pointer and library.pointer(b) == uv.pointer, "there is a copy"
            mean, std = library.statistics(a)
            library.synchronize()
            if frame.release():
                whole += 1
                assert 16 <= mean <= 235 and std > 5, (mean, std)
            if frames.stats.read == 50:
                break
    assert whole > 30, whole
    print("RESULT %s read 50 frames without a copy, %d whole, luma mean %.1f, deviation %.1f" % (library.name, whole, mean, std))


class Numbered:
    """The clip whose pictures are known, published by a process of its own."""

    CLIP = 50

    def __init__(self, library):
        self.library = library
        w, h = support.WIDTH, support.HEIGHT
        planes = [support.expected_planes(n) for n in range(self.CLIP)]
        self.y = library.upload(b"".join(y for y, _ in planes), (self.CLIP, h, w))
        self.uv = library.upload(b"".join(uv for _, uv in planes), (self.CLIP, h // 2, w // 2, 2))
        bool(library.equal(self.y[0], self.y[1]))  # the first kernels take their time, which strict-wait does not give
        library.synchronize()
        self.place = support.Place()
        self.clip = os.path.join(self.place.dir, "clip.h264")
        with open(self.clip, "wb") as f:
            f.write(support.pcm_clip(self.CLIP))

    def publish(self, *args):
        return self.place.ingest(self.clip, "--loop", "--decode", "cuda", *args)

    def frames(self, **how):
        return cfpipe.frames(self.place.key, runtime_dir=self.place.dir, wait=30, timeout=30, **how)

    def right(self, frame, slow=0.0):
        """Whether all pixels are those of one picture, which one, and whether the publisher says that it was whole."""
        assert frame.on_gpu, "the frames do not lie on the GPU"
        planes = frame.planes
        (y, y2), (uv, _) = (self.library.arrays(p) for p in planes)
        assert self.library.pointer(y) == self.library.pointer(y2) == planes[0].pointer, "there is a copy"
        n = int(y[0, 0]) - 16
        time.sleep(slow)
        ok = 0 <= n < self.CLIP and bool(self.library.equal(y, self.y[n])) and bool(self.library.equal(uv, self.uv[n]))
        self.library.synchronize()
        return ok, n, frame.release()

    def in_order(self):
        p = self.publish("--realtime", "--policy", "strict-wait")
        with self.frames(mode="all") as s:
            last = None
            for frame in s:
                ok, n, whole = self.right(frame)
                assert ok and whole and frame.lost == 0, (frame, ok, n, whole)
                assert last in (None, (frame.seq - 1, (n - 1) % self.CLIP)), (last, frame, n)
                last = frame.seq, n
                if s.stats.read == 200:
                    break
        p.kill()
        print("RESULT %s: 200 frames in order under strict-wait, all pixels right, none lost" % self.library.name)

    def too_slow(self):
        p = self.publish("--realtime", "--frame-slots", "4")
        torn = wrong = overrun = whole = 0
        with self.frames() as s:
            for frame in s:
                ok, _, intact = self.right(frame, 0.06 * (s.stats.read % 5))
                torn += intact and not ok
                wrong += not intact and not ok
                overrun += not intact
                whole += intact and ok
                if s.stats.read == 100:
                    break
        p.kill()
        assert torn == 0, "%d torn frames were accepted" % torn
        assert whole > 0 and overrun > 0, (whole, overrun)
        print("RESULT %s: 100 frames of a publisher that does not wait: %d whole, %d overwritten in use and told so (%d of them mixed), "
              "0 torn accepted" % (self.library.name, whole, overrun, wrong))

    def restarts(self, times):
        p = self.publish("--realtime")
        with self.frames(follow=True) as s:
            for round_ in range(1, times + 1):
                assert self.right(next(s))[0]
                held = s.next()
                p.kill()
                p.wait()
                p = self.publish("--realtime")
                frame = next(s)
                while s.generation < round_:
                    frame = next(s)
                assert self.right(frame)[0] and self.right(held)[:3:2] == (True, True)
        p.kill()
        p.wait()
        print("RESULT %s: publisher killed and restarted %d times, followed each time" % (self.library.name, times))

    def run(self):
        before = self.library.free()
        try:
            self.in_order()
            self.too_slow()
            self.restarts(5)
        except BaseException:
            print(self.place.logs(), file=sys.stderr)
            raise
        finally:
            self.place.close()
        left, until = 0, time.monotonic() + 10
        while time.monotonic() < until:  # the driver takes its time over killed processes
            left = before - self.library.free()
            if left <= 8 << 20:
                break
            time.sleep(0.1)
        assert left <= 8 << 20, "%d MiB of GPU memory are left" % (left >> 20)
        print("RESULT %s: GPU memory is back, to %d MiB" % (self.library.name, left >> 20))


def main():
    libraries = [L() for L, there in ((Torch, torch), (CuPy, cupy)) if there]
    if not libraries:
        sys.exit("neither PyTorch nor CuPy is installed")
    if len(sys.argv) > 1 and sys.argv[1] in ("-h", "--help"):
        print(__doc__)
        return
    for library in libraries:
        if len(sys.argv) > 1:
            running(library, sys.argv[1])
        elif support.BINARY:
            Numbered(library).run()
        else:
            sys.exit("no cfpipe in PATH")


if __name__ == "__main__":
    main()
