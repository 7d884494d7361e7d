"""Reshapes and Transposes between elementwise layers move before them where that costs nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from tests.harness.ir import Port, feed, take
from tests.passes.test_fuse_elementwise import Maker, fused, steps


def dense(net: Maker, *shape: int, width: int = 8) -> Port:
    """Add a product [rows, width] and a bias [1, width]."""
    x = net.op("product", "MatMul", net.parameter("f32", shape), net.const(np.eye(shape[-1], width, dtype="f4")))
    return net.op("bias", "Add", x, net.const(np.arange(width, dtype="f4")[None]))


def reshape(net: Maker, x: Port, *shape: int, name: str = "reshape") -> Port:
    return net.op(name, "Reshape", x, net.const(np.array(shape, np.int64)), special_zero=True)


def test_a_bias_and_a_residual_meet() -> None:
    net = Maker()
    y = reshape(net, dense(net, 6, 4), 2, 3, 8)
    assert net.done(net.op("sum", "Add", y, net.x(2, 3, 8))) == [
        "MatMul(product)",
        "Reshape(reshape)",
        "Fused(bias, sum)",
    ]
    model = fused(net)
    inputs = next(n for n in model.ops if n.op.name == "Fused").sources
    assert [s.spec.shape for s in inputs if s is not None] == [(2, 3, 8), (8,), (2, 3, 8)]
    x, z = np.random.default_rng(0).random((6, 4), "f4"), np.ones((2, 3, 8), "f4")
    expected = (np.pad(x, ((0, 0), (0, 4))) + np.arange(8, dtype="f4")).reshape(2, 3, 8) + z
    core = ov.Core()
    np.testing.assert_allclose(core.compile_model(core.read_model(*net.build()), "CPU")([x, z])[0], expected, 1e-6)


def test_several_layers_and_reshapes() -> None:
    net = Maker()
    y = net.op("e", "Exp", reshape(net, net.op("a", "Abs", dense(net, 6, 4)), 2, 3, 8, name="r1"))
    y = net.op("c", "Abs", reshape(net, y, 3, 2, 8, name="r2"))
    assert net.done(y)[-1] == "Fused(bias, a, e, c)"


def test_scalars_need_no_reshape() -> None:
    net = Maker()
    y = net.op("twice", "Multiply", net.op("s", "Softmax", net.x(6, 4), axis=1), net.const([[2.0]], "f32"))
    assert net.done(net.op("a", "Abs", reshape(net, y, 24))) == ["Softmax(s)", "Reshape(reshape)", "Fused(twice, a)"]


@pytest.mark.parametrize("extent", [6, -1])
def test_channels_that_come_last_and_first(extent: int, device: str) -> None:
    """A bias, a scale and a residual meet on either side of a Transpose, as in ConvNeXt."""
    net = Maker()
    x = net.parameter("f32", (2, extent, 5, 4))
    y = net.op("product", "MatMul", x, net.const(np.eye(4, 8, dtype="f4")))
    y = net.op("bias", "Add", y, net.const(np.arange(8, dtype="f4")))
    y = net.op("scale", "Multiply", net.const(np.arange(12, 20, dtype="f4").reshape(1, 1, 1, 8)), y)
    y = net.op("shift", "Add", y, net.const(np.arange(5, dtype="f4").reshape(5, 1)))
    y = net.op("gate", "Multiply", y, net.op("mean", "ReduceMean", x, net.const(np.array([1, 3])), keep_dims=True))
    y = net.op("turn", "Transpose", y, net.const(np.array([0, 3, 1, 2])))
    found = net.done(net.op("sum", "Add", net.x(2, 8, extent, 5), y))
    assert found[0] == "MatMul(product)" and found[-1] == "Fused(bias, scale, shift, gate, sum)", found
    core = ov.Core()
    a, b = np.random.default_rng(0).random((2, 6, 5, 4), "f4"), np.ones((2, 8, 6, 5), "f4")
    reference = np.pad(a, ((0, 0),) * 3 + ((0, 4),)) + np.arange(8, dtype="f4")
    reference = reference * np.arange(12, 20, dtype="f4") + np.arange(5, dtype="f4")[:, None]
    reference = (reference * a.mean((1, 3), keepdims=True)).transpose(0, 3, 1, 2) + b
    np.testing.assert_allclose(core.compile_model(core.read_model(*net.build()), device)([a, b])[0], reference, 1e-5)


def test_transposes_that_stay() -> None:
    """Transposes stay with operands of fewer axes, or in an unknown order."""
    net = Maker()
    order = net.const(np.array([1, 0, 2]))
    y = net.op("a", "Add", net.x(2, 3, 8), net.x(8))
    assert net.done(net.op("b", "Exp", net.op("t", "Transpose", y, order)))[-1] == "Exp(b)"
    net = Maker()
    y = net.op("t", "Transpose", net.op("a", "Abs", net.x(2, 3, 8)), net.parameter("i64", (3,)))
    assert net.done(net.op("b", "Exp", y))[-1] == "Exp(b)"


@pytest.mark.parametrize("reason", ["the last axis changes", "no elementwise user", "another user", "strided"])
def test_otherwise_they_stay(reason: str) -> None:
    net = Maker()
    if reason == "the last axis changes":
        net.done(net.op("c", "Abs", reshape(net, dense(net, 6, 4), 3, 16)))
    elif reason == "no elementwise user":
        net.done(net.op("c", "Softmax", reshape(net, dense(net, 6, 4), 2, 3, 8), axis=1))
    elif reason == "another user":
        y = dense(net, 6, 4)
        net.done(net.op("c", "Abs", reshape(net, y, 2, 3, 8)), net.op("s", "Softmax", y, axis=1))
    else:  # the Reshape of a transposed tensor would need a copy, and that of the result does not
        x = net.op("t", "Transpose", net.x(4, 6), net.const(np.array([1, 0])))
        net.done(net.op("c", "Abs", reshape(net, net.op("bias", "Exp", x), 2, 3, 4)))
    assert not any("Fused" in step for step in steps(fused(net))), steps(fused(net))


def test_dynamic_extents() -> None:
    """Reshapes to [batch * time, width] and back, as in exported decoders, move as well."""
    net = Maker()
    x = net.parameter("f32", (-1, -1, 8), "x")
    flat = net.op("flat", "Reshape", x, net.const(np.array([-1, 8], np.int64)), special_zero=False)
    y = net.op("product", "MatMul", flat, net.const(np.eye(8, dtype="f4")))
    y = net.op("bias", "Add", net.const(np.ones((1, 8), "f4")), y)
    shape = net.op("shape", "ShapeOf", x, version=3, kind="i64", output_type="i64")
    y = net.op("back", "Reshape", y, shape, special_zero=False)
    found = net.done(net.op("sum", "Add", y, x))
    assert found[-1] == "Fused(bias, sum)", found


def test_bodies() -> None:
    body = Maker("body")
    xi = body.parameter("f32", (1, 6, 4), "xi")
    y = reshape(body, body.op("a", "Exp", body.op("s", "Softmax", xi, axis=1)), 1, 24)
    r = body.result(body.op("b", "Abs", y))
    net = Maker("loop")
    x = net.parameter("f32", (5, 6, 4), "x")
    net.result(net.tensor_iterator(body, [feed(x, xi, axis=0)], [take(r, axis=0)], [], name="ti"))
    inner: Any = next(n for n in fused(net).ops if n.friendly_name == "ti").op
    assert steps(inner.body)[-1] == "Fused(a, b)"
