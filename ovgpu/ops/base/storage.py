"""Storage types around computing: f16, bf16 and f8 are computed in f32, types of fewer than 8 bits in 8.

`decode` and `encode` are total: every element type to every other one, which is what Convert needs. Floats are
cut off towards zero and integers wrap around, as C++ on x86 does it: a float goes through i32 to a narrower
integer, which takes its low bits. Types of fewer than 8 bits keep their low bits likewise.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ovgpu.ops.base.xp import NUMPY
from ovgpu.types import NF4, Type

Array = Any  # numpy.ndarray or cupy.ndarray

CODED = frozenset(getattr(Type, name).storage for name in "nf4 f8e8m0 f4e2m1 i4 u1 u2 u3 u4 u6".split())
"""The dtypes whose plain casts do not exist, or do not give what OpenVINO gives."""

_BETWEEN_NF4 = (NF4[1:] + NF4[:-1]) / 2


def is_float(kind: Type) -> bool:
    """Whether elements are floating-point numbers: unlike `Type.is_real`, also of nf4."""
    return kind.is_real() or kind is Type.nf4


HALVED = (Type.f8e4m3, Type.f8e5m2)
"""OpenVINO rounds to f16 before it rounds to these types."""


@cache
def is_plain(dtype: np.dtype[Any]) -> bool:
    """Whether CUDA C++ computes with such elements; types of fewer bits, f8 and strings it only moves."""
    return dtype.name == "bfloat16" or dtype.kind in "biu" or (dtype.kind == "f" and dtype.itemsize > 1)


def compute_dtype(kind: Type) -> np.dtype[Any]:
    """The dtype in which ops that compute see elements of ``kind``."""
    if is_float(kind) and kind not in (Type.f32, Type.f64):
        return np.dtype(np.float32)
    if kind.packed:
        return np.dtype(np.int8 if kind.is_signed() else np.uint8)
    return kind.storage


@cache
def decoded_dtype(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The dtype that elements of storage ``dtype`` are decoded to; often itself."""
    return dtype if dtype.kind in "biuO" else compute_dtype(Type.of(dtype))


def decode(x: Array, xp: Any = NUMPY) -> Array:
    """``x`` in the dtype that computing ops see; itself if that is what it has."""
    wanted = decoded_dtype(x.dtype)
    if x.dtype == wanted:
        return x
    # NumPy gives a scalar for one code
    return x.astype(wanted) if x.dtype.itemsize > 1 else xp.asarray(xp.asarray(_values(x.dtype))[x.view(np.uint8)])


@cache
def _values(dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """What the 256 bytes stand for; CuPy has no casts of such dtypes."""
    bytes_ = np.arange(256, dtype=np.uint8)
    return NF4[bytes_ % 16] if dtype == Type.nf4.storage else bytes_.view(dtype).astype(decoded_dtype(dtype))


def zero_of(x: Any) -> Any:
    """Return the element that stands for nothing among those of x: 0, or an empty string."""
    return b"" if x.dtype.kind == "O" and (not x.size or isinstance(x.flat[0], bytes)) else 0


def encode(x: Array, kind: Type, xp: Any = NUMPY) -> Array:
    """What was computed, in the storage of ``kind``; ``x`` itself if that is what it has."""
    if x.dtype == kind.storage:
        return x
    return _float(x, kind, xp) if is_float(kind) else _integer(x, kind)


def _float(x: Array, kind: Type, xp: Any) -> Array:
    if kind.bitwidth >= 16:
        return x.astype(kind.storage)
    x = x.astype(np.float32)
    if kind is Type.nf4:
        codes = xp.searchsorted(xp.asarray(_BETWEEN_NF4), x).astype(np.uint8)
        return xp.where(xp.isnan(x), xp.uint8(0), codes).view(kind.storage)
    if kind is Type.f8e8m0:
        return _exponents(x, xp).view(kind.storage)
    if kind is Type.f4e2m1:  # no infinity and no NaN
        x = xp.fmin(x, 6)
    if kind in HALVED:
        x = x.astype(np.float16)
    return x.astype(kind.storage)


def _exponents(x: Array, xp: Any) -> Array:
    """Codes of f8e8m0: exponents, a half goes to the even one; the least for 0 and below, infinity is cut."""
    bits = xp.minimum(xp.maximum(x, 2.0**-127), 2.0**127).view(np.uint32)
    codes = (bits + 0x3FFFFF + (bits >> 23 & 1)) >> 23
    return xp.where(xp.isnan(x), 255, codes).astype(np.uint8)


def _integer(x: Array, kind: Type) -> Array:
    if kind is Type.boolean:
        return x != 0
    if x.dtype.kind == "f" and kind.bitwidth < 64:
        x = x.astype(np.int32 if kind.bitwidth < 32 or kind is Type.i32 else np.int64)
    if not kind.packed:
        return x.astype(kind.storage)
    low = x.astype(np.uint8) & np.uint8((1 << kind.bitwidth) - 1)
    if kind.storage.names is not None:
        return low.view(kind.storage)
    return ((low ^ 8) - 8).astype(np.int8).astype(kind.storage) if kind is Type.i4 else low.astype(kind.storage)
