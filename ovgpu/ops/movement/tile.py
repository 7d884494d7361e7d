"""Tile: a tensor repeated along each axis."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ovgpu.ops.base.op import Array, Arrays, Op, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import check_integers, integers, length, unknowns
from ovgpu.ops.base.xp import Adapter
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, maximum


@op("Tile", "opset1", "movement/tile-1")
class Tile(Op):
    """``data [...], repeats [n] ->`` data repeated along each axis, with 1s before the shorter of shape and repeats.

    >>> tile([[1, 2], [3, 4]], [2])
    [[1, 2, 1, 2], [3, 4, 3, 4]]
    """

    exact = True
    supports_symbolic = True
    host_inputs = (1,)
    half_precision = "promoted"
    host_in_decode = True
    moves_elements = True

    def infer_specs(self, x: Spec, repeats: Spec) -> tuple[Spec, ...]:
        check_integers(repeats, "repeats")
        count, times = length(repeats), repeats.ints()
        if x.shape is None or (times is None and count is None):
            return (Spec(x.type, None),)
        if times is None:
            return (Spec(x.type, unknowns(max(len(x.shape), count or 0))),)
        shape, repeated = equal_ranks(x.shape, times)
        return (Spec(x.type, tuple(d * maximum(n, 0) for d, n in zip(shape, repeated))),)

    def evaluate(self, xp: Adapter, x: Array, repeats: Array) -> tuple[Array, ...]:
        return (xp.tile(x, [max(n, 0) for n in integers(repeats)]),)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        x, out = inputs[0], outputs[0]
        shape = (1,) * (out.ndim - x.ndim) + x.shape
        if 0 in out.shape:
            return
        blocks = [n for d, total in zip(shape, out.shape) for n in (total // d, d)]
        k(np.copyto, out.reshape(blocks), x.reshape([n for d in shape for n in (1, d)]))

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        x, out = inputs[0], outputs[0]
        if out.size:
            shape = (1,) * (out.ndim - x.ndim) + x.shape
            whole = x[(None,) * (out.ndim - x.ndim) + (...,)]
            k.copy(
                whole[(None, slice(None)) * out.ndim],
                out.reshape([n for d, total in zip(shape, out.shape) for n in (total // d, d)]),
            )


def equal_ranks(a: Sequence[Int], b: Sequence[Int]) -> tuple[tuple[Int, ...], tuple[Int, ...]]:
    """Return both sequences with the same length: 1s are put before the shorter one."""
    rank = max(len(a), len(b))
    return (1,) * (rank - len(a)) + tuple(a), (1,) * (rank - len(b)) + tuple(b)
