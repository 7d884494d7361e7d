"""Reduction of rows in groups, each a range of consecutive rows, and the work division of its kernels."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base import launch
from ovgpu.ops.base.op import Array
from ovgpu.ops.base.shapes import at_most
from ovgpu.ops.base.xp import Adapter
from ovgpu.spec import Spec
from ovgpu.symbolic import Int
from ovgpu.types import Type

THREADS = 256  # threads per block


def check_numbers(spec: Spec, what: str, rank: int) -> None:
    """Raise OpError unless ``spec`` can hold row numbers: it must have type i32 or i64, and this rank."""
    if spec.type not in (Type.i32, Type.i64) and not spec.type.is_dynamic():
        raise OpError(f"{what} must be i32 or i64, not {spec.type.get_type_name()}")
    if spec.rank not in (None, rank):
        raise OpError(f"{what} must have rank {rank}, not {spec.rank}")


def check_below(spec: Spec, extent: Int, what: str) -> None:
    """Demand that the row numbers are in ``[0, extent)``, if they are known. Raises OpError now, or at run time where
    ``extent`` is symbolic."""
    numbers = spec.constant
    if numbers is None or not numbers.size:
        return
    if numbers.min() < 0:
        raise OpError(f"{what} {numbers.min()} is negative")
    at_most(int(numbers.max()) + 1, extent, f"{what} {numbers.max()} is out of range for extent {{1}}")


def ascends(numbers: Array) -> bool:
    """Return whether the numbers are in ascending order; equal neighbours are allowed."""
    return not bool((numbers[1:] < numbers[:-1]).any())


def fold(
    xp: Adapter, out: Array, begin: Array, end: Array, rows: Callable[[Any], Array], combine: Any, whole: Array
) -> None:
    """Reduce the rows in ``[begin[n], end[n])`` into ``out[n]``, which holds the neutral element at first.

    ``rows(index)`` returns the rows at a slice or an index array. ``combine`` reduces two arrays, ``whole`` an axis.
    The loop runs over the groups if they are fewer than the rows of the longest one, else over offsets into all groups,
    which are sorted by length.
    """
    size = xp.maximum(end - begin, 0)
    longest = int(size.max()) if len(size) else 0
    if longest > len(size):
        for n, (first, last) in enumerate(zip(begin.tolist(), end.tolist())):
            if first < last:
                out[n] = whole(rows(slice(first, last)), axis=0)
        return
    order = xp.argsort(-size, kind="stable")
    begin, folded = begin[order], out[order]
    longer = len(size) - np.cumsum(np.bincount(xp.asnumpy(size), minlength=1))
    for offset in range(longest):
        left = folded[: longer[offset]]
        combine(left, rows(begin[: longer[offset]] + offset), out=left)
    out[order] = folded


def shares(x: Array, out: Array, count: int) -> tuple[int, tuple[int], tuple[int, int], Array, int]:
    """Return how a kernel divides the reduction of ``count`` dense rows of x into the dense rows of ``out``.

    The result is (elements per vector, grid, block, the struct `Partition`, bytes of shared memory per block).
    """
    groups, columns = len(out), prod(out.shape[1:])
    vector = 16 // x.itemsize if launch.aligned(x, columns) and launch.aligned(out, columns) else 1
    across = launch.power(columns / vector, high=THREADS)
    down, blocks = THREADS // across, launch.ceildiv(columns, across * vector)
    parts = down if count > 2 * down * groups else 1
    grid = launch.ceildiv(groups * parts, down) * blocks
    return vector, (grid,), (across, down), np.array([blocks, parts], np.int32), 8 * THREADS if parts > 1 else 0
