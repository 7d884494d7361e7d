"""Decomposed norms -> one layer: an MVN over any axes, an RMS norm over the last ones, or NormalizeL2.

These forms are matched, with squares, roots and quotients written in any way::

    (x - ReduceMean(x)) / Sqrt(ReduceMean(Power(x - ReduceMean(x), 2)) + eps)      x / Sqrt(ReduceMean(x * x) + eps)
    x / Sqrt(ReduceSum(x * x) + eps)      x / ReduceL2(x)
    x * r + (b - ReduceMean(x) * r), where r = s * Power(ReduceMean(SquaredDifference(x, ReduceMean(x))) + eps, -0.5)

``eps`` may be added to the root instead. The last form, which TensorFlow's functions write, becomes ``MVN(x) * s + b``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ovgpu.model import Model, Node, Output
from ovgpu.ops.arithmetic.arithmetic import Add, Divide, Multiply, Power, Sqrt, SquaredDifference, Subtract
from ovgpu.ops.base.op import op_of
from ovgpu.ops.normalization.normalization import MVN6, NormalizeL2, ScaledMVN, ScaledRMS
from ovgpu.ops.reduction import ReduceL2, ReduceMean, ReduceSum, Reduction
from ovgpu.passes._graph import NodeBuilder, constant_integers, negated, number_of, operands, rewrite
from ovgpu.symbolic import Sym


class Over(NamedTuple):
    """Tensor and some of its axes, in ascending order."""

    x: Output
    axes: tuple[int, ...]


class Root(NamedTuple):
    """Root of ``square + eps`` if ``inside``, else the root of ``square``, plus ``eps``."""

    square: Output
    eps: float
    inside: bool


def join_norms(model: Model) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand; they are inferred again."""
    rewrite(model, _fuse)


def _fuse(node: Node) -> bool:
    if not node.ports or not node.ports[0].spec.type.is_real():
        return False
    return _quotient(node) or _moments(node) or _euclidean(node)


def _quotient(node: Node) -> bool:
    """Replace a node that divides by a root by a norm; return whether it is one."""
    for value, root in _quotients(node):
        over = _variance(root.square)
        if over is not None and over == _centred(value):
            _make_norm(node, over, root)
            return True
        over = _mean_square(root.square)
        if over is not None and over.x is value and last_extents(*over):
            _make_norm(node, over, root, ScaledRMS)
            return True
    return False


def _moments(node: Node) -> bool:
    """Replace ``x * r + (b - ReduceMean(x) * r)`` by the norm of x times a scale plus b; return whether it is one."""
    for product, rest in (*operands(node, Add), *operands(node, Subtract, ordered=True)):
        for x, factor in operands(product.node, Multiply):
            for root, scale in _scaled_reciprocals(factor):
                over = _variance(root.square)
                if over is None or over.x is not x:
                    continue
                for shift in _shifts(node, rest, over, factor):
                    _scale(node, over, root, scale, shift)
                    return True
    return False


def _euclidean(node: Node) -> bool:
    """Replace x over its Euclidean length by NormalizeL2; return whether the node is such a quotient."""
    for x, length in operands(node, Divide, ordered=True):
        square = _power(length, 0.5)
        found = [(_reduced(length, ReduceL2), 0.0)]
        if square is not None:
            found += [(_sum_of_squares(a), eps) for a, eps in ((square, 0.0), *_sums(square))]
        for over, eps in found:
            if over is not None and over.x is x and over.axes and eps >= 0:
                attributes: Any = {"eps": eps, "eps_mode": "add"}
                node.op, node.sources = NormalizeL2(**attributes), [x, NodeBuilder(node).constant(over.axes)]
                return True
    return False


def _make_norm(node: Node, over: Over, root: Root, cls: type[ScaledMVN] = ScaledMVN) -> None:
    if last_extents(*over):
        node.op = cls(rank=len(over.axes), eps=root.eps, inside=root.inside)
        node.sources = [over.x, None, None]
    else:
        mode = "inside_sqrt" if root.inside else "outside_sqrt"
        attributes: Any = {"eps": root.eps, "eps_mode": mode, "normalize_variance": True}
        node.op = MVN6(**attributes)
        node.sources = [over.x, NodeBuilder(node).constant(over.axes)]


def _scale(node: Node, over: Over, root: Root, scale: Output | None, shift: Output | None) -> None:
    """Make the node the last of the layers that compute the norm, multiply it by the scale, and add the shift."""
    graph = NodeBuilder(node)
    steps = [(op, other) for op, other in ((Multiply(), scale), (Add(), shift)) if other is not None]
    if not steps:
        return _make_norm(node, over, root)
    port: Output = graph.add(op_of(node))
    _make_norm(port.node, over, root)
    for op, other in steps[:-1]:
        port = graph.add(op, port, other)
    node.op, node.sources = steps[-1][0], [port, steps[-1][1]]
    return None


# ---- parts of a norm


def _quotients(node: Node) -> Iterator[tuple[Output, Root]]:
    """Yield (a, b) where the node computes a / b with a root b."""
    for a, b in operands(node, Divide, ordered=True):
        yield from ((a, root) for root in _roots(b))
    for a, b in operands(node, Multiply):
        yield from ((a, root) for root in _reciprocals(b))


