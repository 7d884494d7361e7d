"""EmbeddingBag* and EmbeddingSegmentsSum against OpenVINO.

Empty bags at the end have values of their own; neither they nor indices out of range are drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, const, given, sweep
from tests.harness.cases import Array

OFFSETS = (("EmbeddingBagOffsetsSum", "opset3"), ("EmbeddingBagOffsets", "opset15"))
PACKED = (("EmbeddingBagPackedSum", "opset3"), ("EmbeddingBagPacked", "opset15"))
SEGMENTS = ("EmbeddingSegmentsSum", "opset3")
KINDS = ("f16", "bf16", "f64", "i8", "u8", "i32", "i64")
NONE = np.zeros(0, np.int64)
ABSENT = -1  # default index for zeros


def numbers(shape: tuple[int, ...], below: int, kind: str = "i64") -> In:
    """Return random row indices, which differ in every draw."""
    return In(shape, kind, low=0, high=below - 1)


def table(shape: tuple[int, ...] = (11, 3), kind: str = "f32") -> In:
    return In(shape, kind)


def optional(default: Any, weights: In | None, kind: str) -> list[In]:
    if default is None and weights is None:
        return []
    default = default if isinstance(default, In) else const(ABSENT if default is None else default, kind)
    return [default] if weights is None else [default, weights]


def offsets(
    op: tuple[str, str],
    starts: Any,
    count: int | In,
    emb: In | None = None,
    default: Any = None,
    weights: bool | In = False,
    kind: str = "i64",
    mean: bool = False,
    **kw: Any,
) -> Case:
    emb = emb or table()
    indices = count if isinstance(count, In) else numbers((count,), emb.shape[0], kind)
    starts = starts if isinstance(starts, In) else given(np.asarray(starts), kind)
    scale = In(indices.shape, emb.dtype) if weights is True else weights or None
    attrs = {"reduction": "mean"} if mean else {}
    return Case(*op, [emb, indices, starts, *optional(default, scale, kind)], attrs, **kw)


def packed(
    op: tuple[str, str],
    shape: tuple[int, ...] | In,
    emb: In | None = None,
    weights: bool | In = False,
    kind: str = "i64",
    mean: bool = False,
    **kw: Any,
) -> Case:
    emb = emb or table()
    indices = shape if isinstance(shape, In) else numbers(shape, emb.shape[0], kind)
    scale = [In(indices.shape, emb.dtype)] if weights is True else [weights] if weights else []
    return Case(*op, [emb, indices, *scale], {"reduction": "mean"} if mean else {}, **kw)


def segments(
    ids: Any,
    count: Any,
    emb: In | None = None,
    default: Any = None,
    weights: bool | In = False,
    kind: str = "i64",
    **kw: Any,
) -> Case:
    emb = emb or table()
    ids = ids if isinstance(ids, In) else given(np.asarray(ids), kind)
    count = count if isinstance(count, In) else const(count, kind)
    scale = In(ids.shape, emb.dtype) if weights is True else weights or None
    return Case(
        *SEGMENTS, [emb, numbers(ids.shape, emb.shape[0], kind), ids, count, *optional(default, scale, kind)], **kw
    )


def expected(mean: bool = False, default: int = ABSENT) -> Callable[..., Array]:
    """Return the specification's algorithm, for an empty bag at the end or no indices at all."""

    def expect(emb: Array, indices: Array, starts: Array, *_: Array) -> Array:
        bags = []
        for first, last in zip(starts, [*starts[1:], len(indices)]):
            rows = emb[indices[first:last]]
            if len(rows):
                bags.append(rows.mean(0) if mean else rows.sum(0))
            else:
                bags.append(np.zeros_like(emb[0]) if default == ABSENT else emb[default])
        return np.stack(bags).astype(emb.dtype)

    return expect


