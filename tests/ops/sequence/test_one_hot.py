"""OneHot against OpenVINO."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, across, check, const, given, sweep

KINDS = ("f16", "bf16", "i8", "u8", "i32", "i64", "boolean", "f64", "u4", "i4", "f8e4m3")


def one_hot(indices, depth, on=5.0, off=2.0, axis=-1, mode=None, version="opset1", **kw) -> Case:
    kinds = ("i64", "f32", "f32")
    inputs = [v if isinstance(v, In) else const(v, kind) for v, kind in zip((depth, on, off), kinds)]
    indices = indices if isinstance(indices, In) else given(np.array(indices, np.int64))
    attrs = {"axis": axis} | ({"negative_indices_mode": mode} if mode else {})
    return Case("OneHot", version, [indices, *inputs], attrs, **kw)


def pair(kind: str) -> dict:
    return {"on": const(1, kind), "off": const(0, kind)}


ONE_HOT = [
    one_hot([0, 2, 1], 3),
    one_hot([0, 2, 1, 3, 7], 3, rankless=True),
    one_hot([0, -1, -3, -4, 2, 3], 3),
    one_hot([[0, 3, 1], [1, 2, 4]], 3, axis=1),
    one_hot([[0, 3, 1], [1, 2, 4]], 3, axis=0, rankless=True),
    one_hot([[0, 3, 1], [1, 2, 4]], 5, axis=-2),
    one_hot(1, 2, axis=0, id="scalar index"),
    one_hot([0, 1], 0, id="no classes"),
    one_hot(np.zeros((0, 2)), 3, expect=lambda i, *_: np.zeros((0, 2, 3), np.float32), id="no indices"),
    one_hot(given([0, 2], "i32"), const(3, "i32"), id="i32 indices"),
    one_hot([0, 1], given(3), id="given depth"),
    one_hot([0, 1], 3, on=In(()), off=In(()), id="given values"),
    *[one_hot([0, 2, 3], 3, **pair(kind), id=kind) for kind in ("f16", "bf16", "i8", "u8", "i32", "i64", "boolean")],
    one_hot([0, 1], -2, error="depth -2 is negative"),
    one_hot([0, 1], const([2]), error="the depth must have rank 0"),
    one_hot([0, 1], 2, on=const([5.0], "f32"), error="on_value is no scalar"),
    one_hot([0, 1], 2, off=const(2, "i32"), error="element types differ"),
    one_hot([0, 1], 2, axis=2, error="axis 2 is out of range for rank 2"),
    one_hot(given([0.0, 1.0]), 2, error="indices must be integers", id="float indices"),
]
ONE_HOT_16 = [
    one_hot([0, -1, -3, -4, 2, 3], 3, mode="normalize", version="opset16", rankless=True),
    one_hot(
        given(np.array([2**64 - 1, 2**32 + 1, 1], np.uint64)),
        3,
        mode="normalize",
        version="opset16",
        expect=lambda *_: np.float32([[2, 2, 2], [2, 2, 2], [2, 5, 2]]),
        id="far out of range, unsigned",
    ),
    one_hot(
        given([-1, 2, -4, 7], "i4"),
        3,
        mode="normalize",
        version="opset16",
        expect=lambda *_: np.float32([[2, 2, 5], [2, 2, 5], [2, 2, 2], [2, 2, 2]]),
        id="i4 indices",
    ),
    one_hot([[0, -5], [-2, 2]], 3, axis=1, mode="normalize", version="opset16"),
    one_hot([0, -1, -3, -4, 2, 3], 3, mode="ignore_negative", version="opset16"),
    one_hot([0, -1, 2], 3, mode="last", version="opset16", error="'last' is not one of"),
]
test_one_hot = check(across(["opset1", "opset16"], ONE_HOT) + ONE_HOT_16)


@st.composite
def one_hots(draw: st.DrawFn) -> Case:
    shape, depth = draw(st.lists(st.integers(1, 5), max_size=4)), draw(st.integers(0, 7))
    version, kind = draw(st.sampled_from(("opset1", "opset16"))), draw(st.sampled_from(("f32", "f16", "i32", "u8")))
    mode = draw(st.sampled_from(("normalize", "ignore_negative"))) if version == "opset16" else None
    indices = In(shape, draw(st.sampled_from(("i32", "i64"))), lambda rng: rng.integers(-9, 10, shape))
    return one_hot(
        indices,
        depth,
        const(draw(st.integers(0, 9)), kind),
        const(2, kind),
        draw(st.integers(-len(shape) - 1, len(shape))),
        mode,
        version,
    )


test_random = sweep(one_hots(), 60)
