"""DLPack between host arrays and libraries such as torch for bf16 and f8, which NumPy's DLPack lacks.

NumPy exports and imports the bits as unsigned integers, and the element type in the capsule is changed on the way. The
structures are those of dlpack.h, version 1.1.
"""

from __future__ import annotations

import ctypes
from typing import Any

import ml_dtypes
import numpy as np

Array = np.ndarray[Any, Any]

UNSIGNED = 1  # DLPack's code of unsigned integers
CODES: dict[np.dtype[Any], int] = {
    np.dtype(ml_dtypes.bfloat16): 4,
    np.dtype(ml_dtypes.float8_e4m3fn): 10,
    np.dtype(ml_dtypes.float8_e5m2): 12,
    np.dtype(ml_dtypes.float8_e8m0fnu): 14,
}
"""DLPack's codes of element types that NumPy lacks."""
DTYPES = {(code, dtype.itemsize * 8): dtype for dtype, code in CODES.items()}


class _Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", ctypes.c_int32 * 2),
        ("rank", ctypes.c_int32),
        ("type", _Type),
        ("shape", ctypes.c_void_p),
        ("strides", ctypes.c_void_p),  # null: those of row-major order
    )


# Bytes before the DLTensor in each kind of capsule: version, manager, deleter and flags in the newer one.
OFFSETS = {b"dltensor": 0, b"dltensor_versioned": 32}

_is_valid = ctypes.pythonapi.PyCapsule_IsValid
_is_valid.argtypes, _is_valid.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_int
_pointer = ctypes.pythonapi.PyCapsule_GetPointer
_pointer.argtypes, _pointer.restype = [ctypes.py_object, ctypes.c_char_p], ctypes.c_void_p


class _Source:
    """Object for `numpy.from_dlpack` with a capsule that was made before."""

    def __init__(self, capsule: Any, device: tuple[int, int]) -> None:
        self._capsule, self._device = capsule, device

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device


def to_dlpack(array: Array, **options: Any) -> Any:
    """Return a capsule of an array's memory; ``options`` are those of ``__dlpack__``.

    Raises: BufferError for element types that neither NumPy nor this module knows.
    """
    code = CODES.get(array.dtype)
    if code is None:
        return array.__dlpack__(**options)
    capsule = array.view(f"u{array.itemsize}").__dlpack__(**options)
    _type_of(capsule).code = code
    return capsule


def from_dlpack(source: Any) -> Array:
    """Return an array that shares the host memory of an object with ``__dlpack__``.

    Raises: the errors of the object and of NumPy, such as BufferError for memory of a device.
    """
    try:
        capsule = source.__dlpack__(max_version=(1, 0))  # NumPy makes arrays of older capsules read-only
    except TypeError:
        capsule = source.__dlpack__()
    element_type = _type_of(capsule)
    dtype = DTYPES.get((element_type.code, element_type.bits))
    if dtype is not None:
        element_type.code = UNSIGNED
    array: Array = np.from_dlpack(_Source(capsule, tuple(source.__dlpack_device__())))
    return array if dtype is None else array.view(dtype)


def drop_strides(capsule: Any) -> None:
    """Declare a capsule's memory as contiguous in row-major order."""
    _tensor_of(capsule).strides = None


def _type_of(capsule: Any) -> _Type:
    """Return the element type in a capsule, for reading and writing."""
    element_type: _Type = _tensor_of(capsule).type
    return element_type


def _tensor_of(capsule: Any) -> _Tensor:
    """Return the tensor in a capsule, for reading and writing. Raises: TypeError if it is no DLPack capsule."""
    for name, offset in OFFSETS.items():
        if _is_valid(capsule, name):
            return _Tensor.from_address(_pointer(capsule, name) + offset)
    raise TypeError(f"{type(capsule).__name__} is no DLPack capsule")
