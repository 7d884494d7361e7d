"""Arithmetic, rounding and common functions of one and two tensors.

Integers wrap around on overflow. An integer divided by zero gives 0; the specification does not define it.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal

import numpy as np

from ovgpu.ops.base.elementwise import Binary, Interval, Unary, decide
from ovgpu.ops.base.op import Array, op
from ovgpu.ops.base.special import erf, erfinv
from ovgpu.ops.base.xp import Namespace
from ovgpu.symbolic import Int, Sym, apply, bounds, maximum, minimum
from ovgpu.types import Type


class Arithmetic(Binary):
    """Base of binary ops on any number type."""

    types = "number"


@op("Add", "opset1", "arithmetic/add-1")
class Add(Arithmetic):
    """``a + b``.

    >>> add([[1], [2]], [10, 20])
    [[11, 21], [12, 22]]
    """

    cuda_expr = "a + b"
    half_precision = "promoted"
    position_independent = True

    def fn(self, xp: Namespace, a: Array, b: Array) -> Array:
        return a + b

    def interval(self, a: Interval, b: Interval) -> Interval:
        return a[0] + b[0], a[1] + b[1]


@op("Subtract", "opset1", "arithmetic/subtract-1")
class Subtract(Arithmetic):
    """``a - b``.

    >>> subtract([5, 7], 2)
    [3, 5]
    """

    cuda_expr = "a - b"
    half_precision = "promoted"
    position_independent = True

    def fn(self, xp: Namespace, a: Array, b: Array) -> Array:
        return a - b

    def interval(self, a: Interval, b: Interval) -> Interval:
        return a[0] - b[1], a[1] - b[0]


@op("Multiply", "opset1", "arithmetic/multiply-1")
class Multiply(Arithmetic):
    """``a * b``.

    >>> multiply([[1, 2], [3, 4]], [10, 100])
    [[10, 200], [30, 400]]
    """

    cuda_expr = "a * b"
    half_precision = "promoted"
    position_independent = True

    def fn(self, xp: Namespace, a: Array, b: Array) -> Array:
        return a * b

    def interval(self, a: Interval, b: Interval) -> Interval:
        ends = [x * y for x in a for y in b]
        return min(ends), max(ends)


@op("SquaredDifference", "opset1", "arithmetic/squared-difference-1")
class SquaredDifference(Arithmetic):
    """``(a - b) ** 2``.

    >>> squared_difference([1.0, 5], 3.0)
    [4.0, 4.0]
    """

    cuda_expr = "(a - b) * (a - b)"

    def fn(self, xp: Namespace, a: Array, b: Array) -> Array:
        return xp.square(a - b)


@op("Maximum", "opset1", "arithmetic/maximum-1")
class Maximum(Arithmetic):
    """The greater of ``a`` and ``b``; NaN if either is NaN.

    >>> maximum([1, 5], 3)
    [3, 5]
    """

    cuda_expr = "a > b || a != a ? a : b"
    half_precision = "promoted"
    position_independent = True

    def fn(self, xp: Namespace, a: Array, b: Array) -> Array:
        return xp.maximum(a, b)

    def symbolic(self, a: Any, b: Any) -> Any:
        return maximum(a, b)

    def interval(self, a: Interval, b: Interval) -> Interval:
        return max(a[0], b[0]), max(a[1], b[1])


@op("Minimum", "opset1", "arithmetic/minimum-1")
class Minimum(Arithmetic):
    """The smaller of ``a`` and ``b``; NaN if either is NaN.

    >>> minimum([1, 5], 3)
    [1, 3]
    """

    cuda_expr = "a < b || a != a ? a : b"
    half_precision = "promoted"
    position_independent = True

    def fn(self, xp: Namespace, a: Array, b: Array) -> Array:
        return xp.minimum(a, b)

    def symbolic(self, a: Any, b: Any) -> Any:
        return minimum(a, b)

    def interval(self, a: Interval, b: Interval) -> Interval:
        return min(a[0], b[0]), min(a[1], b[1])


# ---- division


def _truncation_is_floor(a: Int, b: Int) -> bool:
    """Return whether truncated and floor division are known to agree, because a >= 0 and b > 0."""
    return bounds(a)[0] >= 0 and bounds(b)[0] > 0


@op("Divide", "opset1", "arithmetic/divide-1")
class Divide(Arithmetic):
    """``a / b``; the quotient of integers is floored if ``m_pythondiv``, else truncated.

    OpenVINO's plugins always truncate. For IR files the specification decides here. Models that are read from ONNX,
    whose quotients are truncated, are read without ``m_pythondiv``.

    >>> divide([7, 9], 2)
    [3, 4]
    """

    m_pythondiv: bool = True

    half_precision = "promoted"

    def fn(self, xp: Namespace, a: Array, b: Array) -> Array:
        if a.dtype.kind == "f":
            return a / b
        return xp.floor_divide(a if self.m_pythondiv else a - xp.fmod(a, b), b)

    def symbolic(self, a: Any, b: Any) -> Any:
        if not isinstance(b, Sym) and b == 0:
            return 0
        return a // b if self.m_pythondiv or _truncation_is_floor(a, b) else apply("truncdiv", a, b)

    def cuda_expression(self, dtype: Type) -> str:
        if dtype.is_real():
            return "a / b"
        if self.m_pythondiv and dtype.is_signed():
            return "b == 0 ? T(0) : b == -1 ? T(0 - a) : T(a / b - (a % b != 0 && (a < 0) != (b < 0)))"
        if dtype.is_signed():
            return "b == 0 ? T(0) : b == -1 ? T(0 - a) : T(a / b)"
        return "b == 0 ? T(0) : T(a / b)"


@op("Mod", "opset1", "arithmetic/mod-1")
class Mod(Arithmetic):
    """Remainder of truncated division, with the sign of the dividend.

    >>> mod([7, -7], 3)
    [1, -1]
    """

    def fn(self, xp: Namespace, a: Array, b: Array) -> Array:
        return xp.fmod(a, b)

    def symbolic(self, a: Any, b: Any) -> Any:
        if not isinstance(b, Sym) and b == 0:
            return 0
        return a % b if _truncation_is_floor(a, b) else apply("fmod", a, b)

    def cuda_expression(self, dtype: Type) -> str:
        if dtype.is_real():
            return "fmod(a, b)"
        return "b == 0 || b == T(-1) ? T(0) : T(a % b)" if dtype.is_signed() else "b == 0 ? T(0) : T(a % b)"


@op("FloorMod", "opset1", "arithmetic/floormod-1")
class FloorMod(Arithmetic):
    """Remainder of floor division, with the sign of the divisor; a zero is positive, as in OpenVINO.

    >>> floor_mod([7, -7], 3)
    [1, 2]
    """

    def fn(self, xp: Namespace, a: Array, b: Array) -> Array:
        remainder = xp.remainder(a, b)
        return remainder + 0.0 if a.dtype.kind == "f" else remainder  # -0.0 + 0.0 is 0.0

    def symbolic(self, a: Any, b: Any) -> Any:
        return a % b if isinstance(b, Sym) or b else 0

    def cuda_expression(self, dtype: Type) -> str:
        if dtype.is_real():
            return "fmod(a, b) + (fmod(a, b) != 0 && (fmod(a, b) < 0) != (b < 0) ? b : T(0))"
        if dtype.is_signed():
            return "b == 0 || b == T(-1) ? T(0) : T(a % b + (a % b != 0 && (a < 0) != (b < 0) ? b : T(0)))"
        return "b == 0 ? T(0) : T(a % b)"


@op("Power", "opset1", "arithmetic/power-1")
class Power(Arithmetic):
    """``a ** b``; integers to a negative power are truncated to 0, except for 1 and -1.

    >>> power([1, 2, -1], -1)
    [1, 0, -1]
    """

    supports_symbolic = False

    def fn(self, xp: Namespace, a: Array, b: Array) -> Array:
        if a.dtype.kind != "i":
            return xp.power(a, b)
        units = xp.where((a == 1) | ((a == -1) & (b & 1 == 0)), a * a, a * (a == -1))
        return xp.where(b < 0, units, xp.power(a, xp.maximum(b, 0)))

    def cuda_expression(self, dtype: Type) -> str:
        # not pow of doubles: on a GPU it may fall just short of an integer, and truncation would give one less
        return "pow(a, b)" if dtype.is_real() else "integer_power(a, b)"


# ---- one tensor


class Number(Unary):
    """Base of unary ops on any number type."""

    types = "number"


@op("Negative", "opset1", "arithmetic/negative-1")
class Negative(Number):
    """``-x``.

    >>> negative([1.0, -2])
    [-1.0, 2.0]
    """

    supports_symbolic = True
    cuda_expr = "-x"
    half_precision = "promoted"
    position_independent = True

    def fn(self, xp: Namespace, x: Array) -> Array:
        return -x


@op("Abs", "opset1", "arithmetic/abs-1")
class Abs(Number):
    """Absolute value of ``x``.

    >>> abs([-1.5, 2])
    [1.5, 2.0]
    """

    supports_symbolic = True
    half_precision = "promoted"
    position_independent = True

    def fn(self, xp: Namespace, x: Array) -> Array:
        return x if x.dtype.kind == "u" else xp.abs(x)

    def symbolic(self, x: Any) -> Any:
        return decide("abs", abs, x)

    def cuda_expression(self, dtype: Type) -> str:
        return "abs(x)" if dtype.is_signed() else "x"


@op("Sign", "opset1", "arithmetic/sign-1")
class Sign(Number):
    """-1, 0 or 1, the sign of ``x``; NaN for NaN.

    >>> sign([-3.0, 0, 5, nan])
    [-1.0, 0.0, 1.0, nan]
    """

    cuda_expr = "x > 0 ? T(1) : x < 0 ? T(-1) : x == x ? T(0) : x"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.sign(x)


class Rounding(Number):
    """Base of rounding ops, which leave integers as they are."""

    supports_symbolic = True
    cuda_function: ClassVar[str]

    def symbolic(self, x: Any) -> Any:
        return x

    def cuda_expression(self, dtype: Type) -> str:
        return f"{self.cuda_function}(x)" if dtype.is_real() else "x"


@op("Floor", "opset1", "arithmetic/floor-1")
class Floor(Rounding):
    """The greatest integer not above ``x``.

    >>> floor([-1.5, 1.5])
    [-2.0, 1.0]
    """

    cuda_function = "floor"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.floor(x) if x.dtype.kind == "f" else x


@op("Ceiling", "opset1", "arithmetic/ceiling-1")
class Ceiling(Rounding):
    """The smallest integer not below ``x``.

    >>> ceiling([-1.5, 1.5])
    [-1.0, 2.0]
    """

    cuda_function = "ceil"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.ceil(x) if x.dtype.kind == "f" else x


@op("Round", "opset5", "arithmetic/round-5")
class Round(Rounding):
    """The integer nearest to ``x``; a half goes to the even one, or away from zero. Booleans are accepted too.

    >>> round([-0.5, 0.5, 1.5, 2.5], mode="half_to_even")
    [0.0, 0.0, 2.0, 2.0]
    """

    mode: Literal["half_to_even", "half_away_from_zero"] = "half_to_even"

    types = "any"

    def fn(self, xp: Namespace, x: Array) -> Array:
        if x.dtype.kind != "f":
            return x
        if self.mode == "half_to_even":
            return xp.rint(x)
        # add the largest number below a half: 0.49999997 + 0.5 would round to 1
        half = float(np.nextafter(x.dtype.type(0.5), x.dtype.type(0)))
        return xp.trunc(x + xp.copysign(half, x))

    def cuda_expression(self, dtype: Type) -> str:
        if not dtype.is_real():
            return "x"
        return "rint(x)" if self.mode == "half_to_even" else "round(x)"


class Function(Number):
    """Base of functions that are computed in floating point."""

    floating = True


@op("Sqrt", "opset1", "arithmetic/sqrt-1")
class Sqrt(Function):
    """Square root of ``x``.

    >>> sqrt([4.0, 2, -1])
    [2.0, 1.414, nan]
    """

    cuda_expr = "sqrt(x)"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.sqrt(x)


@op("Exp", "opset1", "activation/exp-1")
class Exp(Function):
    """``e ** x``.

    >>> exp([-inf, 0, 1])
    [0.0, 1.0, 2.718]
    """

    cuda_expr = "exp(x)"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.exp(x)


@op("Log", "opset1", "arithmetic/log-1")
class Log(Function):
    """Natural logarithm of ``x``.

    >>> log([0.0, 1, 10])
    [-inf, 0.0, 2.303]
    """

    cuda_expr = "log(x)"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.log(x)


@op("Erf", "opset1", "arithmetic/erf-1")
class Erf(Function):
    """Gauss error function of ``x``.

    >>> erf([-100.0, 0, 1])
    [-1.0, 0.0, 0.8427]
    """

    cuda_expr = "erf(x)"
    half_precision = "bounded"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return erf(xp, x)


@op("ErfInv", "opset17", "arithmetic/erfinv-17")
class ErfInv(Unary):
    """Inverse of the error function; floating-point types only.

    >>> erfinv([0.0, 0.8427, 1])
    [0.0, 1.0, inf]
    """

    types = "real"
    cuda_expr = "erfinv(x)"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return erfinv(xp, x)
