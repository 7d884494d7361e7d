"""Writing IR: openvino reads our files, and the models compute the same as before."""

from __future__ import annotations

import re
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import pytest
from openvino import opset13 as ops

from ovgpu.errors import ModelError, OpError
from ovgpu.ir import read_model, save_model, serialize
from ovgpu.ir._constants import CHECKSUM_BYTES
from ovgpu.ops import Op, op
from tests.harness.ir import Net

from .models import MODELS, const, model_of, param, weights

CORE = ov.Core()
EXACT = {"INFERENCE_PRECISION_HINT": "f32"}
DATA = Path(__file__).parents[1] / "models" / "data"


def results(model: ov.Model, runs: int = 3) -> list[Any]:
    """Return outputs for random inputs, over several inferences of one request."""
    request = CORE.compile_model(model, "CPU", EXACT).create_infer_request()
    found = []
    for run in range(runs):
        rng = np.random.default_rng(run)
        inputs = []
        for port in model.inputs:
            shape = [d.get_length() if d.is_static else max(2, d.min_length) for d in port.partial_shape]
            inputs.append((rng.standard_normal(shape) * 3).astype(port.element_type.to_dtype()))
        request.infer(inputs)
        found += [np.array(t.str_data if t.element_type == ov.Type.string else t.data) for t in request.output_tensors]
    return found


def assert_same(ours: ov.Model, theirs: ov.Model) -> None:
    for a, b in zip(results(ours), results(theirs), strict=True):
        assert a.dtype == b.dtype and a.shape == b.shape
        np.testing.assert_array_equal(a, b)


def written(name: str, folder: Path) -> tuple[ov.Model, ov.Model]:
    """Write a model with ovgpu and with openvino, and read both files with openvino."""
    ov.serialize(MODELS[name](), folder / "theirs.xml")
    serialize(read_model(folder / "theirs.xml"), folder / "ours.xml")
    return CORE.read_model(folder / "ours.xml"), CORE.read_model(folder / "theirs.xml")


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", MODELS)
def test_round_trip(name: str, tmp_path: Path) -> None:
    ours, theirs = written(name, tmp_path)
    for a, b in zip(ours.inputs + ours.outputs, theirs.inputs + theirs.outputs, strict=True):
        assert (a.get_names(), a.partial_shape, a.element_type) == (b.get_names(), b.partial_shape, b.element_type)
    assert sorted(n.get_friendly_name() for n in ours.get_ops()) == sorted(
        n.get_friendly_name() for n in theirs.get_ops()
    )
    assert sorted(
        (n.get_type_name(), n.get_type_info().version_id, str(n.get_attributes())) for n in ours.get_ops()
    ) == sorted((n.get_type_name(), n.get_type_info().version_id, str(n.get_attributes())) for n in theirs.get_ops())
    assert_same(ours, theirs)


@pytest.mark.parametrize("name", MODELS)
def test_writing_again_changes_nothing(name: str, tmp_path: Path) -> None:
    written(name, tmp_path)
    serialize(read_model(tmp_path / "ours.xml"), tmp_path / "again.xml", tmp_path / "again.weights")
    assert (tmp_path / "again.xml").read_bytes() == (tmp_path / "ours.xml").read_bytes()
    assert (tmp_path / "again.weights").read_bytes() == (tmp_path / "ours.bin").read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "again.weights",
        "again.xml",
        "ours.bin",
        "ours.xml",
        "theirs.bin",
        "theirs.xml",
    ]


@pytest.mark.parametrize("name", ["bilstm", "gru", "lstm_state", "gpt2"])
def test_real_models(name: str, tmp_path: Path) -> None:
    serialize(read_model(DATA / name / "model.xml"), tmp_path / "m.xml")
    ours, theirs = CORE.read_model(tmp_path / "m.xml"), CORE.read_model(DATA / name / "model.xml")
    assert len(ours.get_ops()) == len(theirs.get_ops())
    assert [p.get_names() for p in ours.inputs + ours.outputs] == [
        p.get_names() for p in theirs.inputs + theirs.outputs
    ]
    CORE.compile_model(ours, "CPU")


