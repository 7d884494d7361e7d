"""Activation functions. NaN stays NaN in all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import Elementwise, Unary, merge_types
from ovgpu.ops.base.op import op
from ovgpu.ops.base.special import erf, polynomial
from ovgpu.symbolic import Int, Spec, Sym, onto, same
from ovgpu.types import Type


class Activation(Unary):
    """Of any numbers; integers are computed in floating point and rounded."""

    types = "number"
    floating = True


class FloatActivation(Unary):
    types = "real"


class Parametrised(Elementwise):
    """``x`` with parameters in further inputs, of one element each; the output has the shape of ``x``."""

    types = "real"

    def infer(self, x: Spec, *parameters: Spec | None) -> tuple[Spec, ...]:
        self.check_inputs(1 + len(parameters))
        given = [p for p in parameters if p is not None]
        kind = merge_types([x, *given])
        self.check_type(kind)
        for p, name in zip(given, ("second", "third")):
            for extent in p.shape or ():
                same(extent, 1, f"the {name} input must be a scalar, but it has an axis of {{0}} elements")
        return (Spec(kind, x.shape),)

    def align(self, inputs: Sequence[Any]) -> Sequence[Any]:
        x, *parameters = inputs
        return [x, *(p.reshape(()) for p in parameters)]


# ---- rectifiers

@op("Relu", "opset1", aliases=["ReLU"])
class Relu(Unary):
    types = "number"
    cuda_expr = "x > 0 || x != x ? x : T(0)"

    def fn(self, xp: Any, x: Any) -> Any:
        return xp.maximum(x, 0)


def _maybe_channels(x: Sequence[Int], slope: Sequence[Int]) -> bool:
    """Whether the slope may be one of axis 1, as far as the extents are known."""
    if len(slope) != 1 or len(x) < 2:
        return False
    return isinstance(slope[0], Sym) or isinstance(x[1], Sym) or slope[0] == x[1]


@op("PRelu", "opset1", aliases=["PReLU"])
class PRelu(Elementwise):
    """``x`` where it is not negative, else ``slope * x``. A slope of one axis with the length of axis 1 of
    ``x`` belongs to that axis; any other broadcasts to ``x`` by NumPy's rules."""

    types = "number"
    cuda_expr = "x < 0 ? slope * x : x"

    def fn(self, xp: Any, x: Any, slope: Any) -> Any:
        return xp.where(x < 0, x * slope, x)

    def infer(self, x: Spec, slope: Spec) -> tuple[Spec, ...]:
        kind = merge_types([x, slope])
        self.check_type(kind)
        if x.shape is not None and slope.shape is not None:
            if not _maybe_channels(x.shape, slope.shape):
                for a, b in zip_longest(reversed(slope.shape), reversed(x.shape), fillvalue=1):
                    onto(a, b, "the slope's dimension {0} does not broadcast to {1}")
        return (Spec(kind, x.shape),)

    def align(self, inputs: Sequence[Any]) -> Sequence[Any]:
        x, slope = inputs
        if slope.ndim == 1 and x.ndim > 1 and slope.shape[0] == x.shape[1]:
            return x, slope.reshape(slope.shape + (1,) * (x.ndim - 2))
        extra = slope.ndim - x.ndim  # leading axes of extent 1
        for a, b in zip(reversed(slope.shape), reversed(x.shape)):
            if a not in (1, b):  # of a slope that could have been one of channels, until its length was known
                raise OpError(f"the slope's dimension {a} does not broadcast to {b}")
        return x, slope.reshape(slope.shape[max(extra, 0):])


@op("Elu", "opset1")
class Elu(Activation):
    """``x`` where positive, else ``alpha * (exp(x) - 1)``."""

    alpha: float

    cuda_expr = "x > 0 ? x : alpha * expm1(x)"

    def fn(self, xp: Any, x: Any) -> Any:
        negative = xp.expm1(xp.minimum(x, 0))
        if self.alpha != 1:
            negative = negative * self.alpha
        if 0 <= self.alpha <= 1:  # then expm1(x) >= x: the greater one is the right one
            return xp.maximum(x, negative)
        return negative + xp.maximum(x, 0)


@op("Selu", "opset1")
class Selu(Parametrised):
    """``lambda * x`` where positive, else ``lambda * alpha * (exp(x) - 1)``."""

    cuda_expr = "lambda_ * (x > 0 ? x : alpha * expm1(x))"

    def fn(self, xp: Any, x: Any, alpha: Any, lambda_: Any) -> Any:
        return (xp.expm1(xp.minimum(x, 0)) * alpha + xp.maximum(x, 0)) * lambda_


@op("Clamp", "opset1")
class Clamp(Unary):
    """Between ``min`` and ``max``; for integers these are rounded inwards.

    With no integer between them it is ``max``, by the specification's min(max(x, min), max)."""

    min: float
    max: float

    types = "number"

    def infer(self, x: Spec) -> tuple[Spec, ...]:
        if self.min > self.max:
            raise OpError(f"min {self.min:g} is greater than max {self.max:g}")
        return super().infer(x)

    def _limits(self, dtype: np.dtype[Any]) -> tuple[float, float]:
        if dtype.kind == "f":
            return self.min, self.max
        info = np.iinfo(dtype)
        low, high = (max(info.min, min(info.max, _integer(bound, rounded)))
                     for bound, rounded in ((self.min, math.ceil), (self.max, math.floor)))
        return min(low, high), high

    def fn(self, xp: Any, x: Any) -> Any:
        return xp.clip(x, *self._limits(x.dtype))

    def cuda_expression(self, kind: Type) -> str:
        if kind.is_real():
            return "x < T(min) ? T(min) : x > T(max) ? T(max) : x"
        low, high = self._limits(kind.storage)
        least = f"T({low + 1}ll - 1)" if kind.is_signed() else f"T({low}ull)"  # C++ has no literal for -2**63
        most = f"T({high}ll)" if kind.is_signed() else f"T({high}ull)"
        return f"x < {least} ? {least} : x > {most} ? {most} : x"


