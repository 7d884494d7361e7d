"""Models with activations and weights in 8 bits, in the form that nncf writes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

import ovgpu as ov
from ovgpu.model import Model, Node, Output
from ovgpu.ops.arithmetic.arithmetic import Multiply
from ovgpu.ops.convert import Convert
from ovgpu.ops.infrastructure.graph import Result
from ovgpu.ops.quantization import FakeQuantize
from ovgpu.passes._graph import Graph, constant_of
from ovgpu.types import Type

LEVELS = 256
MULTIPLIED = ("Convolution", "GroupConvolution", "MatMul")


def quantize(model: Model, inputs: Any) -> Model:
    """Return the model with 8-bit weights, and a FakeQuantize for what is multiplied by them, for queries and keys of
    attention, and for both operands of sums of images. ``inputs`` are those of an inference that shows the ranges."""
    model = model.clone()
    places, multiplied = list(dict.fromkeys(_places(model))), [*_multiplied(model)]
    ports = list(dict.fromkeys(node.sources[i] for node, i in places))
    faked = {port: _fake(port, low, high) for port, (low, high) in zip(ports, _ranges(model, ports, inputs))}
    for node, i in places:
        node.sources[i] = faked[node.sources[i]]
    for node, _ in multiplied:
        if node.op.name in MULTIPLIED:
            node.sources[1] = _weights(node)
    model.changed()
    model.validate_nodes_and_infer_types()
    return model


def _places(model: Model) -> Iterator[tuple[Node, int]]:
    """Yield nodes and the numbers of their inputs that are quantised."""
    yield from (_head(node, i) for node, i in _multiplied(model))


def _multiplied(model: Model) -> Iterator[tuple[Node, int]]:
    """Yield nodes that compute with 8 bits, and the numbers of their inputs."""
    for node in model.ops:
        has_weights = len(node.sources) > 1 and constant_of(node.sources[1]) is not None
        if node.ports and node.ports[0].spec.type != Type.f32:
            continue
        if node.op.name in MULTIPLIED and has_weights:
            yield node, 0
        elif node.op.name == "Add" and node.ports[0].spec.rank == 4 and not has_weights:
            yield from ((node, 0), (node, 1))
        elif node.op.name == "ScaledDotProductAttention":
            yield from ((node, 0), (node, 1))


def _head(node: Node, i: int) -> tuple[Node, int]:
    """Return the first of the layers that only choose or move elements of an input, and the number of its input."""
    source: Any = node.sources[i]
    while source.node.op.name in ("MaxPool", "Transpose", "Reshape"):
        node, i, source = source.node, 0, source.node.sources[0]
    return node, i


def _ranges(model: Model, ports: Sequence[Any], inputs: Any) -> list[tuple[float, float]]:
    """Return the least and the greatest element of each tensor."""
    results = [Node(Result(), [port]) for port in ports]
    first = len(model.results)
    model.add_results(results)
    model.validate_nodes_and_infer_types()
    found = ov.Core().compile_model(model, "CPU")(inputs).to_tuple()[first:]
    for result in results:
        model.remove_result(result)
    return [(float(x.min()), float(x.max())) for x in found]


def _fake(port: Output, low: float, high: float) -> Output:
    """Return the tensor in steps: from 0 on, or from -128 steps on if there are negative numbers."""
    step = max(high / 127, -low / 128) if low < 0 else high / 255
    graph = Graph(port.node)
    ranges = [graph.constant(n * step, Type.f32) for n in ((-128, 127) if low < 0 else (0, 255))]
    found: Output = graph.add(FakeQuantize(levels=LEVELS), port, *ranges, *ranges)
    return found


def _weights(node: Node) -> Output:
    """Return the weights in codes with a scale for each output."""
    op: Any = node.op
    value = constant_of(node.sources[1])
    outer = 2 if op.name == "GroupConvolution" else 1
    axes = tuple(range(outer, value.ndim)) if op.name != "MatMul" else (1 if op.transpose_b else 0,)
    scale = np.maximum(abs(value).max(axes, keepdims=True) / 127, 1e-9)
    graph = Graph(node)
    codes = graph.constant(np.rint(value / scale), Type.i8)
    found: Output = graph.add(Multiply(), graph.add(Convert(destination_type=Type.f32), codes),
                              graph.constant(scale, Type.f32))
    return found
