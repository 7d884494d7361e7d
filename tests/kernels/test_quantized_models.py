"""Models with activations and weights in 8 bits, as nncf quantises them, on the emulated device."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.backends.cuda import rt
from ovgpu.backends.cuda.launch import Launcher
from ovgpu.model import Model
from tests.harness.models.drive import DATA, Expected
from tests.harness.models.quantize import quantize
from tests.harness.models.transformer import Sizes, bert

from . import test_channels_last
from .recorded import counted
from .test_channels_last import CHANNELS, bias, joined, network
from .test_convolutional_models import resnet50


def infer(model: Model, inputs: Any, device: str, precision: str) -> tuple[Any, Any]:
    """Return the first result, and the plan, of an inference that is one launch and allocates nothing. Only the device
    NVIDIA computes in TF32."""
    compiled = ov.Core().compile_model(model, device, {"INFERENCE_PRECISION_HINT": precision})
    request = compiled.create_infer_request()
    for _ in range(3):
        found, counters = counted(lambda: request.infer(inputs)[0])
    plan = request.plan()
    assert (counters.graph_launches, counters.launches, counters.allocs, plan.launches) == (1, 0, 0, 1)
    return found, plan


def is_close(found: Any, expected: Any, tolerance: float) -> bool:
    """Compare to the largest number. In f16 and TF32, values at the edge of a level may move by a level."""
    return bool(np.abs(found - expected).max() <= tolerance * np.abs(expected).max())


def convolutional() -> tuple[Model, Any]:
    x = np.random.default_rng(2).uniform(-1, 1, (1, 3, 32, 32)).astype(np.float32)
    return quantize(ov.Core().read_model(*resnet50(16, "f32")), [x]), [x]


def transformer() -> tuple[Model, Any]:
    rng, sizes = np.random.default_rng(4), Sizes(2, 32, 2, 64, 50, 24)
    inputs = [rng.integers(0, 50, (2, 17)), np.ones((2, 17), np.int64), np.zeros((2, 17), np.int64)]
    return quantize(ov.Core().read_model(*bert(3, sizes, (2, 17)).ir), inputs), inputs


@pytest.mark.drawn(3)
@pytest.mark.parametrize(("precision", "tolerance"), [("f32", 1e-5), ("tf32", 0.05), ("f16", 0.05)])
def test_resnet50(precision: str, tolerance: float, emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """All convolutions but the first take codes and give codes: sums of shortcuts and activations are in the kernels.
    Without cuDNN, the first one is two kernels."""
    monkeypatch.setattr(rt, "_cudnn", False)
    model, inputs = convolutional()
    expected = ov.Core().compile_model(model, "CPU")(inputs)[0]
    instances = set[tuple[Any, ...]]()
    launch = Launcher.kernel

    def kernel(k: Launcher, file: str, name: str, *args: Any, **options: Any) -> None:
        if file == "implicit_gemm.cu":
            instances.add((name, options["prelude"]))
        launch(k, file, name, *args, **options)

    monkeypatch.setattr(Launcher, "kernel", kernel)
    found, plan = infer(model, inputs, "NVIDIA", precision)
    assert is_close(found, expected, tolerance)
    assert plan.kernels == (61 if precision == "f16" else 59)
    assert len(instances) < 10  # steps of codes are arguments


@pytest.mark.parametrize(("precision", "tolerance"), [("f32", 1e-5), ("tf32", 0.05), ("f16", 0.05)])
def test_bert(precision: str, tolerance: float, emulated: str) -> None:
    """A layer has four products of codes, attention and two norms. In exact f32, a kernel more quantises what attention
    gives."""
    model, inputs = transformer()
    expected = ov.Core().compile_model(model, "CPU")(inputs)[0]
    found, plan = infer(model, inputs, "NVIDIA", precision)
    assert is_close(found, expected, tolerance)
    assert plan.kernels == 2 * (8 if precision == "f32" else 7) + 8


@pytest.mark.parametrize(("precision", "tolerance"), [("f32", 1e-5), ("tf32", 1e-5), ("f16", 0.05)])
def test_parts_of_channels(precision: str, tolerance: float, emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Convolutions of codes write into parts of a Concat, in any type."""
    monkeypatch.setattr(rt, "_cudnn", False)
    monkeypatch.setattr(test_channels_last, "RNG", np.random.default_rng(4))  # with others, a value may move by a level
    x = np.random.default_rng(2).uniform(-1, 1, (2, CHANNELS, 8, 8)).astype(np.float32)
    net = network(bias, joined, bias, joined, shape=x.shape)
    model = quantize(ov.Core().read_model(*net.build()), [x])
    expected = ov.Core().compile_model(model, "CPU")([x])[0]
    found, plan = infer(model, [x], "NVIDIA", precision)
    assert is_close(found, expected, tolerance)
    assert [step.op for step in plan.steps].count("Copy") == 0


@pytest.mark.drawn(2)
@pytest.mark.parametrize("precision", ["f32", "f16"])
def test_yolo(precision: str, emulated: str) -> None:
    """Codes pass through Split, Concat, MaxPool and Interpolate: only the convolutions that nncf does not quantise, or
    that have five outputs, take values."""
    model = ov.Core().read_model(DATA / "yolo_int8" / "model.xml")
    expected = Expected.load(DATA / "yolo_int8" / "expected.npz")
    call = expected.calls[0]
    found, plan = infer(model, call.inputs, "NVIDIA", precision)
    assert is_close(found, call.outputs[0], expected.tolerance)
    convolutions = [step.inputs[0].type for step in plan.steps if step.op == "Convolution" and step.inputs[0]]
    assert (convolutions.count(ov.Type.i8), len(convolutions)) == (32, 35)