# ---- details of the files


def test_dynamic_ranks(tmp_path: Path) -> None:
    x = ops.parameter(ov.PartialShape.dynamic(), ov.Type.dynamic)
    y = ops.parameter(ov.PartialShape([-1, ov.Dimension(2, 8)]), np.int32)
    ov.serialize(model_of([ops.relu(x), y], [x, y]), tmp_path / "theirs.xml")
    serialize(read_model(tmp_path / "theirs.xml"), tmp_path / "ours.xml")
    ours = CORE.read_model(tmp_path / "ours.xml")
    assert [str(p.partial_shape) for p in ours.inputs] == ["[...]", "[?,2..8]"]
    assert [p.element_type for p in ours.inputs] == [ov.Type.dynamic, ov.Type.i32]


def test_runtime_information(tmp_path: Path) -> None:
    ours, theirs = written("runtime_information", tmp_path)
    for path in (["nested", "bad name"], ["tree", "p", "q"], "flag"):
        assert ours.get_rt_info(path).value == theirs.get_rt_info(path).value
    assert ours.parameters[0].layout == ov.Layout("NC")
    for a, b in zip(ours.get_ordered_ops(), theirs.get_ordered_ops(), strict=True):
        ports = [(a, b), *zip(a.inputs(), b.inputs()), *zip(a.outputs(), b.outputs())]
        for left, right in ports:
            mine, yours = left.rt_info, right.rt_info
            assert {k: mine[k].value for k in mine if k.startswith("user")} == {
                k: yours[k].value for k in yours if k.startswith("user")
            }


def test_version_10_has_no_runtime_information(tmp_path: Path) -> None:
    ov.serialize(MODELS["runtime_information"](), tmp_path / "theirs.xml")
    serialize(read_model(tmp_path / "theirs.xml"), tmp_path / "ours.xml", version="IR_V10")
    text = (tmp_path / "ours.xml").read_text()
    assert '<net name="model" version="10">' in text and "user_data" not in text
    assert_same(CORE.read_model(tmp_path / "ours.xml"), CORE.read_model(tmp_path / "theirs.xml"))


def test_equal_constants_are_written_once(tmp_path: Path) -> None:
    values = np.arange(1000, dtype=np.float32)
    net = Net()
    x = net.parameter("f32", (1000,))
    for array in (values, values.copy(), values + 1, values):
        x = net.layer("Add", "opset1", [x, net.const(array)])
    net.result(x)
    serialize(read_model(*net.build()), tmp_path / "m.xml")
    assert (tmp_path / "m.bin").stat().st_size == 8000 + CHECKSUM_BYTES
    offsets = re.findall(r'offset="(\d+)"', (tmp_path / "m.xml").read_text())
    assert offsets == ["0", "0", "4000", "0"]


def test_constants_are_aligned(tmp_path: Path) -> None:
    net = Net()
    for array in (np.zeros(3, np.uint8), np.ones(2, np.float64), np.ones(1, np.float16), np.ones(3, np.int64)):
        net.result(net.const(array))
    serialize(read_model(*net.build()), tmp_path / "m.xml")
    assert re.findall(r'offset="(\d+)"', (tmp_path / "m.xml").read_text()) == ["0", "8", "24", "32"]


def test_attributes_that_the_op_does_not_know(tmp_path: Path) -> None:
    net = Net()
    net.result(net.layer("Relu", "opset1", [net.parameter("f32", (2,))], {"PrimitivesPriority": "cpu:ref"}))
    serialize(read_model(*net.build()), tmp_path / "m.xml")
    assert 'PrimitivesPriority="cpu:ref"' in (tmp_path / "m.xml").read_text()


