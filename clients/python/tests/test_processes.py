"""Real publishers: cfpipe ingest, with and without frames."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
import unittest

import support
from support import Case

import cfpipe

try:
    import numpy
except ImportError:
    numpy = None


@unittest.skipUnless(support.BINARY, "no cfpipe: set CFPIPE_BIN")
class ProcessTest(Case):
    def packets(self, **how):
        how = dict(dict(runtime_dir=self.place.dir, wait=20, timeout=20), **how)
        s = cfpipe.packets(self.place.key, **how)
        self.addCleanup(s.close)
        return s

    def frames(self, **how):
        how = dict(dict(runtime_dir=self.place.dir, wait=20, timeout=20), **how)
        s = cfpipe.frames(self.place.key, **how)
        self.addCleanup(s.close)
        return s

    def number(self, frame):
        """The number that stands in the pixels; the whole picture must be the one of that number."""
        y, uv = frame.planes
        pixels = y.tobytes(), uv.tobytes()
        n = pixels[0][0] - 16
        self.assertEqual(pixels, support.expected_planes(n), frame)
        return n

    # Packets

    def test_packets_equal_those_of_the_command(self):
        self.place.ingest(self.camera(), "--decode", "off")
        with self.packets(start="oldest") as s:
            first = next(s)
            self.assertTrue(first.key)
            out = []
            t = threading.Thread(target=lambda: out.append(self.place.run("packets", self.place.key, "--count", "40").stdout))
            t.start()
            got, have = [first], first.data
            for p in s:
                self.assertEqual(p.seq, got[-1].seq + 1)
                self.assertGreater(p.dts_ns, got[-1].dts_ns)
                got.append(p)
                have += p.data
                if not t.is_alive() and out and out[0] in have:
                    break
                self.assertLess(len(got), 500, "the command's bytes do not come")
            t.join()
            self.assertLess(abs(time.time() - got[-1].pts_ns / 1e9), 5)
            self.assertEqual((s.codec, s.codec_id, s.extradata[:4]), ("h264", 27, b"\0\0\0\1"))
            self.assertTrue(all(p.data[:4] == b"\0\0\0\1" for p in got))
            self.assertEqual(s.stats[:4], (len(got), 0, 0, len(have)))

    def test_no_key_and_no_frames(self):
        start = time.monotonic()
        with self.assertRaises(cfpipe.NoPublisherError) as e:
            self.packets(wait=0)
        self.assertIsInstance(e.exception, FileNotFoundError)
        self.assertLess(time.monotonic() - start, 2)
        self.place.ingest(self.clip(), "--loop", "--realtime", "--decode", "off")
        self.packets().close()
        with self.assertRaisesRegex(cfpipe.NotAvailableError, "has no frames: nobody decodes it: .*cfpipe decode"):
            self.frames(wait=0)
        for key in ("", "a b", "a/b", "x" * 64, "x\n"):
            with self.assertRaises(ValueError):
                cfpipe.packets(key, runtime_dir=self.place.dir)

    def test_the_example_without_numpy(self):
        readme = os.path.join(os.path.dirname(support.ROOT), "README.md")
        with open(readme, encoding="utf-8") as f:
            example = f.read().split("## Pictures with the standard library alone")[1].split("```")[1].replace("python\n", "", 1)
        self.place.ingest(self.clip(), "--loop", "--realtime", "--decode", "cpu")
        self.frames().close()
        subprocess.run([sys.executable, "-S", "-c", example.replace("cam1", self.place.key)], cwd=self.place.dir, timeout=60, check=True,
                       env=dict(os.environ, PYTHONPATH=support.ROOT, CUFRAMES_RUNTIME_DIR=self.place.dir))
        with open(os.path.join(self.place.dir, "luma.pgm"), "rb") as f:
            header, luma = f.read().split(b" 255\n", 1)
        self.assertEqual(header, b"P5 320 192")
        self.assertIn(luma, [support.expected_planes(n)[0] for n in range(50)])

    def test_end_and_timeout(self):
        p = self.place.ingest(self.clip(), "--loop", "--realtime", "--decode", "cpu")
        with self.packets() as s, self.frames() as f:
            next(s), next(f)
            p.send_signal(signal.SIGSTOP)
            with self.assertRaises(TimeoutError):
                while True:
                    s.next(timeout=0.2)
            with self.assertRaises(TimeoutError):
                while True:
                    f.next(timeout=0.2)
            p.send_signal(signal.SIGCONT)
            next(s), next(f)
            p.send_signal(signal.SIGTERM)
            for _ in s:
                pass
            for _ in f:
                pass
            with self.assertRaises(cfpipe.EndedError):
                s.next()
        with self.assertRaises(ValueError):
            s.next()
        self.assertEqual(p.wait(20), 0)
        self.assertGreater(s.stats.read, 1)

    def test_killed_and_restarted(self):
        clip = self.clip()
        p = self.place.ingest(clip, "--loop", "--realtime", "--decode", "cpu")
        with self.packets(follow=True) as s, self.frames(follow=True, mode="all") as f:
            for round_ in range(1, 4):
                for _ in range(5):
                    next(s)
                    frame = next(f)
                    self.number(frame)
                held = f.next()
                p.kill()
                p.wait()
                if round_ == 2:  # while somebody waits
                    t = threading.Timer(0.3, lambda: None)
                    t.start()
                    t.join()
                p = self.place.ingest(clip, "--loop", "--realtime", "--decode", "cpu")
                while s.generation < round_:
                    packet = next(s)
                self.assertTrue(packet.discontinuity and packet.key)
                while f.generation < round_:
                    frame = next(f)
                self.number(frame)
                self.number(held)  # its memory is still there
                self.assertTrue(held.release())
            self.assertEqual(s.stats.restarts, 3)
            self.assertEqual(f.stats.overruns, 0)

    def test_forgotten_is_collected(self):
        self.place.ingest(self.clip(), "--loop", "--realtime", "--decode", "cpu")
        self.packets()  # warms up
        s = self.frames()
        plane = next(s).planes[0]
        s.close()
        self.assertEqual(len(plane.tobytes()), support.WIDTH * support.HEIGHT)
        before = support.opened()
        for _ in range(5):
            next(cfpipe.packets(self.place.key, runtime_dir=self.place.dir, timeout=10)).data
            with cfpipe.frames(self.place.key, runtime_dir=self.place.dir, timeout=10) as f:
                f.next()
        del f
        self.eventually(lambda: support.gc.collect() is not None and support.opened() == before)

    # Frames

    def test_frames_equal_those_of_the_command(self):
        self.place.ingest(self.camera(), "--decode", "cpu", "--frame-slots", "16")
        self.compare_frames("NV12")

    def compare_frames(self, fmt):
        with self.frames(mode="all") as s:
            ours = {}
            frame = next(s)
            self.assertEqual((frame.format, frame.on_gpu), (fmt, False))
            c = self.place.start("frames", self.place.key, "-f", "raw", "--json", "--count", "20", "--log-level", "error",
                                 stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            out = []
            t = threading.Thread(target=lambda: out.append(c.communicate()))
            t.start()
            while t.is_alive() or frame.seq <= last:
                pixels = frame.tobytes()
                if frame.release():
                    ours[frame.seq] = frame.pts_ns, pixels
                frame = next(s)
                if not t.is_alive():
                    last = json.loads(out[0][1].splitlines()[-1])["seq"]
            t.join()
            c.stderr.close()
            pixels, common = out[0][0], 0
            for line in map(json.loads, out[0][1].splitlines()):
                if line["seq"] in ours:
                    self.assertEqual(ours[line["seq"]], (line["pts_ns"], pixels[:line["bytes"]]))
                    common += 1
                pixels = pixels[line["bytes"]:]
            self.assertGreaterEqual(common, 15)

    def test_ten_bits(self):
        ffmpeg = support.shutil.which("ffmpeg")
        if not ffmpeg:
            self.skipTest("no ffmpeg")
        clip = os.path.join(self.place.dir, "clip.mkv")
        subprocess.run([ffmpeg, "-v", "error", "-f", "lavfi", "-i", "testsrc2=s=322x182:r=25", "-frames:v", "50", "-c:v", "libx265", "-preset",
                        "ultrafast", "-pix_fmt", "yuv420p10le", "-x265-params", "log-level=none", clip], check=True)
        self.place.ingest(clip, "--loop", "--realtime", "--decode", "cpu", "--frame-slots", "16")
        self.compare_frames("P010")
        if numpy:
            with self.frames() as s:
                y, uv = map(numpy.asarray, next(s).planes)
                self.assertEqual((y.dtype, y.shape, uv.shape), (numpy.uint16, (182, 322), (91, 161, 2)))

    @unittest.skipUnless(numpy, "no NumPy")
    def test_numpy_views(self):
        self.place.ingest(self.clip(), "--loop", "--realtime", "--decode", "cpu")
        with self.frames() as s:
            for frame in s:
                y, uv = (numpy.asarray(p) for p in frame.planes)
                self.assertEqual((y.shape, y.strides), ((192, 320), (512, 1)))
                self.assertEqual((uv.shape, uv.strides), ((96, 160, 2), (512, 2, 1)))
                self.assertFalse(y.flags.writeable or y.flags.owndata)
                n = int(y[0, 0]) - 16
                self.assertEqual((y.tobytes(), uv.tobytes()), support.expected_planes(n))
                self.assertTrue(frame.release())
                if s.stats.read == 20:
                    break
        self.assertEqual(y[0, 0], n + 16)  # mapped as long as there is a view
        del y, uv, frame

    def test_strict_wait_has_no_gap(self):
        """A publisher that waits for acknowledgements: it would drop this reader after a second without them."""
        self.place.ingest(self.clip(), "--loop", "--decode", "cpu", "--policy", "strict-wait", "--frame-slots", "4")
        with self.frames(mode="all") as a, self.frames(mode="newest") as b:
            until, last, count = time.monotonic() + 2.5, None, 0
            while time.monotonic() < until:
                frame = next(a)
                self.number(frame)
                self.assertEqual(frame.lost, 0)
                if last is not None:
                    self.assertEqual(frame.seq, last + 1)
                last = frame.seq
                self.assertTrue(frame.release())
                count += 1
                self.number(next(b))
            self.assertGreater(count, 50)
            self.assertEqual(a.stats[1:], (0, 0, 0, 0))

    def test_strict_wait_drops_who_holds_on(self):
        self.place.ingest(self.clip(), "--loop", "--realtime", "--decode", "cpu", "--policy", "strict-wait", "--frame-slots", "2")
        with self.frames(mode="all") as s:
            held = s.next()
            with self.assertRaises(cfpipe.RefusedError) as e:
                for _ in range(100):
                    s.next()
            self.assertEqual(e.exception.code, -5)
            self.eventually(lambda: not held.check())
            self.assertFalse(held.release())

    def test_overwritten_in_use_is_told(self):
        self.place.ingest(self.clip(), "--loop", "--realtime", "--decode", "cpu", "--frame-slots", "2")
        with self.frames() as s:
            frame = s.next()
            self.assertTrue(frame.check())
            self.eventually(lambda: not frame.check())
            self.assertFalse(frame.release())
            self.assertFalse(frame.release())
            with self.assertRaises(cfpipe.FrameOverrun):
                with s.next() as frame:
                    self.eventually(lambda: not frame.check())
            with self.assertRaises(ZeroDivisionError):  # not hidden by the overrun
                with s.next() as frame:
                    self.eventually(lambda: not frame.check())
                    1 / 0
            self.assertEqual(s.stats.overruns, 3)

    def test_no_torn_frame_is_accepted(self):
        """A publisher that is much faster than this reader, and does not wait."""
        self.place.ingest(self.clip(), "--loop", "--decode", "cpu", "--frame-slots", "2")
        whole = torn = 0
        with self.frames() as s:
            until = time.monotonic() + 2
            for frame in s:
                y, uv = (p.tobytes() for p in frame.planes)
                right = 16 <= y[0] < 66 and (y, uv) == support.expected_planes(y[0] - 16)
                if frame.release():
                    whole += 1
                    self.assertTrue(right, frame)
                else:
                    torn += not right
                if time.monotonic() > until:
                    break
            self.assertEqual(s.stats.read, whole + s.stats.overruns)
        self.assertGreater(whole, 0)
        self.assertGreater(torn, 0, "nothing was torn: the test shows nothing")

    def test_forked_child_changes_nothing(self):
        self.place.ingest(self.clip(), "--loop", "--realtime", "--decode", "cpu", "--policy", "strict-wait")
        with self.frames(mode="all") as f, self.packets() as p:
            held = f.next()
            next(p)
            pid = os.fork()
            if pid == 0:
                held.release()
                f.close()
                p.close()
                os._exit(0)
            self.assertEqual(os.waitpid(pid, 0)[1], 0)
            self.assertTrue(held.release())
            for _ in range(30):
                self.assertEqual(next(f).lost, 0)
                next(p)

    def test_progress_is_shown(self):
        self.place.ingest(self.clip(), "--loop", "--realtime", "--decode", "cpu")
        with self.frames(mode="all", name="detector") as s:
            for _ in range(10):
                next(s).release()
            found = json.loads(self.place.run("inspect", self.place.key, "--json").stdout)
            (me,) = [r for r in found["readers"] if r["name"] == "detector"]
            self.assertEqual((me["last_seq"], me["frames"], me["pid"]), (s._ring.last, True, os.getpid()))
            self.assertLess(me["seen_seconds"], 10)


if __name__ == "__main__":
    unittest.main()
