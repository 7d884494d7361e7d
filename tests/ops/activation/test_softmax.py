"""Softmax and LogSoftmax."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, given, sweep
from tests.harness.cases import Array

MIXED = np.array([[-np.inf, 1, 2, 3], [1e30, -1e30, 0, 1], [-100, 0, 88, 100], [0, 0, 0, 0]], np.float32)


def cases(op: str, version: str, axes: tuple[int, ...]) -> Iterator[Case]:
    for axis in axes:
        yield Case(op, version, [In((2, 3, 5))], {"axis": axis}, rankless=True)
    yield Case(op, version, [In((3, 7), "f16")], {"axis": 1})
    yield Case(op, version, [In((3, 7), "bf16")], {"axis": 0})
    yield Case(op, version, [In((5,))], {"axis": 0})
    yield Case(op, version, [In((3, 1))], {"axis": 1})
    yield Case(op, version, [In((3, 0))], {"axis": 1})
    yield Case(op, version, [In((0, 3))], {"axis": 1})
    yield Case(op, version, [In(())], {"axis": 0})
    yield Case(op, version, [In((130, 257))], {"axis": 1})  # more than one block of rows
    yield Case(op, version, [In((130, 257), low=-100.0, high=100.0)], {"axis": 1}, id="blocks_far_apart")
    yield Case(op, version, [In((2, 65, 130))], {"axis": 1})
    yield Case(op, version, [given(MIXED)], {"axis": 1}, id="extremes")
    yield Case(op, version, [given(np.full((2, 3), -np.inf, np.float32))], {"axis": 1}, id="all_minus_inf")
    yield Case(op, version, [In((2, 3, 5))], {"axis": 3}, error="axis 3 is out of range for rank 3")
    yield Case(op, version, [In((2, 3), "i32")], {"axis": 1}, error="element type i32 is not real")


def softmax(x: Array) -> Array:
    exponential = np.exp(x - x.max(1, keepdims=True))
    return exponential / exponential.sum(1, keepdims=True)


def log_softmax(x: Array) -> Array:
    return np.log(softmax(x))


CASES = [
    *cases("Softmax", "opset1", (0, 1, 2)),
    *cases("Softmax", "opset8", (0, 1, 2, -1, -2, -3)),
    *cases("LogSoftmax", "opset5", (0, 1, 2, -1, -2, -3)),
    *(
        Case(op, version, [In((2, 3, 5))], id="default_axis")
        for op, version in (("Softmax", "opset8"), ("LogSoftmax", "opset5"))
    ),
    Case("SoftMax", "opset1", [In((2, 3, 5))], {"axis": 1}),
    Case("SoftMax", "opset8", [In((2, 3, 5))], {"axis": -2}),
    Case("Softmax", "opset1", [In((2, 3, 5))], {"axis": -1}, error="axis -1 is negative"),
    Case("Softmax", "opset8", [In((2, 3, 5))], {"axis": -4}, error="axis -4 is out of range for rank 3"),
    Case("LogSoftmax", "opset5", [In((2, 3, 5))], {"axis": -4}, error="axis -4 is out of range for rank 3"),
    Case("Softmax", "opset8", [In((3, 7), "f64")], {"axis": 1}, expect=softmax),
    Case("LogSoftmax", "opset5", [In((3, 7), "f64")], {"axis": 1}, expect=log_softmax),
    # NaN and infinity affect only their own element in the plugin
    *(
        Case(
            "Softmax",
            "opset8",
            [given([[1, bad, 2], [1, 2, 3]], "f32")],
            {"axis": 1},
            oracle="evaluate",
            id=f"spoiled_by_{bad}",
        )
        for bad in (np.nan, np.inf)
    ),
]
test_cases = check(CASES)


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    shape = draw(st.lists(st.integers(0, 9), min_size=1, max_size=5))
    axis, kind = draw(st.integers(-len(shape), len(shape) - 1)), draw(st.sampled_from(("f32", "f16", "bf16")))
    op, version = draw(st.sampled_from((("Softmax", "opset1"), ("Softmax", "opset8"), ("LogSoftmax", "opset5"))))
    return Case(op, version, [In(shape, kind)], {"axis": axis % len(shape) if version == "opset1" else axis})


test_random = sweep(drawn())
