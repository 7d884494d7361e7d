"""MatMul: matrices, vectors, and batches of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops._elementwise import merge_types
from ovgpu.ops._op import Op, op
from ovgpu.symbolic import Shape, Spec, broadcast_shapes, same


@op("MatMul", "opset1")
class MatMul(Op):
    """``a [..., M, K], b [..., K, N] -> [..., M, N]``; batch axes broadcast.

    A vector is a row on the left and a column on the right, its axis leaves the result; the attributes swap
    the last two axes of what has two. 8-bit integers saturate, wider ones wrap.
    """

    transpose_a: bool = False
    transpose_b: bool = False

    layout = "blas"
    strided_outputs = True

    def infer(self, a: Spec, b: Spec) -> tuple[Spec, ...]:
        return (Spec(merge_types((a, b)), self.shape(a.shape, b.shape)),)

    def shape(self, a: Shape, b: Shape) -> Shape:
        for shape in (a, b):
            if shape == ():
                raise OpError("a scalar is no matrix")
        if a is None or b is None:
            return None
        left = (1, a[0]) if len(a) == 1 else (*a[:-2], a[-1], a[-2]) if self.transpose_a else a
        right = (b[0], 1) if len(b) == 1 else (*b[:-2], b[-1], b[-2]) if self.transpose_b else b
        same(left[-1], right[-2], "matrices of {0} columns and {1} rows do not multiply")
        batch = broadcast_shapes(left[:-2], right[:-2], message="batch dimensions do not broadcast")
        return (*batch, *left[-2 : -1 if len(a) > 1 else -2], *right[-1 : None if len(b) > 1 else -1])

    def operands(self, a: Any, b: Any) -> tuple[Any, Any]:
        """The inputs as NumPy's matmul takes them; views."""
        if self.transpose_a and a.ndim > 1:
            a = a.swapaxes(-1, -2)
        if self.transpose_b and b.ndim > 1:
            b = b.swapaxes(-1, -2)
        return a, b

    def evaluate(self, xp: Any, a: Any, b: Any) -> tuple[Any, ...]:
        kind = a.dtype
        a, b = self.operands(a, b)
        if kind.kind in "iu" and kind.itemsize == 1:  # exact in f64, and saturated as OpenVINO does
            limits = np.iinfo(kind)
            product = xp.matmul(a.astype(np.float64), b.astype(np.float64))
            return (xp.asarray(xp.clip(product, limits.min, limits.max)).astype(kind),)
        return (xp.asarray(xp.matmul(a, b)),)

    def numpy(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> Any:
        a, b = self.operands(*inputs)
        out = outputs[0]
        if out.dtype.itemsize < 4:
            return NotImplemented
        if a.ndim > 2 and b.ndim == 2 and a.flags.c_contiguous and out.flags.c_contiguous:
            # one product instead of one per batch
            a, out = a.reshape(-1, a.shape[-1]), out.reshape(-1, b.shape[-1])
        k(np.matmul, a, b, out)
        return None

    def cuda(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> Any:
        a, b = self.operands(*inputs)
        if a.ndim != 2 or b.ndim != 2 or a.dtype.name not in ("float32", "float16", "bfloat16"):
            return NotImplemented
        k.gemm(a, b, outputs[0])
        return None
