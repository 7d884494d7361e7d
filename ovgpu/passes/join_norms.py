"""Decomposed norms -> one layer: an MVN over any axes, an RMS norm over the last ones, or NormalizeL2.

These forms are matched, with squares, roots and quotients written in any way::

    (x - ReduceMean(x)) / Sqrt(ReduceMean(Power(x - ReduceMean(x), 2)) + eps)      x / Sqrt(ReduceMean(x * x) + eps)
    x / Sqrt(ReduceSum(x * x) + eps)      x / ReduceL2(x)
    x * r + (b - ReduceMean(x) * r), where r = s * Power(ReduceMean(SquaredDifference(x, ReduceMean(x))) + eps, -0.5)

``eps`` may be added to the root instead. The last form is TensorFlow's; it becomes ``MVN(x) * s + b``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ovgpu.model import Model, Node, Output
from ovgpu.ops.arithmetic.arithmetic import Add, Divide, Multiply, Power, Sqrt, SquaredDifference, Subtract
from ovgpu.ops.base.op import op_of
from ovgpu.ops.normalization.normalization import MVN6, NormalizeL2, ScaledMVN, ScaledRMS
from ovgpu.ops.reduction import ReduceL2, ReduceMean, ReduceSum, Reduction
from ovgpu.passes._graph import NodeBuilder, constant_integers, negated, operands, rewrite, scalar_of
from ovgpu.symbolic import Sym


class Over(NamedTuple):
    """Tensor and some of its axes, in ascending order."""

    x: Output
    axes: tuple[int, ...]


class Root(NamedTuple):
    """``Sqrt(square + eps)`` if ``inside``, else ``Sqrt(square) + eps``."""

    square: Output
    eps: float
    inside: bool


def join_norms(model: Model) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand; they are inferred again."""
    rewrite(model, _fuse)


def _fuse(node: Node) -> bool:
    if not node.ports or not node.ports[0].spec.type.is_real():
        return False
    return _replace_quotient(node) or _replace_moments(node) or _replace_euclidean(node)


def _replace_quotient(node: Node) -> bool:
    """Make a node that divides by a root an MVN or RMS norm, if it computes one; return whether it does."""
    for value, root in _match_quotients(node):
        over = _match_variance(root.square)
        if over is not None and over == _match_centred(value):
            _make_norm(node, over, root)
            return True
        over = _match_mean_square(root.square)
        if over is not None and over.x is value and last_extents(*over):
            _make_norm(node, over, root, ScaledRMS)
            return True
    return False


def _replace_moments(node: Node) -> bool:
    """Make ``x * r + (b - ReduceMean(x) * r)`` an MVN of x times a scale plus b; return whether the node is this."""
    for product, rest in (*operands(node, Add), *operands(node, Subtract, ordered=True)):
        for x, factor in operands(product.node, Multiply):
            for root, scale in _match_scaled_reciprocals(factor):
                over = _match_variance(root.square)
                if over is None or over.x is not x:
                    continue
                for shift in _match_shifts(node, rest, over, factor):
                    _make_scaled_norm(node, over, root, scale, shift)
                    return True
    return False


def _replace_euclidean(node: Node) -> bool:
    """Make a quotient of x and its Euclidean length a NormalizeL2; return whether the node is such a quotient."""
    for x, length in operands(node, Divide, ordered=True):
        square = _match_power(length, 0.5)
        lengths = [(_match_reduction(length, ReduceL2), 0.0)]
        if square is not None:
            lengths += [(_match_sum_of_squares(a), eps) for a, eps in ((square, 0.0), *_match_sums(square))]
        for over, eps in lengths:
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


def _make_scaled_norm(node: Node, over: Over, root: Root, scale: Output | None, shift: Output | None) -> None:
    """Make the node ``norm * scale + shift``, where a scale or shift of None is left out."""
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


def _match_quotients(node: Node) -> Iterator[tuple[Output, Root]]:
    """Yield every (a, b) such that the node computes a / b with a root b."""
    for a, b in operands(node, Divide, ordered=True):
        yield from ((a, root) for root in _match_roots(b))
    for a, b in operands(node, Multiply):
        yield from ((a, root) for root in _match_reciprocals(b))


def _match_roots(port: Output) -> Iterator[Root]:
    """Yield the ways to read the port as a `Root`."""
    square = _match_power(port, 0.5)
    for a, eps in () if square is None else _match_sums(square):
        yield Root(a, eps, inside=True)
    for a, eps in _match_sums(port):
        square = _match_power(a, 0.5)
        if square is not None:
            yield Root(square, eps, inside=False)


def _match_reciprocals(port: Output) -> Iterator[Root]:
    """Yield every root b such that the port is 1 / b."""
    square, root = _match_power(port, -0.5), _match_power(port, -1)
    for a, eps in () if square is None else _match_sums(square):
        yield Root(a, eps, inside=True)
    if root is not None:
        yield from _match_roots(root)


