"""DetectionOutput."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.harness import Case, In, check, sweep
from tests.harness.cases import Array

CORNER, CENTER = "caffe.PriorBoxParameter.CORNER", "caffe.PriorBoxParameter.CENTER_SIZE"


def priors(rng: np.random.Generator, batches: int, rows: int, count: int, size: int, scale: float) -> Array:
    """Return prior boxes, and variances if there are two rows."""
    found = np.zeros((batches, rows, count * size))
    low = rng.integers(0, 8, (batches, count, 2)) / 16
    boxes = np.concatenate([low, low + rng.integers(2, 8, low.shape) / 16], -1) * scale
    found[:, 0] = np.concatenate([np.zeros((batches, count, size - 4)), boxes], -1).reshape(batches, -1)
    if rows > 1:
        found[:, 1, : count * 4] = rng.choice([0.1, 0.2], (batches, count * 4))
    return found


def scores(rng: np.random.Generator, images: int, count: int, classes: int) -> Array:
    """Return scores with ties, but not within a prior, where the plugin's choice among equal scores is unstable."""
    return rng.integers(0, 40, (images, count, classes)) / 40 + np.arange(classes) / 400


def detection(
    version: str = "opset8",
    images: int = 2,
    count: int = 13,
    classes: int = 4,
    kind: str = "f32",
    batches: int = 1,
    five: bool = False,
    **more: Any,
) -> Case:
    attrs = {"keep_top_k": 6, "nms_threshold": 0.43, "confidence_threshold": 0.11} | more.pop("attrs", {})
    if version == "opset1":
        attrs = {"num_classes": classes} | attrs
    rows = 1 if attrs.get("variance_encoded_in_target") else 2
    size, scale = (4, 1.0) if attrs.get("normalized") else (5, 40.0)
    if size == 5:
        attrs = {"input_height": 40, "input_width": 40} | attrs
    located = 1 if attrs.get("share_location", True) else classes
    offsets = In((images, count * located * 4), kind, low=-0.2, high=0.2)
    scored = partial(scores, images=images, count=count, classes=classes)
    inputs = [
        offsets,
        In((images, count * classes), kind, scored),
        In(
            (batches, rows, count * size),
            kind,
            partial(priors, batches=batches, rows=rows, count=count, size=size, scale=scale),
        ),
    ]
    if five:
        inputs += [In((images, count * 2), kind, low=0.0, high=1.0), offsets]
    return Case("DetectionOutput", version, more.pop("inputs", inputs), attrs, [kind], **more)


def cases(version: str) -> Iterator[Case]:
    make = partial(detection, version)
    yield make(rankless=True)
    yield make(attrs={"normalized": True})
    yield make(images=1, attrs={"normalized": True, "code_type": CENTER})
    yield make(attrs={"code_type": CENTER})
    yield make(attrs={"normalized": True, "share_location": False, "code_type": CENTER})
    yield make(attrs={"normalized": True, "variance_encoded_in_target": True})
    yield make(attrs={"normalized": True, "keep_top_k": -1, "top_k": 5})
    yield make(attrs={"normalized": True, "keep_top_k": -1})
    yield make(attrs={"normalized": True, "keep_top_k": 30, "top_k": 5, "background_label_id": 2})
    yield make(attrs={"normalized": True, "background_label_id": -1, "confidence_threshold": 0.6})
    yield make(attrs={"normalized": True, "clip_before_nms": True, "code_type": CENTER})
    yield make(attrs={"normalized": True, "clip_after_nms": True, "code_type": CENTER})
    yield make(attrs={"normalized": True, "decrease_label_id": True})
    yield make(attrs={"normalized": True, "decrease_label_id": True, "top_k": 7, "keep_top_k": 4})
    yield make(attrs={"normalized": True, "decrease_label_id": True, "share_location": False, "keep_top_k": -1})
    yield make(batches=2, attrs={"normalized": True})
    yield make(attrs={"normalized": True, "confidence_threshold": 2.0}, id="nothing")
    yield make(count=211, classes=7, attrs={"normalized": True, "keep_top_k": 100, "top_k": 40}, id="many")
    yield make(kind="f16", attrs={"normalized": True, "code_type": CENTER})
    yield make(batches=2, five=True, attrs={"normalized": True, "objectness_score": 0.4}, id="five")
    yield make(
        batches=2, five=True, attrs={"normalized": True, "objectness_score": 0.4, "code_type": CENTER}, id="five_center"
    )
    yield make(attrs={"keep_top_k": ""}, inputs=[In((2, 52)), In((2, 52)), In((1, 2, 64))], error="keep_top_k is empty")
    yield make(attrs={"code_type": "MIDDLE"}, error="'MIDDLE'")
    yield make(inputs=[In((2, 52)), In((2, 52)), In((1, 2, 64))], error="priors divided by 5 leave 4")
    yield make(inputs=[In((2, 52)), In((2, 52)), In((1, 1, 65))], error="priors have 1 rows, not 2")
    yield make(inputs=[In((2, 50)), In((2, 52)), In((1, 2, 65))], error="there are 50 offsets, not 52")
    yield make(inputs=[In((2, 52)), In((2, 50)), In((1, 2, 65))], error="there are 50 scores, not")
    yield make(inputs=[In((3, 52)), In((2, 52)), In((1, 2, 65))], error="there are 3 images of offsets and 2 of scores")
    yield make(inputs=[In((2, 52)), In((2, 52, 1)), In((1, 2, 65))], error="scores must have rank 2, not 3")


CASES = [*cases("opset1"), *cases("opset8")]
test_cases = check(CASES)


@st.composite
def drawn(draw: st.DrawFn) -> Case:
    flags = (
        "variance_encoded_in_target",
        "share_location",
        "clip_after_nms",
        "clip_before_nms",
        "decrease_label_id",
        "normalized",
    )
    attrs: dict[str, Any] = {name: draw(st.booleans()) for name in flags}
    attrs |= {
        "code_type": draw(st.sampled_from((CORNER, CENTER))),
        "keep_top_k": draw(st.sampled_from((-1, 3, 50))),
        "top_k": draw(st.sampled_from((-1, 4, 20))),
        "background_label_id": draw(st.integers(-1, 2)),
        "confidence_threshold": draw(st.sampled_from((0.0, 0.31))),
        "nms_threshold": draw(st.sampled_from((0.17, 0.43, 0.77))),
    }
    images = draw(st.integers(1, 3))
    return detection(
        draw(st.sampled_from(("opset1", "opset8"))),
        images,
        draw(st.integers(1, 30)),
        draw(st.integers(3, 5)),
        batches=draw(st.sampled_from((1, images))),
        attrs=attrs,
        id=f"random_{draw(st.integers(0, 99))}",
    )


test_random = sweep(drawn())
