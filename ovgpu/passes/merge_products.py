"""MatMuls of one tensor and several constant matrices -> one MatMul and a VariadicSplit, whose parts are views.

Examples are the projections to queries, keys and values, and the two of a gated layer. Biases are merged as well if
that saves layers: a MatMul computes the merged bias in its epilogue (see `fuse_matmul_epilogues`); for compressed
weights it stays a layer, so all products must have a bias. Products stay apart if the layers that take the parts would
copy at least as many parts as products are saved, or if the results are needed at different times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import Any

import numpy as np

from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.arithmetic.arithmetic import Add
from ovgpu.ops.attention.attention import ScaledDotProductAttention
from ovgpu.ops.base.op import Op, op_of
from ovgpu.ops.base.shape_inputs import shape_tensor_ports
from ovgpu.ops.base.view import View, dense_strides
from ovgpu.ops.fused._joined import Joined
from ovgpu.ops.fused.compressed import CompressedMatMul
from ovgpu.ops.infrastructure.graph import Constant
from ovgpu.ops.matrix.matmul import MatMul
from ovgpu.ops.movement.movement import VariadicSplit
from ovgpu.passes._graph import Graph, is_fusable, redirect, users_of

PRODUCTS = (MatMul, CompressedMatMul, ScaledDotProductAttention)
MAX_DISTANCE = 1  # of the first users of two merged results, in products

Users = dict[Output, list[Node]]


def merge_products(model: Model) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand; they are inferred again."""
    if _merged(model):
        model.validate_nodes_and_infer_types()


def _merged(model: Model) -> bool:
    changed = any([_merged(body) for node in model.ops for body in bodies(node.op)])
    users, needed = users_of(model), _needed(model)
    alike: dict[tuple[Any, ...], list[Node]] = {}
    for node in model.ops:
        kind = _kind(node, users)
        if kind is not None:
            alike.setdefault(kind, []).append(node)
    groups = [group for nodes in alike.values() for group in _at_once(nodes, needed) if len(group) > 1]
    if not groups:
        return changed
    shape_tensors, moved = shape_tensor_ports(model), dict[Output, Output]()
    for group in groups:
        biases = _biases(group, users, shape_tensors)
        ports = [(bias or node).ports[0] for node, bias in zip(group, biases)]
        if sum(_copied(port, view, users) for port, view in zip(ports, _parts(group))) < len(group) - 1:
            _merge(group, biases, moved)
    redirect(model, moved)
    model.changed()
    return changed or bool(moved)


# ---- candidates

def _kind(node: Node, users: Users) -> tuple[Any, ...] | None:
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
    return x, packed.shape[1 - axis], op.transpose, packed.kind, packed.table, *quant_params


def _axis(op: Any) -> int:
    """Return the axis of the weights along which the result's columns lie."""
    return 0 if (op.transpose_b if isinstance(op, MatMul) else op.transpose) else 1


def _needed(model: Model) -> dict[Node, int]:
    """Return by node the depth, in products, of the first product that depends on the node's result."""
    depth: dict[Node, int] = {}
    for node in model.ops:
        depth[node] = max((depth[s.node] for s in node.sources if s is not None), default=0) + (
            isinstance(node.op, PRODUCTS))
    needed: dict[Node, int] = {}
    for node in reversed(model.ops):
        first = depth[node] if isinstance(node.op, PRODUCTS) else needed.get(node, len(depth))
        for s in node.sources:
            if s is not None:
                needed[s.node] = min(first, needed.get(s.node, first))
    return needed


def _at_once(nodes: Sequence[Node], needed: dict[Node, int]) -> Iterator[list[Node]]:
    """Yield groups of the nodes whose results are needed at about the same time."""
    rest = list(nodes)
    while rest:
        first = min(needed.get(node, 0) for node in rest)
        yield [node for node in rest if needed.get(node, 0) <= first + MAX_DISTANCE]
        rest = [node for node in rest if needed.get(node, 0) > first + MAX_DISTANCE]


def _biases(group: Sequence[Node], users: Users, shape_tensors: set[Output]) -> list[Node | None]:
    """Return the Adds of the products' biases if merging these leaves fewer layers, else None for each product."""
    found = [_bias(node.ports[0], users) for node in group]
    unfused = [node for node in found if node is not None
             and [is_fusable(u, shape_tensors) for u in users.get(node.ports[0], ())] != [True]]
    if isinstance(group[0].op, MatMul):
        return found if unfused else [None] * len(group)
    return found if None not in found and len(unfused) > 1 else [None] * len(group)


