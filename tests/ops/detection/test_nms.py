"""NonMaxSuppression and NMSRotated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, const, given, sweep
from tests.harness.cases import Array

NUMBERS = ("i64", "f32", "f32", "f32")
BOXES = [[0, 0, 1, 1], [0, 0, 1, 1], [1, 1, 0, 0.5], [2, 2, 3, 3], [2.5, 2, 3.5, 3], [0, 0, 0, 3], [0, 0, 1, 0.5]]
SCORES = [[0.5, 0.5, 0.9, 0.2, 0.7, 0.6, 0.0], [0.2, 0.5, 0.5, 0.9, 0.7, 0.9, 0.4]]


def grid(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return boxes whose corners lie on a grid, so that some are equal and some have no area."""
    return rng.integers(0, 7, shape) / 2


def steps(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return scores with many ties."""
    return rng.integers(-1, 9, shape) / 8


def nms(
    version: str, boxes: In, scores: In, *numbers: Any, id: str | None = None, index: str = "i64", **more: Any
) -> Case:
    attrs = {"box_encoding": "corner", "sort_result_descending": True} | more.pop("attrs", {})
    if version != "opset1":
        attrs["output_type"] = index
    inputs = [boxes, scores, *(n if isinstance(n, In) else const(n, kind) for n, kind in zip(numbers, NUMBERS))]
    outputs = [index, "f32", index] if version in ("opset5", "opset9") else [index]
    return Case("NonMaxSuppression", version, inputs, attrs, outputs, id=id, **more)


def drawn_boxes(kind: str = "f32", batches: int = 2, classes: int = 3, count: int = 17) -> tuple[In, In]:
    shape = (batches, classes, count)
    return (
        In((batches, count, 4), kind, partial(grid, shape=(batches, count, 4))),
        In(shape, kind, partial(steps, shape=shape)),
    )


def distinct_boxes(batches: int = 2, classes: int = 3, count: int = 17) -> tuple[In, In]:
    """Return inputs for soft suppression without ties, whose order depends on rounding, and without boxes of no area,
    for which the plugin computes NaN."""
    apart = np.array([0, 0, 3.1, 3.1])
    return (
        In((batches, count, 4), "f32", lambda rng: rng.uniform(0, 3, (batches, count, 4)) + apart),
        In((batches, classes, count), "f32", low=0.0, high=1.0),
    )


def selected(
    boxes: Array, scores: Array, limit: int, threshold: float, least: float, sigma: float = 0, hard: bool = True
) -> list[tuple[float, int, int, int]]:
    """Select boxes one by one; return (score, batch, class, box) of each, sorted by score. As in the plugin and unlike
    the specification, boxes at the threshold are suppressed too."""
    found = []
    for b, c in np.ndindex(scores.shape[:2]):
        left = {i: float(s) for i, s in enumerate(scores[b, c]) if s > least}
        for _ in range(limit):
            if not left:
                break
            best = max(left, key=lambda i: (left[i], -i))
            found.append((left.pop(best), b, c, best))
            for i in list(left):
                iou = overlap(boxes[b, best], boxes[b, i])
                left[i] *= np.exp(-iou * iou / 2 / sigma) if sigma else 1
                if left[i] <= least or (iou >= threshold and hard):
                    del left[i]
    return sorted(found, key=lambda f: -f[0])


def overlap(a: Array, b: Array) -> float:
    """Return the IoU of two boxes given by opposite corners."""
    (low_a, high_a), (low_b, high_b) = [(np.minimum(x[:2], x[2:]), np.maximum(x[:2], x[2:])) for x in (a, b)]
    common = np.prod(np.maximum(np.minimum(high_a, high_b) - np.maximum(low_a, low_b), 0))
    areas = np.prod(high_a - low_a), np.prod(high_b - low_b)
    return float(common / (sum(areas) - common)) if min(areas) > 0 else 0


def padded(rows: int, center: bool = False, ordered: bool = True) -> Callable[..., list[Array]]:
    """Return a function for the indices by the specification, padded with -1 to at least ``rows`` rows."""

    def expect(boxes: Array, scores: Array, limit: Array, threshold: Array, least: Array) -> list[Array]:
        if center:
            boxes = np.concatenate([boxes[..., :2] - boxes[..., 2:] / 2, boxes[..., :2] + boxes[..., 2:] / 2], -1)
        chosen = selected(boxes, scores, int(limit), float(threshold), float(least))
        chosen = chosen if ordered else sorted(chosen, key=lambda k: (k[1], k[2], -k[0]))
        found = np.full((max(rows, len(chosen)), 3), -1)
        for row, (_, *where) in zip(found, chosen):
            row[:] = where
        return [found]

    return expect


def listed(boxes: Array, scores: Array, limit: Array, threshold: Array, least: Array, *sigma: Array) -> list[Array]:
    """Return the outputs of NonMaxSuppression-5 by the specification."""
    found = selected(boxes, scores, int(limit), float(threshold), float(least), *map(float, sigma))
    rows = np.array(found).reshape(-1, 4)
    return [rows[:, 1:].astype(np.int64), rows[:, [1, 2, 0]].astype(np.float32), np.array([len(found)])]


def cases(version: str) -> Iterator[Case]:
    """Yield cases for which OpenVINO's plugin follows the specification."""
    boxes, scores = drawn_boxes()
    for limit in (1, 4, 99):
        yield nms(version, boxes, scores, limit, 0.37, 0.1, id=f"most_{limit}", rankless=limit == 4)
    for encoding in ("corner", "center"):
        for ordered in (True, False):
            yield nms(
                version,
                boxes,
                scores,
                5,
                0.43,
                0.3,
                id=f"{encoding}_sort_{ordered}",
                attrs={"box_encoding": encoding, "sort_result_descending": ordered},
            )
    yield nms(version, boxes, scores, 99, 1.5, -2.0, id="all")
    yield nms(version, boxes, scores, 99, 0.37, 7.0, id="none")
    yield nms(version, *drawn_boxes("f16"), 5, 0.37, 0.1, id="type_f16")
    yield nms(version, boxes, scores, 5, 0.37, 0.1, index="i32", id="index_i32")
    yield nms(version, boxes, scores, In((), "i32", 5, const=True), 0.37, 0.1, id="most_i32")
    yield nms(version, boxes, scores, [5], [0.37], [0.1], id="vectors")
    yield nms(
        version, boxes, scores, given(np.int64(5)), given(np.float32(0.37)), given(np.float32(0.1)), id="at_run_time"
    )
    yield nms(version, given([BOXES], "f32"), given([SCORES], "f32"), 5, 0.45, 0.2, id="few")
    few = given([BOXES], "f32"), given([SCORES], "f32")
    for threshold in (0.0, 0.5, 1.0):
        yield nms(version, *few, 5, threshold, 0.2, id=f"threshold_{threshold}")
    yield nms(version, given([BOXES], "f32"), given([SCORES], "f32"), 5, 0.45, 0.2, -1.0, id="sigma_below_0")
    yield nms(version, *drawn_boxes(classes=11, count=203), 9, 0.57, 0.4, id="many")
    for classes in (1, 2):  # in several stages
        yield nms(version, *drawn_boxes("f32", 1, classes, 701), 90, 0.37, 0.1, id=f"longest_{classes}")
    yield from errors(version)


def errors(version: str) -> Iterator[Case]:
    boxes, scores = drawn_boxes()
    yield nms(version, In((2, 17)), scores, 5, error="boxes must have rank 3, not 2")
    yield nms(version, boxes, In((2, 17)), 5, error="scores must have rank 3, not 2")
    yield nms(version, In((2, 17, 5)), scores, 5, error="a box has 5 coordinates, not 4")
    yield nms(version, In((3, 17, 4)), scores, 5, error="there are 3 batches of boxes and 2 of scores")
    yield nms(version, In((2, 16, 4)), scores, 5, error="there are 16 boxes and 17 scores")
    yield nms(version, In((2, 17, 4), "i32"), scores, 5, error="boxes must be floating-point numbers, not i32")
    yield nms(version, boxes, scores, const(5.0, "f32"), error="max_output_boxes_per_class must be integers, not f32")
    yield nms(version, boxes, scores, 5, const(1), error="iou_threshold must be floating-point numbers, not i64")
    yield nms(version, boxes, scores, 5, 0.5, const([0, 1], "f32"), error="score_threshold must have")
    yield nms(version, boxes, scores, 5, attrs={"box_encoding": "middle"}, error="'middle'")
    if version != "opset1":
        yield nms(version, boxes, scores, 5, index="u8", error="output_type u8 is neither i32 nor i64")


def soft(version: str) -> Iterator[Case]:
    boxes, scores = distinct_boxes()
    for sigma in (0.2, 1.0):
        for ordered in (True, False):
            yield nms(
                version,
                boxes,
                scores,
                5,
                0.37,
                0.15,
                sigma,
                id=f"soft_{sigma}_sort_{ordered}",
                attrs={"sort_result_descending": ordered},
            )


def as_specified(version: str) -> Iterator[Case]:
    """Yield cases for which OpenVINO's plugin deviates from the specification or does not answer."""
    few = given([BOXES], "f32"), given([SCORES], "f32")
    # the plugin leaves the outputs undefined
    yield nms(version, *few, 0, 0.5, 0.2, id="most_0", expect=listed)
    yield nms(version, *few, -3, 0.5, 0.2, id="most_below_0", expect=listed)
    yield nms(version, *few, id="two_inputs", expect=lambda b, s: listed(b, s, *np.zeros(3)))
    yield nms(version, *few, 4, id="three_inputs", expect=lambda b, s, n: listed(b, s, n, *np.zeros(2)))
    for b, c, n in ((0, 2, 5), (1, 0, 5), (1, 2, 0)):
        yield nms(version, In((b, n, 4)), In((b, c, n)), 4, 0.5, 0.2, id=f"empty_{b}_{c}_{n}", expect=listed)


def fixed(version: str) -> Iterator[Case]:
    """Yield cases of versions with a padded output, which the plugin does not pad."""
    boxes, scores = drawn_boxes()
    whole = version == "opset4"
    for limit in (1, 4, 99, 0):
        rows = min(17, limit) * 6 if whole else min(17, limit * 3)
        yield nms(version, boxes, scores, limit, 0.37, 0.1, id=f"most_{limit}", expect=padded(rows))
    yield nms(
        version,
        boxes,
        scores,
        given(np.int64(4)),
        given(np.float32(0.37)),
        given(np.float32(0.1)),
        id="at_run_time",
        expect=padded(24 if whole else 12),
    )
    yield nms(version, *drawn_boxes("f16"), 9, 0.37, 0.1, id="type_f16", expect=padded(54 if whole else 17))
    for center in (False, True):
        yield nms(
            version,
            boxes,
            scores,
            4,
            0.37,
            0.1,
            expect=padded(24 if whole else 12, center, False),
            attrs={"box_encoding": "center" if center else "corner", "sort_result_descending": False},
            id="center" if center else "unsorted",
        )
    yield nms(version, *drawn_boxes("f32", 1, 2, 301), 9, 0.57, 0.4, id="many", expect=padded(18))
    yield nms(version, *drawn_boxes("bf16"), 4, 0.37, 0.1, id="type_bf16", expect=padded(24 if whole else 12))
    yield nms(version, boxes, scores, id="two_inputs", expect=[np.zeros((0, 3), np.int64)])
    yield nms(version, In((1, 0, 4)), In((1, 3, 0)), 4, 0.5, 0.2, id="empty", expect=padded(0))
    if version != "opset1":
        yield nms(
            version,
            boxes,
            scores,
            2,
            0.37,
            0.1,
            index="i32",
            id="index_i32",
            expect=lambda *given: [x.astype(np.int32) for x in padded(12 if whole else 6)(*given)],
        )
    yield nms(version, boxes, scores, [5], error="max_output_boxes_per_class must have rank 0, not 1")
    yield from errors(version)


CASES = [
    *(case for version in ("opset1", "opset3", "opset4") for case in fixed(version)),
    # the plugin selects all of these too, and never pads
    *(
        nms(version, *drawn_boxes("f32", 1, 3, 8), 8, 0.37, -2.0, id="more_than_rows")
        for version in ("opset1", "opset3")
    ),
    *(case for version in ("opset5", "opset9") for case in (*cases(version), *as_specified(version))),
    *soft("opset9"),
    # the plugin ignores the IoU threshold in these
    *(nms("opset5", *drawn_boxes(), 5, 0.37, 0.15, sigma, id=f"soft_{sigma}", expect=listed) for sigma in (0.2, 1.0)),
]
test_cases = check(CASES)


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    batches, classes, count = draw(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 40)))
    kind = draw(st.sampled_from(("f32", "f16")))
    sigma = draw(st.sampled_from((0.0, 0.0, 0.3, 1.0)))
    # no overlap on the grid is one of the thresholds; the plugin's soft suppression leaves negative scores unsorted
    numbers = (
        draw(st.integers(1, 50)),
        draw(st.sampled_from((0.013, 0.31, 0.57, 0.83))),
        draw(st.sampled_from((0.0, 0.26) if sigma else (-3.0, 0.0, 0.26))),
        *([sigma] if sigma else []),
    )
    version = "opset9" if sigma else draw(st.sampled_from(("opset5", "opset9")))
    attrs = {"box_encoding": draw(st.sampled_from(("corner", "center"))), "sort_result_descending": draw(st.booleans())}
    boxes = distinct_boxes(batches, classes, count) if sigma else drawn_boxes(kind, batches, classes, count)
    return nms(
        version,
        *boxes,
        *numbers,
        attrs=attrs,
        index=draw(st.sampled_from(("i32", "i64"))),
        id=f"random_{draw(st.integers(0, 999))}",
    )


