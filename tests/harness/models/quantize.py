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
from ovgpu.passes._graph import NodeBuilder, constant_of
from ovgpu.types import Type

LEVELS = 256
MULTIPLIED = ("Convolution", "GroupConvolution", "MatMul")
MOVING = ("MaxPool", "Transpose", "Reshape", "Split", "VariadicSplit")
Place = tuple[Node, int]  # a node and the number of its input


def quantize(model: Model, inputs: Any) -> Model:
    """Return the model with 8-bit weights, and a FakeQuantize for what is multiplied by them, for queries and keys of
    attention, and for both operands of sums of images. Parts of a Concat have one range. ``inputs`` are those of an
    inference that shows the ranges."""
    model = model.clone()
    groups, multiplied = _groups(model), [*_multiplied(model)]
    joined = [list(dict.fromkeys(node.sources[i] for node, i in places)) for places in groups]
    ports = [port for group in joined for port in group]
    ranges = dict(zip(ports, _ranges(model, ports, inputs)))
    faked = dict[Any, Output]()
    for group in joined:
        lows, highs = zip(*(ranges[port] for port in group))
        faked |= {port: _fake(port, min(lows), max(highs)) for port in group}
    for node, i in (place for places in groups for place in places):
        node.sources[i] = faked[node.sources[i]]
    for node, _ in multiplied:
        if node.op.name in MULTIPLIED:
            node.sources[1] = _weights(node)
    model.changed()
    model.validate_nodes_and_infer_types()
    return model


def _groups(model: Model) -> list[list[Place]]:
    """Return the inputs that are quantised; those of the same tensors, or of parts of one, in a group."""
    groups = list[list[Place]]()
    for node, i in _multiplied(model):
        found = _heads(node, i)
        ports = {node.sources[i] for node, i in found}
        met = [group for group in groups if ports & {node.sources[i] for node, i in group}]
        groups = [group for group in groups if group not in met]
        groups.append(list(dict.fromkeys([place for group in met for place in group] + found)))
    return groups


def _multiplied(model: Model) -> Iterator[Place]:
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


def _heads(node: Node, i: int) -> list[Place]:
    """Return the first of the layers that only choose or move elements of an input, and the numbers of its inputs."""
    source: Any = node.sources[i]
    before = source.node
    if before.op.name == "Concat":
        return [place for k in range(len(before.sources)) for place in _heads(before, k)]
    nearest = before.op.name == "Interpolate" and before.op.mode == "nearest"
    return _heads(before, 0) if nearest or before.op.name in MOVING else [(node, i)]


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
    graph = NodeBuilder(port.node)
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
    graph = NodeBuilder(node)
    codes = graph.constant(np.rint(value / scale), Type.i8)
    found: Output = graph.add(
        Multiply(), graph.add(Convert(destination_type=Type.f32), codes), graph.constant(scale, Type.f32)
    )
    return found
