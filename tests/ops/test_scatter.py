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

FEW_BITS = [
    Case(*version, [In((5, 2), low=1), In((2, 2), "u4", data=[[0, 4], [3, 1]]), In((2, 2), low=1), const(0)], attrs,
         expect=lambda x, i, u, _: np.stack([[u[0, 0], x[0, 1]], [x[1, 0], u[1, 1]], x[2], [u[1, 0], x[3, 1]],
                                             [x[4, 0], u[0, 1]]]), id="u4-indices")
    for version, attrs in ((OLD, {}), (NEW, {"reduction": "sum", "use_init_val": False}))
]

ERRORS = [
    Case(*NEW, [In((5, 7)), In((2, 7), "i64", data=np.zeros((2, 7))), In((2, 7)), const(2)], error="axis 2"),
    Case(*NEW, [In((5, 7)), In((2,), "i64", data=np.zeros(2)), In((2, 7)), const(0)], error="rank"),
    Case(*OLD, [In((5, 7)), In((2, 7), "i64", data=np.zeros((2, 7))), In((3, 7)), const(0)], error="differ"),
    Case(*OLD, [In((5, 7)), In((2, 7), "i64", data=np.full((2, 7), 5)), In((2, 7)), const(0)], error="index is out of",
         id="past the end"),
    Case(*OLD, [In((5, 7)), In((2, 7), "i64", data=np.full((2, 7), -6)), In((2, 7)), const(0)], error="index is out of",
         id="before the start"),
    Case(*NEW, [In((5, 7)), In((2, 7), "i64", const=True, data=np.full((2, 7), 5)), In((2, 7)), const(0)],
         error="index 5 is out of range for extent 5"),
    Case(*NEW, [In((5, 7)), In((2, 7), "i32", const=True, data=np.full((2, 7), -6)), In((2, 7)), const(0)],
         error="index -6 is out of range for extent 5"),
]

test_cases = check(plain(OLD) + plain(NEW) + REDUCED + FEW_BITS + ERRORS)
