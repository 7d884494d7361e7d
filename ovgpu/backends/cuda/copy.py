"""Copies: which kernel of `cuda_kernels/copy.cu` moves an array into another, and how."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.ops.base.strided import THREADS, Axes, bits, blocks, strides_of, vectorized

Launch = tuple[str, tuple[int, ...], tuple[int, ...], Sequence[Any]]  # expression, grid, block, arguments

LEAST = 8  # extent of both axes from which on a transposition through shared memory pays
COUNTS = (16, 400)  # host numbers per launch; arguments may have 4 KB in all


def launches(source: Array, target: Array) -> list[Launch] | None:
    """The launches that copy ``source``, broadcast, into ``target``; None if there are too many axes."""
    if isinstance(source, np.ndarray):
        return _write(np.broadcast_to(source, target.shape), target)
    found = _ordered(target.shape, strides_of(source, target.shape), strides_of(target))
    addresses = (source.data.ptr, target.data.ptr)
    if found.strides == ((1,), (1,)) and not any(a % 16 for a in addresses):
        nbytes = target.nbytes
        return [("copy_dense", blocks(max(nbytes // 16, 1)), (THREADS,), (source, target, np.int64(nbytes)))]
    axes, width = vectorized(found, target.dtype.itemsize, addresses)
    rows = next((i for i, s in enumerate(axes.strides[0]) if s == 1), -1)  # the source's dense axis
    if (0 <= rows < len(axes.extents) - 1 and axes.strides[1][-1] == 1
            and min(axes.extents[rows], axes.extents[-1]) >= LEAST):
        return _transposed(source, target, axes, width, rows)
    if not axes.rank:
        return None
    expression = f"copy_strided<{bits(width)}, {axes.index}, {axes.rank}>"
    return [(expression, blocks(axes.size), (THREADS,), (source, target, axes.packed(), *axes.numbers(axes.size)))]


def _ordered(shape: Sequence[int], source: Sequence[int], target: Sequence[int]) -> Axes:
    """The axes in the order of the target's memory."""
    order = sorted(range(len(shape)), key=lambda i: -abs(target[i]))
    return Axes.collapse([shape[i] for i in order], [source[i] for i in order], [target[i] for i in order])


def _transposed(source: Array, target: Array, axes: Axes, width: int, rows: int) -> list[Launch] | None:
    last = len(axes.extents) - 1
    others = [i for i in range(last) if i != rows]
    outer = Axes(tuple(axes.extents[i] for i in others), tuple(tuple(s[i] for i in others) for s in axes.strides),
                 axes.span)
    if not outer.rank:
        return None
    tile = 64 if width < 4 else 32
    m, n = axes.extents[rows], axes.extents[last]
    grid = (outer.size * -(-m // tile) * -(-n // tile),)
    scalars = outer.numbers(m, n, axes.strides[0][last], axes.strides[1][rows])
    expression = f"copy_transposed<{bits(width)}, {outer.index}, {outer.rank}>"
    return [(expression, grid, (32, 8), (source, target, outer.packed(), *scalars))]


def _write(values: np.ndarray[Any, Any], target: Array) -> list[Launch] | None:
    """Host numbers as arguments of the launches, so that nothing has to stay where it is until they have run."""
    axes = Axes.collapse(target.shape, strides_of(target))
    if not axes.rank or axes.index != "int":
        return None
    size = target.dtype.itemsize
    flat = np.ascontiguousarray(values).reshape(-1).view(f"u{size}")
    room = COUNTS[0] if flat.size <= COUNTS[0] else COUNTS[1]
    expression = f"write_numbers<{bits(size)}, {room}, {axes.rank}>"
    found: list[Launch] = []
    for first in range(0, flat.size, room):
        part = flat[first : first + room]
        numbers = np.zeros(room, flat.dtype)
        numbers[: part.size] = part
        found.append((expression, blocks(part.size, THREADS), (THREADS,),
                      (target, axes.packed(), numbers, np.int32(first), np.int32(part.size))))
    return found
