"""How arrays are resized by the kernels of `cuda_kernels/interpolate.cu`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from math import prod
from typing import Any

import numpy as np

from ovgpu.ops.base.launch import PROCESSORS, ceildiv
from ovgpu.ops.base.op import Array
from ovgpu.ops.base.strided import THREADS, Axes, bits, strides_of
from ovgpu.ops.image._resampling import Taps

MAX_AXES = {1: 3, 2: 3, 4: 2}  # axes that one launch resizes, by taps along each
SHARED = 8  # images that a thread resizes alike, where there are enough of them

Along = tuple[int, Taps]
"""An axis, and the taps along it, counted in the array's own extent."""


def passes(along: Sequence[Along]) -> list[list[Along]]:
    """The axes by launch; those with more taps than kernels are made for go alone."""
    groups: list[list[Along]] = []
    for axis, taps in along:
        beside = [*groups[-1], (axis, taps)] if groups else []
        if beside and len(beside) <= MAX_AXES.get(_taps(beside), 0):
            groups[-1] = beside
        else:
            groups.append([(axis, taps)])
    return groups


def resample(k: Any, x: Array, out: Array, along: Sequence[Along]) -> bool:
    """Records one launch, which resizes x along some axes; False if it has more axes than kernels take."""
    along = sorted(along, key=lambda a: a[0])
    moved = x.dtype == out.dtype and all(taps.weights is None for _, taps in along)
    count = _taps(along)
    axes, resized, batch = _axes_of(x, out, [axis for axis, _ in along])
    if not axes.rank:
        return False
    tables = [_weighed(taps, count) if not moved else (taps.places.astype(np.int32), taps.places) for _, taps in along]
    starts = [0, *accumulate(places.size for places, _ in tables)][: len(along)]
    places = k.table(np.concatenate([places.ravel() for places, _ in tables]))
    padding, steps = axes.rank - len(axes.extents), strides_of(x)
    struct = np.array(axes.numbers(*(i + padding for i in resized), *starts, *(steps[axis] for axis, _ in along)))
    numbers = (axes.packed(), struct, *axes.numbers(axes.size, *batch))
    grid = grid_of(axes.size, batch[0])
    shape = f"{axes.index}, {axes.rank}"
    if moved:
        k.kernel("interpolate.cu", f"pick<{bits(x.dtype.itemsize)}, {len(along)}, {shape}>", grid, (THREADS,),
                 (x, out, places, *numbers))
        return True
    weights = k.table(np.concatenate([weights.ravel() for _, weights in tables]))
    kinds, given = f"{k.c_type(x.dtype)}, {k.c_type(out.dtype)}", (x, out, places, weights, *numbers)
    if count in MAX_AXES:
        function = f"resample<{kinds}, {count}, {len(along)}, {shape}>"
    else:
        function, given = f"filter<{kinds}, {shape}>", (*given, np.int32(count))
    k.kernel("interpolate.cu", function, grid, (THREADS,), given)
    return True


def grid_of(size: int, batch: int) -> tuple[int, int]:
    """The grid for threads that compute an element of ``size``, of several images of a batch alike."""
    across = ceildiv(size, THREADS)
    return across, min(batch, max(ceildiv(batch, SHARED), ceildiv(8 * PROCESSORS, across)), 65535)


def _taps(along: Sequence[Along]) -> int:
    """How many taps along an axis a launch has to have."""
    most = max(taps.places.shape[1] for _, taps in along)
    return next((count for count in MAX_AXES if count >= most), most)


def _weighed(taps: Taps, count: int) -> tuple[Any, Any]:
    """Places and weights, [n, count] each; added taps weigh nothing, and neither do those in padding."""
    missing = ((0, 0), (0, count - taps.places.shape[1]))
    weights = np.ones(taps.places.shape, np.float32) if taps.weights is None else taps.weights
    weights = np.where(taps.places < 0, np.float32(0), weights)
    return np.pad(np.maximum(taps.places, 0).astype(np.int32), missing), np.pad(weights, missing)


def _axes_of(x: Array, out: Array, resized: Sequence[int]) -> tuple[Axes, list[int], tuple[int, int, int]]:
    """The output's axes, with strides of x along those that are not resized; which ones are; and the batch: how many
    there are of all that, and the strides between them."""
    found: list[tuple[int, int, int]] = []
    numbers: list[int] = []
    for axis, (extent, read, written) in enumerate(zip(out.shape, strides_of(x), strides_of(out))):
        if axis in resized:
            numbers.append(len(found))
            found.append((extent, 0, written))
        elif extent > 1:
            outer = found[-1] if found and len(found) - 1 not in numbers else None
            if outer and outer[1:] == (read * extent, written * extent):
                found[-1] = (outer[0] * extent, read, written)
            else:
                found.append((extent, read, written))
    batch = (1, 0, 0)
    if numbers[0] > 0:
        batch, found, numbers = found[0], found[1:], [i - 1 for i in numbers]
    extents, *strides = zip(*found)
    reach = sum((d - 1) * abs(s) for a in (x, out) for d, s in zip(a.shape, strides_of(a))) + prod(x.shape)
    return Axes(extents, tuple(strides), reach), numbers, batch
