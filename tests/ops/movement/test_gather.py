"""Gather against OpenVINO."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, across, check, const, given, sweep

KINDS = ("f16", "bf16", "i8", "u8", "i32", "i64", "boolean", "f64", "u4", "i4", "f8e4m3")
STRINGS = np.array([["a", "bb", "c"], ["d", "", "é"]])


def data(shape) -> In:
    return shape if isinstance(shape, In) else In(shape)


def gather(shape, indices, axis, version="opset1", batch=None, **kw) -> Case:
    indices = indices if isinstance(indices, In) else given(np.array(indices, np.int64))
    axis = axis if isinstance(axis, In) else const(axis)
    attrs = {} if batch is None else {"batch_dims": batch}
    return Case("Gather", version, [data(shape), indices, axis], attrs, **kw)


ANY = [
    gather((7,), [0, 0, 4], 0),
    gather((7, 3), [[0, 6], [4, 2], [1, 1]], 0, rankless=True),
    gather((7, 3), [2, 0, 1, 1], 1),
    gather((7, 3), [2, 0], -1),
    gather((2, 5, 3), [[4], [0]], 1),
    gather((2, 5, 3), [4, 0, 0], -2),
    gather((2, 5, 3), 3, 1, id="scalar index"),
    gather((2, 5, 3), const(3), 1, id="constant scalar index"),
    gather((2, 5, 3), const([[1]]), 1, id="constant index of rank 2"),
    gather((2, 5, 3), const([3, 1, 1]), 1, id="constant indices"),
    gather((7, 3), [2, 5], const([0])),
    gather((7, 3), given([2, 5], "i32"), const(0, "i32"), id="i32 indices"),
    gather((7, 3), given([2, 5], "u8"), 0, id="u8 indices"),
    gather((7, 3), given([2, 5], "u64"), 0, id="u64 indices"),
    gather((7, 3), np.zeros((0, 2)), 0, expect=lambda x, i, _: x[i], id="no indices"),  # by value
    gather((0, 3), [0], 1, expect=lambda x, *_: x[:, :1], id="no rows"),  # likewise
    gather((7, 3), [2, 1], given(1), expect=lambda x, i, _: x[:, i], id="given axis"),  # by value
    gather((7, 3), [2, 9, 7], 0, id="out of range"),
    gather((7, 3), [2, -1, -7], 0, oracle="evaluate", id="negative"),  # zeros in the plugin, before opset8
    gather((7, 3), const(-2), 0, oracle="evaluate", id="negative constant"),  # likewise
    gather(In((7, 3), const=True), [2, 0, 5], 0, id="constant data"),
    *[gather(In((3, 6), kind), [2, 0, 5], 1, id=kind) for kind in KINDS],
    gather(given(STRINGS), [2, 0], 1, expect=lambda x, *_: x[:, [2, 0]], id="strings"),
    gather(given(STRINGS), [2, 5], 1, expect=lambda x, *_: np.stack([x[:, 2], ["", ""]], 1), id="strings out of range"),
    gather((7,), [3, 1], 1, error="axis 1 is out of range for rank 1"),
    gather((7,), [3, 1], const([0, 0]), error="one axis is expected, not 2"),
    gather((7,), given([3.0]), 0, error="indices must be integers", id="float indices"),
    gather((7, 3), [3], const(0.0, "f32"), error="the axis must be integers", id="float axis"),
]


def batched(*args, **kw) -> Case:
    return gather(*args, version="opset7", **kw)


BATCHED = [
    batched((2, 5), [[0, 0, 4], [4, 0, 1]], 1, batch=1),
    batched((2, 5), [[0, 0, 4], [4, 0, 1]], 1, batch=-1, rankless=True),
    batched((2, 5), [[0, 0, 4], [4, 0, 1]], 1, batch=0),
    batched((2, 5, 3), [[0, 4], [4, 1]], 1, batch=1),
    batched((2, 4, 5), [[1, 2, 4], [4, 3, 2]], 2, batch=1),
    batched((2, 3, 5, 4), [[1, 2, 4], [4, 3, 2]], 2, batch=1),
    batched((2, 3, 5), np.arange(12).reshape(2, 3, 2) % 5, 2, batch=2),
    batched((2, 3, 5, 2), np.arange(6).reshape(2, 3) % 5, 2, batch=2, id="an index per batch"),
    batched((2, 3, 5), np.arange(8).reshape(2, 2, 2) % 5, -1, batch=1),
    batched((3, 5), [4, 0, 2], 1, batch=1, id="one index per row"),
    batched((70, 2, 5), np.arange(210).reshape(70, 3) % 5, 2, batch=1, id="many batches"),
    batched((0, 5), np.zeros((0, 2)), 1, batch=1, expect=lambda x, *_: x[:, :2], id="no batches"),  # likewise
    batched((2, 5), [[0, 9], [4, 5]], 1, batch=1, id="batched out of range"),
    batched((2, 5, 3), [[0, -1], [-5, 1]], 1, batch=1, oracle="evaluate", id="batched negative"),  # as above
    batched((2, 3, 5), [[0, 9], [4, 5]], 2, batch=1, id="batched out of range before the last axis"),
    *[batched(In((2, 5), kind), [[0, 4], [1, 1]], 1, batch=1, id=f"batched {kind}") for kind in KINDS],
    batched((2, 3), [[0, 1], [2, 1]], 0, batch=1, error="1 batch dims reach past axis 0"),
    batched((2, 3), [[0, 1], [2, 1]], 1, batch=3, error="batch_dims 3 is out of range for indices of rank 2"),
    batched((2, 3), [[0, 1], [2, 1], [1, 1]], 1, batch=1, error="batch dim 0 is 2 of the data and 3"),
]
EIGHT = [
    gather((7, 3), [2, -1, -7], 0, "opset8", id="negative in the plugin"),
    gather((7, 3), [2, 9, -8, 7], 0, "opset8", id="out of range on both sides"),
    gather(
        (7, 3), [2**62, -(2**63), 2**63 - 1], 0, "opset8", expect=lambda x, *_: 0 * x[:3], id="far out of range"
    ),  # by value: the plugin sees the low 32 bits
    gather(
        (7, 3),
        given(np.array([2**64 - 1, 2**63, 2**32 + 1, 6], np.uint64)),
        0,
        "opset8",
        expect=lambda x, *_: np.stack([*[0 * x[6]] * 3, x[6]]),
        id="far out of range, unsigned",
    ),  # likewise
    gather(
        (7, 3),
        given([-1, -8, 6, 7], "i4"),
        0,
        "opset8",
        expect=lambda x, *_: np.stack([x[6], 0 * x[6], x[6], 0 * x[6]]),
        id="i4 indices",
    ),
    gather(
        (7, 3),
        given([15, 7, 6, 0], "u4"),
        0,
        "opset8",
        expect=lambda x, *_: np.stack([0 * x[6], 0 * x[6], x[6], x[0]]),
        id="u4 indices",
    ),
    gather((7, 3), const([-1]), 0, "opset8", id="last row"),
    gather((2, 5, 3), const(-1), 1, "opset8", id="last constant"),
    gather((2, 5), [[0, -1], [-5, -6]], 1, "opset8", batch=1, id="batched negative in the plugin"),
    gather((0, 3), [0, 1], 0, "opset8", oracle="evaluate", id="nothing to take"),  # garbage in the plugin
]

test_gather = check(across(["opset1", "opset7", "opset8"], ANY) + across(["opset7", "opset8"], BATCHED) + EIGHT)


def indices(draw: st.DrawFn, shape: list[int], low: int, high: int) -> In:
    """Return indices within these bounds, as a parameter or a constant."""
    found = In(shape, draw(st.sampled_from(("i32", "i64"))), lambda rng: rng.integers(low, high + 1, shape))
    return const(found.array(np.random.default_rng(0)), found.dtype) if draw(st.booleans()) else found


@st.composite
def gathers(draw: st.DrawFn) -> Case:
    """Draw a Gather, judged by the reference: before opset8, the plugin gives zeros for negative indices."""
    version = draw(st.sampled_from(("opset1", "opset7", "opset8")))
    shape = draw(st.lists(st.integers(1, 7), min_size=1, max_size=5))
    axis = draw(st.integers(0, len(shape) - 1))
    batch = draw(st.integers(0, axis)) if version != "opset1" else 0
    at = [*shape[:batch], *draw(st.lists(st.integers(1, 5), max_size=3))]
    data_ = In(shape, draw(st.sampled_from(("f32", "f16", "i32", "u8", "boolean"))))
    index = indices(draw, at, -shape[axis], shape[axis] - 1)
    axis -= draw(st.sampled_from((0, len(shape))))
    return gather(data_, index, axis, version, None if version == "opset1" else batch, oracle="evaluate")


test_random = sweep(gathers(), 60)
