"""Pad against OpenVINO."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, across, check, const, given, sweep

KINDS = ("f16", "bf16", "f64", "i8", "u8", "i32", "i64", "boolean", "u4", "i4", "f8e4m3")
STRINGS = np.array([["a", "bb", "c"], ["d", "", "é"]])


def data(shape) -> In:
    return shape if isinstance(shape, In) else In(shape)


def pad(shape, begin, end, mode="constant", value=None, **kw) -> Case:
    begin, end = (v if isinstance(v, In) else const(v) for v in (begin, end))
    extra = [] if value is None else [value if isinstance(value, In) else const(value, "f32")]
    return Case("Pad", "opset1", [data(shape), begin, end, *extra], {"pad_mode": mode}, **kw)


PAD = [
    pad((3, 4), [0, 1], [2, 3], rankless=True),
    pad((3, 4), [0, 1], [2, 3], value=1.5),
    pad((3, 4), [0, 1], [2, 3], value=In(()), oracle="evaluate", id="given value"),  # 0 in the plugin
    *[pad((3, 4), [0, 1], [2, 3], mode) for mode in ("edge", "reflect", "symmetric")],
    *[pad((3, 4), [2, 3], [2, 3], mode, rankless=True) for mode in ("edge", "reflect", "symmetric")],
    pad((3, 4), [3, 4], [3, 4], "symmetric"),
    pad(given(STRINGS[:, :0]), [0, 1], [0, 1], expect=lambda x, *_: np.full((len(x), 2), ""), id="strings around none"),
    *[pad((3, 4), [-1, -1], [-1, -1], mode) for mode in ("constant", "edge", "reflect", "symmetric")],
    *[pad((3, 4), [2, -1], [-1, 3], mode) for mode in ("constant", "edge", "reflect", "symmetric")],
    pad((2, 3, 4), [1, 0, 2], [0, 2, 1]),
    pad((2, 3, 4), [0, 0, 0], [0, 0, 0]),
    pad((0, 3), [1, 0], [0, 1], value=2.0),
    pad((3,), [1], [1], "edge", value=5.0),
    pad((3, 4), const([0, 1], "i32"), const([2, 3], "i32")),
    pad((3, 4), given([0, 1]), given([2, -3]), id="given pads"),
    pad((3, 4), given([0, 1]), given([2, 3]), "reflect", id="given pads, reflect"),
    *[pad(In((3, 4), kind), [0, 1], [2, 1]) for kind in KINDS],
    *[pad(In((3, 4), kind), [0, 1], [2, 1], "reflect") for kind in KINDS],
    pad(
        given(STRINGS),
        [0, 1],
        [0, 0],
        expect=lambda x, *_: np.pad(x, [(0, 0), (1, 0)], constant_values=""),
        id="strings",
    ),
    pad((3, 4), [0, 1], [2, 3], value=const(5, "i32"), error="element types differ"),
    pad((3, 4), [0, 1], [2, 3], value=const([5.0], "f32"), error="no scalar but has rank 1"),
    pad((3, 4), [1], [1, 1], error="pads_begin has 1 elements for rank 2"),
    pad((3, 4), [3, 0], [0, 0], "reflect", error="padded by 3, and only 2 can be mirrored"),
    pad((3, 4), [0, 0], [0, 5], "symmetric", error="padded by 5, and only 4 can be mirrored"),
    pad((0, 3), [1, 0], [0, 0], "edge", error="axis 0 is empty"),
    pad((3, 4), [1, 1], [1, 1], "mirror", error="'mirror' is not one of"),
    pad((3, 4), const([1.0, 1.0], "f32"), [1, 1], error="must be integers"),
]
test_pad = check(across(["opset1", "opset12"], PAD))

TYPES = st.sampled_from(("f32", "f16", "i32", "u8"))


@st.composite
def pads(draw: st.DrawFn) -> Case:
    """Draw a Pad, also with negative pads. The pad value is a constant, since the plugin takes a parameter for 0."""
    shape = draw(st.lists(st.integers(1, 7), min_size=1, max_size=5))
    mode = draw(st.sampled_from(("constant", "edge", "reflect", "symmetric")))
    most = [{"reflect": n - 1, "symmetric": n}.get(mode, 4) for n in shape]
    begin = [draw(st.integers(-min(2, n - 1), m)) for n, m in zip(shape, most)]
    end = [draw(st.integers(-min(2, n - 1 + min(b, 0)), m)) for n, m, b in zip(shape, most, begin)]
    kind = draw(TYPES)
    value = const(draw(st.integers(0, 9)), kind) if mode == "constant" and draw(st.booleans()) else None
    fed = draw(st.booleans())
    case = pad(In(shape, kind), *(given(np.array(v)) if fed else v for v in (begin, end)), mode, value)
    return replace(case, version=draw(st.sampled_from(("opset1", "opset12"))))


test_random = sweep(pads(), 60)
