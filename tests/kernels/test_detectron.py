"""Non-maximum suppression on the device: equal scores, limits, orders of threads, and the maximum number of boxes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from ovgpu.backends.cuda import CudaBackend
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.base.op import Op, evaluate
from ovgpu.ops.base.xp import NUMPY
from ovgpu.ops.detection.detectron import MAX_SORTED_BOXES, DetectionOutput, TopKROIs
from ovgpu.ops.detection.generate_proposals import GenerateProposalsSingleImage
from tests.emulator import cupy_emu as cp
from tests.harness import Infer, Net, Scenario, check

from .forms import ORDERS
from .recorded import kernel_name, replay, spec

NAME = "ExperimentalDetectron"
ATTRS: dict[str, Any] = {
    "score_threshold": 1.0,
    "nms_threshold": 0.3,
    "max_delta_log_wh": 1.0,
    "deltas_weights": (1.0, 1.0, 1.0, 1.0),
}


@pytest.fixture
def backend(emulated: str) -> CudaBackend:
    return CudaBackend()


def run(backend: CudaBackend, op: Op, inputs: Sequence[Sequence[Any]]) -> list[str]:
    """Check an op against its definition, bit for bit; return the kernels that it launches."""
    arrays = [cp.empty(values[0].shape, values[0].dtype) for values in inputs]
    specs = [spec(x, False) for x in arrays]
    found = op.infer_specs(*specs)
    outputs = [cp.empty(s.shape, s.type.storage) for s in found]
    workspace = [cp.empty(shape, kind.storage) for kind, shape in op.workspace(specs, found)]
    launcher = Launcher(backend.stream, backend.blas)
    assert op.cuda is not None
    if op.cuda(launcher, arrays, outputs, workspace) is NotImplemented:
        return []
    replay(
        backend,
        lambda: launcher.calls,
        list(zip(arrays, inputs)),
        outputs,
        lambda draw: evaluate(op, NUMPY, [values[draw] for values in inputs], [s.type for s in found]),
    )
    return [kernel_name(call) for call in launcher.calls]


def boxes(count: int, draw: int) -> Any:
    """Return boxes with small integer corners, many of them equal or without an area."""
    rng = np.random.default_rng([count, draw])
    start = rng.integers(0, 40, (count, 2))
    return np.concatenate([start, start + rng.integers(0, 10, (count, 2))], 1).astype(np.float32)


def numbers(shape: tuple[int, ...], low: int, high: int, draw: int) -> Any:
    return np.random.default_rng([*shape, draw]).integers(low, high, shape).astype(np.float32)


def detections(count: int, classes: int, scores: int = 9) -> list[list[Any]]:
    """Return inputs of DetectionOutput whose offsets only translate boxes, and whose scores are mostly equal."""
    offsets = [numbers((count, classes, 4), -2, 3, draw) * np.array([1, 1, 0, 0], np.float32) for draw in range(3)]
    return [
        [boxes(count, draw) for draw in range(3)],
        [x.reshape(count, -1) for x in offsets],
        [numbers((count, classes), 0, scores, draw) for draw in range(3)],
        [np.ones((1, 3), np.float32)] * 3,
    ]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("rows", [3, 40, 1000])
@pytest.mark.parametrize("limit", [1, 7, 500])
def test_detections(backend: CudaBackend, order: Any, rows: int, limit: int) -> None:
    op = DetectionOutput(num_classes=4, post_nms_count=limit, max_detections_per_image=rows, **ATTRS)
    with cp.thread_order(order):
        assert run(backend, op, detections(90, 4)) == [
            "move_regions<float>",
            "topk<float, int>",
            "suppress",
            "write_best<float>",
        ]


@pytest.mark.parametrize("threshold", [0.0, 0.3, 1.0])
def test_more_boxes_than_threads(backend: CudaBackend, threshold: float) -> None:
    op = DetectionOutput(
        num_classes=3, post_nms_count=300, max_detections_per_image=450, **ATTRS | {"nms_threshold": threshold}
    )
    run(backend, op, detections(700, 3, 1000))


def test_equal_scores_of_proposals(backend: CudaBackend) -> None:
    op = GenerateProposalsSingleImage(min_size=4.0, nms_threshold=0.4, pre_nms_count=300, post_nms_count=250)
    count, height, width = 5, 9, 11
    offsets = [numbers((count, 4, height, width), -1, 2, draw) for draw in range(3)]
    for x in offsets:
        x[:, 2:] = 0
    inputs = [
        [np.array([43, 37, 1], np.float32)] * 3,
        [boxes(count * height * width, draw) for draw in range(3)],
        [x.reshape(-1, height, width) for x in offsets],
        [numbers((count, height, width), -3, 9, draw) for draw in range(3)],
    ]
    assert len(run(backend, op, inputs)) == 4


def test_equal_scores_of_regions(backend: CudaBackend) -> None:
    inputs = [[boxes(5000, draw) for draw in range(3)], [numbers((5000,), 0, 4, draw) for draw in range(3)]]
    assert run(backend, TopKROIs(max_rois=700), inputs)[0] == "topk<float, int>"


def test_too_many_boxes(backend: CudaBackend) -> None:
    op = DetectionOutput(num_classes=2, post_nms_count=9, max_detections_per_image=9, **ATTRS)
    assert run(backend, op, detections(MAX_SORTED_BOXES + 1, 2)) == []


# ---- a whole detector


def detector() -> Net:
    """Return the end of Mask R-CNN, from anchors to boxes, with two levels of feature maps."""
    rng, net = np.random.default_rng(3), Net("detector")
    maps, image = [net.parameter("f32", (1, 3, *s)) for s in ((6, 7), (3, 4))], net.parameter("f32", (1, 3, 96, 112))
    offsets, scores = net.parameter("f32", (12, 6, 7)), net.parameter("f32", (3, 6, 7))
    priors = net.const(np.array([[-12, -12, 12, 12], [-20, -9, 20, 9], [-30, -30, 30, 30]], np.float32))
    anchors = net.layer(
        f"{NAME}PriorGridGenerator",
        "opset6",
        [priors, maps[0], image],
        {"flatten": True, "stride_x": 16, "stride_y": 16},
    )  # OpenVINO's default for flatten is false
    size = net.const(np.array([96, 112, 1], np.float32))
    rois, rated = net.layer(
        f"{NAME}GenerateProposalsSingleImage",
        "opset6",
        [size, anchors, offsets, scores],
        {"min_size": 0, "nms_threshold": 0.8, "pre_nms_count": 50, "post_nms_count": 20},
        2,
    )
    best = net.layer(f"{NAME}TopKROIs", "opset6", [rois, rated], {"max_rois": 11})
    features, regions = net.layer(
        f"{NAME}ROIFeatureExtractor",
        "opset6",
        [best, *maps],
        {"output_size": 2, "sampling_ratio": 2, "pyramid_scales": "16,32", "aligned": True},
        2,
    )
    flat = net.layer("Reshape", "opset1", [features, net.const(np.array([-1, 12]))], {"special_zero": False})
    moves, votes = (
        net.layer("MatMul", "opset1", [flat, net.const(rng.uniform(-1, 1, (12, n)).astype(np.float32))])
        for n in (20, 5)
    )
    votes = net.layer("Softmax", "opset8", [votes], {"axis": 1})
    attrs = {
        "score_threshold": 0.05,
        "nms_threshold": 0.4,
        "num_classes": 5,
        "post_nms_count": 9,
        "max_detections_per_image": 13,
        "max_delta_log_wh": 4.1,
        "deltas_weights": "10,10,5,5",
    }
    size = net.const(np.array([[96, 112, 1]], np.float32))
    for port in net.layer(
        f"{NAME}DetectionOutput", "opset6", [regions, moves, votes, size], attrs, ["f32", "i32", "f32"]
    ):
        net.result(port)
    return net


def frames() -> Iterator[Infer]:
    for seed in range(2):
        rng = np.random.default_rng(seed)
        shapes = [(1, 3, 6, 7), (1, 3, 3, 4), (1, 3, 96, 112), (12, 6, 7)]
        inputs = [rng.uniform(-0.5, 0.5, shape) for shape in shapes]
        scores = rng.permutation(3 * 6 * 7).reshape(3, 6, 7) / 200  # no two are equal
        yield Infer(**{f"in{i}": x.astype(np.float32) for i, x in enumerate([*inputs, scores])})


test_detector = check([Scenario("detector", detector(), [*frames()])])