def _match_scaled_reciprocals(port: Output) -> Iterator[tuple[Root, Output | None]]:
    """Yield every (b, s) such that the port is s / b with a root b; s is None for 1 / b."""
    yield from ((root, None) for root in _match_reciprocals(port))
    for a, b in operands(port.node, Multiply):
        yield from ((root, b) for root in _match_reciprocals(a))


def _match_shifts(node: Node, rest: Output, mean: Over, factor: Output) -> Iterator[Output | None]:
    """Yield every b such that the node adds ``b - mean * factor`` with its operand ``rest``; None stands for 0."""

    def is_product(port: Output) -> bool:
        return any(b is factor and _match_mean(a) == mean for a, b in operands(port.node, Multiply))

    def is_negative(port: Output) -> bool:
        source = negated(port.node)
        products = operands(port.node, Multiply)
        return (source is not None and is_product(source)) or any(
            b is factor and (m := negated(a.node)) is not None and _match_mean(m) == mean for a, b in products
        )

    if isinstance(node.op, Subtract):
        yield from [None] if is_product(rest) else []
        return
    yield from [None] if is_negative(rest) else []
    yield from (b for b, a in operands(rest.node, Subtract, ordered=True) if is_product(a))
    yield from (b for a, b in operands(rest.node, Add) if is_negative(a))


def _match_variance(port: Output) -> Over | None:
    """Return x and the axes if the port is the variance of x over them, else None."""
    mean = _match_mean(port)
    if mean is not None:
        distance = _match_power(mean.x, 2)
        over = None if distance is None else _match_centred(distance)
        if over is not None and over.axes == mean.axes:
            return over
        for x, other in operands(mean.x.node, SquaredDifference):
            if _match_mean(other) == (x, mean.axes):
                return Over(x, mean.axes)
    for a, b in operands(port.node, Subtract, ordered=True):
        over, root = _match_mean_square(a), _match_power(b, 2)
        if over is not None and root is not None and _match_mean(root) == over:
            return over
    return None


def _match_centred(port: Output) -> Over | None:
    """Return x and the axes if the port is x minus its mean over them, else None."""
    for x, other in operands(port.node, Subtract, ordered=True):
        mean = _match_mean(other)
        if mean is not None and mean.x is x:
            return mean
    return None


def _match_mean_square(port: Output) -> Over | None:
    """Return x and the axes if the port is the mean of x's squares over them, else None."""
    mean = _match_mean(port)
    x = None if mean is None else _match_power(mean.x, 2)
    return None if mean is None or x is None else Over(x, mean.axes)


def _match_sum_of_squares(port: Output) -> Over | None:
    """Return x and the axes if the port is the sum of x's squares over them, else None."""
    total = _match_reduction(port, ReduceSum)
    x = None if total is None else _match_power(total.x, 2)
    return None if total is None or x is None else Over(x, total.axes)


def _match_mean(port: Output) -> Over | None:
    return _match_reduction(port, ReduceMean)


def _match_reduction(port: Output, reduction: type[Reduction]) -> Over | None:
    """Return x and the axes if the port is this reduction of x with ``keep_dims``, else None."""
    op: Any = port.node.op
    if type(port.node.op) is not reduction or not op.keep_dims:
        return None
    x, axes = port.node.sources[0], constant_integers(port.node.sources[1])
    if x is None or axes is None or not x.spec.rank:
        return None
    return Over(x, tuple(sorted(axis % x.spec.rank for axis in axes)))


def _match_power(port: Output, exponent: float) -> Output | None:
    """Return x if the port is x to the power of ``exponent``, else None."""
    if exponent == 0.5 and isinstance(port.node.op, Sqrt):
        return port.node.sources[0]
    if exponent == 2:
        base = next((a for a, b in operands(port.node, Multiply) if a is b), None)
    elif exponent == -1:
        base = next((b for a, b in operands(port.node, Divide, ordered=True) if scalar_of(a) == 1), None)
    else:
        base = None
    powers = operands(port.node, Power, ordered=True)
    return base or next((a for a, b in powers if scalar_of(b) == exponent), None)


def _match_sums(port: Output) -> Iterator[tuple[Output, float]]:
    """Yield every (x, n) such that the port is x plus a number n, and x has the rank of the port."""
    for a, b in operands(port.node, Add):
        addend = scalar_of(b)
        if addend is not None and a.spec.rank == port.spec.rank:
            yield a, addend


def last_extents(x: Output, axes: Sequence[int]) -> list[int]:
    """Return the extents of these axes if they are the last axes of x and static, else an empty list."""
    shape = x.spec.shape or ()
    if list(axes) != list(range(len(shape) - len(axes), len(shape))):
        return []
    extents = [shape[i] for i in axes]
    return [] if any(isinstance(d, Sym) for d in extents) else extents
