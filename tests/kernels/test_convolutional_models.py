"""Convolutional networks on the emulated device: the layers that convolutions fuse, and the kernels that remain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.backends.cuda import rt
from tests.emulator import cudnn_emu
from tests.emulator import cupy_emu as cp
from tests.harness.ir import Net, Port
from tests.harness.models.drive import DATA
from tests.harness.without import without
from tests.passes.test_fuse_convolution_epilogues import (
    BIAS,
    CLAMP,
    GROUPS,
    NUMBERS,
    RELU,
    SWISH,
    layer,
    network,
    residual,
)

from .recorded import counted

IR = tuple[bytes, bytes]


@pytest.fixture(autouse=True)
def without_cudnn(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Disable cuDNN, which may be installed on a machine with a GPU."""
    monkeypatch.setattr(rt, "_cudnn", False)


@pytest.fixture(params=[False, True], ids=["own", "cuDNN"])
def cudnn(request: pytest.FixtureRequest, without_cudnn: None, monkeypatch: pytest.MonkeyPatch) -> bool:
    """Run with and without cuDNN: the installed one on a GPU, else an emulation."""
    if request.param:
        monkeypatch.setattr(rt, "_cudnn", cudnn_emu if cp.is_emulated else None)
        if rt.cudnn() is None:
            pytest.skip("cuDNN is not installed")
    return bool(request.param)


def kernels(model: tuple[Any, ...], device: str, *shape: int, precision: str = "f32") -> int:
    """Return the number of kernels of an inference, which is one launch, allocates nothing, and matches the CPU."""
    x = np.random.default_rng(2).uniform(-1, 1, shape).astype(np.float32)
    core, tolerance = ov.Core(), 1e-4 if precision == "f32" else 2e-2
    host = core.compile_model(core.read_model(*model), "CPU")
    compiled = core.compile_model(core.read_model(*model), device, {"INFERENCE_PRECISION_HINT": precision})
    expected = host([x])[0]
    request = compiled.create_infer_request()
    for _ in range(3):
        found, counters = counted(lambda: request.infer([x])[0])
        np.testing.assert_allclose(found, expected, tolerance, tolerance / 10)
    plan = request.plan()
    assert (counters.graph_launches, counters.launches, counters.allocs, plan.launches) == (1, 0, 0, 1)
    assert counters.graph_kernels == plan.kernels
    return plan.kernels


# ---- which layers


def silu(net: Net, _: Port, port: Port) -> Port:
    return net.layer("Multiply", "opset1", [port, net.layer("Sigmoid", "opset1", [port])])


def hard_swish(net: Net, _: Port, port: Port) -> Port:
    shifted = net.layer("Add", "opset1", [port, net.const(np.float32(3))])
    gate = net.layer("Clamp", "opset1", [shifted], {"min": 0, "max": 6})
    scaled = net.layer("Multiply", "opset1", [port, gate])
    return net.layer("Divide", "opset1", [scaled, net.const(np.float32(6))])


def gated(net: Net, _: Port, port: Port) -> Port:
    """Scale each channel by its mean, as a squeeze-and-excitation gate does."""
    axes = net.const(np.array([2, 3]))
    mean = net.layer("ReduceMean", "opset1", [port, axes], {"keep_dims": True})
    return net.layer("Multiply", "opset1", [port, mean])


@pytest.mark.drawn(2)
@pytest.mark.parametrize(("epilogues", "given", "count"), [
    ((BIAS, CLAMP), {}, 1), ((BIAS, silu, RELU), {}, 1), ((BIAS, hard_swish), GROUPS, 1),
    ((BIAS, residual, RELU), {}, 2), ((BIAS, RELU), {"shape": (2, 6, -1, -1)}, 1),
    ((layer("PRelu", [0.25]), BIAS), {}, 1), ((BIAS, gated), {}, 3), ((gated, BIAS), {}, 3),
    ((BIAS, SWISH), {"op": "ConvolutionBackpropData"}, 2), ((layer("Greater", 0.5),), {}, 2),
    ((layer("Add", np.ones((2, 2, 6, 7, 9))),), {}, 2),
])  # fmt: skip
def test_fused_layers(epilogues: Any, given: Any, count: int, emulated: str) -> None:
    assert kernels(network(*epilogues, **given).build(), emulated, 2, 6, 7, 9) == count


def test_two_convolutions_of_a_sum(emulated: str) -> None:
    """Both convolutions have a bias, and the later one adds the result of the other."""

    def both(net: Net, data: Port, port: Port) -> Port:
        weights = net.const(np.random.default_rng(3).uniform(-1, 1, (6, 6, 1, 1)), "f32")
        numbers = {"strides": "1,1", "dilations": "1,1", "pads_begin": "0,0", "pads_end": "0,0"}
        other = net.layer("Convolution", "opset1", [data, weights], numbers)
        return net.layer("Add", "opset1", [BIAS(net, data, other), port])

    assert kernels(network(BIAS, both, RELU).build(), emulated, 2, 6, 7, 9) == 3  # cuBLAS needs one for the sum


