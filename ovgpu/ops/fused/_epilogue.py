"""Base of internal ops that compute an op together with its epilogue: the elementwise layers after it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from ovgpu.ops.base.op import Array, Op, evaluate, internal_op
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.fused._elementwise import Fused, Layer
from ovgpu.spec import Spec
from ovgpu.types import Type


@internal_op
class OpWithEpilogue(Op):
    """An op with an epilogue. The op takes the first inputs; ``fused`` takes its result and the other inputs, and gives
    a result of the same shape. ``layer`` is the op's origin."""

    layer: Layer
    fused: Fused

    layout: ClassVar[Literal["strided", "blas", "dense", "image", "channels_last"]] = "blas"
    strided_outputs = True
    exact = True  # because its parts decode and encode

    @property
    def first(self) -> Op:
        """The op before the epilogue."""
        raise NotImplementedError

    @property
    def layers(self) -> tuple[Layer, ...]:
        return (self.layer, *self.fused.layers)

    def first_type(self, inputs: Sequence[Array]) -> Type:
        """Return the type of the op's result."""
        return Type.of(inputs[0].dtype)

    def attributes(self) -> dict[str, Any]:
        return self.first.attributes() | {"layers": tuple(layer.name for layer in self.layers)}

    def split(self, inputs: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the op's inputs and the epilogue's other inputs."""
        count = len(inputs) + 1 - self.fused.chain.inputs
        return inputs[:count], inputs[count:]

    def infer_specs(self, *inputs: Any) -> tuple[Spec, ...]:
        own, others = self.split(inputs)
        return self.fused.infer_specs(*self.layer.infer_specs(self.first, *own), *others)

    def evaluate(self, xp: Adapter, *inputs: Array) -> tuple[Array, ...]:
        own, others = self.split(inputs)
        return self.fused.evaluate(xp, *evaluate(self.first, xp, own, [self.first_type(inputs)]), *others)
