"""Trigonometric and hyperbolic functions; angles are in radians."""

from __future__ import annotations

from ovgpu.ops.base.elementwise import Binary, Unary
from ovgpu.ops.base.op import Array, op
from ovgpu.ops.base.xp import Namespace


class Function(Unary):
    """Base of functions that are computed in floating point."""

    types = "number"
    floating = True


@op("Sin", "opset1", "arithmetic/sin-1")
class Sin(Function):
    """Sine of ``x``.

    >>> sin([0.0, 1.5708])
    [0.0, 1.0]
    """

    cuda_expr = "sin(x)"
    half_precision = "bounded"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.sin(x)


@op("Cos", "opset1", "arithmetic/cos-1")
class Cos(Function):
    """Cosine of ``x``.

    >>> cos([0.0, 3.1416])
    [1.0, -1.0]
    """

    cuda_expr = "cos(x)"
    half_precision = "bounded"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.cos(x)


@op("Tan", "opset1", "arithmetic/tan-1")
class Tan(Function):
    """Tangent of ``x``.

    >>> tan([0.0, 0.7854])
    [0.0, 1.0]
    """

    cuda_expr = "tan(x)"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.tan(x)


@op("Asin", "opset1", "arithmetic/asin-1")
class Asin(Function):
    """Inverse sine of ``x``.

    >>> asin([0.0, 1, 2])
    [0.0, 1.571, nan]
    """

    cuda_expr = "asin(x)"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.arcsin(x)


@op("Acos", "opset1", "arithmetic/acos-1")
class Acos(Function):
    """Inverse cosine of ``x``.

    >>> acos([-1.0, 0, 1])
    [3.142, 1.571, 0.0]
    """

    cuda_expr = "acos(x)"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.arccos(x)


@op("Atan", "opset1", "arithmetic/atan-1")
class Atan(Function):
    """Inverse tangent of ``x``.

    >>> atan([0.0, 1, inf])
    [0.0, 0.7854, 1.571]
    """

    cuda_expr = "atan(x)"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.arctan(x)


@op("Sinh", "opset1", "arithmetic/sinh-1")
class Sinh(Function):
    """Hyperbolic sine of ``x``.

    >>> sinh([0.0, 1])
    [0.0, 1.175]
    """

    cuda_expr = "sinh(x)"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.sinh(x)


@op("Cosh", "opset1", "arithmetic/cosh-1")
class Cosh(Function):
    """Hyperbolic cosine of ``x``.

    >>> cosh([0.0, 1])
    [1.0, 1.543]
    """

    cuda_expr = "cosh(x)"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.cosh(x)


@op("Tanh", "opset1", "arithmetic/tanh-1")
class Tanh(Function):
    """Hyperbolic tangent of ``x``.

    >>> tanh([0.0, 1, 100])
    [0.0, 0.7616, 1.0]
    """

    cuda_expr = "tanh(x)"
    half_precision = "bounded"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.tanh(x)


@op("Asinh", "opset4", "arithmetic/asinh-3")
class Asinh(Function):
    """Inverse hyperbolic sine of ``x``.

    >>> asinh([0.0, 1.175])
    [0.0, 1.0]
    """

    cuda_expr = "asinh(x)"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.arcsinh(x)


@op("Acosh", "opset4", "arithmetic/acosh-3")
class Acosh(Function):
    """Inverse hyperbolic cosine of ``x``.

    >>> acosh([1.0, 1.543, 0])
    [0.0, 1.0, nan]
    """

    cuda_expr = "acosh(x)"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.arccosh(x)


@op("Atanh", "opset4", "arithmetic/atanh-3")
class Atanh(Function):
    """Inverse hyperbolic tangent of ``x``.

    >>> atanh([0.0, 0.7616, 1])
    [0.0, 1.0, inf]
    """

    cuda_expr = "atanh(x)"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.arctanh(x)


@op("Atan2", "opset17", "arithmetic/atan2-17")
class Atan2(Binary):
    """Angle of the point (x, y) in radians, in [-pi, pi]."""

    types = "real"
    supports_symbolic = False
    cuda_expr = "atan2(y, x)"

    def fn(self, xp: Namespace, y: Array, x: Array) -> Array:
        return xp.arctan2(y, x)
