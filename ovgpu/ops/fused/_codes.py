"""Base of internal ops whose kernels write codes of their results, for a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ovgpu.ops.base.op import Array, Arrays, Op, internal_op
from ovgpu.ops.base.storage import decode
from ovgpu.ops.fused._elementwise import Fused, Layer
from ovgpu.ops.quantization import Codes, Quantize


@internal_op
class OpWithCodes(Op):
    """An op and the layers after it that end in a `Quantize`: ``inputs of the op...[, factor] -> ... codes``.

    ``codes`` converts the op's result to f32, multiplies it by the factor, and quantises it by constants of one
    element; the first two are optional. ``layer`` is the op's origin.
    """

    codes: Fused
    layer: Layer

    exact = True  # because its parts decode and encode

    @property
    def layers(self) -> tuple[Layer, ...]:
        """The layers that the op computes."""
        return (self.layer, *self.codes.layers)

    def split(self, inputs: Sequence[Any]) -> tuple[Sequence[Any], Sequence[Any]]:
        """Return the op's inputs, and the factor, if there is one."""
        count = len(inputs) + 1 - self.codes.chain.inputs
        return inputs[:count], inputs[count:]

    def written(self, array: Array, factors: Arrays) -> Codes:
        """Return the `Codes` that a kernel is to write into ``array``."""
        chain = self.codes.chain
        *_, last = chain.parts
        assert isinstance(last.op, Quantize)
        constants = [self.codes.literals[i - chain.inputs] for i in last.operands[1:]]
        reciprocal, zero = (*(float(decode(constant).item()) for constant in constants), 0)[:2]
        return Codes(array, factors[0] if factors else None, reciprocal, int(zero), last.op)
