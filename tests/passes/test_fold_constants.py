"""Folding of constants, and of integers computed from shapes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.passes import prepare
from tests.harness.ir import Net

IGNORED = ("Parameter", "Result", "Constant")


@pytest.mark.parametrize(
    ("shape", "left"),
    [((2, 3, 4), ["Add"]), ((-1, 3, -1), ["Add"]), (None, ["ShapeOf", "ShapeOf", "Broadcast", "Reshape", "Add"])],
)
def test_integers_that_follow_from_shapes(shape: Any, left: list[str]) -> None:
    """A constant is reshaped to the rank of the data, as ONNX's frontend writes it."""
    net = Net()
    x = net.parameter("f32", shape)
    attrs = {"output_type": "i64"}
    rank = net.layer("ShapeOf", "opset3", [net.layer("ShapeOf", "opset3", [x], attrs, ["i64"])], attrs, ["i64"])
    ones = net.layer("Broadcast", "opset3", [net.const(np.int64(1)), rank], {"mode": "numpy"}, ["i64"])
    numbers = net.layer("Reshape", "opset1", [net.const(np.array([2.5], "f4")), ones], {"special_zero": False})
    net.result(net.layer("Add", "opset1", [x, numbers]))
    model = ov.Core().read_model(*net.build())
    assert [n.op.name for n in prepare(model).ops if n.op.name not in IGNORED] == left
    given = np.ones((2, 3, 4), np.float32)
    np.testing.assert_array_equal(ov.Core().compile_model(model, "CPU")([given])[0], given + 2.5)


@pytest.mark.parametrize(("shape", "left"), [((2, 3, 4), []), ((-1, 3, 4), ["ShapeOf"])])
def test_extents(shape: Any, left: list[str]) -> None:
    net = Net()
    net.result(net.layer("ShapeOf", "opset3", [net.parameter("f32", shape)], {"output_type": "i32"}, ["i32"]))
    model = ov.Core().read_model(*net.build())
    assert [n.op.name for n in prepare(model).ops if n.op.name not in IGNORED] == left
    found = ov.Core().compile_model(model, "CPU")([np.ones((2, 3, 4), np.float32)])[0]
    np.testing.assert_array_equal(found, np.array([2, 3, 4], np.int32))
