"""Error functions by rational approximation, written with array operations that can be traced.

The coefficients are minimax fits made for these forms. The stated fit errors are relative errors of the function.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array
from ovgpu.ops.base.xp import Namespace


def polynomial(x: Any, coefficients: Sequence[float]) -> Any:
    """Return ``sum(c * x**i)`` for the coefficients c0, c1, ..., by Horner's rule."""
    result = x * coefficients[-1] + coefficients[-2]
    for c in coefficients[-3::-1]:
        result = result * x + c
    return result


def monic(x: Any, coefficients: Sequence[float]) -> Any:
    """Return ``x**n + sum(c * x**i)`` for the n coefficients c0, c1, ..., by Horner's rule."""
    result = x + coefficients[-1]
    for c in coefficients[-2::-1]:
        result = result * x + c
    return result


def erf(xp: Namespace, x: Array) -> Array:
    """Return the error function of x. The error is about 2 units in the last place for f32, and 1e-15 for f64."""
    return _erf64(xp, x) if x.dtype == np.float64 else _erf32(xp, x)


# atanh(erf(x)) / x over x**2: it is smooth, so few coefficients suffice, and tanh saturates like erf (fit: 3e-9)
_ATANH_P = (3474.4229060422462541, 861.51746642713877013, 131.29179810609349868, 6.7049547988251029086)
_ATANH_Q = (3079.1271186587664975, 483.05379870544166241, 72.927946024906384864)


def _erf32(xp: Namespace, x: Array) -> Array:
    z = xp.minimum(xp.square(x), 1e6)  # beyond 1e6, tanh is 1; without the bound, inf / inf would give NaN
    return xp.tanh(x * (polynomial(z, _ATANH_P) / monic(z, _ATANH_Q)))


# erf(x) / x over x**2 for |x| < 1 (fit: 7e-19), and erfc(x) exp(x**2) for 1 <= x <= 6 (fit: 7e-17)
_ERF_P = (
    1.1283791670955125747,
    0.14350658184057831298,
    0.045483602580403411364,
    0.0018774082263677604468,
    0.00019688462453729892036,
    7.7713124293284897685e-8,
)
_ERF_Q = (
    1.0,
    0.46051273014014382585,
    0.093813036653386438783,
    0.01069307273370295976,
    0.00069249755020903860759,
    0.000020810227249662490467,
)
_ERFCX_P = (
    1.0000000581717865917,
    1.6305882600757121879,
    1.3094872488079911652,
    0.634978826315723314,
    0.19451701161636324756,
    0.035900093517088751359,
    0.003214873999707297965,
    -4.5282719175475794172e-11,
)
_ERFCX_Q = (
    1.0,
    2.7589680177303410689,
    3.4226464029222496521,
    2.4903155051460408846,
    1.1573116051367959387,
    0.34761942216279895092,
    0.063631383267011031714,
    0.005698211203535904235,
)


def _erf64(xp: Namespace, x: Array) -> Array:
    return xp.where(xp.abs(x) < 1, _erf_near(xp, x), xp.copysign(1 - _erfc_far(xp, xp.abs(x)), x))


def _erf_near(xp: Namespace, x: Array) -> Array:
    z = xp.minimum(xp.square(x), 1)
    return x * (polynomial(z, _ERF_P) / polynomial(z, _ERF_Q))


def _erfc_far(xp: Namespace, x: Array) -> Array:
    """Return erfc for x >= 1. Beyond 6 it is the value at 6, which is below the resolution of erf."""
    x = xp.minimum(x, 6)
    return xp.exp(-xp.square(x)) * (polynomial(x, _ERFCX_P) / polynomial(x, _ERFCX_Q))


# erfinv(x) / x over w = -log(1 - x**2) - 2.5 for w < 2.5, and over sqrt(w + 2.5) - 3 beyond (fits: 9e-8)
_INVERSE_NEAR = (
    1.5014094226984685548,
    0.24664072209952162275,
    -0.0041777120242597614313,
    -0.0012537043056870585118,
    0.000218605674553457369,
    -4.3976190626543456897e-6,
    -3.5297432814420519416e-6,
    3.4379712710827658642e-7,
    2.8603929615047119285e-8,
)
_INVERSE_FAR = (
    2.8329770013953142495,
    1.0016742289688631298,
    0.0094350605818441752103,
    -0.0076261747820664682296,
    0.0057654566043793519781,
    -0.0036567525673475434401,
    0.0012924269079415215334,
    0.000082690682628887650868,
    -0.00015992012676979695097,
)
# the far range up to the largest w of f64, as the start of Halley's iteration (fit: 2e-4)
_INVERSE_FAR_F64 = (
    2.8324048365148346865,
    1.0004013255062989506,
    0.013302257780566510154,
    -0.0067856499018606062311,
    0.0011084848149662824143,
)


def erfinv(xp: Namespace, x: Array) -> Array:
    """Return the inverse of erf: infinite at -1 and 1, NaN beyond."""
    w = -xp.log((1 - x) * (1 + x))
    near = polynomial(w - 2.5, _INVERSE_NEAR)
    far = polynomial(xp.sqrt(w) - 3, _INVERSE_FAR_F64 if x.dtype == np.float64 else _INVERSE_FAR)
    y = x * xp.where(w < 5, near, far)
    if x.dtype == np.float64:
        y = _halley(xp, _halley(xp, y, x), x)
    return xp.where(xp.abs(x) == 1, x * float("inf"), y)


def _halley(xp: Namespace, y: Array, x: Array) -> Array:
    """Return the next step of Halley's iteration from y towards erfinv(x). Where abs(y) >= 1 it uses erfc, because
    1 - abs(x) is exact there."""
    size = xp.abs(y)
    far = ((1 - xp.abs(x)) - _erfc_far(xp, size)) * xp.sign(x)
    error = xp.where(size < 1, _erf_near(xp, y) - x, far)
    step = error * xp.exp(xp.square(y)) * 0.88622692545275801365  # sqrt(pi) / 2
    return y - step / (1 + y * step)
