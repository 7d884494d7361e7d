"""Checks of inputs that operations make when they are evaluated, or of constants, called without a model."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovgpu import Type
from ovgpu.errors import OpError
from ovgpu.ops import lookup
from ovgpu.ops.infrastructure import control_flow
from ovgpu.spec import Spec

TABLE = np.ones((11, 3), np.float32)
INDICES = np.arange(7)
SIGNALS = np.zeros((3, 56), np.float32)
SPECTRA = np.zeros((4, 6, 16, 2), np.float32)
WINDOW = np.ones(7, np.float32)
LOGITS = np.zeros((3, 7, 4), np.float32)
LABELS = np.zeros((3, 7), np.int32)
ELEVEN, THREE = np.array(11), np.array(3)
EVALUATED: list[tuple[str, str, dict[str, Any], list[Any], str]] = [
    ("Reshape", "opset1", {"special_zero": False}, [np.zeros((2, 3)), np.array([4, 2])], "6 elements cannot be reshap"),
    ("VariadicSplit", "opset1", {}, [np.zeros((6, 4)), np.array(1), np.array([3, 2])], "add up to 5"),
    ("STFT", "opset15", {"transpose_frames": False}, [SIGNALS, WINDOW, ELEVEN, np.array(0)], "frame step 0"),
    ("STFT", "opset15", {"transpose_frames": False}, [SIGNALS, WINDOW, np.array(57), THREE], "a frame of 57 elements"),
    ("ISTFT", "opset16", {}, [SPECTRA, WINDOW, ELEVEN, THREE, np.array(-1)], "signal length -1 is negative"),
    (
        "CTCLoss",
        "opset4",
        {},
        [LOGITS, np.array([7, 3, 4]), LABELS, np.array([3, 4, 1])],
        "there are more labels than steps",
    ),
    (
        "SparseFillEmptyRows",
        "opset16",
        {},
        [np.ones(2), np.array([5, 6]), np.array([[0, 1], [5, 0]]), np.array(0.5)],
        "an index is out of range for 5 rows and 6 columns",
    ),
    (
        "SparseFillEmptyRows",
        "opset16",
        {},
        [np.ones(2), np.array([-5, 6]), np.array([[0, 1], [3, 0]]), np.array(0.5)],
        "dense_shape has the extent -5",
    ),
]


@pytest.mark.parametrize(("op", "version", "attributes", "inputs", "error"), EVALUATED)
def test_evaluated(op: str, version: str, attributes: dict[str, Any], inputs: list[Any], error: str) -> None:
    """Wrong values of parameters raise an error."""
    with pytest.raises(OpError, match=error):
        lookup(op, version)(**attributes).evaluate(np, *inputs)


PROPOSALS = "ExperimentalDetectronGenerateProposalsSingleImage"
COUNTS = {"min_size": 0.0, "nms_threshold": 0.4, "pre_nms_count": 50, "post_nms_count": 9}
SAMPLES = {"convert_type": Type.i32, "with_replacement": True, "log_probs": False}
INFERRED: list[tuple[str, str, dict[str, Any], list[Any], str]] = [
    (
        "ISTFT",
        "opset16",
        {},
        [SPECTRA.shape, WINDOW.shape, ELEVEN, THREE, np.array(-1)],
        "signal length -1 is negative",
    ),
    (
        "EmbeddingSegmentsSum",
        "opset3",
        {},
        [TABLE.shape, INDICES, INDICES, np.array(-1)],
        "num_segments -1 is negative",
    ),
    ("SegmentMax", "opset16", {"fill_mode": "ZERO"}, [(7, 3), INDICES, np.array(-1)], "num_segments -1 is negative"),
    ("SparseFillEmptyRows", "opset16", {}, [(2,), np.array([-5, 6]), np.ones((2, 2), np.int64), ()], "extent -5"),
    ("Multinomial", "opset13", SAMPLES, [(5, 13), np.array(-1)], "the number of samples is -1"),
    ("RDFT", "opset9", {}, [(3, 6, 7), np.zeros(0, np.int64)], "there are no axes"),
    ("IRDFT", "opset9", {}, [(3, 6, 7, 2), np.zeros(0, np.int64)], "there are no axes"),
    ("SpaceToBatch", "opset2", {}, [(2, 5), np.array([1, 0]), *[np.zeros(2, np.int64)] * 2], "block_shape 0 of axis 1"),
    (PROPOSALS, "opset6", COUNTS, [(3,), (23, 4), (8, 3, 4), (2, 3, 4)], "there are 23 anchors and 24 scores"),
    (PROPOSALS, "opset6", COUNTS, [(3,), (24, 4), (7, 3, 4), (2, 3, 4)], "7 channels of offsets, not 8"),
    ("CumSum", "opset3", {}, [(), np.array(1)], "axis 1 is out of range for rank 1"),
]


@pytest.mark.parametrize(("op", "version", "attributes", "inputs", "error"), INFERRED)
def test_inferred(op: str, version: str, attributes: dict[str, Any], inputs: list[Any], error: str) -> None:
    """Wrong constants raise an error before inference; inputs that are shapes stand for parameters of f32."""
    specs = [Spec(Type.f32, x) if isinstance(x, tuple) else Spec(Type.i64, x.shape, x) for x in inputs]
    with pytest.raises(OpError, match=error):
        lookup(op, version)(**attributes).infer_specs(*specs)


def test_undefined_regions() -> None:
    """A region of which a side is NaN has no mean; the others have theirs."""
    op = lookup("ROIAlign", "opset9")(mode="avg", spatial_scale=1.0, sampling_ratio=1, pooled_h=1, pooled_w=1)
    maps, regions = np.arange(24.0).reshape(2, 1, 3, 4), np.array([[0, 0, 2, 2], [0, 0, 2, np.nan]])
    (found,) = op.evaluate(np, maps, regions, np.array([1, 0]))
    np.testing.assert_array_equal(found.ravel(), [17, 0])


def test_parts_of_iterations() -> None:
    """Parts of an output that have different ranks cannot be joined."""
    output = control_flow.OutputMap(port=1, result=0, axis=0)
    with pytest.raises(OpError, match=r"output 1 cannot join parts of shapes \[1, 3\] and \[1, 1, 3\] along axis 0"):
        control_flow._joined(np, [np.zeros((1, 3)), np.zeros((1, 1, 3))], output)
