"""SegmentMax and SparseFillEmptyRows against OpenVINO.

NumPy judges SegmentMax if its shape is known at run time only.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, const, given, sweep
from tests.harness.cases import Array

KINDS = ("f16", "bf16", "f64", "i8", "u8", "i16", "u16", "i32", "u32", "i64", "u64")
FEW = [0, 0, 2, 2, 2, 3, 5]
NONE = np.zeros(0, np.int64)


def greatest(
    ids: Any,
    count: Any = None,
    width: tuple[int, ...] = (3,),
    mode: str = "ZERO",
    kind: str = "f32",
    index: str = "i64",
    x: In | None = None,
    **kw: Any,
) -> Case:
    ids = ids if isinstance(ids, In) else given(np.asarray(ids), index)
    if "error" not in kw and not (ids.const or (isinstance(count, In | int) and getattr(count, "const", True))):
        kw.setdefault("expect", by_definition(mode))
    number = [] if count is None else [count if isinstance(count, In) else const(count, index)]
    x = x or In((*ids.shape, *width), kind, low=0 if kind[0] == "u" else -99, high=99)
    return Case("SegmentMax", "opset16", [x, ids, *number], {"fill_mode": mode}, **kw)


def by_definition(mode: str) -> Any:
    def expect(x: Array, ids: Array, count: Any = None) -> Array:
        info = ml_dtypes.finfo if x.dtype.kind not in "iu" else ml_dtypes.iinfo
        empty = np.full(x.shape[1:], info(x.dtype).min if mode.upper() == "LOWEST" else 0, x.dtype)
        number = int(count) if count is not None else ids.max(initial=-1) + 1
        rows = [x[ids == n].max(0) if (ids == n).any() else empty for n in range(number)]
        return np.array(rows, x.dtype).reshape(number, *x.shape[1:])

    return expect


def maxima() -> Iterator[Case]:
    for mode in ("ZERO", "LOWEST", "lowest"):
        yield greatest(FEW, mode=mode, id=mode, rankless=mode == "ZERO")
        yield greatest(FEW, 7, mode=mode, id=f"{mode} of 7", rankless=True)
    yield greatest(const(FEW), mode="LOWEST", id="constant ids", rankless=True)
    yield greatest(FEW, given(np.int64(8)), id="count at run time")
    yield greatest(FEW, 4, id="ids past the end")
    yield greatest(FEW, 0, id="no segments")
    yield greatest(FEW, 7, (), id="vector")
    yield greatest(FEW, 7, (2, 3, 5), id="rank 4")
    yield greatest(FEW, 7, (40,), "LOWEST", id="vectors of 4")
    yield greatest([0] * 300, 1, (12,), id="one long")
    yield greatest([0] * 3 + [2] * 900, 3, (6,), id="a long one")
    yield greatest(np.sort(np.random.default_rng(0).integers(0, 90, 400)), 95, (6,), "LOWEST", id="many")
    yield greatest(FEW, 7, index="i32", id="i32 ids")
    yield greatest(FEW, const(7, "i32"), id="i32 count")
    for kind in KINDS:
        yield greatest(FEW, 7, kind=kind, id=kind)
        # The plugin fills with the lowest number of f32 or i32.
        yield greatest(FEW, 7, kind=kind, mode="LOWEST", id=f"lowest {kind}", expect=by_definition("LOWEST"))
    for count in (None, 7):
        special = In((7,), "f32", [1, np.nan, -np.inf, -np.inf, -np.inf, -0.0, np.inf])
        yield greatest(FEW, count, x=special, id=f"special {count}", expect=by_definition("ZERO"))  # see SegmentMax
    yield greatest(given(NONE), 3, id="no rows", expect=lambda *_: np.zeros((3, 3), np.float32))
    yield greatest(given(NONE), id="nothing")
    yield greatest(FEW, 7, (0,), id="no columns", expect=by_definition("ZERO"))
    yield greatest(const([0, 2, 1]), error="segment_ids do not ascend from 0")
    yield greatest([0, 2, 1], 3, (0,), error="segment_ids do not ascend from 0")
    yield greatest([-1, 2, 3], 3, (0,), error="segment_ids do not ascend from 0")
    yield greatest(FEW, [7], error="num_segments must have rank 0, not 1")
    yield greatest(given([FEW]), 7, error="segment_ids must have rank 1, not 2")
    yield greatest(FEW, x=In((6, 3)), error="there are 6 rows and 7 segment_ids")
    yield greatest(FEW, x=In(()), error="the data are a scalar")
    yield greatest(FEW, index="u8", error="segment_ids must be i32 or i64, not u8")
    yield greatest(FEW, kind="boolean", error="element type boolean is not numeric")
    yield greatest(FEW, mode="ONE", error="'ONE' is not one of zero, lowest")


COORDS = [[0, 1], [0, 3], [2, 0], [3, 1]]


def fill(
    coords: Any = COORDS,
    shape: Any = (5, 6),
    kind: str = "f32",
    index: str = "i64",
    values: In | None = None,
    default: In | None = None,
    **kw: Any,
) -> Case:
    coords = coords if isinstance(coords, In) else given(np.reshape(np.asarray(coords, np.int64), (-1, 2)), index)
    shape = shape if isinstance(shape, In) else const(shape, index)
    values = values or In((coords.shape[0],), kind)
    return Case(
        "SparseFillEmptyRows",
        "opset16",
        [values, shape, coords, default or In((), values.dtype)],
        {},
        [index, values.dtype, "boolean"],
        **kw,
    )


def few_filled(values: Array, _shape: Array, _coords: Array, default: Array) -> tuple[Array, ...]:
    """Return the outputs for `COORDS` in five rows."""
    return (
        np.array([[0, 1], [0, 3], [1, 0], [2, 0], [3, 1], [4, 0]]),
        np.insert(values, [2, 4], default),
        np.array([False, True, False, False, True]),
    )


def filled() -> Iterator[Case]:
    yield fill(rankless=True, id="few")
    yield fill(const(COORDS), rankless=True, id="constant indices")
    yield fill(const(COORDS), given(np.array([5, 6])), id="constant indices, shape at run time")
    yield fill(shape=given(np.array([5, 6])), id="shape at run time", rankless=True)
    yield fill(COORDS[::-1], id="out of order")
    yield fill([[3, 1], [3, 1], [0, 3], [0, 3]], id="twice")
    yield fill([[r, 2] for r in range(5)], id="none is empty")
    yield fill([], id="all are empty")
    yield fill([], (0, 6), id="no rows", expect=lambda v, *_: (np.zeros((0, 2), np.int64), v, np.zeros(0, bool)))
    yield fill([[4, 5], [1, 5], [1, 0]], id="last column")
    yield fill(index="i32")
    for kind in ("f16", "bf16", "f64", "i8", "u8", "i32", "i64", "i4"):
        yield fill(kind=kind, id=kind)
    yield fill(kind="f8e4m3", id="f8", expect=few_filled)  # for such types, the plugin does not write the output
    yield fill(values=given(np.array(list("abcd"))), default=given(np.array("x")), id="strings", expect=few_filled)
    yield fill(const([[0, 1], [5, 0]]), error="row 5 is out of range for extent 5")
    yield fill(const([[0, 6], [4, 0]]), error="column 6 is out of range for extent 6")
    yield fill(const([[0, 1], [-1, 0]]), error="row -1 is negative")
    yield fill([[0, 1], [0, 6]], error="an index is out of range for 5 rows and 6 columns")
    yield fill(shape=(5, 6, 7), error="dense_shape has 3 elements, not 2")
    yield fill(given(np.zeros((4, 3), np.int64)), error="an index has 3 elements, not 2")
    yield fill(values=In((3,)), error="there are 3 values and 4 indices")
    yield fill(values=In((4, 1)), error="values must have rank 1, not 2")
    yield fill(default=In((1,)), error="the default value must have rank 0, not 1")
    yield fill(default=In((), "i32"), error="element types differ: f32, i32")
    yield fill(shape=const([5, 6], "i32"), error="element types differ: i64, i32")
    yield fill(index="u8", error="dense_shape must be i32 or i64, not u8")


test_segment_max = check(list(maxima()))
test_sparse_fill_empty_rows = check(list(filled()))


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    kind, index = draw(st.sampled_from(("f32", "f16", "i32", "i8"))), draw(st.sampled_from(("i32", "i64")))
    if draw(st.booleans()):
        ids = sorted(draw(st.lists(st.integers(0, 9), min_size=1, max_size=40)))
        count = draw(st.none() | st.integers(0, 12))
        mode = draw(st.sampled_from(("ZERO", "LOWEST"))) if kind in ("f32", "i32") else "ZERO"
        return greatest(ids, count, tuple(draw(st.lists(st.integers(1, 9), max_size=3))), mode, kind, index)
    rows, columns = draw(st.integers(1, 12)), draw(st.integers(1, 12))
    coords = draw(st.lists(st.tuples(st.integers(0, rows - 1), st.integers(0, columns - 1)), max_size=20, unique=True))
    shape = draw(st.sampled_from((const, given)))(np.array([rows, columns]), index)
    return fill(coords, shape, kind, index)


test_random = sweep(drawn())
