"""How kernels that work along axes are launched: the axes as `cuda_kernels/axes.cuh` takes them, and geometry."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.ops.base.strided import Axes

MAX_AXES = 6
MAX_INDEX = 2**31 - 1  # kernels count elements along axes in 32 bits
THREADS = 512  # at most, per block
PROCESSORS = 132  # of an H100 or H200: with fewer blocks than that, some have nothing to do

Axis = tuple[int, int, int]
"""Extent, and the strides in elements of the array read and of the array written."""


def is_plain(x: Array) -> bool:
    """Whether kernels take elements of this type as they are: not f8, i4 and their like."""
    return x.dtype.kind in "biuf" or x.dtype.name == "bfloat16"


def is_real(x: Array) -> bool:
    """Whether kernels compute with the elements as floating-point numbers."""
    return is_plain(x) and x.dtype.kind not in "iub"


def real(value: float, x: Array) -> np.floating[Any]:
    """A kernel argument of the type that sums over the elements of x have."""
    return np.float64(value) if x.dtype.name == "float64" else np.float32(value)


def merged(axes: Sequence[Axis]) -> list[Axis]:
    """The same elements in the same order along the fewest axes, at least one."""
    found = Axes.collapse(*zip(*axes)) if axes else None
    return list(zip(found.extents, *found.strides)) if found and found.extents else [(1, 0, 0)]


def by_stride(axes: Sequence[Axis]) -> list[Axis]:
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


def registers(x: Array, out: Array, rows: int, n: int,
              *beside: Array | None) -> tuple[tuple[int, int], int, int] | None:
    """For dense rows of n elements, and single rows ``beside`` them: block, elements per vector, and vectors per
    thread; None if they do not fit."""
    vector = 16 // x.itemsize if all(aligned(a, n) for a in (x, out, *beside) if a is not None) else 1
    block = row_block(rows, n, vector)
    vectors = power(n / (block[0] * vector))
    fits = vectors <= 16 and vectors * vector * max(x.itemsize // 4, 1) <= 32
    return (block, vector, vectors) if fits else None


def aligned(x: Array, n: int) -> bool:
    """Whether dense rows of n elements can be read 16 bytes at a time."""
    return bool(x.data.ptr % 16 == 0 and n * x.itemsize % 16 == 0)


def column_block(columns: int, n: int) -> tuple[int, int]:
    """Columns per block, and threads per column of n elements.

    Few columns are spread over more processors; 8 elements of 4 bytes are still read without waste.
    """
    many = columns >= 32 * PROCESSORS
    across = power(columns, high=32 if many else 8)
    return across, power(n, low=max(32 // across, 1), high=(256 if many else THREADS) // across)


def ceildiv(a: int, b: int) -> int:
    return -(-a // b)
