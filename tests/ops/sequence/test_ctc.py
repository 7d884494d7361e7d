"""CTCGreedyDecoder, CTCGreedyDecoderSeqLen and CTCLoss against OpenVINO, and against a sum over all paths."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import groupby, product
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, const, given, sweep
from tests.harness.cases import Array

REALS = ("f16", "bf16", "f64")


def scores(*shape: int, kind: str = "f32") -> In:
    """Return logits, some of which are equal."""
    return In(shape, kind, lambda rng: rng.integers(0, 4, shape))


def mask(lengths: Sequence[int], steps: int, kind: str = "f32") -> In:
    return given((np.arange(steps)[:, None] < np.array(lengths)).astype(np.float32), kind)


def decode(x: In, bounds: In, merges: bool | None = None, **kw: Any) -> Case:
    attrs = {} if merges is None else {"ctc_merge_repeated": merges}
    return Case("CTCGreedyDecoder", "opset1", [x, bounds], attrs, **kw)


def decode_lengths(
    x: In,
    lengths: In | Sequence[int],
    blank: Any = None,
    merges: bool | None = None,
    index: str = "i32",
    attrs: Any = (),
    **kw: Any,
) -> Case:
    lengths = lengths if isinstance(lengths, In) else given(np.array(lengths), index)
    blanks = [] if blank is None else [blank if isinstance(blank, In) else const(blank, index)]
    attrs = dict(attrs) | ({} if merges is None else {"merge_repeated": merges})
    kinds = [attrs.get(name, "i32") for name in ("classes_index_type", "sequence_length_type")]
    return Case("CTCGreedyDecoderSeqLen", "opset6", [x, lengths, *blanks], attrs, kinds, **kw)


def first_classes(x: Array) -> Array:
    """Return the best classes of one sequence without blanks. The plugin takes a leading NaN for the greatest."""
    decoded = [c for c in np.where(np.isnan(x), -np.inf, x).argmax(2)[:, 0] if c != x.shape[2] - 1]
    return np.float32([*decoded, *[-1] * (len(x) - len(decoded))]).reshape(1, -1, 1, 1)


def masked() -> Iterator[Case]:
    for merges in (True, False):
        yield decode(scores(7, 3, 4), mask((7, 5, 1), 7), merges, id=f"merges {merges}", rankless=True)
        yield decode(scores(300, 2, 3), mask((300, 290), 300), merges, id=f"long {merges}")
        yield decode(scores(5, 2, 700), mask((4, 5), 5), merges, id=f"many classes {merges}")
    yield decode(scores(7, 3, 4), mask((7, 7, 7), 7), id="all")
    yield decode(scores(7, 3, 4), mask((0, 0, 3), 7), id="none")
    yield decode(scores(7, 3, 2), mask((7, 5, 1), 7), id="two classes")
    yield decode(scores(7, 3, 1), mask((7, 5, 1), 7), id="blanks alone")
    yield decode(scores(1, 3, 4), mask((1, 0, 1), 1), id="one step")
    yield decode(scores(7, 3, 4), given(np.float32([1, 0.5, -1, 0, 1, 1, 1])[:, None].repeat(3, 1)), id="gaps")
    yield decode(In((7, 3, 40)), mask((7, 5, 1), 7), id="uniform")
    for kind in REALS:
        yield decode(scores(7, 3, 4, kind=kind), mask((7, 5, 1), 7, kind), id=kind)
    yield decode(scores(7, 3, 4), mask((7, 5, 1), 7, "f16"), id="f16 mask")
    yield decode(scores(7, 0, 4), mask((), 7), id="no sequences")
    yield decode(scores(0, 3, 4), mask((0, 0, 0), 0), id="no steps")
    special = given(np.float32([[[1, 3, np.nan]], [[-np.inf, -np.inf, -np.inf]], [[np.inf, np.inf, 0]]]))
    yield decode(special, const([[1], [1], [1]], "f32"), False, id="special", expect=lambda x, _: first_classes(x))
    yield decode(scores(7, 3), mask((7, 5, 1), 7), error="the data must have rank 3, not 2")
    yield decode(scores(7, 3, 4), In((7, 3, 1)), error="the mask must have rank 2, not 3")
    yield decode(scores(7, 3, 4), mask((7, 5, 1), 6), error="the inputs have 7 and 6 steps")
    yield decode(scores(7, 3, 4), mask((7, 5), 7), error="the inputs have 3 and 2 sequences")
    yield decode(scores(7, 3, 0), mask((7, 5, 1), 7), error="there are no classes")
    yield decode(In((7, 3, 4), "i32"), mask((7, 5, 1), 7), error="the data must be floating-point numbers, not i32")
    yield decode(scores(7, 3, 4), In((7, 3), "i32"), error="the mask must be floating-point numbers, not i32")


def measured() -> Iterator[Case]:
    for merges in (True, False):
        yield decode_lengths(scores(3, 7, 4), (7, 5, 1), None, merges, id=f"merges {merges}", rankless=True)
        yield decode_lengths(scores(3, 7, 4), (7, 5, 1), 1, merges, id=f"blank {merges}", rankless=True)
        yield decode_lengths(scores(2, 300, 3), (300, 290), 0, merges, id=f"long {merges}")
    yield decode_lengths(scores(3, 7, 4), (7, 5, 1), [2], id="blank in a vector")
    yield decode_lengths(scores(3, 7, 4), (7, 5, 1), 9, id="a blank that is no class")
    yield decode_lengths(scores(3, 7, 4), (7, 5, 1), given(np.array(2), "i32"), id="blank at run time")
    yield decode_lengths(scores(3, 7, 4), (7, 0, 0), id="none")
    yield decode_lengths(scores(3, 7, 1), (7, 5, 1), id="blanks alone")
    yield decode_lengths(In((3, 7, 4)), In((3,), "i32", low=0, high=7), id="other lengths", rankless=True)
    for index in ("i32", "i64"):
        for kinds in product(("i32", "i64"), repeat=2):
            attrs = dict(zip(("classes_index_type", "sequence_length_type"), kinds))
            yield decode_lengths(scores(3, 7, 4), (7, 5, 1), 2, None, index, attrs, id=f"{index} {kinds}")
    for kind in REALS:
        yield decode_lengths(scores(3, 7, 4, kind=kind), (7, 5, 1), id=kind)
    yield decode_lengths(scores(0, 7, 4), given(np.zeros(0, np.int32)), id="no sequences")
    nothing = np.zeros((3, 0), np.int32), np.zeros(3, np.int32)
    yield decode_lengths(scores(3, 0, 4), (0, 0, 0), id="no steps", expect=nothing)  # the plugin writes no lengths
    yield decode_lengths(scores(3, 0, 4), (0, 1, 0), error="a length is out of range for 0 steps")
    yield decode_lengths(scores(3, 0, 4), (0, -1, 0), error="a length is out of range for 0 steps")
    yield decode_lengths(scores(7, 4), (7, 8, 1), error="the data must have rank 3, not 2")
    yield decode_lengths(scores(3, 7, 4), (7, 5), error="the inputs have 3 and 2 sequences")
    yield decode_lengths(scores(3, 7, 4), [[7, 5, 1]], error="sequence lengths must have rank 1, not 2")
    yield decode_lengths(scores(3, 7, 4), (7, 5, 1), index="u8", error="sequence lengths must be i32 or i64, not u8")
    yield decode_lengths(scores(3, 7, 4), (7, 5, 1), [1, 2], error="blank_index is one number, not 2")
    yield decode_lengths(scores(3, 7, 0), (7, 5, 1), error="there are no classes")
    for what in ("classes_index_type", "sequence_length_type"):
        yield decode_lengths(scores(3, 7, 4), (7, 5, 1), attrs={what: "u8"}, error=f"{what} u8 is neither i32 nor i64")


def loss(
    x: In | tuple[int, ...],
    x_lengths: Any,
    labels: Any,
    lengths: Any,
    blank: Any = None,
    index: str = "i32",
    label: str = "i32",
    attrs: dict[str, bool] | None = None,
    **kw: Any,
) -> Case:
    x = x if isinstance(x, In) else In(x)
    x_lengths, lengths = (n if isinstance(n, In) else given(np.array(n), index) for n in (x_lengths, lengths))
    if not isinstance(labels, In):
        padded = np.full(x.shape[:2], -1)  # padding, which is ignored
        for row, some in zip(padded, labels):
            row[: len(some)] = some
        labels = given(padded, label)
    blanks = [] if blank is None else [blank if isinstance(blank, In) else const(blank, label)]
    attrs = {"ctc_merge_repeated": True} if attrs is None else attrs
    return Case("CTCLoss", "opset4", [x, x_lengths, labels, lengths, *blanks], attrs, **kw)


def every_path(**attrs: bool) -> Callable[..., Array]:
    """Return the loss by its definition: the sum over all paths that collapse to the labels."""

    def expect(x: Array, x_lengths: Array, labels: Array, lengths: Array, *given: Array) -> Array:
        blank = int(given[0]) if given else x.shape[2] - 1
        losses = []
        for logits, steps, row, count in zip(x.astype(np.float64), x_lengths, labels, lengths):
            target = row[:count].tolist()
            if attrs.get("unique"):
                target = list(dict.fromkeys(target))
            elif attrs.get("preprocess_collapse_repeated"):
                target = [label for label, _ in groupby(target)]
            chances = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
            total = 0.0
            for path in product(range(x.shape[2]), repeat=int(steps)):
                merged = [c for c, _ in groupby(path)] if attrs.get("ctc_merge_repeated", True) else path
                if [c for c in merged if c != blank] == target:
                    total += np.prod(chances[np.arange(len(path)), list(path)])
            with np.errstate(divide="ignore"):
                losses.append(-np.log(total))
        return np.array(losses, x.dtype)

    return expect


LABELS = [[0, 1, 1], [2, 0, 2, 2], [1]]
FLAGS = ("preprocess_collapse_repeated", "ctc_merge_repeated", "unique")


def losses() -> Iterator[Case]:
    for values in product((False, True), repeat=3):
        attrs = dict(zip(FLAGS, values))
        yield loss((3, 7, 4), (7, 7, 4), LABELS, (3, 4, 1), attrs=attrs, id=f"{values}", rankless=all(values))
        yield loss(
            (3, 5, 3),
            (5, 3, 4),
            [[0, 1, 0], [1, 1], [1, 1, 1, 1]],
            (3, 2, 4),
            attrs=attrs,
            id=f"every path {values}",
            expect=every_path(**attrs),
        )
    yield loss((3, 7, 4), (7, 7, 4), LABELS, (3, 4, 1), id="merged", rankless=True)
    yield loss(
        (3, 5, 3), (5, 3, 4), [[0, 1, 0], [1, 1], [1, 1]], (3, 2, 2), attrs={}, id="default", expect=every_path()
    )  # OpenVINO takes missing attributes for false
    yield loss((3, 7, 4), (7, 7, 4), [[0, 1, 1], [3, 0, 3, 3], [1]], (3, 4, 1), 2, id="blank", rankless=True)
    yield loss((3, 7, 4), (7, 7, 4), LABELS, (3, 4, 1), given(np.array(3), "i32"), id="blank at run time")
    yield loss((2, 5, 3), (5, 5), [[1, 2], [2]], (2, 1), 0, id="blank 0", expect=every_path())
    yield loss((2, 60, 9), (60, 41), np.random.default_rng(0).integers(0, 8, (2, 60)), (20, 13), id="long")
    yield loss((2, 7, 300), (7, 6), [[250, 3, 299 - 1], [7]], (3, 1), id="many classes")
    yield loss((2, 7, 4), (7, 6), [[0, 1, 2], [2, 0]], (3, 2), index="i64", label="i64", id="i64")
    yield loss((2, 7, 4), (7, 6), [[0, 1, 2], [2, 0]], (3, 2), 3, index="i64", label="i32", id="i64 lengths")
    for kind in REALS:
        yield loss(In((3, 7, 4), kind), (7, 7, 4), LABELS, (3, 4, 1), id=kind)
    yield loss((3, 4, 3), (4, 1, 0), [[], [], []], (0, 0, 0), id="no labels", expect=every_path())
    yield loss(
        (3, 4, 3), (3, 3, 3), [[0, 0, 0], [0, 1, 1], [0, 1, 0]], (3, 3, 3), id="too few steps", expect=every_path()
    )
    yield loss((2, 4, 3), (4, 4), [[0, 3], [0, -2]], (2, 2), id="no classes", expect=np.float32([np.inf, np.inf]))
    yield loss(
        In((2, 4, 3), low=900, high=909),
        (4, 4),
        [[0, 1], [1]],
        (2, 1),
        id="large",
        expect=lambda x, *rest: every_path()(x - 900, *rest),
    )
    yield loss(
        (0, 7, 4),
        given(np.zeros(0, np.int32)),
        [],
        given(np.zeros(0, np.int32)),
        id="no sequences",
        expect=np.zeros(0, np.float32),
    )
    yield loss((2, 0, 4), (0, 0), [[], []], (0, 0), id="no steps", expect=np.zeros(2, np.float32))
    yield loss((2, 2500, 3), (12, 9), [[0, 1, 1], [0]], (3, 1), id="room for many")
    yield loss((3, 0, 4), (1, 0, 0), [[]] * 3, (0, 0, 0), error="a length is out of range for 0 steps")
    yield loss((3, 0, 4), (0, 0, 0), [[]] * 3, (0, -1, 0), error="a length is out of range for 0 steps")
    yield loss((3, 7, 4), (7, 7, 4), LABELS, (3, 4, 1), 4, error="blank_index is no class of 4")
    none = given(np.zeros(0, np.int32))
    yield loss((0, 7, 4), none, In((0, 7), "i32"), none, -1, error="blank_index -1 is negative")
    yield loss((3, 7, 4), (7, 7, 4), LABELS, (3, 4, 1), [1], error="blank_index must have rank 0, not 1")
    yield loss((3, 7, 4), (7, 7), LABELS, (3, 4, 1), error="the inputs have 3 and 2 sequences")
    yield loss((3, 7, 4), (7, 7, 4), In((3, 6), "i32"), (3, 4, 1), error="the inputs have 7 and 6 steps")
    yield loss((3, 7, 4), (7, 7, 4), In((3,), "i32"), (3, 4, 1), error="labels must have rank 2, not 1")
    yield loss((3, 7, 4), (7, 7, 4), LABELS, (3, 4, 1), label="f32", error="labels must be i32 or i64, not f32")
    yield loss((3, 7), (7, 7, 4), LABELS, (3, 4, 1), error="the logits must have rank 3, not 2")
    yield loss(In((3, 7, 4), "i32"), (7, 7, 4), LABELS, (3, 4, 1), error="the logits must be floating-point numbers")


test_greedy = check(list(masked()))
test_greedy_lengths = check(list(measured()))
test_loss = check(list(losses()))


@st.composite
def decoders(draw: st.DrawFn) -> Case:
    masks, merges, kind = draw(st.booleans()), draw(st.booleans()), draw(st.sampled_from(("f32", "f16")))
    batch, steps, classes = (draw(st.integers(1, most)) for most in (4, 12, 6))
    lengths = draw(st.lists(st.integers(0, steps), min_size=batch, max_size=batch))
    if masks:
        return decode(scores(steps, batch, classes, kind=kind), mask(lengths, steps, kind), merges)
    blank = draw(st.none() | st.integers(0, classes - 1))
    return decode_lengths(
        scores(batch, steps, classes, kind=kind), lengths, blank, merges, draw(st.sampled_from(("i32", "i64")))
    )


@st.composite
def lossy(draw: st.DrawFn) -> Case:
    """Draw a CTCLoss with at least one label per sequence, and enough steps for blanks between repetitions."""
    batch, steps, classes = (draw(st.integers(least, most)) for least, most in ((1, 4), (1, 12), (2, 6)))
    blank = draw(st.none() | st.integers(0, classes - 1))
    names = [c for c in range(classes) if c != (classes - 1 if blank is None else blank)]
    lengths = draw(st.lists(st.integers(1, steps), min_size=batch, max_size=batch))
    labels = [draw(st.lists(st.sampled_from(names), min_size=1, max_size=max(n // 2, 1))) for n in lengths]
    index, kind = draw(st.sampled_from(("i32", "i64"))), draw(st.sampled_from(("f32", "f16")))
    return loss(
        In((batch, steps, classes), kind),
        lengths,
        labels,
        [len(row) for row in labels],
        blank,
        index,
        index,
        {flag: draw(st.booleans()) for flag in FLAGS},
    )


test_random_decoders = sweep(decoders())
test_random_losses = sweep(lossy(), 100)
