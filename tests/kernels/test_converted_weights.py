"""Weights in f32 that the card converts to 16 bits: the same bits as on the host, and nothing held there twice."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ovgpu as ov
from ovgpu.backends.cuda import CudaBackend, transfer
from ovgpu.ops.base.lazy import Converted, Joined, LazyConstant
from ovgpu.ops.convert import ConvertDown
from ovgpu.types import Type
from tests.harness.ir import Net
from tests.harness.models.drive import DATA, Expected, replay

RNG = np.random.default_rng(7)
EDGES = [
    0.0,
    -0.0,
    1e6,
    -1e6,
    65504,
    65520,
    np.inf,
    -np.inf,
    np.nan,
    6e-8,
    2.9e-8,
    1e-40,
    3.4e38,
    1 + 2**-11,
    1 + 2**-8,
]
WIDTH = 768
PRECISION = "INFERENCE_PRECISION_HINT"
HALVES = [(Type.f16, np.dtype(np.float16)), (Type.bf16, np.dtype(ml_dtypes.bfloat16))]


def weights(rows: int, columns: int = 40) -> Any:
    values = RNG.standard_normal((rows, columns)).astype(np.float32)
    values.flat[: len(EDGES)] = np.array(EDGES, np.float64).astype(np.float32)
    return values


def bits(array: Any) -> Any:
    """Return the bits of numbers in 16 bits, the same ones for all NaNs."""
    return np.where(np.isnan(array.astype(np.float32)), np.uint16(0x7FFF), array.view(np.uint16))


@pytest.mark.emulator
@pytest.mark.parametrize("chunk", [4, 1000, 1 << 20])
@pytest.mark.parametrize(("element_type", "dtype"), HALVES)
def test_the_same_bits_as_on_the_host(
    element_type: Type,
    dtype: Any,
    chunk: int,
    backend: CudaBackend,
    monkeypatch: pytest.MonkeyPatch,
    uploads: list[int],
) -> None:
    monkeypatch.setattr(transfer, "CHUNK", chunk)
    op: Any = ConvertDown(destination_type=element_type)

    def converted(array: Any) -> Converted:
        return Converted(array, op, dtype)

    plain, half = weights(3), RNG.standard_normal((2, 40)).astype(dtype)
    values: list[Any] = [
        converted(weights(5)),
        plain,
        Joined([converted(weights(1)), half, converted(weights(2))], 0),
        half,
        Joined([plain, weights(2)], 0),
        Joined([converted(weights(3)), converted(weights(3, 8))], 1),
        converted(weights(4)).reshape(2, 80),
        converted(weights(6)[::2, ::-1]),
        converted(np.empty((0, 3), np.float32)),
    ]
    computed, compute = list[Any](), Joined.compute

    def noted(joined: Joined) -> Any:
        computed.append(joined)
        return compute(joined)

    monkeypatch.setattr(Joined, "compute", noted)
    arrays, copy = backend.constants(values)
    assert not uploads and not computed  # the host does not hold them all at a time
    copy()
    assert computed == [values[5]]  # other parts follow each other in memory
    for value, array in zip(values, arrays, strict=True):
        wanted = np.asarray(value)
        assert (array.shape, array.dtype) == (value.shape, value.dtype) == (wanted.shape, wanted.dtype)
        found = array.get()
        if value.dtype == np.float32:
            np.testing.assert_array_equal(found, wanted)
        else:
            np.testing.assert_array_equal(bits(found), bits(wanted))
    assert max(uploads) <= chunk
    assert np.isnan(arrays[0].get().astype(np.float32)).sum() == 1 and np.isinf(arrays[0].get()).sum() == 2


def written(folder: Path, transpose: bool = True) -> Path:
    """Write a model of three products of one tensor and one of their sum, which has its embedding's table."""
    net = Net()
    ids = net.parameter("i64", (1, 3), "ids")
    table, axis = net.const(RNG.standard_normal((900, WIDTH)).astype(np.float32) / 30), net.const(np.int64(0))
    x = net.layer("Gather", "opset8", [table, ids, axis], {"batch_dims": 0})
    options = {"transpose_a": False, "transpose_b": transpose}
    q, k, v = (
        net.layer("MatMul", "opset1", [x, net.const(RNG.standard_normal((WIDTH, WIDTH)).astype(np.float32))], options)
        for _ in range(3)
    )
    y = net.layer("Multiply", "opset1", [net.layer("Add", "opset1", [q, k]), v])
    net.result(net.layer("MatMul", "opset1", [y, table], {"transpose_a": False, "transpose_b": True}))
    xml, weights = net.build()
    (folder / "m.xml").write_bytes(xml)
    (folder / "m.bin").write_bytes(weights)
    return folder / "m.xml"


