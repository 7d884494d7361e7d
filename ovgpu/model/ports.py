"""Lookup of a model's port by index, by tensor name, or without a key if there is only one."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

from ovgpu._util.nearest import did_you_mean

from .node import Node, Output

PortKey = int | str | Output


class Ports:
    """Base class of `Model` and `CompiledModel`: inputs (parameters) and outputs (results)."""

    parameters: list[Node]
    results: list[Node]

    @property
    def inputs(self) -> list[Output]:
        """Ports of the Parameter nodes, in order."""
        return [p.ports[0] for p in self.parameters]

    @property
    def outputs(self) -> list[Output]:
        """Ports of the Result nodes, in order."""
        return [r.ports[0] for r in self.results]

    def input(self, key: PortKey | None = None) -> Output:
        """Return the input that ``key`` names; without a key, the only input. Raises as `find_port`."""
        return find_port(self.inputs, key, "input")

    def output(self, key: PortKey | None = None) -> Output:
        """Return the output that ``key`` names; without a key, the only output. Raises as `find_port`."""
        return find_port(self.outputs, key, "output")


def find_port(ports: Sequence[Output], key: Any, kind: str) -> Output:
    """Return the port that ``key`` names: an index, a tensor name, a port, or None for the only port.

    An output also has the names of the tensor that it reads inside the model. A port of the graph stands for the
    input or output that is connected to it. ``kind`` is "input" or "output", for messages.

    Raises: RuntimeError with the existing names, IndexError for an index out of range, TypeError for other keys.
    """
    if key is None:
        if len(ports) != 1:
            raise RuntimeError(f"{kind}() needs a model with exactly one {kind}; it has {len(ports)}")
        return ports[0]
    if isinstance(key, str):
        matches = [p for p in ports if key in p.get_names()] or [p for p in ports if key in p.tensor_port.get_names()]
    elif isinstance(key, Output):
        matches = [p for p in ports if p is key] or [p for p in ports if p.tensor_port is key]
    else:
        index = operator.index(key)
        if index < 0:
            raise TypeError(f"the number of an {kind} is not negative, as {index} is")
        if index >= len(ports):
            raise IndexError(f"there is no {kind} {index}: the model has {len(ports)}")
        return ports[index]
    if not matches:
        available = ", ".join(min(p.get_names(), default=f"#{i}") for i, p in enumerate(ports)) or "none"
        title = kind.capitalize()
        description = f"tensor name '{key}'" if isinstance(key, str) else f"port {key}"
        names = {name for p in ports for name in p.get_names()}
        suggestion = did_you_mean(key, names) if isinstance(key, str) else ""
        raise RuntimeError(f"{title} for {description} is not found. The model has: {available}{suggestion}")
    return matches[0]


def ports_table(inputs: Sequence[Output], outputs: Sequence[Output]) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the columns and rows of a table of a model's inputs and outputs. A layer's name replaces missing names."""
    rows = [
        (
            kind,
            index,
            ", ".join(sorted(port.get_names())) or port.tensor_port.node.friendly_name,
            port.partial_shape,
            port.element_type.get_type_name(),
        )
        for kind, ports in (("input", inputs), ("output", outputs))
        for index, port in enumerate(ports)
    ]
    return ["", "number", "names", "shape", "type"], rows


def port_name(port: Output) -> str:
    """Return the first tensor name, or the name of the layer that produces the tensor if there is none."""
    source = port.tensor_port
    layer = source.node.friendly_name
    return min(port.get_names(), default=layer if len(source.node.ports) == 1 else f"{layer}.{source.index}")


def port_names(ports: Sequence[Output]) -> list[str]:
    """Return a distinct name for each port."""
    names = [port_name(port) for port in ports]
    return [name if names.count(name) == 1 else f"{name}#{i}" for i, name in enumerate(names)]
