"""The table of tolerances, and the comparison: shape, then element type, then values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from .elements import is_float
from .judge import Expected, Value

# rtol = atol by element type; types that are not listed compare exactly.
TOLERANCE = {"f64": 1e-12, "f32": 1e-5, "f16": 2e-3, "bf16": 1.6e-2}


@dataclass(frozen=True)
class Tolerance:
    """|actual - expected| <= atol + rtol |expected| + of_largest max|expected|, on top of the type's own."""

    rtol: float = 0.0
    atol: float = 0.0
    of_largest: float = 0.0


@dataclass(frozen=True)
class Sum:
    """The tolerance of a sum of `terms` products: 1e-5 sqrt(terms) of the largest value, for f32."""

    terms: int


Tol = float | Tolerance | Sum | None


def resolve(tol: Tol, kind: str, computed: str) -> Tolerance:
    """Return the tolerance of one output; the base is that of the coarser of `kind` and the judge's `computed`."""
    base = max(TOLERANCE.get(kind, 0.0), TOLERANCE.get(computed, 0.0))
    if not is_float(kind) or tol is None:
        return Tolerance(base, base)
    if isinstance(tol, Sum):
        accumulated = TOLERANCE["f64" if computed == "f64" else "f32"] * math.sqrt(tol.terms)
        return Tolerance(base, 0.0, max(base, accumulated))
    return Tolerance(tol, tol) if isinstance(tol, int | float) else tol


def compare(where: str, actual: np.ndarray[Any, Any], kind: str, wanted: Expected, tol: Tol) -> None:
    """Raise AssertionError, which begins with `where`, unless shape, element type and values agree."""
    __tracebackhide__ = True
    assert actual.shape == wanted.array.shape, f"{where}: shape {actual.shape}, expected {wanted.array.shape}"
    assert kind == wanted.type, f"{where}: element type {kind}, expected {wanted.type}"
    if not is_float(kind) or not actual.size:
        wrong = actual != wanted.array
        error = None
    else:
        limit = resolve(tol, kind, wanted.computed)
        a, b = actual.astype(np.float64), wanted.array.astype(np.float64)
        with np.errstate(all="ignore"):
            error = np.abs(a - b)
            finite = np.abs(b[np.isfinite(b)])
            allowed = limit.atol + limit.rtol * np.abs(b) + limit.of_largest * finite.max(initial=0.0)
            # an infinite value makes `allowed` infinite: it must be equal
            close = np.where(np.isfinite(b), error <= allowed, False)
        wrong = ~(close | (a == b) | (np.isnan(a) & np.isnan(b)))
    if wrong.any():
        raise AssertionError(f"{where}: {_describe(actual, wanted.array, wrong, error)}")


def compare_all(where: str, outputs: Sequence[Value], wanted: Sequence[Expected], tol: Tol) -> None:
    """Compare all outputs of a model, see `compare`."""
    __tracebackhide__ = True
    assert len(outputs) == len(wanted), f"{where}: {len(outputs)} outputs, expected {len(wanted)}"
    for i, ((array, kind), expected) in enumerate(zip(outputs, wanted)):
        compare(f"{where} output {i}", array, kind, expected, tol)


def _describe(actual: Any, wanted: Any, wrong: Any, error: Any) -> str:
    worst = [tuple(map(int, index)) for index in np.argwhere(wrong)[:4]]
    values = ", ".join(f"{list(i)}: {actual[i]!s} instead of {wanted[i]!s}" for i in worst)
    largest = "" if error is None else f", largest error {np.nanmax(error[wrong], initial=0.0):.3g}"
    return f"{int(wrong.sum())} of {wrong.size} values differ{largest}; {values}"
