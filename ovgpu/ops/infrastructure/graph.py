"""Ops through which tensors enter and leave a graph: Parameter, Constant, Result."""

from __future__ import annotations

from typing import Any

import numpy as np

from ovgpu.errors import OpError
from ovgpu.model import graph
from ovgpu.ops.base.op import Array, Op, op
from ovgpu.ops.base.view import View
from ovgpu.ops.base.xp import Adapter
from ovgpu.spec import Spec
from ovgpu.types import PartialShape, Type


@op("Parameter", "opset1", "infrastructure/parameter-1")
class Parameter(Op):
    """An input of the model. `Model.infer` sets its spec from the specs of the model's inputs."""

    element_type: Type
    shape: PartialShape

    def infer_specs(self) -> tuple[Spec, ...]:
        raise OpError("a Parameter has no inputs to infer from")

    def evaluate(self, xp: Adapter) -> tuple[Array, ...]:
        raise OpError("a Parameter is given, not computed")


@op("Constant", "opset1", "infrastructure/constant-1", aliases=["Const"])
class Constant(Op):
    """A tensor of the model file; ``value`` has the storage dtype and is usually a view of the mapped file."""

    element_type: Type
    value: np.ndarray[Any, Any]

    exact = True

    def infer_specs(self) -> tuple[Spec, ...]:
        return (Spec(self.element_type, self.value.shape, self.value),)

    def evaluate(self, xp: Adapter) -> tuple[Array, ...]:
        return (xp.asarray(self.value),)


@op("Result", "opset1", "infrastructure/result-1")
class Result(Op):
    """An output of the model: its input, unchanged."""

    exact = True
    supports_symbolic = True

    def infer_specs(self, x: Spec) -> tuple[Spec, ...]:
        return (x,)

    def evaluate(self, xp: Adapter, x: Array) -> tuple[Array, ...]:
        return (x,)

    def view(self, inputs: Any, specs: Any, outputs: Any) -> tuple[View | None]:
        return (inputs[0],)


graph.result_class = Result
