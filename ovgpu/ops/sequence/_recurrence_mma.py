"""Launch of `cuda_kernels/recurrent_mma.cu`: sequences of recurrent layers with a batch, on tensor cores.

Products of f32 are exact but for some 2^-22 of each, unless TF32 is allowed: three products in TF32 make one of f32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from math import prod
from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.ops.base.recorder import KernelRecorder

CAPABILITY = 80  # least compute capability, 8.0, of mma with these types
MIN_BATCH = 4  # sequences; with fewer, recurrent.cu reads R as fast
WARPS, ROWS = 8, 16  # warps per block; rows of R per tile
PART = 64  # bytes of a row that a warp multiplies at a time
MAX_STEPS = 8  # parts of each row that a warp may hold in registers
OPERANDS, REGISTERS = 128, 192  # registers per thread at most: for rows of R; in all, with sums and two parts of h
OWNED = 4  # pairs of a unit and a sequence per thread, at most
SIZES = (1, 2, 4, 8)  # row tiles, and groups of 8 sequences
COUNTER_PITCH = 32  # elements between the counters of barriers: a cache line each


@dataclass(frozen=True)
class MmaTiling:
    """Launch configuration: a warp holds ``steps`` parts of each row of R, and a block has ``tiles`` of 16 rows and
    ``groups`` of 8 sequences."""

    steps: int
    tiles: int
    groups: int
    grid: tuple[int, int, int]

    @staticmethod
    def of(
        gates: int,
        row_bytes: int,
        hidden: int,
        directions: int,
        batch: int,
        multiprocessors: int,
        exact: bool = False,
    ) -> MmaTiling | None:
        """Return the tiling for R of [directions, gates * hidden, hidden]; None if its rows do not fit into registers.

        ``exact`` is that of `block_sizes`.

        Among the tilings with a multiprocessor for each block, take those whose blocks read h of the fewest sequences,
        and then the one with the fewest rows per block. If there are none, take the tiling with the fewest blocks.
        """
        steps, units = -(-row_bytes // (PART * WARPS)), ROWS // gates
        if steps > MAX_STEPS:
            return None
        plans = [
            MmaTiling(steps, m, n, (-(-hidden // (units * m)), directions, -(-batch // (8 * n))))
            for m, n in block_sizes(steps, units, exact)
        ]
        return next(
            (plan for plan in plans if prod(plan.grid) <= multiprocessors), min(plans, key=lambda plan: prod(plan.grid))
        )

    def state_shape(self, itemsize: int) -> tuple[int, ...]:
        """Return the shape of h before and after a step."""
        _, directions, depth = self.grid
        return directions, depth, 2, WARPS * self.steps, self.groups * 8, PART // itemsize

    def shared(self) -> int:
        """Return the bytes of shared memory, as the kernel's `Partial` lays it out."""
        columns = self.groups * 8 + (8 if self.groups > 1 else 0)
        return WARPS * self.tiles * (ROWS * columns + max(8 // self.tiles, 2)) * 4


def block_sizes(steps: int, units: int, exact: bool = False) -> Sequence[tuple[int, int]]:
    """Return the (row tiles, groups of sequences) that a block's registers can hold, with the fewest groups first.

    ``units`` is the number of hidden units of a row tile. If ``exact``, rows of R and a part of h are held as two
    numbers in TF32 per element, and products of three are added up on their own.
    """
    found = []
    for n, m in product(SIZES, SIZES):
        rows, others = (16 * steps * m, 16 * n + 8) if exact else (8 * steps * m, 8 * n)
        if units * m * 8 * n <= OWNED * WARPS * 32 and rows <= OPERANDS and rows + 4 * m * n + others <= REGISTERS:
            found.append((m, n))
    return found


def launch(
    k: KernelRecorder,
    cell: str,
    gates: int,
    x: Array,
    r: Array,
    b: Array | None,
    states: Sequence[Array],
    lengths: Array | None,
    y: Array | None,
    finals: Sequence[Array],
    structs: Sequence[np.ndarray[Any, Any]],
) -> bool:
    """Record one cooperative launch for all steps of the projections x [P, N, T, G H]; see `_recurrence.record`.

    Return False, and record nothing, where the kernel does not apply. ``structs`` are the strides, activations and
    sizes of `recurrent.cuh`.
    """
    dtype, (batch, directions, hidden) = r.dtype, states[0].shape
    exact = dtype == np.float32 and not k.tf32
    if dtype.itemsize > 4 or k.capability < CAPABILITY or batch < MIN_BATCH or x.shape[-2] < 2:
        return False
    if cell == "GRU" or any(n % 16 for n in (hidden * dtype.itemsize, r.strides[1])) or r.data.ptr % 16:
        return False
    plan = MmaTiling.of(gates, hidden * dtype.itemsize, hidden, directions, batch, k.multiprocessors, exact)
    if plan is None:
        return False
    counts = "int" if lengths is None else k.c_type(lengths.dtype)
    arguments = (k.c_type(dtype), counts, cell, plan.steps, plan.tiles, plan.groups, *(["true"] if exact else []))
    kernel = f"recurrent_mma<{', '.join(map(str, arguments))}>"
    if not k.fits("recurrent_mma.cu", kernel, plan.grid, (WARPS * 32,), plan.shared()):
        return False
    state = _zeros(k, plan.state_shape(dtype.itemsize), dtype)
    arrived = _zeros(k, (directions * plan.grid[2] * COUNTER_PITCH,), np.dtype(np.uint32))
    h, c, h_out, c_out = (a for ends in (states, finals) for a in (ends[0], ends[1] if len(ends) > 1 else None))
    k.kernel(
        "recurrent_mma.cu",
        kernel,
        plan.grid,
        (WARPS * 32,),
        (x, r, b, h, c, lengths, y, h_out, c_out, state, arrived, *structs),
        plan.shared(),
        cooperative=True,
        tf32=dtype == np.float32 and not exact,
    )
    return True


def _zeros(k: KernelRecorder, shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """Return scratch memory that holds zeros before the first launch."""
    array = k.scratch(shape, dtype)
    array.data.memset_async(0, array.nbytes, k.stream)
    return array
