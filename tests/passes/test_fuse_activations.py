"""Decomposed activation functions become one layer: matched forms, unmatched forms, values on both backends."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.passes import simplify
from tests.harness import judge
from tests.harness.ir import Net, Port
from tests.harness.layers import i64

SHAPE = (2, 3, 8)


class Maths(Net):
    """Net of layers of one type."""

    def __init__(self, kind: str = "f32") -> None:
        super().__init__()
        self.kind = kind
        self.x = self.parameter(kind, (-1, *SHAPE[1:]), "x")

    def op(self, type: str, *inputs: Port | float, **attrs: Any) -> Port:
        ports = [x if isinstance(x, Port) else self.const(np.array(x, "f4"), self.kind) for x in inputs]
        port: Port = self.layer(type, "opset4" if type == "SoftPlus" else "opset1", ports, attrs)
        return port

    def mul(self, a: Port | float, b: Port | float) -> Port:
        return self.op("Multiply", a, b)

    def add(self, a: Port | float, b: Port | float) -> Port:
        return self.op("Add", a, b)

    def div(self, a: Port | float, b: Port | float) -> Port:
        return self.op("Divide", a, b)

    def erf(self, x: Port) -> Port:
        return self.op("Erf", x)

    def tanh(self, x: Port) -> Port:
        return self.op("Tanh", x)

    def reduce(self, type: str, x: Port, axis: int = -1, keep: bool = True) -> Port:
        port: Port = self.layer(type, "opset1", [x, i64(self, [axis])], {"keep_dims": keep})
        return port


def cubic(n: Maths, x: Port) -> Port:
    return n.add(x, n.mul(0.044715, n.op("Power", x, 3)))


def clipped(n: Maths, x: Port) -> Port:
    return n.op("Minimum", n.op("ReLU", n.add(x, 3)), 6)


def exp_of_negative(n: Maths, x: Port) -> Port:
    return n.add(1, n.op("Exp", n.op("Negative", x)))


def softmax(n: Maths, x: Port, axis: int = -1, most: bool = True) -> Port:
    e = n.op("Exp", n.op("Subtract", x, n.reduce("ReduceMax", x, axis)) if most else x)
    return n.div(e, n.reduce("ReduceSum", e, axis))


PATTERNS: dict[str, tuple[str, Any]] = {
    "bert": ("Gelu", lambda n, x: n.mul(n.mul(x, 0.5), n.add(1, n.erf(n.div(x, 1.4142135))))),
    "product of sum": ("Gelu", lambda n, x: n.mul(x, n.mul(n.add(n.erf(n.mul(x, sqrt(0.5))), 1), 0.5))),
    "half last": ("Gelu", lambda n, x: n.mul(0.5, n.mul(n.add(n.erf(n.mul(sqrt(0.5), x)), 1), x))),
    "divided by 2": ("Gelu", lambda n, x: n.div(n.mul(x, n.add(n.erf(n.div(x, sqrt(2))), 1)), 2)),
    "half inside": ("Gelu", lambda n, x: n.mul(n.add(0.5, n.mul(0.5, n.erf(n.div(x, sqrt(2))))), x)),
    "of a product": ("Multiply Gelu", lambda n, x: PATTERNS["bert"][1](n, n.mul(x, 3))),
    "tanh": ("Gelu", lambda n, x: n.mul(n.mul(0.5, x), n.add(1, n.tanh(n.mul(sqrt(2 / pi), cubic(n, x)))))),
    "tanh of a product": (
        "Gelu",
        lambda n, x: n.mul(
            x, n.mul(0.5, n.add(n.tanh(n.mul(n.mul(x, 0.79788456), n.add(1, n.mul(n.mul(0.044715, x), x)))), 1))
        ),
    ),
    "tanh of x * x * x": (
        "Gelu",
        lambda n, x: n.mul(
            n.mul(0.5, x), n.add(1, n.tanh(n.mul(sqrt(2 / pi), n.add(x, n.mul(0.044715, n.mul(n.mul(x, x), x))))))
        ),
    ),
    "swish": ("Swish", lambda n, x: n.mul(n.op("Sigmoid", x), x)),
    "quick gelu": ("Swish", lambda n, x: n.mul(x, n.op("Sigmoid", n.mul(x, 1.702)))),
    "swish by exp": ("Swish", lambda n, x: n.div(x, exp_of_negative(n, x))),
    "sigmoid": ("Sigmoid", lambda n, x: n.div(1, exp_of_negative(n, x))),
    "hswish": ("HSwish", lambda n, x: n.mul(x, n.div(clipped(n, x), 6))),
    "hswish at last": ("HSwish", lambda n, x: n.mul(n.mul(x, n.op("Clamp", n.add(3, x), min=0, max=6)), 1 / 6)),
    "hsigmoid": ("HSigmoid", lambda n, x: n.mul(n.op("Minimum", 6, n.op("Maximum", n.add(x, 3), 0)), 1 / 6)),
    "mish": ("Mish", lambda n, x: n.mul(x, n.tanh(n.op("SoftPlus", x)))),
    "mish by log": ("Mish", lambda n, x: n.mul(x, n.tanh(n.op("Log", n.add(n.op("Exp", x), 1))))),
    "softmax": ("Softmax", softmax),
    "softmax of channels": ("Softmax", lambda n, x: softmax(n, x, 1)),
    "softmax without maximum": ("Softmax", lambda n, x: softmax(n, x, most=False)),
}


def layers(net: Net) -> str:
    model = simplify(ov.Core().read_model(*net.build()))
    return " ".join(n.op.name for n in model.ops if n.op.name not in ("Parameter", "Constant", "Result"))


def build(pattern: Any, kind: str = "f32") -> Net:
    net = Maths(kind)
    net.result(pattern(net, net.x))
    return net


@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16"])
def test_found(name: str, kind: str) -> None:
    expected_layers, pattern = PATTERNS[name]
    assert layers(build(pattern, kind)) == expected_layers


@pytest.mark.drawn(2)
@pytest.mark.parametrize("name", PATTERNS)
def test_values(name: str, device: str) -> None:
    net = build(PATTERNS[name][1])
    x = np.random.default_rng(2).uniform(-7, 7, SHAPE).astype(np.float32)
    (expected,) = judge.Judge(*net.build()).expect([(x, "f32")])
    found = ov.Core().compile_model(ov.Core().read_model(*net.build()), device)([x])[0]
    np.testing.assert_allclose(found, expected.array, 1e-5, 2e-6)


OTHERS: dict[str, Any] = {
    "another factor": lambda n, x: n.mul(n.mul(x, 0.6), n.add(1, n.erf(n.div(x, sqrt(2))))),
    "another slope": lambda n, x: n.mul(n.mul(x, 0.5), n.add(1, n.erf(n.div(x, 1.5)))),
    "another sum": lambda n, x: n.mul(n.mul(x, 0.5), n.add(2, n.erf(n.div(x, sqrt(2))))),
    "of something else": lambda n, x: n.mul(n.mul(n.op("Abs", x), 0.5), n.add(1, n.erf(n.div(x, sqrt(2))))),
    "another cube": lambda n, x: n.mul(
        n.mul(0.5, x), n.add(1, n.tanh(n.mul(sqrt(2 / pi), n.add(x, n.mul(0.05, n.op("Power", x, 3))))))
    ),
    "a square": lambda n, x: n.mul(
        n.mul(0.5, x), n.add(1, n.tanh(n.mul(sqrt(2 / pi), n.add(x, n.mul(0.044715, n.op("Power", x, 2))))))
    ),
    "twice a swish": lambda n, x: n.mul(n.mul(2, x), n.op("Sigmoid", x)),
    "another gate": lambda n, x: n.mul(x, n.op("Sigmoid", n.op("Abs", x))),
    "between 0 and 5": lambda n, x: n.mul(x, n.div(n.op("Clamp", n.add(3, x), min=0, max=5), 6)),
    "over 5": lambda n, x: n.mul(x, n.div(clipped(n, x), 5)),
    "two axes": lambda n, x: n.div(n.op("Exp", x), n.reduce("ReduceSum", n.reduce("ReduceSum", n.op("Exp", x)), 1)),
    "less the least": lambda n, x: n.div(
        n.op("Exp", n.op("Subtract", x, n.reduce("ReduceMin", x))), n.reduce("ReduceSum", n.op("Exp", x))
    ),
    "another sum of powers": lambda n, x: n.div(n.op("Exp", x), n.reduce("ReduceSum", n.op("Exp", n.op("Abs", x)))),
    "1 less": lambda n, x: n.op("Log", n.op("Subtract", n.op("Exp", x), 1)),
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_stay(name: str) -> None:
    found = layers(build(OTHERS[name])).split()
    assert not {"Gelu", "Swish", "HSwish", "HSigmoid", "Mish", "SoftPlus", "Softmax"} & set(found)
