"""Elementwise -> Reshape or Transpose becomes Reshape or Transpose -> elementwise, so that elementwise layers fuse.

``Reshape(MatMul + bias) + residual`` becomes ``Reshape(MatMul) + bias + residual``. The Reshape of a dense tensor costs
nothing, and an operand that is broadcast along all but the last axis needs no Reshape. A Transpose costs nothing
either, because the elementwise layer behind it reads its operands by their strides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.base.op import Op, op_of
from ovgpu.ops.base.shape_inputs import shape_tensor_ports
from ovgpu.ops.infrastructure.graph import Constant
from ovgpu.ops.movement.movement import Transpose, permutation
from ovgpu.passes._graph import alike_shapes, constant_integers, constant_of, is_fusable, users_of
from ovgpu.spec import Spec
from ovgpu.symbolic import Int


def reshape_early(model: Model) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand."""
    for node in model.ops:
        for body in bodies(node.op):
            reshape_early(body)
    users, shape_tensors = users_of(model), shape_tensor_ports(model)
    for node in model.ops:  # in the original order: of two Reshapes in a row, the first moves first
        pending = [node]
        while pending:
            reshape = pending.pop()
            if any(is_fusable(user, shape_tensors) for user in users.get(reshape.ports[0], ())):
                pending += _swap(reshape, users, shape_tensors)
    model.changed()


def _swap(reshape: Node, users: dict[Output, list[Node]], shape_tensors: set[Output]) -> list[Node]:
    """Swap a Reshape or Transpose with the elementwise layer before it, if possible. Return the new nodes that reshape
    the layer's operands."""
    source = reshape.sources[0] if op_of(reshape).is_reshape or reshape.op.name == "Transpose" else None
    if source is None or not is_fusable(source.node, shape_tensors) or users[source] != [reshape]:
        return []
    spec = reshape.ports[0].spec
    if spec.shape is None or spec.value is not None or reshape.ports[0] in shape_tensors:
        return []
    layer = source.node
    operands = {s: _reshape(s, source.spec, spec, reshape) for s in layer.sources if s is not None}
    if any(node is None for node in operands.values()):
        return []
    for port, node in operands.items():
        assert node is not None
        users[port] = [*(u for u in users[port] if u is not layer), *([node] if node.sources else [])]
        users[node.ports[0]] = [reshape]
    reshape.op, reshape.friendly_name, reshape.layer_id = layer.op, layer.friendly_name, layer.layer_id
    reshape.sources = [operands[s].ports[0] for s in layer.sources]  # type: ignore[index, union-attr]
    users[source] = []
    return [node for node in operands.values() if node is not None and node.sources]


def _reshape(port: Output, before: Spec, after: Spec, reshape: Node) -> Node | None:
    """Return a node that computes the reshaped operand, None if that may need a copy.

    ``before`` and ``after`` are the specs of the Reshape's input and result.
    """
    shape, old, new = port.spec.shape or (), before.shape or (), after.shape or ()
    op: Any = port.node.op
    if isinstance(reshape.op, Transpose):
        return _transpose(port, reshape)
    if isinstance(op, Constant):
        axis_count = _axis_count(shape, old, new)
        return None if axis_count is None else _constant(port, op.value.reshape(shape[len(shape) - axis_count :]))
    if not alike_shapes(shape, old) or not _is_dense(port):
        return None
    node = Node(reshape.op, [port, *reshape.sources[1:]], name=reshape.friendly_name, layer_id=reshape.layer_id)
    node.model = reshape.model
    node.ports[0].spec = Spec(port.spec.type, after.shape)
    return node


def _transpose(port: Output, transpose: Node) -> Node | None:
    """Return a node that computes the transposed operand, None if its rank or the order does not allow it."""
    order = constant_integers(transpose.sources[1])
    shape, rank = port.spec.shape or (), transpose.ports[0].spec.rank or 0
    if order is None:
        return None
    axes, value = permutation(order, rank), constant_of(port)
    if value is not None:
        padded = value.reshape((1,) * (rank - value.ndim) + value.shape)
        return _constant(port, value if value.size == 1 else np.ascontiguousarray(padded.transpose(axes)))
    if len(shape) != rank:
        return None
    node = Node(transpose.op, [port, transpose.sources[1]], name=transpose.friendly_name, layer_id=transpose.layer_id)
    node.model = transpose.model
    node.ports[0].spec = Spec(port.spec.type, tuple(shape[i] for i in axes))
    return node


def _constant(port: Output, value: Any) -> Node:
    """Return a copy of the constant with another value."""
    constant = Constant(element_type=port.spec.type, value=value)
    node = Node(constant, [], name=port.node.friendly_name, layer_id=port.node.layer_id)
    node.ports[0].spec = constant.infer_specs()[0]
    return node


def _axis_count(shape: Sequence[Int], old: Sequence[Int], new: Sequence[Int]) -> int | None:
    """Return the number of last axes along which a constant varies: 0 for one element, 1 for its last axis.

    Return None if it varies along other axes, or if its last axis is not that of the tensor before and after the
    Reshape.
    """
    if all(d == 1 for d in shape):
        return 0
    alike = all(tuple(s[-1:]) == tuple(shape[-1:]) for s in (old, new))  # symbols must be the same ones
    return 1 if alike and all(d == 1 for d in shape[:-1]) else None


def _is_dense(port: Output) -> bool:
    """Return whether the tensor, before reshapes, is dense and not a view."""
    while (op_of(port.node).is_reshape or port.node.op.name == "Identity") and port.node.sources[0] is not None:
        port = port.node.sources[0]
    return type(op_of(port.node)).view is Op.view
