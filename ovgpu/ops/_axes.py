"""How kernels that work along axes are launched: the axes as `cuda_kernels/axes.cuh` takes them, and geometry."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import prod
from typing import Any

import numpy as np

from ovgpu.ops._op import Array

MAX_AXES = 6
MAX_INDEX = 2**31 - 1  # kernels count elements along axes in 32 bits
THREADS = 512  # at most, per block
PROCESSORS = 132  # of an H100 or H200: with fewer blocks than that, some have nothing to do

Axis = tuple[int, int, int]
"""Extent, and the strides in elements of the array read and of the array written."""


def kernel_type(dtype: np.dtype[Any]) -> str:
    """The type of a dtype's elements in the kernel files."""
    return _TYPES[dtype.name]


_TYPES = {"float16": "__half", "bfloat16": "__nv_bfloat16", "float32": "float", "float64": "double",
          "int8": "signed char", "int16": "short", "int32": "int", "int64": "long long", "uint8": "unsigned char",
          "uint16": "unsigned short", "uint32": "unsigned", "uint64": "unsigned long long", "bool": "bool"}


def has_kernel_type(x: Array) -> bool:
    return x.dtype.name in _TYPES


def is_real(x: Array) -> bool:
    """Whether kernels compute with the elements as floating-point numbers."""
    return has_kernel_type(x) and x.dtype.kind not in "iub"


def real(value: float, x: Array) -> np.floating[Any]:
    """A kernel argument of the type that sums over the elements of x have."""
    return np.float64(value) if x.dtype.name == "float64" else np.float32(value)


def steps(x: Array) -> list[int]:
    """The strides of an array in elements."""
    return [s // x.itemsize for s in x.strides]


def merged(axes: Iterable[Axis]) -> list[Axis]:
    """The same elements in the same order along the fewest axes, at least one."""
    found: list[Axis] = []
    for extent, read, written in axes:
        if extent == 1:
            continue
        if found and found[-1][1:] == (read * extent, written * extent):
            found[-1] = (found[-1][0] * extent, read, written)
        else:
            found.append((extent, read, written))
    return found or [(1, 0, 0)]


def by_stride(axes: Iterable[Axis]) -> list[Axis]:
    """The axes in an order in which neighbours are read one after another; repeated ones first."""
    return sorted(axes, key=lambda a: (a[1] != 0, -abs(a[1])))


def size(axes: Sequence[Axis]) -> int:
    """How many elements the axes have."""
    return prod(extent for extent, _, _ in axes)


def fit(*groups: Sequence[Axis]) -> bool:
    """Whether kernels can take these axes."""
    return all(len(axes) <= MAX_AXES and size(axes) <= MAX_INDEX for axes in groups)


def packed(axes: Sequence[Axis]) -> np.ndarray[Any, Any]:
    """The struct `Axes` of the kernels."""
    struct = np.zeros((1 + 3 * MAX_AXES,), np.int64)
    struct[0] = len(axes)
    for column, values in enumerate(zip(*axes)):
        struct[1 + column * MAX_AXES :][: len(axes)] = values
    return struct


def power(n: float, low: int = 1, high: int = THREADS) -> int:
    """The least power of two that is not less than n, between two of them."""
    return min(max(1 << (max(int(-(-n // 1)), 1) - 1).bit_length(), low), high)


def row_block(rows: int, n: int, vector: int = 1) -> tuple[int, int]:
    """Threads per row of n elements, and rows per block: parts of a warp, a warp, or the whole block."""
    most = 16 if rows >= 8 * PROCESSORS else 8  # elements per thread: many only where all processors have work
    if n <= 32 * max(most, vector):
        threads = power(n / vector, high=32)
        return threads, 256 // threads
    return power(n / max(most // 2, vector), low=64), 1


def registers(x: Array, out: Array, rows: int, n: int) -> tuple[tuple[int, int], int, int] | None:
    """For dense rows of n elements: block, elements per vector, and vectors per thread; None if they do not fit."""
    vector = 16 // x.itemsize if _aligned(x, n) and _aligned(out, n) else 1
    block = row_block(rows, n, vector)
    vectors = power(n / (block[0] * vector))
    fits = vectors <= 16 and vectors * vector * max(x.itemsize // 4, 1) <= 32
    return (block, vector, vectors) if fits else None


def _aligned(x: Array, n: int) -> bool:
    """Whether dense rows of n elements can be read 16 bytes at a time."""
    return bool(x.data.ptr % 16 == 0 and n * x.itemsize % 16 == 0)


def column_block(columns: int, n: int) -> tuple[int, int]:
    """Columns per block, and threads per column of n elements."""
    across = power(columns, high=32)
    return across, power(n, low=max(32 // across, 1), high=max(256 // across, 1))


def ceildiv(a: int, b: int) -> int:
    return -(-a // b)
