"""MulticlassNms and MatrixNms."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, given, sweep
from tests.harness.cases import Array

BOXES = [[0, 0, 1, 1], [0, 0, 1, 1], [0, 0, 0.5, 1], [2, 2, 3, 3], [2.5, 2, 3.5, 3], [0, 0, 1, 0.5]]
SCORES = [0.5, 0.5, 0.9, 0.2, 0.7, 0.0]


def grid(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return boxes whose corners lie on a grid, so that some are equal."""
    low = rng.integers(0, 6, (*shape, 2)) / 2
    return np.concatenate([low, low + rng.integers(1, 6, low.shape) / 2], -1)


def steps(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return scores with many ties."""
    return rng.integers(0, 17, shape) / 16


def distinct(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return scores without ties for MatrixNms: the plugin does not keep equal scores in order."""
    return rng.uniform(0, 1, shape)


def nms(
    op: str,
    version: str = "opset8",
    batches: int = 2,
    classes: int = 3,
    count: int = 17,
    kind: str = "f32",
    index: str = "i64",
    inputs: list[In] | None = None,
    counts: list[int] | None = None,
    attrs: dict[str, Any] | None = None,
    **more: Any,
) -> Case:
    given_attrs = {"score_threshold": 0.23, "output_type": index} | (attrs or {})
    if op == "MulticlassNms":
        given_attrs = {"iou_threshold": 0.43} | given_attrs
    of_boxes, of_scores = (batches, count), (batches, classes, count)
    if counts is not None:
        count = sum(counts)
        of_boxes, of_scores = (classes, count), (classes, count)
    inputs = inputs or [
        In((*of_boxes, 4), kind, partial(grid, shape=of_boxes)),
        In(of_scores, kind, partial(distinct if op == "MatrixNms" else steps, shape=of_scores)),
        *([] if counts is None else [given(counts, index)]),
    ]
    return Case(
        op, version, inputs, given_attrs, [kind, index, index], dynamic=more.pop("dynamic", "error" in more), **more
    )


def common(op: str, version: str, **more: Any) -> Iterator[Case]:
    """Yield cases for all versions; the plugin requires a static extent of four coordinates."""
    make = partial(nms, op, version, **more)
    for kind in ("none", "score", "classid"):
        for across in (False, True):
            if op == "MulticlassNms" or kind != "classid" or across:  # the plugin does not sort by class in an image
                yield make(attrs={"sort_result_type": kind, "sort_result_across_batch": across})
    yield make(attrs={"nms_top_k": 4})
    yield make(attrs={"keep_top_k": 5, "sort_result_type": "classid", "sort_result_across_batch": True})
    yield make(attrs={"nms_top_k": 6, "keep_top_k": 7, "background_class": 1})
    yield make(attrs={"background_class": 0})
    yield make(attrs={"normalized": False})
    yield make(index="i32")
    yield make(kind="f16")
    yield make(classes=7, count=101, id="many")
    yield make(index="u8", inputs=[In((2, 5, 4)), In((2, 3, 5))], error="output_type u8 is neither i32 nor i64")
    yield make(inputs=[In((2, 5, 3)), In((2, 3, 5))], error="a box has 3 coordinates, not 4")
    yield make(inputs=[In((2, 5)), In((2, 3, 5))], error="boxes must have rank 3, not 2")
    yield make(inputs=[In((2, 5, 4)), In((2, 3, 6))], error="there are 5 boxes and 6 scores")
    yield make(inputs=[In((3, 5, 4)), In((2, 3, 5))], error="the first extents of boxes and scores are 3 and 2")
    yield make(inputs=[In((2, 5, 4), "i32"), In((2, 3, 5))], error="boxes must be floating-point numbers, not i32")
    yield make(attrs={"keep_top_k": -2}, error="keep_top_k is -2")


def multiclass(version: str) -> Iterator[Case]:
    yield from common("MulticlassNms", version)
    for eta in (0.9, 0.6, 0.51):
        yield nms("MulticlassNms", version, attrs={"nms_eta": eta, "iou_threshold": 0.83})
    yield nms("MulticlassNms", version, attrs={"nms_eta": 1.5}, error="nms_eta is 1.5")


def boxes_per_class() -> Iterator[Case]:
    """Yield cases in which each class has its own boxes."""
    make = partial(nms, "MulticlassNms", "opset9")
    for kind in ("none", "score", "classid"):
        for across in (False, True):
            yield make(counts=[7, 0, 9], attrs={"sort_result_type": kind, "sort_result_across_batch": across})
    yield make(counts=[7, -1, 9], id="negative", error="an image cannot have -1 boxes")
    yield make(counts=[7, 11], attrs={"background_class": 1, "keep_top_k": 9, "nms_top_k": 5})
    yield make(counts=[7, 11], attrs={"nms_eta": 0.7, "iou_threshold": 0.83, "normalized": False}, index="i32")
    yield make(inputs=[In((3, 5, 4)), In((3, 5)), In((2,))], error="roisnum must be integers, not f32")
    yield make(inputs=[In((3, 5, 4)), In((2, 3, 5)), In((2,), "i64")], error="scores must have rank 2, not 3")


def as_specified() -> Iterator[Case]:
    boxes = In((1, 6, 4), "f32", lambda rng: rng.permutation(BOXES))
    scores = In((1, 1, 6), "f32", lambda rng: rng.permutation(SCORES))
    yield nms("MulticlassNms", inputs=[boxes, scores], attrs={"iou_threshold": 0.5}, id="at_the_threshold")
    yield nms("MulticlassNms", inputs=[boxes, scores], attrs={"iou_threshold": 0}, id="threshold_0")
    # the plugin sorts by score
    apart = In((2, 4, 4), "f32", lambda rng: np.arange(8).reshape(2, 4, 1) * 2 + np.array([0, 0, 1, 1]))
    yield nms(
        "MatrixNms",
        inputs=[apart, In((2, 3, 4), "f32", partial(distinct, shape=(2, 3, 4)))],
        attrs={"sort_result_type": "classid"},
        id="by_class",
        dynamic=True,
        expect=by_class,
    )
    for op in ("MulticlassNms", "MatrixNms"):  # by value
        yield nms(
            op,
            attrs={"score_threshold": 2.0},
            id="nothing",
            dynamic=True,
            expect=[np.zeros((0, 6), np.float32), np.zeros((0, 1), np.int64), np.zeros(2, np.int64)],
        )
        for batches, classes, count in ((1, 0, 5), (2, 3, 0)):
            yield nms(
                op,
                batches=batches,
                classes=classes,
                count=count,
                dynamic=True,
                id=f"empty_{batches}_{classes}_{count}",
                expect=[np.zeros((0, 6), np.float32), np.zeros((0, 1), np.int64), np.zeros(batches, np.int64)],
            )


def by_class(boxes: Array, scores: Array) -> list[Array]:
    """Return the outputs for boxes that do not overlap, sorted by class in each image."""
    selected = sorted((b, c, -scores[b, c, i], i) for b, c, i in np.argwhere(scores > np.float32(0.23)).tolist())
    rows = [[c, -score, *boxes[b, i]] for b, c, score, i in selected]
    return [
        np.array(rows, np.float32),
        np.array([[b * 4 + i] for b, *_, i in selected]),
        np.bincount([b for b, *_ in selected], minlength=2),
    ]


def matrix() -> Iterator[Case]:
    yield from common("MatrixNms", "opset8")
    for decay in ("linear", "gaussian"):
        yield nms("MatrixNms", attrs={"decay_function": decay, "post_threshold": 0.31, "gaussian_sigma": 1.3})
        yield nms("MatrixNms", attrs={"decay_function": decay, "nms_top_k": 6, "sort_result_type": "score"})


CASES = [*multiclass("opset8"), *multiclass("opset9"), *boxes_per_class(), *as_specified(), *matrix()]
test_cases = check(CASES)


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    op = draw(st.sampled_from(("MulticlassNms", "MatrixNms")))
    version = "opset8" if op == "MatrixNms" else draw(st.sampled_from(("opset8", "opset9")))
    attrs = {
        "sort_result_type": draw(st.sampled_from(("none", "score", "classid"))),
        "sort_result_across_batch": draw(st.booleans()) or op == "MatrixNms",
        "nms_top_k": draw(st.sampled_from((-1, 3, 11))),
        "keep_top_k": draw(st.sampled_from((-1, 5, 20))),
        "background_class": draw(st.integers(-1, 2)),
        "normalized": draw(st.booleans()),
        "score_threshold": draw(st.sampled_from((0.03, 0.41))),
    }
    counts = None
    if op == "MatrixNms":
        attrs |= {
            "decay_function": draw(st.sampled_from(("linear", "gaussian"))),
            "gaussian_sigma": draw(st.sampled_from((0.5, 2.0))),
            "post_threshold": draw(st.sampled_from((0.0, 0.19))),
        }
    else:
        attrs |= {
            "iou_threshold": draw(st.sampled_from((0.13, 0.57, 0.83))),
            "nms_eta": draw(st.sampled_from((1.0, 0.9, 0.71))),
        }
        if version == "opset9" and draw(st.booleans()):
            counts = draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))
    least = 12 if op == "MatrixNms" else 1  # so many that something is selected
    return nms(
        op,
        version,
        draw(st.integers(1, 3)),
        draw(st.integers(2, 4)),
        draw(st.integers(least, 25)),
        counts=counts,
        attrs=attrs,
        index=draw(st.sampled_from(("i32", "i64"))),
        id=f"random_{draw(st.integers(0, 999))}",
    )


test_random = sweep(drawn())
