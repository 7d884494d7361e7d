"""TopK against OpenVINO."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, const, given, sweep

TIES = [[3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5], [7, 7, 7, 7, 0, 0, 0, 0, 7, 0, 7]]


def distinct(rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Return distinct values of shape [3, 5, 7]."""
    return rng.permutation(105).reshape(3, 5, 7) - 50


def topk(
    version: str, x: In, k: Any, axis: int, mode: str = "max", sort: str = "value", *, index: str = "i32", **more: Any
) -> Case:
    attrs = {"axis": axis, "mode": mode, "sort": sort} | more.pop("attrs", {})
    if index != "i32":
        attrs["index_element_type"] = index
    return Case("TopK", version, [x, k if isinstance(k, In) else const(k)], attrs, [x.dtype, index], **more)


def selections(version: str) -> Iterator[Case]:
    x = In((3, 5, 7), "f32", distinct)
    for axis in (0, 1, 2, -1, -2):
        yield topk(version, x, 2, axis, id=f"axis_{axis}", rankless=axis > 0)
    for mode in ("max", "min"):
        for sort in ("value", "index"):
            yield topk(version, x, 3, 1, mode, sort, id=f"{mode}_{sort}")
        yield topk(version, x, 7, 2, mode, id=f"{mode}_all")
        yield topk(version, x, 1, 2, mode, id=f"{mode}_one")
        long = In((3, 211), "f32", lambda rng: rng.permutation(633))
        yield topk(version, long, 5, 1, mode, id=f"long_{mode}")
        yield topk(version, long, 5, 1, mode, "index", id=f"long_{mode}_index")
        yield topk(version, In((211, 3), "i32", lambda rng: rng.permutation(633)), 5, 0, mode, id=f"long_{mode}_first")
        yield topk(version, given([np.arange(99) % 5], "f32"), 4, 1, mode, id=f"long_{mode}_ties", oracle="evaluate")
        for kind in ("f32", "i32"):  # the plugin orders equal elements differently
            for sort in ("value", "index"):
                yield topk(
                    version, given(TIES, kind), 7, 1, mode, sort, id=f"ties_{kind}_{mode}_{sort}", oracle="evaluate"
                )
    for kind in ("i32", "i64", "i8", "u8", "f16"):
        yield topk(version, In((105,), kind, lambda rng: rng.permutation(105)), 5, 0, id=f"type_{kind}")
    yield topk(version, In((105,), "bf16", lambda rng: rng.permutation(105)), 5, 0, id="type_bf16")
    yield topk(version, x, 3, 1, index="i64", id="index_i64")
    yield topk(version, x, In((), "i32", 3, const=True), 1, id="k_i32")
    yield topk(version, x, given(np.int64(3)), 1, id="k_at_run_time")
    yield topk(version, x, 3, 3, error="axis 3 is out of range for rank 3")
    yield topk(version, x, 8, 2, error="k is 8, of 7 elements")
    yield topk(version, In((0, 7)), given(np.int64(8)), 1, error="k is 8, of 7 elements")
    yield topk(version, x, -1, 2, error="k is -1")
    yield topk(version, x, [2], 2, error="k must have rank 0, not 1")
    yield topk(version, x, const(2.0, "f32"), 2, error="k must be integers, not f32")
    yield topk(version, x, 2, 2, index="u8", error="index_element_type is u8")
    yield topk(version, x, 2, 2, mode="most", error="'most'")


TOPK = [
    *(case for version in ("opset1", "opset3", "opset11") for case in selections(version)),
    topk("opset3", In((3, 5, 7), "f32", distinct), In((), "u8", 3, const=True), 1, id="k_u8"),
    *(
        topk("opset11", given(TIES, "f32"), 7, 1, mode, attrs={"stable": True}, id=f"stable_{mode}_value")
        for mode in ("max", "min")
    ),
    # by index, the plugin's choice among equal elements is not stable
    *(
        topk(
            "opset11",
            given(TIES, "f32"),
            7,
            1,
            mode,
            "index",
            attrs={"stable": True},
            oracle="evaluate",
            id=f"stable_{mode}_index",
        )
        for mode in ("max", "min")
    ),
    topk("opset11", In((3, 5)), 2, 1, sort="none", attrs={"stable": True}, error="stable needs sort"),
    topk(
        "opset11",
        given([[1, np.nan, 3, np.inf]], "f32"),
        3,
        1,
        id="nan_is_the_greatest",
        expect=[np.array([[np.nan, np.inf, 3]], np.float32), np.array([[1, 3, 2]], np.int32)],
    ),
    topk(
        "opset11",
        given([np.nan, *range(63)], "f32"),
        2,
        0,
        id="nan_in_many",
        expect=[np.array([np.nan, 62], np.float32), np.array([0, 63], np.int32)],
    ),
    topk(
        "opset11",
        given([[1, 2], [3, 4]], "f32"),
        0,
        1,
        id="none",
        expect=[np.zeros((2, 0), np.float32), np.zeros((2, 0), np.int32)],
    ),
]
test_topk = check(TOPK)


@st.composite
def selected(draw: st.DrawFn) -> Case:
    """Draw a TopK. The reference judges cases with ties, among which the plugin selects other elements."""
    shape = tuple(draw(st.lists(st.integers(1, 7), min_size=1, max_size=4)))
    version, kind = draw(st.sampled_from(("opset1", "opset3", "opset11"))), draw(st.sampled_from(("f32", "i32", "f16")))
    axis = draw(st.integers(-len(shape), len(shape) - 1))
    size, k = math.prod(shape), draw(st.integers(1, shape[axis]))
    few = draw(st.booleans())
    x = In(shape, kind, lambda rng: rng.integers(0, 4, shape) if few else rng.permutation(size) - size // 2)
    return topk(
        version,
        x,
        given(np.int64(k)) if draw(st.booleans()) else k,
        axis,
        draw(st.sampled_from(("max", "min"))),
        draw(st.sampled_from(("value", "index"))),
        index=draw(st.sampled_from(("i32", "i64"))),
        oracle="evaluate" if few else "auto",
    )


test_random = sweep(selected(), 60)