def test_unsupported_ops(tmp_path: Path) -> None:
    net = Net()
    net.result(
        net.layer("Quux", "mine", [net.parameter("f32", (2, -1))], {"depth": 3, "mode": "a b"}, outputs=["i32", "f16"])[
            1
        ]
    )
    model = read_model(*net.build())
    serialize(model, tmp_path / "m.xml")
    again = read_model(tmp_path / "m.xml")
    assert [(n.op.name, n.op.version, n.get_attributes(), [str(p) for p in n.ports]) for n in again.ops] == [
        (n.op.name, n.op.version, n.get_attributes(), [str(p) for p in n.ports]) for n in model.ops
    ]


# ---- compression


def float_models() -> dict[str, ov.Model]:
    x = param(2, 3, name="x")
    y = ops.matmul(x, weights(3, 3), False, False)
    for values in (
        0.1,
        0.5,
        1e5,
        1 + 2**-13,
        1 + 2**-14,
        np.nan,
        [0.1, 0.2, 0.3],
        [1e5, 1, 2],
        [1e5, 1e6, 1e-9],
        [[0.1]],
        [65504.0, -1e9, 5e-8],
    ):
        y = ops.add(y, const(values))
    double = ops.convert(ops.constant(np.array([0.1, 0.2, 1e300])), np.float32)
    precise = const([0.1, 0.2, 0.3])
    precise.rt_info["precise_0"] = ""
    named = const([0.1, 0.2, 0.7])
    named.output(0).set_names({"constant"})
    quantized = ops.fake_quantize(ops.relu(x), const(0.1), const(1), const(0.1), const(1), 16)
    low = ops.multiply(ops.convert(ops.constant(np.ones((3, 3), np.int8)), np.float32), const([[0.1]] * 3))
    return {
        "plain": model_of([ops.add(ops.add(y, double), precise), named], [x]),
        "fake_quantize": model_of(ops.add(quantized, const([0.1, 0.2, 0.3])), [x]),
        "low_precision": model_of(ops.add(ops.matmul(x, low, False, False), const([0.1, 0.2, 0.3])), [x]),
        "half": model_of(
            ops.matmul(x, ops.convert(ops.constant(np.ones((3, 3), np.float16)), np.float32), False, False), [x]
        ),
        "body": MODELS["nested_bodies"](),
    }


@pytest.mark.parametrize("compress", [True, False])
@pytest.mark.parametrize("name", ["plain", "fake_quantize", "low_precision", "half", "body"])
def test_compression_to_f16_is_openvinos(name: str, compress: bool, tmp_path: Path) -> None:
    source = float_models()[name]
    ov.serialize(source, tmp_path / "source.xml")
    ov.save_model(source, tmp_path / "theirs.xml", compress)
    model = read_model(tmp_path / "source.xml")
    save_model(model, tmp_path / "ours.xml", compress)
    ours, theirs = CORE.read_model(tmp_path / "ours.xml"), CORE.read_model(tmp_path / "theirs.xml")
    kinds = [
        sorted((n.get_friendly_name(), n.get_type_name(), str(n.get_element_type())) for n in m.get_ops())
        for m in (ours, theirs)
    ]
    assert kinds[0] == kinds[1]
    found, expected = (
        sorted(
            re.findall(
                r'<layer id="\d+"( name="[^"]*" type="Const"[^>]*>\s*<data element_type='
                r'"[^"]*")',
                (tmp_path / f"{which}.xml").read_text(),
            )
        )
        for which in ("ours", "theirs")
    )
    assert [re.sub(r"\s+", " ", t) for t in found] == [re.sub(r"\s+", " ", t) for t in expected]
    assert_same(ours, theirs)


def test_compression_halves_the_file(tmp_path: Path) -> None:
    net = Net()
    x = net.parameter("f32", (1, 100))
    net.result(net.layer("MatMul", "opset1", [x, net.const(np.random.default_rng(0).random((100, 300), np.float32))]))
    model = read_model(*net.build())
    save_model(model, tmp_path / "half.xml")
    save_model(model, tmp_path / "full.xml", compress_to_fp16=False)
    sizes = [(tmp_path / name).stat().st_size - CHECKSUM_BYTES for name in ("half.bin", "full.bin")]
    assert sizes == [60_000, 120_000]
    assert [n.op.name for n in model.ops].count("Convert") == 0  # the model itself is unchanged


