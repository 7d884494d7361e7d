"""Exchange of device arrays with other libraries without copies: DLPack and __cuda_array_interface__."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np

from . import device
from .array_ops import View
from .memory import MemoryPointer, UnownedMemory
from .ndarray import dense_strides, ndarray
from .stream import Event, ExternalStream, Stream, get_current_stream

KDL_CPU, KDL_CUDA = 1, 2
_CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
_KINDS = {code: kind for kind, code in _CODES.items()}
_BFLOAT = 4


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),  # in elements; null for a dense array
        ("byte_offset", ctypes.c_uint64),
    )


_Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class _Managed(ctypes.Structure):
    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", _Deleter))


_Destructor = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_new = ctypes.pythonapi.PyCapsule_New
_new.restype, _new.argtypes = ctypes.py_object, [ctypes.c_void_p, ctypes.c_char_p, _Destructor]
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.restype, _pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
_rename = ctypes.pythonapi.PyCapsule_SetName
_rename.argtypes = [ctypes.py_object, ctypes.c_char_p]
_raw_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(("PyCapsule_IsValid", ctypes.pythonapi))
_raw_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", ctypes.pythonapi)
)

_exported: dict[int, tuple[Any, ...]] = {}  # by the address of a structure: the objects it must keep alive


@_Deleter
def _release(managed: int) -> None:
    _exported.pop(managed, None)


@_Destructor
def _destroy(capsule: int) -> None:
    if _raw_valid(capsule, b"dltensor"):  # no consumer took it
        _release(_raw_pointer(capsule, b"dltensor"))


def _wait(producer: Stream, consumer: Stream) -> None:
    """Make the consumer's stream wait for the work enqueued on the producer's stream."""
    if producer != consumer:
        event = Event(disable_timing=True)
        event.record(producer)
        consumer.wait_event(event)


def to_dlpack(array: ndarray, stream: int | None = None) -> Any:
    """Return a capsule, as ndarray.__dlpack__. `stream` is the consumer's; -1 if it wants no synchronisation."""
    if stream != -1:
        _wait(get_current_stream(), ExternalStream(stream or 1))
    code = _BFLOAT if array.dtype == ml_dtypes.bfloat16 else _CODES[array.dtype.kind]
    shape = (ctypes.c_int64 * max(1, array.ndim))(*array.shape)
    strides = (ctypes.c_int64 * max(1, array.ndim))(*(step // array.itemsize for step in array.strides))
    tensor = _Tensor(
        array.data.ptr, KDL_CUDA, array.data.device_id, array.ndim, code, 8 * array.itemsize, 1, shape, strides, 0
    )
    managed = _Managed(tensor, None, _release)
    address = ctypes.addressof(managed)
    _exported[address] = (managed, shape, strides, array)
    return _new(address, b"dltensor", _destroy)


class _Owner:
    """Owner of foreign memory: calls `done` when the last view is gone, which tells the producer."""

    def __init__(self, done: Callable[[], None]) -> None:
        weakref.finalize(self, done).atexit = False


def _foreign(
    ptr: int, shape: tuple[int, ...], strides: tuple[int, ...] | None, dtype: np.dtype[Any], owner: object, where: int
) -> ndarray:
    steps = strides or dense_strides(shape, dtype.itemsize, "C")
    low, high = View(ptr, shape, steps, dtype).bounds()
    memory = UnownedMemory(low, high - low, owner, where)
    return ndarray(shape, dtype, MemoryPointer(memory, ptr - low), steps)


def from_dlpack(source: Any, *, device: int | None = None, copy: bool | None = None) -> ndarray:
    """Return a view of another library's device array, as cupy.from_dlpack."""
    kind, number = source.__dlpack_device__()
    if int(kind) != KDL_CUDA:
        raise TypeError(f"Unsupported array with DLPack device type {int(kind)}: only CUDA arrays are taken")
    capsule = source.__dlpack__(stream=get_current_stream(number).ptr or 1)
    address = _pointer(capsule, b"dltensor")
    _rename(capsule, b"used_dltensor")
    managed = _Managed.from_address(address)
    tensor = managed.tensor
    dtype = np.dtype(ml_dtypes.bfloat16)
    if tensor.code != _BFLOAT:
        dtype = np.dtype(f"{_KINDS[tensor.code]}{tensor.bits // 8}")
    shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
    strides = tuple(tensor.strides[i] * dtype.itemsize for i in range(tensor.ndim)) if tensor.strides else None
    owner = _Owner(lambda: managed.deleter(address))
    return _foreign(tensor.data + tensor.byte_offset, shape, strides, dtype, owner, number)


def from_interface(source: Any) -> ndarray:
    """Return a view of an object with `__cuda_array_interface__`, after synchronizing the stream that it names."""
    described = source.__cuda_array_interface__
    if described.get("stream"):
        ExternalStream(described["stream"]).synchronize()
    shape, dtype = tuple(described["shape"]), np.dtype(described["typestr"])
    return _foreign(described["data"][0], shape, described.get("strides"), dtype, source, device.current())
