"""OpenVINO's bit layouts of tensors and weights files: conversion between one element per array item and bytes.

u2, u4, i4, nf4 and f4e2m1 have several elements per byte, the first one in the low bits. u1 has its first element in
the high bit. u3 (8 elements) and u6 (4 elements) are in groups of three bytes: the first two bytes hold the low 2 or 4
bits of the elements, the third one the high 1 or 2 bits, both with the first element in the high bits.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from .element import Type

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_TRIPLES = {"u3": (8, 2), "u6": (4, 4)}  # elements per three bytes, low bits per element

NF4 = np.array(
    [-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
     -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
     0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
     0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0],
    np.float32,
)  # fmt: skip
"""The values of NormalFloat4 codes 0..15 (QLoRA, arXiv 2305.14314, appendix E)."""


def nbytes(type: Type, shape: Iterable[int]) -> int:
    """Return the size in bytes of a dense tensor in OpenVINO's layout.

    Raises: ValueError for a negative extent, or a type without a fixed size.
    """
    extents = [operator.index(extent) for extent in shape]
    if min(extents, default=0) < 0:
        raise ValueError(f"shape {extents} has a negative extent")
    if type is Type.dynamic or type is Type.string:
        raise ValueError(f"a tensor of element type {type.type_name} has no fixed size in bytes")
    count = math.prod(extents)
    if type.type_name in _TRIPLES:
        return -(-count // _TRIPLES[type.type_name][0]) * 3
    return -(-count * type.bitwidth // 8)


def unpack(raw: Any, type: Type, shape: Iterable[int]) -> Array:
    """Convert a buffer in OpenVINO's layout to an array of dtype `type.storage` with one element per item.

    Byte-sized types yield a view of the buffer; packed types, strings and booleans with bytes other than 0 and 1
    yield a copy. Strings are stored as in weights files: int32 count, int32 offsets (count + 1), characters.

    Raises: ValueError if the buffer does not have exactly the size that `shape` needs.
    """
    extents = [operator.index(extent) for extent in shape]
    raw = raw.reshape(-1).view(np.uint8) if isinstance(raw, np.ndarray) else np.frombuffer(raw, np.uint8)
    if type is Type.string:
        return _unpack_strings(raw, extents)
    needed = nbytes(type, extents)
    if raw.size != needed:
        raise ValueError(f"{type.type_name} tensor of shape {extents} takes {needed} bytes, got {raw.size}")
    if type is Type.boolean and raw.size and raw.max() > 1:
        return _view(np.minimum(raw, 1), type.storage).reshape(extents)
    if not type.packed:
        return _view(raw, type.storage).reshape(extents)
    count = math.prod(extents)
    if type is Type.u1:
        codes = np.unpackbits(raw, count=count)
    elif type.type_name in _TRIPLES:
        codes = _unpack_triples(raw, *_TRIPLES[type.type_name])
    else:
        codes = _unpack_low_first(raw, type.bitwidth)
    codes = codes.reshape(-1)[:count]
    if type is Type.i4:  # sign extension, wrapping around to the two's complement
        codes ^= np.uint8(8)
        codes -= np.uint8(8)
    return _view(codes, type.storage).reshape(extents)


def pack(array: Array, type: Type) -> Array:
    """Convert an array to a flat uint8 array in OpenVINO's layout, with padding bits of zero: the inverse of `unpack`.

    Integer types accept any integer array whose values are in range.

    Raises: TypeError if the dtype is not `type.storage`, ValueError for a value out of range.
    """
    array = _as_storage(np.asarray(array), type).reshape(-1)
    if type is Type.string:
        return _pack_strings(array)
    codes = np.ascontiguousarray(array).view(np.uint8)
    if not type.packed:
        return codes
    if type is Type.u1:
        return np.packbits(codes)
    if type.type_name in _TRIPLES:
        return _pack_triples(codes, *_TRIPLES[type.type_name])
    return _pack_low_first(codes, type.bitwidth)


def _as_storage(array: Array, type: Type) -> Array:
    # A structured dtype has a byte per element, whose code may be too large for the type's bits.
    numbers = array.view(np.uint8) if array.dtype.names and array.dtype == type.storage else array
    if type.integral_number and type is not Type.string and numbers.dtype.kind in "iu":
        low = -(1 << (type.bitwidth - 1)) if type.signed else 0
        high = low + (1 << type.bitwidth) - 1
        if numbers.size and (numbers.min() < low or numbers.max() > high):
            raise ValueError(f"{type.type_name} holds {low}..{high}, got {numbers.min()}..{numbers.max()}")
        array = array.astype(type.storage, copy=False)
    if array.dtype != type.storage:
        raise TypeError(f"{type.type_name} is stored as {type.storage}, got an array of {array.dtype}")
    return array


def _view(raw: Array, dtype: np.dtype[Any]) -> Array:
    view: Array = raw.view(dtype)
    return view


def _pad(codes: Array, multiple: int) -> Array:
    missing = -codes.size % multiple
    return np.concatenate([codes, np.zeros(missing, np.uint8)]) if missing else codes


# These make one pass per position in a group: a broadcast over the last axis would be several times slower.


def _unpack_low_first(raw: Array, bits: int) -> Array:
    codes = np.empty((raw.size, 8 // bits), np.uint8)
    for position in range(8 // bits):
        codes[:, position] = (raw >> np.uint8(position * bits)) & _mask(bits)
    return codes


def _pack_low_first(codes: Array, bits: int) -> Array:
    groups = _pad(codes, 8 // bits).reshape(-1, 8 // bits)
    raw = np.zeros(len(groups), np.uint8)
    for position in range(8 // bits):
        raw |= (groups[:, position] & _mask(bits)) << np.uint8(position * bits)
    return raw


def _unpack_triples(raw: Array, count: int, low: int) -> Array:
    triples, high = raw.reshape(-1, 3), 8 // count
    codes = np.empty((len(triples), count), np.uint8)
    for position in range(count):
        byte, shift, high_shift = _triple_shifts(position, count, low)
        upper = (triples[:, 2] >> high_shift) & _mask(high)
        codes[:, position] = (triples[:, byte] >> shift) & _mask(low) | upper << np.uint8(low)
    return codes


def _pack_triples(codes: Array, count: int, low: int) -> Array:
    groups = _pad(codes, count).reshape(-1, count)
    triples = np.zeros((len(groups), 3), np.uint8)
    for position in range(count):
        byte, shift, high_shift = _triple_shifts(position, count, low)
        triples[:, byte] |= (groups[:, position] & _mask(low)) << shift
        triples[:, 2] |= (groups[:, position] >> np.uint8(low)) << high_shift
    return triples.reshape(-1)


def _triple_shifts(position: int, count: int, low: int) -> tuple[int, np.uint8, np.uint8]:
    """Return the byte and shift of an element's low bits, and the shift of its high bits in the third byte."""
    half = count // 2
    return (
        position // half,
        np.uint8((half - 1 - position % half) * low),
        np.uint8((count - 1 - position) * (8 // count)),
    )


def _mask(bits: int) -> np.uint8:
    return np.uint8((1 << bits) - 1)


def _unpack_strings(raw: Array, extents: list[int]) -> Array:
    count = math.prod(extents)
    header = 4 * (count + 2)
    if raw.size < header:
        raise ValueError(f"string tensor of shape {extents} has {header} bytes of offsets, got {raw.size}")
    stored, *ends = raw[:header].view(np.int32).tolist()
    if stored != count or ends[0] != 0 or ends != sorted(ends) or ends[-1] > raw.size - header:
        raise ValueError(f"string tensor of shape {extents} has inconsistent offsets")
    characters = raw[header:].tobytes()
    array = np.empty(count, object)
    array[:] = [characters[begin:end] for begin, end in pairwise(ends)]
    return array.reshape(extents)


def _pack_strings(array: Array) -> Array:
    strings = [item.encode() if isinstance(item, str) else bytes(item) for item in array]
    offsets = np.cumsum([0, *map(len, strings)])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise ValueError("a string tensor holds at most 2 GiB of characters")
    header = np.array([len(strings), *offsets], np.int32)
    return np.frombuffer(header.tobytes() + b"".join(strings), np.uint8)
