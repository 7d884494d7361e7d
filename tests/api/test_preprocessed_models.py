"""Models with openvino's preprocessing: video formats, sizes, layouts, means and scales."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu
from tests.harness.judge import CONFIG

openvino = pytest.importorskip("openvino")
from openvino.preprocess import ColorFormat, PrePostProcessor, ResizeAlgorithm  # noqa: E402

HEIGHT, WIDTH = 6, 10  # size of the model's input


def preprocessed(steps: Callable[[Any], None]) -> Any:
    """Build a model of planar f32 images, preprocessed by ``steps``."""
    ops = openvino.opset13
    x = ops.parameter([1, 3, HEIGHT, WIDTH], np.float32)
    kernel = np.random.default_rng(0).normal(size=(4, 3, 3, 3)).astype(np.float32)
    y = ops.relu(ops.convolution(x, ops.constant(kernel), [1, 1], [0, 0], [0, 0], [1, 1]))
    process = PrePostProcessor(openvino.Model([ops.result(y)], [x]))
    steps(process.input())
    process.input().model().set_layout(openvino.Layout("NCHW"))
    return process.build()


def photo(given: Any, algorithm: Any, height: int = 13, width: int = 17) -> None:
    given.tensor().set_element_type(openvino.Type.u8).set_layout(openvino.Layout("NHWC"))
    given.tensor().set_shape([1, height, width, 3])
    given.preprocess().convert_element_type(openvino.Type.f32).resize(algorithm)
    given.preprocess().mean([100.0, 110.0, 120.0]).scale([50.0, 60.0, 70.0]).reverse_channels()


def video(given: Any, color: Any, algorithm: Any) -> None:
    """Add steps for video frames of twice the size: resize weights are exact, so 8-bit results need no tolerance."""
    given.tensor().set_element_type(openvino.Type.u8).set_color_format(color)
    given.tensor().set_spatial_static_shape(2 * HEIGHT, 2 * WIDTH)
    given.preprocess().convert_color(ColorFormat.RGB).resize(algorithm).convert_element_type(openvino.Type.f32)
    given.preprocess().mean(127.0).scale(58.0)


RESIZE = (
    ResizeAlgorithm.RESIZE_LINEAR,
    ResizeAlgorithm.RESIZE_CUBIC,
    ResizeAlgorithm.RESIZE_NEAREST,
    ResizeAlgorithm.RESIZE_BILINEAR_PILLOW,
)
COLORS = (
    ColorFormat.NV12_SINGLE_PLANE,
    ColorFormat.NV12_TWO_PLANES,
    ColorFormat.I420_SINGLE_PLANE,
    ColorFormat.I420_THREE_PLANES,
)
STEPS = [lambda given, a=algorithm: photo(given, a) for algorithm in RESIZE] + [
    lambda given, c=color, a=algorithm: video(given, c, a) for color, algorithm in zip(COLORS, RESIZE)
]


@pytest.mark.drawn(4)
@pytest.mark.parametrize("steps", STEPS, ids=[f"photo {a}" for a in RESIZE] + [f"video {c}" for c in COLORS])
def test_runs_like_openvinos(steps: Callable[[Any], None], device: str, tmp_path: Path) -> None:
    path = tmp_path / "model.xml"
    openvino.save_model(preprocessed(steps), path, compress_to_fp16=False)
    request = ovgpu.Core().compile_model(path, device).create_infer_request()
    judge = openvino.Core().compile_model(path, "CPU", CONFIG)
    rng = np.random.default_rng(1)
    for _ in range(3):
        images = [rng.integers(0, 256, port.shape).astype(np.uint8) for port in judge.inputs]
        expected = judge(images)[0]
        found = request.infer(images)[0]
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-5 * np.abs(expected).max())
