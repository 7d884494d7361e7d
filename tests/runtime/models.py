"""Small models whose plans are known to the byte."""

from __future__ import annotations

import numpy as np

import ovgpu as ov
from tests.harness.ir import Dims, Net, feed, take


def compiled(net: Net) -> ov.CompiledModel:
    return ov.Core().compile_model(ov.read_model(*net.build()), "CPU")


def chain(shape: Dims = (2, 3)) -> Net:
    """Build relu(x + 1) * [1, 1, 1]: three elementwise steps."""
    net = Net("chain")
    x = net.parameter("f32", shape, "x")
    y = net.layer("Add", "opset1", [x, net.const(np.ones((1, 1), "f4"))], name="add")
    y = net.layer("Relu", "opset1", [y], name="relu")
    net.result(net.layer("Multiply", "opset1", [y, net.const(np.ones(3, "f4"))], name="mul"))
    return net


def reshaped() -> Net:
    """Build a Reshape of dense memory and an in-place Concat, which are views without copies."""
    net = Net("reshaped")
    x = net.parameter("f32", (2, 3), "x")
    y = net.layer("Relu", "opset1", [x], name="relu")
    z = net.layer("Sigmoid", "opset1", [x], name="sigmoid")
    joined = net.layer("Concat", "opset1", [y, z], {"axis": 0}, name="concat")
    flat = net.layer("Reshape", "opset1", [joined, net.const([12])], {"special_zero": False}, name="flat")
    net.result(flat)
    return net


def loop(steps: int | str = -1) -> Net:
    """Build h = tanh(h + x[t]) over the first axis, which returns every h."""
    body = Net("body")
    xi, h = body.parameter("f32", (1, 4), "xi"), body.parameter("f32", (1, 4), "h")
    t = body.layer("Tanh", "opset1", [body.layer("Add", "opset1", [xi, h], name="sum")], name="tanh")
    r = body.result(t)
    net = Net("loop")
    x = net.parameter("f32", (steps, 4), "x")
    y = net.tensor_iterator(
        body,
        [feed(x, xi, axis=0), feed(net.const(np.zeros((1, 4), "f4")), h)],
        [take(r, axis=0)],
        [(r, h)],
        name="iterate",
    )
    net.result(net.layer("Relu", "opset1", [y], name="relu"))
    return net


def stateful() -> Net:
    """Build s = s + x, also returned: one step that writes the variable's other buffer, and a copy to the output."""
    net = Net("stateful")
    x = net.parameter("f32", (1, 8), "x")
    s = net.read_value("s", "f32", (1, 8), net.const(np.zeros((1, 8), "f4")))
    y = net.layer("Add", "opset1", [s, x], name="add")
    net.assign("s", y)
    net.result(y)
    return net


def counted() -> Net:
    """Build range(max(x)) + 1, whose extent is computed, so that the host reads it back between two segments."""
    net = Net("counted")
    x = net.parameter("f32", (6,), "x")
    largest = net.layer("ReduceMax", "opset1", [x, net.const([0])], {"keep_dims": False}, name="max")
    stop = net.layer("Convert", "opset1", [largest], {"destination_type": "i64"}, outputs=["i64"], name="stop")
    found = net.layer("Range", "opset4", [net.const(0), stop, net.const(1)], {"output_type": "i64"}, name="range")
    net.result(net.layer("Add", "opset1", [found, net.const([1])], name="add"))
    return net


def branching() -> Net:
    """Build an eager step: x doubled, or its first half, by a computed condition."""
    net = Net("branching")
    x = net.parameter("f32", (4,), "x")
    total = net.layer("ReduceSum", "opset1", [x, net.const([0])], {"keep_dims": False}, name="total")
    positive = net.layer("Greater", "opset1", [total, net.const(0.0, "f32")], outputs=["boolean"], name="positive")
    then, other = Net("then"), Net("else")
    a, b = then.parameter("f32", (4,), "a"), other.parameter("f32", (4,), "b")
    doubled = then.result(then.layer("Add", "opset1", [a, a]))
    half = other.result(other.layer("Slice", "opset8", [b, *(other.const([v]) for v in (0, 2, 1, 0))]))
    y = net.if_(positive, then, other, [(x, a, b)], [(doubled, half)], name="choose")
    net.result(net.layer("Relu", "opset1", [y], name="relu"))
    return net
