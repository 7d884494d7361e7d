"""Checks of the ReadValue and Assign nodes of each variable."""

from __future__ import annotations

from typing import Any

from ovgpu.errors import ModelError
from ovgpu.model import Model, Node


def check_variables(model: Model) -> None:
    """Raise `ModelError` if a variable has two ReadValues, two Assigns, or an Assign without a ReadValue.

    A variable that is only read is valid, and so is an Assign of a value that does not depend on the variable.
    """
    reads = _by_variable(model, "ReadValue")
    for variable, assign in _by_variable(model, "Assign").items():
        if variable not in reads:
            raise _error(assign, f"there is no ReadValue of variable '{variable}'")


def check_values(model: Model) -> None:
    """Raise `ModelError` if an Assign has another type or an incompatible shape. Call it after inference."""
    reads = _by_variable(model, "ReadValue")
    for variable, assign in _by_variable(model, "Assign").items():
        new, declared = assign.ports[0], reads[variable].ports[0]
        dtypes = new.element_type, declared.element_type
        if dtypes[0] != dtypes[1] and not any(dtype.is_dynamic() for dtype in dtypes):
            raise _error(
                assign,
                f"the new value has type {dtypes[0].get_type_name()}, "
                f"variable '{variable}' has {dtypes[1].get_type_name()}",
            )
        if not declared.partial_shape.compatible(new.partial_shape):
            raise _error(
                assign,
                f"the new value has shape {new.partial_shape}, variable '{variable}' has {declared.partial_shape}",
            )


def _by_variable(model: Model, op_name: str) -> dict[str, Node]:
    nodes: dict[str, Node] = {}
    for node in model.ops:
        if node.op.name == op_name:
            op: Any = node.op
            variable = op.variable_id
            if variable in nodes:
                other = nodes[variable].friendly_name
                raise _error(node, f"layer '{other}' has the same variable '{variable}'")
            nodes[variable] = node
    return nodes


def _error(node: Node, message: str) -> ModelError:
    return ModelError(f"[{node.op.name}] {message} ({node.source_location})")
