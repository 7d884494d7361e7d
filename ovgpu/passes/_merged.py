"""Helpers of passes that merge products of one tensor. The results become views, side by side, of one tensor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from ovgpu.model import Model, Node, Output
from ovgpu.ops.arithmetic.arithmetic import Add
from ovgpu.ops.attention.attention import ScaledDotProductAttention
from ovgpu.ops.base.lazy import Joined
from ovgpu.ops.base.op import Op, op_of
from ovgpu.ops.base.view import View, dense_strides
from ovgpu.ops.fused.compressed import CompressedMatMul
from ovgpu.ops.fused.quantized import QuantizedMatMul
from ovgpu.ops.infrastructure.graph import Constant
from ovgpu.ops.matrix.matmul import MatMul
from ovgpu.passes._graph import NodeBuilder

PRODUCTS = (MatMul, CompressedMatMul, QuantizedMatMul, ScaledDotProductAttention)
# Results are merged only if their first uses are at most this many products apart.
MAX_DISTANCE = 1

Users = dict[Output, list[Node]]


def first_use_depths(model: Model) -> dict[Node, int]:
    """Return for each node the depth of the first product that depends on its result.

    The depth of a product is the greatest number of products on a path that ends with it.
    """
    depth: dict[Node, int] = {}
    for node in model.ops:
        depth[node] = max((depth[s.node] for s in node.sources if s is not None), default=0) + (
            isinstance(node.op, PRODUCTS)
        )
    first_use: dict[Node, int] = {}
    for node in reversed(model.ops):
        first = depth[node] if isinstance(node.op, PRODUCTS) else first_use.get(node, len(depth))
        for s in node.sources:
            if s is not None:
                first_use[s.node] = min(first, first_use.get(s.node, first))
    return first_use


def group_by_first_use(nodes: Sequence[Node], first_use: dict[Node, int]) -> Iterator[list[Node]]:
    """Yield groups of nodes whose first uses are at most ``MAX_DISTANCE`` products apart."""
    rest = list(nodes)
    while rest:
        first = min(first_use.get(node, 0) for node in rest)
        yield [node for node in rest if first_use.get(node, 0) <= first + MAX_DISTANCE]
        rest = [node for node in rest if first_use.get(node, 0) > first + MAX_DISTANCE]


def bias_of(port: Output, users: Users) -> Node | None:
    """Return the only user of a product if it adds a constant with one element per column, else None."""
    node, *others = users.get(port, [None])
    shape = port.spec.shape
    if node is None or others or type(node.op) is not Add or not shape or None in node.sources:
        return None
    bias = other_operand(node, port)
    if not isinstance(bias.node.op, Constant) or bias.spec.type != port.spec.type:
        return None
    value: Any = bias.node.op.value
    is_row = value.shape[-1:] == shape[-1:] and value.size == shape[-1] and value.ndim <= len(shape)
    return node if is_row else None


def other_operand(node: Node, port: Output) -> Any:
    """Return the operand of a binary node that is not ``port``."""
    return node.sources[int(node.sources[0] is port)]


def views_side_by_side(group: Sequence[Node]) -> list[View]:
    """Return the layouts of the results as views of the merged result, in which their columns are side by side."""
    shapes: list[Any] = [node.ports[0].spec.shape for node in group]
    widths = [shape[-1] for shape in shapes]
    strides = dense_strides((*shapes[0][:-1], sum(widths)))
    return [View(shape, strides, offset) for shape, offset in zip(shapes, accumulate((0, *widths)))]


def count_extra_copies(port: Output, view: View, users: Users) -> int:
    """Return how many more steps copy a tensor if it is laid out as ``view`` instead of dense."""
    return _count_copies(port, view, users) - _count_copies(port, View.dense(view.shape), users)


def _count_copies(port: Output, view: View, users: Users, transposed: bool = False) -> int:
    """Return how many steps copy a tensor that is laid out as ``view``.

    A dense product costs no copy in a Concat, result or variable, since it is written straight into their memory. This
    does not hold if a view of it is ``transposed`` on the way.
    """
    count, dense = 0, False
    for user in users.get(port, ()):
        op = op_of(user)
        if op.name in ("Result", "Assign", "Concat"):
            count += not transposed and not view.is_dense
        elif type(op).view is not Op.view:
            count += _count_copies_after(user, port, view, users, transposed or op.name == "Transpose")
        else:
            dense |= op.layout in ("dense", "image") or (op.layout == "blas" and not view.is_blas)
    return count + (dense and not view.is_dense)


def _count_copies_after(user: Node, port: Output, view: View, users: Users, transposed: bool) -> int:
    """Return `_count_copies` of the results of ``user``, or 1 for a result that cannot be a view."""
    outs = [out.spec for out in user.ports]
    if any(out.shape is None for out in outs):
        return 1
    views = op_of(user).view(
        [view if s is port else None for s in user.sources], [None if s is None else s.spec for s in user.sources], outs
    ) or [None]
    return sum(1 if v is None else _count_copies(out, v, users, transposed) for out, v in zip(user.ports, views))


def join_constants(graph: NodeBuilder, ports: Sequence[Any], axis: int, shape: tuple[int, ...] | None) -> Output | None:
    """Return one constant of the given ones along ``axis``, each reshaped to ``shape`` first if that is given.

    Return None if the first port is None.
    """
    if ports[0] is None:
        return None
    values = [port.node.op.value for port in ports]
    value: Any = Joined([v if shape is None else v.reshape(shape) for v in values], axis)
    port: Output = graph.add(Constant(element_type=ports[0].node.op.element_type, value=value))
    return port
