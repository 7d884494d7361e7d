"""Matrix products as cuBLAS sees them: extents, how matrices lie, and which batches there are."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.ops.base.strided import Axes, strides_of

TYPES = {"float32": "CUDA_R_32F", "float16": "CUDA_R_16F", "bfloat16": "CUDA_R_16BF", "float64": "CUDA_R_64F"}


@dataclass(frozen=True, eq=False)
class Sums:
    """How cuBLAS names what a product is summed in, and that of its factors; and the factors, on the host."""

    compute: str
    kind: str
    one: np.ndarray[Any, Any]
    zero: np.ndarray[Any, Any]


_SINGLE = Sums("COMPUTE_32F", "CUDA_R_32F", np.array(1, np.float32), np.array(0, np.float32))
_DOUBLE = Sums("COMPUTE_64F", "CUDA_R_64F", np.array(1, np.float64), np.array(0, np.float64))


def sums_of(dtype: np.dtype[Any]) -> Sums:
    """Those of a product of such matrices: f64 for f64, f32 for others, not rounded to TF32."""
    return _DOUBLE if dtype == np.float64 else _SINGLE


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix with a unit stride: in its rows, or transposed in its columns; and its other stride."""

    transposed: bool
    leading: int


@dataclass(frozen=True, slots=True)
class Gemm:
    """``[M, K] @ [K, N]`` into row-major [M, N] whose rows are ``leading`` apart; ``beside`` are the distances between
    rows of further matrices [M, N]."""

    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    leading: int
    beside: tuple[int, ...] = ()


@dataclass(frozen=True)
class Batches:
    """The same product at several places: extents of the axes along which they lie, and the steps along them of a, b,
    out, and of what lies beside. ``transposed``: it gives the transposed result, of b and a in each other's place."""

    gemm: Gemm
    arrays: tuple[Array, ...]
    extents: list[int]
    steps: list[list[int]]
    transposed: bool

    @staticmethod
    def of(a: Array, b: Array, out: Array, *beside: Array) -> Batches | None:
        """``out [..., M, N] = a [..., M, K] @ b [..., K, N]``, whose batch axes broadcast to those of ``out``, which is
        not empty; a and b of one real type, out of theirs or of that of the sums, and matrices of its shape ``beside``
        it. None for what cuBLAS does not take: other types, strides that are neither positive nor zero, matrices
        without a unit stride, K = 0."""
        if a.dtype.name not in TYPES or a.dtype != b.dtype or not a.shape[-1]:
            return None
        if out.dtype not in (a.dtype, sums_of(a.dtype).one.dtype):
            return None
        batch = out.shape[:-2]
        arrays = (a, b, out, *beside)
        m, n, k = out.shape[-2], out.shape[-1], a.shape[-1]
        strides = [strides_of(x, (*batch, *x.shape[-2:])) for x in arrays]
        if any(s < 0 for each in strides for s in each):
            return None
        transposed = n > 1 and strides[2][-1] != 1
        if transposed:  # a column-major result: the transposed product is row-major
            arrays, m, n = (b, a, *arrays[2:]), n, m
            strides = [(*s[:-2], s[-1], s[-2]) for s in (strides[1], strides[0], *strides[2:])]
        axes = Axes.collapse(batch, *(s[:-2] for s in strides))
        extents, steps = list(axes.extents), [list(s) for s in axes.strides]
        rows = [[s[-2], s[-1]] for s in strides]
        tall = [i for i in range(len(arrays)) if i != 1]  # those that have M rows
        # Batches that share b and follow each other as rows do are more rows of one product.
        while extents and not steps[1][-1] and (
                m == 1 or all(steps[i][-1] == m * rows[i][0] for i in tall)):
            for i in tall:
                rows[i][0] = steps[i][-1] if m == 1 else rows[i][0]
            m *= extents.pop()
            for step in steps:
                step.pop()
        left, right, *targets = (_operand(s, e) for s, e in zip(rows, ((m, k), (k, n), *[(m, n)] * len(arrays[2:]))))
        if left is None or right is None or max(m, n, k) >= 2**31:
            return None
        leading = [x.leading for x in targets if x is not None and not x.transposed]
        if len(leading) < len(targets):
            return None
        return Batches(Gemm(m, n, k, left, right, leading[0], tuple(leading[1:])), arrays, extents, steps, transposed)


def _operand(strides: Sequence[int], shape: tuple[int, int]) -> Operand | None:
    """How a matrix lies; None if cuBLAS cannot walk it. The stride of an axis of extent 1 is free."""
    (by_row, by_column), (rows, columns) = strides, shape
    if (by_column == 1 or columns == 1) and (by_row >= columns or rows == 1):
        return Operand(False, max(by_row, columns)) if max(by_row, columns) < 2**31 else None
    if (by_row == 1 or rows == 1) and (by_column >= rows or columns == 1):
        return Operand(True, max(by_column, rows)) if max(by_column, rows) < 2**31 else None
    return None
