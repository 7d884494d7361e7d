"""Decomposed norms become one layer: matched forms, and their values on both backends."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.ops.normalization.normalization import ScaledMVN
from tests.harness import judge
from tests.harness.ir import Net, Port

from .test_scale_norms import SHAPE, prepared, random, term


class DecomposedNet(Net):
    """Net of f32 layers, and parts of norms."""

    def op(self, type: str, *inputs: Port) -> Port:
        attrs = {"keep_dims": True} if type.startswith("Reduce") else {}
        port: Port = self.layer(type, "opset1", inputs, attrs)
        return port

    def number(self, value: float) -> Port:
        return self.const(np.float32(value))

    def mean(self, x: Port, *axes: int) -> Port:
        return self.op("ReduceMean", x, self.const(np.array(axes or (-1,), np.int64)))

    def plus_eps(self, x: Port, eps: float = 1e-2) -> Port:
        return self.op("Add", x, self.number(eps))


def centred(net: DecomposedNet, x: Port) -> Port:
    return net.op("Subtract", x, net.mean(x))


def _torch(net: DecomposedNet, x: Port) -> Port:
    d = centred(net, x)
    return net.op("Divide", d, net.op("Sqrt", net.plus_eps(net.mean(net.op("Power", d, net.number(2))))))


def _tensorflow(net: DecomposedNet, x: Port) -> Port:
    mean = net.mean(x)
    variance = net.mean(net.op("SquaredDifference", x, mean))
    root = net.op("Power", net.op("Add", net.number(1e-2), variance), net.number(-0.5))
    return net.op("Multiply", root, net.op("Subtract", x, mean))


def _reciprocal(net: DecomposedNet, x: Port) -> Port:
    d = centred(net, x)
    root = net.op("Sqrt", net.plus_eps(net.mean(net.op("Multiply", d, d))))
    return net.op("Multiply", d, net.op("Divide", net.number(1), root))


def _rms(net: DecomposedNet, x: Port) -> Port:
    root = net.op("Sqrt", net.plus_eps(net.mean(net.op("Power", x, net.number(2)))))
    return net.op("Multiply", x, net.op("Divide", net.number(1), root))


def _rms_of_two_axes(net: DecomposedNet, x: Port) -> Port:
    square = net.mean(net.op("Multiply", x, x), 2, -1)
    return net.op("Divide", x, net.op("Power", net.plus_eps(square), net.number(0.5)))


def _outside(net: DecomposedNet, x: Port) -> Port:
    d = centred(net, x)
    return net.op("Divide", d, net.plus_eps(net.op("Sqrt", net.mean(net.op("Multiply", d, d)))))


def _square_less_square(net: DecomposedNet, x: Port) -> Port:
    mean = net.mean(x)
    variance = net.op("Subtract", net.mean(net.op("Multiply", x, x)), net.op("Multiply", mean, mean))
    return net.op("Divide", net.op("Subtract", x, mean), net.op("Sqrt", net.plus_eps(variance)))


def _length(net: DecomposedNet, x: Port) -> Port:
    total = net.op("ReduceSum", net.op("Power", x, net.number(2)), net.const(np.array([1])))
    return net.op("Divide", x, net.op("Power", total, net.number(0.5)))


def _length_and_eps(net: DecomposedNet, x: Port) -> Port:
    total = net.op("ReduceSum", net.op("Multiply", x, x), net.const(np.array([-1])))
    return net.op("Divide", x, net.op("Sqrt", net.plus_eps(total)))


def _l2(net: DecomposedNet, x: Port) -> Port:
    return net.op("Divide", x, net.layer("ReduceL2", "opset4", [x, net.const(np.array([2, 3]))], {"keep_dims": True}))


PATTERNS = {
    "length": (_length, "NormalizeL2"),
    "length-and-eps": (_length_and_eps, "NormalizeL2"),
    "l2": (_l2, "NormalizeL2"),
    "torch": (_torch, "MVN"),
    "tensorflow": (_tensorflow, "MVN"),
    "reciprocal": (_reciprocal, "MVN"),
    "outside": (_outside, "MVN"),
    "square-less-square": (_square_less_square, "MVN"),
    "rms": (_rms, "RMS"),
    "rms-of-two-axes": (_rms_of_two_axes, "RMS"),
}


@pytest.mark.drawn(6)
@pytest.mark.parametrize("name", PATTERNS)
@pytest.mark.parametrize("scaled", [False, True])
def test_decomposed(name: str, device: str, scaled: bool) -> None:
    pattern, op = PATTERNS[name]
    net = DecomposedNet("norm")
    y = pattern(net, net.parameter("f32", (-1, 3, 4, 8), "x"))
    net.result(term(net, term(net, y, random(8)), random(8, seed=2), "Add") if scaled else y)
    found = [n.op.name for n in prepared(net).ops if n.op.name not in ("Parameter", "Result", "Constant")]
    assert found == [op, *(["Multiply", "Add"] if scaled and op == "NormalizeL2" else [])]
    agree(net, device, 2, 600, 0)


def moments(
    net: DecomposedNet, x: Port, axes: tuple[int, ...], scale: Port | None, shift: Port | None, negated: bool = False
) -> Port:
    """Normalise as TensorFlow's `batch_normalization`, or as Keras, which negates the mean."""
    mean = net.mean(x, *axes)
    variance = net.mean(net.op("SquaredDifference", x, mean), *axes)
    factor = net.op("Power", net.plus_eps(variance), net.number(-0.5))
    factor = factor if scale is None else net.op("Multiply", factor, scale)
    product = net.op("Multiply", x, factor)
    if negated:
        rest = net.op("Multiply", net.op("Negative", mean), factor)
        return net.op("Add", product, rest if shift is None else net.op("Add", rest, shift))
    rest = net.op("Multiply", mean, factor)
    if shift is None:
        return net.op("Subtract", product, rest)
    return net.op("Add", product, net.op("Subtract", shift, rest))


