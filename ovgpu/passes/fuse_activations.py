"""Decomposed activation functions -> Gelu, Swish, HSwish, HSigmoid, Mish, Sigmoid, SoftPlus and Softmax.

    x * Sigmoid(x) -> Swish(x)      Exp(x) / ReduceSum(Exp(x)) -> Softmax(x)      ...

Constant factors may stand anywhere in a product. Numbers are compared within a tolerance that depends on their type.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import isclose, pi, sqrt
from typing import Any

from ovgpu.model import Model, Node, Output
from ovgpu.ops.activation.activation import Clamp, Gelu7, HSigmoid, HSwish, Mish, Relu, Sigmoid, SoftPlus, Swish
from ovgpu.ops.activation.softmax import Softmax8
from ovgpu.ops.arithmetic.arithmetic import (
    Add,
    Divide,
    Erf,
    Exp,
    Log,
    Maximum,
    Minimum,
    Multiply,
    Negative,
    Power,
    Subtract,
)
from ovgpu.ops.arithmetic.trigonometry import Tanh
from ovgpu.ops.base.op import Op
from ovgpu.ops.reduction import ReduceMax, ReduceSum
from ovgpu.passes._graph import NodeBuilder, constant_integers, operands, rewrite, scalar_of
from ovgpu.types import Type

# By element type, for products of a few constants, each of which was rounded to the type.
RELATIVE_TOLERANCE = {Type.f32: 1e-5, Type.f64: 1e-5, Type.f16: 4e-3, Type.bf16: 3e-2}

Replacement = tuple[Op, Sequence[Output]]


def fuse_activations(model: Model) -> None:
    """Rewrite the model and its bodies in place. Port specs must be inferred beforehand; they are inferred again."""
    rewrite(model, _fuse)


def _fuse(node: Node) -> bool:
    if not node.ports or node.ports[0].spec.type not in RELATIVE_TOLERANCE:
        return False
    replacement = next(_find_replacements(node), None)
    if replacement is None:
        return False
    op, inputs = replacement
    if inputs[0].spec.rank != node.ports[0].spec.rank:
        return False
    node.op, node.sources = op, [*inputs]
    return True


def _find_replacements(node: Node) -> Iterator[Replacement]:
    """Yield ops that compute the node's value, with their inputs."""
    port = node.ports[0]
    near = _Matcher(RELATIVE_TOLERANCE[port.spec.type])
    if isinstance(node.op, Log):
        yield from ((SoftPlus(), [x]) for x in _match_exp_plus_one(node.sources[0]))
    if isinstance(node.op, Divide):
        yield from _match_quotient(node)
    if isinstance(node.op, (Multiply, Divide)):
        for clipped, scale in _strip_factors(port):
            yield from ((HSigmoid(), [x]) for x in _match_clip(clipped) if near(scale, 1 / 6))
        for scale, x, other in _match_products(port):
            yield from near.product(node, scale, x, other)


class _Matcher:
    """Matcher of patterns that compares numbers within a relative tolerance."""

    def __init__(self, tolerance: float) -> None:
        self.tolerance = tolerance

    def __call__(self, a: float, b: float) -> bool:
        return isclose(a, b, rel_tol=self.tolerance)

    def product(self, node: Node, scale: float, x: Output, other: Output) -> Iterator[Replacement]:
        """Yield the activations of x that are equal to ``scale * x * other``, with their inputs."""
        op = other.node.op
        source = other.node.sources[0] if other.node.sources else None
        if isinstance(op, Add):
            yield from ((Gelu7(approximation_mode=mode), [x]) for mode in self.gelu(scale, x, other))
        elif isinstance(op, Sigmoid) and source is not None and self(scale, 1):
            for argument, beta in _strip_factors(source):
                if argument is x:
                    betas = [] if self(beta, 1) else [NodeBuilder(node).constant(beta, x.spec.type)]
                    yield Swish(), [x, *betas]
        elif isinstance(op, HSigmoid) and source is x and self(scale, 1):
            yield HSwish(), [x]
        elif isinstance(op, Tanh) and source is not None and isinstance(source.node.op, SoftPlus):
            if source.node.sources[0] is x and self(scale, 1):
                yield Mish(), [x]
        elif self(scale, 1 / 6):
            yield from ((HSwish(), [x]) for clipped in _match_clip(other) if clipped is x)

    def gelu(self, scale: float, x: Output, other: Output) -> Iterator[Any]:
        """Yield the approximation modes in which ``scale * x * other`` is a Gelu of x.

        ``other`` must be a number plus an Erf or a Tanh.
        """
        for function, one in operands(other.node, Add):
            half = scalar_of(one)
            for value, factor in _strip_factors(function) if half is not None and self(half * scale, 0.5) else ():
                argument = value.node.sources[0] if isinstance(value.node.op, (Erf, Tanh)) else None
                if argument is None or not self(factor * scale, 0.5):
                    continue
                if isinstance(value.node.op, Erf):
                    yield from ("erf" for a, slope in _strip_factors(argument) if a is x and self(slope, sqrt(0.5)))
                else:
                    slopes = [n for a, n in _strip_factors(argument) if self.is_cubic(a, x)]
                    slopes += [n for n, a, b in _match_products(argument) if a is x and self.is_quadratic(b, x)]
                    yield from ("tanh" for slope in slopes if self(slope, sqrt(2 / pi)))

    def is_cubic(self, port: Output, x: Output) -> bool:
        """Return whether the port is x + 0.044715 x ** 3."""
        return any(a is x and self.is_term(b, x, 3) for a, b in operands(port.node, Add))

    def is_quadratic(self, port: Output, x: Output) -> bool:
        """Return whether the port is 1 + 0.044715 x ** 2."""
        return any(scalar_of(a) == 1 and self.is_term(b, x, 2) for a, b in operands(port.node, Add))

    def is_term(self, port: Output, x: Output, power: int) -> bool:
        """Return whether the port is 0.044715 x ** power."""
        term = _match_term(port, x)
        return term is not None and term[1] == power and self(term[0], 0.044715)