def of_offsets(op: tuple[str, str]) -> Iterator[Case]:
    few = [0, 2, 2, 5]
    yield offsets(op, few, 7, rankless=True)
    yield offsets(op, few, 7, default=4, rankless=True, id="default")
    yield offsets(op, few, 7, default=given(np.int64(3)), id="default at run time")
    yield offsets(op, few, 7, default=4, weights=True, rankless=True, id="weights")
    yield offsets(op, few, 7, default=ABSENT, weights=True, id="weights without default")
    yield offsets(op, few, 7, default=4, weights=True, kind="i32", id="i32 indices")
    yield offsets(op, [2, 2, 5], 7, id="not all")
    yield offsets(op, few, 7, table((11,)), weights=True, id="scalars")
    yield offsets(op, few, 7, table((11, 2, 3, 5)), default=1, weights=True)
    yield offsets(op, few, 7, table((11, 40)), id="vectors of 4")
    yield offsets(op, [0], 300, table((50, 9)), id="one long bag", weights=True, tol=1e-4)  # a sum of 300 products
    yield offsets(op, [0, 290], 300, table((50, 12)), id="a long bag", weights=True, tol=1e-4)  # likewise
    yield offsets(op, np.sort(np.random.default_rng(0).integers(0, 350, 90)), 400, table((50, 6)), default=7, id="many")
    for kind in KINDS:
        yield offsets(op, few, 7, table(kind=kind), default=2, weights=True, id=kind)
    yield offsets(op, [0, 2, 7], 7, id="empty at the end", expect=expected())
    yield offsets(op, [0, 2, 7], 7, default=4, id="default at the end", expect=expected(default=4))
    yield offsets(op, [0, 0], given(NONE), default=4, id="no indices", expect=expected(default=4))
    yield offsets(op, given(NONE), 7, id="no bags")
    yield offsets(op, few, 7, table((11, 0)), id="no columns", expect=lambda *_: np.zeros((4, 0), np.float32))
    empty = table((11, 0))
    yield offsets(op, few, 7, empty, default=11, error="default_index 11 is out of range for extent 11")
    yield offsets(op, few, 7, empty, default=-2, error="default_index -2 is out of range for extent 11")
    yield offsets(op, few, const([0, 11, 3, 2, 2, 2]), empty, error="index 11 is out of range for extent 11")
    yield offsets(op, few, given([0, 11, 3, 2, 2, 2], "i64"), empty, error="an index is out of range for extent 11")
    yield offsets(op, few, const([0, -1, 3, 2, 2, 2]), empty, error="index -1 is negative")
    yield offsets(op, const([0, 8]), 7, empty, error="offset 8 is out of range for extent 8")
    yield offsets(op, given([0, 8], "i64"), 7, empty, error="offsets do not ascend from 0 to 7")
    yield offsets(op, const([0, 3, 2]), 7, empty, error="offsets do not ascend")
    yield offsets(op, given([3, 2], "i64"), 7, empty, error="offsets do not ascend from 0 to 7", id="descending")
    yield offsets(op, few, numbers((7, 1), 11), error="indices must have rank 1, not 2")
    yield offsets(op, numbers((2, 1), 3), 7, error="offsets must have rank 1, not 2")
    yield offsets(op, few, 7, default=[1], error="default_index must have rank 0, not 1")
    yield offsets(op, few, 7, weights=In((6,)), error="indices and per_sample_weights differ: 7 and 6")
    yield offsets(op, few, 7, weights=In((7, 1)), error="per_sample_weights must have rank 1, not 2")
    yield offsets(op, few, 7, weights=In((7,), "f16"), error="element types differ: f32, f16")
    yield offsets(op, few, numbers((7,), 11, "i32"), error="element types differ: i32, i64")
    yield offsets(op, few, 7, kind="u8", error="indices must be i32 or i64, not u8")
    yield offsets(op, few, 7, table((11, 0), "boolean"), error="element type boolean is not numeric")
    yield offsets(op, few, numbers((7,), 2), table(()), error="the table is a scalar")


def of_packed(op: tuple[str, str]) -> Iterator[Case]:
    yield packed(op, (5, 2), rankless=True)
    yield packed(op, (5, 3), weights=True, rankless=True)
    yield packed(op, (5, 3), kind="i32", weights=True)
    yield packed(op, (1, 3), weights=True)
    yield packed(op, (5, 3), table((11,)), weights=True)
    yield packed(op, (5, 3), table((11, 2, 3, 5)), weights=True)
    yield packed(op, (5, 3), table((11, 40)))
    yield packed(op, (2, 300), table((50, 12)), weights=True, tol=1e-4)  # sums of 300 products
    yield packed(op, (3, 90), table((50, 6)))
    for kind in KINDS:
        yield packed(op, (5, 3), table(kind=kind), weights=True, id=kind)
    yield packed(op, given(np.zeros((3, 0), np.int64)), expect=lambda *_: np.zeros((3, 3), np.float32))
    yield packed(op, given(np.zeros((0, 3), np.int64)), id="no bags")
    yield packed(op, const([[0, 11]]), table((11, 0)), error="index 11 is out of range for extent 11")
    yield packed(op, given([[0, 11]], "i64"), table((11, 0)), error="an index is out of range for extent 11")
    yield packed(op, (5,), error="indices must have rank 2, not 1")
    yield packed(op, (5, 3), kind="u8", error="indices must be i32 or i64, not u8")
    yield packed(op, (5, 3), weights=In((5, 2)), error="indices and per_sample_weights differ: 3 and 2")
    yield packed(op, (5, 3), weights=In((5, 3), "f16"), error="element types differ: f32, f16")
    yield packed(op, (5, 3), table((11, 0), "boolean"), error="element type boolean is not numeric")


