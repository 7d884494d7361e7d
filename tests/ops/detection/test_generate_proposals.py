"""GenerateProposals, and ExperimentalDetectronGenerateProposalsSingleImage."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, sweep
from tests.harness.cases import Array

SINGLE = "ExperimentalDetectronGenerateProposalsSingleImage"
ATTRS = {"min_size": 0.0, "nms_threshold": 0.4, "pre_nms_count": 50, "post_nms_count": 9}


def distinct(*shape: int) -> Callable[..., Array]:
    """Return a function that draws distinct scores: the plugin does not keep equal scores in order."""
    count = int(np.prod(shape))
    return lambda rng: ((rng.permutation(count) + 1) / (count + 1)).reshape(shape)


def anchors(*shape: int) -> Callable[..., Array]:
    """Return a function that draws anchors in a few clusters: some extend beyond a 50 x 60 image, and one is small."""

    def draw(rng: np.random.Generator) -> Array:
        start = rng.integers(0, 4, (*shape, 2)) * 15 + rng.uniform(4, 9, (*shape, 2))
        side = rng.uniform(9, 16, (*shape, 2))
        small = np.unravel_index(rng.integers(0, max(np.prod(shape), 1)), shape) if np.prod(shape) else ()
        if small:
            start[small], side[small] = 30, 2
        return np.concatenate([start, start + side], -1)

    return draw


def single(
    count: int = 3, height: int = 4, width: int = 5, kind: str = "f32", inputs: list[In] | None = None, **more: Any
) -> Case:
    attrs = ATTRS | more.pop("attrs", {})
    # regions below the minimum size all have the same score
    image = (90.0, 91.0, 1.0) if attrs["min_size"] else (50.0, 60.0, 1.0)
    inputs = inputs or [
        In((3,), kind, lambda rng: image),
        In((height * width * count, 4), kind, anchors(height * width * count)),
        In((4 * count, height, width), kind, low=-0.3, high=0.3),
        In((count, height, width), kind, distinct(count, height, width)),
    ]
    return Case(SINGLE, "opset6", inputs, attrs, 2, **more)


def batch(
    images: Any = ((50.0, 60.0, 1.0), (40.0, 43.0, 1.5)),
    count: int = 3,
    height: int = 4,
    width: int = 5,
    kind: str = "f32",
    inputs: list[In] | None = None,
    **more: Any,
) -> Case:
    attrs = ATTRS | more.pop("attrs", {})
    inputs = inputs or [
        In(np.shape(images), kind, lambda rng: images),
        In((height, width, count, 4), kind, anchors(height, width, count)),
        In((len(images), 4 * count, height, width), kind, low=-0.3, high=0.3),
        In((len(images), count, height, width), kind, distinct(len(images), count, height, width)),
    ]
    return Case("GenerateProposals", "opset9", inputs, attrs, [kind, kind, attrs.get("roi_num_type", "i64")], **more)


def falling(threshold: float, eta: float) -> Callable[..., list[Array]]:
    """Return GenerateProposals, box by box, with a decreasing threshold, which OpenVINO rejects."""

    def proposals(images: Array, corners: Array, offsets: Array, scores: Array) -> list[Array]:
        found: list[tuple[list[float], float]] = []
        counts = []
        for (bottom, right, _), moves, rated in zip(images, offsets, scores):
            selected: list[list[float]] = []
            limit = threshold
            for a, y, x in sorted(np.ndindex(rated.shape), key=lambda at: -rated[at]):
                x1, y1, x2, y2 = corners[y, x, a].tolist()
                dx, dy, wide, tall = moves[4 * a : 4 * a + 4, y, x].tolist()
                wide, tall = (x2 - x1) * np.exp(wide), (y2 - y1) * np.exp(tall)
                left, top = x1 + (0.5 + dx) * (x2 - x1) - wide / 2, y1 + (0.5 + dy) * (y2 - y1) - tall / 2
                box = np.clip([left, top, left + wide, top + tall], 0, [right, bottom] * 2).tolist()
                if len(selected) < ATTRS["post_nms_count"] and all(iou(box, other) <= limit for other in selected):
                    selected.append(box)
                    found.append((box, rated[a, y, x]))
                    limit *= eta if limit > 0.5 else 1
            counts.append(len(selected))
        return [np.array([box for box, _ in found], np.float32), np.array([s for _, s in found]), np.array(counts)]

    return proposals


def iou(a: Sequence[float], b: Sequence[float]) -> float:
    """Return the intersection over union of two boxes."""
    sides = [min(a[i + 2], b[i + 2]) - max(a[i], b[i]) for i in (0, 1)]
    common = max(sides[0], 0) * max(sides[1], 0)
    union = sum((x[2] - x[0]) * (x[3] - x[1]) for x in (a, b)) - common
    return common / union if union else 0


def both(make: Callable[..., Case]) -> Iterator[Case]:
    yield make(rankless=True)
    yield make(attrs={"post_nms_count": 3})
    yield make(attrs={"pre_nms_count": 7, "nms_threshold": 0.7})
    yield make(attrs={"pre_nms_count": 13, "post_nms_count": 40, "nms_threshold": 0.0})
    yield make(attrs={"min_size": 4.5, "pre_nms_count": 100, "post_nms_count": 100, "nms_threshold": 0.2})
    yield make(attrs={"min_size": 3, "nms_threshold": 0.9, "pre_nms_count": 60, "post_nms_count": 60})
    yield make(count=1, height=2, width=3, attrs={"post_nms_count": 30})
    yield make(count=5, height=11, width=9, attrs={"pre_nms_count": 200, "post_nms_count": 50, "nms_threshold": 0.6})
    for kind in ("f16", "bf16", "f64"):
        yield make(kind=kind)
        yield make(kind=kind, attrs={"nms_threshold": 0.8, "pre_nms_count": 30})
    for name in ATTRS:
        yield make(attrs={name: -1}, error=f"{name} is -1, below 0")


def wrong(
    make: Callable[..., Case], shapes: Sequence[tuple[int, ...]], *rows: tuple[int, tuple[int, ...], str]
) -> Iterator[Case]:
    """Yield a case for each row (input, shape, error), in which that input has another shape."""
    for number, shape, error in rows:
        yield make(inputs=[In(shape if i == number else s) for i, s in enumerate(shapes)], error=error)


def no(*counts: int, kind: Any = np.int64) -> list[Array]:
    """Return outputs without regions."""
    return [np.zeros((0, 4), np.float32), np.zeros(0, np.float32), np.array(counts, kind)]


ZEROS = [np.zeros((9, 4), np.float32), np.zeros(9, np.float32)]

CASES = [
    *both(single),
    *both(batch),
    single(attrs={"post_nms_count": 2000, "pre_nms_count": 2000}, id="padded"),
    single(2, 60, 70, attrs={"pre_nms_count": 30}, id="longer than is sorted"),
    single(2, 50, 40, attrs={"pre_nms_count": 3500, "post_nms_count": 20}, id="more than kernels take"),
    single(0, expect=ZEROS, id="no anchors"),
    single(attrs={"pre_nms_count": 0}, expect=ZEROS, id="none before"),
    single(attrs={"post_nms_count": 0}, expect=[x[:0] for x in ZEROS], id="none after"),
    *wrong(
        single,
        [(3,), (24, 4), (8, 3, 4), (2, 3, 4)],
        (0, (4,), "image has 4 numbers, not 3"),
        (1, (24, 5), "an anchor has 5 coordinates, not 4"),
        (2, (8, 3, 5), "sides of offsets and scores are 5 and 4"),
        (3, (1, 2, 3, 4), "scores must have rank 3, not 4"),
    ),
    batch(attrs={"normalized": False}),
    batch(attrs={"normalized": False, "nms_threshold": 0.05}),
    batch(attrs={"roi_num_type": "i32", "min_size": 3}),
    batch([(50.0, 60.0, 0.5, 2.0)], attrs={"min_size": 7}),
    batch([(50.0, 60.0, 2.0, 0.5), (44.0, 31.0, 1.0, 1.0), (60.0, 60.0, 0.3, 0.2)], attrs={"min_size": 7}),
    batch(attrs={"nms_threshold": 0.8, "nms_eta": 0.8}, expect=falling(0.8, 0.8), id="falling threshold"),
    batch(attrs={"nms_threshold": 0.5, "nms_eta": 0.8}, expect=falling(0.5, 0.8), id="low threshold"),
    batch(np.zeros((0, 3)), expect=no(), id="no images"),
    batch(count=0, expect=no(0, 0), id="no anchors"),
    batch(attrs={"post_nms_count": 0, "roi_num_type": "i32"}, expect=no(0, 0, kind=np.int32), id="none after"),
    batch(attrs={"nms_eta": 1.5}, error="nms_eta is 1.5, not between 0 and 1"),
    batch(attrs={"roi_num_type": "f32"}, error="roi_num_type f32 is neither i32 nor i64"),
    *wrong(
        batch,
        [(2, 3), (4, 5, 3, 4), (2, 12, 4, 5), (2, 3, 4, 5)],
        (0, (2, 2), "an image has 2 numbers, not 3 or 4"),
        (0, (2, 5), "an image has 5 numbers"),
        (0, (3, 3), "there are 3 images and 2 of them"),
        (1, (4, 5, 3, 3), "an anchor has 3 coordinates"),
        (1, (3, 5, 3, 4), "3 rows, and 4 in the scores"),
        (1, (4, 5, 2, 4), "2 anchors of a place, and 3 in the scores"),
        (2, (2, 11, 4, 5), "11 channels of offsets"),
        (2, (2, 12, 4, 6), "sides of offsets and scores are 6 and 5"),
        (3, (2, 3, 4), "scores must have rank 4, not 3"),
    ),
]
test_cases = check(CASES)


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    attrs = {
        "nms_threshold": draw(st.sampled_from((0.05, 0.3, 0.7))),
        "min_size": draw(st.sampled_from((0, 2, 3.5))),
        "pre_nms_count": draw(st.integers(1, 60)),
        "post_nms_count": draw(st.integers(1, 30)),
    }
    count, height, width = (draw(st.integers(1, 5)) for _ in range(3))
    kind, id = draw(st.sampled_from(("f32", "f32", "f16", "bf16"))), f"random_{draw(st.integers(0, 999))}"
    if draw(st.booleans()):
        return single(count, height, width, kind, attrs=attrs, id=id)
    attrs |= {"normalized": draw(st.booleans()), "roi_num_type": draw(st.sampled_from(("i32", "i64")))}
    scales = draw(st.sampled_from(((1.0,), (1.5,), (0.5, 1.0))))
    images = [(draw(st.integers(20, 60)), draw(st.integers(20, 60)), *scales) for _ in range(draw(st.integers(1, 3)))]
    return batch(images, count, height, width, kind, attrs=attrs, id=id)


test_random = sweep(drawn(), 200)
