"""Epilogues of convolutions on the host: layers that join them, and their values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.ops.base import tasks
from ovgpu.ops.convolution import _columns
from ovgpu.passes import Target, prepare
from tests.harness import judge
from tests.harness.ir import Net, Port

Epilogue = Callable[[Net, Port, Port], Port]  # (net, data, convolution's result) -> result of a layer after it
NUMBERS = {"strides": "1,1", "dilations": "1,1", "pads_begin": "1,1", "pads_end": "1,1"}


@pytest.fixture(autouse=True, params=[1, 2], ids=["alone", "workers"])
def workers(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Share work among workers even where it is small."""
    monkeypatch.setattr(tasks, "WORKERS", request.param)
    for name, value in {"PARALLEL_PRODUCTS": 0, "MIN_OUTPUTS": 1, "FEW_PIXELS": 10}.items():
        monkeypatch.setattr(_columns, name, value)
    yield


def network(
    *epilogues: Epilogue,
    shape: Any = (2, 6, 7, 9),
    kernel: tuple[int, ...] = (6, 6, 3, 3),
    kind: str = "f32",
    op: str = "Convolution",
) -> Net:
    net = Net()
    data = net.parameter(kind, shape)
    weights = net.const(np.random.default_rng(1).uniform(-1, 1, kernel), kind)
    port = net.layer(op, "opset1", [data, weights], NUMBERS, name="convolution")
    for epilogue in epilogues:
        port = epilogue(net, data, port)
    net.result(port)
    return net


def layer(name: str, *others: Any, **attrs: Any) -> Epilogue:
    """Return an epilogue of a layer whose other operands are constants."""
    version = "opset4" if name == "Swish" else "opset1"
    return lambda net, _, port: net.layer(
        name, version, [port, *(net.const(np.asarray(v), port.type) for v in others)], attrs
    )


def residual(net: Net, data: Port, port: Port) -> Port:
    """Add a tensor that another layer computes."""
    return net.layer("Add", "opset1", [net.layer("Sigmoid", "opset1", [data]), port])


def square(net: Net, _: Port, port: Port) -> Port:
    return net.layer("Multiply", "opset1", [port, port])


BIAS = layer("Add", np.linspace(-1, 1, 6).reshape(1, 6, 1, 1))
CLAMP, SWISH, RELU = layer("Clamp", min=-0.5, max=0.75), layer("Swish"), layer("Relu")
GROUPS = {"op": "GroupConvolution", "kernel": (6, 1, 1, 3, 3)}
JOINED: list[tuple[tuple[Epilogue, ...], dict[str, Any]]] = [
    ((BIAS, CLAMP), {}),
    ((BIAS, residual, RELU), {}),
    ((BIAS, SWISH), {"kind": "f64"}),
    ((BIAS, SWISH), {"shape": (-1, 6, -1, 9)}),
    ((BIAS, CLAMP), GROUPS),
    ((BIAS, SWISH, residual), GROUPS | {"shape": (1, 6, 40, 31)}),
    ((BIAS, residual), {"kernel": (6, 6, 3, 3), "shape": (3, 6, -1, -1)}),
    ((BIAS, RELU), {"kernel": (6, 6, 1, 1), "shape": (3, 6, 5, 5)}),
    ((BIAS, RELU), {"op": "ConvolutionBackpropData"}),
    ((layer("Multiply", 2.5), layer("Swish", 0.7)), {}),
    ((layer("PRelu", np.linspace(-1, 1, 6)), BIAS), {"shape": (-1, 6, -1, 9)}),
    ((layer("PRelu", [0.25]), layer("Multiply", np.linspace(-1, 1, 63).reshape(7, 9))), {}),
]


def names(net: Net) -> list[str]:
    model = prepare(ov.Core().read_model(*net.build()), Target("CPU"))
    return [n.op.name for n in model.ops if n.op.name not in ("Parameter", "Result", "Constant", "Sigmoid")]


def infer(net: Net, *shape: int) -> None:
    kind = next(iter(net.parameters.values())).type
    x = np.random.default_rng(2).uniform(-1, 1, shape).astype(kind.replace("f", "float"))
    (expected,) = judge.Judge(*net.build()).expect([(x, kind)])
    compiled = ov.Core().compile_model(ov.Core().read_model(*net.build()), "CPU")
    for _ in range(2):
        np.testing.assert_allclose(compiled([x])[0], expected.array, 1e-5, 1e-5)


@pytest.mark.drawn(2)
@pytest.mark.parametrize(("epilogues", "given"), JOINED)
def test_layers_that_join(epilogues: tuple[Epilogue, ...], given: dict[str, Any]) -> None:
    net = network(*epilogues, **given)
    assert names(net) == ["Convolution"]
    infer(net, *(n if n > 0 else 5 for n in given.get("shape", (2, 6, 7, 9))))


@pytest.mark.parametrize(
    ("epilogue", "given"),
    [
        (BIAS, {"kind": "f16"}),
        (layer("Add", np.ones((7, 9))), {"shape": (-1, 6, -1, 9)}),
        (square, {}),
        (layer("Add", np.ones((2, 2, 6, 7, 9))), {}),
        (layer("Greater", 0.5), {}),
        (layer("SoftMax", axis=1), {}),
    ],
)
def test_layers_that_do_not_join(epilogue: Epilogue, given: dict[str, Any]) -> None:
    assert names(network(epilogue, **given))[0] == "Convolution"
    assert len(names(network(epilogue, **given))) == 2


def test_a_result_that_is_used_twice_stays() -> None:
    def twice(net: Net, data: Port, port: Port) -> Port:
        net.result(port)
        return BIAS(net, data, port)

    assert names(network(twice)) == ["Convolution", "Add"]


def test_the_plan_lists_the_layers() -> None:
    plan = ov.Core().compile_model(ov.Core().read_model(*network(BIAS, RELU).build()), "CPU").plan()
    assert [len(s.fused) for s in plan.steps if s.op == "Convolution"] == [3]
