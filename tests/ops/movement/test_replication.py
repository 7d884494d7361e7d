"""Broadcast, Tile, Pad against OpenVINO."""
from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, across, check, const, given, sweep

KINDS = ("f16", "bf16", "f64", "i8", "u8", "i32", "i64", "boolean", "u4", "i4", "f8e4m3")
STRINGS = np.array([["a", "bb", "c"], ["d", "", "é"]])
NONE = const(np.zeros(0))


def data(shape) -> In:
    return shape if isinstance(shape, In) else In(shape)


def broadcast(shape, target, mode=None, axes=None, version="opset1", **kw) -> Case:
    others = [v if isinstance(v, In) else const(v) for v in (target, axes) if v is not None]
    return Case("Broadcast", version, [data(shape), *others], {"mode": mode} if mode else {}, **kw)


BROADCAST = [
    broadcast((3, 1), [2, 3, 5], "numpy"),
    broadcast((3, 1), [2, 3, 5]),
    broadcast((3, 5), [3, 5], rankless=True),
    broadcast((), [2, 3]),
    broadcast((), NONE, expect=lambda x, _: x, id="scalar to scalar"),
    broadcast((1, 3), [0, 3]),
    broadcast((1, 3), const([2, 3], "i32")),
    broadcast((3, 1), given([2, 3, 5]), id="given target"),
    broadcast((16,), [1, 16, 2, 3], "explicit", [1]),
    broadcast((5, 3), [2, 5, 3, 4], "explicit", [1, 2], rankless=True),
    broadcast((2, 1), [2, 4, 3], "explicit", [0, 1]),
    broadcast((2, 3), [2, 7, 3], "explicit", [0, 2]),
    broadcast((), [2, 3], "explicit", NONE, id="scalar, explicit"),
    broadcast((), [1, 3], "explicit", [0], id="scalar with an axis"),
    broadcast((2, 3), [2, 2, 3], "none", [1, 2]),
    broadcast((2, 3), given([2, 2, 3]), "explicit", given([1, 2]), id="given target and axes"),
    *[broadcast(In((3, 1), kind), [2, 3, 4]) for kind in KINDS],
    broadcast(given(STRINGS), [2, 2, 3], expect=lambda x, _: np.broadcast_to(x, (2, 2, 3)), id="strings"),
    broadcast((3, 1), [1, 1, 2], error="dimension 3 cannot be broadcast to 1"),
    broadcast((1,), given([-1, 2]), error="negative extent|shape \\[-1, 2\\]", id="given negative target"),
    broadcast((3, 1), [2], error="rank 2 is over the target's 1"),
    broadcast((2, 3), [3, 2, 2], "explicit", [1, 0], error="ascending order"),
    broadcast((2, 3), [2, 4, 2], "explicit", [0, 1], error="dimension 3 cannot be broadcast to 4"),
    broadcast((2, 3), [2, 3, 2], "explicit", [0], error="mapping of 1 does not fit rank 2"),
    broadcast((2, 3), [2, 3, 2], "explicit", [0, 3], error="out of range for a target of rank 3"),
    broadcast((3, 1), const([2.0], "f32"), error="must be integers"),
]
BROADCAST_1 = [  # with a mapping of axes that has no meaning
    broadcast((3, 1), [2, 3, 5], "numpy", 0, id="numpy, with a scalar for axes"),
    broadcast((3, 1), [2, 3, 5], "numpy", [2, 1, 0], id="numpy, with axes"),
    broadcast((3, 1), given([2, 3, 5]), "numpy", 0, id="numpy, given target, with a scalar for axes"),
    broadcast((3, 1), [2, 3, 5], "explicit", 0, error="the axes mapping must have rank 1"),
]
BROADCAST_3 = [
    broadcast((3, 1), [2], "bidirectional", version="opset3"),
    broadcast((3, 1), [2, 1, 5], "bidirectional", version="opset3", rankless=True),
    broadcast((2, 3, 1), [3, 5], "bidirectional", version="opset3"),
    broadcast((3, 5), [1, 1], "bidirectional", version="opset3"),
    broadcast((), [2, 3], "bidirectional", version="opset3"),
    broadcast((3, 1), given([2, 1, 5]), "bidirectional", version="opset3", id="given target, bidirectional"),
    broadcast((2, 3), [2, 3], "pdpd", version="opset3"),
    broadcast((2, 1), [2, 3], "pdpd", version="opset3"),
    broadcast((2, 3), [1, 3], "pdpd", version="opset3"),
    broadcast((3, 1), [2, 4, 5], "bidirectional", version="opset3", error="(3 and 4|4 and 3)"),
    broadcast((3, 1), [3, 5], "explicit", version="opset3", error="mode explicit needs axes mapping"),
    broadcast((3, 1), [3, 5], "numpy", [0, 1], version="opset3", error="mode numpy takes no axes mapping"),
]
PDPD = [
    broadcast((2, 3), [2, 3, 4], "pdpd", expect=lambda x, _: np.broadcast_to(x[..., None], (2, 3, 4)),
              id="pdpd, aligned in front"),
]


