"""A subscriber of cuframes protocol 1 on the CUDA runtime API, written from the document of protocol 1 alone (its section numbers)."""
import array, ctypes, glob, mmap, os, select, socket, struct, sys

DIR, KEY, COUNT = sys.argv[1], sys.argv[2], int(sys.argv[3])


def runtime():
    names = [os.environ.get("CUDART", ""), "libcudart.so", "libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"]
    for place in sys.path + ["/usr/local/cuda/lib64", "/usr/local/cuda/targets/x86_64-linux/lib"]:
        names += sorted(glob.glob(place + "/nvidia/*/lib/libcudart.so*") + glob.glob(place + "/torch/lib/libcudart*.so*") + glob.glob(place + "/libcudart.so*"))
    for name in filter(None, names):
        try:
            return ctypes.CDLL(name)
        except OSError:
            pass
    print("no libcudart", flush=True)
    sys.exit(77)


class Handle(ctypes.Structure):  # cudaIpcMemHandle_t and cudaIpcEventHandle_t: 64 opaque bytes, passed by value
    _fields_ = [("reserved", ctypes.c_char * 64)]


rt = runtime()
rt.cudaIpcOpenMemHandle.argtypes = [ctypes.POINTER(ctypes.c_void_p), Handle, ctypes.c_uint]
rt.cudaIpcCloseMemHandle.argtypes = [ctypes.c_void_p]
rt.cudaIpcOpenEventHandle.argtypes = [ctypes.POINTER(ctypes.c_void_p), Handle]
rt.cudaEventDestroy.argtypes = [ctypes.c_void_p]
rt.cudaStreamCreate.argtypes = [ctypes.POINTER(ctypes.c_void_p)]
rt.cudaStreamDestroy.argtypes = [ctypes.c_void_p]
rt.cudaStreamWaitEvent.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint]
rt.cudaMemcpyAsync.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p]
rt.cudaStreamSynchronize.argtypes = [ctypes.c_void_p]


def call(name, *args):
    r = getattr(rt, name)(*args)
    if r != 0:
        sys.exit("%s: error %d" % (name, r))


def send(kind, payload):  # 3.1
    sock.sendall(struct.pack("<II", kind, len(payload)) + payload)


def receive():
    """The next message and the descriptors that came with it."""
    fds, data, want = array.array("i"), b"", 8
    while len(data) < want:
        part, anc, _, _ = sock.recvmsg(want - len(data), socket.CMSG_SPACE(16 * 4))
        if not part:
            sys.exit("the publisher has closed the connection")
        data += part
        for level, kind, rights in anc:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(rights)
        if len(data) == 8 and want == 8:
            want += struct.unpack("<II", data)[1]
    return struct.unpack("<I", data[:4])[0], data[8:], list(fds)


sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
sock.connect("%s/%s.sock" % (DIR, KEY))
name = b"runtime-api"
send(0x01, struct.pack("<II", 1, len(name)) + name + struct.pack("<iI12x", 0, 1))  # 3.3: HELLO_REQ, STRICT_ORDER
kind, p, _ = receive()
result = struct.unpack_from("<i", p)[0]
if kind != 0x02 or result != 0:
    sys.exit("HELLO_RESP %#x %d" % (kind, result))
_, version, ring, ownership = struct.unpack_from("<iIII", p)
fmt, width, height, pitch_y, pitch_uv, bpp, size = struct.unpack_from("<6IQ", p, 16)
path = p[84:84 + struct.unpack_from("<I", p, 80)[0]].decode()
send(0x03, struct.pack("<I12x", 1))  # 3.5
kind, p, _ = receive()
result, bit, seq = struct.unpack_from("<iIQ", p)
if kind != 0x04 or result != 0:
    sys.exit("SUBSCRIBE_RESP %#x %d" % (kind, result))
kind, p, fds = receive()
if kind != 0x20 or struct.unpack_from("<I", p)[0] != 1 or len(fds) != 1:
    sys.exit("EVENT_FD %#x %r" % (kind, fds))
bell = fds[0]

shm = mmap.mmap(os.open(path, os.O_RDWR), 0)
u64 = lambda at: struct.unpack_from("<Q", shm, at)[0]
if struct.unpack_from("<II", shm)[0] != 0xCC7C1DCC or u64(0x20) != ring:
    sys.exit("frame SHM: %r" % shm[:0x40])
SLOTS, SUBSCRIBERS = 0x100, 0x100 + (ring if len(shm) == 0x100 + ring * 192 + 32 * 128 else 16) * 192

call("cudaSetDevice", 0)
stream, event, slots = ctypes.c_void_p(), ctypes.c_void_p(), []
call("cudaStreamCreate", ctypes.byref(stream))
call("cudaIpcOpenEventHandle", ctypes.byref(event), Handle.from_buffer_copy(shm[0x80:0xC0]))
for i in range(ring):
    at, pointer = SLOTS + i * 192 + 0x20, ctypes.c_void_p()
    call("cudaIpcOpenMemHandle", ctypes.byref(pointer), Handle.from_buffer_copy(shm[at:at + 64]), 1)
    slots.append(pointer)
print("ready", flush=True)

host = ctypes.create_string_buffer(size)
right = wakes = 0
while right < COUNT:
    while u64(0xC0) <= seq:
        select.select([bell], [], [])
        os.read(bell, 8)
        wakes += 1
    seq += 1
    i = next((i for i in range(ring) if u64(SLOTS + i * 192) == seq), None)
    if i is None:
        sys.exit("frame %d is in no slot" % seq)
    call("cudaStreamWaitEvent", stream, event, 0)
    call("cudaMemcpyAsync", host, slots[i], size, 2, stream)
    call("cudaStreamSynchronize", stream)
    if u64(SLOTS + i * 192) != seq:
        sys.exit("frame %d was overwritten" % seq)
    y, uv = host.raw[:pitch_y * height], host.raw[pitch_y * height:size]
    if y.count(seq & 255) != len(y) or uv.count(seq >> 8 & 255) != len(uv):
        sys.exit("frame %d: wrong pixels, %d and %d" % (seq, y[0], uv[0]))
    right += 1
    ack = SLOTS + i * 192 + 0x10  # 5: first the ACK, then last_seen_seq
    struct.pack_into("<Q", shm, ack, u64(ack) | 1 << bit)  # alone here: no other subscriber's bit can be lost
    struct.pack_into("<Q", shm, SUBSCRIBERS + bit * 128 + 0x10, seq)
for pointer in slots:
    call("cudaIpcCloseMemHandle", pointer)
call("cudaEventDestroy", event)
call("cudaStreamDestroy", stream)
send(0x10, b"")
print("%d frames right of %dx%d, ownership %d, version %d, %d wake-ups" % (right, width, height, ownership, version, wakes), flush=True)
