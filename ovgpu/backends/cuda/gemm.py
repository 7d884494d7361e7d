"""Matrix products as cuBLAS describes them: extents, layouts of matrices, and batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.ops.base.strided import Axes, strides_of

CUDA_TYPES = {"float32": "CUDA_R_32F", "float16": "CUDA_R_16F", "bfloat16": "CUDA_R_16BF", "float64": "CUDA_R_64F"}


@dataclass(frozen=True, eq=False)
class ComputeType:
    """Compute type and scale type of a product, by cuBLAS's names, and the scalars 1 and 0 on the host."""

    compute: str
    scale_type: str
    one: np.ndarray[Any, Any]
    zero: np.ndarray[Any, Any]


_F32 = ComputeType("COMPUTE_32F", "CUDA_R_32F", np.array(1, np.float32), np.array(0, np.float32))
_TF32 = ComputeType("COMPUTE_32F_FAST_TF32", "CUDA_R_32F", _F32.one, _F32.zero)
_F64 = ComputeType("COMPUTE_64F", "CUDA_R_64F", np.array(1, np.float64), np.array(0, np.float64))


def compute_type_of(dtype: np.dtype[Any], tf32: bool = False) -> ComputeType:
    """Return the compute type for matrices of a dtype: f64 for f64, else f32. ``tf32``: f32 may be rounded to TF32."""
    if dtype == np.float64:
        return _F64
    return _TF32 if tf32 and dtype == np.float32 else _F32


@dataclass(frozen=True, slots=True)
class Operand:
    """Layout of a matrix: row-major, or column-major if ``transposed``, and its leading dimension in elements."""

    transposed: bool
    leading: int


@dataclass(frozen=True, slots=True)
class Gemm:
    """Product ``[M, K] @ [K, N]`` into a row-major [M, N] with the leading dimension ``leading``. ``addends`` are the
    leading dimensions of the matrices [M, N] that are added to it."""

    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    leading: int
    addends: tuple[int, ...] = ()


@dataclass(frozen=True)
class Batches:
    """Batched product: ``gemm`` for every index of batch axes.

    ``extents`` are the extents of the batch axes; ``batch_strides`` are the strides along them of each array (a, b,
    out, addends), in elements. If ``transposed``, a and b are swapped, and the product is the transposed result.
    """

    gemm: Gemm
    arrays: tuple[Array, ...]
    extents: list[int]
    batch_strides: list[list[int]]
    transposed: bool

    @staticmethod
    def of(a: Array, b: Array, out: Array, *addends: Array) -> Batches | None:
        """Describe ``out [..., M, N] = a [..., M, K] @ b [..., K, N]``, plus ``addends`` of the shape of out.

        Batch axes broadcast to the batch axes of ``out``, which is not empty. a and b have one real dtype; out has the
        same or the compute type. Return None if cuBLAS does not support the product: other dtypes, negative strides, no
        unit stride, K = 0.
        """
        if a.dtype.name not in CUDA_TYPES or a.dtype != b.dtype or not a.shape[-1]:
            return None
        if out.dtype not in (a.dtype, compute_type_of(a.dtype).one.dtype):
            return None
        batch = out.shape[:-2]
        arrays = (a, b, out, *addends)
        m, n, k = out.shape[-2], out.shape[-1], a.shape[-1]
        strides = [strides_of(x, (*batch, *x.shape[-2:])) for x in arrays]
        if any(s < 0 for each in strides for s in each):
            return None
        transposed = n > 1 and strides[2][-1] != 1
        if transposed:  # a column-major result: the transposed product is row-major
            arrays, m, n = (b, a, *arrays[2:]), n, m
            strides = [(*s[:-2], s[-1], s[-2]) for s in (strides[1], strides[0], *strides[2:])]
        axes = Axes.collapse(batch, *(s[:-2] for s in strides))
        extents, batch_strides = list(axes.extents), [list(s) for s in axes.strides]
        rows = [[s[-2], s[-1]] for s in strides]
        with_m_rows = [i for i in range(len(arrays)) if i != 1]  # indices of the arrays with M rows
        # Batches that share b become rows of a single product if their rows continue those of the batch before.
        while (
            extents
            and not batch_strides[1][-1]
            and (m == 1 or all(batch_strides[i][-1] == m * rows[i][0] for i in with_m_rows))
        ):
            for i in with_m_rows:
                rows[i][0] = batch_strides[i][-1] if m == 1 else rows[i][0]
            m *= extents.pop()
            for step in batch_strides:
                step.pop()
        left, right, *targets = (_operand(s, e) for s, e in zip(rows, ((m, k), (k, n), *[(m, n)] * len(arrays[2:]))))
        if left is None or right is None or max(m, n, k) >= 2**31:
            return None
        leading = [x.leading for x in targets if x is not None and not x.transposed]
        if len(leading) < len(targets):
            return None
        return Batches(
            Gemm(m, n, k, left, right, leading[0], tuple(leading[1:])), arrays, extents, batch_strides, transposed
        )


def _operand(strides: Sequence[int], shape: tuple[int, int]) -> Operand | None:
    """Return the layout of a matrix, None if cuBLAS does not support it. An axis of extent 1 may have any stride."""
    (by_row, by_column), (rows, columns) = strides, shape
    if (by_column == 1 or columns == 1) and (by_row >= columns or rows == 1):
        return Operand(False, max(by_row, columns)) if max(by_row, columns) < 2**31 else None
    if (by_row == 1 or rows == 1) and (by_column >= rows or columns == 1):
        return Operand(True, max(by_column, rows)) if max(by_column, rows) < 2**31 else None
    return None
