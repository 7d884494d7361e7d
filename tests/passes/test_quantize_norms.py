"""Norms that write the codes of their results: conditions of the fusion, and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.model import Model, all_nodes
from ovgpu.ops.fused.norm_codes import NormWithCodes
from ovgpu.passes import Target, prepare
from ovgpu.types import Type
from tests.harness.ir import Net, Port, feed, take

from . import test_fuse_add_norms
from .test_fuse_add_norms import SHAPE, random
from .test_quantize_layers import fake, weights

STEP = np.float32(0.05)


class Maker(test_fuse_add_norms.Maker):
    """Net with norms and quantised products."""

    def product(self, x: Port) -> Port:
        return self.op("MatMul", x, weights(self, SHAPE[-1], SHAPE[-1]), transpose_b=True)

    def quantized(self, x: Port, low: int = -128, step: Any = STEP) -> Port:
        return self.product(fake(self, x, low, step=step))


def prepared(net: Net, precision: Type = Type.f32) -> Model:
    return prepare(ov.Core().read_model(*net.build()), Target("CUDA", precision, multiplies_i8=lambda: True))


def steps(net: Net, precision: Type = Type.f32) -> list[str]:
    """Return the names of all layers but ports and constants, with the number of outputs if above 1."""
    hidden = ("Parameter", "Result", "Constant")
    return [
        n.op.name + f" {len(n.ports)}" * (len(n.ports) > 1)
        for n in prepared(net, precision).ops
        if n.op.name not in hidden
    ]


def judged(net: Net, *inputs: Any, device: str) -> None:
    """Assert that the device and the host agree, but for few elements that have another code."""
    core, exact = ov.Core(), {"INFERENCE_PRECISION_HINT": "f32"}
    model = core.read_model(*net.build())
    found, expected = (core.compile_model(model, name, exact)(inputs) for name in (device, "CPU"))
    for a, b in zip(found.to_tuple(), expected.to_tuple()):
        assert a.dtype == b.dtype and np.abs(a - b).max() < 0.05 * np.abs(b).max()
        assert np.mean(np.abs(a - b) > 1e-5 * np.abs(b).max()) < 0.02


def test_a_norm_alone(emulated: str) -> None:
    """Nothing but the codes is written."""
    net = Maker()
    net.result(net.quantized(net.norm(net.x()), low=-37))
    assert steps(net) == ["NormWithCodes", "MatMul"]
    judged(net, random(*SHAPE), device=emulated)


def test_a_norm_with_other_users(emulated: str) -> None:
    """The norm is the residual stream, as in BERT."""
    net = Maker()
    y = net.norm(net.x())
    net.result(net.norm(net.op("Add", net.quantized(y), y)))
    assert steps(net) == ["NormWithCodes 2", "MatMul", "MVN"]
    judged(net, random(*SHAPE), device=emulated)


def test_a_sum(emulated: str) -> None:
    """The sum is the residual stream; without other users it is not written."""
    net = Maker()
    total = net.op("Add", net.x(), net.x())
    net.result(net.op("Softmax", net.quantized(net.norm(total)), axis=1))
    net.result(net.op("Softmax", total, axis=1))
    assert sorted(steps(net)) == ["MatMul", "NormWithCodes 2", "Softmax", "Softmax"]
    judged(net, random(*SHAPE), random(*SHAPE), device=emulated)
    net = Maker()
    net.result(net.quantized(net.norm(net.op("Add", net.x(), net.x()))))
    assert steps(net) == ["NormWithCodes", "MatMul"]
    judged(net, random(*SHAPE), random(*SHAPE), device=emulated)


def test_factors(emulated: str) -> None:
    """Outliers are smoothed by factors before the quantisation."""
    net = Maker()
    y = net.norm(net.x())
    smoothed = net.op("Multiply", y, net.const(np.abs(random(1, 1, SHAPE[-1])) + 0.1))
    net.result(net.op("Add", net.quantized(smoothed), y))
    assert steps(net) == ["NormWithCodes 2", "MatMul"]
    judged(net, random(*SHAPE), device=emulated)


def test_two_quantisations(emulated: str) -> None:
    """A second one in other steps is a layer of its own."""
    net = Maker()
    y = net.norm(net.x())
    net.result(net.op("Add", net.quantized(y), net.quantized(y, step=2 * STEP)))
    assert sorted(steps(net)) == ["MatMul", "MatMul", "NormWithCodes 2", "Quantize"]
    judged(net, random(*SHAPE), device=emulated)


def test_halves(emulated: str) -> None:
    """In f16, a norm between sums of products and a quantisation is of 16 bits, and its codes are computed in f32."""
    net = Maker()
    y = net.norm(net.quantized(net.x()))
    for _ in range(2):
        y = net.norm(net.op("Add", net.quantized(y), y))
    net.result(net.product(y))
    found = prepared(net, Type.f16)
    kinds = [[port.spec.type for port in n.ports] for n in found.ops if isinstance(n.op, NormWithCodes)]
    assert kinds == 2 * [[Type.f16, Type.i8]]
    assert [n.op.name for n in found.ops].count("Convert") == 1  # of the result


def test_a_shape_that_is_asked_for() -> None:
    net = Maker()
    y = net.norm(net.x())
    net.result(net.quantized(y))
    net.result(net.layer("ShapeOf", "opset3", [y], {"output_type": "i64"}, ["i64"]))
    assert "NormWithCodes" in steps(net)


def test_names_move_along() -> None:
    net = Maker()
    total = net.layer("Add", "opset1", [net.x(), net.x()], names=["total"])
    net.result(net.quantized(net.norm(total)))
    net.result(net.op("Softmax", total, axis=1))
    (node,) = (n for n in prepared(net).ops if isinstance(n.op, NormWithCodes))
    assert [port.get_names() for port in node.ports] == [{"total"}, set()]


def test_bodies() -> None:
    body = Maker()
    xi = body.x(1, *SHAPE[1:])
    r = body.result(body.quantized(body.norm(xi)))
    net = Maker()
    net.result(net.tensor_iterator(body, [feed(net.x(), xi, axis=0)], [take(r, axis=0)], []))
    assert sum(isinstance(n.op, NormWithCodes) for n in all_nodes(prepared(net))) == 1


@pytest.mark.parametrize("reason", ["a sum of layers", "a factor per row", "a number", "no scale"])
def test_others_stay(reason: str) -> None:
    net = Maker()
    x = net.x()
    y = net.norm(x)
    if reason == "a sum of layers":
        y = net.op("Add", y, net.x())
    elif reason == "a factor per row":
        y = net.op("Multiply", y, net.const(random(1, SHAPE[1], 1)))
    elif reason == "a number":
        y = net.op("Multiply", y, net.const(np.float32(3)))
    else:
        y = net.op(
            "MVN", x, net.const(np.array([-1])), version=6, eps=1e-3, normalize_variance=True, eps_mode="inside_sqrt"
        )
    net.result(net.quantized(y))
    assert "NormWithCodes" not in " ".join(steps(net))
