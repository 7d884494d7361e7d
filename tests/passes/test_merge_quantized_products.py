"""Products of the same codes become one: conditions, and values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.model import Model, all_nodes
from ovgpu.ops.fused.quantized import QuantizedMatMulWithEpilogue
from ovgpu.passes import Target, prepare
from ovgpu.types import Type
from tests.harness.ir import Net, Port, feed, take

from .test_quantize_layers import fake, weights

WIDTH = 64
LOW = -128  # codes of signed numbers
RNG = np.random.default_rng(8)


def random(*shape: int) -> np.ndarray[Any, Any]:
    return RNG.uniform(-1, 1, shape).astype("f4")


class Maker(Net):
    """Net with the projections of attention."""

    def op(self, type: str, *inputs: Port, version: int = 1, **attrs: Any) -> Port:
        port: Port = self.layer(type, f"opset{version}", inputs, attrs)
        return port

    def x(self, *shape: int) -> Port:
        return self.parameter("f32", shape or (2, 5, WIDTH))

    def dense(self, x: Port, bias: bool = True, outputs: int = WIDTH) -> Port:
        y = self.op("MatMul", x, weights(self, outputs, WIDTH), transpose_b=True)
        return self.op("Add", y, self.const(random(1, 1, outputs))) if bias else y

    def heads(self, x: Port, size: int = 16) -> Port:
        y = self.op("Reshape", x, self.const(np.array([0, 0, -1, size])), special_zero=True)
        return self.op("Transpose", y, self.const(np.array([0, 2, 1, 3])))

    def attention(
        self,
        x: Port,
        biases: Sequence[bool] = (True, True, True),
        lows: Sequence[int | None] = (LOW, LOW, None),
        levels: Sequence[int] = (256, 256, 256),
    ) -> Port:
        """Add attention; queries, keys and values are quantised where ``lows`` has a number, in steps of their own."""
        parts = [self.dense(x, bias) for bias in biases]
        steps = (0.02, 0.03, 0.015)
        parts = [p if low is None else fake(self, p, low, n, s) for p, low, n, s in zip(parts, lows, levels, steps)]
        mixed = self.op("ScaledDotProductAttention", *map(self.heads, parts), version=13, causal=False)
        y = self.op("Transpose", mixed, self.const(np.array([0, 2, 1, 3])))
        return self.op("Reshape", y, self.const(np.array([0, 0, WIDTH])), special_zero=True)


def prepared(net: Net, precision: Type = Type.f32) -> Model:
    return prepare(ov.Core().read_model(*net.build()), Target("CUDA", precision, multiplies_i8=lambda: True))


def steps(net: Net, precision: Type = Type.f32) -> list[str]:
    """Return the names of the products, with those of their epilogues."""
    products = [n for n in prepared(net, precision).ops if n.op.name == "MatMul"]
    return [
        " ".join(getattr(layer.op, "name", "") for layer in getattr(n.op, "layers", ())) or "MatMul" for n in products
    ]


def judged(net: Net, *inputs: Any, device: str, precision: str = "f32") -> None:
    """Assert that the device and the host agree, but for few elements that have another code."""
    core = ov.Core()
    model = core.read_model(*net.build())
    found = core.compile_model(model, device, {"INFERENCE_PRECISION_HINT": precision})(inputs)[0]
    expected = core.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(inputs)[0]
    exact = 1e-5 if precision == "f32" else 1e-2
    assert np.abs(found - expected).max() < 0.05 * np.abs(expected).max()
    assert np.mean(np.abs(found - expected) > exact * np.abs(expected).max()) < 0.02


ONE = "MatMul Add Quantize Dequantize"


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    ("lows", "expected"),
    [
        ((LOW, LOW, None), {"f32": f"{ONE} Select", "f16": f"{ONE} Convert Select"}),
        ((None, LOW, LOW), {"f32": f"{ONE} Select", "f16": f"{ONE} Convert Select"}),
        ((LOW, LOW, LOW), {"f32": ONE, "f16": ONE}),
        ((-37, -37, -37), {"f32": ONE, "f16": ONE}),
        ((None, None, None), {"f32": "MatMul Add", "f16": "MatMul Add"}),
    ],
)
@pytest.mark.parametrize("precision", ["f32", "f16"])
def test_projections(lows: Sequence[int | None], expected: dict[str, str], precision: str, emulated: str) -> None:
    """Each result is in its own steps, or in none."""
    net = Maker()
    net.result(net.attention(fake(net, net.x(), LOW), lows=lows))
    assert steps(net, getattr(Type, precision)) == [expected[precision]]
    judged(net, 4 * random(2, 5, WIDTH), device=emulated, precision=precision)


@pytest.mark.parametrize("biases", [(True, False, True), (False, False, False)])
def test_some_biases(biases: Sequence[bool], emulated: str) -> None:
    net = Maker()
    net.result(net.attention(fake(net, net.x(), LOW), biases))
    (found,) = steps(net)
    assert ("Add" in found) is any(biases)
    judged(net, 4 * random(2, 5, WIDTH), device=emulated)


def test_dynamic_rows(emulated: str) -> None:
    net = Maker()
    net.result(net.attention(fake(net, net.x(-1, -1, WIDTH), LOW)))
    assert len(steps(net)) == 1
    judged(net, 4 * random(3, 2, WIDTH), device=emulated)


def test_names_move_along() -> None:
    net = Maker()
    x = fake(net, net.x(), LOW)
    y = net.layer("MatMul", "opset1", [x, weights(net, WIDTH, WIDTH)], {"transpose_b": True}, names=["first"])
    for part in (y, net.dense(x, False)):
        net.result(net.op("Transpose", part, net.const(np.array([1, 0, 2]))))
    found = [port.get_names() for n in prepared(net).ops if n.op.name == "VariadicSplit" for port in n.ports]
    assert found == [{"first"}, set()]


def test_bodies() -> None:
    body = Maker()
    xi = body.x(1, 5, WIDTH)
    r = body.result(body.attention(fake(body, xi, LOW)))
    net = Maker()
    net.result(net.tensor_iterator(body, [feed(net.x(), xi, axis=0)], [take(r, axis=0)], []))
    assert sum(isinstance(n.op, QuantizedMatMulWithEpilogue) for n in all_nodes(prepared(net))) == 1


@pytest.mark.parametrize("other", [{"lows": (LOW, -37, None)}, {"lows": (LOW, LOW, None), "levels": (256, 16, 256)}])
def test_other_codes_stay(other: dict[str, Any]) -> None:
    """Codes of all columns are clipped alike."""
    net = Maker()
    net.result(net.attention(fake(net, net.x(), LOW), **other))
    assert len(steps(net)) == 3


def test_gated_layers_stay() -> None:
    """Elementwise layers are the epilogues of the products."""
    net = Maker()
    x = fake(net, net.x(), LOW)
    gate = net.op("Swish", net.dense(x, False), version=4)
    net.result(net.op("Multiply", gate, net.dense(x, False)))
    assert steps(net) == ["MatMul", "MatMul Swish Multiply"]


def test_other_tensors_stay() -> None:
    net = Maker()
    for x in (net.x(), net.x()):
        net.result(net.op("Transpose", net.dense(fake(net, x, LOW)), net.const(np.array([1, 0, 2]))))
    assert len(steps(net)) == 2


def test_shared_weights_stay() -> None:
    net = Maker()
    x, shared = fake(net, net.x(), LOW), weights(net, WIDTH, WIDTH)
    for _ in range(2):
        y = net.op("MatMul", x, shared, transpose_b=True)
        net.result(net.op("Transpose", y, net.const(np.array([1, 0, 2]))))
    assert all("Select" not in step for step in steps(net))
