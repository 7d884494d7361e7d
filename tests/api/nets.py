"""Small models for the tests of the API, as (xml, weights)."""

from __future__ import annotations

from typing import Any

import numpy as np

import ovgpu
from tests.harness.ir import Net

IR = tuple[bytes, bytes]


def one(shape: Any = (2, 3), kind: str = "f32") -> IR:
    """Build out = |x|, or out = not x for booleans."""
    net = Net("one")
    x = net.parameter(kind, shape, "x")
    name = "LogicalNot" if kind == "boolean" else "Abs"
    net.result(net.layer(name, "opset1", [x], names=["out"]))
    return net.build()


def same(shape: Any = (2, 3), kind: str = "f32") -> IR:
    """Build out = x."""
    net = Net("same")
    net.result(net.layer("Identity", "opset16", [net.parameter(kind, shape, "x")], names=["out"]))
    return net.build()


def two() -> IR:
    """Build r = rr = relu(x), a = |y|."""
    net = Net("two")
    x, y = net.parameter("f32", (2, 3), "x"), net.parameter("i64", (-1,), "y")
    net.result(net.layer("Relu", "opset1", [x], names=["r", "rr"]))
    net.result(net.layer("Abs", "opset1", [y], names=["a"]))
    return net.build()


def total(shape: Any = (1, 3), kind: str = "f32", init: Any = None) -> IR:
    """Build s = v + x with the variable v set to s; v begins as zeros, or ``init``."""
    net = Net("total")
    x = net.parameter(kind, shape, "x")
    v = net.read_value("v", kind, shape, None if init is None else net.const(np.asarray(init, "f4")))
    s = net.layer("Add", "opset1", [v, x], names=["s"])
    net.assign("v", s)
    net.result(s)
    return net.build()


def slow(rows: int = 300) -> IR:
    """Build some milliseconds of work on x [n, 300]."""
    net = Net("slow")
    x = net.parameter("f32", (-1, rows), "x")
    for _ in range(4):
        x = net.layer(
            "MatMul", "opset1", [x, net.const(np.eye(rows, dtype="f4"))], {"transpose_a": False, "transpose_b": False}
        )
    net.result(x)
    return net.build()


def classifier() -> IR:
    """Build a classifier: images [n, 3, height, width] -> probabilities [n, 5]."""
    random = np.random.RandomState(2)
    net = Net("classifier")
    x = net.parameter("f32", (-1, 3, -1, -1), "images")
    scaled = net.layer("Multiply", "opset1", [x, net.const(random.uniform(1, 2, (1, 3, 1, 1)).astype("f4"))])
    active = net.layer("Sigmoid", "opset1", [scaled])
    pooled = net.layer("ReduceMean", "opset1", [active, net.const(np.array([2, 3]))], {"keep_dims": False})
    logits = net.layer(
        "MatMul",
        "opset1",
        [pooled, net.const(random.uniform(-9, 9, (3, 5)).astype("f4"))],
        {"transpose_a": False, "transpose_b": False},
    )
    net.result(net.layer("Softmax", "opset8", [logits], {"axis": 1}, names=["probabilities", "output"]))
    return net.build()


@ovgpu.register_op("RefuseNegative", "api_test_opset")
class RefuseNegative(ovgpu.Op):
    """Op that copies its input and fails for negative values."""

    def infer_specs(self, x: Any) -> Any:
        return (x,)

    def evaluate(self, xp: Any, x: Any) -> Any:
        if (x < 0).any():
            raise ovgpu.OpError("there are negative values")
        return (x + 0,)


def fragile() -> IR:
    """Build a model that sets v to v + x; the inference fails if the sum has negative values."""
    net = Net("fragile")
    v = net.read_value("v", "f32", (2,))
    s = net.layer("Add", "opset1", [v, net.parameter("f32", (2,), "x")])
    net.assign("v", s)
    net.result(net.layer("RefuseNegative", "api_test_opset", [s]))
    return net.build()
