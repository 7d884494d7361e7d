"""Axes of scalars: OpenVINO takes 0 and -1 where an operation does nothing along an axis of one element."""

from __future__ import annotations

from tests.harness import Case, In, check, const

REDUCTIONS = {
    **dict.fromkeys(("ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"), "opset1"),
    **dict.fromkeys(("ReduceL1", "ReduceL2"), "opset4"),
}
AXES = (0, -1, [0], [-1])
RANGE = "axis .* is out of range|a scalar has no axis"


def axes(value: int | list[int]) -> In:
    return const(value)


CASES = [
    *(
        Case(op, version, [In((), kind), axes(axis)], {"keep_dims": False})
        for op, version in REDUCTIONS.items()
        for axis in AXES
        for kind in ("f32", "i32")
        if not (kind == "i32" and op in ("ReduceL1", "ReduceL2"))
    ),
    *(
        Case(op, "opset1", [In((), "boolean"), axes(axis)], {"keep_dims": False})
        for op in ("ReduceLogicalAnd", "ReduceLogicalOr")
        for axis in AXES
    ),
    *(
        Case("CumSum", "opset3", [In(()), axes(axis)], {"exclusive": exclusive, "reverse": reverse})
        for axis in (0, -1)
        for exclusive in (False, True)
        for reverse in (False, True)
    ),
    *(Case("Squeeze", version, [In(()), axes(axis)]) for version in ("opset1", "opset15") for axis in AXES),
    *(Case("Roll", "opset7", [In(()), const([3]), axes(axis)]) for axis in ([0], [-1])),
    *(
        Case("ReduceSum", "opset1", [In(()), axes(axis)], {"keep_dims": keep}, error=RANGE, id=f"{axis}_{keep}")
        for axis, keep in ((0, True), ([-1], True), (1, False), ([-2], False))
    ),
    *(
        Case(op, version, [In(()), *inputs], attrs, outputs, error=RANGE, id="scalar")
        for op, version, inputs, attrs, outputs in (
            ("Squeeze", "opset1", [axes(1)], {}, 1),
            ("Roll", "opset7", [const([3]), axes([1])], {}, 1),
            ("Reverse", "opset1", [axes([0])], {"mode": "index"}, 1),
            ("NormalizeL2", "opset1", [axes([0])], {"eps": 1e-6, "eps_mode": "add"}, 1),
            ("MVN", "opset6", [axes([0])], {"eps": 1e-6, "eps_mode": "inside_sqrt", "normalize_variance": True}, 1),
            ("TopK", "opset11", [axes(1)], {"axis": 0, "mode": "max", "sort": "value", "index_element_type": "i32"}, 2),
        )
    ),
]

test_cases = check(CASES)
