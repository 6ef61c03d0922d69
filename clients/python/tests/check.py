"""Reads a key's frames and packets and prints what it saw as JSON, for tests that compare it with the truth.

    check.py frames KEY COUNT    one line a frame: seq, sha256 of its pixels without padding, intact
    check.py packets KEY COUNT   one line a packet: seq, sha256 of its bytes, flags
"""

import hashlib
import json
import sys

import cfpipe

try:
    import numpy
except ImportError:
    numpy = None


def frame_line(f):
    pixels = f.tobytes()
    if numpy:
        assert b"".join(numpy.asarray(p).tobytes() for p in f.planes) == pixels, "NumPy views and bytes differ"
    return {"seq": f.seq, "sha256": hashlib.sha256(pixels).hexdigest(), "intact": f.release(), "format": f.format, "numpy": bool(numpy)}


def packet_line(p):
    return {"seq": p.seq, "sha256": hashlib.sha256(p.data).hexdigest(), "flags": p.flags, "pts_ns": p.pts_ns}


what, key, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
opened, line = (cfpipe.frames(key, mode="all", wait=15, timeout=15), frame_line) if what == "frames" else (
    cfpipe.packets(key, wait=15, timeout=15), packet_line)
with opened as items:
    print("ready", flush=True)
    for _ in range(count):
        print(json.dumps(line(next(items))), flush=True)
    print(json.dumps({"lost": items.stats.lost}))
