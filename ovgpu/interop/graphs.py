"""Functions of openvino on graphs of ovgpu: `ovgpu.opset13.relu(node)` makes a node of ovgpu if ``node`` is one, and a
transformation changes a model of ovgpu."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ovgpu._util.openvino_package import owns, required
from ovgpu.interop.models import from_openvino, to_openvino_model
from ovgpu.interop.values import is_plain, to_openvino, to_openvino_type
from ovgpu.model import Model, Node, Output


def has_ports(values: Sequence[Any]) -> bool:
    """Return whether nodes or ports of ovgpu are among the arguments of a builder, or in lists among them."""
    return any(
        (isinstance(value, (Node, Output)) and not owns(value))
        or (isinstance(value, (list, tuple)) and not is_plain(value) and has_ports(value))
        for value in values
    )


def build(builder: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a builder of openvino with Parameters in place of ovgpu's ports. Convert the nodes that it makes to ovgpu's
    and connect them to those ports. Return the node that corresponds to the builder's result."""
    openvino: Any = required("a builder of nodes")
    parameters: dict[Output, Any] = {}

    def stand_in(value: Any) -> Any:
        if type(value) in (list, tuple) and not is_plain(value):
            return type(value)(map(stand_in, value))
        if not isinstance(value, (Node, Output)) or owns(value):
            return to_openvino(value)
        port = value.output(0) if isinstance(value, Node) else value
        if port not in parameters:
            shape, element_type = openvino.PartialShape(str(port.partial_shape)), to_openvino_type(port.element_type)
            parameters[port] = openvino.op.Parameter(element_type, shape)
        return parameters[port]

    built = builder(*map(stand_in, args), **{key: stand_in(value) for key, value in kwargs.items()})
    if not isinstance(built, openvino.Node):
        return built
    is_result = built.get_type_name() == "Result"
    part = from_openvino(openvino.Model([built] if is_result else built.outputs(), [*parameters.values()], "part"))
    ports = {parameter.ports[0]: port for parameter, port in zip(part.parameters, parameters, strict=True)}
    result = part.results[0]
    returned = result if is_result else result.sources[0].node  # type: ignore[union-attr]
    for node in part.ops:
        node.sources = [source if source is None else ports.get(source, source) for source in node.sources]
        node.model = None
    if not is_result:
        for port in returned.ports:
            port.set_names(())
    return returned


def has_models(values: Sequence[Any]) -> bool:
    """Return whether models of ovgpu are among the arguments of a function."""
    return any(isinstance(value, Model) and not owns(value) for value in values)


def transform(function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a function of openvino that may change models on copies of ovgpu's models, and copy the graphs back."""
    copies: dict[Model, Any] = {}

    def copied(value: Any) -> Any:
        if not isinstance(value, Model) or owns(value):
            return to_openvino(value)
        return copies.setdefault(value, to_openvino_model(value))

    result = function(*map(copied, args), **{key: copied(value) for key, value in kwargs.items()})
    for model, copy in copies.items():
        changed = from_openvino(copy)
        model.results, model.sinks, model.parameters = changed.results, changed.sinks, changed.parameters
        model.rt_info = changed.rt_info
        model.changed()
        if result is copy:
            result = model
    return result
