"""Recurrent cells and sequences on the device: how `cuda_kernels/recurrent.cu` is launched."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf
from typing import Any

import numpy as np

from ovgpu.ops._cells import ACTIVATIONS, GRU, LSTM, Recurrent
from ovgpu.ops._op import Array

UNITS = 8  # hidden units of a block, one warp each
REGISTERS = (2, 4, 8, 16, 32)  # per lane and gate, that rows of R take


def record(k: Any, op: Recurrent, x: Array, w: Array | None, r: Array, b: Array | None, states: Sequence[Array],
           lengths: Array | None, reverses: Sequence[bool], y: Array | None, finals: Sequence[Array]) -> Any:
    """x [N, T, D], or if w is None its projections [P, N, T, G H]; w [P, G H, D], r [P, G H, H], b [P, rows];
    states and finals [N, P, H], y [N, P, T, H]. NotImplemented for types and layouts that the kernel does not take."""
    kind = r.dtype
    floats = [a for a in (x, w, r, b, *states, y, *finals) if a is not None]
    if kind.name not in ("float32", "float16", "bfloat16") or any(a.dtype != kind for a in floats):
        return NotImplemented
    if any(a.shape[-1] > 1 and a.strides[-1] != a.dtype.itemsize for a in floats):
        return NotImplemented
    if not all(a is None or a.flags.c_contiguous for a in (w, r, b, lengths)):
        return NotImplemented
    batch, directions, hidden = states[0].shape
    steps = x.shape[-2]
    if not (batch and steps and hidden and x.shape[-1]):
        return NotImplemented
    cell = "LSTM" if isinstance(op, LSTM) else "RNN"
    if isinstance(op, GRU):
        cell = "GRU_LINEAR" if op.linear_before_reset else "GRU"
    turns = steps * (2 if cell == "GRU" else 1)
    across = -(-hidden // UNITS)
    registers = next((n for n in REGISTERS if n * 32 >= hidden), 0)
    if steps == 1 or across * directions > k.multiprocessors:
        registers = 0
    apart = min(batch, k.multiprocessors // (across * directions) if registers else 65535)  # blocks share the sequences
    grid = (across, directions, apart)
    f32 = np.dtype(np.float32)
    state = k.scratch((2, directions, batch, hidden), f32)
    kept = k.scratch((2, directions, batch, hidden), f32)
    arrived = k.scratch((1,), np.dtype(np.uint32)) if registers else None
    args = (x, w, r, b, states[0], states[-1] if len(states) > 1 else None, lengths, y, finals[0],
            finals[-1] if len(finals) > 1 else None, state, kept, arrived, _strides(x, w is None, y, states, finals),
            _activations(op), *map(np.int32, (batch, steps, x.shape[-1], hidden, sum(d << i for i, d in
                                                                                  enumerate(reverses)))))
    counts = "int" if lengths is None else k.c_type(lengths.dtype)
    kernel = f"recurrent<{k.c_type(kind)}, {counts}, {cell}, {registers}>"
    if arrived is not None:
        k.calls.append(partial(arrived.data.memset_async, 0, arrived.nbytes, k.stream))
        k.kernel("recurrent.cu", kernel, grid, (32, UNITS), (*args, np.int32(0), np.int32(turns)), cooperative=True)
        return None
    for turn in range(turns):
        k.kernel("recurrent.cu", kernel, grid, (32, UNITS), (*args, np.int32(turn), np.int32(turn + 1)))
    return None


def _strides(x: Array, projected: bool, y: Array | None, states: Sequence[Array],
             finals: Sequence[Array]) -> np.ndarray[Any, Any]:
    """The struct Strides, in elements."""
    item = x.dtype.itemsize
    if projected:
        by_direction, by_sequence, by_step, _ = x.strides
    else:
        by_direction, (by_sequence, by_step, _) = 0, x.strides
    of_y = (0, 0, 0) if y is None else y.strides[:3]
    both = [s for a in (states[0], states[-1], finals[0], finals[-1]) for s in a.strides[:2]]
    return np.array([s // item for s in (by_sequence, by_direction, by_step, *of_y, *both)], np.int64)


def _activations(op: Recurrent) -> np.ndarray[Any, Any]:
    """The struct Activations."""
    kinds = list(ACTIVATIONS)
    given = [op.activation(i) for i in range(op.functions)] + [("sigmoid", 0.0, 0.0)] * (3 - op.functions)
    names, alphas, betas = zip(*given)
    return np.array([*map(kinds.index, names), *alphas, *betas, op.clip if op.clips() else inf], np.float32)
