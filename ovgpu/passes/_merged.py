"""Queries about products of one tensor that may be merged into one, whose results are then views side by side."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from ovgpu.model import Model, Node, Output
from ovgpu.ops.arithmetic.arithmetic import Add
from ovgpu.ops.attention.attention import ScaledDotProductAttention
from ovgpu.ops.base.op import Op, op_of
from ovgpu.ops.base.view import View, dense_strides
from ovgpu.ops.fused._joined import Joined
from ovgpu.ops.fused.compressed import CompressedMatMul
from ovgpu.ops.fused.quantized import QuantizedMatMul
from ovgpu.ops.infrastructure.graph import Constant
from ovgpu.ops.matrix.matmul import MatMul
from ovgpu.passes._graph import NodeBuilder

PRODUCTS = (MatMul, CompressedMatMul, QuantizedMatMul, ScaledDotProductAttention)
MAX_DISTANCE = 1  # of the first users of two merged results, in products

Users = dict[Output, list[Node]]


def needed_by(model: Model) -> dict[Node, int]:
    """Return by node the depth, in products, of the first product that depends on the node's result."""
    depth: dict[Node, int] = {}
    for node in model.ops:
        depth[node] = max((depth[s.node] for s in node.sources if s is not None), default=0) + (
            isinstance(node.op, PRODUCTS)
        )
    needed: dict[Node, int] = {}
    for node in reversed(model.ops):
        first = depth[node] if isinstance(node.op, PRODUCTS) else needed.get(node, len(depth))
        for s in node.sources:
            if s is not None:
                needed[s.node] = min(first, needed.get(s.node, first))
    return needed


def at_once(nodes: Sequence[Node], needed: dict[Node, int]) -> Iterator[list[Node]]:
    """Yield groups of the nodes whose results are needed at about the same time."""
    rest = list(nodes)
    while rest:
        first = min(needed.get(node, 0) for node in rest)
        yield [node for node in rest if needed.get(node, 0) <= first + MAX_DISTANCE]
        rest = [node for node in rest if needed.get(node, 0) > first + MAX_DISTANCE]


def bias_of(port: Output, users: Users) -> Node | None:
    """Return the only user of a product if it adds a constant with one element per column, else None."""
    node, *others = users.get(port, [None])
    shape = port.spec.shape
    if node is None or others or type(node.op) is not Add or not shape or None in node.sources:
        return None
    bias = other_operand(node, port)
    if not isinstance(bias.node.op, Constant) or bias.spec.type != port.spec.type:
        return None
    of = bias.node.op.value.shape
    return node if of[-1:] == shape[-1:] and bias.node.op.value.size == shape[-1] and len(of) <= len(shape) else None


def other_operand(node: Node, port: Output) -> Any:
    """Return the other one of two operands."""
    return node.sources[int(node.sources[0] is port)]


def side_by_side(group: Sequence[Node]) -> list[View]:
    """Return the results as views that lie side by side in the merged result."""
    shapes: list[Any] = [node.ports[0].spec.shape for node in group]
    widths = [shape[-1] for shape in shapes]
    strides = dense_strides((*shapes[0][:-1], sum(widths)))
    return [View(shape, strides, offset) for shape, offset in zip(shapes, accumulate((0, *widths)))]


def copied(port: Output, view: View, users: Users) -> int:
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
            dense |= op.layout in ("dense", "image") or (op.layout == "blas" and not view.is_blas)
    return count + (dense and not view.is_dense)


def _copies_behind(user: Node, port: Output, view: View, users: Users, transposed: bool) -> int:
    """Return the `_copies` of the results of a layer that are views of a dense tensor."""
    outs = [out.spec for out in user.ports]
    if any(out.shape is None for out in outs):
        return 1
    views = op_of(user).view(
        [view if s is port else None for s in user.sources], [None if s is None else s.spec for s in user.sources], outs
    ) or [None]
    return sum(1 if v is None else _copies(out, v, users, transposed) for out, v in zip(user.ports, views))


def joined(graph: NodeBuilder, ports: Sequence[Any], axis: int, shape: tuple[int, ...] | None) -> Output | None:
    """Return the constants, reshaped to ``shape`` if given, joined along the axis."""
    if ports[0] is None:
        return None
    values = [port.node.op.value for port in ports]
    value: Any = Joined([v if shape is None else v.reshape(shape) for v in values], axis)
    port: Output = graph.add(Constant(element_type=ports[0].node.op.element_type, value=value))
    return port