@pytest.mark.drawn(2)
@pytest.mark.parametrize("negated", [False, True])
@pytest.mark.parametrize(
    ("axes", "terms", "found"),
    [
        ((-1,), "both", ["MVN"]),
        ((-1,), "scale", ["MVN"]),
        ((-1,), "none", ["MVN"]),
        ((1, 2), "both", ["MVN", "Multiply", "Add"]),
        ((1, 2), "given", ["MVN", "Multiply", "Add"]),
    ],
)
def test_moments(axes: tuple[int, ...], terms: str, found: list[str], negated: bool, device: str) -> None:
    net = DecomposedNet("norm")
    x = net.parameter("f32", (-1, 3, 4, 8), "x")
    scale = shift = None
    if terms == "given":  # scale and shift are not constant
        scale = shift = net.op("Sin", net.mean(x, 1))
    elif terms != "none":
        scale, shift = net.const(random(8), "f32"), net.const(random(8), "f32") if terms == "both" else None
    net.result(moments(net, x, axes, scale, shift, negated))
    layers = [n.op.name for n in prepared(net).ops if n.op.name not in ("Parameter", "Result", "Constant")]
    assert [name for name in layers if name not in ("ReduceMean", "Sin")] == found
    agree(net, device, 2)


def agree(net: Net, device: str, *batches: int) -> None:
    """Assert that results equal OpenVINO's, for images [batch, 3, 4, 8]."""
    core, openvino = ov.Core(), judge.openvino().Core()
    compiled = core.compile_model(core.read_model(*net.build()), device)
    reference = openvino.compile_model(openvino.read_model(*net.build()), "CPU", judge.CONFIG)
    for rows in batches:
        x = random(rows, 3, 4, 8, seed=4)
        np.testing.assert_allclose(compiled([x])[0], reference([x])[0], 1e-5, 1e-5)


def _other_mean(net: DecomposedNet, x: Port) -> Port:
    d = net.op("Subtract", x, net.mean(x, 1))
    return net.op("Divide", d, net.op("Sqrt", net.plus_eps(net.mean(net.op("Power", d, net.number(2))))))


def _other_value(net: DecomposedNet, x: Port) -> Port:
    square = net.op("Power", net.op("Exp", x), net.number(2))
    return net.op("Divide", x, net.op("Sqrt", net.plus_eps(net.mean(square))))


def _cube(net: DecomposedNet, x: Port) -> Port:
    return net.op("Divide", x, net.op("Sqrt", net.plus_eps(net.mean(net.op("Power", x, net.number(3))))))


def _upside_down(net: DecomposedNet, x: Port) -> Port:
    return net.op("Divide", net.op("Sqrt", net.plus_eps(net.mean(net.op("Power", x, net.number(2))))), x)


def _channels(net: DecomposedNet, x: Port) -> Port:
    return net.op("Divide", x, net.op("Sqrt", net.plus_eps(net.mean(net.op("Power", x, net.number(2)), 1))))


def _reciprocal_below(net: DecomposedNet, x: Port) -> Port:
    square = net.plus_eps(net.mean(net.op("Power", x, net.number(2))))
    return net.op("Divide", x, net.op("Power", square, net.number(-0.5)))


def _sum_of_cubes(net: DecomposedNet, x: Port) -> Port:
    total = net.op("ReduceSum", net.op("Power", x, net.number(3)), net.const(np.array([1])))
    return net.op("Divide", x, net.op("Sqrt", total))


def _length_of_another(net: DecomposedNet, x: Port) -> Port:
    return net.op(
        "Divide", net.op("Exp", x), net.layer("ReduceL2", "opset4", [x, net.const(np.array([3]))], {"keep_dims": True})
    )


def _no_root(net: DecomposedNet, x: Port) -> Port:
    return net.op("Divide", x, net.plus_eps(net.mean(net.op("Power", x, net.number(2)))))


@pytest.mark.parametrize(
    "pattern",
    [_other_value, _cube, _upside_down, _channels, _reciprocal_below, _no_root, _sum_of_cubes, _length_of_another],
    ids=lambda f: f.__name__,
)
def test_other_patterns_stay(pattern: Any) -> None:
    net = DecomposedNet("norm")
    net.result(pattern(net, net.parameter("f32", SHAPE, "x")))
    assert {n.op.name for n in prepared(net).ops}.isdisjoint(("MVN", "RMS", "NormalizeL2"))


def test_minus_another_mean_is_an_rms_norm_of_the_difference() -> None:
    net = DecomposedNet("norm")
    net.result(_other_mean(net, net.parameter("f32", SHAPE, "x")))
    assert [n.op.name for n in prepared(net).ops if isinstance(n.op, ScaledMVN)] == ["RMS"]
