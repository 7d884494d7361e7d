"""Products of positions stay exact where others are rounded to TF32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.ops.matrix.matmul import ExactMatMul, MatMul
from ovgpu.passes import Target, prepare
from tests.harness.ir import Net, Port

DATA = Path(__file__).parents[1] / "models" / "data"
POSITIONS = np.array([[0, 1, 4095, 4097, 100_003]])


class Maker(Net):
    """Net with conversions to f32 and products."""

    def floats(self, x: Port) -> Port:
        port: Port = self.layer("Convert", "opset1", [x], {"destination_type": "f32"}, ["f32"])
        return port

    def product(self, a: Port, b: Port) -> Port:
        port: Port = self.layer("MatMul", "opset1", [a, b], {"transpose_a": False, "transpose_b": False}, ["f32"])
        return port

    def unary(self, op: str, x: Port, version: int = 1) -> Port:
        port: Port = self.layer(op, f"opset{version}", [x], {}, ["f32"])
        return port


def test_angles_of_positions(tf32_device: str) -> None:
    """Products of positions and frequencies are as exact as on the host, and so are their sines."""
    net = Maker("angles")
    frequencies = np.array([[[1.0], [0.1]]], np.float32)
    x = net.floats(net.parameter("i64", (1, 1, -1), "positions"))
    net.result(net.unary("Sin", net.product(net.const(frequencies), x)))
    core = ov.Core()
    model = core.read_model(*net.build())
    found, expected = (core.compile_model(model, device)([POSITIONS[None]])[0] for device in (tf32_device, "CPU"))
    np.testing.assert_allclose(found, expected, atol=1e-6)


@pytest.mark.parametrize(
    ("given", "exact"), [("i64", True), ("i32", True), ("u8", False), ("boolean", False), ("f32", False)]
)
def test_which_products_are_exact(given: str, exact: bool) -> None:
    """Products of integers with more than 8 bits are exact; pixels and floats may be rounded."""
    net = Maker("product")
    x = net.parameter(given, (1, 3, 4), "x")
    net.result(net.product(x if given == "f32" else net.floats(x), net.const(np.ones((4, 2), np.float32))))
    assert _products(ov.Core().read_model(*net.build())) == [ExactMatMul if exact else MatMul]


def test_rows_of_a_table_may_be_rounded() -> None:
    """An embedding is selected by integers, but it is not a number computed from them; neither is its sum with one."""
    net = Maker("embedding")
    ids = net.parameter("i64", (1, 3), "ids")
    rows = net.layer(
        "Gather",
        "opset8",
        [net.const(np.ones((9, 4), np.float32)), ids, net.const(np.array(0))],
        {"batch_dims": 0},
        ["f32"],
    )
    weights = net.const(np.ones((4, 4), np.float32))
    first = net.product(rows, weights)
    positions = net.floats(net.layer("Unsqueeze", "opset1", [ids, net.const(np.array(2))], {}, ["i64"]))
    net.result(
        net.product(net.layer("Add", "opset1", [first, positions], {"auto_broadcast": "numpy"}, ["f32"]), weights)
    )
    assert _products(ov.Core().read_model(*net.build())) == [MatMul, MatMul]


def test_a_range_is_exact() -> None:
    net = Maker("range")
    count = net.parameter("i64", (), "count")
    numbers = net.layer(
        "Range", "opset4", [net.const(np.array(0)), count, net.const(np.array(1))], {"output_type": "f32"}, ["f32"]
    )
    column = net.layer("Unsqueeze", "opset1", [numbers, net.const(np.array(1))], {}, ["f32"])
    net.result(net.product(column, net.const(np.ones((1, 4), np.float32))))
    assert _products(ov.Core().read_model(*net.build())) == [ExactMatMul]


@pytest.mark.parametrize("name", ["llama", "llama_int4_sym", "gemma2", "mixtral"])
def test_rotary_embeddings(name: str) -> None:
    """In decoders, the product of positions and frequencies is exact, and no other one is."""
    assert _products(ov.Core().read_model(DATA / name / "model.xml")).count(ExactMatMul) == 1


def _products(model: Any) -> list[type]:
    return [type(node.op) for node in prepare(model, Target("CUDA")).ops if isinstance(node.op, MatMul)]
