"""Tensors of the KServe v2 protocol: element types, bytes and JSON values."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from ovgpu.errors import Error
from ovgpu.serve.errors import invalid
from ovgpu.types import Type

DATATYPES = {
    "BOOL": Type.boolean, "UINT8": Type.u8, "UINT16": Type.u16, "UINT32": Type.u32, "UINT64": Type.u64,
    "INT8": Type.i8, "INT16": Type.i16, "INT32": Type.i32, "INT64": Type.i64, "FP16": Type.f16, "BF16": Type.bf16,
    "FP32": Type.f32, "FP64": Type.f64, "BYTES": Type.string,
}
NAMES = {kind: name for name, kind in DATATYPES.items()}
MAX_RANK = 32
LENGTH = struct.Struct("<I")  # of an element of BYTES, before it

Array = np.ndarray[Any, Any]


def check_shape(name: str, shape: Sequence[Any]) -> tuple[int, ...]:
    """Return the shape of an input. Raise ServeError unless it is a list of extents."""
    if not isinstance(shape, (list, tuple)) or len(shape) > MAX_RANK:
        raise invalid(f"the shape of input '{name}' is not a list of at most {MAX_RANK} extents")
    if any(type(extent) is not int or not 0 <= extent < 2**31 for extent in shape):
        raise invalid(f"the shape of input '{name}' has an extent that is no number from 0 to 2147483647")
    return tuple(shape)


def element_type(name: str, datatype: Any) -> Type:
    """Return the element type of a datatype. Raise ServeError if there is no such datatype."""
    kind = DATATYPES.get(datatype) if isinstance(datatype, str) else None
    if kind is None:
        raise invalid(f"input '{name}' has the unknown datatype {datatype!r}; there are {', '.join(DATATYPES)}")
    return kind


def from_bytes(name: str, kind: Type, shape: tuple[int, ...], data: bytes | memoryview) -> Array:
    """Return an input from its elements in memory, little-endian and row by row. It may share ``data``.

    Raises: ServeError unless ``data`` has as many bytes as the shape needs.
    """
    count = prod(shape)
    if kind is Type.string:
        strings = list(_strings(name, memoryview(data), count))
        array = np.empty(count, object)
        array[:] = strings
        return array.reshape(shape)
    needed = count * kind.size
    if len(data) != needed:
        raise invalid(f"input '{name}' of shape {list(shape)} needs {needed} bytes, but has {len(data)}")
    if kind is Type.boolean:
        return np.frombuffer(data, np.uint8).reshape(shape).astype(bool)
    return np.frombuffer(data, kind.storage).reshape(shape)


def _strings(name: str, data: memoryview, count: int) -> Iterator[bytes]:
    at = 0
    for _ in range(count):
        if at + LENGTH.size > len(data):
            raise invalid(f"input '{name}' has fewer than {count} strings")
        (length,) = LENGTH.unpack_from(data, at)
        at += LENGTH.size
        if at + length > len(data):
            raise invalid(f"a string of input '{name}' has more bytes than the input")
        yield bytes(data[at : at + length])
        at += length
    if at != len(data):
        raise invalid(f"input '{name}' has more than {count} strings")


def from_json(name: str, kind: Type, shape: tuple[int, ...], data: Any) -> Array:
    """Return an input from a list of its elements, flat or nested.

    Raises: ServeError for elements that are not of the type, or are more or fewer than the shape needs.
    """
    if not isinstance(data, list):
        raise invalid(f"the data of input '{name}' is no list")
    try:
        if kind is Type.string:
            array = np.array(data, object)
            for element in array.flat:
                if not isinstance(element, str):
                    raise invalid(f"input '{name}' has an element that is no string")
            array = np.array([element.encode() for element in array.flat] or [b""], object)[: array.size]
        else:
            array = _numbers(name, kind, data)
    except (ValueError, OverflowError, TypeError) as error:
        raise invalid(f"the data of input '{name}' cannot be read as {NAMES[kind]}: {error}") from None
    if array.size != prod(shape):
        raise invalid(f"input '{name}' of shape {list(shape)} has {array.size} elements, not {prod(shape)}")
    return array.reshape(shape)


def _numbers(name: str, kind: Type, data: list[Any]) -> Array:
    found = np.asarray(data)
    if kind.integral and found.dtype.kind in "fO":  # NumPy has no type for large integers beside small ones
        elements = np.array(data, object)
        if all(type(element) is int for element in elements.flat):
            return elements.astype(kind.storage)
    allowed = "b" if kind is Type.boolean else "iu" if kind.integral else "iuf"
    if found.size and found.dtype.kind not in allowed:
        raise invalid(f"the data of input '{name}' has elements that are not {NAMES[kind]}")
    if kind.integral and found.size:  # NumPy would wrap integers that do not fit
        limits = np.iinfo(kind.storage) if kind is not Type.boolean else None
        if limits and not (limits.min <= int(found.min()) and int(found.max()) <= limits.max):
            raise invalid(f"input '{name}' has a number out of the range of {NAMES[kind]}")
    return found.astype(kind.storage)


def to_bytes(array: Array, kind: Type) -> bytes:
    """Return the elements of an output in memory."""
    if kind is Type.string:
        encoded = [_encoded(element) for element in array.flat]
        return b"".join([part for element in encoded for part in (LENGTH.pack(len(element)), element)])
    return np.ascontiguousarray(array, kind.storage).tobytes()


def to_json(array: Array, kind: Type) -> list[Any]:
    """Return the elements of an output as a flat list."""
    if kind is Type.string:
        return [_encoded(element).decode(errors="replace") for element in array.flat]
    if kind in (Type.f16, Type.bf16):
        array = array.astype(np.float32)
    found: list[Any] = array.reshape(-1).tolist()
    return found


def _encoded(element: str | bytes) -> bytes:
    return element.encode() if isinstance(element, str) else bytes(element)


def datatype(what: str, kind: Type) -> str:
    """Return the datatype of an element type. Raise Error if the protocol has none."""
    if kind not in NAMES:
        raise Error(f"{what} has the type {kind.get_type_name()}, which the protocol lacks")
    return NAMES[kind]
