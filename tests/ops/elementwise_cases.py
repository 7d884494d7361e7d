"""Cases that all elementwise tables share: shapes, element types, broadcasting and special values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, given, specials
from tests.harness.cases import Runnable

SHAPES = [(2, 3, 5), (23,), (3, 7, 5, 2), (2, 3, 1, 5, 7), (), (3, 0, 5), (1,), (1031,)]

BROADCASTS: list[tuple[str, tuple[int, ...], tuple[int, ...]]] = [
    ("same", (2, 3, 5), (2, 3, 5)),
    ("trailing", (2, 3, 5), (5,)),
    ("both_ways", (2, 1, 5), (3, 1)),
    ("first_smaller", (7,), (2, 3, 7)),
    ("scalar", (2, 3, 5), ()),
    ("scalars", (), ()),
    ("ones", (1, 1), (3, 5, 7)),
    ("rank5", (2, 1, 3, 1, 5), (7, 1, 11, 1)),
    ("empty", (0, 3), (3,)),
    ("long", (3, 1031), (3, 1)),
]

Numbers = dict[str, float]  # low and high of `In`


def unary(
    op: str,
    version: str,
    low: float = -4.0,
    high: float = 4.0,
    *,
    kinds: Sequence[str] = ("f16", "bf16"),
    attrs: Mapping[str, Any] | None = None,
    double: Callable[..., Any] | None = None,
    integers: Mapping[str, Numbers] | None = None,
    tag: str = "",
    **case: Any,
) -> list[Case]:
    """Return cases of an op of one input over shapes and element types, with values in [low, high).

    `double` is the function in f64 (OpenVINO computes most in f32); `tag` distinguishes the ids of several calls.
    """
    numbers: Numbers = {"low": low, "high": high}

    def row(id: str, *inputs: In, **more: Any) -> Case:
        return Case(op, version, inputs, attrs or {}, id=id + tag, **case | more)

    rows = [row("x".join(map(str, shape)) or "scalar", In(shape, **numbers)) for shape in SHAPES]
    rows += [row(kind, In((3, 7), kind, **numbers)) for kind in kinds]
    rows += [row(kind, In((3, 7), kind, **limits)) for kind, limits in (integers or {}).items()]
    rows += [row("f64", In((3, 7), "f64", **numbers), expect=double)] if double else []
    rows += [row("const", In((3, 5), const=True, **numbers))]
    rows += [row("rankless", In((3, 5, 2), **numbers), rankless=True)]
    return rows


def binary(
    op: str,
    version: str,
    first: Numbers | None = None,
    second: Numbers | None = None,
    *,
    kind: str = "f32",
    kinds: Sequence[str] = (),
    attrs: Mapping[str, Any] | None = None,
    double: Callable[..., Any] | None = None,
    pdpd: Callable[..., Any] | None = None,
    **case: Any,
) -> list[Case]:
    """Return cases of an op of two inputs over broadcasting and element types; `first` and `second` are their ranges.

    `double` is the function in f64, and `pdpd` the function in `kind` where the two differ.
    """

    def row(
        id: str,
        a: tuple[int, ...],
        b: tuple[int, ...],
        kind: str = kind,
        const: bool = False,
        broadcast: str | None = None,
        **more: Any,
    ) -> Case:
        inputs = [In(a, kind, **first or {}), In(b, kind, const=const, **second or {})]
        mode = {"auto_broadcast": broadcast} if broadcast else {}
        return Case(op, version, inputs, {**(attrs or {}), **mode}, id=id, **case | more)

    rows = [row(id, a, b) for id, a, b in BROADCASTS]
    rows += [row(other, (3, 7), (7,), other) for other in kinds]
    rows += [row("f64", (3, 7), (7,), "f64", expect=double)] if double else []
    rows += [
        row("none", (3, 5), (3, 5), broadcast="none"),
        row("pdpd", (2, 3, 5), (2, 3), broadcast="pdpd", **_pdpd(pdpd or double)),
        row("const", (3, 5), (5,), const=True),
        row("rankless", (3, 5), (2, 1, 5), rankless=True),
        row("misfit", (2, 3), (5,), error="(?i)broadcast|shape"),
        row("misfit_none", (2, 3), (3,), broadcast="none", error="(?i)broadcast|shape|rank"),
    ]
    return rows


def mixed(op: str, version: str, kind: str, other: str) -> Case:
    """Return a case of two element types, which no op of the family accepts."""
    return Case(op, version, [In((2, 3), kind), In((2, 3), other)], id=f"{kind}_{other}", error="(?i)type")


def pairs(op: str, version: str, values: Any = None, kind: str = "f32", id: str | None = None, **case: Any) -> Case:
    """Return a case that combines every value with every value."""
    values = specials(kind) if values is None else np.asarray(values)
    inputs = [given(values[:, None], kind), given(values[None, :], kind)]
    return Case(op, version, inputs, id=id or f"pairs_{kind}", **case)


def _pdpd(function: Callable[..., Any] | None) -> dict[str, Any]:
    """Return the expectation for pdpd, which aligns the second input at axis 0. OpenVINO's plugin ignores pdpd where it
    decomposes an op."""
    return {"expect": lambda a, b: function(a, b[:, :, None])} if function else {}


# ---- random rows

EXTENTS = st.sampled_from((0, 1, 1, 2, 3, 5, 6, 7))
MODES = ("numpy", "numpy", "none", "pdpd")  # of auto_broadcast


def shapes(least: int = 0, most: int = 5) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(EXTENTS, min_size=least, max_size=most).map(tuple)


@st.composite
def fitting(draw: st.DrawFn, count: int, mode: str = "numpy") -> list[tuple[int, ...]]:
    """Draw shapes of several inputs that broadcast to each other; with pdpd, to the first one, from axis 0 on."""
    whole = draw(shapes())
    if mode == "none":
        return [whole] * count
    parts = [tuple(n if draw(st.booleans()) else 1 for n in whole) for _ in range(count)]
    cuts = [draw(st.integers(0, len(whole))) for _ in parts]
    if mode == "pdpd":
        return [whole, *(shape[:cut] for shape, cut in zip(parts[1:], cuts))]
    return [shape[cut:] for shape, cut in zip(parts, cuts)]


@st.composite
def redrawn(
    draw: st.DrawFn,
    rows: Sequence[Runnable],
    modes: Sequence[str] = (),
    kinds: Mapping[str, Sequence[str]] | None = None,
) -> Case:
    """Draw a row of a table with other shapes: random values from the same range, or given values in any order.

    The values of a judged row are valid in all shapes, with the same oracle. ``modes`` are values of auto_broadcast,
    and ``kinds`` maps an element type to others that may replace it.
    """
    judged = [row for row in rows if isinstance(row, Case) and row.judged and row.expect is None]
    group = draw(st.sampled_from(sorted({row.group for row in judged})))
    row = draw(st.sampled_from([row for row in judged if row.group == group]))
    mode = draw(st.sampled_from(modes)) if modes else "none"
    inputs = [_resampled(x, shape) for x, shape in zip(row.inputs, draw(fitting(len(row.inputs), mode)))]
    if kinds and not any(x.fixed for x in row.inputs):
        kind = draw(st.sampled_from((row.inputs[0].dtype, *kinds.get(row.inputs[0].dtype, ()))))
        inputs = [replace(x, dtype=kind) for x in inputs]
    attrs = {**row.attrs, "auto_broadcast": mode} if modes else row.attrs
    # the plugin ignores pdpd where it decomposes an op
    return replace(row, inputs=inputs, attrs=attrs, id=None, oracle="evaluate" if mode == "pdpd" else row.oracle)


def _resampled(x: In, shape: tuple[int, ...]) -> In:
    if not x.fixed:
        return replace(x, shape=shape)
    values = x.array(np.random.default_rng(0)).ravel()
    return replace(x, shape=shape, data=lambda rng: values[rng.integers(len(values), size=shape)])