def tile(shape, repeats, **kw) -> Case:
    return Case("Tile", "opset1", [data(shape), repeats if isinstance(repeats, In) else const(repeats)], **kw)


TILE = [
    tile((2, 3, 4), [1, 2, 3], rankless=True),
    tile((2, 3), [5, 1, 2]),
    tile((5, 2, 3), [2, 2]),
    tile((2, 3), [1, 1]),
    tile((3,), [4]),
    tile((), [2, 2]),
    tile((2, 3), [0, 2]),
    tile((2, 3), [-1, 2]),
    tile((0, 3), [2, 2]),
    tile((1, 3), [4, 1]),
    tile((2, 3), const([2, 1], "i32")),
    tile((2, 3), given([2, 3]), id="given repeats"),
    *[tile(In((3, 2), kind), [2, 3]) for kind in KINDS],
    tile(given(STRINGS), [2, 1], expect=lambda x, _: np.tile(x, (2, 1)), id="strings"),
    tile((2, 3), const(2), error="rank 1"),
    tile((2, 3), const([2.0, 1.0], "f32"), error="must be integers"),
]


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
    pad(given(STRINGS), [0, 1], [0, 0], expect=lambda x, *_: np.pad(x, [(0, 0), (1, 0)], constant_values=""),
        id="strings"),
    pad((3, 4), [0, 1], [2, 3], value=const(5, "i32"), error="element types differ"),
    pad((3, 4), [0, 1], [2, 3], value=const([5.0], "f32"), error="no scalar but has rank 1"),
    pad((3, 4), [1], [1, 1], error="pads_begin has 1 elements for rank 2"),
    pad((3, 4), [3, 0], [0, 0], "reflect", error="padded by 3, and only 2 can be mirrored"),
    pad((3, 4), [0, 0], [0, 5], "symmetric", error="padded by 5, and only 4 can be mirrored"),
    pad((0, 3), [1, 0], [0, 0], "edge", error="axis 0 is empty"),
    pad((3, 4), [1, 1], [1, 1], "mirror", error="'mirror' is not one of"),
    pad((3, 4), const([1.0, 1.0], "f32"), [1, 1], error="must be integers"),
]

test_broadcast = check(across(["opset1", "opset3"], BROADCAST + PDPD) + BROADCAST_1 + BROADCAST_3)
test_tile = check(TILE)
test_pad = check(across(["opset1", "opset12"], PAD))

TYPES = st.sampled_from(("f32", "f16", "i32", "u8"))


@st.composite
def broadcasts(draw: st.DrawFn) -> Case:
    target = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    kind, version = draw(TYPES), draw(st.sampled_from(("opset1", "opset3")))
    mode = draw(st.sampled_from(("numpy", "explicit", "bidirectional")[: 2 if version == "opset1" else 3]))
    axes = sorted(draw(st.lists(st.integers(0, len(target) - 1), min_size=1, unique=True)))
    if mode != "explicit":
        axes = list(range(axes[0], len(target)))
    shape = [draw(st.sampled_from((1, target[axis]))) for axis in axes]
    if mode == "bidirectional":
        target = [draw(st.sampled_from((1, n))) for n in target][draw(st.integers(0, len(target) - 1)) :]
    mapping = [np.array(axes)] if mode == "explicit" else []
    fed = [given(np.array(v)) if draw(st.booleans()) else v for v in (target, *mapping)]
    return broadcast(In(shape, kind), fed[0], mode, *fed[1:], version=version)


@st.composite
def tiles(draw: st.DrawFn) -> Case:
    """Draw a Tile, judged by NumPy: for rank 4 or more, the plugin may not write the output, and the reference may
    never return."""
    shape = draw(st.lists(st.integers(0, 6), max_size=4))
    repeats = draw(st.lists(st.integers(0, 4), min_size=1, max_size=5))
    fed = draw(st.booleans())
    return tile(In(shape, draw(TYPES)), given(np.array(repeats)) if fed else repeats, expect=lambda x, n: np.tile(x, n))


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


test_random = sweep(st.one_of(broadcasts(), tiles(), pads()), 100)
