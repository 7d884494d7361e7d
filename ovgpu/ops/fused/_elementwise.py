"""Chains of elementwise ops that run as one op: intermediate values are not written to memory.

The result equals that of the separate ops bit for bit, because every intermediate value is rounded to its own element
type (f16 and bf16 are computed in f32 and rounded between ops, see `storage`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from math import copysign, isfinite, isnan
from typing import Any, ClassVar

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import Elementwise, same_layout
from ovgpu.ops.base.op import Array, Arrays, Op, evaluate, internal_op
from ovgpu.ops.base.recorder import KernelRecorder
from ovgpu.ops.base.xp import Adapter
from ovgpu.spec import Spec
from ovgpu.symbolic import active
from ovgpu.types import Type


@dataclass(frozen=True, slots=True)
class Part:
    """An op of a chain. Its operands are indices into the chain's inputs, literals and parts, counted in this order."""

    op: Elementwise
    operands: tuple[int, ...]

    def type_of(self, operands: Sequence[Type]) -> Type:
        """Return the element type of the result for operands of these types."""
        dtype: Type = self.op.infer_specs(*(Spec(k, ()) for k in operands))[0].type
        return dtype


@dataclass(frozen=True)
class Chain:
    """A sequence of elementwise ops; the last one computes the result. Equal chains share a kernel.

    ``literals`` are constants of one element, each as its element type and bytes.
    """

    inputs: int
    literals: tuple[tuple[Type, bytes], ...]
    parts: tuple[Part, ...]

    @staticmethod
    def of(op: Elementwise, inputs: int) -> Chain:
        return Chain(inputs, (), (Part(op, tuple(range(inputs))),))

    @cached_property
    def _hash(self) -> int:
        return hash((self.inputs, self.literals, self.parts))

    def __hash__(self) -> int:
        return self._hash


@dataclass(frozen=True, slots=True)
class Layer:
    """Origin of an op that was fused into another one: its name and source location, for errors and checks."""

    op: Op
    name: str
    source_location: str

    def infer_specs(self, op: Op, *inputs: Any) -> tuple[Spec, ...]:
        """Infer ``op`` on behalf of this layer: checks and errors name the layer."""
        table = active()
        outside, table.layer = table.layer, self
        try:
            specs: tuple[Spec, ...] = op.infer_specs(*inputs)
            return specs
        except OpError as e:
            raise e.at(op.name, self.source_location) from None
        finally:
            table.layer = outside


@internal_op
class Fused(Op):
    """A chain of elementwise layers as one op. Its inputs broadcast to its output, aligned at the last axis.

    ``layers`` has one entry per part of the chain. ``ranks`` are the literals' ranks, which matter in broadcasting.
    """

    chain: Chain
    ranks: tuple[int, ...]
    layers: tuple[Layer, ...]

    name: ClassVar[str] = "Fused"
    exact = True  # because its parts decode and encode
    strided_outputs = True
    keeps_layout = True

    def attributes(self) -> dict[str, Any]:
        return {"layers": tuple(layer.name for layer in self.layers)}

    @cached_property
    def literals(self) -> tuple[np.ndarray[Any, Any], ...]:
        return tuple(
            np.frombuffer(data, dtype.storage).reshape((1,) * rank)
            for (dtype, data), rank in zip(self.chain.literals, self.ranks)
        )

    def infer_specs(self, *inputs: Any) -> tuple[Spec, ...]:
        """Infer the parts in order, so that errors and checks name the part's own layer."""
        values = [Spec(s.type, s.shape) for s in inputs]
        values += [Spec(Type.of(x.dtype), x.shape, x) for x in self.literals]
        table = active()
        outside = table.layer
        try:
            for part, layer in zip(self.chain.parts, self.layers):
                table.layer = layer
                values += part.op.infer_specs(*(values[i] for i in part.operands))
        except OpError as e:
            raise e.at(layer.op.name, layer.source_location) from None
        finally:
            table.layer = outside
        return (values[-1],)

    def evaluate(self, xp: Adapter, *inputs: Array) -> tuple[Array, ...]:
        values = [*inputs, *map(xp.asarray, self.literals)]
        for part, layer in zip(self.chain.parts, self.layers):
            arguments = [values[i] for i in part.operands]
            dtype = part.type_of([Type.of(x.dtype) for x in arguments])
            try:
                values += evaluate(part.op, xp, arguments, [dtype])
            except OpError as e:
                raise e.at(layer.op.name, layer.source_location) from None
        return (values[-1],)

    def inplace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> tuple[int, ...]:
        """Return the inputs of the output's layout: a thread reads each element before it writes the same position."""
        return tuple(i for i, x in enumerate(inputs) if x is not None and same_layout(x, outputs[0]))

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        k.elementwise(self.chain, inputs, outputs[0])


def f32_literals(chain: Chain) -> list[int]:
    """Return the indices of the literals of a chain that have type f32."""
    return [i for i, (dtype, _) in enumerate(chain.literals) if dtype == Type.f32]


def cuda_literal(data: bytes, dtype: Type) -> str:
    """Return a literal as a C++ expression, a double for any floating-point type. Infinity and NaN become divisions by
    zero, because NVRTC has neither INFINITY nor NAN."""
    value = np.frombuffer(data, dtype.storage)[0]
    if dtype == Type.boolean:
        return "true" if value else "false"
    if dtype.is_real():
        real = float(value)
        return repr(real) if isfinite(real) else f"({0 if isnan(real) else copysign(1, real)} / 0.0)"
    if dtype.is_signed():
        return f"({int(value) + 1}ll - 1)"  # C++ has no literal for -2**63
    return f"{int(value)}ull"
