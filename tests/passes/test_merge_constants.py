"""Tied embeddings: equal weights of a file are one constant, and on the device once, whatever layers read them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import openvino.opset13 as op
import pytest

import ovgpu as ov
from ovgpu.passes.merge_constants import merge_constants
from tests.harness.ir import Net
from tests.harness.layers import add

ROWS, COLUMNS = 4096, 256  # constants of less than a megabyte may be folded with what reads them
RNG = np.random.default_rng(0)
FLOATS = RNG.standard_normal((ROWS, COLUMNS)) / 8
CODES = RNG.integers(0, 256, (ROWS, COLUMNS)).astype(np.uint8)
SCALES = (2.0 ** RNG.integers(-10, -7, (ROWS, 1))).astype(np.float16)  # so that f16 holds the products
NIBBLES = RNG.integers(0, 256, ROWS * COLUMNS // 2).astype(np.uint8)
GROUPS = [ROWS, COLUMNS // 64, 64]
GROUP_SCALES = (2.0 ** RNG.integers(-6, -3, (ROWS, COLUMNS // 64, 1))).astype(np.float16)


def in_f16() -> Any:
    return op.convert(op.constant(FLOATS.astype(np.float16)), "f32")


def in_8_bits() -> Any:
    codes = op.convert(op.constant(CODES), "f16")
    zero = op.convert(op.constant(np.full((ROWS, 1), 128, np.uint8)), "f16")
    return op.convert(op.multiply(op.subtract(codes, zero), op.constant(SCALES)), "f32")


def in_4_bits() -> Any:
    codes = op.constant(openvino.Tensor(NIBBLES, openvino.Shape(GROUPS), openvino.Type.i4))
    scaled = op.multiply(op.convert(codes, "f16"), op.constant(GROUP_SCALES))
    return op.convert(op.reshape(scaled, [ROWS, COLUMNS], False), "f32")


KINDS: dict[str, Callable[[], Any]] = {
    "f32": lambda: op.constant(FLOATS.astype(np.float32)),
    "f16": in_f16,
    "u8": in_8_bits,
    "i4": in_4_bits,
}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("precision", ["f32", "f16"])
@pytest.mark.parametrize("shared", [False, True], ids=["two", "shared"])
def test_tied_embedding(kind: str, precision: str, shared: bool, emulated: str, tmp_path: Path) -> None:
    """Constants take at most 1.01 of the file's bytes, and half of them if f32 becomes f16."""
    ids, make = op.parameter([1, -1], np.int64), KINDS[kind]
    table = make()
    head = table if shared else make()
    product = op.matmul(op.gather(table, ids, op.constant(0)), head, False, True)
    openvino.save_model(openvino.Model([product], [ids]), tmp_path / "model.xml", False)
    compiled = ov.Core().compile_model(tmp_path / "model.xml", emulated, {"INFERENCE_PRECISION_HINT": precision})
    exact = {"INFERENCE_PRECISION_HINT": "f32", "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    reference = openvino.Core().compile_model(tmp_path / "model.xml", "CPU", exact)
    tokens = np.array([[5, 7, 1000]])
    expected = reference(tokens)[0]
    error = np.abs(compiled(tokens)[0] - expected).max() / np.abs(expected).max()
    assert error < (1e-5 if precision == "f32" else 2e-3)
    on_device = {array.data.ptr: array.nbytes for _, array in compiled._compilation.constants.values()}
    file = (tmp_path / "model.bin").stat().st_size
    assert sum(on_device.values()) <= file * 1.01 / (2 if kind == "f32" and precision == "f16" else 1)


def test_what_is_merged() -> None:
    """Equal layers of one memory are merged, and no others: small constants, other ops, results and their names."""
    array, small = np.ones((64, 64), np.float16), np.ones(4, np.float16)
    net = Net()
    x = net.parameter("f32", (64, 64), "x")
    for factor, value in ((2.0, array), (2.0, array), (3.0, array), (2.0, array.copy())):
        table = net.layer("Convert", "opset1", [net.const(value)], {"destination_type": "f32"})
        scaled = net.layer("Multiply", "opset1", [table, net.const(np.float32(factor))])
        x = add(net, x, scaled)
    net.result(x)
    net.result(net.layer("Convert", "opset1", [net.const(array)], {"destination_type": "f32"}, names=["table"]))
    net.result(net.layer("Convert", "opset1", [net.const(small)], {"destination_type": "f32"}, names=["small"]))
    model = ov.read_model(*net.build())
    tables = [node for node in model.ops if getattr(node.op, "value", small).nbytes == array.nbytes]
    for node in tables[:3] + tables[4:]:
        node.op = tables[0].op
    merge_constants(model)
    names = [node.op.name for node in model.ops]
    assert names.count("Multiply") == 3 and names.count("Convert") == 4
    assert [set(port.get_names()) for port in model.outputs[1:]] == [{"table"}, {"small"}]
    request = ov.Core().compile_model(model, "CPU").create_infer_request()
    np.testing.assert_array_equal(request.infer([np.zeros((64, 64), np.float32)])[0], np.full((64, 64), 9.0))
