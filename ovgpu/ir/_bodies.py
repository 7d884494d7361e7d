"""Port maps, which connect the ports of TensorIterator, Loop and If to the parameters and results of their bodies."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ovgpu.ir._layers import Layer, integer
from ovgpu.ir._xml import Element
from ovgpu.model import Model
from ovgpu.ops.infrastructure.control_flow import BackEdge, InputMap, OutputMap


@dataclass(frozen=True)
class NumberedModel:
    """Model with the layer ids of its parameters and results, each with its index in the model."""

    model: Model
    parameters: dict[str, int]
    results: dict[str, int]


@dataclass(frozen=True)
class PortMap:
    """Entries of a port map. The last two fields are indices of a body parameter and a body result of a Loop."""

    inputs: tuple[InputMap, ...]
    outputs: tuple[OutputMap, ...]
    current_iteration: int | None = None
    condition: int | None = None


def loop_attributes(layer: Layer, name: str, body: NumberedModel) -> dict[str, Any]:
    """Return the attributes of a TensorIterator or Loop that are not text: body, port map and back edges."""
    ports = port_map(layer, "port_map", body)
    edges = tuple(_back_edges(layer, body))
    _check_sources(layer, body, ports, {edge.parameter for edge in edges})
    attributes = {"body": body.model, "inputs": ports.inputs, "outputs": ports.outputs, "back_edges": edges}
    if name == "Loop":
        attributes |= {"current_iteration": ports.current_iteration, "condition": ports.condition}
    return attributes


def if_attributes(layer: Layer, then_body: NumberedModel, else_body: NumberedModel) -> dict[str, Any]:
    """Return the attributes of an If: its bodies and their port maps."""
    attributes: dict[str, Any] = {}
    for branch, body in (("then", then_body), ("else", else_body)):
        ports = port_map(layer, f"{branch}_port_map", body)
        if any(i.axis is not None for i in ports.inputs) or any(o.axis is not None for o in ports.outputs):
            raise layer.error(f"<{branch}_port_map> has an axis, but a branch gets and gives whole tensors")
        _check_sources(layer, body, ports, set())
        attributes |= {
            f"{branch}_body": body.model,
            f"{branch}_inputs": ports.inputs,
            f"{branch}_outputs": ports.outputs,
        }
    return attributes


def port_map(layer: Layer, tag: str, body: NumberedModel) -> PortMap:
    """Return the entries of a port map, sorted by port. Raises ModelError for missing ports and body layers."""
    inputs: list[InputMap] = []
    outputs: list[OutputMap] = []
    special: dict[str, int] = {}
    port_map_element = layer.element.find(tag)
    for entry in () if port_map_element is None else port_map_element:
        if entry.tag == "input":
            parameter = _inner(layer, entry, "internal_layer_id", body.parameters, "Parameter")
            port = _port(layer, entry, layer.inputs)
            if entry.get("purpose") == "current_iteration":
                special["current_iteration"] = parameter
            if port is not None:
                inputs.append(InputMap(port, parameter, **_slicing(layer, entry)))
        elif entry.tag == "output":
            result = _inner(layer, entry, "internal_layer_id", body.results, "Result")
            port = _port(layer, entry, layer.outputs)
            if entry.get("purpose") == "execution_condition":
                special["condition"] = result
            if port is not None:
                outputs.append(OutputMap(port, result, **_slicing(layer, entry)))
    outputs.sort(key=lambda entry: entry.port)
    if [entry.port for entry in outputs] != list(range(len(layer.outputs))):
        raise layer.error(
            f"<{tag}> must give each of the {len(layer.outputs)} outputs once, "
            f"it gives ports {[entry.port for entry in outputs]}"
        )
    return PortMap(tuple(sorted(inputs, key=lambda entry: entry.port)), tuple(outputs), **special)


def _port(layer: Layer, entry: Element, ports: dict[str, int]) -> int | None:
    """Return the index of the port outside the body; None for id -1, which means no port.

    Some files number the ports of a direction from 0 instead of using their ids; both agree for inputs.
    """
    port_id = layer.integer(entry, "external_port_id")
    if port_id == -1:
        return None
    index = ports.get(str(port_id))
    if index is None and 0 <= port_id < len(ports) and not any(integer_or_none(p) == port_id for p in ports):
        index = port_id
    if index is None:
        raise layer.error(f"external_port_id {port_id} in <{_parent(entry)}> is no {entry.tag} port")
    return index


def integer_or_none(text: str) -> int | None:
    """Return `text` as an integer, or None if it is not one."""
    try:
        return integer(text)
    except ValueError:
        return None


def _parent(entry: Element) -> str:
    parent = entry.getparent()
    return "port_map" if parent is None else str(parent.tag)


def _inner(layer: Layer, entry: Element, attribute: str, layers: dict[str, int], op_name: str) -> int:
    name = entry.get(attribute)
    if name is None:
        raise layer.error(f"<{entry.tag}> in <{_parent(entry)}> has no '{attribute}'")
    if name not in layers:
        raise layer.error(f"{attribute} {name} in <{_parent(entry)}> is no {op_name} of the body")
    return layers[name]


def _slicing(layer: Layer, entry: Element) -> dict[str, int]:
    if entry.get("axis") is None:
        return {}
    defaults = {"axis": None, "start": 0, "end": -1, "stride": 1, "part_size": 1}
    attributes = {name: layer.integer(entry, name, default) for name, default in defaults.items()}
    if attributes["stride"] == 0 or attributes["part_size"] < 1:
        raise layer.error("stride must not be 0, and part_size must be positive")
    return attributes


def _back_edges(layer: Layer, body: NumberedModel) -> Iterator[BackEdge]:
    seen: set[int] = set()
    for edge in layer.element.iterfind("back_edges/edge"):
        result = _inner(layer, edge, "from-layer", body.results, "Result")
        parameter = _inner(layer, edge, "to-layer", body.parameters, "Parameter")
        if parameter in seen:
            raise layer.error(f"two back edges lead to layer {edge.get('to-layer')} of the body")
        seen.add(parameter)
        yield BackEdge(result, parameter)


def _check_sources(layer: Layer, body: NumberedModel, ports: PortMap, back_edge_targets: set[int]) -> None:
    """Raise ModelError unless every parameter of the body has exactly one source."""
    sources = [entry.parameter for entry in ports.inputs]
    if ports.current_iteration is not None and ports.current_iteration not in sources:
        sources.append(ports.current_iteration)
    for name, index in body.parameters.items():
        count = sources.count(index)
        if count > 1:
            raise layer.error(f"Parameter {name} of the body is fed by {count} entries of the port map")
        if count == 0:
            value = "initial value" if index in back_edge_targets else "value"
            raise layer.error(f"Parameter {name} of the body has no {value}: it is not in the port map")
