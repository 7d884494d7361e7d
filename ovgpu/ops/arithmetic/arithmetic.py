"""Arithmetic, rounding and the common functions of one and two tensors.

Integers wrap around on overflow. An integer divided by zero is 0, where the specification has no answer.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from ovgpu.ops.base.elementwise import Binary, Unary, decide
from ovgpu.ops.base.op import op
from ovgpu.ops.base.special import erf, erfinv
from ovgpu.symbolic import Int, Sym, apply, bounds, maximum, minimum
from ovgpu.types import Type


class Arithmetic(Binary):
    types = "number"


@op("Add", "opset1")
class Add(Arithmetic):
    cuda_expr = "a + b"

    def fn(self, xp: Any, a: Any, b: Any) -> Any:
        return a + b


@op("Subtract", "opset1")
class Subtract(Arithmetic):
    cuda_expr = "a - b"

    def fn(self, xp: Any, a: Any, b: Any) -> Any:
        return a - b


@op("Multiply", "opset1")
class Multiply(Arithmetic):
    cuda_expr = "a * b"

    def fn(self, xp: Any, a: Any, b: Any) -> Any:
        return a * b


@op("SquaredDifference", "opset1")
class SquaredDifference(Arithmetic):
    cuda_expr = "(a - b) * (a - b)"

    def fn(self, xp: Any, a: Any, b: Any) -> Any:
        return xp.square(a - b)


@op("Maximum", "opset1")
class Maximum(Arithmetic):
    """NaN if either is NaN."""

    cuda_expr = "a > b || a != a ? a : b"

    def fn(self, xp: Any, a: Any, b: Any) -> Any:
        return xp.maximum(a, b)

    def symbolic(self, a: Any, b: Any) -> Any:
        return maximum(a, b)


@op("Minimum", "opset1")
class Minimum(Arithmetic):
    """NaN if either is NaN."""

    cuda_expr = "a < b || a != a ? a : b"

    def fn(self, xp: Any, a: Any, b: Any) -> Any:
        return xp.minimum(a, b)

    def symbolic(self, a: Any, b: Any) -> Any:
        return minimum(a, b)


# ---- division

def _positive(a: Int, b: Int) -> bool:
    """Whether truncation and floor are the same: a >= 0 and b > 0."""
    return bounds(a)[0] >= 0 and bounds(b)[0] > 0


@op("Divide", "opset1")
class Divide(Arithmetic):
    """Integers are divided with floor if ``m_pythondiv``, else truncated."""

    m_pythondiv: bool = True

    def fn(self, xp: Any, a: Any, b: Any) -> Any:
        if a.dtype.kind == "f":
            return a / b
        return xp.floor_divide(a if self.m_pythondiv else a - xp.fmod(a, b), b)

    def symbolic(self, a: Any, b: Any) -> Any:
        if not isinstance(b, Sym) and b == 0:
            return 0
        return a // b if self.m_pythondiv or _positive(a, b) else apply("truncdiv", a, b)

    def cuda_expression(self, kind: Type) -> str:
        if kind.is_real():
            return "a / b"
        if self.m_pythondiv and kind.is_signed():
            return "b == 0 ? T(0) : b == -1 ? T(0 - a) : T(a / b - (a % b != 0 && (a < 0) != (b < 0)))"
        if kind.is_signed():
            return "b == 0 ? T(0) : b == -1 ? T(0 - a) : T(a / b)"
        return "b == 0 ? T(0) : T(a / b)"


@op("Mod", "opset1")
class Mod(Arithmetic):
    """The remainder of truncated division: it has the sign of the dividend."""

    def fn(self, xp: Any, a: Any, b: Any) -> Any:
        return xp.fmod(a, b)

    def symbolic(self, a: Any, b: Any) -> Any:
        if not isinstance(b, Sym) and b == 0:
            return 0
        return a % b if _positive(a, b) else apply("fmod", a, b)

    def cuda_expression(self, kind: Type) -> str:
        if kind.is_real():
            return "fmod(a, b)"
        return "b == 0 || b == T(-1) ? T(0) : T(a % b)" if kind.is_signed() else "b == 0 ? T(0) : T(a % b)"


@op("FloorMod", "opset1")
class FloorMod(Arithmetic):
    """The remainder of floor division: it has the sign of the divisor."""

    def fn(self, xp: Any, a: Any, b: Any) -> Any:
        return xp.remainder(a, b)

    def symbolic(self, a: Any, b: Any) -> Any:
        return a % b if isinstance(b, Sym) or b else 0

    def cuda_expression(self, kind: Type) -> str:
        if kind.is_real():
            return "fmod(a, b) + (fmod(a, b) != 0 && (fmod(a, b) < 0) != (b < 0) ? b : T(0))"
        if kind.is_signed():
            return "b == 0 || b == T(-1) ? T(0) : T(a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : T(0)))"
        return "b == 0 ? T(0) : T(a % b)"


@op("Power", "opset1")
class Power(Arithmetic):
    """Integers to a negative power are truncated: 0, but for 1 and -1."""

    supports_symbolic = False

    def fn(self, xp: Any, a: Any, b: Any) -> Any:
        if a.dtype.kind != "i":
            return xp.power(a, b)
        units = xp.where((a == 1) | ((a == -1) & (b & 1 == 0)), a * a, a * (a == -1))
        return xp.where(b < 0, units, xp.power(a, xp.maximum(b, 0)))

    def cuda_expression(self, kind: Type) -> str:
        # pow of doubles would not do: on a card it may fall just short of an integer, which is then cut off to one less
        return "pow(a, b)" if kind.is_real() else "integer_power(a, b)"


# ---- one tensor

class Number(Unary):
    types = "number"


@op("Negative", "opset1")
class Negative(Number):
    supports_symbolic = True
    cuda_expr = "-x"

    def fn(self, xp: Any, x: Any) -> Any:
        return -x


@op("Abs", "opset1")
class Abs(Number):
    supports_symbolic = True

    def fn(self, xp: Any, x: Any) -> Any:
        return x if x.dtype.kind == "u" else xp.abs(x)

    def symbolic(self, x: Any) -> Any:
        return decide("abs", abs, x)

    def cuda_expression(self, kind: Type) -> str:
        return "abs(x)" if kind.is_signed() else "x"


@op("Sign", "opset1")
class Sign(Number):
    """-1, 0 or 1; NaN of NaN."""

    cuda_expr = "x > 0 ? T(1) : x < 0 ? T(-1) : x == x ? T(0) : x"

    def fn(self, xp: Any, x: Any) -> Any:
        return xp.sign(x)


class Rounding(Number):
    """Leaves integers as they are."""

    supports_symbolic = True
    cuda_function: ClassVar[str]

    def symbolic(self, x: Any) -> Any:
        return x

    def cuda_expression(self, kind: Type) -> str:
        return f"{self.cuda_function}(x)" if kind.is_real() else "x"


@op("Floor", "opset1")
class Floor(Rounding):
    cuda_function = "floor"

    def fn(self, xp: Any, x: Any) -> Any:
        return xp.floor(x) if x.dtype.kind == "f" else x


@op("Ceiling", "opset1")
class Ceiling(Rounding):
    cuda_function = "ceil"

    def fn(self, xp: Any, x: Any) -> Any:
        return xp.ceil(x) if x.dtype.kind == "f" else x


@op("Round", "opset5")
class Round(Rounding):
    """To the nearest integer; a half goes to the even one, or away from zero. Booleans are taken too."""

    mode: Literal["half_to_even", "half_away_from_zero"] = "half_to_even"

    types = "any"

    def fn(self, xp: Any, x: Any) -> Any:
        if x.dtype.kind != "f":
            return x
        if self.mode == "half_to_even":
            return xp.rint(x)
        # the number below a half: 0.49999997 + 0.5 would be 1
        half = float(np.nextafter(x.dtype.type(0.5), x.dtype.type(0)))
        return xp.trunc(x + xp.copysign(half, x))

    def cuda_expression(self, kind: Type) -> str:
        if not kind.is_real():
            return "x"
        return "rint(x)" if self.mode == "half_to_even" else "round(x)"


class Function(Number):
    """A function of floating-point numbers."""

    floating = True


@op("Sqrt", "opset1")
class Sqrt(Function):
    cuda_expr = "sqrt(x)"

    def fn(self, xp: Any, x: Any) -> Any:
        return xp.sqrt(x)


@op("Exp", "opset1")
class Exp(Function):
    cuda_expr = "exp(x)"

    def fn(self, xp: Any, x: Any) -> Any:
        return xp.exp(x)


@op("Log", "opset1")
class Log(Function):
    cuda_expr = "log(x)"

    def fn(self, xp: Any, x: Any) -> Any:
        return xp.log(x)


@op("Erf", "opset1")
class Erf(Function):
    cuda_expr = "erf(x)"

    def fn(self, xp: Any, x: Any) -> Any:
        return erf(xp, x)


@op("ErfInv", "opset17")
class ErfInv(Unary):
    types = "real"
    cuda_expr = "erfinv(x)"

    def fn(self, xp: Any, x: Any) -> Any:
        return erfinv(xp, x)