test_random = sweep(drawn())


@st.composite
def drawn_padded(draw: st.DrawFn) -> Case:
    """Draw a case of a version with a padded output, which the plugin does not pad."""
    version = draw(st.sampled_from(("opset1", "opset3", "opset4")))
    batches, classes, count = draw(st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 40)))
    limit, center, ordered = draw(st.integers(0, 50)), draw(st.booleans()), draw(st.booleans())
    rows = min(count, limit) * classes * batches if version == "opset4" else min(count, limit * classes)
    return nms(
        version,
        *drawn_boxes(draw(st.sampled_from(("f32", "f16"))), batches, classes, count),
        limit,
        draw(st.sampled_from((0.013, 0.31, 0.57, 0.83))),
        draw(st.sampled_from((-3.0, 0.0, 0.26))),
        attrs={"box_encoding": "center" if center else "corner", "sort_result_descending": ordered},
        expect=padded(rows, center, ordered),
        id=f"random_{draw(st.integers(0, 999))}",
    )


test_random_padded = sweep(drawn_padded(), 100)


def rotated_boxes(rng: np.random.Generator, batches: int, count: int) -> Array:
    """Return rotated boxes, some without an area, whose corners do not touch: the plugin's IoU would be wrong."""
    boxes = rng.uniform([0, 0, 1, 1, -4], [6, 6, 6, 6, 4], (batches, count, 5))
    boxes[:, ::5, 2] = 0
    return boxes


