"""Launches of `cuda_kernels/recurrent.cu`: recurrent cells and sequences on the device.

`_recurrence_mma` launches sequences with a batch on tensor cores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.sequence import _recurrence_mma
from ovgpu.ops.sequence._cells import ACTIVATIONS, GRU, LSTM, Recurrent

MAX_UNITS = 8  # hidden units per block, one warp each
REGISTERS = (2, 4, 8, 16, 32)  # registers per lane and gate that may hold rows of R
SEQUENCES_PER_BLOCK = 4  # sequences for which the weights are read once
MAX_GRID_DEPTH = 65535  # blocks along z


@dataclass(frozen=True)
class Launches:
    """Launch configuration of a layer: one cooperative launch for all rounds (``together``), or one launch per round.

    ``registers`` per lane and gate hold rows of R, 0 for none; a block reads the weights once for ``sequences``
    sequences, and computes ``units`` hidden units.
    """

    together: bool
    registers: int
    sequences: int
    units: int
    grid: tuple[int, int, int]

    @staticmethod
    def of(
        hidden: int,
        directions: int,
        batch: int,
        rounds: int,
        multiprocessors: int,
        use_registers: bool,
        together: bool = True,
    ) -> Launches:
        """Return the launches of a layer that takes this many ``rounds``: one per step, or two for some GRUs.

        With ``use_registers``, the kernel holds rows of R in registers if they fit. With ``together``, one cooperative
        launch may compute all rounds.
        """
        unit_blocks = -(-hidden // MAX_UNITS)
        blocks = unit_blocks * directions
        depth = max(1, multiprocessors // blocks)
        registers = next((n for n in REGISTERS if n * 32 >= hidden), 0)
        several = rounds > 1 and together
        if several and registers and use_registers and blocks <= multiprocessors * resident(registers, 1):
            return Launches(True, registers, 1, MAX_UNITS, (unit_blocks, directions, min(batch, depth)))
        sequences = SEQUENCES_PER_BLOCK if batch > 1 else 1
        groups = -(-batch // sequences)
        if several and blocks <= multiprocessors * resident(0, sequences):
            return Launches(True, 0, sequences, MAX_UNITS, (unit_blocks, directions, min(groups, depth)))
        units = MAX_UNITS
        while units > 2 and blocks * (MAX_UNITS // units) * groups < multiprocessors:
            units //= 2  # more multiprocessors read the weights faster
        return Launches(False, 0, sequences, units, (-(-hidden // units), directions, min(groups, MAX_GRID_DEPTH)))


def resident(registers: int, sequences: int) -> int:
    """Return the number of blocks that one multiprocessor can hold, as the kernel's launch bounds guarantee."""
    return 1 if registers > 4 or sequences > 1 else 2


