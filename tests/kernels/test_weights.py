"""Constants on the device: uploaded once, when the model is compiled, in one block of memory."""

from __future__ import annotations

import gc
from contextlib import nullcontext
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import ovgpu as ov
from ovgpu.backends.cuda import CudaBackend, transfer
from ovgpu.backends.cuda.blas import WORKSPACE_BYTES, WORKSPACE_VARIABLE
from tests.api import nets
from tests.emulator import cupy_emu as cp
from tests.emulator import memory
from tests.harness.ir import Net
from tests.harness.models.drive import DATA, Decoder
from tests.harness.models.spec import spec_tensor_iterator

RNG = np.random.default_rng(3)
WEIGHTS = [RNG.uniform(-1, 1, shape).astype(np.float32) for shape in ((3, 7), (1, 7), (7, 5), (5,))]


def mlp() -> Net:
    net = Net("mlp")
    x = net.parameter("f32", (-1, 3), "x")
    for weight, bias in (WEIGHTS[:2], WEIGHTS[2:]):
        x = net.layer("MatMul", "opset1", [x, net.const(weight)], {"transpose_a": False, "transpose_b": False})
        x = net.layer("Add", "opset1", [x, net.const(bias)])
    net.result(x)
    return net


@pytest.mark.emulator
def test_compiling_uploads_them_once(emulated: str, uploads: list[int]) -> None:
    core = ov.Core()
    model = core.read_model(*mlp().build())
    cp.counters.reset()
    compiled = core.compile_model(model, emulated)
    assert len(uploads) == 1 and cp.counters.allocs <= 2
    held = sum(-(-w.nbytes // 256) * 256 for w in WEIGHTS)
    assert held - 256 < uploads[0] <= held
    x = RNG.uniform(-1, 1, (2, 3)).astype(np.float32)
    wanted = (x @ WEIGHTS[0] + WEIGHTS[1]) @ WEIGHTS[2] + WEIGHTS[3]
    for request in (compiled.create_infer_request(), compiled.create_infer_request()):
        for _ in range(3):
            np.testing.assert_allclose(request.infer([x])[0], wanted, rtol=1e-5)
    assert uploads[1:] == [x.nbytes] * 6
    constants = [array for _, array in compiled._compilation.constants.values()]
    assert len({array.data.mem.ptr for array in constants}) == 1
    assert all((array.data.ptr - array.data.mem.ptr) % 256 == 0 for array in constants)


@pytest.mark.emulator
def test_constants_of_bodies(emulated: str, uploads: list[int]) -> None:
    core = ov.Core()
    compiled = core.compile_model(core.read_model(*spec_tensor_iterator(3)), emulated)
    at_compile = len(uploads)
    inputs = [RNG.uniform(-1, 1, shape).astype(np.float32) for shape in ((1, 25, 512), (1, 256), (1, 256))]
    request = compiled.create_infer_request()
    for _ in range(2):
        request.infer(inputs)
    assert sorted(uploads[at_compile:]) == sorted([x.nbytes for x in inputs] * 2)


@pytest.mark.emulator
@pytest.mark.parametrize("chunk", [64, 100, 256, 1000, 1 << 20])
def test_chunks(chunk: int, backend: CudaBackend, monkeypatch: pytest.MonkeyPatch, uploads: list[int]) -> None:
    monkeypatch.setattr(transfer, "CHUNK", chunk)
    values = [
        RNG.integers(0, 255, n).astype(kind)
        for n, kind in (
            (1, np.uint8),
            (300, np.uint8),
            (0, np.float32),
            (77, np.float32),
            (3, ml_dtypes.bfloat16),
            (40, np.int64),
        )
    ]
    values += [np.array(3.5), np.array([True, False]), np.arange(24.0).reshape(4, 6).T, np.arange(9)[::-2]]
    found, copy = backend.constants(values)
    assert not uploads
    copy()
    for value, array in zip(values, found, strict=True):
        np.testing.assert_array_equal(array.get(), value)
        assert (array.shape, array.dtype) == (value.shape, value.dtype) and array.flags.c_contiguous
    assert max(uploads) <= chunk


@pytest.mark.emulator
def test_no_constants(backend: CudaBackend, uploads: list[int]) -> None:
    none, copy = backend.constants([])
    copy()
    assert not none and not uploads
    (empty,), _ = backend.constants([np.zeros((2, 0), np.float32)])
    assert empty.shape == (2, 0) and not uploads


@pytest.mark.emulator
def test_a_mapped_file_is_read_in_place(emulated: str, tmp_path: Path, uploads: list[int]) -> None:
    xml, weights = mlp().build()
    (tmp_path / "m.xml").write_bytes(xml)
    (tmp_path / "m.bin").write_bytes(weights)
    core = ov.Core()
    compiled = core.compile_model(core.read_model(tmp_path / "m.xml"), emulated)
    x = RNG.uniform(-1, 1, (4, 3)).astype(np.float32)
    wanted = (x @ WEIGHTS[0] + WEIGHTS[1]) @ WEIGHTS[2] + WEIGHTS[3]
    np.testing.assert_allclose(compiled([x])[0], wanted, rtol=1e-5)
    assert len(uploads) == 2


@pytest.mark.emulator
def test_the_slab_is_freed_with_the_model(emulated: str) -> None:
    core = ov.Core()
    gc.collect()
    before = memory.used_bytes()
    compiled = core.compile_model(core.read_model(*nets.classifier()), emulated)
    request = compiled.create_infer_request()
    request.infer([np.ones((1, 3, 4, 4), np.float32)])
    assert memory.used_bytes() > before
    del request, compiled
    gc.collect()
    assert memory.used_bytes() == before


def test_memory_by_purpose(emulated: str) -> None:
    """The parts are those of this model and its requests, and add up to what the process holds."""
    core = ov.Core()
    compiled = core.compile_model(core.read_model(DATA / "llama" / "model.xml"), emulated)

    def held() -> dict[str, int]:
        found = compiled.memory_held(by_purpose=True)
        assert sum(found.values()) - found["graphs"] <= compiled.memory_held() <= sum(found.values())
        return found

    before = held()
    weights = (DATA / "llama" / "model.bin").stat().st_size
    assert 0.99 * weights <= before["constants"] <= 1.01 * weights
    assert not any(before[name] for name in ("arenas", "states", "workspaces", "graphs"))
    decoders = [Decoder(compiled) for _ in range(2)]
    for decoder in decoders:
        token = decoder.start(np.array([[1, 5, 9]]))
        for _ in range(4):
            token = decoder.step(token)
    found = held()
    assert found["constants"] <= 1.01 * weights and found["arenas"] > 0 and found["graphs"] > 0
    assert found["states"] >= sum(state.state.byte_size for d in decoders for state in d.request.query_state())
    assert found["workspaces"] == 2 * max(WORKSPACE_BYTES.values())
    del decoder, decoders
    gc.collect()
    assert not any(held()[name] for name in ("arenas", "states", "workspaces", "graphs"))


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [(":4096:1", 4 << 20), (":16:8:4096:2", (8192 + 128) << 10), (":0:0", 16 << 10), ("", None), ("4096", None)],
)
def test_size_of_workspaces(emulated: str, monkeypatch: pytest.MonkeyPatch, text: str, nbytes: int | None) -> None:
    """cuBLAS's own variable decides the size, as in other programs; a text that cuBLAS would not take is ignored."""
    monkeypatch.setenv(WORKSPACE_VARIABLE, text)
    core = ov.Core()
    compiled = core.compile_model(core.read_model(DATA / "llama" / "model.xml"), emulated)
    decoder = Decoder(compiled)
    warned = pytest.warns(RuntimeWarning, match="'4096' is ignored") if text == "4096" else nullcontext()
    with warned:
        decoder.start(np.array([[1, 5, 9]]))
    assert compiled.memory_held(by_purpose=True)["workspaces"] == (nbytes or max(WORKSPACE_BYTES.values()))
