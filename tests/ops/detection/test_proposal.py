"""Proposal."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, sweep
from tests.harness.cases import Array


def distinct(rng: np.random.Generator, shape: tuple[int, ...]) -> Array:
    """Return distinct scores: the plugin does not keep equal scores in order."""
    count = int(np.prod(shape))
    return (rng.permutation(count) + 1) / (count + 1)


def proposal(
    version: str,
    images: int = 2,
    height: int = 5,
    width: int = 7,
    kind: str = "f32",
    image: Any = (61.0, 83.0, 1.0),
    inputs: list[In] | None = None,
    **more: Any,
) -> Case:
    attrs = {
        "base_size": 16,
        "pre_nms_topn": 50,
        "post_nms_topn": 11,
        "nms_thresh": 0.57,
        "feat_stride": 8,
        "min_size": 1,
        "ratio": "0.5,1,2",
        "scale": "1,2",
    } | more.pop("attrs", {})
    count = len(attrs["ratio"].split(",")) * len(attrs["scale"].split(","))
    shape = (images, 2 * count, height, width)
    inputs = inputs or [
        In(shape, kind, partial(distinct, shape=shape)),
        In((images, 4 * count, height, width), kind, low=-0.4, high=0.4),
        In((len(image),), kind, lambda rng: image),
    ]
    return Case("Proposal", version, inputs, attrs, [kind] * (2 if version == "opset4" else 1), **more)


def cases(version: str) -> Iterator[Case]:
    make = partial(proposal, version)
    yield make(rankless=True)
    yield make(1, 3, 5, image=(40.0, 50.0, 1.5, 0.5), attrs={"min_size": 12})
    yield make(attrs={"framework": "tensorflow"})
    yield make(attrs={"framework": "tensorflow", "clip_before_nms": False, "normalize": True})
    yield make(attrs={"clip_before_nms": False})
    yield make(attrs={"clip_before_nms": False, "clip_after_nms": True, "normalize": True})
    yield make(attrs={"box_size_scale": 2.0, "box_coordinate_scale": 5.0, "base_size": 9, "ratio": "0.7,1.9"})
    yield make(1, 7, 4, attrs={"ratio": "1", "scale": "0.5,1,3", "feat_stride": 16})
    yield make(image=(61.0, 83.0, 0.5, 2.0), attrs={"min_size": 2, "framework": "tensorflow"}, id="scaled")
    yield make(3, 4, 4, attrs={"nms_thresh": 0.31, "post_nms_topn": 2, "clip_after_nms": True})
    yield make(attrs={"pre_nms_topn": 9, "nms_thresh": 0.9, "post_nms_topn": 5})
    yield make(attrs={"pre_nms_topn": 9999, "post_nms_topn": 40, "nms_thresh": 0.7}, id="many")
    yield make(inputs=[In((2, 12, 5, 7)), In((2, 20, 5, 7)), In((3,))], error="20 channels of offsets, not 24")
    yield make(inputs=[In((2, 10, 5, 7)), In((2, 24, 5, 7)), In((3,))], error="10 channels of scores, not 12")
    yield make(inputs=[In((2, 12, 5, 7)), In((3, 24, 5, 7)), In((3,))], error="2 images of scores and 3 of offsets")
    yield make(inputs=[In((0, 12, 5, 7)), In((0, 24, 6, 7)), In((3,))], error="sides of scores and offsets are 5 and 6")
    yield make(inputs=[In((2, 12, 5, 7)), In((2, 24, 5, 7)), In((5,))], error="the image has 5 numbers, not 3 or 4")
    yield make(inputs=[In((2, 12, 5)), In((2, 24, 5, 7)), In((3,))], error="scores must have rank 4, not 3")
    yield make(
        attrs={"post_nms_topn": 0},
        inputs=[In((2, 12, 5, 7)), In((2, 20, 5, 7)), In((3,))],
        error="post_nms_topn is 0, not positive",
    )
    yield make(attrs={"framework": "caffe"}, error="'caffe'")


CASES = [
    *cases("opset1"),
    *cases("opset4"),
    proposal("opset1", attrs={"post_nms_topn": 300, "nms_thresh": 0.2}, id="padded"),
]
test_cases = check(CASES)


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    attrs = {
        "framework": draw(st.sampled_from(("", "tensorflow"))),
        "clip_before_nms": draw(st.booleans()),
        "clip_after_nms": draw(st.booleans()),
        "normalize": draw(st.booleans()),
        "base_size": draw(st.integers(3, 20)),
        "feat_stride": draw(st.integers(1, 16)),
        "min_size": 0,
        "pre_nms_topn": draw(st.sampled_from((9, 20, 500))),
        "post_nms_topn": draw(st.sampled_from((2, 7))),
        "nms_thresh": draw(st.sampled_from((0.31, 0.7))),
        "ratio": draw(st.sampled_from(("1", "0.5,1.3"))),
        "scale": draw(st.sampled_from(("1", "0.7,2"))),
        "box_size_scale": draw(st.sampled_from((1.0, 3.0))),
    }
    image = draw(st.sampled_from(((41.0, 57.0, 1.0), (80.0, 33.0, 1.5, 0.5))))
    version = draw(st.sampled_from(("opset1", "opset4")))
    if version == "opset4":  # the plugin does not fill the second output
        attrs["post_nms_topn"] = 2
    return proposal(
        version,
        draw(st.integers(1, 2)),
        draw(st.integers(4, 7)),
        draw(st.integers(4, 7)),
        image=image,
        attrs=attrs,
        id=f"random_{draw(st.integers(0, 99))}",
    )


test_random = sweep(drawn())
