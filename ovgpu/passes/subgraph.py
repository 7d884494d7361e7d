"""Extraction of a part of a model as a separate model."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from ovgpu.model import Model, Node, Output
from ovgpu.ops.infrastructure.graph import Parameter, Result


def subgraph(model: Model, inputs: Sequence[Output], outputs: Sequence[Output], sinks: Sequence[Node] = ()) -> Model:
    """Return a model of clones of the nodes from ``inputs``, which become parameters, to ``outputs`` and ``sinks``."""
    twins: dict[Output, Output] = {}
    parameters = []
    for port in inputs:
        op: Any = Parameter(element_type=port.spec.type, shape=port.spec.partial_shape)
        parameter = Node(op, [], name=port.node.friendly_name, layer_id=port.node.layer_id)
        parameter.ports[0].names, parameter.ports[0].spec = set(port.names), port.spec
        twins[port] = parameter.ports[0]
        parameters.append(parameter)
    required = needed(inputs, [*outputs, *(s for sink in sinks for s in sink.sources if s is not None)])
    for node in model.ops:
        if node in required:
            clone(node, twins)
    results = [Node(Result(), [twins[port]], name=port.node.friendly_name) for port in outputs]
    return Model(results, [clone(sink, twins) for sink in sinks], parameters, model.friendly_name, source=model.source)


def needed(inputs: Sequence[Output], outputs: Sequence[Output]) -> set[Node]:
    """Return the nodes between ``inputs`` and ``outputs`` that are needed to compute ``outputs``."""
    ends = set(inputs)
    required: set[Node] = set()
    stack = [port for port in outputs if port not in ends]
    while stack:
        node = stack.pop().node
        if node not in required:
            required.add(node)
            stack += [s for s in node.sources if s is not None and s not in ends]
    return required


def reached(outputs: Iterable[Output], inputs: Collection[Output]) -> list[Output]:
    """Return the ports among ``inputs`` that ``outputs`` are computed from, in the order of ``inputs``."""
    used: set[Output] = set()
    seen: set[Node] = set()
    stack = list(outputs)
    while stack:
        port = stack.pop()
        if port in inputs:
            used.add(port)
        elif port.node not in seen:
            seen.add(port.node)
            stack += [source for source in port.node.sources if source is not None]
    return [port for port in inputs if port in used]


def clone(node: Node, twins: dict[Output, Output]) -> Node:
    """Return a copy of ``node`` that takes the twins of its inputs, and add the twins of its outputs to ``twins``."""
    twin = Node(
        node.op,
        [None if s is None else twins[s] for s in node.sources],
        len(node.ports),
        name=node.friendly_name,
        layer_id=node.layer_id,
    )
    for port, other in zip(node.ports, twin.ports):
        other.names, other.spec = set(port.names), port.spec
        twins.setdefault(port, other)
    return twin