def _strip_factors(port: Output) -> Iterator[tuple[Output, float]]:
    """Yield every (x, n) such that the port is x times the number n; the port itself with 1 comes first."""
    scale = 1.0
    while True:
        yield port, scale
        factors = [(a, n) for a, b in operands(port.node, Multiply) if (n := scalar_of(b)) is not None]
        factors += [(a, 1 / n) for a, b in operands(port.node, Divide, ordered=True) if (n := scalar_of(b))]
        factors += [(x, -1) for x in port.node.sources if isinstance(port.node.op, Negative) and x is not None]
        if not factors:
            return
        port, scale = factors[0][0], scale * factors[0][1]


def _match_products(port: Output) -> Iterator[tuple[float, Output, Output]]:
    """Yield every (n, a, b) such that the port is the product n * a * b with a number n."""
    for whole, scale in _strip_factors(port):
        for left, right in operands(whole.node, Multiply):
            for a, n in _strip_factors(left):
                for b, m in _strip_factors(right):
                    yield scale * n * m, a, b


def _match_term(port: Output, x: Output) -> tuple[float, float] | None:
    """Return (n, p) such that the port is n * x ** p, else None."""
    value = scalar_of(port)
    if port is x or value is not None:
        return (1, 1) if value is None else (value, 0)
    for a, b in operands(port.node, Power, ordered=True):
        exponent = scalar_of(b)
        return (1, exponent) if a is x and exponent is not None else None
    for a, b in operands(port.node, Multiply):
        left, right = _match_term(a, x), _match_term(b, x)
        return None if left is None or right is None else (left[0] * right[0], left[1] + right[1])
    return None


def _match_clip(port: Output) -> Iterator[Output]:
    """Yield x where the port is x + 3 clipped to [0, 6]."""
    op, below = port.node.op, None
    if isinstance(op, Clamp) and (op.min, op.max) == (0, 6):
        below = port.node.sources[0]
    for a, b in operands(port.node, Minimum):
        if scalar_of(b) == 6:
            source = a.node.sources[0] if isinstance(a.node.op, Relu) else None
            below = source or next((x for x, y in operands(a.node, Maximum) if scalar_of(y) == 0), below)
    if below is not None:
        yield from (x for x, three in operands(below.node, Add) if scalar_of(three) == 3)


def _match_exp_plus_one(port: Output | None) -> Iterator[Output]:
    """Yield x where the port is 1 + exp(x)."""
    for a, one in operands(port.node, Add) if port is not None else ():
        source = a.node.sources[0] if isinstance(a.node.op, Exp) else None
        if source is not None and scalar_of(one) == 1:
            yield source


def _match_quotient(node: Node) -> Iterator[Replacement]:
    """Yield Sigmoid, Swish and Softmax if the node computes them as a quotient."""
    for above, below in operands(node, Divide, ordered=True):
        for argument in _match_exp_plus_one(below):
            x = next((x for x, scale in _strip_factors(argument) if scale == -1), None)
            if x is not None and scalar_of(above) == 1:
                yield Sigmoid(), [x]
            if x is not None and above is x:
                yield Swish(), [x]
        power = above.node.sources[0] if isinstance(above.node.op, Exp) else None
        axis = _reduced_axis(below, ReduceSum, above)
        if power is not None and axis is not None:
            shifted = (
                x
                for x, maximum in operands(power.node, Subtract, ordered=True)
                if _reduced_axis(maximum, ReduceMax, x) == axis
            )
            yield Softmax8(axis=axis), [next(shifted, power)]


def _reduced_axis(port: Output, reduction: type, data: Output) -> int | None:
    """Return the only axis along which the port reduces ``data`` with ``keep_dims``, else None."""
    op: Any = port.node.op
    if type(port.node.op) is not reduction or not op.keep_dims:
        return None
    if port.node.sources[0] is not data or data.spec.rank is None:
        return None
    axes = constant_integers(port.node.sources[1])
    return None if axes is None or len(axes) != 1 else axes[0] % data.spec.rank
