"""Comparisons, Select, and the IsNaN family."""

from __future__ import annotations

import numpy as np

from tests.harness import Case, In, check, given, special_floats, sweep
from tests.ops.elementwise_cases import MODES, binary, mixed, pairs, redrawn, unary

COMPARISONS = {
    "Equal": np.equal,
    "NotEqual": np.not_equal,
    "Less": np.less,
    "LessEqual": np.less_equal,
    "Greater": np.greater,
    "GreaterEqual": np.greater_equal,
}
FEW = {"low": -2, "high": 2}  # integers that are often equal
KINDS = ("f16", "bf16", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64", "boolean")
BOOLEAN = ["boolean"]

COMPARE = [
    *(
        case
        for op, function in COMPARISONS.items()
        for case in binary(op, "opset1", FEW, FEW, kinds=KINDS, double=function, outputs=BOOLEAN)
    ),
    *(pairs(op, "opset1", [-1, 0, 1], "i32", "order", outputs=BOOLEAN) for op in COMPARISONS),
    # the plugin compares integers as floats, i64 as i32, and treats NaN as greater
    *(
        pairs(op, "opset1", kind=kind, outputs=BOOLEAN, oracle="evaluate")
        for op in COMPARISONS
        for kind in ("f32", "f16", "bf16", "i32", "i64", "u64", "boolean")
    ),
    *(pairs(op, "opset1", kind="f64", outputs=BOOLEAN, expect=function) for op, function in COMPARISONS.items()),
    *(mixed(op, "opset1", "i64", "i32") for op in COMPARISONS),
]
test_compare = check(COMPARE)

TESTS = {"IsNaN": np.isnan, "IsInf": np.isinf, "IsFinite": np.isfinite}
FLAGS = [{"detect_negative": a, "detect_positive": b} for a in (True, False) for b in (True, False)]

CLASSIFY = [
    *(case for op in TESTS for case in unary(op, "opset10", outputs=BOOLEAN)),
    # the plugin treats denormals as not finite, and f64 infinities as finite
    *(
        Case(op, "opset10", [given(special_floats(kind))], {}, BOOLEAN, id=f"special_{kind}", expect=function)
        for op, function in TESTS.items()
        for kind in ("f32", "f16", "bf16", "f64")
    ),
    *(
        Case("IsInf", "opset10", [given(special_floats(kind))], flags, BOOLEAN)
        for flags in FLAGS
        for kind in ("f32", "f16")
    ),
]
test_classify = check(CLASSIFY)


def select(
    condition: tuple[int, ...], then: tuple[int, ...], other: tuple[int, ...], kind: str = "f32", **case: object
) -> Case:
    return Case("Select", "opset1", [In(condition, "boolean"), In(then, kind), In(other, kind)], outputs=[kind], **case)  # type: ignore[arg-type]


def numpy_select(condition: np.ndarray, then: np.ndarray, other: np.ndarray) -> np.ndarray:
    return np.where(condition, then, other)


SPECIAL = special_floats()
PDPD = {"auto_broadcast": "pdpd"}

SELECT = [
    *(select((3, 5), (3, 5), (3, 5), kind, id=kind) for kind in (*KINDS, "f32")),
    select((3, 5), (3, 5), (3, 5), "f64", id="f64", expect=numpy_select),
    select((), (3, 5), (3, 5)),
    select((5,), (3, 5), (5,)),
    select((2, 3, 5), (3, 5), (5,)),
    select((2, 1, 5), (3, 1), (2, 3, 1)),
    select((2, 3, 5), (), ()),
    select((3, 1), (2, 1, 5), (1,)),
    select((1,), (7,), (7,)),
    select((0, 3), (3,), (1,)),
    select((), (), ()),
    select((7, 1, 1, 5), (3, 1), (2, 1, 1)),
    select((3, 1031), (1031,), (3, 1)),
    select((3, 5), (2, 3, 5), (5,), id="rankless", rankless=True),
    select((3, 5), (3, 5), (3, 5), attrs={"auto_broadcast": "none"}, id="none"),
    select((3,), (3, 5), (3, 5), attrs=PDPD, id="pdpd_condition"),
    select((3, 5), (3, 5), (3,), attrs=PDPD, id="pdpd_else"),
    Case("Select", "opset1", [In((3, 5), "boolean", const=True), In((3, 5)), In((5,))], id="const_condition"),
    Case("Select", "opset1", [In((3, 5), "boolean"), In((3, 5)), In((), const=True)], id="const_else"),
    # values that the condition does not select must not affect the result
    Case(
        "Select",
        "opset1",
        [given(np.isnan(SPECIAL)), In((22,)), given(SPECIAL)],
        id="nan_not_taken",
        expect=numpy_select,
    ),
    Case("Select", "opset1", [given(np.isfinite(SPECIAL)), given(SPECIAL), In((), "f32")], id="special"),
    select((3, 5), (3, 5), (4,), error="(?i)broadcast|shape", id="misfit"),
    Case("Select", "opset1", [In((3,), "boolean"), In((3,)), In((3,), "i32")], error="(?i)type", id="types"),
    Case("Select", "opset1", [In((3,), "i32"), In((3,)), In((3,))], error="(?i)boolean", id="not_boolean"),
]
test_select = check(SELECT)

test_random = sweep(redrawn(COMPARE + SELECT, MODES[:-1]), 100)
test_random_classes = sweep(redrawn(CLASSIFY), 50)
