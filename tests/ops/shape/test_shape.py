"""ShapeOf, Range and Eye against OpenVINO."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import strategies as st

from ovgpu.types import Type
from tests.harness import Case, In, check, const, given, sweep

KINDS = ("f16", "bf16", "f64", "i8", "u8", "i32", "i64", "boolean", "u4", "i4", "f8e4m3")


def shape_of(shape, kind="f32", output=None, version="opset1", **kw) -> Case:
    return Case(
        "ShapeOf", version, [In(shape, kind)], {"output_type": output} if output else {}, [output or "i64"], **kw
    )


SHAPES = [
    shape_of((2, 3)),
    shape_of((2, 3, 5, 7), rankless=True),
    shape_of((1,)),
    shape_of(()),
    shape_of((0, 3), rankless=True),
    *[shape_of((2, 3), kind) for kind in KINDS],
    shape_of((2, 3), "string", expect=lambda x: np.array(x.shape), id="strings"),
]

SHAPE_OF_3 = [
    *[
        shape_of(c.inputs[0].shape, c.inputs[0].dtype, output, "opset3", rankless=c.rankless)
        for c in SHAPES
        if c.expect is None
        for output in ("i32", "i64")
    ],
    shape_of((2, 3), output="f32", version="opset3", error="neither i32 nor i64"),
]


def numbers(start, stop, step, kind="i64", output=None, **kw) -> Case:
    values = [v if isinstance(v, In) else const(v, kind) for v in (start, stop, step)]
    attrs = {"output_type": output} if output else {}
    return Case("Range", "opset4" if output else "opset1", values, attrs, [output or values[0].dtype], **kw)


def same_type(*args, **kw) -> list[Case]:
    """Return the case in both versions, with one type for inputs and output."""
    kind = next((v.dtype for v in args[:3] if isinstance(v, In)), args[3] if len(args) > 3 else "i64")
    return [numbers(*args, **kw), numbers(*args, output=kind, **kw)]


RANGE = [
    *same_type(2, 23, 3),
    *same_type(0, 5, 2),
    *same_type(5, 0, -2),
    *same_type(0, 5, -1, id="empty"),
    *same_type(5, 5, 1, id="empty, at once"),
    *same_type(0, 7, 10),
    *same_type(1.0, 2.5, 0.5, "f32"),
    *same_type(0.0, 1.0, 0.1, "f32"),
    *same_type(3.0, -1.0, -0.7, "f32"),
    *same_type(1.0, 2.5, 0.25, "f16", oracle="cpu"),  # opset1 has no reference
    *same_type(1.0, 2.5, 0.25, "bf16"),
    *same_type(-1000.0, -999.0, 0.01, "f32"),
    *same_type(0, 5, 2, "i32"),
    *same_type(0, 50, 7, "u8"),
    *same_type(-5, 5, 3, "i8"),
    *same_type(given(2), given(23), given(3), id="given"),
    *same_type(given(20), given(2), given(-3), id="given, downwards"),
    *same_type(given(np.float32(0.5)), given(np.float32(3)), given(np.float32(0.3)), id="given floats"),
    *same_type(0, given(4), 1, id="given stop"),
    *same_type(0, 5, 0, error="step is 0"),
    *same_type(0.0, np.inf, 1.0, "f32", error="stop is inf"),
    *same_type(const([0]), 5, 1, error="start is no scalar"),
    *same_type(*(given(np.float32(x)) for x in (0, 5, 0)), error="step is 0", id="given step of 0"),
    *same_type(given(np.float32(0)), given(np.float32(1e20)), given(np.float32(1)), error="out of memory", id="far"),
    numbers(0, const(5.0, "f32"), 1, error="element types differ"),
]
MIXED = [
    numbers(1.7, 5.2, 1.4, "f32", "i32"),
    numbers(-1.7, 5.2, 1.0, "f32", "i64"),
    numbers(-1.7, 5.2, 1.0, "f32", "f16"),
    numbers(1, 4, 1, "i32", "f32"),
    numbers(0, 3, 1, "i32", "u8"),
    numbers(0, 3, 1, "i32", "bf16"),
    numbers(0, 3, 1, "i64", "f64"),
    numbers(0, const(3.5, "f32"), const(1, "i32"), "i64", "f32"),
    numbers(
        given(np.float32(0.7)),
        given(np.float32(6.1)),
        given(np.float32(1.9)),
        output="i64",
        oracle="evaluate",
        id="given to i64",
    ),  # the plugin truncates constants only
    numbers(0.0, 5.2, 0.4, "f32", "i32", error="step is 0"),
]


def eye(rows: Any, columns: Any, diagonal: Any = 0, batch: Any = None, kind: str = "f32", **kw: Any) -> Case:
    sizes = [v if isinstance(v, In) else const(v) for v in (rows, columns, diagonal)]
    shape = [] if batch is None else [batch if isinstance(batch, In) else const(batch)]
    return Case("Eye", "opset9", [*sizes, *shape], {"output_type": kind}, [kind], **kw)


EYE = [
    eye(3, 4),
    eye(3, 4, 2),
    eye(3, 4, -1),
    eye([5], [2], [-2]),
    eye(3, 3, 3),
    eye(3, 2, -3),
    eye(2, 5, 3, [1, 2]),
    eye(2, 3, 0, [3]),
    eye(2, 3, 1, np.zeros(0), id="no batch"),
    eye(2, 3, 0, [2, 0]),
    eye(0, 3),
    eye(70, 30, -5, [2]),
    eye(*[const(v, "i32") for v in (2, 3, 1)], const([2], "i32"), id="i32 sizes"),
    eye(given(2), given(3), given(1), given([2, 5]), id="given"),
    eye(const([2]), given([3]), given([-1]), id="given vectors"),
    *[eye(2, 3, 1, kind=kind) for kind in KINDS if kind != "f8e4m3"],
    eye(2, 3, 1, kind="f8e4m3", expect=lambda *_: np.eye(2, 3, 1).astype(Type.f8e4m3.storage)),
    eye(-1, 3, error="num_rows -1 is negative"),
    eye(*map(given, (-1, 3, 1, [2])), kind="f8e4m3", error="is negative|negative extent", id="given negative"),
    eye(2, 3, 0, [-1], error="batch_shape -1 is negative"),
    eye(2, 3, [0, 1], error="diagonal_index is one number, not 2"),
    eye(2, 3, 0, 2, error="batch_shape must have rank 1, not 0"),
    eye(const(2.0, "f32"), 3, error="num_rows must be integers"),
    eye(2, 3, kind="string", error="output_type string is not numeric"),
]


@st.composite
def ranges(draw: st.DrawFn) -> Case:
    """Draw a Range of multiples of 1/4, which are exact in all types, with a step that does not truncate to 0."""
    kind = draw(st.sampled_from(("f32", "f16", "i32", "i64", "i8")))
    unit = 4 if kind in ("f32", "f16") else 1
    start, stop, step = (draw(st.integers(-40, 40)) / unit for _ in range(3))
    output = draw(st.sampled_from((None, kind, "f32", "i64")))
    case = numbers(start, stop, step if step and (output != "i64" or abs(step) >= 1) else 1.0, kind, output)
    return replace(case, inputs=[given(i.data) if draw(st.booleans()) else i for i in case.inputs])


@st.composite
def eyes(draw: st.DrawFn) -> Case:
    kind = draw(st.sampled_from(("f32", "f16", "i32", "u8", "i64")))
    return eye(
        draw(st.integers(0, 6)),
        draw(st.integers(0, 6)),
        draw(st.integers(-7, 7)),
        draw(st.none() | st.lists(st.integers(1, 3), min_size=1, max_size=3)),
        kind,
    )


@st.composite
def shapes_of(draw: st.DrawFn) -> Case:
    shape, kind = draw(st.lists(st.integers(0, 9), max_size=7)), draw(st.sampled_from(("f32", *KINDS)))
    output = draw(st.sampled_from((None, "i32", "i64")))
    return shape_of(shape, kind, output, "opset3" if output else "opset1")


test_shape_of = check(SHAPES + SHAPE_OF_3)
test_range = check(RANGE + MIXED)
test_eye = check(EYE)
test_random = sweep(ranges() | eyes(), 100)
test_random_shape_of = sweep(shapes_of(), 50)
