"""GatherElements, GatherND and GatherTree against OpenVINO."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, across, check, const, given, sweep

KINDS = ("f16", "bf16", "f64", "i8", "u8", "i32", "i64", "boolean", "u4", "i4", "f8e4m3")
STRINGS = np.array([["a", "bb", "c"], ["d", "", "é"]])


def data(shape: Any) -> In:
    return shape if isinstance(shape, In) else In(shape)


def numbers(low: int, high: int, shape: tuple[int, ...], kind: str = "i64") -> In:
    """Return random indices, which differ at every inference."""
    return In(shape, kind, lambda rng: rng.integers(low, high, shape))


def elements(shape: Any, indices: Any, axis: int, **kw: Any) -> Case:
    indices = indices if isinstance(indices, In) else given(np.array(indices, np.int64))
    return Case("GatherElements", "opset6", [data(shape), indices], {"axis": axis}, **kw)


ELEMENTS = [
    elements((7,), [0, 6, 6, 2, 1], 0),
    elements((3, 7), numbers(0, 7, (3, 10)), 1, rankless=True, id="more"),
    elements((3, 7), numbers(0, 7, (3, 4)), -1, id="fewer"),
    elements((5, 3), numbers(0, 5, (2, 3)), 0, id="rows"),
    elements((2, 5, 3), numbers(0, 5, (2, 9, 3)), 1, rankless=True, id="middle"),
    elements((2, 3, 5, 6), numbers(0, 3, (2, 4, 5, 6)), -3, id="rank 4"),
    elements((3, 7), numbers(0, 7, (3, 4), "i32"), 1, id="i32 indices"),
    elements((3, 7), numbers(-7, 7, (3, 4)), 1, id="negative"),
    elements((3, 7), const([[0], [6], [2]]), 1, id="constant indices"),
    elements(In((3, 7), const=True), numbers(0, 7, (3, 4)), 1, id="constant data"),
    elements(
        (3, 7),
        [[0, 7], [-8, 2**40], [1, -(2**63)]],
        1,
        id="out of range",
        expect=lambda x, i: np.float32([[x[0, 0], 0], [0, 0], [x[2, 1], 0]]),
    ),  # garbage in the plugin
    elements(
        (3, 0), numbers(0, 1, (3, 2)), 1, expect=lambda *_: np.zeros((3, 2), np.float32), id="nothing to take"
    ),  # likewise
    elements((3, 7), np.zeros((3, 0)), 1, expect=lambda *_: np.zeros((3, 0), np.float32), id="no indices"),
    elements(
        (3, 7),
        given([[15, 2], [6, 0], [1, 1]], "u4"),
        1,
        id="u4 indices",
        expect=lambda x, i: np.stack([[0, x[0, 2]], x[1, [6, 0]], x[2, [1, 1]]]).astype(np.float32),
    ),
    *[elements(In((3, 6), kind), numbers(0, 6, (3, 4)), 1, id=kind) for kind in KINDS if kind != "f64"],
    elements(
        In((3, 6), "f64"), numbers(0, 6, (3, 4)), 1, id="f64", expect=lambda x, i: np.take_along_axis(x, i, 1)
    ),  # the plugin computes f64 in f32
    elements(given(STRINGS), [[2, 0], [1, -1]], 1, expect=lambda x, i: np.take_along_axis(x, i, 1), id="strings"),
    elements((3, 7), numbers(0, 3, (3, 7)), 2, error="axis 2 is out of range for rank 2", id="axis"),
    elements((3, 7), numbers(0, 3, (3,)), 0, error="indices have rank 1, data has 2", id="rank"),
    elements(
        (3, 7),
        numbers(0, 3, (2, 5)),
        1,
        error="extents 3 of the data and 2 of the indices differ on axis 0",
        id="extents",
    ),
    elements((), numbers(0, 3, ()), 0, error="axis 0 is out of range for rank 0", id="scalar"),
    elements((3, 7), given(np.zeros((3, 2), np.float32)), 1, error="indices must be integers", id="float indices"),
    elements(given(STRINGS), const([[0], [3]]), 1, error="index 3 is out of range for extent 3", id="constant index"),
]


def nd(shape: Any, indices: Any, batch: int = 0, **kw: Any) -> Case:
    """Return a case. Only a few cases have dynamic shapes, since a dynamic tuple length makes the output's rank
    dynamic."""
    indices = indices if isinstance(indices, In) else given(np.array(indices, np.int64))
    dynamic = indices.const or kw.get("rankless", False) or "error" in kw
    return Case(
        "GatherND",
        "opset8",
        [data(shape), indices],
        {"batch_dims": batch} if batch else {},
        **{"dynamic": dynamic} | kw,
    )


ND = [
    nd((7, 3), [[2, 1], [6, 0]]),
    nd((7, 3), [[2], [6], [6], [0]], rankless=True),
    nd((7, 3), [6, 2], id="one tuple"),
    nd((7,), [3], id="one element"),
    nd((7, 3, 5), numbers(0, 3, (2, 4, 2)), id="slices"),
    nd((7, 3, 5), numbers(0, 3, (4, 1, 1)), id="slices of rank 2"),
    nd((3, 7, 5), numbers(0, 3, (4, 3)), rankless=True, id="elements"),
    nd((3, 7, 5), numbers(-3, 3, (4, 3)), id="negative"),
    nd((3, 7, 5), numbers(0, 3, (4, 2), "i32"), id="i32 indices"),
    nd((3, 7, 5), numbers(0, 3, (4, 2), "u8"), id="u8 indices"),
    nd((3, 7), numbers(0, 7, (3, 1)), 1, id="an index per batch"),
    nd((3, 7, 4), numbers(0, 7, (3, 5, 1)), 1, rankless=True, id="batch"),
    nd((3, 7, 4), numbers(0, 4, (3, 5, 2)), 1, id="batch of elements"),
    nd((2, 3, 7), numbers(0, 7, (2, 3, 4, 1)), 2, rankless=True, id="two batch dims"),
    nd((2, 3, 7), numbers(0, 7, (2, 3, 1)), 2, id="two batch dims of an index"),
    nd((2, 3, 7, 5), numbers(0, 5, (2, 3, 2)), 2, id="two batch dims of elements"),
    nd((2, 1, 3, 7, 5), numbers(0, 5, (2, 1, 3, 4, 1)), 3, id="three batch dims"),
    nd((7, 3), const([[2, 1], [-7, -1]]), id="constant indices"),
    nd((3, 7, 5), const([[[6], [1]], [[0], [2]], [[-1], [5]]]), 1, id="constant batched indices"),
    nd(
        (7, 3),
        [[2, 3], [-8, 0], [6, 2], [2**40, 0]],
        id="out of range",
        expect=lambda x, i: np.float32([0, 0, x[6, 2], 0]),
    ),  # garbage in the plugin
    nd((7, 3), [[-8], [7], [1]], id="rows out of range", expect=lambda x, i: np.stack([0 * x[1], 0 * x[1], x[1]])),
    nd((0, 3), [[0], [0]], id="nothing to take", expect=lambda *_: np.zeros((2, 3), np.float32)),
    nd((7, 3), np.zeros((2, 0)), id="empty tuples", expect=lambda x, i: np.stack([x, x])),  # garbage in the plugin
    nd((7, 3), np.zeros((0, 1)), id="no tuples", expect=lambda *_: np.zeros((0, 3), np.float32)),
    nd((2,) * 9, [[0, 1, 0, 1, 0, 1, 0, 1, 1]], id="nine indices", expect=lambda x, i: x[tuple(i[0])].reshape(1)),
    *[nd(In((3, 6), kind), numbers(0, 3, (4, 1)), id=kind) for kind in KINDS if kind != "f64"],
    nd(In((3, 6), "i4"), numbers(0, 3, (4, 1)), dynamic=True, id="dynamic i4"),
    nd(In((3, 6), "f64"), numbers(0, 3, (4, 1)), id="f64", expect=lambda x, i: x[i[:, 0]]),
    nd(given(STRINGS), [[1, 0], [0, -1]], expect=lambda x, i: x[i[:, 0], i[:, 1]], id="strings"),
    nd((7, 3), numbers(0, 3, (2, 3)), error="tuples of 3 indices after 0 batch dims do not fit rank 2", id="long"),
    nd((7, 3), numbers(0, 3, (7, 1)), 2, error="batch_dims 2 is out of range for data of rank 2", id="data rank"),
    nd((7, 3, 2), numbers(0, 3, (7, 1)), 2, error="batch_dims 2 is out of range for indices of rank 2", id="rank"),
    nd((7, 3), numbers(0, 3, (7, 1)), -1, error="batch_dims -1 is negative", id="negative batch dims"),
    nd((7, 3), numbers(0, 3, (5, 1)), 1, error="batch dim 0 is 7 of the data and 5 of the indices", id="differ"),
    nd((), numbers(0, 3, (1,)), error="batch_dims 0 is out of range for data of rank 0", id="scalar"),
    nd((7, 3), given(np.zeros((2, 1), np.float32)), error="indices must be integers", id="float indices"),
    nd((7, 3, 0), const([[0, 0], [6, 3]]), error="index 3 is out of range for extent 3", id="constant index"),
]
STRETCHED = [  # broadcast batch dims, which OpenVINO rejects
    Case(
        "GatherND",
        version,
        [In(shape), numbers(0, 4, indices)],
        {"batch_dims": 2},
        id=id,
        expect=lambda x, i, folded=folded: _stretched(x, i, folded),
    )
    for version, folded in (("opset5", (15,)), ("opset8", (3, 5)))
    for shape, indices, id in (
        ((3, 1, 4, 2), (3, 5, 2, 1), "stretched data"),
        ((3, 5, 4, 2), (1, 1, 2, 1), "stretched indices"),
    )
]


def _stretched(x: Any, i: Any, folded: tuple[int, ...]) -> Any:
    x, i = np.broadcast_to(x, (3, 5, 4, 2)), np.broadcast_to(i, (3, 5, 2, 1))
    return np.take_along_axis(x, i, 2).reshape(*folded, 2, 2)


def tree(ids: Any, parents: Any, lengths: Any, end: Any = 7, kind: str = "i32", **kw: Any) -> Case:
    inputs = [v if isinstance(v, In) else given(np.array(v), kind) for v in (ids, parents, lengths, end)]
    return Case("GatherTree", "opset1", inputs, **kw)


def beams(shape: tuple[int, ...], kind: str = "i32", id: str = "", lengths: Any = None, **kw: Any) -> Case:
    """Return a case with tokens 1 to 9, of which 7 is the end token, and existing parents."""
    lengths = [shape[0]] * shape[1] if lengths is None else lengths
    return tree(
        numbers(1, 10, shape, kind),
        numbers(0, shape[2], shape, kind),
        lengths,
        kind=kind,
        id=id or f"{kind}-{'x'.join(map(str, shape))}",
        **kw,
    )


TREE = [
    beams((4, 2, 3), rankless=True),
    beams((4, 2, 3), lengths=[3, 1], id="short"),
    beams((4, 2, 3), lengths=[9, 2], id="long"),
    beams((1, 3, 2)),
    beams((9, 1, 5)),
    beams((6, 3, 1)),
    *[beams((5, 3, 4), kind, lengths=[5, 2, 4]) for kind in ("f32", "f16", "i64")],
    *[beams((5, 3, 4), kind, lengths=[5, 2, 4], expect=lambda *given: _tree(*given)) for kind in ("bf16", "i8", "f64")],
    tree(
        [[[1, 2]], [[3, 4]], [[5, 6]]],
        [[[0, 1]], [[1, 0]], [[1, 0]]],
        [0],
        id="nothing to tell",
        expect=np.full((3, 1, 2), 7, np.int32),
    ),  # the plugin does not write the output
    tree(
        [[[1, 2, 4]], [[3, 4, 5]], [[5, 6, 8]]],
        [[[0, 1, 0]], [[-1, 0, 0]], [[3, 0, 1]]],
        [3],
        id="no such parent",
        expect=np.int32([[[7, 7, 1]], [[7, 7, 4]], [[7, 7, 8]]]),
    ),  # by value
    tree(np.zeros((0, 2, 3)), np.zeros((0, 2, 3)), [0, 0], id="no steps", expect=np.zeros((0, 2, 3), np.int32)),
    beams((4, 2, 3), lengths=[1], error="there are 1 lengths for 2 batches", id="lengths"),
    tree(np.zeros((4, 2)), np.zeros((4, 2, 3)), [1, 1], error="step_ids must have rank 3, not 2", id="rank"),
    tree(np.zeros((4, 2, 3)), np.zeros((3, 2, 3)), [1, 1], error="step_ids and parent_ids differ: 4 and 3", id="steps"),
    beams((4, 2, 3), lengths=given([1, 1], "i64"), error="element types differ", id="types"),
    tree(np.zeros((4, 2, 3)), np.zeros((4, 2, 3)), [1, 1], [7], error="end_token must have rank 0", id="end"),
]


def _tree(ids: Any, parents: Any, lengths: Any, end: Any) -> Any:
    """Return the result by the specification's loops."""
    out = np.full_like(ids, end)
    for batch, beam in np.ndindex(ids.shape[1:]):
        parent, ended = beam, False
        for step in reversed(range(int(lengths[batch]))):
            out[step, batch, beam] = ids[step, batch, parent]
            parent = int(parents[step, batch, parent])
        for step in range(len(ids)):
            out[step, batch, beam] = end if ended else out[step, batch, beam]
            ended = ended or out[step, batch, beam] == end
    return out