def means() -> Iterator[Case]:
    for kind in ("f32", *KINDS):
        emb = table((11, 3), kind) if kind[0] != "i" else In((11, 3), kind, low=-99 if kind != "i8" else -9, high=9)
        yield offsets(OFFSETS[1], [0, 2, 2, 5], 7, emb, mean=True, default=4, id=f"mean {kind}")
        yield packed(PACKED[1], (5, 3), emb, mean=True, id=f"mean {kind}")
    yield offsets(OFFSETS[1], [0, 4, 5], 5, mean=True, id="mean of none", expect=expected(True))
    yield packed(
        PACKED[1],
        given(np.zeros((3, 0), np.int64)),
        mean=True,
        id="mean of none",
        expect=lambda *_: np.zeros((3, 3), np.float32),
    )
    for case in (offsets(OFFSETS[1], [0, 2], 7, weights=True), packed(PACKED[1], (5, 3), weights=True)):
        yield replace(case, attrs={"reduction": "mean"}, error="per_sample_weights are for sums, not for means")


def of_segments() -> Iterator[Case]:
    few = [0, 0, 2, 2, 2, 3, 5]
    yield segments(few, 6, rankless=True)
    yield segments(few, 8, id="empty at the end")
    yield segments(few, 4, id="ids past the end")
    yield segments(few, 0, id="no segments")
    yield segments(few, given(np.int64(7)), id="count at run time", rankless=True)
    yield segments(few, 6, default=4, rankless=True, id="default")
    yield segments(few, 6, default=given(np.int64(4)), weights=True, id="default at run time")
    yield segments(few, 6, default=4, weights=True, kind="i32", id="i32 indices")
    yield segments(few, 6, table((11,)), default=1, weights=True, id="scalars")
    yield segments(few, 6, table((11, 2, 3, 5)), default=1, weights=True)
    yield segments([-1, -1, 0, 2], 3, id="ids before the first")
    yield segments([0] * 300, 1, table((50, 12)), default=1, weights=True, id="one long", tol=1e-4)  # 300 products
    yield segments(np.sort(np.random.default_rng(0).integers(0, 90, 400)), 90, table((50, 6)), default=7, id="many")
    for kind in KINDS:
        yield segments(few, 6, table(kind=kind), default=2, weights=True, id=kind)
    yield segments(
        few,
        6,
        default=ABSENT,
        weights=True,
        id="no default",
        expect=lambda emb, i, ids, n, d, w: np.stack([(emb[i] * w[:, None])[ids == s].sum(0) for s in range(n)]),
    )
    yield segments(given(NONE), 3, default=4, id="no indices", expect=lambda emb, *_: emb[[4, 4, 4]])
    yield segments(few, 6, table((11, 0)), default=11, error="default_index 11 is out of range for extent 11")
    yield segments(const([0, 2, 1]), 3, table((11, 0)), error="segment_ids do not ascend")
    yield segments(given([0, 2, 1], "i64"), 3, table((11, 0)), error="segment_ids do not ascend")
    yield segments(numbers((7, 1), 3), 3, error="indices must have rank 1, not 2")
    yield segments(few, [3], error="num_segments must have rank 0, not 1")
    yield segments(few, const(3, "i32"), error="element types differ: i64, i64, i32")
    yield segments(few, 3, weights=In((6,)), error="indices and per_sample_weights differ: 7 and 6")
    yield Case(
        *SEGMENTS,
        [table(), numbers((7,), 11), numbers((6,), 3), const(3)],
        error="indices and segment_ids differ: 7 and 6",
    )


test_offsets = check([case for op in OFFSETS for case in of_offsets(op)])
test_packed = check([case for op in PACKED for case in of_packed(op)])
test_means = check(list(means()))
test_segments = check(list(of_segments()))


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    kind, index = draw(st.sampled_from(("f32", "f16", "i32", "i8"))), draw(st.sampled_from(("i32", "i64")))
    shape = draw(st.integers(1, 20)), *draw(st.lists(st.integers(1, 9), max_size=3))
    emb = In(shape, kind, low=-3, high=3)  # i8 sums must not overflow: the plugin would divide wrapped sums
    count, weights = draw(st.integers(1, 40)), draw(st.booleans())
    default = draw(st.none() | st.integers(0, emb.shape[0] - 1))
    which = draw(st.integers(0, 4))
    mean = not weights and draw(st.booleans())
    if which < 2:
        starts = sorted(draw(st.lists(st.integers(0, count - 1), max_size=20)))
        return offsets(
            OFFSETS[which],
            given(np.array(starts, np.int64), index),
            count,
            emb,
            default,
            weights,
            index,
            mean and which == 1,
        )
    if which < 4:
        return packed(PACKED[which - 2], (draw(st.integers(1, 9)), count), emb, weights, index, mean and which == 3)
    segment_ids = sorted(draw(st.lists(st.integers(0, 9), min_size=1, max_size=40)))
    if default is None:
        weights = False  # weights have their own cases
    return segments(given(np.array(segment_ids), index), draw(st.integers(0, 12)), emb, default, weights, index)


test_random = sweep(drawn())
