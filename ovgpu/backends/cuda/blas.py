"""Matrix products through cuBLAS: one handle and workspace per request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property, partial
from itertools import product
from typing import Any

from ovgpu.backends.cuda import rt
from ovgpu.backends.cuda.blaslt import Lt
from ovgpu.backends.cuda.gemm import TYPES, Batches, Gemm, sums_of
from ovgpu.backends.cuda.handles import lent
from ovgpu.ops.base.op import Array

WORKSPACE = 32 << 20  # bytes; what NVIDIA recommends for Hopper


class Blas:
    """A cuBLAS handle on a stream. Sums are in f32, in f64 for f64; f32 is not rounded to TF32."""

    def __init__(self, stream: Any) -> None:
        self.cublas = rt.cublas()
        self.stream = stream

    @cached_property
    def handle(self) -> Any:
        """Made when a product is recorded: not every model has one."""
        handle = lent(self, self.cublas, self.cublas.create)
        self.workspace = rt.cupy().cuda.alloc(WORKSPACE)
        self.cublas.set_stream(handle, self.stream.ptr)
        self.cublas.set_workspace(handle, self.workspace.ptr, WORKSPACE)  # setting the stream resets it
        modes = self.cublas.Math
        self.cublas.set_math_mode(handle, int(modes.DEFAULT_MATH) | int(modes.DISALLOW_REDUCED_PRECISION_REDUCTION))
        return handle

    @cached_property
    def lt(self) -> Lt:
        """Products with what follows them; with the same handle and workspace."""
        handle = self.handle
        return Lt(handle, self.stream, self.workspace, WORKSPACE)

    def matmul(self, a: Array, b: Array, out: Array) -> list[Callable[[], None]] | None:
        """The calls of a product as `Batches.of` describes it; None for what cuBLAS does not take."""
        if not out.size:
            return []
        batches = Batches.of(a, b, out)
        return None if batches is None else self._calls(batches.gemm, batches.arrays, batches.extents, batches.steps)

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
        sums, operation = sums_of(arrays[0].dtype), self.cublas.Operation
        one, zero = sums.one.ctypes.data, sums.zero.ctypes.data
        settings = (getattr(self.cublas.ComputeType, sums.compute), self.cublas.GemmAlgo.DEFAULT)
        kind, of_out = (getattr(rt.cupy().cuda.runtime, TYPES[x.dtype.name]) for x in (arrays[0], arrays[2]))
        ta, tb = (operation.T if x.transposed else operation.N for x in (gemm.a, gemm.b))
        shape = (handle, tb, ta, gemm.n, gemm.m, gemm.k)
        right, left, result = (b, kind, gemm.b.leading), (a, kind, gemm.a.leading), (out, of_out, gemm.leading)
        if count == 1:
            self.cublas.gemm_ex(*shape, one, *right, *left, zero, *result, *settings)
        else:
            self.cublas.gemm_strided_batched_ex(*shape, one, *right, batch[1], *left, batch[0], zero, *result, batch[2],
                                                count, *settings)
