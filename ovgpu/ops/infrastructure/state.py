"""Variables, which keep their values from one inference to the next: ReadValue and Assign.

ReadValue gives the value from before this inference's Assign. All Assigns of an inference take effect together, when
it has succeeded. At first and after a reset, ReadValue gives its initial value, or zeros without one.
"""

from __future__ import annotations

from typing import Any

from ovgpu.errors import OpError
from ovgpu.ops.base.op import Array, Op, op
from ovgpu.ops.base.xp import Adapter
from ovgpu.spec import Spec, dims_of
from ovgpu.symbolic import active
from ovgpu.types import PartialShape, Type


@op("ReadValue", "opset3", "infrastructure/read-value-3")
class ReadValue3(Op):
    """A read of a variable that has the type and shape of its initial value, input 0."""

    variable_id: str

    effect = True

    def infer_specs(self, initial: Spec) -> tuple[Spec, ...]:
        return (self._variable(initial.type, initial.partial_shape),)

    def _variable(self, dtype: Type, shape: PartialShape) -> Spec:
        if not self.variable_id:
            raise OpError("attribute 'variable_id' is empty")
        if dtype == Type.string:
            raise OpError(f"variable '{self.variable_id}' would hold strings")
        return Spec(dtype, dims_of(shape, active(), self.variable_id))

    def evaluate(self, xp: Adapter, initial: Array) -> tuple[Array, ...]:
        raise OpError("a variable can be read only within an inference")


@op("ReadValue", "opset6", "infrastructure/read-value-6")
class ReadValue6(ReadValue3):
    """A read of a variable of declared type and shape, which may be dynamic and must admit the initial value. An
    undeclared type or shape is that of the initial value."""

    variable_type: Type = Type.dynamic
    variable_shape: PartialShape | None = None

    def infer_specs(self, initial: Spec | None = None) -> tuple[Spec, ...]:
        dtype, shape = self.variable_type, self.variable_shape
        if shape is None:
            if initial is None:
                raise OpError("attribute 'variable_shape' is missing, and there is no initial value")
            shape = initial.partial_shape
        if initial is not None:
            if not (dtype.is_dynamic() or initial.type.is_dynamic() or dtype == initial.type):
                raise OpError(
                    f"the initial value has type {initial.type.get_type_name()}, "
                    f"variable '{self.variable_id}' has {dtype.get_type_name()}"
                )
            if not shape.relaxes(initial.partial_shape) and not shape.compatible(initial.partial_shape):
                raise OpError(
                    f"the initial value has shape {initial.partial_shape}, variable '{self.variable_id}' has {shape}"
                )
            dtype = initial.type if dtype.is_dynamic() else dtype
        return (self._variable(dtype, shape),)


@op("Assign", "opset3", "infrastructure/assign-3")
class Assign3(Op):
    """A write of the input to a variable once the inference has succeeded. The output is the input."""

    variable_id: str

    effect = True
    exact = True

    def infer_specs(self, x: Spec) -> tuple[Spec, ...]:
        return (x,)

    def evaluate(self, xp: Adapter, x: Array) -> tuple[Array, ...]:
        return (x,)

    def view(self, inputs: Any, specs: Any, outputs: Any) -> Any:
        return (inputs[0],)


@op("Assign", "opset6", "infrastructure/assign-6")
class Assign6(Assign3):
    """Assign of opset 6; it does the same as `Assign3`."""
