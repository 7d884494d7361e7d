"""Internal op of attention and the codes of its result in one kernel, for a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ovgpu.ops.attention._attention import attend
from ovgpu.ops.attention.attention import ScaledDotProductAttention
from ovgpu.ops.base.op import Array, Arrays, Workspace, evaluate, internal_op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.storage import is_plain
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.fused._codes import OpWithCodes
from ovgpu.spec import Spec
from ovgpu.types import Type


@internal_op
class AttentionWithCodes(OpWithCodes):
    """Attention, and the codes of its result: ``q, k, v[, mask, scale, sink][, factor] -> codes [..., L, Ev]``.

    The factor is constant along the rows of a head, [..., 1, Ev].
    """

    attention: ScaledDotProductAttention

    name: ClassVar[str] = "AttentionWithCodes"

    layout = "blas"
    strided_outputs = True

    def attributes(self) -> dict[str, Any]:
        return self.attention.attributes() | {"layers": tuple(layer.name for layer in self.layers)}

    def infer_specs(self, *inputs: Any) -> tuple[Spec, ...]:
        own, factors = self.split(inputs)
        return self.codes.infer_specs(*self.layer.infer_specs(self.attention, *own), *factors)

    def evaluate(self, xp: Adapter, *inputs: Array) -> tuple[Array, ...]:
        own, factors = self.split(inputs)
        return self.codes.evaluate(xp, *evaluate(self.attention, xp, own, (Type.of(own[0].dtype),)), *factors)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        """Return the attention's result, for kernels that write no codes."""
        q = inputs[0]
        assert q is not None
        return ((q.type, outputs[0].shape or ()),)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        own, factors = self.split(inputs)
        q, key, v, mask, scale, sink = (*own, None, None, None)[:6]
        operands: Sequence[Any] = (q, key, v, self.attention.mask(mask), scale, sink)
        (out,) = outputs
        if (
            is_plain(q.dtype)
            and attend(k, operands, out, self.attention.causal, codes=self.written(out, factors)) is not NotImplemented
        ):
            return None
        if self.attention.cuda(k, own, workspace, ()) is NotImplemented:
            return NotImplemented
        return self.codes.cuda(k, (*workspace, *factors), outputs, ())
