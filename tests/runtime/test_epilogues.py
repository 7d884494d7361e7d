"""Steps with epilogues: their layers in plans and errors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from tests.harness.ir import Net, Port
from tests.harness.layers import numbers


def layer(net: Net, name: str, kind: str, *inputs: Port, version: int = 1, **attrs: Any) -> Port:
    port: Port = net.layer(kind, f"opset{version}", inputs, attrs, name=name)
    return port


def convolution(net: Net) -> Port:
    pads = {"strides": (1, 1), "dilations": (1, 1), "pads_begin": (1, 1), "pads_end": (1, 1)}
    x, kernel = net.parameter("f32", (1, -1, 4, 4)), net.const(numbers(4, 3, 3, 3))
    return layer(net, "first", "Convolution", x, kernel, **pads)


def product(net: Net) -> Port:
    y = layer(net, "first", "MatMul", net.parameter("f32", (1, -1)), net.const(numbers(3, 4)))
    return layer(net, "bias", "Add", y, net.const(numbers(1, 4)))


def group_norm(net: Net) -> Port:
    x = net.parameter("f32", (1, -1, 4))
    return layer(
        net,
        "first",
        "GroupNormalization",
        x,
        net.const(numbers(3)),
        net.const(numbers(3)),
        version=12,
        num_groups=3,
        epsilon=1e-3,
    )


@pytest.mark.parametrize(
    ("build", "shape", "message"),
    [
        (convolution, (1, 5, 4, 4), r"\[Convolution\] the data has 5 channels, the kernel takes 3"),
        (product, (1, 5), r"\[MatMul\] matrices of 5 columns and 3 rows do not multiply"),
        (group_norm, (1, 6, 4), r"\[GroupNormalization\] 6 channels have 3 numbers"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_plans_and_errors_name_all_layers(
    build: Callable[[Net], Port], shape: tuple[int, ...], message: str, device: str
) -> None:
    net = Net()
    net.result(layer(net, "relu", "ReLU", build(net)))
    model = ov.Core().compile_model(ov.Core().read_model(*net.build()), device)
    good = (1, 3, *shape[2:])
    request = model.create_infer_request()
    request.infer([np.ones(good, "f4")])
    (step,) = (s for s in request.plan().steps if s.layer == "relu" and s.kind == "bound")
    with pytest.raises(ov.OpError, match=rf"^{message} \(layer 'first', id "):
        request.infer([np.ones(shape, "f4")])
    if step.fused:
        assert step.fused[0] == "first" and step.fused[-1] == "relu"
        with ov.STOP_AT("first"), pytest.raises(ov.Error, match="it is one step with 'relu'"):
            request.infer([np.ones(good, "f4")])
    else:
        assert device == "CPU" and build is not convolution
