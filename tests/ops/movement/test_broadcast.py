"""Broadcast against OpenVINO."""

from __future__ import annotations

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
    broadcast(
        (2, 3),
        [2, 3, 4],
        "pdpd",
        expect=lambda x, _: np.broadcast_to(x[..., None], (2, 3, 4)),
        id="pdpd, aligned in front",
    ),
]

test_broadcast = check(across(["opset1", "opset3"], BROADCAST + PDPD) + BROADCAST_1 + BROADCAST_3)

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


test_random = sweep(broadcasts(), 60)
