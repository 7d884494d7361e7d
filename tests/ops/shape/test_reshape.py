"""Reshape, Squeeze, Unsqueeze against OpenVINO."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, across, check, const, given, sweep

KINDS = ("f16", "bf16", "f64", "i8", "u8", "i32", "i64", "boolean", "u4", "i4", "f8e4m3")
STRINGS = np.array([["a", "bb", "c"], ["d", "", "é"]])
NONE = const(np.zeros(0))


def reshape(shape, target, special=False, **kw) -> Case:
    data = shape if isinstance(shape, In) else In(shape)
    return Case(
        "Reshape",
        "opset1",
        [data, target if isinstance(target, In) else const(target)],
        {"special_zero": special},
        **kw,
    )


RESHAPE = [
    reshape((2, 3, 5), [5, 6]),
    reshape((2, 3, 5), [-1]),
    reshape((2, 3, 5), [3, -1, 2], rankless=True),
    reshape((2, 3, 5), [0, -1], True),
    reshape((2, 3, 5), [0, 0, 5, 1], True),
    reshape((2, 3, 5), [0, 0, -1, 5], True, rankless=True),
    reshape((3, 2, 5), [-1, 0], True),
    reshape((2, 3, 5), [1, 1, 30, 1]),
    reshape((2, 3, 5), const([6, 5], "i32")),
    reshape((2, 3, 5), const([6, 5], "u8")),
    reshape((1,), NONE, id="to a scalar"),
    reshape((), [1, 1], id="from a scalar"),
    reshape((0, 4), [0, -1], True, id="empty, copied"),
    reshape((0, 4), [0, -1], id="empty, rest of nothing"),
    reshape((2, 0, 4), [-1, 0], id="empty, rest in front"),
    reshape((2, 0, 4), [0, 7], id="empty to another"),
    reshape((2, 3, 4), [4, 6], id="constant target"),
    reshape((2, 3, 4), given([4, 6]), dynamic=False, id="given target"),
    reshape((2, 3, 4), given([4, -1]), id="given target with a rest"),
    reshape((2, 3, 4), given([0, -1, 2]), True, id="given target with zero and rest"),
    reshape((2, 3, 4), given(np.array([0, 12], np.int32)), True, id="given i32 target with zero"),
    *[reshape(In((2, 6), kind), [3, 4]) for kind in KINDS],
    reshape(given(STRINGS), [3, -1], expect=lambda x, _: x.reshape(3, 2), id="strings"),
    reshape((2, 3), [7], error="6 elements cannot be reshaped"),
    reshape((2, 3), [-1, 4], error="6 elements cannot be reshaped"),
    reshape((2, 3), [0, -1], error="without elements"),
    reshape((2, 3), [-1, -1], error="more than one -1"),
    reshape((2, 3), [-2, 3], error="below -1"),
    reshape((2, 3), [3, -1, 0], True, error="no extent to copy"),
    reshape((2, 3), const([2.0, 3.0], "f32"), error="must be integers"),
    reshape((1,), const(1), error="rank 1"),
]


def squeeze(shape, axes=None, **kw) -> Case:
    data = shape if isinstance(shape, In) else In(shape)
    axes = [] if axes is None else [axes if isinstance(axes, In) else const(axes)]
    return Case("Squeeze", "opset1", [data, *axes], **kw)


SQUEEZE = [
    squeeze((1, 3, 1, 2), [0, 2]),
    squeeze((1, 3, 1, 2), [0]),
    squeeze((1, 3, 1, 2), [2, 0], rankless=True),
    squeeze((1, 3, 1, 2), [-2]),
    squeeze((1, 3, 1, 2), [2, -2], id="twice the same"),
    squeeze((1, 3, 1, 2)),
    squeeze((1, 3, 1, 2), NONE, id="no axes"),
    squeeze((1, 3, 1, 2), const(0)),
    squeeze((1, 3), const([0], "i32")),
    squeeze((2, 1, 3), [0], dynamic=False, id="an extent of 2 stays"),
    squeeze((2, 1, 3), [0, 1], dynamic=False, id="one stays and one goes"),
    squeeze((1, 1), [0, 1]),
    squeeze((1,)),
    squeeze(()),
    squeeze((1, 0, 1), [0]),
    squeeze((2, 1, 3), given([1]), id="given axes"),
    *[squeeze(In((1, 6, 1), kind), [0]) for kind in KINDS],
    squeeze(given(STRINGS[None]), [0], expect=lambda x, _: x[0], id="strings"),
    squeeze((2, 1, 3), [3], error="axis 3 is out of range for rank 3"),
    squeeze((2, 1, 3), [-4], error="axis -4 is out of range for rank 3"),
    squeeze((2, 1, 3), const([5.0], "f32"), error="must be integers"),
    squeeze((2, 1, 3), [[1]], error="rank 0 or 1"),
]
SQUEEZE_15 = [
    Case("Squeeze", "opset15", [In((2, 1, 3)), const([1])], {"allow_axis_skip": True}),
    Case("Squeeze", "opset15", [In((2, 1, 3)), const([0, 1])], {"allow_axis_skip": True}, rankless=True),
    Case("Squeeze", "opset15", [In((2, 1, 3)), const([0, 1])], {"allow_axis_skip": False}, dynamic=False),
]


def unsqueeze(shape, axes, **kw) -> Case:
    data = shape if isinstance(shape, In) else In(shape)
    return Case("Unsqueeze", "opset1", [data, axes if isinstance(axes, In) else const(axes)], **kw)


UNSQUEEZE = [
    unsqueeze((2, 3), [0]),
    unsqueeze((2, 3), [0, 3], rankless=True),
    unsqueeze((2, 3), [-1]),
    unsqueeze((2, 3), [0, -1]),
    unsqueeze((2, 3), [2, 0, 1]),
    unsqueeze((2, 3), [0, 0], id="twice the same"),
    unsqueeze((2, 3), [3, -1], id="twice the same, differently"),
    unsqueeze((2, 3), const(1)),
    unsqueeze((2, 3), const([1], "i32")),
    unsqueeze((), [0, 1]),
    unsqueeze((0, 3), [1]),
    unsqueeze((2, 3), given([1]), id="given axes"),
    *[unsqueeze(In((2, 6), kind), [1]) for kind in KINDS],
    unsqueeze(given(STRINGS), [0], expect=lambda x, _: x[None], id="strings"),
    unsqueeze((2, 3), [4], error="axis 4 is out of range for rank 3"),
    unsqueeze((2, 3), NONE, error="axes are empty", id="no axes"),
    unsqueeze((2, 3), const([1.0], "f32"), error="must be integers"),
]

test_reshape = check(RESHAPE)
test_squeeze = check(across(["opset1", "opset15"], SQUEEZE) + SQUEEZE_15)
test_unsqueeze = check(UNSQUEEZE)


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    shape = draw(st.lists(st.integers(0, 6) | st.just(1), max_size=5))
    x = In(shape, draw(st.sampled_from(("f32", "f16", "i32", "u8", "boolean"))))
    if draw(st.booleans()):
        return reshape_of(draw, x)
    version = draw(st.sampled_from(("opset1", "opset15")))
    ones = [i - draw(st.sampled_from((0, len(shape)))) for i, d in enumerate(shape) if d == 1]
    if draw(st.booleans()):
        axes = draw(st.lists(st.sampled_from(ones), min_size=1)) if ones else None
        return replace(squeeze(x, axes), version=version)
    rank = len(shape) + draw(st.integers(1, 3))
    new = draw(st.permutations(range(rank)))[: rank - len(shape)]
    return unsqueeze(x, [axis - draw(st.sampled_from((0, rank))) for axis in new])


def reshape_of(draw: st.DrawFn, x: In) -> Case:
    """Draw a Reshape that merges neighbouring axes, splits others, and infers an extent."""
    target: list[int] = []
    for extent in x.shape:
        if target and draw(st.booleans()):
            target[-1] *= extent
        else:
            parts = [n for n in range(1, extent + 1) if extent % n == 0]
            first = draw(st.sampled_from(parts)) if parts and draw(st.booleans()) else 1
            target += [first, extent // first] if first > 1 else [extent]
    special = 0 not in x.shape and draw(st.booleans())  # special_zero would copy the input's extent for a 0
    wanted = [
        0 if special and i < len(x.shape) and x.shape[i] == extent and draw(st.booleans()) else extent
        for i, extent in enumerate(target)
    ]
    rest = draw(st.integers(0, 2 * len(target)))
    return reshape(x, [-1 if i == rest else extent for i, extent in enumerate(wanted)], special)


test_random = sweep(drawn(), 100)