def record(
    k: KernelRecorder,
    op: Recurrent,
    x: Array,
    w: Array | None,
    r: Array,
    b: Array | None,
    states: Sequence[Array],
    lengths: Array | None,
    reverses: Sequence[bool],
    y: Array | None,
    finals: Sequence[Array],
    *,
    attention: Array | None = None,
) -> Any:
    """Record the launches of a layer. Return NotImplemented for types and layouts that the kernel does not support.

    x is [N, T, D], or if w is None its projections [P, N, T, G H], f64 for f64 and else f32; w [P, G H, D],
    r [P, G H, H], b [P, rows]; states and finals [N, P, H], y [N, P, T, H]; attention [N, T, 1] or [N, 1]."""
    dtype = r.dtype
    accumulator = dtype if dtype.itemsize == 8 else np.dtype(np.float32)
    floats = [a for a in (w, r, b, attention, *states, y, *finals) if a is not None]
    if dtype.name not in ("float32", "float16", "bfloat16", "float64") or any(a.dtype != dtype for a in floats):
        return NotImplemented
    if x.dtype != (accumulator if w is None else dtype):
        return NotImplemented
    if any(a.shape[-1] > 1 and a.strides[-1] != a.dtype.itemsize for a in (x, *floats)):
        return NotImplemented
    pitch = [0 if m is None else _row_pitch(m) for m in (w, r)]
    if None in pitch or not all(a is None or a.flags.c_contiguous for a in (b, attention, lengths)):
        return NotImplemented
    batch, directions, hidden = states[0].shape
    steps = x.shape[-2]
    if not (batch and steps and hidden and x.shape[-1]):
        return NotImplemented
    cell = "LSTM" if isinstance(op, LSTM) else "RNN"
    if isinstance(op, GRU):
        cell = "GRU_LINEAR" if op.linear_before_reset else "GRU"
    rounds = steps * (2 if cell == "GRU" else 1)
    sizes = [batch, steps, x.shape[-1], hidden, *pitch, sum(d << i for i, d in enumerate(reverses))]
    stride_struct, activations = _strides(x, w is None, y, states, finals), _activations(op, accumulator)
    if w is None and _recurrence_mma.launch(
        k,
        cell,
        op.gates,
        x,
        r,
        b,
        states,
        lengths,
        y,
        finals,
        (stride_struct, activations, np.array([*sizes, 0, rounds], np.int32)),
    ):
        return None
    counts = "int" if lengths is None else k.c_type(lengths.dtype)
    kernel = f"recurrent<{k.c_type(dtype)}, {k.c_type(x.dtype)}, {counts}, {cell}, {{}}, {{}}>".format
    given = hidden, directions, batch, rounds, k.multiprocessors, w is None and dtype.itemsize < 8
    plan = Launches.of(*given)
    if plan.together and not k.fits(
        "recurrent.cu", kernel(plan.registers, plan.sequences), plan.grid, (32, plan.units)
    ):
        plan = Launches.of(*given, together=False)
    state, carried = (k.scratch((2, directions, batch, hidden), accumulator) if rounds > 1 else None for _ in range(2))
    barrier = _counter(k) if plan.together else None
    for first, last in [(0, rounds)] if plan.together else [(i, i + 1) for i in range(rounds)]:
        k.kernel(
            "recurrent.cu",
            kernel(plan.registers, plan.sequences),
            plan.grid,
            (32, plan.units),
            (
                x,
                w,
                r,
                b,
                attention,
                *_ends(states),
                lengths,
                y,
                *_ends(finals),
                state,
                carried,
                barrier,
                stride_struct,
                activations,
                np.array([*sizes, first, last], np.int32),
            ),
            cooperative=plan.together,
        )
    return None


def _ends(states: Sequence[Array]) -> tuple[Array, Array | None]:
    """Return h, and c or None."""
    return states[0], states[1] if len(states) > 1 else None


def _row_pitch(m: Array) -> int | None:
    """Return the row pitch of m [P, rows, n] in elements; None if the directions do not follow each other."""
    pitch: int = m.strides[1] // m.dtype.itemsize if m.shape[1] > 1 else m.shape[2]
    return pitch if len(m) == 1 or m.strides[0] == m.strides[1] * m.shape[1] else None


def _counter(k: KernelRecorder) -> Array:
    """Return the counter of the grid barrier, which is zero before a launch and again after it."""
    counter = k.scratch((1,), np.dtype(np.uint32))
    counter.data.memset_async(0, counter.nbytes, k.stream)
    return counter


def _strides(
    x: Array, projected: bool, y: Array | None, states: Sequence[Array], finals: Sequence[Array]
) -> np.ndarray[Any, Any]:
    """Return the struct `Strides` of the kernel, in elements."""

    def elements(a: Array) -> list[int]:
        return [s // a.dtype.itemsize for s in a.strides[:-1]]

    by_direction, by_sequence, by_step = elements(x) if projected else (0, *elements(x))
    y_strides = [0, 0, 0] if y is None else elements(y)
    state_strides = [s for a in (states[0], states[-1], finals[0], finals[-1]) for s in elements(a)]
    return np.array([by_sequence, by_direction, by_step, *y_strides, *state_strides], np.int64)


def _activations(op: Recurrent, dtype: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Return the struct `Activations` of the kernel."""
    known_names = list(ACTIVATIONS)
    given = [op.activation(i) for i in range(op.functions)] + [("sigmoid", 0.0, 0.0)] * (3 - op.functions)
    names, alphas, betas = zip(*given)
    return np.array([*map(known_names.index, names), *alphas, *betas, op.clip if op.clips() else inf], dtype)
