"""Activation functions. NaN stays NaN in all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest
from typing import Any, Literal

import numpy as np

from ovgpu.errors import OpError
from ovgpu.ops.base.elementwise import Elementwise, Unary, merge_types
from ovgpu.ops.base.op import Array, op
from ovgpu.ops.base.special import erf, polynomial
from ovgpu.ops.base.xp import Namespace
from ovgpu.spec import Spec
from ovgpu.symbolic import Int, Sym, onto, same
from ovgpu.types import Type


class Activation(Unary):
    """Base of activations of any number type; integers are computed in floating point and rounded."""

    types = "number"
    floating = True


class FloatActivation(Unary):
    """Base of activations of floating-point types only."""

    types = "real"


class Parametrised(Elementwise):
    """Base of activations of ``x`` with one-element parameters as further inputs; the output has the shape of ``x``."""

    types = "real"

    def infer_specs(self, x: Spec, *parameters: Spec | None) -> tuple[Spec, ...]:
        self.check_inputs(1 + len(parameters))
        present = [p for p in parameters if p is not None]
        dtype = merge_types([x, *present])
        self.check_type(dtype)
        for p, name in zip(present, ("second", "third")):
            for extent in p.shape or ():
                same(extent, 1, f"the {name} input must be a scalar, but it has an axis of {{0}} elements")
        return (Spec(dtype, x.shape),)

    def align(self, inputs: Sequence[Any]) -> Sequence[Any]:
        x, *parameters = inputs
        return [x, *(p.reshape(()) for p in parameters)]


# ---- rectifiers


@op("Relu", "opset1", "activation/relu-1", aliases=["ReLU"])
class Relu(Unary):
    """``max(x, 0)``.

    >>> relu([-2.0, 0, 3])
    [0.0, 0.0, 3.0]
    """

    types = "number"
    cuda_expr = "x > 0 || x != x ? x : T(0)"
    half_precision = "promoted"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.maximum(x, 0)


def _maybe_channels(x: Sequence[Int], slope: Sequence[Int]) -> bool:
    """Return whether the slope may hold one value per channel (axis 1), as far as the extents are known."""
    if len(slope) != 1 or len(x) < 2:
        return False
    return isinstance(slope[0], Sym) or isinstance(x[1], Sym) or slope[0] == x[1]


@op("PRelu", "opset1", "activation/prelu-1", aliases=["PReLU"])
class PRelu(Elementwise):
    """``x`` where it is not negative, else ``slope * x``. A 1-D slope as long as axis 1 of ``x`` holds one value per
    channel; any other slope broadcasts to ``x`` by NumPy's rules.

    >>> prelu([[[-1.0, 2], [-3, 4]]], [0.1, 0.5])
    [[[-0.1, 2.0], [-1.5, 4.0]]]
    """

    types = "number"
    mixed_reals = (1,)
    cuda_expr = "x < 0 ? slope * x : x"
    half_precision = "promoted"

    def fn(self, xp: Namespace, x: Array, slope: Array) -> Array:
        return xp.where(x < 0, x * slope, x)

    def infer_specs(self, x: Spec, slope: Spec) -> tuple[Spec, ...]:
        dtype = merge_types([x, slope])
        self.check_type(dtype)
        if x.shape is not None and slope.shape is not None:
            if not _maybe_channels(x.shape, slope.shape):
                for a, b in zip_longest(reversed(slope.shape), reversed(x.shape), fillvalue=1):
                    onto(a, b, "the slope's dimension {0} does not broadcast to {1}")
        return (Spec(dtype, x.shape),)

    def align(self, inputs: Sequence[Any]) -> Sequence[Any]:
        x, slope = inputs
        if slope.ndim == 1 and x.ndim > 1 and slope.shape[0] == x.shape[1]:
            return x, slope.reshape(slope.shape + (1,) * (x.ndim - 2))
        extra = slope.ndim - x.ndim  # leading axes of extent 1
        for a, b in zip(reversed(slope.shape), reversed(x.shape)):
            if a not in (1, b):  # `infer_specs` skips this check while the slope may be one of channels
                raise OpError(f"the slope's dimension {a} does not broadcast to {b}")
        return x, slope.reshape(slope.shape[max(extra, 0) :])


@op("Elu", "opset1", "activation/elu-1")
class Elu(Activation):
    """``x`` where positive, else ``alpha * (exp(x) - 1)``.

    >>> elu([-100.0, -1, 2], alpha=2.0)
    [-2.0, -1.264, 2.0]
    """

    alpha: float

    cuda_expr = "x > 0 ? x : alpha * expm1(x) + T(0)"  # adding 0 makes a negative zero positive, as in `fn`
    half_precision = "promoted"

    def fn(self, xp: Namespace, x: Array) -> Array:
        negative = xp.expm1(xp.minimum(x, 0))
        if self.alpha != 1:
            negative = negative * self.alpha
        if 0 <= self.alpha <= 1:  # then alpha * expm1(x) >= x for x < 0, so the maximum picks the right branch
            return xp.maximum(x, negative)
        return negative + xp.maximum(x, 0)


@op("Selu", "opset1", "activation/selu-1")
class Selu(Parametrised):
    """``lambda * x`` where positive, else ``lambda * alpha * (exp(x) - 1)``.

    >>> selu([-100.0, 0, 2], 2.0, 3.0)
    [-6.0, 0.0, 6.0]
    """

    cuda_expr = "lambda_ * (x > 0 ? x : alpha * expm1(x))"
    half_precision = "promoted"

    def fn(self, xp: Namespace, x: Array, alpha: Array, lambda_: Array) -> Array:
        return (xp.expm1(xp.minimum(x, 0)) * alpha + xp.maximum(x, 0)) * lambda_


@op("Clamp", "opset1", "activation/clamp-1")
class Clamp(Unary):
    """``x`` limited to [``min``, ``max``]; for integers the bounds are rounded inwards.

    If no integer lies between them, the result is ``max``, by the specification's min(max(x, min), max).

    >>> clamp([-5, 0, 5], min_value=-1.5, max_value=1.5)
    [-1, 0, 1]
    """

    min: float
    max: float

    types = "number"
    half_precision = "promoted"
    position_independent = True

    def infer_specs(self, x: Spec) -> tuple[Spec, ...]:
        if self.min > self.max:
            raise OpError(f"min {self.min:g} is greater than max {self.max:g}")
        return super().infer_specs(x)

    def _limits(self, dtype: np.dtype[Any]) -> tuple[float, float]:
        if dtype.kind == "f":
            return self.min, self.max
        info = np.iinfo(dtype)
        low, high = (
            max(info.min, min(info.max, _round_if_finite(bound, rounding)))
            for bound, rounding in ((self.min, math.ceil), (self.max, math.floor))
        )
        return min(low, high), high

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.clip(x, *self._limits(x.dtype))

    def cuda_expression(self, dtype: Type) -> str:
        if dtype.is_real():
            return "x < T(min) ? T(min) : x > T(max) ? T(max) : x"
        low, high = self._limits(dtype.storage)
        least = f"T({low + 1}ll - 1)" if dtype.is_signed() else f"T({low}ull)"  # C++ has no literal for -2**63
        most = f"T({high}ll)" if dtype.is_signed() else f"T({high}ull)"
        return f"x < {least} ? {least} : x > {most} ? {most} : x"


def _round_if_finite(value: float, rounding: Any) -> Any:
    return rounding(value) if math.isfinite(value) else value


# ---- sigmoids


@op("Sigmoid", "opset1", "activation/sigmoid-1")
class Sigmoid(Activation):
    """``1 / (1 + exp(-x))``.

    >>> sigmoid([-100.0, 0, 1])
    [0.0, 0.5, 0.7311]
    """

    cuda_expr = "T(1) / (T(1) + exp(-x))"
    half_precision = "bounded"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.reciprocal(xp.exp(-x) + 1)


@op("HardSigmoid", "opset1", "activation/hard-sigmoid-1")
class HardSigmoid(Parametrised):
    """``alpha * x + beta``, limited to [0, 1].

    >>> hard_sigmoid([-9.0, 0, 1, 9], 0.2, 0.5)
    [0.0, 0.5, 0.7, 1.0]
    """

    cuda_expr = "alpha * x + beta < 0 ? T(0) : alpha * x + beta > 1 ? T(1) : alpha * x + beta"
    half_precision = "bounded"

    def fn(self, xp: Namespace, x: Array, alpha: Array, beta: Array) -> Array:
        return xp.maximum(xp.minimum(x * alpha + beta, 1), 0)


@op("HSigmoid", "opset5", "activation/hsigmoid-5")
class HSigmoid(Activation):
    """``min(max(x + 3, 0), 6) / 6``.

    >>> hsigmoid([-3.0, 0, 1, 3])
    [0.0, 0.5, 0.6667, 1.0]
    """

    cuda_expr = "x < -3 ? T(0) : x > 3 ? T(1) : (x + T(3)) / T(6)"
    half_precision = "bounded"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.minimum(xp.maximum(x + 3, 0), 6) / 6


@op("HSwish", "opset4", "activation/hswish-4")
class HSwish(Activation):
    """``x * min(max(x + 3, 0), 6) / 6``.

    >>> hswish([-3.0, 0, 1, 3])
    [0.0, 0.0, 0.6667, 3.0]
    """

    cuda_expr = "x * (x < -3 ? T(0) : x > 3 ? T(1) : (x + T(3)) / T(6))"
    half_precision = "promoted"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.minimum(xp.maximum(x + 3, 0), 6) / 6 * x


@op("Swish", "opset4", "activation/swish-4")
class Swish(Parametrised):
    """``x * sigmoid(beta * x)``.

    >>> swish([-1.0, 0, 1], 2.0)
    [-0.1192, 0.0, 0.8808]
    """

    cuda_expr = "x / (T(1) + exp(-beta * x))"
    half_precision = "promoted"

    def fn(self, xp: Namespace, x: Array, beta: Array = 1) -> Array:
        return x / (xp.exp(x * -beta) + 1)


# ---- smooth rectifiers


@op("SoftPlus", "opset4", "activation/softplus-4")
class SoftPlus(FloatActivation):
    """``log(1 + exp(x))``, computed as ``x`` for large x.

    >>> softplus([-100.0, 0, 100])
    [0.0, 0.6931, 100.0]
    """

    cuda_expr = "x > T(40) ? x : log1p(exp(x))"
    half_precision = "promoted"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return xp.maximum(xp.log1p(xp.exp(xp.minimum(x, 40))), x)


@op("Mish", "opset4", "activation/mish-4")
class Mish(FloatActivation):
    """``x * tanh(softplus(x))``; for e = exp(x) the tanh is (e*e + 2e) / (e*e + 2e + 2), 1 from x = 20 on.

    >>> mish([-100.0, 0, 1, 100])
    [0.0, 0.0, 0.8651, 100.0]
    """

    cuda_expr = "x > T(20) ? x : x * (exp(x) * (exp(x) + T(2)) / (exp(x) * (exp(x) + T(2)) + T(2)))"
    half_precision = "promoted"

    def fn(self, xp: Namespace, x: Array) -> Array:
        e = xp.exp(xp.minimum(x, 20))
        n = (e + 2) * e
        return n / (n + 2) * x


@op("SoftSign", "opset9", "activation/softsign-9")
class SoftSign(FloatActivation):
    """``x / (1 + abs(x))``.

    >>> softsign([-3.0, 0, 1])
    [-0.75, 0.0, 0.5]
    """

    cuda_expr = "x / (T(1) + fabs(x))"
    half_precision = "bounded"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return x / (xp.abs(x) + 1)


# Polynomial coefficients of logit(Phi(x)) / x in x**2, where Phi is the normal CDF (fit error: 7e-8 of Gelu's value)
_LOGIT_COEFFICIENTS = (
    1.5957689418323504113,
    0.0726680149874902418,
    -0.000066060015665033028418,
    -0.00011051114806823735554,
    7.94014702057917013e-6,
    -2.6692575322529890602e-7,
    3.6107117898561479859e-9,
)


def gelu_erf(xp: Namespace, x: Array) -> Array:
    """Return ``x * Phi(x)``; below f64 as ``x * sigmoid(x * polynomial(x**2))``, half the operations of an erf."""
    if x.dtype == np.float64:
        return (erf(xp, x * math.sqrt(0.5)) + 1) * x * 0.5
    return x / (xp.exp(polynomial(xp.square(x), [-c for c in _LOGIT_COEFFICIENTS]) * x) + 1)


def gelu_tanh(xp: Namespace, x: Array) -> Array:
    """Return ``0.5 * x * (1 + tanh(u))`` as x * sigmoid(2u), with ``u = sqrt(2 / pi) * (x + 0.044715 * x**3)``."""
    slope = -2 * math.sqrt(2 / math.pi)
    return x / (xp.exp((xp.square(x) * (0.044715 * slope) + slope) * x) + 1)


@op("Gelu", "opset2", "activation/gelu-2")
class Gelu(FloatActivation):
    """``x * Phi(x)``, where Phi is the normal CDF, by the error function."""

    cuda_expr = "T(0.5) * x * (T(1) + erf(x * T(0.70710678118654752440)))"
    half_precision = "promoted"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return gelu_erf(xp, x)


@op("Gelu", "opset7", "activation/gelu-7")
class Gelu7(Gelu):
    """Gelu-2 with the choice of the tanh approximation.

    >>> gelu([-3.0, 0, 3], approximation_mode="tanh")
    [-0.003637, 0.0, 2.996]
    """

    approximation_mode: Literal["erf", "tanh"] = "erf"

    def fn(self, xp: Namespace, x: Array) -> Array:
        return gelu_erf(xp, x) if self.approximation_mode == "erf" else gelu_tanh(xp, x)

    def cuda_expression(self, dtype: Type) -> str:
        if self.approximation_mode == "erf":
            return self.cuda_expr
        return "T(0.5) * x * (T(1) + tanh(T(0.79788456080286535588) * (x + T(0.044715) * x * x * x)))"
