"""Slice, SliceScatter and StridedSlice against OpenVINO."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st

from tests.harness import Case, In, check, const, given, sweep

KINDS = ("f16", "bf16", "f64", "i8", "u8", "i32", "i64", "boolean", "u4", "i4", "f8e4m3")
STRINGS = np.array([["a", "bb", "c"], ["d", "", "é"]])
INT_MAX, INT_MIN = 2**31 - 1, -(2**31)


def data(shape) -> In:
    return shape if isinstance(shape, In) else In(shape)


def ints(*values) -> list[In]:
    return [v if isinstance(v, In) else const(np.array(v, np.int64)) for v in values]


def cut(shape, *bounds, **kw) -> Case:
    return Case("Slice", "opset8", [data(shape), *ints(*bounds)], **kw)


SLICE = [
    cut((10,), [1], [8], [1], [0]),
    cut((10,), [1], [8], [1], rankless=True),
    cut((10,), [0], [-1], [1]),
    cut((10,), [-1], [INT_MAX], [1]),
    cut((10,), [-3], [-1], [1]),
    cut((10,), [1], [8], [2]),
    cut((10,), [-100], [100], [3]),
    # by value
    *(
        cut((10,), [-100], given([2], "i64"), [step], id=f"far_{step}", dynamic=False, expect=lambda x, *_: x[:1])
        for step in (2**31, 2**61, 4539628424389459971, 2**63 - 1)
    ),
    cut((10,), [9], [-11], [-1]),
    cut((10,), [9], [0], [-1]),
    cut((10,), [9], [-10], [-1]),
    cut((10,), [9], [-11], [-2]),
    cut((10,), [100], [-100], [-1]),
    cut((10,), [-1], [INT_MIN], [-3]),
    cut((10,), [-2], [2], [-2]),
    cut((10,), [4], [-1], [-1], id="empty, backwards"),
    cut((10,), [7], [3], [1], id="empty"),
    cut((10,), [12], [15], [1], id="empty, behind"),
    cut((10,), [-20], [-15], [1], id="empty, before"),
    cut((10,), [0], [2**63 - 1], [1]),
    cut((10,), [-1], [-(2**63)], [-1]),
    cut((2, 5), [0, 1], [2, 4], [1, 2], [0, 1]),
    cut((3, 5), [1], [4], [2], [-1], rankless=True),
    cut((3, 5), [1, 0], [4, 2], [2, 1], [-1, 0]),
    cut((7, 4, 5), [0, 0], [4, 2], [1, 1]),
    *[cut((10,), [start], [stop], [-1], expect=lambda x, *_: x[:0]) for start, stop in ((-15, -20), (-12, INT_MIN))],
    cut((3, 5), [], [], [], id="no axes"),
    cut((0, 2), [0], [INT_MAX], [1]),
    cut((0, 2), [1], [2], [1], [1]),
    cut((0, 2), [-1], [INT_MIN], [-1]),
    cut((10,), const([1], "i32"), const([INT_MAX], "i32"), const([2], "i32"), const([0], "i32")),
    cut((10, 3), given([2]), given([-1]), [1], id="given bounds"),
    cut((10, 3), given([-3]), given([INT_MAX]), [1], id="given bounds to the end"),
    cut((10, 3), given([7]), given([-20]), [-2], id="given bounds, backwards"),
    cut((10, 3), given([12]), given([-2]), [-1], [0], id="given bounds, out of range"),
    cut((10, 3), given([9]), given([0]), given([-4]), id="given step"),
    cut((10, 3), [1], [2], [1], given([1]), expect=lambda x, *_: x[:, 1:2], id="given axes"),  # by value
    cut((4, 3), given([1], "i32"), given([3], "i32"), const([1], "i32"), id="given i32 bounds"),
    *[cut(In((3, 6), kind), [1], [4], [2], [1]) for kind in KINDS],
    cut(given(STRINGS), [1], [3], [1], [1], expect=lambda x, *_: x[:, 1:3], id="strings"),
    cut((3, 5), [1, 0], [4, 2], [2, 1], [1, -1], error=r"axes \[1, -1\] are not distinct"),
    cut((3, 5), [1, 0], [4, 2], [2, 1], [1, 2], error="axis 2 is out of range for rank 2"),
    cut((3, 5), [1, 0], [4, 2], [2, 0], error="a step is 0"),
    cut((3, 5), [1], [4, 2], [2, 1], error="have 1, 2, 2 and 1 elements"),
    cut((3, 5), [0, 0, 0], [1, 1, 1], [1, 1, 1], error="axis 2 is out of range for rank 2"),
    cut((5,), 1, 4, 2, error="start must have rank 1"),
    cut((), [0], [1], [1], error="a scalar cannot be sliced"),
    cut((5,), const([1.0], "f32"), [4], [1], error="start must be integers"),
]

MASKS = {"b": "begin_mask", "e": "end_mask", "n": "new_axis_mask", "s": "shrink_axis_mask", "d": "ellipsis_mask"}


def strided(shape, *bounds, id=None, masks="", **kw) -> Case:
    """Return a StridedSlice case with ``masks`` such as "b01 e10": letters of `MASKS` with a bit per element."""
    set_ = {MASKS[m[0]]: [int(bit) for bit in m[1:]] for m in masks.split()}
    none = [0] * max(map(len, set_.values()), default=ints(bounds[0])[0].shape[0])
    attrs = {"begin_mask": none, "end_mask": none} | set_
    return Case("StridedSlice", "opset1", [data(shape), *ints(*bounds)], attrs, id=id, **kw)


STRIDED = [
    strided((4, 4, 4, 4), [0, 1, 0, 3], [4, 4, 4, 0], [1, 1, 2, -1]),
    strided((5, 3), [1, 0], [4, 2]),
    strided((5, 3), [1], [4], [2], rankless=True),
    strided((5,), [2], [2], [1]),
    strided((5,), [3], [0], [-1]),
    strided((5,), [3], [0], [-1], masks="b1 e1"),
    strided((5,), [3], [-1], [-1]),
    strided((5,), [-1], [-6], [-2]),
    strided((5,), [-100], [100], [2]),
    strided((5,), [100], [-100], [-2]),
    strided((5, 3), [1, 1], [0, 2], [1, 1], masks="b01 e10", rankless=True),
    strided((5, 3), [0, 0], [0, -1], [1, 1], masks="b11 e10"),
    strided((2, 3, 4), [1, 1, 123], [0, 0, 2], [1, 1, -1], masks="b011 e111"),
    strided(
        (2, 3, 4),
        [1, 1, 123],
        [0, 0, 2],
        [1, 1, -1],
        masks="b011 e111 n00000 s00 d0",
        expect=lambda x, *_: x[1:, :, ::-1],
        id="masks of many lengths",
    ),
    strided((2, 4), [99, 0, -1, 0], [99, 2, 99, 4], [7, 1, 8, 1], masks="n1010"),
    strided((2, 4), [0, 0], [1, 2], [1, 1], masks="n10"),
    strided((2, 4), [0, 0], [1, 2], [0, 1], masks="n10", id="new axis with stride 0"),
    strided((2, 3), [0, 0, 0], [1, 2, 1], [1, 1, 1], masks="n001", rankless=True),
    strided((1, 2, 5), [0, 0, 0], [1, 0, 5], [1, 1, 1], masks="s010"),
    strided((2, 3), [-1, 0], [0, 9], [1, 1], masks="s10", rankless=True),
    strided((2, 3), [1, 1], [9, 9], [0, -1], masks="s11"),
    strided((5,), [2], [9], [2], masks="s1"),
    strided((5,), [2], [9], [1], masks="s1 n1"),
    strided((5,), [2], [8], [1], masks="s1 b1", oracle="cpu"),
    strided((2, 3, 4), [0, 1], [2, 3], [1, 1], masks="d10"),
    strided((2, 3, 4), [0, 0, 1], [2, 0, 3], [1, 1, 2], masks="d010", rankless=True),
    strided((2, 3, 4), [0, 0, 1, 0], [2, 0, 3, 1], [1, 1, 2, 1], masks="d0100 n0001"),
    strided((2, 3, 4), [0, 0, 1, 0], [2, 0, 3, 1], [1, 1, 2, 1], masks="d0100 s1001"),
    strided((2, 3), [0, 0, 1], [2, 0, 3], [1, 1, 1], masks="d010", id="ellipsis of no axes"),
    strided((2, 3, 4), [0, 0, 1], [2, 0, 3], [1, 1, 2], masks="d010 b010 n010 s010", oracle="cpu"),
    strided(
        (2, 2, 2, 2, 3),
        [1, 1, 10, 10],
        [9, 1, 10, 2],
        [1, -1, 1, 1],
        masks="b0011 e1100 n001 s0 d01",
        expect=lambda x, *_: x[1:, ..., None, :2],
        id="masks of many lengths with an ellipsis",
    ),
    strided((0, 3), [0, 1], [1, 2], [1, 1]),
    strided((5, 3), const([1], "i32"), const([4], "i32"), const([1], "i32")),
    strided((5, 3), given([1, 0]), given([-1, 2]), [1, 1], id="given bounds"),
    strided((5, 3), given([3, 0]), given([0, 9]), [-1, 1], id="given bounds, backwards"),
    strided((5, 3), given([-2, 1]), given([0, 9]), [1, 1], masks="s10", id="given index"),
    strided((5, 3), given([3, 0]), given([0, 9]), given([-2, 2]), id="given strides"),
    *[strided(In((3, 6), kind), [0, 1], [2, 5], [1, 3]) for kind in KINDS],
    strided(given(STRINGS), [0, 1], [2, 3], [1, 1], expect=lambda x, *_: x[:, 1:3], id="strings"),
    strided((5,), [7], [8], [1], masks="s1", error="index 7 is out of range for extent 5"),
    strided((5,), [-7], [8], [1], masks="s1", error="index -7 is out of range for extent 5"),
    strided((2, 3), [0, 0, 0], [1, 1, 1], [1, 1, 1], error="3 axes are sliced of a tensor of rank 2"),
    strided((2, 3), [0, 0, 1, 1], [2, 0, 3, 2], [1, 1, 1, 1], masks="d0100", error="3 axes are sliced"),
    strided((2, 3), [0, 0], [1, 1], [1, 0], error="a step is 0"),
    strided((2, 3), [0, 0], [1], [1, 1], error="have 2, 1, 2 elements"),
    strided((2, 3), [0, 0], [1, 2], [1, 1], masks="d11", error="more than one ellipsis"),
    strided((2, 3), const([0.0], "f32"), [1], [1], error="begin must be integers"),
]


def scatter(shape, updates, *bounds, kind="f32", **kw) -> Case:
    return Case("SliceScatter", "opset15", [In(shape, kind), In(updates, kind), *ints(*bounds)], **kw)


SCATTER = [
    scatter((10,), (7,), [1], [8], [1]),
    scatter((3, 5), (2, 2), [0, 1], [3, 5], [2, 2], rankless=True),
    scatter((3, 5), (3, 2), [-1], [-3], [-1], [1]),
    scatter((3, 5), (3, 5), [-25], [25], [1], [1]),
    scatter((3, 5), (3, 5), [4], [INT_MIN], [-1], [-1], rankless=True),
    scatter((3, 5), (2, 5), [1], [INT_MAX], [1]),
    scatter((3, 5, 7), (3, 2, 3), [0, 3], [7, 0], [3, -2], [-1, 1]),
    scatter((3, 5, 7), (1, 5, 2), [2, 1], [3, 6], [1, 3], [0, 2]),
    scatter((3, 5), (3, 0), [4], [2], [1], [1]),
    scatter((3, 5), (3, 2), *[const([n], "i32") for n in (1, 3, 1, 1)], id="i32 bounds"),
    scatter(
        (3, 5),
        (3, 2),
        given([1]),
        given([3]),
        given([1]),
        [1],
        id="given bounds",
        expect=lambda x, u, *_: np.concatenate([x[:, :1], u, x[:, 3:]], 1),
    ),  # the plugin writes another slice
    *[scatter((3, 6), (3, 2), [1], [6], [3], [1], kind=kind) for kind in KINDS if kind not in ("u4", "i4", "f8e4m3")],
    *[
        scatter((3, 6), (3, 6), [5], [INT_MIN], [-1], [1], kind=kind, expect=lambda x, u, *_: u[:, ::-1])
        for kind in ("u4", "i4", "f8e4m3")
    ],
    scatter((3, 5), (1, 2), [1], [3], [1], [1], error="the slice has 3 elements on axis 0, updates have 1"),
    scatter((3, 5), (2,), [1], [3], [1], [1], error="updates have rank 1, data has 2"),
    scatter((3, 5), (3, 2), [1], [3], [0], [1], error="a step is 0"),
    scatter((3, 5), (3, 2), [1], [3], [1], [2], error="axis 2 is out of range for rank 2"),
    scatter((3, 5), (3, 2), [1, 1], [3, 3], [1, 1], [1, 1], error="axes .* are not distinct"),
    scatter((3, 5), (3, 2), [1], [3], const([1.0], "f32"), [1], error="step must be integers"),
    Case(
        "SliceScatter", "opset15", [In((3, 0)), In((1, 0), "i32"), *ints([1], [2], [1])], error="element types differ"
    ),
]


TYPES = st.sampled_from(("f32", "f16", "i32", "u8"))
STEPS = st.sampled_from((1, 1, 2, 3, -1, -2, -3))
NEAR = st.integers(-8, 8)
BOUNDS = NEAR | st.sampled_from((INT_MIN, INT_MAX))


@st.composite
def slices(draw: st.DrawFn) -> Case:
    shape = draw(st.lists(st.integers(0, 6), min_size=1, max_size=5))
    axes = draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    bounds = [[draw(values) for _ in axes] for values in (BOUNDS, BOUNDS, STEPS)]
    # for a negative step from before the first element, OpenVINO selects that element, and Python none
    bounds[0] = [max(b, -shape[a]) if step < 0 else b for b, step, a in zip(bounds[0], bounds[2], axes)]
    fed = draw(st.booleans())
    named = [] if axes == list(range(len(axes))) else [[a - draw(st.sampled_from((0, len(shape)))) for a in axes]]
    return cut(In(shape, draw(TYPES)), *[given(np.array(b)) if fed else b for b in bounds], *named)


@st.composite
def strided_slices(draw: st.DrawFn) -> Case:
    """Draw a StridedSlice whose elements slice or index an axis, insert an axis, or are an ellipsis.

    The reference judges, because the plugin does not answer all of them.
    """
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    count = draw(st.integers(1, len(shape)))
    front = draw(st.integers(0, count)) if draw(st.booleans()) else count
    axes = [*range(front), *range(len(shape) - count + front, len(shape))]
    parts = [draw(part(shape[axis])) for axis in axes]
    if front < count or draw(st.booleans()):
        parts.insert(front, ("d", 0, 0, 1, 0, 0))
    for at in draw(st.lists(st.integers(0, len(parts)), max_size=2)):
        parts.insert(at, ("n", draw(NEAR), draw(NEAR), draw(NEAR), 1, 0))
    kinds, begin, end, step, *open_ = zip(*parts)
    masks = [m + "".join(str(int(kind == m)) for kind in kinds) for m in "nsd"]
    masks += [m + "".join(map(str, bits)) for m, bits in zip("be", open_)]
    fed = draw(st.booleans())
    bounds = [given(np.array(b)) if fed else b for b in (begin, end)]
    return strided(In(shape, draw(TYPES)), *bounds, step, masks=" ".join(masks), oracle="evaluate")


@st.composite
def part(draw: st.DrawFn, extent: int) -> tuple[Any, ...]:
    """Draw a slice of an axis: the letter of its mask, begin, end, step, and whether either end is open."""
    if draw(st.booleans()):
        return "s", draw(st.integers(-extent, extent - 1)), draw(NEAR), 1, 0, draw(st.integers(0, 1))
    bounds = draw(NEAR), draw(NEAR), draw(STEPS), draw(st.integers(0, 1)), draw(st.integers(0, 1))
    begin, end = (None if is_open else bound for bound, is_open in zip(bounds, bounds[3:]))
    assume(range(extent)[begin : end : bounds[2]])
    return "c", *bounds


@st.composite
def scatters(draw: st.DrawFn) -> Case:
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=4))
    axes = draw(st.lists(st.integers(0, len(shape) - 1), min_size=1, unique=True))
    bounds = [
        (draw(st.integers(-8, 8)), draw(st.integers(-8, 8)), draw(st.sampled_from((1, 2, 3, -1, -2)))) for _ in axes
    ]
    updates = list(shape)
    for axis, (start, stop, step) in zip(axes, bounds):
        updates[axis] = len(range(shape[axis])[start:stop:step])
    return scatter(shape, updates, *zip(*bounds), axes, kind=draw(TYPES))


test_slice = check(SLICE)
test_strided_slice = check(STRIDED)
test_scatter = check(SCATTER)
test_random = sweep(st.one_of(slices(), strided_slices(), scatters()), 100)
