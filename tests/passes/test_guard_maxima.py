"""Sums of exponentials in logarithms, as frontends write them: infinite elements."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import ovgpu
from ovgpu.passes import prepare
from tests.harness import Net, judge
from tests.harness.elements import ELEMENTS
from tests.harness.ir import Port
from tests.harness.tolerance import TOLERANCE

INF, NAN = np.inf, np.nan
ROWS = np.array(
    [*product([-INF, -2.0, INF], repeat=4), [NAN, 1, 2, 3], [1, NAN, INF, 0], [-INF, NAN, -INF, 2], [9, 8, 7, 6]]
)
Build = Callable[[Net, Port], Port]


def layer(net: Net, op: str, *inputs: Port, version: str = "opset1", **attrs: Any) -> Port:
    found: Port = net.layer(op, version, inputs, attrs, [inputs[0].type])
    return found


def rows(net: Net, x: Port) -> Port:
    """Add logsumexp of the last axis, as for PyTorch and ONNX."""
    axis = net.const(np.array([1]))
    largest = layer(net, "ReduceMax", x, axis, keep_dims=True)
    total = layer(net, "ReduceSum", layer(net, "Exp", layer(net, "Subtract", x, largest)), axis, keep_dims=True)
    return layer(net, "Add", largest, layer(net, "Log", total))


def squeezed(net: Net, x: Port) -> Port:
    """Add logsumexp without the axis."""
    axis = net.const(np.array([1]))
    largest = layer(net, "ReduceMax", x, axis, keep_dims=True)
    total = layer(net, "ReduceSum", layer(net, "Exp", layer(net, "Subtract", x, largest)), axis, keep_dims=False)
    return layer(net, "Add", layer(net, "Log", total), layer(net, "Squeeze", largest, axis))


def unsqueezed(net: Net, x: Port) -> Port:
    """Add logsumexp whose maximum gets the axis back."""
    axis = net.const(np.array([1]))
    largest = layer(net, "ReduceMax", x, axis, keep_dims=False)
    shifted = layer(net, "Subtract", x, layer(net, "Unsqueeze", largest, axis))
    return layer(net, "Add", layer(net, "Log", layer(net, "ReduceSum", layer(net, "Exp", shifted), axis)), largest)


def pairs(net: Net, x: Port) -> Port:
    """Add logaddexp of neighbours."""
    a, b = net.layer("Split", "opset1", [x, net.const(np.array(1))], {"num_splits": 2}, [x.type] * 2)
    largest = layer(net, "Maximum", a, b)
    parts = [layer(net, "Exp", layer(net, "Subtract", part, largest)) for part in (a, b)]
    return layer(net, "Add", layer(net, "Log", layer(net, "Add", *parts)), largest)


def running(net: Net, x: Port) -> Port:
    """Add logcumsumexp."""
    axis = net.const(np.array(1))
    largest = layer(net, "ReduceMax", x, net.const(np.array([1])), keep_dims=True)
    shifted = layer(net, "Exp", layer(net, "Subtract", x, largest))
    return layer(net, "Add", layer(net, "Log", layer(net, "CumSum", shifted, axis, version="opset3")), largest)


def expected(build: Build, x: Any) -> Any:
    with np.errstate(all="ignore"):
        x = x.astype("f8")
        if build is pairs:
            return np.logaddexp(x[:, :2], x[:, 2:])
        if build is running:
            return np.logaddexp.accumulate(x, axis=1)
        return np.logaddexp.reduce(x, axis=1, keepdims=build is rows)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "f64"])
@pytest.mark.parametrize("build", [rows, squeezed, unsqueezed, pairs, running])
def test_infinities(build: Build, kind: str, device: str) -> None:
    """An infinite sum is infinite and a sum of nothing is minus infinity, as for torch, in all types."""
    net = Net()
    net.result(build(net, net.parameter(kind, ROWS.shape, "x")))
    x = ROWS.astype(ELEMENTS[kind].dtype)
    for hint in ("dynamic", "f32", "f16"):
        core, config = ovgpu.Core(), {"INFERENCE_PRECISION_HINT": hint}
        request = core.compile_model(core.read_model(*net.build()), device, config).create_infer_request()
        ((found, _),) = judge.infer(ovgpu, request, [(x, kind)])
        tolerance = max(TOLERANCE[kind], TOLERANCE["f16"] if hint == "f16" else TOLERANCE["f32"])
        np.testing.assert_allclose(found.astype("f8"), expected(build, x), tolerance, tolerance)


def test_other_maxima_stay() -> None:
    """A maximum that another layer reads, that is not subtracted, or of tensors that the sum lacks, keeps its value."""
    for extra in ("read", "another", "of another"):
        net = Net()
        x = net.parameter("f32", (4, 3))
        axis = net.const(np.array([1]))
        source = net.parameter("f32", (4, 3)) if extra == "of another" else x
        largest = layer(net, "ReduceMax", source, axis, keep_dims=True)
        other = layer(net, "ReduceMin", x, axis, keep_dims=True) if extra == "another" else largest
        total = layer(net, "ReduceSum", layer(net, "Exp", layer(net, "Subtract", x, other)), axis, keep_dims=True)
        net.result(layer(net, "Add", largest, layer(net, "Log", total)))
        if extra == "read":
            net.result(largest)
        names = [node.op.name for node in prepare(ovgpu.Core().read_model(*net.build())).ops]
        assert "IsFinite" not in names
