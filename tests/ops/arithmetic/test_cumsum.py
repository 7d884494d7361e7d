"""CumSum against OpenVINO."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, const, given, sweep


def cumsum(shape: Sequence[int], axis: Any, kind: str = "f32", id: str | None = None, **attrs: Any) -> Case:
    axis = axis if isinstance(axis, In) else const(axis)
    return Case("CumSum", "opset3", [In(shape, kind), axis], attrs, id=id, rankless=len(shape) == 3)


CUMSUM = [
    *(cumsum((3, 5, 7), axis) for axis in (0, 1, 2, -1, -3)),
    *(
        cumsum((3, 5, 7), axis, exclusive=exclusive, reverse=reverse)
        for axis in (0, 1, -1)
        for exclusive, reverse in ((True, False), (False, True), (True, True))
    ),
    *(cumsum((3, 5), 1, kind) for kind in ("f16", "bf16", "i32", "i64", "i8", "u8")),
    cumsum((3, 5), 1, "i32", exclusive=True, reverse=True),
    cumsum((11,), 0),
    cumsum((3, 1), 1, exclusive=True),
    cumsum((3, 0), 1, exclusive=True),
    cumsum((3, 5), In((), "i32", 1, const=True), id="axis_i32"),
    cumsum((3, 5), given(np.int64(1)), id="axis_at_run_time"),
    Case("CumSum", "opset3", [given(np.full((2, 3), 100), "u8"), const(1)], id="wraps"),
    Case("CumSum", "opset3", [given([1, np.inf, 2, np.nan, 1], "f32"), const(0)], id="nan_and_inf"),
    Case("CumSum", "opset3", [In((3, 5)), const([1])], id="axis_of_rank_1", oracle="evaluate"),
    Case("CumSum", "opset3", [In((0, 5)), const(2)], error="axis 2 is out of range for rank 2"),
    Case("CumSum", "opset3", [In((3, 5)), const([0, 1])], error="one axis is expected, not 2"),
    Case("CumSum", "opset3", [In((3, 5)), const(1.0, "f32")], error="axis must be integers, not f32"),
    Case("CumSum", "opset3", [In((3, 5), "boolean"), const(1)], error="boolean is not numeric"),
]
test_cumsum = check(CUMSUM)


@st.composite
def summed(draw: st.DrawFn) -> Case:
    shape = draw(st.lists(st.integers(0, 9), min_size=1, max_size=5))
    axis, kind = draw(st.integers(-len(shape), len(shape) - 1)), draw(st.sampled_from(("f32", "f16", "i32", "i64")))
    return cumsum(shape, axis, kind, exclusive=draw(st.booleans()), reverse=draw(st.booleans()))


test_random = sweep(summed(), 60)
