"""Trigonometric and hyperbolic functions of one tensor."""

from __future__ import annotations

from typing import Any

from ovgpu.ops.base.elementwise import Binary, Unary
from ovgpu.ops.base.op import op


class Function(Unary):
    """A function of floating-point numbers."""

    types = "number"
    floating = True


@op("Sin", "opset1")
class Sin(Function):
    cuda_expr = "sin(x)"

    def fn(self, xp: Any, x: Any) -> Any:
        return xp.sin(x)


@op("Cos", "opset1")
class Cos(Function):
    cuda_expr = "cos(x)"

    def fn(self, xp: Any, x: Any) -> Any:
        return xp.cos(x)


@op("Tan", "opset1")
class Tan(Function):
    cuda_expr = "tan(x)"

    def fn(self, xp: Any, x: Any) -> Any:
        return xp.tan(x)


@op("Asin", "opset1")
class Asin(Function):
    cuda_expr = "asin(x)"

    def fn(self, xp: Any, x: Any) -> Any:
        return xp.arcsin(x)


@op("Acos", "opset1")
class Acos(Function):
    cuda_expr = "acos(x)"

    def fn(self, xp: Any, x: Any) -> Any:
        return xp.arccos(x)


@op("Atan", "opset1")
class Atan(Function):
    cuda_expr = "atan(x)"

    def fn(self, xp: Any, x: Any) -> Any:
        return xp.arctan(x)


@op("Sinh", "opset1")
class Sinh(Function):
    cuda_expr = "sinh(x)"

    def fn(self, xp: Any, x: Any) -> Any:
        return xp.sinh(x)


@op("Cosh", "opset1")
class Cosh(Function):
    cuda_expr = "cosh(x)"

    def fn(self, xp: Any, x: Any) -> Any:
        return xp.cosh(x)


@op("Tanh", "opset1")
class Tanh(Function):
    cuda_expr = "tanh(x)"

    def fn(self, xp: Any, x: Any) -> Any:
        return xp.tanh(x)


@op("Asinh", "opset4")
class Asinh(Function):
    cuda_expr = "asinh(x)"

    def fn(self, xp: Any, x: Any) -> Any:
        return xp.arcsinh(x)


@op("Acosh", "opset4")
class Acosh(Function):
    cuda_expr = "acosh(x)"

    def fn(self, xp: Any, x: Any) -> Any:
        return xp.arccosh(x)


@op("Atanh", "opset4")
class Atanh(Function):
    cuda_expr = "atanh(x)"

    def fn(self, xp: Any, x: Any) -> Any:
        return xp.arctanh(x)


@op("Atan2", "opset17")
class Atan2(Binary):
    """The angle of the point (x, y), in [-pi, pi]."""

    types = "real"
    supports_symbolic = False
    cuda_expr = "atan2(y, x)"

    def fn(self, xp: Any, y: Any, x: Any) -> Any:
        return xp.arctan2(y, x)
