"""MatMuls of one tensor and several constant matrices -> one MatMul and a VariadicSplit, whose parts are views.

Examples are the projections to queries, keys and values, and the two projections of a gated layer. Biases are merged as
well if that saves layers. The epilogue of a MatMul adds the merged bias (see `fuse_matmul_epilogues`). With compressed
weights the bias stays a layer, so there all products must have one. Products stay apart if merging would save no more
products than it adds copies of parts, or if the results are needed at different times.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.base.op import op_of
from ovgpu.ops.base.shape_inputs import shape_tensor_ports
from ovgpu.ops.fused.compressed import CompressedMatMul
from ovgpu.ops.infrastructure.graph import Constant
from ovgpu.ops.matrix.matmul import MatMul
from ovgpu.ops.movement.movement import VariadicSplit
from ovgpu.passes._graph import NodeBuilder, is_fusable, redirect, users_of
from ovgpu.passes._merged import (
    Users,
    bias_of,
    count_extra_copies,
    first_use_depths,
    group_by_first_use,
    join_constants,
    other_operand,
    views_side_by_side,
)


def merge_products(model: Model) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand; they are inferred again."""
    if _merge_all(model):
        model.validate_nodes_and_infer_types()


def _merge_all(model: Model) -> bool:
    """Merge products of the model and its bodies; return whether there were any."""
    changed = any([_merge_all(body) for node in model.ops for body in bodies(node.op)])
    users, first_use = users_of(model), first_use_depths(model)
    alike: dict[tuple[Any, ...], list[Node]] = {}
    for node in model.ops:
        key = _merge_key(node, users)
        if key is not None:
            alike.setdefault(key, []).append(node)
    groups = [group for nodes in alike.values() for group in group_by_first_use(nodes, first_use) if len(group) > 1]
    if not groups:
        return changed
    shape_tensors, moved = shape_tensor_ports(model), dict[Output, Output]()
    for group in groups:
        biases = _biases(group, users, shape_tensors)
        ports = [(bias or node).ports[0] for node, bias in zip(group, biases)]
        views = views_side_by_side(group)
        if sum(count_extra_copies(port, view, users) for port, view in zip(ports, views)) < len(group) - 1:
            _merge(group, biases, moved)
    redirect(model, moved)
    model.changed()
    return changed or bool(moved)


# ---- candidates


def _merge_key(node: Node, users: Users) -> tuple[Any, ...] | None:
    """Return a key that is equal for products that may be merged, None for other nodes."""
    op: Any = node.op
    if not isinstance(op, (MatMul, CompressedMatMul)):
        return None
    x, *stored = node.sources
    if x is None or x.spec.shape is None or not x.spec.shape or not x.spec.type.is_real():
        return None
    if any(s is not None and (not isinstance(s.node.op, Constant) or users[s] != [node]) for s in stored):
        return None
    if isinstance(op, MatMul):
        (weights,) = stored
        if weights is None or weights.spec.rank != 2 or weights.spec.type != x.spec.type:
            return None
        return x, weights.spec.shape[1 - _axis(op)], op.transpose_a, op.transpose_b  # type: ignore[index]
    packed, axis = op.weights, _axis(op)
    if op.batch or any(s is not None and s.spec.shape[axis] != packed.shape[axis] for s in stored[1:]):  # type: ignore[index]
        return None
    if packed.is_nibbles and packed.rows * packed.columns % 2:
        return None
    quant_params = [None if s is None else (s.spec.type, s.spec.shape[1 - axis]) for s in stored[1:]]  # type: ignore[index]
    return x, packed.shape[1 - axis], op.transpose, packed.dtype, packed.table, *quant_params


def _axis(op: Any) -> int:
    """Return the axis of the weights that becomes the columns of the result."""
    return 0 if (op.transpose_b if isinstance(op, MatMul) else op.transpose) else 1


def _biases(group: Sequence[Node], users: Users, shape_tensors: set[Output]) -> list[Node | None]:
    """Return the Adds of the products' biases if merging these leaves fewer layers, else None for each product."""
    biases = [bias_of(node.ports[0], users) for node in group]
    unfused = [  # biases that would not become part of another elementwise layer
        node
        for node in biases
        if node is not None and [is_fusable(u, shape_tensors) for u in users.get(node.ports[0], ())] != [True]
    ]
    if isinstance(group[0].op, MatMul):
        return biases if unfused else [None] * len(group)
    return biases if None not in biases and len(unfused) > 1 else [None] * len(group)


# ---- merge


def _merge(group: Sequence[Node], biases: Sequence[Node | None], moved: dict[Output, Output]) -> None:
    first, *_ = group
    op: Any = first.op
    graph, axis = NodeBuilder(first), _axis(op)
    widths = [node.ports[0].spec.shape[-1] for node in group]  # type: ignore[index]
    stored: list[Any] = list(zip(*(node.sources[1:] for node in group)))
    shapes: list[Any] = [None] * len(stored)
    if isinstance(op, CompressedMatMul):
        packed = op.weights
        extents = (sum(widths), packed.columns) if axis == 0 else (packed.rows, sum(widths))
        op = replace(op, weights=replace(packed, rows=extents[0], columns=extents[1]))
        if packed.is_nibbles:
            shapes[0] = (packed.rows, -1) if axis else (-1,)
    weights = [join_constants(graph, ports, axis, shape) for ports, shape in zip(stored, shapes)]
    merged = graph.add(op, first.sources[0], *weights)
    last = next((node for node in biases if node is not None), None)
    if last is not None:
        values = [
            graph.constant(np.zeros(width), product.ports[0].spec.type)
            if node is None
            else other_operand(node, product.ports[0])
            for node, product, width in zip(biases, group, widths)
        ]
        merged = NodeBuilder(last).add(op_of(last), merged, join_constants(graph, values, 0, (-1,)))
    parts = graph.add(VariadicSplit(), merged, graph.constant(-1), graph.constant(widths), outputs=len(group))
    for product, bias, port in zip(group, biases, parts):
        node = bias or product
        port.names = node.ports[0].own_names
        moved[node.ports[0]] = port
