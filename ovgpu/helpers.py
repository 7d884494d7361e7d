"""Conversion between arrays and packed data, in the bit order of ``openvino.helpers``.

The first of several elements in a byte has the high bits, unlike in OpenVINO's tensors and files. u3 and u6 are packed
as in these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from ovgpu.types import Type, nbytes, pack, unpack

Array: TypeAlias = np.ndarray[Any, np.dtype[Any]]

_TYPES = (Type.u1, Type.u2, Type.u4, Type.i4, Type.nf4, Type.f4e2m1)
_TRIPLES = (Type.u3, Type.u6)


def pack_data(array: Array, type: Type) -> Array:
    """Return the values of an array packed to uint8. Zeros fill the last byte.

    ``type`` is u1, u2, u3, u4, u6, i4, nf4 or f4e2m1; the values of the last two are their codes.

    Raises: AssertionError for another type, RuntimeError for values that are no integers of 8 bits.
    """
    if type in _TRIPLES:
        return pack(array.astype(np.uint8).view(type.storage).reshape(-1), type)
    _check(type)
    codes = array.astype(np.int8 if type is Type.i4 else np.uint8, casting="unsafe")
    if not np.array_equal(codes, array):
        raise RuntimeError(f"the values are rounded in {codes.dtype}, which cannot be packed: {array}")
    bits = np.unpackbits(codes.reshape(-1, 1).view(np.uint8), axis=1)[:, -type.bitwidth :]
    return np.packbits(bits)


def unpack_data(array: Array, type: Type, shape: Sequence[int]) -> Array:
    """Return packed values as an array of the shape: int8 for i4, else uint8. See `pack_data`."""
    count = int(np.prod(list(shape)))
    if type in _TRIPLES:
        raw = array.view(np.uint8).reshape(-1)[: nbytes(type, [count])]
        return unpack(raw, type, [count]).view(np.uint8).reshape(list(shape))
    _check(type)
    bits = np.unpackbits(array.view(np.uint8)).reshape(-1, type.bitwidth)
    values = np.packbits(bits, axis=1).reshape(-1).view(np.int8 if type is Type.i4 else np.uint8)
    return np.resize(values >> 8 - type.bitwidth, list(shape))  # packbits put the bits at the high end


def _check(type: Type) -> None:
    if type not in _TYPES:
        raise AssertionError(f"{type} is not stored in 1, 2 or 4 bits, nor is it u3 or u6")
