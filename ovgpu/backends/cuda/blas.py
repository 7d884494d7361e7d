"""Matrix products through cuBLAS: one handle and workspace per request."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import product
from typing import Any

import numpy as np

from ovgpu.backends.cuda import rt
from ovgpu.backends.cuda.blaslt import Lt
from ovgpu.backends.cuda.gemm import CUDA_TYPES, Batches, ComputeType, Gemm, compute_type_of
from ovgpu.backends.cuda.handles import acquire_handle
from ovgpu.ops.base.op import Array
from ovgpu.runtime.backend import RoundingCall

WORKSPACE_BYTES = {90: 32 << 20, 0: 4 << 20}
"""Bytes of a workspace from each compute capability on, as NVIDIA recommends."""
MIN_WORKSPACE_BYTES = 16 << 10  # with which no product of cuBLAS fails
WORKSPACE_VARIABLE = "CUBLAS_WORKSPACE_CONFIG"
"""Environment variable of cuBLAS, such as ``:4096:2:16:8``: pairs of a size in KiB and a count."""


class Blas:
    """A cuBLAS handle on a stream. Sums are in f32, or in f64 for f64. f32 may be rounded to TF32 only if ``tf32``."""

    def __init__(self, stream: Any, tf32: bool = False) -> None:
        self.cublas = rt.cublas()
        self.stream, self.tf32 = stream, tf32
        self.workspace_bytes = 0

    @cached_property
    def handle(self) -> Any:
        """The cuBLAS handle, created when the first product is recorded: not every model has one."""
        handle = acquire_handle(self, self.cublas, self.cublas.create)
        self.workspace_bytes = _workspace_bytes(int(rt.cupy().cuda.Device().compute_capability))
        self.workspace = rt.cupy().cuda.alloc(self.workspace_bytes)
        self.cublas.set_stream(handle, self.stream.ptr)
        self.cublas.set_workspace(handle, self.workspace.ptr, self.workspace_bytes)  # after the stream, which resets it
        modes = self.cublas.Math
        self.cublas.set_math_mode(handle, int(modes.DEFAULT_MATH) | int(modes.DISALLOW_REDUCED_PRECISION_REDUCTION))
        return handle

    @cached_property
    def lt(self) -> Lt:
        """Products with an epilogue, through cuBLASLt with the same handle and workspace."""
        handle = self.handle
        return Lt(handle, self.stream, self.workspace, self.workspace_bytes)

    def matmul(self, a: Array, b: Array, out: Array, exact: bool = False) -> list[Callable[[], None]] | None:
        """Return the calls of ``out = a @ b``, see `Batches.of`; None if cuBLAS does not support the product.

        ``exact``: f32 is not rounded to TF32.
        """
        if not out.size:
            return []
        batches = Batches.of(a, b, out)
        return (
            None
            if batches is None
            else self._calls(
                batches.gemm, batches.arrays, batches.extents, batches.batch_strides, self.tf32 and not exact
            )
        )

    def _calls(
        self, gemm: Gemm, arrays: Sequence[Array], extents: list[int], batch_strides: list[list[int]], tf32: bool
    ) -> list[Callable[[], None]]:
        """Return one call over the longest batch axis for every index of the other batch axes."""
        sums = compute_type_of(arrays[0].dtype, tf32)
        record = RoundingCall if tf32 and arrays[0].dtype == np.float32 else partial
        longest = max(range(len(extents)), key=lambda i: extents[i], default=None)
        count, batch = 1, [0, 0, 0]
        if longest is not None:
            count, batch = extents.pop(longest), [step.pop(longest) for step in batch_strides]
        calls: list[Callable[[], None]] = []
        for index in product(*map(range, extents)):
            offsets = [sum(i * s for i, s in zip(index, step)) for step in batch_strides]
            calls.append(record(self._launch, self.handle, gemm, arrays, offsets, count, batch, sums))
        return calls

    def _launch(
        self,
        handle: Any,
        gemm: Gemm,
        arrays: Sequence[Array],
        offsets: Sequence[int],
        count: int,
        batch: Sequence[int],
        sums: ComputeType,
    ) -> None:
        """Compute ``out^T = b^T @ a^T``: column-major cuBLAS reads every matrix transposed."""
        a, b, out = (x.data.ptr + offset * x.itemsize for x, offset in zip(arrays, offsets))
        operation = self.cublas.Operation
        one, zero = sums.one.ctypes.data, sums.zero.ctypes.data
        settings = (getattr(self.cublas.ComputeType, sums.compute), self.cublas.GemmAlgo.DEFAULT)
        in_type, out_type = (getattr(rt.cupy().cuda.runtime, CUDA_TYPES[x.dtype.name]) for x in (arrays[0], arrays[2]))
        ta, tb = (operation.T if x.transposed else operation.N for x in (gemm.a, gemm.b))
        shape = (handle, tb, ta, gemm.n, gemm.m, gemm.k)
        right, left, result = (b, in_type, gemm.b.leading), (a, in_type, gemm.a.leading), (out, out_type, gemm.leading)
        if count == 1:
            self.cublas.gemm_ex(*shape, one, *right, *left, zero, *result, *settings)
        else:
            self.cublas.gemm_strided_batched_ex(
                *shape, one, *right, batch[1], *left, batch[0], zero, *result, batch[2], count, *settings
            )


def _workspace_bytes(capability: int) -> int:
    """Return the bytes of a workspace: the sum of all pairs in `WORKSPACE_VARIABLE`, else what NVIDIA recommends."""
    text = os.environ.get(WORKSPACE_VARIABLE, "")
    if re.fullmatch(r"(:\d+:\d+)+", text):
        numbers = [int(number) for number in text.split(":")[1:]]
        return max(sum(size * number for size, number in zip(numbers[::2], numbers[1::2])) << 10, MIN_WORKSPACE_BYTES)
    if text:
        warnings.warn(f"{WORKSPACE_VARIABLE} is like ':4096:2': {text!r} is ignored", RuntimeWarning, 2)
    return next(nbytes for first, nbytes in WORKSPACE_BYTES.items() if capability >= first)
