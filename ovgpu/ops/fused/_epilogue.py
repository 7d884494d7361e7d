"""Ops along with the elementwise layers after them; what passes make of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from ovgpu.errors import OpError
from ovgpu.ops.base.op import Array, Op, evaluate, internal_op
from ovgpu.ops.fused._elementwise import Fused, Layer
from ovgpu.symbolic import Spec, active
from ovgpu.types import Type


@internal_op
class OpWithEpilogue(Op):
    """An op of the first inputs, and what ``fused`` makes of its result and of the others, which has the same type and
    shape. ``layer`` is where the op comes from."""

    layer: Layer
    fused: Fused

    version: ClassVar[str] = "ovgpu"
    aliases: ClassVar[tuple[str, ...]] = ()
    layout: ClassVar[Literal["strided", "blas", "dense"]] = "blas"
    strided_outputs = True
    exact = True  # its parts decode and encode

    @property
    def first(self) -> Op:
        """The op."""
        raise NotImplementedError

    @property
    def layers(self) -> tuple[Layer, ...]:
        return (self.layer, *self.fused.layers)

    def attributes(self) -> dict[str, Any]:
        return self.first.attributes() | {"layers": tuple(layer.name for layer in self.layers)}

    def split(self, inputs: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """The op's inputs, and those of the layers."""
        count = len(inputs) + 1 - self.fused.chain.inputs
        return inputs[:count], inputs[count:]

    def infer(self, *inputs: Any) -> tuple[Spec, ...]:
        given, others = self.split(inputs)
        table = active()
        outside, table.layer = table.layer, self.layer
        try:
            found = self.first.infer(*given)
        except OpError as e:
            raise e.at(self.first.name, self.layer.source_location) from None
        finally:
            table.layer = outside
        return self.fused.infer(*found, *others)

    def evaluate(self, xp: Any, *inputs: Any) -> tuple[Array, ...]:
        given, others = self.split(inputs)
        return self.fused.evaluate(xp, *evaluate(self.first, xp, given, [Type.of(inputs[0].dtype)]), *others)