test_elements = check(ELEMENTS)
test_nd = check(across(["opset5", "opset8"], ND) + STRETCHED)
test_tree = check(TREE)


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    kind, index = draw(st.sampled_from(("f32", "f16", "i32", "u8", "boolean"))), draw(st.sampled_from(("i64", "i32")))
    shape = draw(st.lists(st.integers(1, 6), min_size=1, max_size=5))
    if draw(st.booleans()):
        axis = draw(st.integers(-len(shape), len(shape) - 1))
        extent = shape[axis]
        at = [draw(st.integers(1, 9)) if i == axis % len(shape) else d for i, d in enumerate(shape)]
        return elements(In(shape, kind), numbers(-extent, extent, tuple(at), index), axis)
    batch = draw(st.integers(0, len(shape) - 1))
    count = draw(st.integers(1, len(shape) - batch))
    least = min(shape[batch : batch + count])
    at = [*shape[:batch], *draw(st.lists(st.integers(1, 5), max_size=2)), count]
    case = nd(In(shape, kind), numbers(-least, least, tuple(at), index), batch)
    return across([draw(st.sampled_from(("opset5", "opset8")))], [case])[0]


@st.composite
def trees(draw: st.DrawFn) -> Case:
    steps, batches, width = (draw(st.integers(1, most)) for most in (9, 4, 5))
    lengths = [draw(st.integers(1, steps + 2)) for _ in range(batches)]
    return beams((steps, batches, width), draw(st.sampled_from(("f32", "f16", "i32", "i64"))), lengths=lengths)


test_random = sweep(drawn())
test_random_trees = sweep(trees(), 100)
