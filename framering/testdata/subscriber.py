"""A subscriber of protocol 4 written from the specification alone: subscriber.py SOCKET FLAGS. Prints what it learns as JSON."""
import array, json, mmap, os, socket, struct, sys

path, flags = sys.argv[1], int(sys.argv[2])
s = socket.socket(socket.AF_UNIX)
s.connect(path)


def send(kind, payload=b""):
    s.sendall(struct.pack("<II", kind, len(payload)) + payload)


def receive():
    fds = array.array("i")
    data, anc, _, _ = s.recvmsg(8, socket.CMSG_SPACE(16 * fds.itemsize))
    for level, kind, cmsg in anc:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            fds.frombytes(cmsg[: len(cmsg) - len(cmsg) % fds.itemsize])
    kind, n = struct.unpack("<II", data)
    payload = b""
    while len(payload) < n:
        payload += s.recv(n - len(payload))
    return kind, payload, list(fds)


name = b"python"
send(1, struct.pack("<II", 4, len(name)) + name + struct.pack("<iII8x", 0, 0, flags))
kind, p, _ = receive()
assert kind == 2, kind
(result,) = struct.unpack_from("<i", p)
if result < 0:
    assert p[4:] == bytes(12), p
    print(json.dumps({"result": result}))
    sys.exit()
version, ring, ownership, fmt, width, height, pitch_y, pitch_uv, bpp, frame_size = struct.unpack_from("<IIIIIIIIIQ", p, 4)
at = 16 + 64
(n,) = struct.unpack_from("<I", p, at)
shm_path = p[at + 4 : at + 4 + n].decode()
at += 4 + n
(n,) = struct.unpack_from("<I", p, at)
packet_path, codec, initial = "", 0, 0
if n:
    packet_path = p[at + 4 : at + 4 + n].decode()
    codec, initial = struct.unpack_from("<IQ", p, at + 4 + n)

send(3, struct.pack("<I12x", 4))
kind, p, _ = receive()
assert kind == 4, kind
result, bit, initial_seq = struct.unpack_from("<iIQ", p)
assert result == 0 and len(p) == 28
kind, p, fds = receive()
assert kind == 5 and len(p) == 32, (kind, p)
count, mapping, granularity = struct.unpack_from("<IQQ", p)
firsts = [os.pread(fd, 1, 0)[0] for fd in fds]

with open(shm_path, "rb") as f:
    shm = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_READ)
magic, proto = struct.unpack_from("<II", shm)
entry = 0x0D00 + bit * 128
send(0xF0)
kind, p, _ = receive()
assert kind == 0xF1, kind
state, pid, seen = struct.unpack_from("<QQQ", shm, entry)
print(json.dumps({
    "result": 0, "version": version, "ring": ring, "width": width, "height": height, "frame_size": frame_size, "shm": shm_path,
    "packets": packet_path, "codec": codec, "initial": initial, "bit": bit, "initial_seq": initial_seq, "count": count,
    "mapping": mapping, "granularity": granularity, "firsts": firsts, "magic": magic, "proto": proto, "size": len(shm), "state": state,
    "pid_ok": pid == os.getpid(), "name": shm[entry + 0x20 : entry + 0x40].rstrip(b"\0").decode(),
    "bitmap": struct.unpack_from("<Q", shm, 0xC8)[0],
}), flush=True)
kind, p, _ = receive()
assert kind == 0x30 and len(p) == 16, kind
print(json.dumps({"reason": struct.unpack_from("<I", p)[0]}), flush=True)
assert s.recv(1) == b""