def _integer(value: float, rounded: Any) -> Any:
    return rounded(value) if math.isfinite(value) else value


# ---- sigmoids

@op("Sigmoid", "opset1")
class Sigmoid(Activation):
    cuda_expr = "T(1) / (T(1) + exp(-x))"

    def fn(self, xp: Any, x: Any) -> Any:
        return xp.reciprocal(xp.exp(-x) + 1)


@op("HardSigmoid", "opset1")
class HardSigmoid(Parametrised):
    cuda_expr = "alpha * x + beta < 0 ? T(0) : alpha * x + beta > 1 ? T(1) : alpha * x + beta"

    def fn(self, xp: Any, x: Any, alpha: Any, beta: Any) -> Any:
        return xp.maximum(xp.minimum(x * alpha + beta, 1), 0)


@op("HSigmoid", "opset5")
class HSigmoid(Activation):
    cuda_expr = "x < -3 ? T(0) : x > 3 ? T(1) : (x + T(3)) / T(6)"

    def fn(self, xp: Any, x: Any) -> Any:
        return xp.minimum(xp.maximum(x + 3, 0), 6) / 6


@op("HSwish", "opset4")
class HSwish(Activation):
    cuda_expr = "x * (x < -3 ? T(0) : x > 3 ? T(1) : (x + T(3)) / T(6))"

    def fn(self, xp: Any, x: Any) -> Any:
        return xp.minimum(xp.maximum(x + 3, 0), 6) / 6 * x


@op("Swish", "opset4")
class Swish(Parametrised):
    """``x * sigmoid(beta * x)``."""

    cuda_expr = "x / (T(1) + exp(-beta * x))"

    def fn(self, xp: Any, x: Any, beta: Any = 1) -> Any:
        return x / (xp.exp(x * -beta) + 1)


# ---- smooth rectifiers

@op("SoftPlus", "opset4")
class SoftPlus(FloatActivation):
    """``log(1 + exp(x))``, which is ``x`` for large x."""

    cuda_expr = "x > T(40) ? x : log1p(exp(x))"

    def fn(self, xp: Any, x: Any) -> Any:
        return xp.maximum(xp.log1p(xp.exp(xp.minimum(x, 40))), x)


@op("Mish", "opset4")
class Mish(FloatActivation):
    """``x * tanh(softplus(x))``; for e = exp(x) the tanh is (e*e + 2e) / (e*e + 2e + 2), and 1 from 20 on."""

    cuda_expr = "x > T(20) ? x : x * (exp(x) * (exp(x) + T(2)) / (exp(x) * (exp(x) + T(2)) + T(2)))"

    def fn(self, xp: Any, x: Any) -> Any:
        e = xp.exp(xp.minimum(x, 20))
        n = (e + 2) * e
        return n / (n + 2) * x


@op("SoftSign", "opset9")
class SoftSign(FloatActivation):
    cuda_expr = "x / (T(1) + fabs(x))"

    def fn(self, xp: Any, x: Any) -> Any:
        return x / (xp.abs(x) + 1)


# logit(Phi(x)) / x over x**2, where Phi is the normal distribution (fit: 7e-8 of the value of Gelu)
_LOGIT = (1.5957689418323504113, 0.0726680149874902418, -0.000066060015665033028418,
          -0.00011051114806823735554, 7.94014702057917013e-6, -2.6692575322529890602e-7,
          3.6107117898561479859e-9)


def gelu_erf(xp: Any, x: Any) -> Any:
    """``x * Phi(x)``, as ``x * sigmoid(x * polynomial(x**2))`` in f32: half the operations of an erf."""
    if x.dtype == np.float64:
        return (erf(xp, x * math.sqrt(0.5)) + 1) * x * 0.5
    return x / (xp.exp(polynomial(xp.square(x), [-c for c in _LOGIT]) * x) + 1)


def gelu_tanh(xp: Any, x: Any) -> Any:
    """``0.5 * x * (1 + tanh(u))``, ``u = sqrt(2 / pi) * (x + 0.044715 * x**3)``; that is x * sigmoid(2u)."""
    slope = -2 * math.sqrt(2 / math.pi)
    return x / (xp.exp((xp.square(x) * (0.044715 * slope) + slope) * x) + 1)


@op("Gelu", "opset2")
class Gelu(FloatActivation):
    """``x * Phi(x)``, by the error function."""

    cuda_expr = "T(0.5) * x * (T(1) + erf(x * T(0.70710678118654752440)))"

    def fn(self, xp: Any, x: Any) -> Any:
        return gelu_erf(xp, x)


@op("Gelu", "opset7")
class Gelu7(Gelu):
    """Adds the approximation by tanh."""

    approximation_mode: Literal["erf", "tanh"] = "erf"

    def fn(self, xp: Any, x: Any) -> Any:
        return gelu_erf(xp, x) if self.approximation_mode == "erf" else gelu_tanh(xp, x)

    def cuda_expression(self, kind: Type) -> str:
        if self.approximation_mode == "erf":
            return self.cuda_expr
        return "T(0.5) * x * (T(1) + tanh(T(0.79788456080286535588) * (x + T(0.044715) * x * x * x)))"