def rotated(
    *numbers: Any,
    batches: int = 2,
    classes: int = 3,
    count: int = 17,
    boxes: In | None = None,
    kind: str = "f32",
    **more: Any,
) -> Case:
    attrs = {"sort_result_descending": True, "output_type": "i64", "clockwise": True} | more.pop("attrs", {})
    boxes = boxes or In((batches, count, 5), kind, partial(rotated_boxes, batches=batches, count=count))
    scores = In((batches, classes, count), kind, partial(steps, shape=(batches, classes, count)))
    inputs = [boxes, scores, *(n if isinstance(n, In) else const(n, k) for n, k in zip(numbers, NUMBERS))]
    return Case("NMSRotated", "opset13", inputs, attrs, [attrs["output_type"], "f32", attrs["output_type"]], **more)


ROTATED = [
    *(rotated(limit, 0.37, 0.1, rankless=limit == 4) for limit in (1, 4, 99)),
    *(rotated(5, threshold, 0.1, attrs={"clockwise": False}) for threshold in (0.013, 0.57)),
    rotated(5, 0.37, 0.1, attrs={"sort_result_descending": False}),
    rotated(5, 0.37, 0.1, attrs={"output_type": "i32"}),
    rotated(5, 0.37, 0.1, kind="f16"),
    rotated(99, 1.5, -2.0, id="all"),
    rotated(99, 0.37, 7.0, id="none"),
    rotated(given(np.int64(5)), given(np.float32(0.37)), given(np.float32(0.1)), id="at_run_time"),
    rotated(9, 0.57, 0.4, classes=7, count=101, id="many"),
    rotated(5, 0.37, 0.1, boxes=In((2, 17, 4)), error="a box has 4 coordinates, not 5"),
    rotated(5, 0.37, 0.1, attrs={"output_type": "u8"}, error="output_type u8 is neither i32 nor i64"),
]
test_rotated = check(ROTATED)


@st.composite
def drawn_rotated(draw: st.DrawFn) -> Case:
    attrs = {
        "sort_result_descending": draw(st.booleans()),
        "clockwise": draw(st.booleans()),
        "output_type": draw(st.sampled_from(("i32", "i64"))),
    }
    return rotated(
        draw(st.integers(1, 50)),
        draw(st.sampled_from((0.013, 0.31, 0.57))),
        draw(st.sampled_from((-3.0, 0.0, 0.26))),
        batches=draw(st.integers(1, 2)),
        classes=draw(st.integers(1, 3)),
        count=draw(st.integers(1, 30)),
        attrs=attrs,
        id=f"random_{draw(st.integers(0, 999))}",
    )


test_random_rotated = sweep(drawn_rotated(), 100)
