"""Layer norms and RMS norms become one layer, with the constants that they are multiplied by and added to.

A norm is an MVN over the last axes, or the layers that it is made of in models that have none::

    (x - ReduceMean(x)) / Sqrt(ReduceMean(Power(x - ReduceMean(x), 2)) + eps)      x / Sqrt(ReduceMean(x * x) + eps)

and other spellings of the same maths.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ovgpu.model import Model, Node, Output
from ovgpu.ops.arithmetic import Add, Divide, Multiply, Power, Sqrt, SquaredDifference, Subtract
from ovgpu.ops.graph import Constant
from ovgpu.ops.normalization import MVN, MVN6, ScaledMVN, ScaledRMS
from ovgpu.ops.reduction import ReduceMean
from ovgpu.passes._graph import constant_of, number_of, operands, users_of
from ovgpu.symbolic import Sym


@dataclass(frozen=True)
class Norm:
    """Of ``x`` over its last axes, which have these extents."""

    x: Output
    extents: list[int]
    eps: float
    inside: bool = True
    centred: bool = True


def scale_norms(model: Model) -> None:
    """Rewrites the model and the bodies in it, in place; ports' specs must be inferred."""
    users = users_of(model)
    for node in model.ops:
        for body in vars(node.op).values():
            if isinstance(body, Model):
                scale_norms(body)
        norm = _whole(node) if isinstance(node.op, (MVN, MVN6)) else _of_parts(node)
        if norm is not None and norm.extents:
            _rewrite(node, norm, users)
    model.changed()


def _rewrite(node: Node, norm: Norm, users: dict[int, list[Node]]) -> None:
    """Has the last of the layers that scale and shift a norm's result do it all."""
    last, terms = node, list[Output | None]()
    for ops in ((Multiply,), (Add, Subtract)):
        found = _term(last, users, ops, norm.extents)
        terms.append(None if found is None else found[1])
        last = last if found is None else found[0]
    if last is node and isinstance(node.op, (MVN, MVN6)):
        return
    last.inputs = [norm.x, *terms]
    cls = ScaledMVN if norm.centred else ScaledRMS
    last.op = cls(rank=len(norm.extents), eps=norm.eps, inside=norm.inside)


# ---- what is a norm

def _whole(node: Node) -> Norm | None:
    op: Any = node.op
    axes = [constant_of(s) for s in node.inputs[1:]]
    x, rank = node.inputs[0], node.outputs[0].spec.rank
    if x is None or rank is None or not op.normalize_variance or any(a is None for a in axes):
        return None
    return Norm(x, _extents(x, op.axes(rank, *(axes or [None]))), op.eps, op.eps_is_inside())


def _of_parts(node: Node) -> Norm | None:
    """The norm whose last layer divides by the root of a mean square."""
    for value, root in _quotients(node):
        mean, eps = _plus_number(_square_of_root(root))
        square = _mean(mean)
        if square is None or eps is None or not node.outputs[0].spec.type.is_real():
            continue
        of, over = square
        x = _centred(value, over)
        if _is_square(of, value) or (x is not None and _is_distance(of, value)):
            return Norm(value if x is None else x, _extents(value, over), eps, centred=x is not None)
    return None


def _quotients(node: Node) -> Iterator[tuple[Output, Output]]:
    """(a, b) where the node computes a / b, if it may be that of a norm."""
    for a, b in operands(node, Divide, ordered=True):
        yield a, b
    for a, r in operands(node, Multiply):
        for one, b in operands(r.node, Divide, ordered=True):
            if number_of(one) == 1:
                yield a, b
        for _, exponent in operands(r.node, Power, ordered=True):
            if number_of(exponent) == -0.5:
                yield a, r


def _square_of_root(root: Output) -> Output | None:
    """What the root is taken of."""
    source = root.node.inputs[0] if root.node.inputs else None
    if isinstance(root.node.op, Sqrt):
        return source
    return source if isinstance(root.node.op, Power) and abs(number_of(root.node.inputs[1]) or 0) == 0.5 else None


def _plus_number(port: Output | None) -> tuple[Output | None, float | None]:
    for a, b in operands(port.node, Add) if port is not None else ():
        if (number := number_of(b)) is not None:
            return a, number
    return None, None


def _mean(port: Output | None) -> tuple[Output, list[int]] | None:
    """What the mean is taken of, and over which axes."""
    op: Any = None if port is None else port.node.op
    if port is None or not isinstance(op, ReduceMean) or not op.keep_dims:
        return None
    x, axes = port.node.inputs[0], constant_of(port.node.inputs[1])
    if x is None or axes is None or x.spec.rank is None:
        return None
    return x, sorted(int(a) % x.spec.rank for a in np.atleast_1d(axes))


def _centred(port: Output, over: list[int]) -> Output | None:
    """x, if the port is x less its mean over these axes."""
    for x, mean in operands(port.node, Subtract, ordered=True):
        if _mean(mean) == (x, over):
            return x
    return None


def _is_square(port: Output, of: Output) -> bool:
    squared = any(a is of and number_of(b) == 2 for a, b in operands(port.node, Power, ordered=True))
    return squared or any(a is of and b is of for a, b in operands(port.node, Multiply))


def _is_distance(port: Output, difference: Output) -> bool:
    """Whether the port is the SquaredDifference of the same two tensors."""
    return any([a, b] == difference.node.inputs for a, b in operands(port.node, SquaredDifference))


def _extents(x: Output, over: Sequence[int]) -> list[int]:
    """The extents of these axes, if they are the last ones and known; else nothing."""
    shape = x.spec.shape or ()
    extents = [shape[i] for i in over]
    last = list(over) == list(range(len(shape) - len(over), len(shape)))
    return extents if last and not any(isinstance(d, Sym) for d in extents) else []


# ---- what scales and shifts it

def _term(node: Node, users: dict[int, list[Node]], ops: tuple[type, ...],
          extents: Sequence[int]) -> tuple[Node, Output] | None:
    """The only user of a norm's result, if it is one of these ops with a constant per normalised element; and that
    constant."""
    found = users.get(id(node.outputs[0]), [])
    if len(found) != 1 or not isinstance(found[0].op, ops):
        return None
    user = found[0]
    position = int(user.inputs[0] is node.outputs[0])  # of the other operand
    source = user.inputs[position]
    shape = user.outputs[0].spec.shape
    value = constant_of(source)
    if source is None or value is None or shape is None or value.ndim > len(shape):
        return None
    if isinstance(user.op, Subtract) and not position:
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
