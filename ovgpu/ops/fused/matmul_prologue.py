"""Internal op of a product of few rows, whose kernel may also compute the left operand, for a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from ovgpu.ops.base.op import Array, Arrays, Op, Workspace, evaluate, internal_op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.fused._elementwise import Fused, Layer
from ovgpu.ops.fused._packed import Packed
from ovgpu.ops.fused._product_mma import MAX_ARRAYS, Input, Norm, launch
from ovgpu.ops.fused.add_norm import AddNorm
from ovgpu.ops.fused.compressed import CompressedMatMul
from ovgpu.ops.matrix.matmul import MatMul
from ovgpu.ops.normalization.normalization import ScaledMVN
from ovgpu.spec import Spec
from ovgpu.types import Type


@internal_op
class MatMulWithPrologue(Op):
    """A product with a prologue: ``weights..., inputs of the prologue... -> result [..., M, N][, sum [..., M, K]]``.

    The ``prologue``, a norm or elementwise layers, computes the left operand [..., M, K]; without a prologue, the last
    input is the left operand. The sum is the second result of an AddNorm. The first ``weights`` inputs are the other
    inputs of ``product``. A ``gate`` computes the result from both halves of the product's columns, which are 2 N.
    For few rows, one kernel computes everything, and each of its blocks computes the left operand for itself.
    Otherwise prologue, product and gate run one after the other.
    ``dtype`` is the element type of operand and product; ``before`` and ``layer`` are the origins of prologue and
    product.
    """

    prologue: AddNorm | ScaledMVN | Fused | None
    product: MatMul | CompressedMatMul
    gate: Fused | None
    weights: int
    dtype: Type
    before: tuple[Layer, ...]
    layer: Layer

    name: ClassVar[str] = "MatMulWithPrologue"
    layout: ClassVar[Literal["strided", "blas", "dense"]] = "strided"
    half_precision = "always"
    exact = True  # because its parts decode and encode

    @property
    def layers(self) -> tuple[Layer, ...]:
        return (*self.before, self.layer, *(self.gate.layers if self.gate else ()))

    def attributes(self) -> dict[str, Any]:
        return self.product.attributes() | {"layers": tuple(layer.name for layer in self.layers)}

    def infer_specs(self, *inputs: Any) -> tuple[Spec, ...]:
        given = inputs[self.weights :]
        x, *sums = given if self.prologue is None else self.prologue.infer_specs(*given)
        (product,) = self.layer.infer_specs(self.product, x, *inputs[: self.weights])
        if self.gate is not None and product.shape is not None:
            half = Spec(product.type, (*product.shape[:-1], product.shape[-1] // 2))
            (product,) = self.gate.infer_specs(half, half)
        return product, *sums

    def evaluate(self, xp: Adapter, *inputs: Array) -> tuple[Array, ...]:
        weights, given = inputs[: self.weights], inputs[self.weights :]
        x, *sums = given
        if self.prologue is not None:
            x, *sums = evaluate(self.prologue, xp, given, (self.dtype,) * (1 + self._has_sum))
        (product,) = evaluate(self.product, xp, (x, *weights), (self.dtype,))
        if self.gate is not None:
            (product,) = evaluate(self.gate, xp, _halves(product), (self.dtype,))
        return product, *sums

    @property
    def _has_sum(self) -> bool:
        return isinstance(self.prologue, AddNorm) and self.prologue.keep

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        """Return the workspace: the left operand if there is a prologue, the product if there is a gate, and the
        product's own workspace."""
        matrix, out = inputs[0], outputs[0]
        assert matrix is not None and matrix.shape is not None and out.shape is not None
        depth = self.product.weights.columns if isinstance(self.product, CompressedMatMul) else matrix.shape[1]
        x, product = Spec(self.dtype, (*out.shape[:-1], depth)), out
        if self.gate is not None:
            product = Spec(self.dtype, (*out.shape[:-1], 2 * out.shape[-1]))
        before = [spec for spec, used in ((x, self.prologue), (product, self.gate)) if used is not None]
        return (
            *((spec.type, spec.shape or ()) for spec in before),
            *self.product.workspace((x, *inputs[: self.weights]), (product,)),
        )

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        weights, given = inputs[: self.weights], inputs[self.weights :]
        out, *sums = outputs
        x, gate = self._input(given, sums), self.gate
        if (
            out.size
            and x is not None
            and launch(k, self._packed(weights[0]), x, out, self._stored(weights), None if gate is None else gate.chain)
        ):
            return None
        scratch, operand, product = list(workspace), *given[:1], out
        if self.prologue is not None:
            operand = scratch.pop(0)
            if self.prologue.cuda(k, given, (operand, *sums), ()) is NotImplemented:
                return NotImplemented
        if gate is not None:
            product = scratch.pop(0)
        if self.product.cuda(k, (operand, *weights), (product,), scratch) is NotImplemented:
            return NotImplemented
        return None if gate is None else gate.cuda(k, _halves(product), (out,), ())

    def _input(self, given: Arrays, sums: Arrays) -> Input | None:
        """Return the left operand as an `Input` of the kernel, None if the kernel does not support it."""
        op = self.prologue
        if op is None:
            return Input(given)
        if isinstance(op, Fused):
            return Input(given, op.chain) if len(given) <= MAX_ARRAYS else None
        if isinstance(op, AddNorm):
            (scale, shift, *arrays), norm, chain = given, op.norm, op.added.chain
        else:
            (x, scale, shift), norm, chain = given, op, None
            arrays = [x]
        kind = norm.kind if norm.normalize_variance else "CENTRE"
        if norm.rank != 1 or kind == "CENTRE":
            return None
        return Input(arrays, chain, Norm(kind, scale, shift, norm.eps, norm.inside), *sums)

    def _packed(self, weights: Array) -> Packed:
        if isinstance(self.product, CompressedMatMul):
            return self.product.weights
        return Packed(Type.of(weights.dtype), *weights.shape)

    def _stored(self, weights: Arrays) -> Arrays:
        """Return codes, scale and zero point of the weights."""
        return (*weights, None, None)[:3]


def _halves(product: Array) -> tuple[Array, Array]:
    """Return both halves of the columns, as views."""
    half = product.shape[-1] // 2
    return product[..., :half], product[..., half:]
