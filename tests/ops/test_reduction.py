"""Reductions over axes."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, Sum, check, const, given, sweep
from tests.harness.elements import is_float
from tests.harness.judge import Oracle
from tests.ops.elementwise_cases import shapes

SHAPE = (2, 3, 5, 7)
ARITHMETIC = {
    "ReduceSum": "opset1",
    "ReduceMean": "opset1",
    "ReduceMax": "opset1",
    "ReduceMin": "opset1",
    "ReduceProd": "opset1",
    "ReduceL1": "opset4",
    "ReduceL2": "opset4",
}
NONE = np.zeros(0, np.int64)
KINDS = ("f32", "f32", "f32", "f16", "bf16", "i32", "i64", "i8", "u8")
AXES = {
    "last": [3],
    "first": [0],
    "middle": [1, 2],
    "negative": [-1, -3],
    "all": [0, 1, 2, 3],
    "scalar": -2,
    "unsorted": [3, 0],
    "trailing": [-2, -1],
}


def axes(op: str, version: str, x: In) -> Iterator[Case]:
    """Yield cases of all kinds of axes, for an ``x`` of rank 4."""
    tol = Sum(210) if x.dtype.startswith("f") else None
    for text, over in AXES.items():
        for keep_dims in (False, True):
            yield Case(
                op,
                version,
                [x, const(over)],
                {"keep_dims": keep_dims},
                tol=tol,
                rankless=text == "negative",
                id=f"{x.dtype}_{text}_{keep_dims}",
            )


def arithmetic(op: str, version: str) -> Iterator[Case]:
    low = {"low": 0.5, "high": 1.5} if op == "ReduceProd" else {}
    # small enough for the plugin, which saturates the sum of squares before it takes the root
    small = {"low": 1, "high": 2} if op in ("ReduceProd", "ReduceL2") else {}
    yield from axes(op, version, In(SHAPE, **low))
    yield Case(op, version, [In((3, 7), "f16", **low), const([1])])
    yield Case(op, version, [In((3, 7), "bf16", **low), const([0])])
    if op not in ("ReduceL1", "ReduceL2"):
        yield Case(op, version, [In((3, 7), "f64", **low), const([1])])
    for kind in ("i32", "i64", "i8", "u8"):
        yield Case(op, version, [In((3, 7), kind, **small), const([1])], {"keep_dims": True})
    yield Case(op, version, [In((3, 7)), In((1,), "i32", const=True, data=[1])], id="axes_i32", tol=Sum(7))
    yield Case(op, version, [In((3, 1, 5)), const([1])], id="extent_one")
    yield Case(op, version, [In((3, 5)), const(NONE)], {"keep_dims": True}, id="no_axes")
    yield Case(op, version, [given(np.float32(2.5)), const(NONE)], id="scalar")
    yield Case(op, version, [In((3, 7)), given([1])], {"keep_dims": True}, id="axes_at_run_time", tol=Sum(7))
    yield Case(op, version, [In((2, 0, 3), "f32"), const([0])], id="nothing_left")
    yield Case(op, version, [In((130, 1025), **low), const([1])], id="blocks", tol=Sum(1025))
    yield Case(op, version, [given([[1, np.inf, 2], [3, -np.inf, 4]], "f32"), const([1])], id="inf")
    yield Case(op, version, [In((2, 3)), const([2])], error="axis 2 is out of range for rank 2")
    yield Case(op, version, [In((2, 3)), const([-3])], error="axis -3 is out of range for rank 2")
    yield Case(op, version, [In((2, 3)), const([[0]])], error="axes must have rank 0 or 1, not 2")
    yield Case(op, version, [In((2, 3)), const([0.0], "f32")], error="axes must be integers, not f32")
    yield Case(op, version, [In((2, 3), "boolean"), const([0])], error="boolean is not numeric")


CASES = [case for op, version in ARITHMETIC.items() for case in arithmetic(op, version)]
test_cases = check(CASES)


def empty(op: str, kind: str, oracle: Oracle = "auto") -> Case:
    return Case(op, ARITHMETIC[op], [In((2, 0, 3), kind), const([1])], id=f"empty_{kind}", oracle=oracle)


EMPTY = [
    *(
        empty(op, kind, "evaluate" if op == "ReduceMin" else "auto")  # the plugin gives infinity or the f32 maximum
        for op in ARITHMETIC
        for kind in ("f32", "i32", "i8")
    ),
    # the plugin computes i64 in i32
    *(empty(op, "i64", "evaluate") for op in ("ReduceMax", "ReduceMin", "ReduceSum", "ReduceProd")),
]
test_empty = check(EMPTY)

VALUES = [
    Case("ReduceMean", "opset1", [given([[-1, -2, -2], [5, 2, 1]], "i32"), const([1])], id="truncates"),
    # the plugin saturates the sum
    Case(
        "ReduceMean",
        "opset1",
        [given([[250, 251, 255]], "u8"), const([1])],
        id="mean_u8",
        expect=np.array([252], np.uint8),
    ),
    Case("ReduceSum", "opset1", [given([[100, 100, 100]], "u8"), const([1])], id="saturates_u8"),
    Case("ReduceSum", "opset1", [given([[-100, -100, 3]], "i8"), const([1])], id="saturates_i8"),
    Case("ReduceProd", "opset1", [given([[100, 100]], "i8"), const([1])], id="saturates_product"),
    Case(
        "ReduceSum",
        "opset1",
        [given([2**31 - 1, 1], "i32"), const([0])],
        id="wraps",
        expect=np.array(-(2**31), np.int32),
    ),
    Case("ReduceSum", "opset1", [given(np.array([2**40, 2**41])), const([0])], id="wide", oracle="evaluate"),
    Case("ReduceL2", "opset4", [given([[1, 2, 6]], "i32"), const([1])], id="l2_truncates"),
    *(
        Case(op, ARITHMETIC[op], [given([[1, np.nan, 3]], "f32"), const([1])], id="nan")
        for op in ARITHMETIC
        if op not in ("ReduceMax", "ReduceMin")
    ),
    # the plugin and the reference both lose the NaN, depending on its position
    *(
        Case(
            op, "opset1", [given([[1, np.nan, 3]], "f32"), const([1])], id="nan", expect=np.array([np.nan], np.float32)
        )
        for op in ("ReduceMax", "ReduceMin")
    ),
]
test_values = check(VALUES)


def logical(op: str) -> Iterator[Case]:
    yield from axes(op, "opset1", In((2, 3, 1, 2), "boolean"))
    yield Case(op, "opset1", [In((2, 0), "boolean"), const([1])], id="empty")
    yield Case(op, "opset1", [In((2, 3), "boolean"), const(NONE)], id="no_axes")
    yield Case(op, "opset1", [In((2, 3), "boolean"), given([0])], {"keep_dims": True}, id="at_run_time")
    yield Case(op, "opset1", [In((2, 3), "i32"), const([1])], error="i32 is not boolean")
    yield Case(op, "opset1", [In((2, 3)), const([1])], error="f32 is not boolean")
    yield Case(op, "opset1", [In((2, 3), "boolean"), const([5])], error="axis 5 is out of range for rank 2")


LOGICAL = [case for op in ("ReduceLogicalAnd", "ReduceLogicalOr") for case in logical(op)]
test_logical = check(LOGICAL)


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    op = draw(st.sampled_from((*ARITHMETIC, "ReduceLogicalAnd", "ReduceLogicalOr")))
    kind = "boolean" if "Logical" in op else draw(st.sampled_from(KINDS))
    shape, wide = draw(shapes(1)), draw(st.booleans())
    over = draw(st.lists(st.integers(-len(shape), len(shape) - 1), min_size=1, unique_by=lambda n: n % len(shape)))
    axes = In((len(over),), "i64" if wide else "i32", over, const=draw(st.booleans()))
    terms = math.prod(shape[axis] for axis in over)
    if terms == 0 and kind == "bf16":  # the plugin's maximum of none is finite for bf16, and infinite for f16
        kind = "f32"
    if kind in ("i8", "u8") and terms > 12:  # the plugin saturates partial 8-bit sums, too
        kind = "i32"
    low, high = {"ReduceProd": (0.5, 1.5), "ReduceL2": (1, 2)}.get(op, (None, None))
    return Case(
        op,
        ARITHMETIC.get(op, "opset1"),
        [In(shape, kind, low=low, high=high), axes],
        {"keep_dims": draw(st.booleans())},
        tol=Sum(max(terms, 1)) if is_float(kind) else None,
        oracle="evaluate" if terms == 0 and (kind == "i64" or op == "ReduceMin") else "auto",
    )  # as in EMPTY


test_random = sweep(drawn())
