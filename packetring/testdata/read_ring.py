#!/usr/bin/env python3
"""Reads a packet ring with nothing but Python's standard library, and checks each packet.

usage: read_ring.py /dev/shm/cuframes-KEY-packets COUNT

Prints one JSON line: packets read, lost, torn. The order of loads is that of docs/packet-ring.md; Python's own locks are the barriers
on amd64, where loads stay in order.
"""
import json
import mmap
import struct
import sys
import time
import zlib

INVALID = 2**64 - 1

path, count = sys.argv[1], int(sys.argv[2])
with open(path, "rb") as f:
    m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)
magic, version, slots, data_size, codec, extradata_size = struct.unpack_from("<6I", m, 0)
assert magic == 0xCC7C1DCD and version in (2, 4) and 1 <= slots <= 1024 and extradata_size <= 4096
data = 0x1040 + 64 * slots
assert data + data_size <= len(m)


def u64(offset):
    return struct.unpack_from("@Q", m, offset)[0]  # native: one load of 8 bytes; "<Q" puts single bytes together


def read(seq):
    """Returns (pts, dts, flags, payload), or None when the packet is not whole."""
    slot = 0x1040 + 64 * (seq % slots)
    if u64(slot) != seq:
        return None
    pts, dts, offset, size, flags = struct.unpack_from("@qqQII", m, slot + 8)
    if size > data_size or not size <= u64(0x30) - offset <= data_size:
        return None
    at = offset % data_size
    first = min(size, data_size - at)
    payload = m[data + at:data + at + first] + m[data:data + size - first]
    if u64(slot) != seq or u64(0x30) - offset > data_size:
        return None
    return pts, dts, flags, payload


def good(seq, pts, dts, flags, payload):
    n = len(payload)
    return (
        n >= 16
        and struct.unpack_from("<QI", payload) == (seq, n)
        and zlib.crc32(payload[:-4]) == struct.unpack_from("<I", payload, n - 4)[0]
        and pts == seq * 1000 + 1
        and dts == seq * 1000 - 500
        and flags & 1 == (seq % 7 == 1)
    )


r = {"codec": codec, "extradata": m[0x40:0x40 + extradata_size].decode(), "read": 0, "lost": 0, "torn": 0}
want = max(u64(0x28), 1)  # last_keyframe_seq
r["first"] = want
while r["read"] < count:
    if u64(0x20) < want:
        if u64(0x38):
            break
        time.sleep(0.0005)
        continue
    packet = read(want)
    if packet is None:  # overrun: on at the newest keyframe
        key = max(u64(0x28), want + 1)
        r["lost"] += key - want
        want = key
        continue
    r["read"] += 1
    r["torn"] += not good(want, *packet)
    want += 1
r["last"] = want - 1
print(json.dumps(r))
