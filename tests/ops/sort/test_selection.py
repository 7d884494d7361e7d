"""NonZero and Unique against OpenVINO, and Bincount, which this OpenVINO lacks, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, const, given, sweep
from tests.harness.elements import ELEMENTS


def mask(*shape: int, share: float = 0.5) -> np.ndarray[Any, Any]:
    return (np.random.RandomState(sum(shape)).rand(*shape) < share).astype(np.float32)


CASES = [
    Case("NonZero", "opset3", [In(data.shape, kind, data=data)], {"output_type": output}, id=name)
    for name, kind, output, data in (
        ("vector", "f32", "i64", mask(7)),
        ("matrix", "f32", "i64", mask(3, 5)),
        ("rank3", "f32", "i64", mask(2, 3, 5)),
        ("rank5", "f32", "i64", mask(2, 3, 1, 5, 2)),
        ("i32-output", "f32", "i32", mask(3, 5)),
        ("f64", "f64", "i64", mask(3, 5) * 1e-300),
        ("bf16", "bf16", "i64", mask(3, 5)),
        ("u64", "u64", "i64", mask(3, 5)),
        ("none", "f32", "i64", np.zeros((3, 5))),
        ("all", "f32", "i64", np.ones((3, 5))),
        ("negative-and-nan", "f32", "i64", np.array([-1, 0, np.nan, -0.0, np.inf, 1e-40])),
        ("f16", "f16", "i64", mask(3, 5)),
        ("i32", "i32", "i64", mask(3, 5) * -3),
        ("i64", "i64", "i64", mask(3, 5)),
        ("u8", "u8", "i64", mask(3, 5) * 200),
        ("i8", "i8", "i64", mask(3, 5)),
        ("boolean", "boolean", "i64", mask(3, 5)),
        ("no-elements", "f32", "i64", np.zeros((0, 5))),
        ("scalar", "f32", "i64", np.array(3.0)),
        ("scalar-0", "f32", "i64", np.array(0.0)),
    )
]

ERRORS = [Case("NonZero", "opset3", [In((3, 5))], {"output_type": "f32"}, error="output_type")]


def few(shape: tuple[int, ...], kind: str = "f32", count: int = 5) -> In:
    """Return random integers from 0 to ``count``, exclusive."""
    return In(shape, kind, lambda rng: rng.integers(0, count, shape))


def unique(x: Any, axis: Any = None, **kw: Any) -> Case:
    """Return a case of small integers with many duplicates; ``sorted`` and the index types are keywords.

    NumPy judges cases with an axis, since the plugin takes equal slices along the last axes for different ones.
    """
    x = x if isinstance(x, In) else few(x)
    attrs = {name: kw.pop(name) for name in ("sorted", "index_element_type", "count_element_type") if name in kw}
    axes = [] if axis is None else [axis if isinstance(axis, In) else const(axis)]
    if axis is not None and "error" not in kw and "expect" not in kw:
        kw["expect"] = lambda x, axis: _unique(x, int(axis.ravel()[0]), attrs)
    return Case("Unique", "opset10", [x, *axes], attrs, 4, **kw)


NAN = given(np.float32([np.nan, 3, np.nan, 1, 3]))
UNIQUE = (
    [
        case
        for order in (True, False)
        for case in [
            unique((12,), sorted=order),
            unique((3, 5), sorted=order, rankless=order),
            unique((12,), 0, sorted=order),
            unique((9, 2), 0, sorted=order, rankless=order),
            unique((2, 9), 1, sorted=order),
            unique((2, 9), [-1], sorted=order, id=f"last-{order}"),
            unique((9, 1, 2), 0, sorted=order),
            unique((2, 7, 1), 1, sorted=order),
            unique((1, 2, 8), -1, sorted=order),
            unique((), sorted=order),
            *[unique(few((3, 5), kind), sorted=order) for kind in ("f16", "bf16", "i32", "i64", "u8", "i8")],
            unique(few((3, 5), "boolean", 2), sorted=order),
            unique(given(np.float32([0.0, -0.0, 1, -0.0])), sorted=order, id=f"zeros-{order}"),
        ]
    ]
    + [
        unique((12,), index_element_type="i32"),
        unique((12,), count_element_type="i32"),
        unique((0, 3), id="no elements", expect=lambda x: _unique(x)),  # by value
        unique((0, 3), 0, id="no slices", expect=lambda x, _: (x, *[np.zeros(0, np.int64)] * 3)),  # by value
        unique(
            (3, 0),
            0,
            id="slices without elements",
            expect=lambda x, _: (  # the plugin does not write the output
                x[:1],
                np.array([0]),
                np.array([0, 0, 0]),
                np.array([3]),
            ),
        ),
        *[
            unique(
                NAN, sorted=order, id=f"NaN-{order}", expect=lambda x, order=order: _unique(x, None, {"sorted": order})
            )
            for order in (True, False)
        ],  # by value: the plugin's result is unordered
        unique(In((12,), "f64", lambda rng: rng.integers(0, 4, 12) + 2.0**60), id="f64", expect=lambda x: _unique(x)),
        unique(
            given(np.array(["b", "a", "b", ""])),
            id="strings",
            expect=lambda x: (np.array(["", "a", "b"]), *map(np.array, ([3, 1, 0], [2, 1, 2, 0], [1, 1, 2]))),
        ),
        unique((12,), 1, error="axis 1 is out of range for rank 1"),
        unique((3, 4), [0, 1], error="one axis is expected, not 2"),
        unique((12,), index_element_type="u8", error="index_element_type u8 is neither i32 nor i64"),
        unique((12,), count_element_type="f32", error="count_element_type f32 is neither i32 nor i64"),
        unique((12,), const(0.0, "f32"), error="the axis must be integers"),
    ]
)


def _unique(x: Any, axis: int | None = None, attrs: Any = ()) -> Any:
    values, first, inverse, counts = np.unique(
        x, return_index=True, return_inverse=True, return_counts=True, axis=axis, equal_nan=False
    )
    order = np.arange(first.size) if dict(attrs).get("sorted", True) else np.argsort(first)
    index, number = (
        np.int32 if dict(attrs).get(what) == "i32" else np.int64
        for what in ("index_element_type", "count_element_type")
    )
    return (
        values.take(order, axis or 0),
        first[order].astype(index),
        np.argsort(order)[inverse].ravel().astype(index),
        counts[order].astype(number),
    )


def bincount(data: Any, weights: Any = None, kind: str = "i64", least: int | None = None, **kw: Any) -> Case:
    """Return a case of ``data`` random numbers, or of given numbers; ``weights`` is the type of random weights."""
    x = (
        data
        if isinstance(data, In)
        else few((data,), kind, 9)
        if isinstance(data, int)
        else given(np.array(data, ELEMENTS[kind].dtype))
    )
    other = [] if weights is None else [weights if isinstance(weights, In) else In(x.shape, weights)]

    def expect(x: Any, w: Any = None) -> Any:
        return np.bincount(x.astype(np.int64), w, least or 0).astype(np.int64 if w is None else w.dtype)

    if "error" not in kw:
        kw.setdefault("expect", expect)
    return Case(
        "Bincount",
        "opset17",
        [x, *other],
        {} if least is None else {"minlength": least},
        [other[0].dtype if other else "i64"],
        **kw,
    )


BINCOUNT = [
    bincount(23, rankless=True),
    bincount(23, least=5),
    bincount(23, least=17),
    *[bincount(23, kind=kind) for kind in ("i32", "u8", "u16", "u32", "u64")],
    *[bincount(23, kind, rankless=kind == "f32") for kind in ("f32", "f64", "i32", "i64")],
    bincount(7, "i32", "u8", 11),
    bincount([3, 0, 3, 200, 3], "f32", id="gaps"),
    bincount([1, 0, 1], given(np.array([2**62, -5, 2**62 - 1])), id="beyond f64", expect=np.array([-5, 2**63 - 1])),
    bincount([], id="nothing"),
    bincount([], least=3, id="nothing of three"),
    bincount([], "i32", least=3, id="no weights"),
    bincount(In((7,), const=True, dtype="i64", low=0), In((7,), const=True), id="constant"),
    bincount([3, -2], error="number -2 is negative", id="negative"),
    bincount(3, least=-1, error="minlength -1 is negative"),
    bincount(In((3,)), error="the data must be integers, not f32"),
    bincount(In((3, 5), "i64"), error="the data must have rank 1, not 2"),
    bincount(3, "f16", error="weights must be f32, f64, i32 or i64, not f16"),
    bincount(3, In((3, 1)), error="weights must have rank 1, not 2", id="rank"),
    bincount(3, In((4,)), error="there are 3 numbers and 4 weights", id="counts"),
]

test_cases = check(CASES + ERRORS)
test_unique = check(UNIQUE)
test_bincount = check(BINCOUNT)


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    kind = draw(st.sampled_from(("f32", "i32", "u8", "i64", "boolean", "f16")))
    x = few(shape, kind, 2 if kind == "boolean" else 3)
    return Case("NonZero", "opset3", [x], {"output_type": draw(st.sampled_from(("i32", "i64")))})


@st.composite
def uniques(draw: st.DrawFn) -> Case:
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    kind = draw(st.sampled_from(("f32", "f16", "i32", "i64", "u8", "boolean")))
    axis = draw(st.none() | st.integers(-len(shape), len(shape) - 1))
    attrs = {what: draw(st.sampled_from(("i32", "i64"))) for what in ("index_element_type", "count_element_type")}
    return unique(few(shape, kind, 2 if kind == "boolean" else 5), axis, sorted=draw(st.booleans()), **attrs)


test_random = sweep(drawn(), 100)
test_random_unique = sweep(uniques(), 100)


@st.composite
def bincounts(draw: st.DrawFn) -> Case:
    return bincount(
        draw(st.integers(0, 40)),
        draw(st.sampled_from((None, "f32", "f64", "i32", "i64"))),
        draw(st.sampled_from(("i32", "i64", "u8", "u64"))),
        draw(st.none() | st.integers(0, 20)),
    )


test_random_bincount = sweep(bincounts(), 50)
