"""Bucketize and SearchSorted against OpenVINO."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, given, sweep

KINDS = ("f16", "bf16", "f64", "i8", "u8", "i32", "i64")


def integers(shape: tuple[int, ...], kind: str) -> In:
    return In(shape, kind, lambda rng: rng.integers(0, 21, shape))


def ascending(shape: tuple[int, ...], kind: str = "f32") -> In:
    return In(shape, kind, lambda rng: np.sort(rng.integers(0, 20, shape), -1))


def bucketize(x: Any, buckets: Any, *, right: bool | None = None, output: str = "i64", **kw: Any) -> Case:
    x = x if isinstance(x, In) else In(x, low=-2, high=22)
    buckets = buckets if isinstance(buckets, In) else given(np.float32(buckets))
    attrs = {"output_type": output} | ({} if right is None else {"with_right_bound": right})
    return Case("Bucketize", "opset3", [x, buckets], attrs, **kw)


ON_BOUNDS = given(np.float32([[3, 50], [10, -1], [0, 5]]))
SPECIAL = given(np.float32([np.nan, np.inf, -np.inf, -0.0]))
BUCKETIZE = [
    bucketize((7,), [5, 10, 15]),
    bucketize((3, 5), ascending((9,)), rankless=True),
    bucketize((2, 3, 5), ascending((1,))),
    bucketize((), ascending((4,))),
    bucketize((3, 5), ascending((300,)), id="many"),
    *[
        bucketize(x, [0, 5, 10], right=right, id=f"{name}-{right}")
        for right in (True, False)
        for name, x in (("on bounds", ON_BOUNDS), ("special", SPECIAL))
    ],
    bucketize((3, 5), [], id="no buckets"),
    bucketize((0, 5), [1, 2]),
    bucketize((3, 5), ascending((9,)), output="i32"),
    *[
        bucketize(In((3, 5), kind, low=0, high=20), ascending((9,), kind), right=right, id=f"{kind}-{right}")
        for kind in KINDS
        for right in (True, False)
    ],
    bucketize(In((3, 5), "i32", low=0, high=20), given([0.5, 5, 10.5], "f32"), id="i32 among f32"),
    bucketize(In((3, 5), low=0, high=20), given([0, 5, 10], "i64"), id="f32 among i64"),
    bucketize(
        given([2**24 + 1], "i32"), given([2**24], "f32"), id="beyond f32", expect=lambda *_: np.array([1])
    ),  # the plugin's result varies
    bucketize((3, 5), given([[1.0, 2.0]], "f32"), error="the buckets must have rank 1, not 2"),
    bucketize((3, 5), [1], output="f32", error="output_type f32 is neither i32 nor i64"),
    bucketize(In((3, 5), "boolean"), [1], error="element type boolean is not numeric"),
]


def search(bounds: Any, values: Any, kind: str = "f32", right: bool = False, **kw: Any) -> Case:
    bounds = bounds if isinstance(bounds, In) else ascending(bounds, kind)
    values = values if isinstance(values, In) else integers(values, kind)
    attrs = ({"right_mode": True} if right else {}) | kw.pop("attrs", {})
    return Case("SearchSorted", "opset15", [bounds, values], attrs, **kw)


SEARCH = [
    search((9,), (7,)),
    search((9,), (3, 5), rankless=True),
    search((3, 9), (3, 5), rankless=True),
    search((3, 9), (3, 5), right=True, id="right"),
    search((2, 3, 9), (2, 3, 4), right=True),
    search((2, 3, 1), (2, 3, 4)),
    search((9,), ()),
    search((300,), (5, 60), id="many"),
    search((3, 9), (3, 5), attrs={"output_type": "i32"}, id="i32 output"),
    *[search((3, 9), (3, 5), kind, right, id=f"{kind}-{right}") for kind in KINDS for right in (True, False)],
    *[search(given(np.float32([1, 3, 3, 5])), SPECIAL, right=right, id=f"special-{right}") for right in (True, False)],
    search(given(np.float32([1, 3, np.nan, np.nan])), SPECIAL, right=True, id="among NaN"),
    search(
        (3, 9),
        (3, 5),
        attrs={"right": True},
        id="as in the specification",
        expect=lambda s, v: np.stack([np.searchsorted(a, b, "right") for a, b in zip(s, v)]),
    ),
    search((3, 0), (3, 5), expect=lambda s, v: np.zeros(v.shape, np.int64)),  # the plugin does not write the output
    search(given(np.float32(1)), (3,), error="the sorted sequence is a scalar"),
    search((3, 9), (5,), error="sorted sequences of rank 2 do not fit values of rank 1"),
    search((3, 9), (2, 5), error="extents 3 of the sorted sequences and 2 of the values differ on axis 0"),
    search((9,), In((3,), "i32"), error="element types differ"),
    search((9,), (3,), attrs={"output_type": "u8"}, error="output_type u8 is neither i32 nor i64"),
]

test_bucketize = check(BUCKETIZE)
test_search = check(SEARCH)


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    kind, right = draw(st.sampled_from(("f32", "f16", "i32", "u8", "i64"))), draw(st.booleans())
    shape = tuple(draw(st.lists(st.integers(1, 6), min_size=1, max_size=4)))
    count = draw(st.integers(1, 12))
    if draw(st.booleans()):
        return bucketize(
            In(shape, kind, low=0, high=21),
            ascending((count,), kind),
            right=right,
            output=draw(st.sampled_from(("i32", "i64"))),
        )
    return search((*shape[:-1], count) if draw(st.booleans()) else (count,), shape, kind, right)


test_random = sweep(drawn())
