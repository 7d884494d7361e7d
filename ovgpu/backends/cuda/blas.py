"""Matrix products through cuBLAS: one handle and workspace per request."""

from __future__ import annotations

from typing import Any

import numpy as np

from ovgpu.backends.cuda import rt
from ovgpu.ops._op import Array

COMPUTE_32F, DEFAULT_ALGORITHM = 68, -1
WORKSPACE = 32 << 20  # bytes; what NVIDIA recommends for Hopper


class Blas:
    """A cuBLAS handle on a stream. Setting the stream resets the workspace, so the workspace comes second."""

    def __init__(self, stream: Any) -> None:
        self.cublas = rt.cublas()
        self.handle = self.cublas.create()
        self.workspace = rt.cupy().cuda.alloc(WORKSPACE)
        self.cublas.set_stream(self.handle, stream.ptr)
        self.cublas.set_workspace(self.handle, self.workspace.ptr, WORKSPACE)
        self.one, self.zero = np.array(1, np.float32), np.array(0, np.float32)

    def gemm(self, a: Array, b: Array, out: Array) -> None:
        """``out [M, N] = a [M, K] @ b [K, N]``, f32; computed as ``out^T = b^T @ a^T`` in column-major terms."""
        (m, k), n = a.shape, b.shape[1]
        ta, lda = _operand(a)
        tb, ldb = _operand(b)
        data = self.cublas_type(out)
        ldc = max(out.strides[0] // out.itemsize, n)
        self.cublas.gemm_ex(self.handle, tb, ta, n, m, k, self.one.ctypes.data, b.data.ptr, data, ldb, a.data.ptr,
                            data, lda, self.zero.ctypes.data, out.data.ptr, data, ldc, COMPUTE_32F, DEFAULT_ALGORITHM)

    @staticmethod
    def cublas_type(x: Array) -> int:
        return {"float32": 0, "float16": 2, "bfloat16": 14}[x.dtype.name]


def _operand(x: Array) -> tuple[int, int]:
    """(operation, leading dimension) of a row-major matrix (0) or of the transpose of one (1)."""
    rows, columns = (s // x.itemsize for s in x.strides)
    if columns == 1 or x.shape[1] == 1:
        return 0, max(rows, x.shape[1])
    return 1, max(columns, x.shape[0])
