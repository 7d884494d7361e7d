"""Logical ops of booleans and bitwise ops of integers."""

from __future__ import annotations

import numpy as np

from tests.harness import Case, In, across, check, given, special_integers, sweep
from tests.harness.elements import INTEGERS
from tests.ops.elementwise_cases import MODES, SHAPES, binary, mixed, pairs, redrawn

LOGICAL_OPS = ("LogicalAnd", "LogicalOr", "LogicalXor", "Xor")

LOGICAL = [
    *(case for op in LOGICAL_OPS for case in binary(op, "opset1", kind="boolean")),
    *(pairs(op, "opset1", [False, True], "boolean") for op in LOGICAL_OPS),
    *(mixed(op, "opset1", "boolean", "i32") for op in LOGICAL_OPS),
    *(Case("LogicalNot", "opset1", [In(shape, "boolean")]) for shape in SHAPES),
    *(Case("LogicalNot", "opset1", [In(shape, "boolean", const=True)]) for shape in ((3, 5), ())),
    Case("LogicalNot", "opset1", [In((3, 5), "boolean")], id="rankless", rankless=True),
    Case("LogicalNot", "opset1", [given([True, False])], id="both"),
]
# OpenVINO writes LogicalXor as opset2.
LOGICAL += across(["opset2"], [case for case in LOGICAL if case.op == "LogicalXor"])
test_logical = check(LOGICAL)

BITWISE_OPS = {"BitwiseAnd": np.bitwise_and, "BitwiseOr": np.bitwise_or, "BitwiseXor": np.bitwise_xor}
OTHERS = tuple(kind for kind in INTEGERS if kind != "i32")
LONG = ("i64", "u64")  # the plugin computes these in i32

BITWISE = [
    *(
        case
        for op, function in BITWISE_OPS.items()
        for case in binary(op, "opset13", kind="i32", kinds=(*OTHERS, "boolean"), pdpd=function)
    ),
    *(
        pairs(op, "opset13", kind=kind, expect=function if kind in LONG else None)
        for op, function in BITWISE_OPS.items()
        for kind in INTEGERS
    ),
    *(mixed(op, "opset13", "i32", "i64") for op in BITWISE_OPS),
    *(Case(op, "opset13", [In((3,)), In((3,))], error="(?i)integer|type|f32") for op in BITWISE_OPS),
    *(Case("BitwiseNot", "opset13", [In((3, 7), kind)]) for kind in (*INTEGERS, "boolean")),
    *(
        Case(
            "BitwiseNot",
            "opset13",
            [given(special_integers(kind))],
            id=f"special_{kind}",
            expect=np.bitwise_not if kind in LONG else None,
        )
        for kind in INTEGERS
    ),
    *(Case("BitwiseNot", "opset13", [In(shape, "i32")]) for shape in SHAPES),
    Case("BitwiseNot", "opset13", [In((3, 5), "i32", const=True)]),
    Case("BitwiseNot", "opset13", [In((3, 5), "i32")], id="rankless", rankless=True),
    Case("BitwiseNot", "opset13", [In((3, 5))], error="(?i)integer|type|f32"),
]
test_bitwise = check(BITWISE)

SHIFTS = {"BitwiseLeftShift": np.left_shift, "BitwiseRightShift": np.right_shift}


def shift(op: str, kind: str, values: list[int], by: list[int], id: str) -> Case:
    inputs = [given(np.array(values)[:, None], kind), given(by, kind)]
    return Case(op, "opset15", inputs, id=f"{id}_{kind}", expect=SHIFTS[op] if kind in LONG else None)


SHIFT = [
    *(
        case
        for op, function in SHIFTS.items()
        for case in binary(
            op, "opset15", {"low": 0, "high": 15}, {"low": 0, "high": 3}, kind="i32", kinds=OTHERS, pdpd=function
        )
    ),
    *(shift(op, kind, [1, 3, 5, 9], [0, 1, 2, 3], "small") for op in SHIFTS for kind in INTEGERS),
    *(
        shift(op, kind, [-100, -9, -1, 0, 6], [0, 1, 2, 5], "negative")
        for op in SHIFTS
        for kind in ("i16", "i32", "i64")
    ),
    *(shift(op, kind, [1, 3, 7], [20, 28], "far") for op in SHIFTS for kind in ("i32", "u32", "i64", "u64")),
    *(shift(op, kind, [1, 5, 2**40], [31, 32, 33, 45], "wide") for op in SHIFTS for kind in ("i64", "u64")),
    *(mixed(op, "opset15", "i32", "i64") for op in SHIFTS),
]
test_shift = check(SHIFT)

UNARY = ("LogicalNot", "BitwiseNot")
BINARY = [case for case in LOGICAL + BITWISE + SHIFT if case.op not in UNARY]
test_random = sweep(redrawn(BINARY, MODES[:-1]), 100)
test_random_not = sweep(redrawn([case for case in LOGICAL + BITWISE if case.op in UNARY]), 50)
