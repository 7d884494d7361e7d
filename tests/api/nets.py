"""Small models for the tests of the API, as (xml, weights)."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.harness.ir import Net

IR = tuple[bytes, bytes]


def one(shape: Any = (2, 3), kind: str = "f32") -> IR:
    """out = |x|, or not x of booleans."""
    net = Net("one")
    x = net.parameter(kind, shape, "x")
    name = "LogicalNot" if kind == "boolean" else "Abs"
    net.result(net.layer(name, "opset1", [x], names=["out"]))
    return net.build()


def same(shape: Any = (2, 3), kind: str = "f32") -> IR:
    """out = x."""
    net = Net("same")
    net.result(net.layer("Identity", "opset16", [net.parameter(kind, shape, "x")], names=["out"]))
    return net.build()


def two() -> IR:
    """r = rr = relu(x), a = |y|."""
    net = Net("two")
    x, y = net.parameter("f32", (2, 3), "x"), net.parameter("i64", (-1,), "y")
    net.result(net.layer("Relu", "opset1", [x], names=["r", "rr"]))
    net.result(net.layer("Abs", "opset1", [y], names=["a"]))
    return net.build()


def total(shape: Any = (1, 3), kind: str = "f32", init: Any = None) -> IR:
    """s = v + x, and v becomes s; v begins as zeros, or ``init``."""
    net = Net("total")
    x = net.parameter(kind, shape, "x")
    v = net.read_value("v", kind, shape, None if init is None else net.const(np.asarray(init, "f4")))
    s = net.layer("Add", "opset1", [v, x], names=["s"])
    net.assign("v", s)
    net.result(s)
    return net.build()


def slow(rows: int = 300) -> IR:
    """Some milliseconds of work on x [n, 300]."""
    net = Net("slow")
    x = net.parameter("f32", (-1, rows), "x")
    for _ in range(4):
        x = net.layer("MatMul", "opset1", [x, net.const(np.eye(rows, dtype="f4"))],
                      {"transpose_a": False, "transpose_b": False})
    net.result(x)
    return net.build()