def large(compiled: ov.CompiledModel) -> list[tuple[Any, Any]]:
    """Return (constant of the host, array on the device) of the weights."""
    return [(value, array) for value, array in compiled._compilation.constants.values() if array.ndim == 2]


IDS = [np.array([[5, 899, 0]], np.int64)]


@pytest.mark.emulator
@pytest.mark.parametrize("transpose", [True, False])
@pytest.mark.parametrize("precision", ["f16", "bf16"])
def test_a_model(
    precision: str, transpose: bool, emulated: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, uploads: list[int]
) -> None:
    """Each weight is uploaded once in f32, and the results have the bits of weights that the host has converted."""
    xml = written(tmp_path, transpose)
    compiled = ov.Core().compile_model(xml, emulated, {PRECISION: precision})
    total = (900 + 3 * WIDTH) * WIDTH
    assert sum(array.nbytes for _, array in large(compiled)) == 2 * total
    assert all(isinstance(value, LazyConstant) for value, _ in large(compiled))
    in_f32 = total if transpose else 900 * WIDTH  # parts that are joined side by side are converted on the host
    assert 4 * in_f32 + 2 * (total - in_f32) <= sum(uploads) < 4 * in_f32 + 2 * (total - in_f32) + 1000
    found = compiled(IDS)[0]

    monkeypatch.setattr(sys.modules["ovgpu.passes.downcast"], "SMALL_BYTES", 1 << 40)  # the function has its name
    on_host = ov.Core().compile_model(xml, emulated, {PRECISION: precision})
    assert not any(isinstance(part, Converted) for value, _ in large(on_host) for part in getattr(value, "parts", ()))
    np.testing.assert_array_equal(found, on_host(IDS)[0])


@pytest.mark.emulator
def test_weights_of_the_runtime_model(emulated: str, tmp_path: Path) -> None:
    compiled = ov.Core().compile_model(written(tmp_path), emulated, {PRECISION: "f16"})
    data = [node.get_data() for node in compiled.get_runtime_model().get_ops() if hasattr(node.op, "value")]
    assert sum(type(array) is np.ndarray and array.dtype == np.float16 for array in data) == 2
    assert all(type(array) is np.ndarray for array in data)


@pytest.mark.emulator
def test_memory_that_can_be_written_is_converted_on_the_host(emulated: str, tmp_path: Path) -> None:
    """The caller may write to it after compiling, which has no effect."""
    xml = written(tmp_path)
    weights = np.fromfile(xml.with_suffix(".bin"), np.uint8)
    compiled = ov.Core().compile_model(ov.Core().read_model(xml.read_bytes(), weights), emulated, {PRECISION: "f16"})
    assert not any(isinstance(value, Converted) for value, _ in large(compiled))


@pytest.mark.emulator
@pytest.mark.parametrize("precision", ["f16", "f32"])
def test_a_file_that_was_cut_off(precision: str, emulated: str, tmp_path: Path) -> None:
    """Constants that are joined or converted at their upload lie in files that may have changed before it."""
    xml = written(tmp_path)
    model = ov.Core().read_model(xml)
    with xml.with_suffix(".bin").open("r+b") as file:
        file.truncate(10_000)
    with pytest.raises(ov.Error, match=r"m\.bin has changed since the model was read"):
        ov.Core().compile_model(model, emulated, {PRECISION: precision})


@pytest.mark.emulator
def test_a_table_that_the_host_reads_in_decode_steps(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here, that of relative positions, from which the host computes a mask."""
    calls, results = Expected.load(DATA / "t5_decoder" / "expected.npz").calls, []
    for small in (-1, 1 << 40):
        monkeypatch.setattr(sys.modules["ovgpu.passes.downcast"], "SMALL_BYTES", small)
        compiled = ov.Core().compile_model(DATA / "t5_decoder" / "model.xml", emulated, {PRECISION: "f16"})
        results.append(list(replay(compiled, calls)))
    for found, wanted in zip(*results, strict=True):
        np.testing.assert_array_equal(found, wanted)
