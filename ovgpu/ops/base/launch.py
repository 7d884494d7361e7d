"""Launches of kernels that work along axes: the struct `MappedAxes` of `cuda_kernels/axes.cuh`, grids and blocks."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.ops.base.strided import Axes

if TYPE_CHECKING:
    from ovgpu.ops.base.recorder import KernelRecorder

MAX_AXES = 6
MAX_INDEX = 2**31 - 1  # kernels count elements along axes in 32 bits
THREADS = 512  # the maximum per block
LONG_ROW = 16384  # elements beyond which a row is long: blocks divide it among themselves if there are few rows
LANE_VECTORS = 4  # the most vectors per thread where a warp has a whole row of several hundred elements
PART_THREADS = 256  # threads per block that takes a part of a long row
MIN_PART_ELEMENTS = 2048  # the least elements in a part of a long row

Axis = tuple[int, int, int]
"""Extent, stride of the array read, stride of the array written; strides are in elements."""


def dense(k: KernelRecorder, x: Array) -> Array:
    """Return the array, or a contiguous copy of it."""
    if x.flags.c_contiguous:
        return x
    copied = k.scratch(x.shape, x.dtype)
    k.copy(x, copied)
    return copied


def is_plain(x: Array) -> bool:
    """Return whether kernels take elements of this type as they are: not f8, i4 and similar types."""
    return x.dtype.kind in "biuf" or x.dtype.name == "bfloat16"


def is_real(x: Array) -> bool:
    """Return whether kernels compute with the elements as floating-point numbers."""
    return is_plain(x) and x.dtype.kind not in "iub"


def real(value: float, x: Array) -> np.floating[Any]:
    """Return ``value`` as a kernel argument in the accumulator type of x: f64 for f64, else f32."""
    return np.float64(value) if x.dtype.name == "float64" else np.float32(value)


def merged(axes: Sequence[Axis]) -> list[Axis]:
    """Return the fewest axes, at least one, that give the same elements in the same order."""
    collapsed = Axes.collapse(*zip(*axes)) if axes else None
    return list(zip(collapsed.extents, *collapsed.strides)) if collapsed and collapsed.extents else [(1, 0, 0)]


def by_stride(axes: Sequence[Axis]) -> list[Axis]:
    """Return the axes by descending read stride, so that neighbours in memory are read consecutively. Broadcast axes
    (stride 0) come first."""
    return sorted(axes, key=lambda a: (a[1] != 0, -abs(a[1])))


def size(axes: Sequence[Axis]) -> int:
    """Return the number of elements along the axes."""
    return prod(extent for extent, _, _ in axes)


def fit(*groups: Sequence[Axis]) -> bool:
    """Return whether kernels can take each group of axes."""
    return all(len(axes) <= MAX_AXES and size(axes) <= MAX_INDEX for axes in groups)


def packed(axes: Sequence[Axis]) -> np.ndarray[Any, Any]:
    """Return the axes as the kernels' struct `MappedAxes`, an int64 array."""
    struct = np.zeros((1 + 3 * MAX_AXES,), np.int64)
    struct[0] = len(axes)
    for column, values in enumerate(zip(*axes)):
        struct[1 + column * MAX_AXES :][: len(axes)] = values
    return struct


def power(n: float, low: int = 1, high: int = THREADS) -> int:
    """Return the least power of two that is not less than n, clamped to ``low`` and ``high``."""
    return min(max(1 << (max(int(-(-n // 1)), 1) - 1).bit_length(), low), high)


def row_block(multiprocessors: int, rows: int, n: int, vector: int = 1) -> tuple[int, int]:
    """Return (threads per row of n elements, rows per block): a row takes part of a warp, a warp, or a whole block."""
    per_thread = 16 if rows >= 8 * multiprocessors else 8  # elements; more only where all multiprocessors have work
    if n <= 32 * max(per_thread, vector):
        threads = power(n / vector, high=32)
        return threads, 256 // threads
    return power(n / max(per_thread // 2, vector), low=64), 1


def registers(
    multiprocessors: int, x: Array, out: Array, rows: int, n: int, *beside: Array | None
) -> tuple[tuple[int, int], int, int] | None:
    """Return (block, elements per vector, vectors per thread) for a kernel that holds dense rows of n elements in
    registers, None if they do not fit. The arrays ``beside`` x and out have dense rows of n elements too."""
    vector = vector_elements(n, x, out, *beside)
    if rows >= 8 * multiprocessors and vector > 1 and n <= 32 * LANE_VECTORS * vector:  # a single warp has no barriers
        return (32, 8), vector, ceildiv(n, 32 * vector)
    block = row_block(multiprocessors, rows, n, vector)
    vectors = power(n / (block[0] * vector))
    # a thread holds its elements in at most 32 registers of 4 bytes; an element of 16 bits takes a register, too
    fits = vectors <= 16 and vectors * vector * max(x.itemsize // 4, 1) <= 32
    return (block, vector, vectors) if fits else None


def part_elements(multiprocessors: int, rows: int, n: int, multiple: int = 1) -> int:
    """Return the number of elements of each part if long rows of n elements are divided among blocks, because there are
    too few of them for all multiprocessors; else n. n is a multiple of ``multiple``, and so are the parts."""
    parts = min(2 * multiprocessors // rows, n // MIN_PART_ELEMENTS)
    return n if n <= LONG_ROW or parts < 2 else ceildiv(ceildiv(n, parts), multiple) * multiple


def vector_elements(n: int, *arrays: Array | None) -> int:
    """Return how many elements of dense rows of n elements are read at a time: 16 bytes if all arrays are aligned, or
    one element."""
    given = [x for x in arrays if x is not None]
    return 16 // given[0].itemsize if all(aligned(x, n) for x in given) else 1


def aligned(x: Array, n: int) -> bool:
    """Return whether dense rows of n elements can be read 16 bytes at a time."""
    return bool(x.data.ptr % 16 == 0 and n * x.itemsize % 16 == 0)


def column_block(multiprocessors: int, columns: int, n: int) -> tuple[int, int]:
    """Return (columns per block, threads per column of n elements).

    If there are few columns, a block has at most 8 of them, so that more multiprocessors have work. 8 elements of 4
    bytes are still read without waste.
    """
    many = columns >= 32 * multiprocessors
    across = power(columns, high=32 if many else 8)
    return across, power(n, low=max(32 // across, 1), high=(256 if many else THREADS) // across)


def ceildiv(a: int, b: int) -> int:
    """Return a / b rounded up."""
    return -(-a // b)
