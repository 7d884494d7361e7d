"""Layer norm or RMS norm -> Multiply -> Add becomes one ScaledMVN or ScaledRMS with a constant scale and shift.

A norm is an MVN over the last axes, or an RMS norm. `join_norms` has made them of smaller layers before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ovgpu.model import Model, Node, Output, bodies
from ovgpu.ops.arithmetic.arithmetic import Add, Multiply, Subtract
from ovgpu.ops.infrastructure.graph import Constant
from ovgpu.ops.normalization.normalization import MVN, MVN6, ScaledMVN, ScaledRMS
from ovgpu.passes._graph import broadcasts, constant_integers, constant_of, users_of
from ovgpu.passes.join_norms import Over, last_extents


def scale_norms(model: Model) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand."""
    users = users_of(model)
    for node in model.ops:
        for body in bodies(node.op):
            scale_norms(body)
        over = match_norm(node)
        extents = [] if over is None else last_extents(*over)
        if over is not None and extents:
            _rewrite(node, over.x, extents, users)
    model.changed()


def match_norm(node: Node) -> Over | None:
    """Return the tensor and the axes that a node normalises if it is a norm without scale and shift, else None."""
    op: Any = node.op
    x, rank = (node.sources or [None])[0], node.ports[0].spec.rank if node.ports else None
    if x is None or rank is None or not isinstance(op, (MVN, MVN6, ScaledMVN)) or not op.normalize_variance:
        return None
    if isinstance(op, ScaledMVN):
        return None if node.sources[1:] != [None, None] else Over(x, tuple(op.axes(rank, None)))
    axes = [constant_integers(s) for s in node.sources[1:]]
    return None if any(a is None for a in axes) else Over(x, tuple(op.axes(rank, *(axes or [None]))))


def _rewrite(node: Node, x: Output, extents: Sequence[int], users: dict[Output, list[Node]]) -> None:
    """Make the last layer that scales or shifts a norm's result the whole norm."""
    last, terms = node, list[Output | None]()
    for ops in ((Multiply,), (Add, Subtract)):
        term = _match_term(last, users, ops, extents)
        terms.append(None if term is None else term[1])
        last = last if term is None else term[0]
    if last is not node:
        op: Any = node.op
        cls = ScaledRMS if isinstance(op, ScaledRMS) else ScaledMVN
        last.op = cls(rank=len(extents), eps=op.eps, inside=op.eps_is_inside())
        last.sources = [x, *terms]


def _match_term(
    node: Node, users: dict[Output, list[Node]], ops: tuple[type, ...], extents: Sequence[int]
) -> tuple[Node, Output] | None:
    """Return the only user of a node's result, and its constant operand with one element per normalised element.

    The constant is negated for a Subtract. Return None if there are several users, the user has none of the ``ops``, or
    the operand does not have this form.
    """
    takers = users.get(node.ports[0], [])
    if len(takers) != 1 or not isinstance(takers[0].op, ops) or not broadcasts(takers[0]):
        return None
    user = takers[0]
    position = int(user.sources[0] is node.ports[0])  # index of the other operand
    source = user.sources[position]
    shape = user.ports[0].spec.shape
    value = constant_of(source)
    if source is None or value is None or shape is None or value.ndim > len(shape):
        return None
    if isinstance(user.op, Subtract) and not position:
        return None
    padded, outer_rank = (1,) * (len(shape) - value.ndim) + value.shape, len(shape) - len(extents)
    if any(d != 1 for d in padded[:outer_rank]) or any(d not in (1, e) for d, e in zip(padded[outer_rank:], extents)):
        return None
    value = np.ascontiguousarray(np.broadcast_to(value.reshape(padded[outer_rank:]), extents)).reshape(-1)
    value = -value if isinstance(user.op, Subtract) else value
    term = Constant(element_type=source.spec.type, value=value)
    port = Node(term, [], name=source.node.friendly_name, layer_id=source.node.layer_id).ports[0]
    port.spec = term.infer_specs()[0]
    return user, port