def _bias(port: Output, users: Users) -> Node | None:
    """Return the only user of a product if it adds a constant with one element per column, else None."""
    node, *others = users.get(port, [None])
    shape = port.spec.shape
    if node is None or others or type(node.op) is not Add or not shape or None in node.sources:
        return None
    bias = _other(node, port)
    if not isinstance(bias.node.op, Constant) or bias.spec.type != port.spec.type:
        return None
    of = bias.node.op.value.shape
    return node if of[-1:] == shape[-1:] and bias.node.op.value.size == shape[-1] and len(of) <= len(shape) else None


def _other(node: Node, port: Output) -> Any:
    """Return the other one of two operands."""
    return node.sources[int(node.sources[0] is port)]


# ---- cost of copies

def _parts(group: Sequence[Node]) -> list[View]:
    """Return the results as views that lie side by side in the merged result."""
    shapes: list[Any] = [node.ports[0].spec.shape for node in group]
    widths = [shape[-1] for shape in shapes]
    strides = dense_strides((*shapes[0][:-1], sum(widths)))
    return [View(shape, strides, offset) for shape, offset in zip(shapes, accumulate((0, *widths)))]


def _copied(port: Output, view: View, users: Users) -> int:
    """Return how many more steps copy a tensor if it is laid out as ``view`` instead of dense."""
    return _copies(port, view, users) - _copies(port, View.dense(view.shape), users)


def _copies(port: Output, view: View, users: Users, transposed: bool = False) -> int:
    """Return how many steps copy a tensor that is laid out as ``view``. A dense tensor costs no copy in a Concat,
    result or variable unless it is ``transposed``: the product writes into their memory."""
    count, dense = 0, False
    for user in users.get(port, ()):
        op = op_of(user)
        if op.name in ("Result", "Assign", "Concat"):
            count += not transposed and not view.is_dense
        elif type(op).view is not Op.view:
            count += _copies_behind(user, port, view, users, transposed or op.name == "Transpose")
        else:
            dense |= op.layout == "dense" or (op.layout == "blas" and not view.is_blas)
    return count + (dense and not view.is_dense)


def _copies_behind(user: Node, port: Output, view: View, users: Users, transposed: bool) -> int:
    """Return the `_copies` of the results of a layer that are views of a dense tensor."""
    outs = [out.spec for out in user.ports]
    if any(out.shape is None for out in outs):
        return 1
    views = op_of(user).view([view if s is port else None for s in user.sources],
                             [None if s is None else s.spec for s in user.sources], outs) or [None]
    return sum(1 if v is None else _copies(out, v, users, transposed) for out, v in zip(user.ports, views))


# ---- merge

def _merge(group: Sequence[Node], biases: Sequence[Node | None], moved: dict[Output, Output]) -> None:
    first, *_ = group
    op: Any = first.op
    graph, axis = Graph(first), _axis(op)
    widths = [node.ports[0].spec.shape[-1] for node in group]  # type: ignore[index]
    stored: list[Any] = list(zip(*(node.sources[1:] for node in group)))
    shapes: list[Any] = [None] * len(stored)
    if isinstance(op, CompressedMatMul):
        packed = op.weights
        extents = (sum(widths), packed.columns) if axis == 0 else (packed.rows, sum(widths))
        op = replace(op, weights=replace(packed, rows=extents[0], columns=extents[1]))
        if packed.is_nibbles:
            shapes[0] = (packed.rows, -1) if axis else (-1,)
    weights = [_joined(graph, ports, axis, shape) for ports, shape in zip(stored, shapes)]
    found = graph.add(op, first.sources[0], *weights)
    last = next((node for node in biases if node is not None), None)
    if last is not None:
        values = [graph.constant(np.zeros(width), product.ports[0].spec.type) if node is None
                  else _other(node, product.ports[0]) for node, product, width in zip(biases, group, widths)]
        found = Graph(last).add(op_of(last), found, _joined(graph, values, 0, (-1,)))
    cut = graph.add(VariadicSplit(), found, graph.constant(-1), graph.constant(widths), outputs=len(group))
    for product, bias, port in zip(group, biases, cut):
        node = bias or product
        port.names = node.ports[0].own_names
        moved[node.ports[0]] = port


def _joined(graph: Graph, ports: Sequence[Any], axis: int, shape: tuple[int, ...] | None) -> Output | None:
    """Return the constants, reshaped to ``shape`` if given, joined along the axis."""
    if ports[0] is None:
        return None
    values = [port.node.op.value for port in ports]
    value: Any = Joined([v if shape is None else v.reshape(shape) for v in values], axis)
    port: Output = graph.add(Constant(element_type=ports[0].node.op.element_type, value=value))
    return port