def _roots(port: Output) -> Iterator[Root]:
    """Yield the port as a `Root`, if it is one."""
    square = _power(port, 0.5)
    for a, eps in () if square is None else _sums(square):
        yield Root(a, eps, inside=True)
    for a, eps in _sums(port):
        square = _power(a, 0.5)
        if square is not None:
            yield Root(square, eps, inside=False)


def _reciprocals(port: Output) -> Iterator[Root]:
    """Yield the root whose reciprocal the port is."""
    square, root = _power(port, -0.5), _power(port, -1)
    for a, eps in () if square is None else _sums(square):
        yield Root(a, eps, inside=True)
    if root is not None:
        yield from _roots(root)


def _scaled_reciprocals(port: Output) -> Iterator[tuple[Root, Output | None]]:
    """Yield (b, s) where the port is s / b with a root b; s is None for 1 / b."""
    yield from ((root, None) for root in _reciprocals(port))
    for a, b in operands(port.node, Multiply):
        yield from ((root, b) for root in _reciprocals(a))


def _shifts(node: Node, rest: Output, mean: Over, factor: Output) -> Iterator[Output | None]:
    """Yield b where the node adds ``b - mean * factor`` by means of its operand ``rest``; None stands for 0."""

    def is_product(port: Output) -> bool:
        return any(b is factor and _mean(a) == mean for a, b in operands(port.node, Multiply))

    def is_negative(port: Output) -> bool:
        source = negated(port.node)
        products = operands(port.node, Multiply)
        return (source is not None and is_product(source)) or any(
            b is factor and (m := negated(a.node)) is not None and _mean(m) == mean for a, b in products
        )

    if isinstance(node.op, Subtract):
        yield from [None] if is_product(rest) else []
        return
    yield from [None] if is_negative(rest) else []
    yield from (b for b, a in operands(rest.node, Subtract, ordered=True) if is_product(a))
    yield from (b for a, b in operands(rest.node, Add) if is_negative(a))


def _variance(port: Output) -> Over | None:
    """Return x and the axes if the port is the variance of x over them, else None."""
    mean = _mean(port)
    if mean is not None:
        distance = _power(mean.x, 2)
        over = None if distance is None else _centred(distance)
        if over is not None and over.axes == mean.axes:
            return over
        for x, other in operands(mean.x.node, SquaredDifference):
            if _mean(other) == (x, mean.axes):
                return Over(x, mean.axes)
    for a, b in operands(port.node, Subtract, ordered=True):
        over, root = _mean_square(a), _power(b, 2)
        if over is not None and root is not None and _mean(root) == over:
            return over
    return None


def _centred(port: Output) -> Over | None:
    """Return x and the axes if the port is x less its mean over them, else None."""
    for x, other in operands(port.node, Subtract, ordered=True):
        mean = _mean(other)
        if mean is not None and mean.x is x:
            return mean
    return None


def _mean_square(port: Output) -> Over | None:
    """Return x and the axes if the port is the mean of x's squares over them, else None."""
    mean = _mean(port)
    x = None if mean is None else _power(mean.x, 2)
    return None if mean is None or x is None else Over(x, mean.axes)


def _sum_of_squares(port: Output) -> Over | None:
    """Return x and the axes if the port is the sum of x's squares over them, else None."""
    total = _reduced(port, ReduceSum)
    x = None if total is None else _power(total.x, 2)
    return None if total is None or x is None else Over(x, total.axes)


def _mean(port: Output) -> Over | None:
    return _reduced(port, ReduceMean)


def _reduced(port: Output, kind: type[Reduction]) -> Over | None:
    """Return x and the axes if the port reduces x by ``kind`` with ``keep_dims``, else None."""
    op: Any = port.node.op
    if type(port.node.op) is not kind or not op.keep_dims:
        return None
    x, axes = port.node.sources[0], constant_integers(port.node.sources[1])
    if x is None or axes is None or not x.spec.rank:
        return None
    return Over(x, tuple(sorted(axis % x.spec.rank for axis in axes)))


def _power(port: Output, exponent: float) -> Output | None:
    """Return x where the port is x to that power, else None."""
    if exponent == 0.5 and isinstance(port.node.op, Sqrt):
        return port.node.sources[0]
    if exponent == 2:
        found = next((a for a, b in operands(port.node, Multiply) if a is b), None)
    elif exponent == -1:
        found = next((b for a, b in operands(port.node, Divide, ordered=True) if number_of(a) == 1), None)
    else:
        found = None
    powers = operands(port.node, Power, ordered=True)
    return found or next((a for a, b in powers if number_of(b) == exponent), None)


def _sums(port: Output) -> Iterator[tuple[Output, float]]:
    """Yield (x, n) where the port is x plus a number n that adds no axes."""
    for a, b in operands(port.node, Add):
        number = number_of(b)
        if number is not None and a.spec.rank == port.spec.rank:
            yield a, number


def last_extents(x: Output, axes: Sequence[int]) -> list[int]:
    """Return the extents of these axes if they are the last ones and known, else an empty list."""
    shape = x.spec.shape or ()
    if list(axes) != list(range(len(shape) - len(axes), len(shape))):
        return []
    extents = [shape[i] for i in axes]
    return [] if any(isinstance(d, Sym) for d in extents) else extents
