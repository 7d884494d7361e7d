"""Softmax and LogSoftmax along an axis."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from math import prod
from typing import Any, ClassVar

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base import launch
from ovgpu.ops.base.op import Array, Arrays, Op, Workspace, op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.shapes import normalize_axis
from ovgpu.ops.base.trace import TILE
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.reduction import as_rows, is_float, ones
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, maximum, minimum, product
from ovgpu.types import Type

ONE_PASS_ELEMENTS = 4096  # with fewer elements, a maximum over rows is faster than an argmax


def block_rows(rows: Int, columns: Int) -> Int:
    """Return the number of rows to work on at a time so that they stay in cache."""
    return minimum(rows, maximum(TILE // maximum(columns, 1), 1))


class _Softmax(Op):
    """Base of softmax ops: ``x [...] -> [...]`` of a real type, normalised along ``axis``."""

    axis: int = 1

    layout = "dense"
    log: ClassVar[bool] = False

    def infer_specs(self, x: Spec) -> tuple[Spec, ...]:
        if not (x.type.is_real() or x.type.is_dynamic()):
            raise OpError(f"element type {x.type.get_type_name()} is not real")
        if x.rank is not None:
            self.normalized_axis(x.rank)
        return (Spec(x.type, x.shape),)

    def normalized_axis(self, rank: int) -> int:
        return normalize_axis(self.axis, max(rank, 1))

    def evaluate(self, xp: Adapter, x: Array) -> tuple[Array, ...]:
        axis = self.normalized_axis(x.ndim)
        if x.size == 0:
            return (x.copy(),)
        if x.ndim == 0:
            return (x - x if self.log else xp.ones_like(x),)
        shifted = x - x.max(axis=axis, keepdims=True)
        exponential = xp.exp(shifted)
        total = exponential.sum(axis=axis, keepdims=True)
        return ((shifted - xp.log(total)) if self.log else exponential / total,)

    def inplace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> tuple[int, ...]:
        return (0,)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        dtype, shape = outputs[0].type, outputs[0].shape
        assert shape is not None
        if not shape:
            return ()
        axis = self.normalized_axis(len(shape))
        n = shape[axis]
        if axis < len(shape) - 1:
            statistics = (*shape[:axis], 1, *shape[axis + 1 :])
            return ((dtype, statistics), (dtype, shape)) if self.log else ((dtype, statistics),)
        rows = block_rows(product(shape[:axis]), n)
        columns = ((dtype, (rows, 1)), (Type.i64, (rows,)))
        return (*columns, (dtype, (rows, n))) if self.log else columns

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, out = inputs[0], outputs[0]
        if not is_float(x.dtype) or x.ndim == 0 or x.size == 0:
            return NotImplemented
        axis = self.normalized_axis(x.ndim)
        if axis < x.ndim - 1:
            statistics, *scratch = (
                w.reshape(-1)[: x.size].reshape(x.shape) if i else w for i, w in enumerate(workspace)
            )
            k(softmax, x, out, axis, statistics.reshape((*x.shape[:axis], 1, *x.shape[axis + 1 :])), *scratch)
            return None
        rows = as_rows(x, (axis,))
        if rows is None:
            return NotImplemented
        n = x.shape[-1]
        block = int(block_rows(len(rows), n))
        statistics, index = workspace[0].reshape(-1, 1)[:block], workspace[1].reshape(-1)[:block]
        scratch = [w.reshape(-1)[: block * n].reshape(block, n) for w in workspace[2:]]
        k(softmax_rows, rows, out.reshape(rows.shape), ones(n, x.dtype), statistics, index, *scratch)
        return None

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        x, out = inputs[0], outputs[0]
        if not launch.is_real(x) or x.size > launch.MAX_INDEX:
            return NotImplemented
        if x.size == 0:
            return None
        if x.ndim == 0 and not self.log:  # the softmax of a scalar is always 1
            k.copy(np.ones((), x.dtype), out)
            return None
        x, out = (a.reshape(1) if a.ndim == 0 else a for a in (x, out))
        axis = self.normalized_axis(x.ndim)
        n, stride = x.shape[axis], prod(x.shape[axis + 1 :])
        columns = x.size // n
        template_arguments = f"{k.c_type(x.dtype)}, {str(self.log).lower()}"
        in_registers = launch.registers(k.multiprocessors, x, out, columns, n) if stride == 1 else None
        if in_registers is not None:
            block, vector, vectors = in_registers
            k.kernel(
                "softmax.cu",
                f"softmax_rows<{template_arguments}, {vector}, {vectors}>",
                (launch.ceildiv(columns, block[1]),),
                block,
                (x, out, np.uint32(columns), np.uint32(n)),
            )
            return None
        if stride == 1 and self._in_parts(k, x, out, columns, n):
            return None
        block = launch.column_block(k.multiprocessors, columns, n) if stride > 1 else (1, launch.THREADS)
        k.kernel(
            "softmax.cu",
            f"softmax_columns<{template_arguments}>",
            (launch.ceildiv(columns, block[0]),),
            block,
            (x, out, np.uint32(columns), np.uint32(n), np.uint32(stride)),
            8 * block[0] * block[1],
        )
        return None

    def _in_parts(self, k: KernelRecorder, x: Any, out: Any, rows: int, n: int) -> bool:
        """Record two kernels that divide long rows among blocks. Return False if rows are short, or enough to keep the
        device busy with a block each."""
        vector = launch.vector_elements(n, x, out)
        chunk = launch.part_elements(k.multiprocessors, rows, n, vector)
        if chunk == n:
            return False
        grid, block = (launch.ceildiv(n, chunk), rows), (launch.PART_THREADS,)
        parts = k.scratch((rows, grid[0], 2), launch.real(0, x).dtype)
        numbers, element = (np.uint32(n), np.uint32(chunk)), k.c_type(x.dtype)
        k.kernel("softmax.cu", f"softmax_parts<{element}, {vector}>", grid, block, (x, parts, *numbers))
        k.kernel(
            "softmax.cu",
            f"softmax_join<{element}, {str(self.log).lower()}, {vector}>",
            grid,
            block,
            (x, out, parts, *numbers),
        )
        return True


def softmax(x: Any, out: Any, axis: int, statistics: Any, scratch: Any = None) -> None:
    """Write the softmax of ``x`` along ``axis`` into ``out``; with ``scratch``, its logarithm.

    x, out, scratch: [...]; statistics: the same shape, with extent 1 along ``axis``.
    """
    np.maximum.reduce(x, axis, out=statistics, keepdims=True)
    np.subtract(x, statistics, out)
    exponential = np.exp(out, out if scratch is None else scratch)
    np.add.reduce(exponential, axis, out=statistics, keepdims=True)
    if scratch is None:
        np.divide(out, statistics, out)
    else:
        np.subtract(out, np.log(statistics, statistics), out)


def softmax_rows(x: Any, out: Any, column: Any, statistics: Any, index: Any, scratch: Any = None) -> None:
    """Write the `softmax` of every row, in blocks of rows that stay in cache.

    x, out: [M, N], contiguous; column: N ones; statistics: [block, 1]; index: [block]; scratch: [block, N].
    """
    block = len(statistics)
    for start in range(0, len(x), block):
        a, o = x[start : start + block], out[start : start + block]
        t = statistics[: len(a)]
        shift_rows(a, o, t, index[: len(a)])
        exponential = np.exp(o, o if scratch is None else scratch[: len(a)])
        np.matmul(exponential, column, t)
        if scratch is None:
            np.divide(o, t, o)
        else:
            np.subtract(o, np.log(t, t), o)


def shift_rows(x: Any, out: Any, bound: Any, index: Any) -> None:
    """Write the maximum of every row of x [M, N] to ``bound`` [M, 1], and ``out = x - bound``.

    index: [M] integers, scratch.
    """
    if x.size < ONE_PASS_ELEMENTS:
        np.maximum.reduce(x, 1, out=bound, keepdims=True)
    else:  # an argmax over rows is several times faster than a maximum
        np.argmax(x, 1, index)
        np.add(index, _row_starts(*x.shape), index)
        np.take(x.reshape(-1), index, out=bound[:, 0], mode="clip")
    np.subtract(x, bound, out)


@lru_cache(maxsize=64)
def _row_starts(rows: int, columns: int) -> Any:
    """Return the offsets in elements at which the rows of a matrix begin."""
    return np.arange(0, rows * columns, columns)


@op("Softmax", "opset1", "activation/softmax-1", aliases=["SoftMax"])
class Softmax(_Softmax):
    """Softmax-1: ``axis`` counts from the front and must not be negative."""

    half_precision = "always"

    def normalized_axis(self, rank: int) -> int:
        if self.axis < 0:
            raise OpError(f"axis {self.axis} is negative")
        return super().normalized_axis(rank)


@op("Softmax", "opset8", "activation/softmax-8", aliases=["SoftMax"])
class Softmax8(_Softmax):
    """Softmax-8: a negative ``axis`` counts from the end.

    >>> softmax([[0.0, 0.6931], [9, 9]], axis=-1)
    [[0.3333, 0.6667], [0.5, 0.5]]
    """

    half_precision = "always"


@op("LogSoftmax", "opset5", "activation/log-soft-max-5")
class LogSoftmax(_Softmax):
    """Logarithm of the softmax along ``axis``.

    >>> log_softmax([0.0, 1000], axis=-1)
    [-1000.0, 0.0]
    """

    log = True
