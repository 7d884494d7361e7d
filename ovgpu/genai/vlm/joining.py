"""Models that become one: an input of a model is computed by layers of another one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ovgpu.errors import Error
from ovgpu.model import Model, Node, Output
from ovgpu.model.ports import port_names
from ovgpu.ops.base.op import Op
from ovgpu.ops.infrastructure.graph import Constant, Parameter
from ovgpu.types import PartialShape, Type


def parameter(name: str, kind: Type, shape: Sequence[int]) -> Node:
    """Return a new input of a model."""
    node = Node(Parameter(element_type=kind, shape=PartialShape(list(shape))), [], name=name)
    node.ports[0].set_names({name})
    return node


def constant(value: np.ndarray[Any, Any]) -> Output:
    """Return a new constant."""
    return Node(Constant(element_type=Type.of(value.dtype), value=value), []).ports[0]


def layer(op: Op, *inputs: Any) -> Output:
    """Return the value of a new layer. Lists of integers, and arrays, become constants.

    Its type and shape are inferred when it is part of a model.
    """
    return Node(op, [x if isinstance(x, Output) else constant(np.asarray(x)) for x in inputs]).ports[0]


def find_parameter(model: Model, name: str) -> Node:
    """Return the input of a name. Raises: Error if there is none."""
    names = port_names(model.inputs)
    if name not in names:
        raise Error(f"the model has no input {name}, only {', '.join(names)}")
    return model.parameters[names.index(name)]


def only_value(model: Model) -> Output:
    """Return the value of a model's only output. Raises: Error if it has several."""
    if len(model.results) != 1:
        raise Error(f"the model has the outputs {', '.join(port_names(model.outputs))}, and not one alone")
    (source,) = model.results[0].sources
    assert source is not None
    return source


def replace_input(model: Model, name: str, value: Output, parameters: Sequence[Node]) -> None:
    """Replace an input by a value in place. ``parameters`` are new inputs, from which it is computed.

    Raises: Error if there is no such input.
    """
    old = find_parameter(model, name)
    for node in model.ops:
        node.sources = [value if source is old.ports[0] else source for source in node.sources]
    model.remove_parameter(old)
    model.add_parameters([*parameters])
    model.validate_nodes_and_infer_types()
