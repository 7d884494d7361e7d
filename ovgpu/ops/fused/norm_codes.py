"""Internal op of a norm and the codes of its result in one kernel, for a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from ovgpu.ops.base.op import Array, Arrays, Workspace, evaluate, internal_op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.fused._codes import OpWithCodes
from ovgpu.ops.fused._elementwise import Layer
from ovgpu.ops.fused.add_norm import AddNorm, normalize_sum
from ovgpu.ops.normalization.normalization import ScaledMVN
from ovgpu.spec import Spec
from ovgpu.types import Type


@internal_op
class NormWithCodes(OpWithCodes):
    """A norm, and the codes of its result: ``inputs of the norm...[, factor [n]] -> [norm [...],] [sum [...],] codes
    [...]``.

    ``keep``: True if the norm itself has users, and is an output. The sum is the second result of an `AddNorm`.
    """

    norm: ScaledMVN | AddNorm
    keep: bool

    name: ClassVar[str] = "NormWithCodes"

    @property
    def layers(self) -> tuple[Layer, ...]:
        before = self.norm.layers if isinstance(self.norm, AddNorm) else (self.layer,)
        return (*before, *self.codes.layers)

    def attributes(self) -> dict[str, Any]:
        return self.norm.attributes() | {"layers": tuple(layer.name for layer in self.layers)}

    def infer_specs(self, *inputs: Any) -> tuple[Spec, ...]:
        own, factors = self.split(inputs)
        norm, *sums = self.layer.infer_specs(self.norm, *own)
        return (*(norm,) * self.keep, *sums, *self.codes.infer_specs(norm, *factors))

    def evaluate(self, xp: Adapter, *inputs: Array) -> tuple[Array, ...]:
        own, factors = self.split(inputs)
        dtype = Type.of(inputs[-1 - len(factors)].dtype if isinstance(self.norm, AddNorm) else own[0].dtype)
        norm, *sums = evaluate(self.norm, xp, own, (dtype,) * (1 + self._has_sum))
        return (*(norm,) * self.keep, *sums, *self.codes.evaluate(xp, norm, *factors))

    @property
    def _has_sum(self) -> bool:
        return isinstance(self.norm, AddNorm) and self.norm.keep

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        """Return the norm, unless it is an output."""
        own, _ = self.split(inputs)
        term = own[2] if isinstance(self.norm, AddNorm) else own[0]
        assert term is not None
        return () if self.keep else ((term.type, outputs[-1].shape or ()),)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        own, factors = self.split(inputs)
        *arrays, codes = outputs
        out = arrays.pop(0) if self.keep else None
        if isinstance(self.norm, AddNorm):
            norm, (scale, shift, *terms) = self.norm.norm, own
            terms = self.norm.order(terms)
        else:
            norm, (x, scale, shift) = self.norm, own
            terms = [x]
        total = arrays[0] if arrays else None
        if normalize_sum(k, norm, (scale, shift), terms, out, total, self.written(codes, factors)):
            return None
        out = workspace[0] if out is None else out
        if self.norm.cuda(k, own, (out, *arrays), ()) is NotImplemented:
            return NotImplemented
        return self.codes.cuda(k, (out, *factors), (codes,), ())
