"""Element types as the tests see them: name, numpy dtype of one logical element, packed bytes.

A *logical* array has one numpy element per tensor element: bf16, f8, f4 and the 4-bit integers as ml_dtypes,
booleans as bool, strings as str; u1, u2, u3, u6 and nf4 (no numpy type) as their uint8 codes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np


@dataclass(frozen=True)
class Element:
    """An element type: its name, the dtype of a logical array, its name in the XML, and the bits of an element."""

    name: str
    dtype: np.dtype[Any]
    precision: str  # of ports in the XML
    bits: int

    def nbytes(self, count: int) -> int:
        if self.bits in (3, 6):  # split storage: three bytes hold 24 / bits values
            return 3 * math.ceil(count * self.bits / 24)
        return math.ceil(count * self.bits / 8)


_TABLE: list[tuple[str, Any, str, int]] = [
    ("f64", np.float64, "FP64", 64),
    ("f32", np.float32, "FP32", 32),
    ("f16", np.float16, "FP16", 16),
    ("bf16", ml_dtypes.bfloat16, "BF16", 16),
    ("f8e4m3", ml_dtypes.float8_e4m3fn, "F8E4M3", 8),
    ("f8e5m2", ml_dtypes.float8_e5m2, "F8E5M2", 8),
    ("f8e8m0", ml_dtypes.float8_e8m0fnu, "F8E8M0", 8),
    ("f4e2m1", ml_dtypes.float4_e2m1fn, "F4E2M1", 4),
    ("nf4", np.uint8, "NF4", 4),
    ("i64", np.int64, "I64", 64),
    ("i32", np.int32, "I32", 32),
    ("i16", np.int16, "I16", 16),
    ("i8", np.int8, "I8", 8),
    ("i4", ml_dtypes.int4, "I4", 4),
    ("u64", np.uint64, "U64", 64),
    ("u32", np.uint32, "U32", 32),
    ("u16", np.uint16, "U16", 16),
    ("u8", np.uint8, "U8", 8),
    ("u6", np.uint8, "U6", 6),
    ("u4", ml_dtypes.uint4, "U4", 4),
    ("u3", np.uint8, "U3", 3),
    ("u2", np.uint8, "U2", 2),
    ("u1", np.uint8, "BIN", 1),
    ("boolean", np.bool_, "BOOL", 8),
    ("string", np.str_, "STRING", 0),
]
ELEMENTS = {name: Element(name, np.dtype(dtype), precision, bits) for name, dtype, precision, bits in _TABLE}
_CODES = ("nf4", "u6", "u3", "u2", "u1")
_BY_DTYPE = {e.dtype: name for name, e in ELEMENTS.items() if name not in _CODES}

FLOATS = ("f32", "f16", "bf16", "f64")
INTEGERS = ("i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64")


def name_of(dtype: Any) -> str:
    """Return the element type of a numpy dtype: float32 -> 'f32'."""
    dtype = np.dtype(dtype)
    return "string" if dtype.kind in "UOST" else _BY_DTYPE[dtype]


def is_float(name: str) -> bool:
    return name[0] in "fb" and name != "boolean"


def as_logical(values: Any, name: str) -> np.ndarray[Any, Any]:
    """Return `values` as a logical array of element type `name`."""
    element = ELEMENTS[name]
    if name in ("i4", "u4"):  # ml_dtypes converts to its 4-bit integers only from i8 and u8
        values = np.asarray(values).astype(np.int8 if name == "i4" else np.uint8)
    with np.errstate(over="ignore", invalid="ignore"):
        return np.asarray(values).astype(element.dtype)


def pack(array: np.ndarray[Any, Any], name: str) -> bytes:
    """Return the bytes that OpenVINO stores for a logical array."""
    bits = ELEMENTS[name].bits
    if name == "string":  # i32 count, i32 offsets of the beginnings and of the end, then the bytes
        words = [str(word).encode() for word in array.reshape(-1)]
        offsets = np.cumsum([0, *map(len, words)])
        return np.array([len(words), *offsets], np.int32).tobytes() + b"".join(words)
    flat = np.ascontiguousarray(array).reshape(-1)
    if bits >= 8:
        return flat.tobytes()
    codes = flat.view(np.uint8)
    if bits in (3, 6):  # the low bits of a whole group, then its high bits, most significant first
        low = 2 if bits == 3 else 4
        group = 24 // bits
        codes = np.pad(codes, (0, -len(codes) % group)).reshape(-1, group)
        parts = _to_bits(codes, low), _to_bits(codes >> low, bits - low)
        return np.packbits(np.concatenate(parts, axis=1), axis=1).tobytes()
    if bits == 1:
        return np.packbits(codes & 1).tobytes()
    per_byte = 8 // bits
    codes = np.pad(codes & ((1 << bits) - 1), (0, -len(codes) % per_byte)).reshape(-1, per_byte)
    shifts = (np.arange(per_byte) * bits).astype(np.uint8)
    return np.bitwise_or.reduce(codes << shifts, axis=1).astype(np.uint8).tobytes()


def unpack(data: bytes, name: str, shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    """Return the logical array stored in `data`: the inverse of `pack`."""
    element, count = ELEMENTS[name], math.prod(shape)
    bits, raw = element.bits, np.frombuffer(data, np.uint8)
    if bits >= 8:
        return np.frombuffer(data, element.dtype, count).reshape(shape).copy()
    if bits in (3, 6):
        low = 2 if bits == 3 else 4
        group = 24 // bits
        stream = np.unpackbits(raw.reshape(-1, 3), axis=1)
        cut = group * low
        codes = _from_bits(stream[:, :cut], low) | _from_bits(stream[:, cut:], bits - low) << low
    elif bits == 1:
        codes = np.unpackbits(raw)
    else:
        shifts = (np.arange(8 // bits) * bits).astype(np.uint8)
        codes = raw[:, None] >> shifts & ((1 << bits) - 1)
    codes = codes.reshape(-1)[:count].astype(np.uint8).reshape(shape)
    if name in ("i4", "u4"):
        signed = (codes ^ 8).astype(np.int8) - 8 if name == "i4" else codes
        return signed.astype(element.dtype)
    return codes.view(element.dtype)


def _to_bits(codes: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    """Return each row's codes as one row of single bits, most significant first."""
    each = np.unpackbits(codes[:, :, None], axis=2)[:, :, 8 - bits :]
    return each.reshape(len(codes), codes.shape[1] * bits)


def _from_bits(stream: np.ndarray[Any, Any], bits: int) -> np.ndarray[Any, Any]:
    groups = stream.reshape(len(stream), stream.shape[1] // bits, bits)
    return np.packbits(groups, axis=2)[:, :, 0] >> (8 - bits)
