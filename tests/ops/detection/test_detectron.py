"""PriorGridGenerator, TopKROIs, ROIFeatureExtractor and DetectionOutput of ExperimentalDetectron."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, sweep
from tests.harness.cases import Array

NAME = "ExperimentalDetectron"
SIDES = [(13, 11), (7, 6), (4, 3)]  # extents of a pyramid's feature maps, whose cells have 16, 32 and 64 pixels


def distinct(*shape: int) -> Callable[..., Array]:
    """Return a function that draws distinct scores: the plugin does not keep equal scores in order."""
    count = int(np.prod(shape))
    return lambda rng: ((rng.permutation(count) + 1) / (count + 1)).reshape(shape)


def grid(
    priors: int = 3,
    maps: tuple[int, int] = (4, 5),
    image: tuple[int, int] = (61, 83),
    kind: str = "f32",
    inputs: list[In] | None = None,
    **more: Any,
) -> Case:
    attrs = {"flatten": True, "h": 0, "w": 0, "stride_x": 0.0, "stride_y": 0.0} | more.pop("attrs", {})
    inputs = inputs or [In((priors, 4), kind, low=-30, high=30), In((1, 2, *maps), kind), In((1, 3, *image), kind)]
    return Case(f"{NAME}PriorGridGenerator", "opset6", inputs, attrs, **more)


def around(x: Array, maps: Array, image: Array) -> Array:
    """Return the priors of a grid of 2 x 3 cells, 8 and 16 apart, followed by zeros."""
    out = np.zeros((4 * 5 * len(x), 4), np.float32)
    for i in range(2 * 3 * len(x)):
        row, column = divmod(i // len(x), 3)
        center = 16 * column + 8, 8 * row + 4
        out[i] = x[i % len(x)] + np.array([*center, *center])
    return out


def grids() -> Iterator[Case]:
    smaller = {"h": 2, "w": 3, "stride_x": 16, "stride_y": 8}
    yield grid(rankless=True)
    yield grid(attrs={"flatten": False}, rankless=True)
    yield grid(attrs={"stride_x": 4.5, "stride_y": 7})
    yield grid(1, (7, 3), attrs={"stride_y": 3.25, "flatten": False})
    yield grid(5, (1, 11), (3, 150), attrs={"stride_x": 2})
    yield grid(2, (6, 5), attrs={"h": 6, "w": 5, "flatten": False})
    for kind in ("f16", "bf16", "f64"):
        yield grid(kind=kind, attrs={"stride_x": 8})
        yield grid(2, (3, 7), kind=kind)
    yield grid(attrs=smaller, expect=around, id="smaller")  # the rest is not written by the plugin
    yield grid(attrs=smaller | {"flatten": False}, expect=lambda *x: around(*x).reshape(4, 5, 3, 4), id="smaller 4-D")
    yield grid(0, expect=np.zeros((0, 4), np.float32), id="no priors")
    yield grid(3, (0, 5), expect=np.zeros((0, 4), np.float32), id="no cells")
    yield grid(0, attrs={"h": 5}, error="h is 5, of 4 rows of the feature maps")
    yield grid(0, attrs={"w": 6}, error="w is 6, of 5 columns of the feature maps")
    yield grid(0, attrs={"h": -1}, error="h is -1, below 0")
    yield grid(attrs={"stride_x": -2}, error="stride_x is -2, below 0")
    yield grid(inputs=[In((3, 5)), In((1, 2, 4, 5)), In((1, 3, 61, 83))], error="a prior has 5 coordinates, not 4")
    yield grid(inputs=[In((3, 4)), In((2, 4, 5)), In((1, 3, 61, 83))], error="feature maps must have rank 4, not 3")
    yield grid(inputs=[In((3, 4)), In((1, 2, 4, 5)), In((2, 3, 61, 83))], error="1 feature maps and 2 images")
    yield grid(inputs=[In((3, 4)), In((1, 2, 4, 5), "f16"), In((1, 3, 61, 83))], error="element types differ")
    yield grid(inputs=[In((3, 4), "i32"), In((1, 2, 4, 5)), In((1, 3, 61, 83))], error="floating-point numb")


def top(count: int, most: int, kind: str = "f32", inputs: list[In] | None = None, **more: Any) -> Case:
    inputs = inputs or [In((count, 4), kind), In((count,), kind, distinct(count))]
    return Case(f"{NAME}TopKROIs", "opset6", inputs, {"max_rois": most}, **more)


def best(regions: Array, scores: Array) -> Array:
    """Return all nine regions, sorted by score, and four rows of zeros."""
    return np.concatenate([regions[np.argsort(-scores)], np.zeros((4, 4), np.float32)])


def tops() -> Iterator[Case]:
    yield top(11, 7, rankless=True)
    yield top(7, 7)
    yield top(5, 1)
    yield top(150, 90)
    yield top(5000, 30)
    for kind in ("f16", "bf16", "f64"):
        yield top(23, 9, kind)
        yield top(40, 3, kind)
    yield top(9, 13, expect=best, id="fewer")  # the rest is not written by the plugin
    yield top(0, 3, expect=np.zeros((3, 4), np.float32), id="no regions")
    yield top(4, 0, expect=np.zeros((0, 4), np.float32), id="none wanted")
    yield top(
        4,
        3,
        inputs=[In((4, 4)), In((4,), "f32", [3, 7, 3, 7])],
        expect=lambda regions, scores: regions[np.argsort(-scores, kind="stable")[:3]],
        id="equal",
    )
    yield top(4, -1, inputs=[In((4, 5)), In((4,))], error="max_rois is -1, below 0")
    yield top(4, 2, inputs=[In((4, 5)), In((4,))], error="a region has 5 coordinates, not 4")
    yield top(4, 2, inputs=[In((4, 4)), In((5,))], error="there are 4 regions and 5 scores")
    yield top(4, 2, inputs=[In((4, 4)), In((4, 1))], error="scores must have rank 1, not 2")


def spread(count: int) -> Callable[..., Array]:
    """Return a function that draws regions of all levels of a pyramid: one has no width, one is upside down, and one
    is outside."""

    def draw(rng: np.random.Generator) -> Array:
        start, side = rng.uniform(-20, 150, (count, 2)), np.exp2(rng.uniform(3, 8.5, (count, 1)))
        side = side * np.exp2(rng.uniform(-0.5, 0.5, (count, 2)))
        side[2:3, 0], side[4:5, 1], start[5:6, 0] = 0, -30, 900
        return np.concatenate([start, start + side], 1)

    return draw


def extract(
    count: int = 13,
    levels: int = 3,
    size: int = 3,
    kind: str = "f32",
    ratio: int = 2,
    aligned: bool = False,
    channels: int = 2,
    inputs: list[In] | None = None,
    **more: Any,
) -> Case:
    attrs = {
        "output_size": size,
        "sampling_ratio": ratio,
        "pyramid_scales": ",".join(map(str, (16, 32, 64)[:levels])),
        "aligned": aligned,
    } | more.pop("attrs", {})
    inputs = inputs or [In((count, 4), kind, spread(count)), *(In((1, channels, *s), kind) for s in SIDES[:levels])]
    return Case(f"{NAME}ROIFeatureExtractor", "opset6", inputs, attrs, 2, **more)


def extracts() -> Iterator[Case]:
    yield extract(rankless=True)
    yield extract(aligned=True, rankless=True)
    yield extract(ratio=0)
    yield extract(ratio=0, aligned=True, size=2)
    yield extract(levels=1, size=5, ratio=1)
    yield extract(levels=2, size=1, ratio=3, channels=5)
    yield extract(attrs={"pyramid_scales": "8,12,50"}, ratio=0)
    yield extract(40, size=7, channels=3)
    for kind in ("f16", "bf16", "f64"):
        yield extract(kind=kind)
        yield extract(kind=kind, ratio=0, aligned=True)
    yield extract(0, expect=[np.zeros((0, 2, 3, 3), np.float32), np.zeros((0, 4), np.float32)], id="no regions")
    yield extract(
        channels=0, expect=lambda regions, *maps: [np.zeros((13, 0, 3, 3), np.float32), regions], id="no channels"
    )
    yield extract(
        inputs=[In((3, 5)), In((1, 2, 3, 3))], attrs={"output_size": 0}, error="output_size is 0, not positive"
    )
    yield extract(ratio=-1, error="sampling_ratio -1 is negative")
    yield extract(0, attrs={"pyramid_scales": "4,0,8"}, error="pyramid_scales has the element 0")
    yield extract(0, attrs={"pyramid_scales": "4,8"}, error="there are 3 feature maps, and 2 pyramid_scales")
    yield extract(inputs=[In((3, 4))], error="there are 0 feature maps")
    yield extract(inputs=[In((3, 5)), In((1, 2, 3, 3))], error="a region has 5 coordinates, not 4")
    yield extract(inputs=[In((3, 4)), In((2, 2, 3, 3))], error="2 feature maps of a level, not 1")
    yield extract(inputs=[In((3, 4)), In((1, 2, 3, 3)), In((1, 3, 2, 2))], error="3 channels in a level, and 2 in anot")
    yield extract(inputs=[In((3, 4)), In((2, 3, 3))], error="feature maps must have rank 4, not 3")


def regions(count: int) -> Callable[..., Array]:
    """Return a function that draws regions in a few clusters, the second without an area."""

    def draw(rng: np.random.Generator) -> Array:
        start = rng.integers(0, 5, (count, 2)) * 14 + rng.uniform(-3, 3, (count, 2))
        side = rng.uniform(9, 16, (count, 2))
        side[1:2, 0] = 0
        return np.concatenate([start, start + side], 1)

    return draw


def detect(count: int = 17, classes: int = 4, kind: str = "f32", inputs: list[In] | None = None, **more: Any) -> Case:
    attrs = {
        "score_threshold": 0.1,
        "nms_threshold": 0.4,
        "num_classes": classes,
        "post_nms_count": 30,
        "max_detections_per_image": 70,
        "max_delta_log_wh": 0.7,
        "deltas_weights": "5,4,2,2.5",
    }
    attrs |= more.pop("attrs", {})
    inputs = inputs or [
        In((count, 4), kind, regions(count)),
        In((count, 4 * classes), kind, low=-1, high=1),
        In((count, classes), kind, distinct(count, classes)),
        In((1, 3), kind, (55.0, 70.0, 1.0)),
    ]
    return Case(f"{NAME}DetectionOutput", "opset6", inputs, attrs, [kind, "i32", kind], **more)


def detects() -> Iterator[Case]:
    yield detect(rankless=True)
    yield detect(attrs={"max_detections_per_image": 9})
    yield detect(attrs={"max_detections_per_image": 1})
    yield detect(attrs={"post_nms_count": 2})
    yield detect(attrs={"post_nms_count": 3, "max_detections_per_image": 5, "score_threshold": 0.0})
    yield detect(attrs={"score_threshold": 0.7, "nms_threshold": 0.9})
    yield detect(attrs={"class_agnostic_box_regression": True})
    yield detect(attrs={"max_delta_log_wh": 0.1, "nms_threshold": 0.0})
    yield detect(60, 3, attrs={"deltas_weights": "10,10,5,5", "max_delta_log_wh": 4.135166645050049})
    yield detect(300, 7, attrs={"max_detections_per_image": 40, "nms_threshold": 0.6})
    for kind in ("f16", "bf16", "f64"):
        yield detect(kind=kind)
        yield detect(kind=kind, attrs={"max_detections_per_image": 6})
    nothing = [np.zeros((5, 4), np.float32), np.zeros(5, np.int32), np.zeros(5, np.float32)]
    yield detect(0, attrs={"max_detections_per_image": 5}, expect=nothing, id="no regions")
    yield detect(classes=1, attrs={"max_detections_per_image": 5}, expect=nothing, id="background")
    yield detect(attrs={"post_nms_count": 0, "max_detections_per_image": 5}, expect=nothing, id="none of a class")
    yield detect(attrs={"max_detections_per_image": 0}, expect=[x[:0] for x in nothing], id="none wanted")
    shapes = [(5, 4), (5, 16), (5, 4), (1, 3)]
    for name in ("score_threshold", "nms_threshold", "post_nms_count", "max_detections_per_image"):
        inputs = [In(shape) for shape in [(5, 5), *shapes[1:]]]
        yield detect(inputs=inputs, attrs={name: -1}, error=f"{name} is -1, below 0")
    yield detect(inputs=inputs, attrs={"deltas_weights": "1,2,3"}, error="deltas_weights has 3 elements, not 4")
    for number, shape, error in (
        (0, (5, 5), "5 coordinates of a region, not 4"),
        (0, (6, 4), "6 regions, and offsets of 5"),
        (1, (5, 15), "15 offsets, not 16"),
        (2, (5, 3), "3 scores, not 4"),
        (2, (4, 4), "and scores of 4"),
        (3, (1, 4), "4 numbers of the image, not 3"),
        (3, (2, 3), "2 images, not 1"),
        (3, (3,), "the image must have rank 2, not 1"),
    ):
        yield detect(inputs=[In(shape if i == number else s) for i, s in enumerate(shapes)], error=error)


test_cases = check([*grids(), *tops(), *extracts(), *detects()])

KINDS = st.sampled_from(("f32", "f32", "f16", "bf16"))


@st.composite
def grids_drawn(draw: st.DrawFn) -> Case:
    attrs = {
        "flatten": draw(st.booleans()),
        "stride_x": draw(st.sampled_from((0, 3, 8.5))),
        "stride_y": draw(st.sampled_from((0, 4, 7.25))),
    }
    height, width = (draw(st.integers(1, 8)) for _ in range(2))
    return grid(draw(st.integers(1, 7)), (height, width), (draw(st.integers(1, 90)), 55), draw(KINDS), attrs=attrs)


@st.composite
def tops_drawn(draw: st.DrawFn) -> Case:
    count = draw(st.integers(1, 60))
    return top(count, draw(st.integers(1, count)), draw(KINDS), id=str(draw(st.integers(0, 99))))


@st.composite
def extracts_drawn(draw: st.DrawFn) -> Case:
    scales = [str(draw(st.integers(4, 64))) for _ in SIDES]
    return extract(
        draw(st.integers(1, 15)),
        draw(st.integers(1, 3)),
        draw(st.integers(1, 5)),
        draw(KINDS),
        draw(st.integers(0, 3)),
        draw(st.booleans()),
        draw(st.integers(1, 3)),
        attrs={"pyramid_scales": ",".join(scales)},
        id=",".join(scales) + f"_{draw(st.integers(0, 99))}",
    )


@st.composite
def detects_drawn(draw: st.DrawFn) -> Case:
    attrs = {
        "score_threshold": draw(st.sampled_from((0.0, 0.2, 0.6))),
        "nms_threshold": draw(st.sampled_from((0.3, 0.6))),
        "post_nms_count": draw(st.integers(1, 20)),
        "max_detections_per_image": draw(st.integers(1, 60)),
        "class_agnostic_box_regression": draw(st.booleans()),
        "max_delta_log_wh": draw(st.sampled_from((0.3, 4.0))),
        "deltas_weights": draw(st.sampled_from(("1,1,1,1", "10,10,5,5"))),
    }
    return detect(
        draw(st.integers(1, 40)), draw(st.integers(2, 6)), draw(KINDS), attrs=attrs, id=str(draw(st.integers(0, 999)))
    )


test_random = sweep(st.one_of(grids_drawn(), tops_drawn(), extracts_drawn(), detects_drawn()), 300)
