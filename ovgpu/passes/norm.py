"""Layer norms: MVN over the last axes, with the constants it is multiplied by and added to, becomes one layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ovgpu.model import Model, Node, Output
from ovgpu.ops.arithmetic import Add, Multiply, Subtract
from ovgpu.ops.graph import Constant
from ovgpu.ops.normalization import MVN, MVN6, ScaledMVN
from ovgpu.passes._graph import users_of
from ovgpu.symbolic import Sym


def scale_norms(model: Model) -> None:
    """Rewrites the model and the bodies in it, in place; ports' specs must be inferred."""
    users = users_of(model)
    for node in model.ops:
        for body in vars(node.op).values():
            if isinstance(body, Model):
                scale_norms(body)
        if isinstance(node.op, (MVN, MVN6)):
            _scale(node, users)
    model.changed()


def _scale(norm: Node, users: dict[int, list[Node]]) -> None:
    """Has the last of the layers that scale and shift a norm's result do it all."""
    extents = _normalised(norm)
    last, terms = norm, list[Output | None]()
    for ops in ((Multiply,), (Add, Subtract)):
        found = _term(last, users, ops, extents)
        terms.append(None if found is None else found[1])
        last = last if found is None else found[0]
    if last is not norm:
        op: Any = norm.op
        last.inputs = [norm.inputs[0], *terms]
        last.op = ScaledMVN(rank=len(extents), eps=op.eps, inside=op.eps_is_inside())


def _normalised(norm: Node) -> list[int]:
    """The extents of the last axes, if just these are normalised over, to a variance of 1; else nothing."""
    op: Any = norm.op
    shape = norm.outputs[0].spec.shape
    if shape is None or not op.normalize_variance:
        return []
    axes = [s.spec.value for s in norm.inputs[1:] if s is not None and isinstance(s.node.op, Constant)]
    if len(axes) < len(norm.inputs) - 1:
        return []
    over = op.axes(len(shape), *(axes or [None]))
    extents = [shape[i] for i in over]
    if over != list(range(len(shape) - len(over), len(shape))) or any(isinstance(d, Sym) for d in extents):
        return []
    return extents


def _term(node: Node, users: dict[int, list[Node]], ops: tuple[type, ...],
          extents: Sequence[int]) -> tuple[Node, Output] | None:
    """The only user of a norm's result, if it is one of these ops with a constant per normalised element; and that
    constant."""
    found = users.get(id(node.outputs[0]), [])
    if len(found) != 1 or not isinstance(found[0].op, ops) or not extents:
        return None
    user = found[0]
    position = int(user.inputs[0] is node.outputs[0])  # of the other operand
    source = user.inputs[position]
    if source is None or not isinstance(source.node.op, Constant) or (isinstance(user.op, Subtract) and not position):
        return None
    value: Any = source.node.op.value
    shape = user.outputs[0].spec.shape
    if shape is None or value.ndim > len(shape):
        return None
    padded, kept = (1,) * (len(shape) - value.ndim) + value.shape, len(shape) - len(extents)
    if any(d != 1 for d in padded[:kept]) or any(d not in (1, e) for d, e in zip(padded[kept:], extents)):
        return None
    value = np.ascontiguousarray(np.broadcast_to(value.reshape(padded[kept:]), extents)).reshape(-1)
    value = -value if isinstance(user.op, Subtract) else value
    term = Constant(element_type=source.spec.type, value=value)
    port = Node(term, [], name=source.node.friendly_name, layer_id=source.node.layer_id).outputs[0]
    port.spec = term.infer()[0]
    return user, port
