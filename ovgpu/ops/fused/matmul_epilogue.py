"""Internal op of a matrix product with an epilogue of bias, residual and activation, for a device."""

from __future__ import annotations

from typing import Any, ClassVar, Literal

from ovgpu.ops.base.op import Arrays, internal_op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.fused._epilogue import OpWithEpilogue
from ovgpu.ops.matrix.matmul import MatMul

Activation = Literal["", "relu", "gelu"]  # gelu is the tanh approximation


@internal_op
class MatMulWithEpilogue(OpWithEpilogue):
    """A product with an epilogue: ``activation(a [..., M, K] @ b [K, N] + bias [N] + residual [..., M, N])``.

    ``fused`` computes the same epilogue. ``bias`` and ``residual`` are the indices of these inputs of ``fused``, 0 if
    absent. If cuBLASLt does not compute this in one call, ``fused`` runs in place on the product's result.
    """

    product: MatMul
    bias: int
    residual: int
    activation: Activation

    name: ClassVar[str] = "MatMul"
    half_precision = "always"

    @property
    def first(self) -> MatMul:
        return self.product

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        given, others = self.split(inputs)
        out = outputs[0]
        bias, residual = (others[i - 1] if i else None for i in (self.bias, self.residual))
        if not out.size or k.gemm_with_epilogue(
            *self.product.operands(*given), out, bias, residual, self.activation, self.product.exact_product
        ):
            return None
        if self.product.cuda(k, given, outputs, workspace) is NotImplemented:
            return NotImplemented
        k.elementwise(self.fused.chain, (out, *others), out)
        return None
