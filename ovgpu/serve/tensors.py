"""Tensors of the KServe v2 protocol: element types, bytes and JSON values."""

from __future__ import annotations

import base64
import binascii
import json
import struct
from collections.abc import Iterator, Sequence
from math import prod
from typing import Any

import numpy as np

from ovgpu.errors import Error
from ovgpu.serve.errors import invalid
from ovgpu.types import Type

DATATYPES = {
    "BOOL": Type.boolean,
    "UINT8": Type.u8,
    "UINT16": Type.u16,
    "UINT32": Type.u32,
    "UINT64": Type.u64,
    "INT8": Type.i8,
    "INT16": Type.i16,
    "INT32": Type.i32,
    "INT64": Type.i64,
    "FP16": Type.f16,
    "BF16": Type.bf16,
    "FP32": Type.f32,
    "FP64": Type.f64,
    "BYTES": Type.string,
}
NAMES = {dtype: name for name, dtype in DATATYPES.items()}
MAX_RANK = 32
MAX_EMPTY = 1 << 24  # product of an empty input's extents other than 0: results may have as many elements
PART = 1 << 14  # elements of an output that become JSON at a time: other threads wait for some milliseconds
LENGTH = struct.Struct("<I")  # the length in bytes, which precedes each element of BYTES

Array = np.ndarray[Any, Any]


def check_shape(name: str, shape: Sequence[Any]) -> tuple[int, ...]:
    """Return the shape of an input. Raise ServeError unless it is a list of extents."""
    if not isinstance(shape, (list, tuple)) or len(shape) > MAX_RANK:
        raise invalid(f"the shape of input '{name}' is not a list of at most {MAX_RANK} extents")
    if any(type(extent) is not int or not 0 <= extent < 2**31 for extent in shape):
        raise invalid(f"the shape of input '{name}' has an extent that is no number from 0 to 2147483647")
    if 0 in shape and prod(extent or 1 for extent in shape) > MAX_EMPTY:
        raise invalid(f"the shape of input '{name}' has no elements, but extents of more than {MAX_EMPTY} in all")
    return tuple(shape)


def element_type(name: str, datatype: Any) -> Type:
    """Return the element type of a datatype. Raise ServeError if there is no such datatype."""
    dtype = DATATYPES.get(datatype) if isinstance(datatype, str) else None
    if dtype is None:
        raise invalid(f"input '{name}' has the unknown datatype {datatype!r}; there are {', '.join(DATATYPES)}")
    return dtype


def from_bytes(name: str, dtype: Type, shape: tuple[int, ...], data: bytes | memoryview) -> Array:
    """Return an input from the bytes of its elements, little-endian and in row-major order. It may share ``data``.

    Raises: ServeError unless ``data`` has as many bytes as the shape needs.
    """
    count = prod(shape)
    if dtype is Type.string:
        return objects(list(_strings(name, memoryview(data), count))).reshape(shape)
    needed = count * dtype.size
    if len(data) != needed:
        raise invalid(f"input '{name}' of shape {list(shape)} needs {needed} bytes, but has {len(data)}")
    if dtype is Type.boolean:
        return np.frombuffer(data, np.uint8).reshape(shape).astype(bool)
    return np.frombuffer(data, dtype.storage).reshape(shape)


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


