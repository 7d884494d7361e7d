"""NonZero against OpenVINO."""
from __future__ import annotations

from typing import Any

import numpy as np

from tests.harness import Case, In, check


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
    )
]

ERRORS = [Case("NonZero", "opset3", [In((3, 5))], {"output_type": "f32"}, error="output_type")]

test_cases = check(CASES + ERRORS)