# ---- files


@pytest.mark.parametrize("kind", [str, Path, lambda p: str(p).encode()], ids=["str", "Path", "bytes"])
def test_paths(kind: Any, tmp_path: Path) -> None:
    model = read_model(DATA / "gru" / "model.xml")
    serialize(model, kind(tmp_path / "new" / "folder" / "m.xml"))
    assert sorted(p.name for p in (tmp_path / "new" / "folder").iterdir()) == ["m.bin", "m.xml"]
    serialize(model, kind(tmp_path / "m.xml"), kind(tmp_path / "w"))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["m.xml", "new", "w"]


def test_a_model_may_replace_its_own_files(tmp_path: Path) -> None:
    source = DATA / "gru" / "model.xml"
    for suffix in (".xml", ".bin"):
        (tmp_path / f"m{suffix}").write_bytes(source.with_suffix(suffix).read_bytes())
    model = read_model(tmp_path / "m.xml")
    save_model(model, tmp_path / "m.xml")
    serialize(model, tmp_path / "m.xml")
    assert_same(CORE.read_model(tmp_path / "m.xml"), CORE.read_model(source))


def test_failed_writing_leaves_no_files_behind(tmp_path: Path) -> None:
    net = Net()
    net.result(net.layer("Relu", "opset1", [net.parameter("f32", (2,))], name="n"))
    model = read_model(*net.build())
    with pytest.raises(ModelError, match=r"ends with \.xml, not to 'm\.onnx'"):
        serialize(model, tmp_path / "m.onnx")
    with pytest.raises(ModelError, match="IR version 'IR_V7'"):
        serialize(model, tmp_path / "m.xml", version="IR_V7")
    model.ops[1].set_friendly_name("nul\0")
    with pytest.raises(ModelError, match="characters that XML cannot hold"):
        serialize(model, tmp_path / "m.xml")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").touch()
    with pytest.raises(ModelError, match="cannot be written"):
        serialize(model, tmp_path / "file" / "m.xml")


def test_attributes_that_files_cannot_hold(tmp_path: Path) -> None:
    @op("Odd", "test")
    class Odd(Op):
        table: dict[str, int]

        def infer_specs(self, x: Any) -> Any:
            return (x,)

    net = Net()
    net.result(net.layer("Relu", "opset1", [net.parameter("f32", (2,))], name="n"))
    model = read_model(*net.build())
    model.ops[1].op = Odd(table={})
    with pytest.raises(OpError, match=r"^\[Odd\] an attribute of type dict cannot be written \(layer 'n', id 1\)$"):
        serialize(model, tmp_path / "m.xml")


def test_memory_is_not_doubled(tmp_path: Path) -> None:
    """A sparse file of 300 MB is compressed and written with much less memory."""
    count = 75_000_000
    layers = (
        f'<layer id="0" name="w" type="Const" version="opset1"><data element_type="f32" shape="{count}" '
        f'offset="0" size="{4 * count}"/><output><port id="0" precision="FP32"/></output></layer>'
        '<layer id="1" name="r" type="Result" version="opset1"><input><port id="0"/></input></layer>'
    )
    (tmp_path / "m.xml").write_text(
        f'<net name="m" version="11"><layers>{layers}</layers><edges><edge from-layer="0" '
        'from-port="0" to-layer="1" to-port="0"/></edges></net>'
    )
    with (tmp_path / "m.bin").open("wb") as file:
        file.truncate(4 * count)
    model = read_model(tmp_path / "m.xml")
    with allocating_less_than(100_000_000):
        save_model(model, tmp_path / "half.xml")
    assert (tmp_path / "half.bin").stat().st_size == 2 * count + CHECKSUM_BYTES


@contextmanager
def allocating_less_than(limit: int) -> Iterator[None]:
    """Assert that NumPy and Python allocate less than `limit` bytes, as measured by tracemalloc."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < limit
    finally:
        tracemalloc.stop()
