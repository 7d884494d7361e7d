"""ScatterElementsUpdate against OpenVINO."""
from __future__ import annotations

from typing import Any

import numpy as np

from tests.harness import Case, In, check, const

OLD, NEW = ("ScatterElementsUpdate", "opset3"), ("ScatterElementsUpdate", "opset12")


def scatter(version: tuple[str, str], shape: tuple[int, ...], at: tuple[int, ...], axis: int = 0, *, kind: str = "f32",
            index: str = "i64", negative: bool = False, id: str = "", **attrs: Any) -> Case:
    """Updates of shape ``at`` at distinct places along ``axis``, or repeated ones where a reduction is given."""
    random = np.random.RandomState(len(id) + 7 * axis + sum(at))
    length, count, i = shape[axis], at[axis], axis % len(shape)
    if attrs.get("reduction", "none") == "none":
        indices = np.argsort(random.rand(*at[:i], length, *at[i + 1 :]), axis=i).take(range(count), axis=i)
    else:
        indices = random.randint(0, length, at)
    if negative:
        indices = indices - length * random.randint(0, 2, at)
    return Case(*version, [In(shape, kind), In(at, index, data=indices), In(at, kind), const(axis)],
                attrs, id=id or f"{kind}-{'x'.join(map(str, shape))}-axis{axis}")


def plain(version: tuple[str, str]) -> list[Case]:
    return [
        scatter(version, (5,), (3,), id="vector"),
        scatter(version, (5, 3), (2, 3), id="rows"),
        scatter(version, (5, 7), (5, 3), 1, id="columns"),
        scatter(version, (5, 7), (3, 2), 1, id="part"),
        scatter(version, (2, 5, 3), (2, 4, 3), 1, id="middle"),
        scatter(version, (2, 3, 5), (1, 2, 4), -1, id="negative-axis"),
        scatter(version, (5, 7), (3, 7), index="i32", id="i32-indices"),
        scatter(version, (5, 7), (5, 3), 1, negative=True, id="negative-indices"),
        scatter(version, (5, 7), (2, 7), kind="i32", id="i32"),
        scatter(version, (5, 7), (2, 7), kind="i64", id="i64"),
        scatter(version, (5, 7), (2, 7), kind="f16", id="f16"),
        scatter(version, (5, 7), (2, 7), kind="u8", id="u8"),
        scatter(version, (5, 7), (2, 7), kind="boolean", id="boolean"),
        scatter(version, (5, 7), (0, 7), id="no-updates"),
    ]


REDUCED = [
    scatter(NEW, (5, 7), (4, 7), kind=kind, id=f"{kind}-{reduction}-{initial}", reduction=reduction,
            use_init_val=initial)
    for kind in ("f32", "i32")
    for reduction in ("sum", "prod", "min", "max", "mean")
    for initial in (True, False)
]

ERRORS = [
    Case(*NEW, [In((5, 7)), In((2, 7), "i64", data=np.zeros((2, 7))), In((2, 7)), const(2)], error="axis 2"),
    Case(*NEW, [In((5, 7)), In((2,), "i64", data=np.zeros(2)), In((2, 7)), const(0)], error="rank"),
    Case(*OLD, [In((5, 7)), In((2, 7), "i64", data=np.zeros((2, 7))), In((3, 7)), const(0)], error="differ"),
    Case(*OLD, [In((5, 7)), In((2, 7), "i64", data=np.full((2, 7), 5)), In((2, 7)), const(0)], error="out of range"),
]

test_cases = check(plain(OLD) + plain(NEW) + REDUCED + ERRORS)
