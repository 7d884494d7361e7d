"""Input values that find mistakes: random ones, floats at their limits, integers at their limits."""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np

from .elements import ELEMENTS, as_logical, is_float

Array = np.ndarray[Any, Any]


def random(
    rng: np.random.Generator, shape: tuple[int, ...], kind: str, low: float | None = None, high: float | None = None
) -> Array:
    """Return a logical array of random values: floats in [low, high), by default [-4, 4); integers in [low, high],
    by default -9..9, within the range of the type; booleans of either value."""
    if kind == "string":
        words = ["".join(rng.choice(list("abxyz 0"), rng.integers(0, 5))) for _ in range(math.prod(shape))]
        return np.array(words, dtype=np.str_).reshape(shape)
    if kind == "boolean":
        return rng.integers(0, 2, shape).astype(bool)
    if kind == "nf4":
        return rng.integers(0, 16, shape).astype(np.uint8)
    if kind == "f8e8m0":
        return as_logical(2.0 ** rng.integers(-4, 5, shape), kind)
    if is_float(kind):
        low, high = -4.0 if low is None else low, 4.0 if high is None else high
        return as_logical(rng.uniform(low, high, shape), kind)
    floor, ceiling = limits(kind)
    low, high = max(floor, -9 if low is None else int(low)), min(ceiling, 9 if high is None else int(high))
    dtype = np.int64 if high < 2**63 else np.uint64
    return as_logical(rng.integers(low, high, shape, dtype=dtype, endpoint=True), kind)


def limits(kind: str) -> tuple[int, int]:
    """Return the least and the greatest value of an integer type."""
    if kind in ("u1", "u2", "u3", "u6"):
        return 0, 2 ** int(kind[1:]) - 1
    info = ml_dtypes.iinfo(ELEMENTS[kind].dtype)
    return int(info.min), int(info.max)


def special_floats(
    kind: str = "f32", *, nan: bool = True, inf: bool = True, huge: bool = True, denormals: bool = True
) -> Array:
    """Return a vector of floats at their limits: NaN, infinities, both zeros, denormals, extremes, halves."""
    info = ml_dtypes.finfo(ELEMENTS[kind].dtype)
    values = [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, -1.5, 2.5, -2.5, 3.0, -7.0, 0.1, float(info.eps), -100.0]
    values += [float(info.max), float(info.min)] if huge else []
    values += [float(info.smallest_normal) / 2, -float(info.smallest_normal) / 2] if denormals else []
    values += [np.inf, -np.inf] if inf else []
    values += [np.nan] if nan else []
    return as_logical(np.array(values), kind)


def special_integers(kind: str) -> Array:
    """Return a vector of integers at the limits of their type."""
    low, high = limits(kind)
    values = [low, low + 1, 0, 1, 2, 3, 7, high // 2, high - 1, high] + ([-1, -2, -3] if low < 0 else [])
    return np.array(values, dtype=np.uint64 if high > 2**63 else np.int64).astype(ELEMENTS[kind].dtype)


def specials(kind: str) -> Array:
    """Return `special_floats`, `special_integers` or both booleans, by type."""
    if kind == "boolean":
        return np.array([False, True, True])
    return special_floats(kind) if is_float(kind) else special_integers(kind)
