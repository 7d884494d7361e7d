"""Conversion between storage and compute types: f16, bf16 and f8 compute in f32, types of fewer than 8 bits in 8 bits.

`decode` and `encode` together convert every element type to every other one, as Convert needs. Floats are truncated
towards zero and integers wrap around, as in C++ on x86: a float becomes a narrower integer through i32, whose low
bits are taken. Types of fewer than 8 bits take the low bits too.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ovgpu.ops.base.xp import NUMPY, Adapter
from ovgpu.types import NF4, Type

Array = Any  # numpy.ndarray or cupy.ndarray

CODED = frozenset(getattr(Type, name).storage for name in "nf4 f8e8m0 f4e2m1 i4 u1 u2 u3 u4 u6".split())
"""The dtypes that have no casts in NumPy, or casts whose results differ from OpenVINO's."""

_BETWEEN_NF4 = (NF4[1:] + NF4[:-1]) / 2


def is_float(element_type: Type) -> bool:
    """Return whether elements are floating-point numbers. Unlike `Type.is_real`, this includes nf4."""
    return element_type.is_real() or element_type is Type.nf4


ROUNDED_VIA_F16 = (Type.f8e4m3, Type.f8e5m2)
"""The types to which OpenVINO rounds in two steps: first to f16."""


@cache
def is_plain(dtype: np.dtype[Any]) -> bool:
    """Return whether CUDA C++ computes with such elements; it only moves f8, strings and types of fewer than 8 bits."""
    return dtype.name == "bfloat16" or dtype.kind in "biu" or (dtype.kind == "f" and dtype.itemsize > 1)


def compute_dtype(element_type: Type) -> np.dtype[Any]:
    """Return the dtype in which computing ops get elements of ``element_type``."""
    if is_float(element_type) and element_type not in (Type.f32, Type.f64):
        return np.dtype(np.float32)
    if element_type.packed:
        return np.dtype(np.int8 if element_type.is_signed() else np.uint8)
    return element_type.storage


@cache
def decoded_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype to which `decode` converts elements of storage ``dtype``; often ``dtype`` itself."""
    return dtype if dtype.kind in "biuO" else compute_dtype(Type.of(dtype))


def decode(x: Array, xp: Adapter = NUMPY) -> Array:
    """Return ``x`` in its compute dtype (`decoded_dtype`); ``x`` itself if it has that dtype already."""
    target = decoded_dtype(x.dtype)
    if x.dtype == target:
        return x
    # the outer `asarray` is there because NumPy returns a scalar for a single code
    return x.astype(target) if x.dtype.itemsize > 1 else xp.asarray(xp.asarray(_values(x.dtype))[x.view(np.uint8)])


@cache
def _values(dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return the values of the 256 codes of ``dtype``; a lookup table, because CuPy has no casts of such dtypes."""
    bytes_ = np.arange(256, dtype=np.uint8)
    return NF4[bytes_ % 16] if dtype == Type.nf4.storage else bytes_.view(dtype).astype(decoded_dtype(dtype))


def zero_of(x: Any) -> Any:
    """Return the zero element for the type of x: 0, or an empty string."""
    return b"" if x.dtype.kind == "O" and (not x.size or isinstance(x.flat[0], bytes)) else 0


def encode(x: Array, element_type: Type, xp: Adapter = NUMPY) -> Array:
    """Return computed values ``x`` in the storage dtype of ``element_type``; ``x`` itself if it has that dtype
    already."""
    if x.dtype == element_type.storage:
        return x
    return _float(x, element_type, xp) if is_float(element_type) else _integer(x, element_type)


def _float(x: Array, element_type: Type, xp: Adapter) -> Array:
    if element_type.bitwidth >= 16:
        return x.astype(element_type.storage)
    x = x.astype(np.float32)
    if element_type is Type.nf4:
        codes = xp.searchsorted(xp.asarray(_BETWEEN_NF4), x).astype(np.uint8)
        return xp.where(xp.isnan(x), xp.uint8(0), codes).view(element_type.storage)
    if element_type is Type.f8e8m0:
        return _exponents(x, xp).view(element_type.storage)
    if element_type is Type.f4e2m1:  # no infinity and no NaN
        x = xp.fmin(x, 6)
    if element_type in ROUNDED_VIA_F16:
        x = x.astype(np.float16)
    return x.astype(element_type.storage)


def _exponents(x: Array, xp: Adapter) -> Array:
    """Return f8e8m0 codes, which are exponents; ties are rounded to even. Values of 0 and below get the least code,
    infinity the greatest finite one, NaN 255."""
    bits = xp.minimum(xp.maximum(x, 2.0**-127), 2.0**127).view(np.uint32)
    codes = (bits + 0x3FFFFF + (bits >> 23 & 1)) >> 23
    return xp.where(xp.isnan(x), 255, codes).astype(np.uint8)


def _integer(x: Array, element_type: Type) -> Array:
    if element_type is Type.boolean:
        return x != 0
    if x.dtype.kind == "f" and element_type.bitwidth < 64:
        x = x.astype(np.int32 if element_type.bitwidth < 32 or element_type is Type.i32 else np.int64)
    if not element_type.packed:
        return x.astype(element_type.storage)
    low = x.astype(np.uint8) & np.uint8((1 << element_type.bitwidth) - 1)
    if element_type.storage.names is not None:
        return low.view(element_type.storage)
    if element_type is Type.i4:
        low = ((low ^ 8) - 8).astype(np.int8)
    return low.astype(element_type.storage)
