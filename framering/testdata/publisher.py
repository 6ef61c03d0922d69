"""A publisher of protocol 4 written from the specification alone: publisher.py SOCKET KEY. It has one frame slot and holds no lock,
ignores subscribe_flags, and writes the compact layout. It ends when its subscriber says UNSUBSCRIBE, and prints what it was told."""
import array, mmap, os, socket, struct, sys

path, key = sys.argv[1], sys.argv[2]
shm_path = "/dev/shm/cuframes-" + key
size = 0x100 + 192 + 32 * 128
with open(shm_path, "wb") as f:
    f.truncate(size)
with open(shm_path, "r+b") as f:
    shm = mmap.mmap(f.fileno(), size)
meta = struct.pack("<IIIIIIQ32x", 0, 64, 48, 256, 256, 12, 256 * 72)
struct.pack_into("<IIIIIIQQQQQ", shm, 0, 0xCC7C1DCE, 4, 0, 4, 0, 0, os.getpid(), 1, 0, 0, 32)
shm[0x40:0x80] = meta
struct.pack_into("<Q", shm, 0x100, 2**64 - 1)

listener = socket.socket(socket.AF_UNIX)
listener.bind(path)
listener.listen()
print("ready", flush=True)
s, _ = listener.accept()


def receive():
    kind, n = struct.unpack("<II", s.recv(8, socket.MSG_WAITALL))
    return kind, s.recv(n, socket.MSG_WAITALL) if n else b""


def send(kind, payload, fds=()):
    anc = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", fds))] if fds else []
    s.sendmsg([struct.pack("<II", kind, len(payload)) + payload], anc)


kind, p = receive()
version, n = struct.unpack_from("<II", p)
assert kind == 1 and version == 4
name = p[8 : 8 + n].decode()
send(2, struct.pack("<iIII", 0, 4, 1, 0) + meta + struct.pack("<I", len(shm_path)) + shm_path.encode() + bytes(12))
kind, p = receive()
assert kind == 3 and p == struct.pack("<I12x", 4), p
struct.pack_into("<QQQq32s", shm, 0x100 + 192 + 5 * 128, 2, os.getppid(), 0, 0, name.encode())
struct.pack_into("<Q", shm, 0xC8, 1 << 5)
fd = os.memfd_create("frames", os.MFD_ALLOW_SEALING)
os.truncate(fd, 5 * 4096)
send(4, struct.pack("<iIQ12x", 0, 5, 77))
send(5, struct.pack("<IQQ12x", 1, 5 * 4096, 4096), [fd])
send(0xF0, b"")
kind, p = receive()
assert kind == 0xF1, kind
print("ponged", flush=True)
kind, p = receive()
assert kind == 0x10, kind
print("unsubscribed " + name, flush=True)
os.remove(path)
os.remove(shm_path)
