"""Attention that writes the codes of its results: conditions of the fusion, and values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ovgpu.model import all_nodes
from ovgpu.ops.fused.attention_codes import AttentionWithCodes
from ovgpu.types import Type
from tests.harness.ir import Net, Port, feed, take

from .test_quantize_layers import fake, weights
from .test_quantize_norms import judged, prepared, steps

SHAPE = (2, 2, 5, 16)  # batch, heads, queries and elements
COLUMNS = SHAPE[1] * SHAPE[3]
STEP = np.float32(0.02)


def draw(*shape: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(3).uniform(0.3, 2, shape).astype("f4")


class Maker(Net):
    """Net with an attention and a quantised product of its results."""

    def op(self, type: str, *inputs: Port, version: int = 1, **attrs: Any) -> Port:
        port: Port = self.layer(type, f"opset{version}", inputs, attrs)
        return port

    def attention(self, kind: str = "f32") -> Port:
        return self.op(
            "ScaledDotProductAttention", *(self.parameter(kind, SHAPE) for _ in range(3)), version=13, causal=False
        )

    def swapped(self, x: Port, order: tuple[int, ...] = (0, 2, 1, 3)) -> Port:
        return self.op("Transpose", x, self.const(np.array(order)))

    def merged(self, x: Port) -> Port:
        return self.op("Reshape", x, self.const(np.array([0, 0, -1])), special_zero=True)

    def product(self, x: Port, columns: int = COLUMNS) -> Port:
        return self.op("MatMul", x, weights(self, columns, columns), transpose_b=True)

    def quantized(self, x: Port, columns: int = COLUMNS) -> Port:
        return self.product(fake(self, x, -128, step=STEP), columns)


def inputs() -> list[Any]:
    return [np.random.default_rng(i).standard_normal(SHAPE).astype("f4") for i in range(3)]


def test_moved_results(emulated: str) -> None:
    """The codes of a head's rows lie beside those of the next head."""
    net = Maker()
    net.result(net.quantized(net.merged(net.swapped(net.attention()))))
    assert steps(net) == ["AttentionWithCodes", "Transpose", "Reshape", "MatMul"]
    judged(net, *inputs(), device=emulated)


def test_codes_in_front_of_moves(emulated: str) -> None:
    net = Maker()
    faked = fake(net, net.attention(), -128, step=STEP)
    net.result(net.product(net.merged(net.swapped(faked))))
    assert steps(net) == ["AttentionWithCodes", "Transpose", "Reshape", "MatMul"]
    judged(net, *inputs(), device=emulated)


@pytest.mark.parametrize("moves", [True, False])
def test_factors(moves: bool, emulated: str) -> None:
    """Outliers are smoothed by factors before the quantisation; those of moved results are reshaped."""
    net = Maker()
    y = net.attention()
    y = net.op(
        "Multiply",
        net.merged(net.swapped(y)) if moves else y,
        net.const(draw(*((1, 1, COLUMNS) if moves else (SHAPE[1], 1, SHAPE[3])))),
    )
    net.result(net.quantized(y, COLUMNS if moves else SHAPE[3]))
    assert steps(net) == ["AttentionWithCodes", *["Transpose", "Reshape"] * moves, "MatMul"]
    (node,) = (n for n in prepared(net).ops if isinstance(n.op, AttentionWithCodes))
    assert node.sources[-1] is not None and node.sources[-1].spec.shape == (SHAPE[1], 1, SHAPE[3])
    judged(net, *inputs(), device=emulated)


def test_halves(emulated: str) -> None:
    """In f16, results are rounded to f16 before they are multiplied and quantised."""
    net = Maker()
    smoothed = net.op("Multiply", net.merged(net.swapped(net.attention())), net.const(draw(1, 1, COLUMNS)))
    net.result(net.quantized(smoothed))
    found = [n for n in prepared(net, Type.f16).ops if isinstance(n.op, AttentionWithCodes)]
    assert [[port.spec.type for port in n.ports] for n in found] == [[Type.i8]]


def test_a_shape_that_is_asked_for() -> None:
    net = Maker()
    y = net.attention()
    net.result(net.quantized(net.merged(net.swapped(y))))
    net.result(net.layer("ShapeOf", "opset3", [y], {"output_type": "i64"}, ["i64"]))
    assert "AttentionWithCodes" in steps(net)


def test_bodies() -> None:
    body = Maker()
    xi = body.parameter("f32", (1, *SHAPE[1:]))
    y = body.op("ScaledDotProductAttention", xi, xi, xi, version=13, causal=False)
    r = body.result(body.quantized(y, SHAPE[3]))
    net = Maker()
    net.result(net.tensor_iterator(body, [feed(net.parameter("f32", SHAPE), xi, axis=0)], [take(r, axis=0)], []))
    assert sum(isinstance(n.op, AttentionWithCodes) for n in all_nodes(prepared(net))) == 1


@pytest.mark.parametrize(
    "reason",
    [
        "another user",
        "a user of the moved results",
        "a factor per query",
        "heads in another order",
        "an activation",
        "a factor that is computed",
    ],
)
def test_others_stay(reason: str) -> None:
    net = Maker()
    y = net.attention()
    order = (1, 2, 0, 3) if reason == "heads in another order" else (0, 2, 1, 3)
    moved = net.merged(net.swapped(y, order))
    if reason == "another user":
        net.result(net.op("Softmax", y, axis=1))
    elif reason == "a user of the moved results":
        net.result(net.op("Softmax", moved, axis=1))
    elif reason == "a factor per query":
        moved = net.op("Multiply", moved, net.const(draw(1, SHAPE[2], 1)))
    elif reason == "heads in another order":
        moved = net.op("Multiply", moved, net.const(draw(1, 1, COLUMNS)))
    elif reason == "an activation":
        moved = net.op("Relu", moved)
    else:
        moved = net.op("Multiply", moved, net.parameter("f32", (1, 1, COLUMNS)))
    net.result(net.quantized(moved))
    assert "AttentionWithCodes" not in " ".join(steps(net))
