"""Copies between strided arrays by the kernels of `cuda_kernels/copy.cu`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.ops.base.strided import THREADS, Axes, bits, blocks, strides_of, vectorized

Launch = tuple[str, tuple[int, ...], tuple[int, ...], Sequence[Any]]  # expression, grid, block, arguments

MIN_TRANSPOSE_EXTENT = 8  # elements of both axes, from which on a transposition through shared memory pays
NUMBERS_PER_LAUNCH = (16, 400)  # capacities of write_numbers; arguments are limited to 4 KB
MAX_NUMBERS = 1600  # elements of a target that are passed by value; more are uploaded


def launches(source: Array, target: Array) -> list[Launch] | None:
    """Return the launches that copy ``source``, broadcast, into ``target`` of its dtype.

    A source on the host is passed by value, with up to 400 elements of the target per launch. Return None if there are
    too many axes.
    """
    if isinstance(source, np.ndarray):
        return _write_numbers(np.broadcast_to(source, target.shape), target)
    collapsed = _in_target_order(target.shape, strides_of(source, target.shape), strides_of(target))
    addresses = (source.data.ptr, target.data.ptr)
    if collapsed.strides == ((1,), (1,)) and not any(a % 16 for a in addresses):
        nbytes = target.nbytes
        return [("copy_dense", blocks(max(nbytes // 16, 1)), (THREADS,), (source, target, np.int64(nbytes)))]
    axes, width = vectorized(collapsed, target.dtype.itemsize, addresses)
    source_axis = next((i for i, s in enumerate(axes.strides[0]) if s == 1), -1)  # the source's dense axis
    if (
        0 <= source_axis < len(axes.extents) - 1
        and axes.strides[1][-1] == 1
        and min(axes.extents[source_axis], axes.extents[-1]) >= MIN_TRANSPOSE_EXTENT
    ):
        return _transposed(source, target, axes, width, source_axis)
    if not axes.rank:
        return None
    expression = f"copy_strided<{bits(width)}, {axes.index}, {axes.rank}>"
    return [(expression, blocks(axes.size), (THREADS,), (source, target, axes.packed(), *axes.numbers(axes.size)))]


def _in_target_order(shape: Sequence[int], source: Sequence[int], target: Sequence[int]) -> Axes:
    """Return the fewest axes for the copy, in the order of the target's memory."""
    order = sorted(range(len(shape)), key=lambda i: -abs(target[i]))
    return Axes.collapse([shape[i] for i in order], [source[i] for i in order], [target[i] for i in order])


def _transposed(source: Array, target: Array, axes: Axes, width: int, source_axis: int) -> list[Launch] | None:
    last = len(axes.extents) - 1
    others = [i for i in range(last) if i != source_axis]
    outer = Axes(
        tuple(axes.extents[i] for i in others), tuple(tuple(s[i] for i in others) for s in axes.strides), axes.span
    )
    if not outer.rank:
        return None
    tile = 64 if width < 4 else 32
    m, n = axes.extents[source_axis], axes.extents[last]
    grid = (outer.size * -(-m // tile) * -(-n // tile),)
    scalars = outer.numbers(m, n, axes.strides[0][last], axes.strides[1][source_axis])
    expression = f"copy_transposed<{bits(width)}, {outer.index}, {outer.rank}>"
    return [(expression, grid, (32, 8), (source, target, outer.packed(), *scalars))]


def _write_numbers(values: np.ndarray[Any, Any], target: Array) -> list[Launch] | None:
    """Pass host numbers as arguments of the launches, so that no host buffer has to live until they have run."""
    axes = Axes.collapse(target.shape, strides_of(target))
    if not axes.rank or axes.index != "int":
        return None
    size = target.dtype.itemsize
    flat = np.ascontiguousarray(values).reshape(-1).view(f"u{size}")
    capacity = NUMBERS_PER_LAUNCH[0] if flat.size <= NUMBERS_PER_LAUNCH[0] else NUMBERS_PER_LAUNCH[1]
    expression = f"write_numbers<{bits(size)}, {capacity}, {axes.rank}>"
    writes: list[Launch] = []
    for first in range(0, flat.size, capacity):
        part = flat[first : first + capacity]
        numbers = np.zeros(capacity, flat.dtype)
        numbers[: part.size] = part
        writes.append(
            (
                expression,
                blocks(part.size, THREADS),
                (THREADS,),
                (target, axes.packed(), numbers, np.int32(first), np.int32(part.size)),
            )
        )
    return writes
