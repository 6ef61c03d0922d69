"""Reads a key's frames and packets and prints what it saw as JSON; the Go tests compare it with the truth.

    check.py frames KEY COUNT    one line a frame: seq, sha256 of its pixels without padding, intact
    check.py packets KEY COUNT   one line a packet: seq, sha256 of its bytes, flags
"""
import hashlib
import json
import sys

import cfpipe

what, key, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
if what == "frames":
    with cfpipe.Frames(key, strict=True, wait=15) as frames:
        print("ready", flush=True)
        for _ in range(count):
            f = frames.next(timeout=15)
            h = hashlib.sha256()
            m = f.memory()
            for p in f.meta.planes:
                line = int(p.dtype[-1]) * p.shape[1] * (p.shape[2] if len(p.shape) == 3 else 1)
                for y in range(p.shape[0]):
                    h.update(m[p.offset + y * p.pitch:p.offset + y * p.pitch + line])
            try:
                import numpy
                h2 = hashlib.sha256(b"".join(numpy.ascontiguousarray(a).tobytes() for a in f.numpy()))
                assert h2.digest() == h.digest(), "NumPy views and bytes differ"
                with_numpy = True
            except ImportError:
                with_numpy = False
            print(json.dumps({"seq": f.seq, "sha256": h.hexdigest(), "intact": f.release(), "format": f.meta.format, "numpy": with_numpy}), flush=True)
        print(json.dumps({"lost": frames.lost}))
else:
    with cfpipe.Packets(key) as packets:
        print("ready", flush=True)
        for _ in range(count):
            p = packets.next(timeout=15)
            print(json.dumps({"seq": p.seq, "sha256": hashlib.sha256(p.data).hexdigest(), "flags": p.flags, "pts_ns": p.pts_ns}), flush=True)
        print(json.dumps({"lost": packets.lost}))