@pytest.mark.parametrize("kind", ["f16", "bf16"])
@pytest.mark.parametrize(("op", "kernel"), [
    ("Convolution", (16, 16, 3, 3)), ("GroupConvolution", (256, 1, 1, 3, 3)),
    ("GroupConvolutionBackpropData", (256, 1, 1, 3, 3)), ("ConvolutionBackpropData", (16, 16, 3, 3)),
])  # fmt: skip
def test_weights_of_16_bits(op: str, kernel: tuple[int, ...], kind: str, emulated: str) -> None:
    """In a model that computes in f32, such weights become f32 and cost no kernel."""

    def count(kind: str) -> int:
        net = Net()
        x = net.parameter("f32", (1, kernel[0], 5, 6))
        weights = net.const(np.random.default_rng(3).uniform(-1, 1, kernel), kind)
        if kind != "f32":
            weights = net.layer("Convert", "opset1", [weights], {"destination_type": "f32"}, ["f32"])
        net.result(RELU(net, x, net.layer(op, "opset1", [x, weights], NUMBERS)))
        return kernels(net.build(), emulated, 1, kernel[0], 5, 6)

    assert count(kind) == count("f32")


# ---- whole models


def resnet50(width: int, kind: str) -> IR:
    """Return ResNet-50 with 53 convolutions, ``width`` channels where it has 64, and weights of this type."""
    net, rng = Net("resnet50"), np.random.default_rng(1)
    x = net.parameter("f32", (1, 3, 32, 32))

    def convolution(
        x: Port, given: int, outputs: int, taps: int, stride: int = 1, more: Port | None = None, relu: bool = True
    ) -> Port:
        pads = f"{taps // 2},{taps // 2}"
        attrs = {"strides": f"{stride},{stride}", "dilations": "1,1", "pads_begin": pads, "pads_end": pads}
        weights = net.const(rng.normal(0, (2 / given) ** 0.5 / taps, (outputs, given, taps, taps)), kind)
        if kind != "f32":
            weights = net.layer("Convert", "opset1", [weights], {"destination_type": "f32"}, ["f32"])
        x = net.layer("Convolution", "opset1", [x, weights], attrs)
        x = net.layer("Add", "opset1", [x, net.const(rng.uniform(-1, 1, (1, outputs, 1, 1)), "f32")])
        x = x if more is None else net.layer("Add", "opset1", [x, more])
        return net.layer("Relu", "opset1", [x]) if relu else x

    x = convolution(x, 3, width, 7, 2)
    x, _ = net.layer("MaxPool", "opset8", [x], {"kernel": "3,3", "strides": "2,2", "dilations": "1,1", "axis": 0,
                                                "pads_begin": "1,1", "pads_end": "1,1"}, ["f32", "i64"])  # fmt: skip
    given = width
    for stage, blocks in enumerate((3, 4, 6, 3)):
        inner, outputs = width << stage, 4 * width << stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            more = x if block else convolution(x, given, outputs, 1, stride, relu=False)
            x = convolution(convolution(x, given, inner, 1), inner, inner, 3, stride)
            x = convolution(x, inner, outputs, 1, more=more)
            given = outputs
    x = net.layer("ReduceMean", "opset1", [x, net.const(np.array([2, 3]))], {"keep_dims": False})
    x = net.layer("MatMul", "opset1", [x, net.const(rng.normal(0, 0.1, (10, given)), "f32")], {"transpose_b": True})
    net.result(net.layer("Add", "opset1", [x, net.const(rng.uniform(-1, 1, (1, 10)), "f32")]))
    return net.build()


@pytest.mark.drawn(2)
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_resnet50(kind: str, cudnn: bool, emulated: str) -> None:
    """The kernels are 53 convolutions, two pools, and a product with its bias; f16 weights are the default. 33 of the
    convolutions are products of cuBLAS, each with a kernel for its epilogue, as f32 is exact."""
    assert kernels(resnet50(2, kind), emulated, 1, 3, 32, 32) == 56 + 33


@pytest.mark.emulator  # models with other numbers of channels have other kernels
@pytest.mark.parametrize("kind", ["f32", "f16"])
def test_resnet50_in_tf32(kind: str, emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """cuDNN computes all epilogues; a copy makes the channels of the image adjacent."""
    monkeypatch.setattr(rt, "_cudnn", cudnn_emu)
    assert kernels(resnet50(4, kind), "NVIDIA", 1, 3, 32, 32, precision="tf32") == 56 + 1


@pytest.mark.emulator
def test_resnet50_in_f16(emulated: str) -> None:
    """Without cuDNN, implicit GEMM computes convolutions and their epilogues, also the first one, whose three channels
    are filled up. Those of one pixel are products of cuBLAS and kernels for epilogues."""
    assert kernels(resnet50(8, "f32"), "NVIDIA", 1, 3, 32, 32, precision="f16") == 57 + 6


def test_decomposed_group_norms(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernels are a convolution and two norms, with Swish fused between them."""
    model = DATA / "decomposed_group_norms" / "model.xml"
    assert kernels((model,), emulated, 2, 3, 4, 5) == 3
    without(monkeypatch, "join_norms", "join_group_norms")
    assert kernels((model,), emulated, 2, 3, 4, 5) == 12


def test_mobilenet_v2(cudnn: bool, emulated: str) -> None:
    """The kernels are 52 convolutions, the mean, and a product with its bias. 34 convolutions are products of cuBLAS,
    each with a kernel for its epilogue; cuDNN runs the first convolution without its epilogue."""
    model = DATA / "mobilenet_v2" / "model.xml"
    assert kernels((model,), emulated, 1, 3, 48, 60) == 54 + 34 + cudnn


def test_convnext(emulated: str) -> None:
    """A layer norm of a leading channel axis is one kernel, and so are biases, scales and residuals on either side of
    a Transpose."""
    assert kernels((DATA / "convnext" / "model.xml",), emulated, 2, 3, 32, 44) == 45


def test_swin(emulated: str) -> None:
    """Each cyclic shift of image windows, and each shift back, is one kernel."""
    assert kernels((DATA / "swin" / "model.xml",), emulated, 2, 3, 32, 32) == 75
