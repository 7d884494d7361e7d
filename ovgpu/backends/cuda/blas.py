"""Matrix products through cuBLAS: one handle and workspace per request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import product
from typing import Any
from weakref import finalize

import numpy as np

from ovgpu.backends.cuda import rt
from ovgpu.ops._op import Array
from ovgpu.ops._strided import Axes, strides_of

WORKSPACE = 32 << 20  # bytes; what NVIDIA recommends for Hopper
_TYPES = {"float32": "CUDA_R_32F", "float16": "CUDA_R_16F", "bfloat16": "CUDA_R_16BF", "float64": "CUDA_R_64F"}

# Handles of requests that are gone, by device: destroying one would wait for the device, and spoil a capture.
_idle: dict[tuple[int, int], list[Any]] = {}


class Blas:
    """A cuBLAS handle on a stream. Sums are in f32, in f64 for f64; f32 is not rounded to TF32."""

    def __init__(self, stream: Any) -> None:
        self.cublas = rt.cublas()
        self.stream = stream
        kinds = map(np.dtype, (np.float32, np.float64))
        self.scalars = {kind: (np.array(1, kind), np.array(0, kind)) for kind in kinds}

    @cached_property
    def handle(self) -> Any:
        """Made when a product is recorded: not every model has one."""
        idle = _idle.setdefault((id(self.cublas), rt.cupy().cuda.Device().id), [])
        try:
            handle = idle.pop()
        except IndexError:
            handle = self.cublas.create()
        finalize(self, idle.append, handle).atexit = False
        self.workspace = rt.cupy().cuda.alloc(WORKSPACE)
        self.cublas.set_stream(handle, self.stream.ptr)
        self.cublas.set_workspace(handle, self.workspace.ptr, WORKSPACE)  # setting the stream resets it
        modes = self.cublas.Math
        self.cublas.set_math_mode(handle, int(modes.DEFAULT_MATH) | int(modes.DISALLOW_REDUCED_PRECISION_REDUCTION))
        return handle

    def matmul(self, a: Array, b: Array, out: Array) -> list[Callable[[], None]] | None:
        """The calls of ``out [..., M, N] = a [..., M, K] @ b [..., K, N]``, whose batch axes broadcast to those of
        ``out``; a and b of one real type, and out of theirs or of that of the sums. None for what cuBLAS does not take:
        other types, strides that are neither positive nor zero, matrices without a unit stride, K = 0.
        """
        if a.dtype.name not in _TYPES or a.dtype != b.dtype or not a.shape[-1]:
            return None
        if out.dtype not in (a.dtype, _sums(a.dtype)):
            return None
        if not out.size:
            return []
        batch = out.shape[:-2]
        shape = (out.shape[-2], out.shape[-1], a.shape[-1])
        strides = [strides_of(x, (*batch, *x.shape[-2:])) for x in (a, b, out)]
        if any(s < 0 for each in strides for s in each):
            return None
        m, n, k = shape
        if n > 1 and strides[2][-1] != 1:  # a column-major result: the transposed product is row-major
            a, b, m, n = b, a, n, m
            strides = [(*s[:-2], s[-1], s[-2]) for s in (strides[1], strides[0], strides[2])]
        axes = Axes.collapse(batch, *(s[:-2] for s in strides))
        extents, steps = list(axes.extents), [list(s) for s in axes.strides]
        rows = [[s[-2], s[-1]] for s in strides]
        # Batches that share b and follow each other as rows do are more rows of one product.
        while extents and not steps[1][-1] and (
                m == 1 or all(steps[i][-1] == m * rows[i][0] for i in (0, 2))):
            for i in (0, 2):
                rows[i][0] = steps[i][-1] if m == 1 else rows[i][0]
            m *= extents.pop()
            for step in steps:
                step.pop()
        left, right, target = (_operand(s, e) for s, e in zip(rows, ((m, k), (k, n), (m, n))))
        if left is None or right is None or target is None or target.transposed or max(m, n, k) >= 2**31:
            return None
        return self._calls(Gemm(m, n, k, left, right, target.leading), (a, b, out), extents, steps)

    def _calls(self, gemm: Gemm, arrays: Sequence[Array], extents: list[int],
               steps: list[list[int]]) -> list[Callable[[], None]]:
        """One call for the longest batch axis and every index of the others."""
        chosen = max(range(len(extents)), key=lambda i: extents[i], default=None)
        count, batch = 1, [0, 0, 0]
        if chosen is not None:
            count, batch = extents.pop(chosen), [step.pop(chosen) for step in steps]
        calls: list[Callable[[], None]] = []
        for index in product(*map(range, extents)):
            offsets = [sum(i * s for i, s in zip(index, step)) for step in steps]
            calls.append(partial(self._launch, self.handle, gemm, arrays, offsets, count, batch))
        return calls

    def _launch(self, handle: Any, gemm: Gemm, arrays: Sequence[Array], offsets: Sequence[int], count: int,
                batch: Sequence[int]) -> None:
        """Column-major cuBLAS sees every matrix transposed, hence ``out^T = b^T @ a^T``."""
        a, b, out = (x.data.ptr + offset * x.itemsize for x, offset in zip(arrays, offsets))
        sums = _sums(arrays[0].dtype)
        one, zero = (x.ctypes.data for x in self.scalars[sums])
        kinds, operation = self.cublas.ComputeType, self.cublas.Operation
        compute = kinds.COMPUTE_64F if sums == np.float64 else kinds.COMPUTE_32F
        settings = (compute, self.cublas.GemmAlgo.DEFAULT)
        kind, of_out = (getattr(rt.cupy().cuda.runtime, _TYPES[x.dtype.name]) for x in (arrays[0], arrays[2]))
        ta, tb = (operation.T if x.transposed else operation.N for x in (gemm.a, gemm.b))
        shape = (handle, tb, ta, gemm.n, gemm.m, gemm.k)
        right, left, result = (b, kind, gemm.b.leading), (a, kind, gemm.a.leading), (out, of_out, gemm.leading)
        if count == 1:
            self.cublas.gemm_ex(*shape, one, *right, *left, zero, *result, *settings)
        else:
            self.cublas.gemm_strided_batched_ex(*shape, one, *right, batch[1], *left, batch[0], zero, *result, batch[2],
                                                count, *settings)


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix with a unit stride: in its rows, or transposed in its columns; and its other stride."""

    transposed: bool
    leading: int


@dataclass(frozen=True, slots=True)
class Gemm:
    """``[M, K] @ [K, N]`` into row-major [M, N] whose rows are ``leading`` apart."""

    m: int
    n: int
    k: int
    a: Operand
    b: Operand
    leading: int


def _sums(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """The type of the sums in a product of such matrices."""
    return np.dtype(np.float64 if dtype == np.float64 else np.float32)


def _operand(strides: Sequence[int], shape: tuple[int, int]) -> Operand | None:
    """How a matrix lies; None if cuBLAS cannot walk it. The stride of an axis of extent 1 is free."""
    (by_row, by_column), (rows, columns) = strides, shape
    if (by_column == 1 or columns == 1) and (by_row >= columns or rows == 1):
        return Operand(False, max(by_row, columns)) if max(by_row, columns) < 2**31 else None
    if (by_row == 1 or rows == 1) and (by_column >= rows or columns == 1):
        return Operand(True, max(by_column, rows)) if max(by_column, rows) < 2**31 else None
    return None
