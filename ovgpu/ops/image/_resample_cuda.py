"""Launches of the resampling kernels in `cuda_kernels/interpolate.cu`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from ovgpu.ops.base.launch import ceildiv
from ovgpu.ops.base.op import Array
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.strided import THREADS, Axes, bits, strides_of
from ovgpu.ops.image._resampling import Taps

MAX_AXES = {1: 3, 2: 3, 4: 2}  # the most axes that one launch resizes, by the number of taps along each
IMAGES_PER_THREAD = 8  # images of a batch that a thread computes with the same taps; fewer if the batch is small
MAX_GRID_Y = 65535  # CUDA's limit

AxisTaps = tuple[int, Taps]
"""An axis, and the taps along it, with positions in the array without padding."""


def passes(axis_taps: Sequence[AxisTaps]) -> list[list[AxisTaps]]:
    """Return the axes grouped by launch. An axis that has more taps than `MAX_AXES` lists gets a launch of its own."""
    groups: list[list[AxisTaps]] = []
    for axis, taps in axis_taps:
        extended = [*groups[-1], (axis, taps)] if groups else []
        if extended and len(extended) <= MAX_AXES.get(_tap_count(extended), 0):
            groups[-1] = extended
        else:
            groups.append([(axis, taps)])
    return groups


def resample(k: KernelRecorder, x: Array, out: Array, axis_taps: Sequence[AxisTaps]) -> bool:
    """Record one launch that resizes ``x`` along some axes. Return False if x has more axes than kernels take."""
    axis_taps = sorted(axis_taps, key=lambda pair: pair[0])
    moved = x.dtype == out.dtype and all(taps.weights is None for _, taps in axis_taps)
    count = _tap_count(axis_taps)
    axes, resized, batch = _axes_of(x, out, [axis for axis, _ in axis_taps])
    steps = [strides_of(x)[axis] for axis, _ in axis_taps]
    if moved:
        axes, steps, batch, width = _widened(axes, steps, batch, (x, out))
    if not axes.rank:
        return False
    tables = [
        _padded_taps(taps, count) if not moved else (taps.positions.astype(np.int32), taps.positions)
        for _, taps in axis_taps
    ]
    starts = [0, *accumulate(positions.size for positions, _ in tables)][: len(axis_taps)]
    positions = k.table(np.concatenate([positions.ravel() for positions, _ in tables]))
    padding = axes.rank - len(axes.extents)
    struct = np.array(axes.numbers(*(i + padding for i in resized), *starts, *steps))
    geometry = (axes.packed(), struct, *axes.numbers(axes.size, *batch))
    grid = grid_of(k.multiprocessors, axes.size, batch[0])
    shape = f"{axes.index}, {axes.rank}"
    if moved:
        k.kernel(
            "interpolate.cu",
            f"pick<{bits(width)}, {len(axis_taps)}, {shape}>",
            grid,
            (THREADS,),
            (x, out, positions, *geometry),
        )
        return True
    weights = k.table(np.concatenate([weights.ravel() for _, weights in tables]))
    types, arguments = f"{k.c_type(x.dtype)}, {k.c_type(out.dtype)}", (x, out, positions, weights, *geometry)
    if count in MAX_AXES:
        function = f"resample<{types}, {count}, {len(axis_taps)}, {shape}>"
    else:
        function, arguments = f"filter<{types}, {shape}>", (*arguments, np.int32(count))
    k.kernel("interpolate.cu", function, grid, (THREADS,), arguments)
    return True


def grid_of(multiprocessors: int, size: int, batch: int) -> tuple[int, int]:
    """Return the grid for images of ``size`` elements: each thread computes one element of several images of a
    batch."""
    across = ceildiv(size, THREADS)
    return across, min(batch, max(ceildiv(batch, IMAGES_PER_THREAD), ceildiv(8 * multiprocessors, across)), MAX_GRID_Y)


def _tap_count(axis_taps: Sequence[AxisTaps]) -> int:
    """Return the number of taps per axis of a launch: the least key of `MAX_AXES` that suffices, else as many as
    needed."""
    needed = max(taps.positions.shape[1] for _, taps in axis_taps)
    return next((count for count in MAX_AXES if count >= needed), needed)


def _widened(
    axes: Axes, steps: list[int], batch: tuple[int, int, int], arrays: Sequence[Array]
) -> tuple[Axes, list[int], tuple[int, int, int], int]:
    """Return the axes, the strides of x along resized axes, and the batch, all in units of the widest elements in which
    the last axis can be moved, and the bytes of such an element. They are wider than an element of the array where
    channels are adjacent. Unlike `strided.vectorized`, this merges no axes, since the resized ones are known by their
    indices."""
    itemsize, (count, *outer) = arrays[0].dtype.itemsize, batch
    *extents, last = axes.extents
    for width in (16, 8, 4, 2):
        factor = width // itemsize
        counts = (last, *steps, *outer, *(s for strides in axes.strides for s in strides[:-1]))
        if (
            factor > 1
            and all(strides[-1] == 1 for strides in axes.strides)
            and not (any(n % factor for n in counts) or any(a.data.ptr % width for a in arrays))
        ):
            strides = tuple((*(s // factor for s in strides[:-1]), 1) for strides in axes.strides)
            narrowed = Axes((*extents, last // factor), strides, axes.reach)
            return narrowed, [s // factor for s in steps], (count, outer[0] // factor, outer[1] // factor), width
    return axes, steps, batch, itemsize


def _padded_taps(taps: Taps, count: int) -> tuple[Any, Any]:
    """Return positions and weights, each [n, count]. Taps in the padding, and taps that are added to fill up ``count``,
    have weight 0."""
    missing = ((0, 0), (0, count - taps.positions.shape[1]))
    weights = np.ones(taps.positions.shape, np.float32) if taps.weights is None else taps.weights
    weights = np.where(taps.positions < 0, np.float32(0), weights)
    return np.pad(np.maximum(taps.positions, 0).astype(np.int32), missing), np.pad(weights, missing)


def _axes_of(x: Array, out: Array, resized: Sequence[int]) -> tuple[Axes, list[int], tuple[int, int, int]]:
    """Return the output's axes (resized ones with stride 0 in x), the indices of the resized ones, and the batch as
    (count, stride in x, stride in out)."""
    collapsed: list[tuple[int, int, int]] = []
    indices: list[int] = []
    for axis, (extent, read, written) in enumerate(zip(out.shape, strides_of(x), strides_of(out))):
        if axis in resized:
            indices.append(len(collapsed))
            collapsed.append((extent, 0, written))
        elif extent > 1:
            outer = collapsed[-1] if collapsed and len(collapsed) - 1 not in indices else None
            if outer and outer[1:] == (read * extent, written * extent):
                collapsed[-1] = (outer[0] * extent, read, written)
            else:
                collapsed.append((extent, read, written))
    batch = (1, 0, 0)
    if indices[0] > 0:
        batch, collapsed, indices = collapsed[0], collapsed[1:], [i - 1 for i in indices]
    extents, *strides = zip(*collapsed)
    reach = sum((d - 1) * abs(s) for a in (x, out) for d, s in zip(a.shape, strides_of(a))) + prod(x.shape)
    return Axes(extents, tuple(strides), reach), indices, batch
