"""Group norms with the elementwise layers after them in one kernel: conditions, and values bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.ops.normalization import _group_norm
from ovgpu.passes import Target, prepare
from tests.harness import judge
from tests.harness.ir import Net, Port, feed, take
from tests.harness.without import without

from .test_fuse_convolution_epilogues import RELU, SWISH, Epilogue, layer

SHAPE = (2, 6, 4, 5)
HIDDEN = ("Parameter", "Result", "Constant", "ReduceMean")


def normalised(net: Net, x: Port) -> Port:
    numbers = [net.const(np.random.default_rng(i).uniform(0.5, 2, 6), x.type) for i in range(2)]
    port: Port = net.layer("GroupNormalization", "opset12", [x, *numbers], {"num_groups": 3, "epsilon": 1e-3})
    return port


def network(*epilogues: Epilogue, shape: Any = SHAPE, kind: str = "f32") -> Net:
    net = Net("norm")
    x = net.parameter(kind, shape, "x")
    port = normalised(net, x)
    for epilogue in epilogues:
        port = epilogue(net, x, port)
    net.result(port)
    return net


def residual(net: Net, x: Port, port: Port) -> Port:
    return net.layer("Add", "opset1", [port, x])


def per_image(op: str) -> Epilogue:
    """Combine with a number per channel and image."""

    def epilogue(net: Net, x: Port, port: Port) -> Port:
        mean = net.layer("ReduceMean", "opset1", [x, net.const(np.array([2, 3]))], {"keep_dims": True})
        return net.layer(op, "opset1", [mean, port])

    return epilogue


def gate(net: Net, _: Port, port: Port) -> Port:
    return net.layer("Multiply", "opset1", [port, net.layer("Sigmoid", "opset1", [port])])


def per_channel(*shape: int) -> Epilogue:
    return layer("Multiply", np.linspace(-1, 2, 6).reshape(shape))


JOINED: dict[str, tuple[tuple[Epilogue, ...], int]] = {  # number of kernels, including those of means
    "swish": ((SWISH,), 1), "gate": ((gate,), 1), "residual": ((residual, RELU), 1),
    "film": ((per_image("Multiply"), per_image("Add"), SWISH), 3), "channels": ((per_channel(1, 6, 1, 1), SWISH), 1),
    "trailing": ((per_channel(6, 1, 1), RELU), 1), "number": ((layer("PRelu", [0.25]), layer("Add", 0.5)), 1),
    "all": ((per_image("Multiply"), residual, per_channel(6, 1, 1), layer("Clamp", min=-0.5, max=0.75)), 2),
}  # fmt: skip


def compiled(net: Net, device: str) -> Any:
    return ov.Core().compile_model(ov.Core().read_model(*net.build()), device).create_infer_request()


def draw(kind: str = "f32", shape: tuple[int, ...] = SHAPE) -> np.ndarray[Any, Any]:
    found: np.ndarray[Any, Any] = np.random.default_rng(5).uniform(-2, 3, shape).astype(getattr(ov.Type, kind).storage)
    return found


def steps(net: Net) -> list[str]:
    return [
        n.op.name for n in prepare(ov.Core().read_model(*net.build()), Target("CUDA")).ops if n.op.name not in HIDDEN
    ]


@pytest.mark.drawn(2)
@pytest.mark.parametrize("shape", [SHAPE, (-1, 6, -1, -1)], ids=["static", "dynamic"])
@pytest.mark.parametrize("name", JOINED)
def test_layers_that_join(name: str, shape: Any, emulated: str) -> None:
    epilogues, count = JOINED[name]
    net = network(*epilogues, shape=shape)
    assert steps(net) == ["GroupNormalization"]
    request, reference = compiled(net, emulated), judge.Judge(*net.build())
    for size in (SHAPE,) if shape == SHAPE else (SHAPE, (1, 6, 7, 9), (3, 6, 1, 1)):
        x = draw(shape=size)
        (expected,) = reference.expect([(x, "f32")])
        np.testing.assert_allclose(request.infer([x])[0], expected.array, 1e-5, 1e-5)
        assert request.plan().kernels == count


@pytest.mark.drawn(2)
@pytest.mark.parametrize("kind", ["f16", "bf16", "f64"])
@pytest.mark.parametrize("part", [8192, 10], ids=["whole", "parts"])
def test_bits(kind: str, part: int, emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Results equal those of two kernels, or of three if several blocks share a group: f16 and bf16 bit for bit, f64
    within the error of other contractions to FMA."""
    monkeypatch.setattr(_group_norm, "MIN_PART_ELEMENTS", part)
    net = network(*JOINED["all"][0], kind=kind)
    found = []
    for count in (1, 2):
        request = compiled(net, emulated)
        found.append(request.infer([draw(kind)])[0].copy())
        assert request.plan().kernels == 1 + count + (part == 10)
        without(monkeypatch, "fuse_group_norm_epilogues")
    if kind == "f64":
        np.testing.assert_allclose(*found, 1e-14, 1e-14)
    else:
        np.testing.assert_array_equal(found[0].view(np.uint16), found[1].view(np.uint16))


def used_twice(net: Net, _: Port, port: Port) -> Port:
    net.result(port)
    return RELU(net, _, port)


@pytest.mark.parametrize(
    "epilogue",
    [
        layer("Add", np.ones((4, 5))),
        layer("Add", np.ones((2, 1, 1, 1))),
        layer("Add", np.ones((2, 2, 6, 4, 5))),
        layer("Greater", 0.5),
        layer("SoftMax", axis=1),
        layer("Convert", destination_type="f16"),
        used_twice,
    ],
)
def test_layers_that_do_not_join(epilogue: Epilogue) -> None:
    assert len(steps(network(epilogue))) == 2


def test_the_number_of_tensors_is_limited() -> None:
    names = steps(network(*[per_image("Add")] * 4))
    assert names == ["GroupNormalization", "Add"]


def test_bodies() -> None:
    body = Net("body")
    xi = body.parameter("f32", (1, 6, 4, 5), "xi")
    r = body.result(SWISH(body, xi, normalised(body, xi)))
    net = Net("loop")
    net.result(net.tensor_iterator(body, [feed(net.parameter("f32", SHAPE, "x"), xi, axis=0)], [take(r, axis=0)], []))
    model = prepare(ov.Core().read_model(*net.build()), Target("CUDA"))
    inner: Any = next(n for n in model.ops if n.op.name == "TensorIterator").op
    assert [n.op.name for n in inner.body.ops if n.op.name not in HIDDEN] == ["GroupNormalization"]