def from_json(name: str, dtype: Type, shape: tuple[int, ...], data: Any) -> Array:
    """Return an input from a list of its elements, flat or nested; see `json_bytes` for those of BYTES.

    It is made of parts of about `PART` elements, between which other threads have their turn.

    Raises: ServeError for elements of another type, or for more or fewer elements than the shape needs.
    """
    if not isinstance(data, list):
        raise invalid(f"the data of input '{name}' is no list")
    flat = not data or not isinstance(data[0], list)
    if flat and len(data) != prod(shape):
        raise invalid(f"input '{name}' of shape {list(shape)} has {len(data)} elements, not {prod(shape)}")
    rows = max(PART // (1 if flat else max(prod(shape[1:]), 1)), 1)
    parts = [_part_from_json(name, dtype, data[i : i + rows]) for i in range(0, len(data), rows)]
    whole = np.concatenate(parts) if parts else np.empty(0, object if dtype is Type.string else dtype.storage)
    return shaped(name, shape, whole)


def _part_from_json(name: str, dtype: Type, data: list[Any]) -> Array:
    """Return the elements of a list, flat or nested, as an array of rank 1. Raises ServeError as `from_json`."""
    allowed: set[type] = {int} if dtype.integral else {int, float}
    if dtype is Type.string:
        allowed = {str, dict}
    elif dtype is Type.boolean:
        allowed = {bool}
    try:
        # An array of numbers and a string, without this dtype, would make all elements as long as the string.
        elements = np.array(data, object).reshape(-1)
        if not set(map(type, elements)) <= allowed:
            raise invalid(f"the data of input '{name}' has elements that are not {NAMES[dtype]}")
        if dtype is Type.string:
            return objects([json_bytes(name, element) for element in elements])
        with np.errstate(over="ignore"):  # as infinity
            return elements.astype(dtype.storage)
    except (ValueError, OverflowError) as error:
        raise invalid(f"the data of input '{name}' cannot be read as {NAMES[dtype]}: {error}") from None


def objects(elements: Sequence[Any]) -> Array:
    """Return a one-dimensional array of Python's objects."""
    array = np.empty(len(elements), object)
    array[:] = elements
    return array


def shaped(name: str, shape: tuple[int, ...], array: Array) -> Array:
    """Return an input in a shape. Raise ServeError if it has more or fewer elements than the shape."""
    if array.size != prod(shape):
        raise invalid(f"input '{name}' of shape {list(shape)} has {array.size} elements, not {prod(shape)}")
    return array.reshape(shape)


def to_bytes(array: Array, dtype: Type) -> bytes:
    """Return the bytes of an output's elements; see `from_bytes`."""
    if dtype is Type.string:
        encoded = [string_bytes(element) for element in array.flat]
        return b"".join([part for element in encoded for part in (LENGTH.pack(len(element)), element)])
    return np.ascontiguousarray(array, dtype.storage).tobytes()


def json_bytes(name: str, element: Any) -> bytes:
    """Return the bytes of an element of BYTES in JSON: a string, or an object ``{"b64": "..."}`` with base64.

    Raises: ServeError for anything else.
    """
    if isinstance(element, str):
        return element.encode()
    if isinstance(element, dict) and set(element) == {"b64"} and isinstance(element["b64"], str):
        try:
            return base64.b64decode(element["b64"], validate=True)
        except binascii.Error as error:
            raise invalid(f"input '{name}' has malformed base64: {error}") from None
    raise invalid(f"the data of input '{name}' has elements that are not BYTES")


def dump_tensor(array: Array, dtype: Type) -> bytes:
    """Return the JSON of an output, as nested lists. Bytes that are no UTF-8 become objects, see `json_bytes`.

    It is made of parts of at most `PART` elements, between which other threads have their turn.
    """
    row = prod(array.shape[1:])
    if array.size <= PART or not array.ndim:
        return dump(_nested(array, dtype))
    if row > PART:
        parts = [dump_tensor(each, dtype) for each in array]
    else:
        rows = PART // row
        parts = [dump(_nested(array[i : i + rows], dtype))[1:-1] for i in range(0, len(array), rows)]
    return b"[%b]" % b",".join(parts)


def _nested(array: Array, dtype: Type) -> Any:
    if dtype is Type.string:
        strings = objects([_text(string_bytes(element)) for element in array.flat])
        return strings.reshape(array.shape).tolist()
    return (array.astype(np.float32) if dtype in (Type.f16, Type.bf16) else array).tolist()


def _text(element: bytes) -> Any:
    try:
        return element.decode()
    except UnicodeDecodeError:
        return {"b64": base64.b64encode(element).decode()}


def dump(document: Any) -> bytes:
    """Return JSON. NaN and infinities are written as ``NaN``, ``Infinity`` and ``-Infinity``, which JSON lacks, but
    TensorFlow Serving and most parsers know. `json.loads` reads them."""
    return _encoder.encode(document).encode()


_encoder = json.JSONEncoder(separators=(",", ":"))  # `json.dumps` would make one for each call


def string_bytes(element: str | bytes) -> bytes:
    """Return the bytes of an element of BYTES."""
    return element.encode() if isinstance(element, str) else bytes(element)


def datatype(what: str, dtype: Type) -> str:
    """Return the datatype of an element type. Raise Error if the protocol has none."""
    if dtype not in NAMES:
        raise Error(f"{what} has the type {dtype.get_type_name()}, which the protocol lacks")
    return NAMES[dtype]
