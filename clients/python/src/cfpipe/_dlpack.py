"""DLPack capsules without a compiled part."""

import ctypes

CUDA = 2


class _Tensor(ctypes.Structure):  # DLTensor
    _fields_ = [
        ("data", ctypes.c_void_p), ("device_type", ctypes.c_int), ("device_id", ctypes.c_int), ("ndim", ctypes.c_int),
        ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)), ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):  # DLManagedTensor
    _fields_ = [("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_UNSIGNED = 1
_live = {}  # address of a _Managed: all that it points to, and the owner of the memory


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _delete(address):
    _live.pop(address, None)


_api = ctypes.pythonapi
_new, _valid, _pointer = _api.PyCapsule_New, _api.PyCapsule_IsValid, _api.PyCapsule_GetPointer
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
_valid.restype, _valid.argtypes = ctypes.c_int, [ctypes.c_void_p, ctypes.c_char_p]
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_char_p]

_NAME = b"dltensor"  # kept: a capsule refers to its name


@ctypes.CFUNCTYPE(None, ctypes.c_void_p)
def _destroy(capsule):  # not as py_object: the capsule is being deallocated
    if _valid(capsule, _NAME):  # nobody took it
        _live.pop(_pointer(capsule, _NAME), None)


def capsule(owner, pointer, device_id, bits, shape, strides):
    """A capsule for unsigned integers in GPU memory; strides in elements. owner lives as long as the tensor made of it."""
    n = len(shape)
    dims, steps = (ctypes.c_int64 * n)(*shape), (ctypes.c_int64 * n)(*strides)
    m = _Managed(_Tensor(pointer, CUDA, device_id, n, _UNSIGNED, bits, 1, dims, steps, 0), None, ctypes.cast(_delete, ctypes.c_void_p))
    address = ctypes.addressof(m)
    _live[address] = (m, dims, steps, owner)
    return _new(address, _NAME, ctypes.cast(_destroy, ctypes.c_void_p))
