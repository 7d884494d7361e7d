"""export_model, import_model, and the models in CACHE_DIR."""

from __future__ import annotations

import io
import json
import os
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.api import compiled_model_file
from ovgpu.errors import ModelError
from tests.harness.ir import Net
from tests.harness.models.drive import DATA, Expected
from tests.harness.models.transformer import Sizes, gpt2

from . import nets
from .sides import LIBRARIES

X = np.array([[1, -2, 3]], np.float32)
PROMPT = {
    "input_ids": np.array([[3, 1, 4]]),
    "attention_mask": np.ones((1, 3), np.int64),
    "position_ids": np.arange(3)[None],
    "beam_idx": np.zeros(1, np.int32),
}


def weighted(scale: float = 2.0) -> nets.IR:
    """Build y = x @ (scale * identity) + 1 for x [?, 3]. The weights are followed by 4096 unused bytes."""
    net = Net("weighted")
    x = net.parameter("f32", (-1, 3), "x")
    product = net.layer(
        "MatMul",
        "opset1",
        [x, net.const(np.eye(3, dtype="f4") * np.float32(scale))],
        {"transpose_a": False, "transpose_b": False},
    )
    net.result(net.layer("Add", "opset1", [product, net.const(np.ones((1, 3), "f4"))], names=["y"]))
    xml, weights = net.build()
    return xml, weights + bytes(4096)


def exported_bytes(device: str = "CPU", **config: Any) -> bytes:
    core = ov.Core()
    compiled = core.compile_model(core.read_model(*weighted()), device, config)
    return compiled.export_model().getvalue()


# ---- exporting and importing


def test_results_are_equal(device: str) -> None:
    core = ov.Core()
    compiled = core.compile_model(core.read_model(*gpt2(1, Sizes(2, 64, 4, 128, 100, 64)).ir), device)
    imported = core.import_model(compiled.export_model(), device)
    assert [p.names for p in imported.inputs] == [p.names for p in compiled.inputs]
    assert [p.names for p in imported.outputs] == [p.names for p in compiled.outputs]
    for _ in range(2):
        np.testing.assert_array_equal(imported(PROMPT)[0], compiled(PROMPT)[0])
    assert len(imported.query_state()) == 4
    again = core.import_model(imported.export_model(), device)
    compiled.reset_state()
    np.testing.assert_array_equal(again(PROMPT)[0], compiled(PROMPT)[0])


@pytest.mark.drawn(2)
@pytest.mark.parametrize(
    "name", ["llama_int4_asym", "llama_nf4", "deberta", "detector", "preprocessed", "lstm_state", "bert_int8"]
)
def test_whole_models(name: str) -> None:
    """Packed weights, bodies, preprocessing, states: bit by bit the same."""
    calls = Expected.load(DATA / name / "expected.npz").calls[:2]
    compiled = ov.Core().compile_model(DATA / name / "model.xml", "CPU")
    imported = ov.Core().import_model(compiled.export_model(), "CPU")
    for call in calls:
        found, expected = imported(call.inputs), compiled(call.inputs)
        assert [p.names for p in found] == [p.names for p in expected]
        for a, b in zip(found.values(), expected.values()):
            np.testing.assert_array_equal(a, b)


@LIBRARIES
def test_streams(ov: Any) -> None:
    core = ov.Core()
    compiled = core.compile_model(core.read_model(*weighted()), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    returned, given = compiled.export_model(), io.BytesIO()
    assert type(returned) is io.BytesIO and returned.tell() == 0
    assert compiled.export_model(given) is None and given.tell() == 0
    data = returned.getvalue()
    given.seek(5)  # a stream is read from its beginning, and rewound
    for source in (returned, returned, data, given, ov.Tensor(np.frombuffer(data, np.uint8).copy())):
        np.testing.assert_array_equal(core.import_model(source, "CPU")(X)[0], X * 2 + 1)
    assert returned.tell() == given.tell() == 0


@LIBRARIES
@pytest.mark.parametrize("stream", [3, None, "model.blob"])
def test_other_sources(ov: Any, stream: Any) -> None:
    with pytest.raises(TypeError):
        ov.Core().import_model(stream, "CPU")


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "model.blob"
    compiled = ov.compile_model(ov.Core().read_model(*weighted()), "CPU")
    with path.open("wb") as file:
        compiled.export_model(file)
    with path.open("rb") as source:
        np.testing.assert_array_equal(ov.Core().import_model(source, "CPU")(X)[0], X * 2 + 1)
    with pytest.raises(TypeError, match="takes a binary file"):
        compiled.export_model(str(path))  # type: ignore[arg-type]


def test_a_stream_that_cannot_seek(tmp_path: Path) -> None:
    class Pipe(io.RawIOBase):
        written = b""

        def writable(self) -> bool:
            return True

        def write(self, data: Any) -> int:
            self.written += bytes(data)
            return len(data)

    pipe = Pipe()
    ov.compile_model(ov.Core().read_model(*weighted()), "CPU").export_model(pipe)  # type: ignore[arg-type]
    np.testing.assert_array_equal(ov.Core().import_model(pipe.written, "CPU")(X)[0], X * 2 + 1)


def test_constants_are_aligned_views() -> None:
    buffer = np.frombuffer(exported_bytes(), np.uint8).copy()
    aligned = np.empty(buffer.size + 64, np.uint8)
    aligned = aligned[-aligned.ctypes.data % 64 :][: buffer.size]
    aligned[:] = buffer
    model = compiled_model_file.read(aligned, "CPU").model
    constants = [node.op.value for node in model.ops if node.op.name == "Constant"]
    assert len(constants) == 2 and all(np.shares_memory(value, aligned) for value in constants)
    with zipfile.ZipFile(io.BytesIO(buffer.tobytes())) as archive:
        first = archive.infolist()[0]
        offset = first.header_offset + 30 + sum(np.frombuffer(buffer.tobytes(), np.uint16, 2, first.header_offset + 26))
    assert first.filename == "model.bin" and offset % 64 == 0


def test_properties_are_kept(tmp_path: Path) -> None:
    config: dict[str, Any] = {
        "PERF_COUNT": True,
        "INFERENCE_PRECISION_HINT": ov.Type.f16,
        "CACHE_DIR": tmp_path,
        "PERFORMANCE_HINT": ov.properties.hint.PerformanceMode.THROUGHPUT,
        "NUM_STREAMS": 2,
    }
    data = exported_bytes(**config)
    core = ov.Core()
    core.set_property("CPU", {"NUM_STREAMS": 1, "PERFORMANCE_HINT_NUM_REQUESTS": 3})
    imported = core.import_model(data, "CPU", {"NUM_STREAMS": 4})
    found = {name: imported.get_property(name) for name in (*config, "PERFORMANCE_HINT_NUM_REQUESTS")}
    assert found == {
        "PERF_COUNT": "YES",
        "INFERENCE_PRECISION_HINT": ov.Type.f16,
        "CACHE_DIR": "",
        "NUM_STREAMS": 4,
        "PERFORMANCE_HINT": "THROUGHPUT",
        "PERFORMANCE_HINT_NUM_REQUESTS": "3",
    }
    assert not imported.get_property("LOADED_FROM_CACHE")
    with pytest.raises(RuntimeError, match="NO_SUCH"):
        core.import_model(data, "CPU", {"NO_SUCH": 1})


def test_later_changes_to_the_model_are_not_exported() -> None:
    core = ov.Core()
    model = core.read_model(*nets.two())
    compiled = core.compile_model(model, "CPU")
    model.reshape({"y": [5]})
    imported = core.import_model(compiled.export_model(), "CPU")
    assert imported.input("y").partial_shape == ov.PartialShape([-1])


def test_other_devices(device: str) -> None:
    other = "CPU" if device != "CPU" else "NVIDIA"
    if other == "NVIDIA":
        with pytest.raises(RuntimeError):  # there is no card here, or the model was not made for it
            ov.Core().import_model(exported_bytes(), other)
        return
    with pytest.raises(ModelError, match=f"compiled for {device}, not for CPU"):
        ov.Core().import_model(exported_bytes(device), other)


def test_other_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    data = exported_bytes()
    monkeypatch.setattr(compiled_model_file, "OWN", "99.0.0")
    with pytest.raises(ModelError, match=r"exported by ovgpu .*, and this is 99\.0\.0: export it again"):
        ov.Core().import_model(data, "CPU")


@pytest.mark.parametrize("data", [b"", b"xyz", b"PK", bytes(1000), b"PK\5\6" + bytes(18)])
def test_other_files(data: bytes) -> None:
    with pytest.raises(ModelError, match="this is not a compiled model of ovgpu"):
        ov.Core().import_model(data, "CPU")


def test_damaged_files() -> None:
    """Truncations, and changes of bytes that matter, are errors."""
    data = exported_bytes()
    for size in range(0, len(data), 7):
        with pytest.raises(ModelError):
            compiled_model_file.read(data[:size], "CPU")
    random = np.random.default_rng(1)
    expected = compiled_model_file.read(data, "CPU")
    unharmed = 0
    for at in random.integers(0, len(data), 500):
        changed = bytearray(data)
        changed[at] ^= int(random.integers(1, 256))
        try:
            found = compiled_model_file.read(changed, "CPU")
        except ModelError:
            continue
        unharmed += 1  # a time, a flag or padding in the archive's headers
        assert found.properties == expected.properties
        values = [n.op.value for n in found.model.ops if n.op.name == "Constant"]
        assert [v.tobytes() for v in values] == [
            n.op.value.tobytes() for n in expected.model.ops if n.op.name == "Constant"
        ]
    assert unharmed < 100


def rewritten(data: bytes, change: Callable[[dict[str, bytes]], None], method: int = zipfile.ZIP_STORED) -> bytes:
    """Return an archive with other files in it."""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
    change(files)
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, contents in files.items():
            archive.writestr(name, contents)
    return stream.getvalue()


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda f: f.pop("model.xml"), "it has no model.xml"),
        (lambda f: f.pop("ovgpu.json"), "it has no 'ovgpu.json'"),
        (lambda f: f.update({"ovgpu.json": b"[]"}), "damaged"),
        (lambda f: f.update({"ovgpu.json": b"{}"}), "it has no 'ovgpu'"),
        (lambda f: f.update({"ovgpu.json": b"\xff"}), "damaged"),
        (lambda f: f.update({"model.xml": b"<net"}), "damaged"),
        (lambda f: f.pop("model.bin"), "weights"),
        (
            lambda f: (
                f.pop("model.bin"),
                f.update({"ovgpu.json": json.dumps(json.loads(f["ovgpu.json"]) | {"weights": {"path": 1}}).encode()}),
            ),
            "damaged",
        ),
    ],
)
def test_wrong_contents(change: Any, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        ov.Core().import_model(rewritten(exported_bytes(), change), "CPU")


def test_compressed_archives_are_refused() -> None:
    """Decompression has no bound."""
    with pytest.raises(ModelError, match="do not match"):
        ov.Core().import_model(rewritten(exported_bytes(), lambda files: None, zipfile.ZIP_DEFLATED), "CPU")


# ---- CACHE_DIR


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write the files of a model, and return their folder."""
    xml, weights = weighted()
    (tmp_path / "m.xml").write_bytes(xml)
    (tmp_path / "m.bin").write_bytes(weights)
    return tmp_path


def loaded(folder: Path, device: str = "CPU", scale: float = 2, **config: Any) -> bool:
    """Compile the model with CACHE_DIR, check it, and return whether it came from there."""
    compiled = ov.Core().compile_model(folder / "m.xml", device, {"CACHE_DIR": folder / "cache"} | config)
    np.testing.assert_array_equal(compiled(X)[0], X * np.float32(scale) + 1)
    found: bool = compiled.get_property("LOADED_FROM_CACHE")
    return found


def entries(folder: Path) -> list[Path]:
    return sorted((folder / "cache").glob("*.blob"))


def test_the_second_time(folder: Path, device: str) -> None:
    assert not loaded(folder, device)
    (entry,) = entries(folder)
    assert entry.stat().st_size < 4096  # without the weights
    before = entry.stat()
    assert loaded(folder, device) and loaded(folder, device)
    assert entries(folder) == [entry] and entry.stat().st_mtime_ns == before.st_mtime_ns


@LIBRARIES
def test_as_openvino(ov: Any, folder: Path) -> None:
    core = ov.Core()
    core.set_property({"CACHE_DIR": str(folder / "cache")})
    found = [core.compile_model(str(folder / "m.xml"), "CPU").get_property("LOADED_FROM_CACHE") for _ in range(2)]
    assert found == [False, True] and len(entries(folder)) == 1


def test_properties_make_another_entry(folder: Path) -> None:
    assert not loaded(folder)
    assert not loaded(folder, PERF_COUNT=True)
    assert loaded(folder) and loaded(folder, PERF_COUNT=True)


def test_a_model_that_changed(folder: Path) -> None:
    assert not loaded(folder)
    shutil.copy(folder / "m.xml", folder / "new.xml")
    (folder / "new.xml").replace(folder / "m.xml")
    os.utime(folder / "m.xml", ns=(0, 12345))
    assert not loaded(folder) and loaded(folder)


def test_weights_that_changed(folder: Path) -> None:
    """Weights of another time and the same contents are as good, others are not."""
    assert not loaded(folder)
    (folder / "new.bin").write_bytes(weighted(3)[1])
    (folder / "new.bin").replace(folder / "m.bin")
    assert not loaded(folder, scale=3)
    assert loaded(folder, scale=3)
    os.utime(folder / "m.bin", ns=(1, 2))
    assert loaded(folder, scale=3) and len(entries(folder)) == 1


def test_weights_are_compared_by_contents(folder: Path) -> None:
    status = (folder / "m.bin").stat()
    reference = compiled_model_file.Reference.to(folder / "m.bin")
    assert reference.is_current()
    os.utime(folder / "m.bin", ns=(1, 2))
    assert reference.is_current()
    (folder / "m.bin").write_bytes(bytes(status.st_size))
    assert not reference.is_current()
    (folder / "m.bin").unlink()
    assert not reference.is_current()


def test_an_entry_whose_weights_changed_is_refused(folder: Path) -> None:
    loaded(folder)
    (entry,) = entries(folder)
    (folder / "m.bin").write_bytes(bytes(10))
    with pytest.raises(ModelError, match=r"m\.bin has changed since the model was compiled"):
        compiled_model_file.read_file(entry, "CPU")


@pytest.mark.parametrize(
    "damage", [lambda data: data[:100], lambda data: b"", lambda data: data[:200] + b"!" + data[201:]]
)
def test_a_damaged_entry_is_written_again(folder: Path, damage: Callable[[bytes], bytes]) -> None:
    loaded(folder)
    (entry,) = entries(folder)
    good = entry.read_bytes()
    entry.write_bytes(damage(good))
    assert not loaded(folder) and entry.read_bytes() == good and loaded(folder)


def test_a_folder_that_cannot_be_written(folder: Path) -> None:
    (folder / "cache").write_bytes(b"")
    with pytest.warns(RuntimeWarning, match="does not keep the model"):
        assert not loaded(folder)


def test_models_without_files(folder: Path) -> None:
    """Models in memory, and XML or weights in memory, are not kept: to compare them takes longer than to compile."""
    core = ov.Core()
    core.set_property({"CACHE_DIR": folder / "cache"})
    xml, weights = weighted()
    for model, given in (
        (core.read_model(folder / "m.xml"), None),
        (xml, weights),
        (xml.decode(), folder / "m.bin"),
        (folder / "m.xml", weights),
        (folder / "m.xml", np.frombuffer(weights, np.uint8)),
        (folder / "m.xml", ov.Tensor(np.frombuffer(weights, np.uint8).copy())),
    ):
        assert not core.compile_model(model, "CPU", weights=given).get_property("LOADED_FROM_CACHE")
    assert not entries(folder)


def test_weights_elsewhere_and_none(folder: Path) -> None:
    core = ov.Core()
    core.set_property({"CACHE_DIR": folder / "cache"})
    (folder / "m.bin").rename(folder / "other.bin")
    (folder / "same.xml").write_bytes(nets.same()[0])
    for _ in range(2):
        compiled = core.compile_model(folder / "m.xml", "CPU", weights=folder / "other.bin")
        np.testing.assert_array_equal(compiled(X)[0], X * 2 + 1)
        other = core.compile_model(str(folder / "same.xml"), "CPU")
    assert compiled.get_property("LOADED_FROM_CACHE") and other.get_property("LOADED_FROM_CACHE")


def test_errors_of_the_model_are_the_same(folder: Path) -> None:
    (folder / "m.xml").write_bytes(b"<net/>")
    with pytest.raises(ModelError, match=r"m\.xml"):
        loaded(folder)
    assert not entries(folder)


# ---- encryption


def rotated(data: bytes) -> bytes:
    return bytes(255 - byte for byte in data)


CIPHERS = {"CACHE_ENCRYPTION_CALLBACKS": [rotated, rotated]}


@pytest.mark.parametrize("library", LIBRARIES.args[1], ids=["openvino", "ovgpu"])
def test_encrypted_files(library: Any) -> None:
    core = library.Core()
    compiled = core.compile_model(core.read_model(*weighted()), "CPU", CIPHERS)
    stream = compiled.export_model()
    assert b"MatMul" not in stream.getvalue() and b"MatMul" in rotated(stream.getvalue())
    found = core.import_model(stream, "CPU", CIPHERS)
    assert found([X])[0].tolist() == [[3, -3, 7]]
    stream.seek(0)
    with pytest.raises(RuntimeError):
        core.import_model(stream, "CPU")


def test_encrypted_on_a_device(device: str) -> None:
    data = exported_bytes(device, **CIPHERS)
    assert ov.Core().import_model(data, device, CIPHERS)([X])[0].tolist() == [[3, -3, 7]]
    core = ov.Core()
    core.set_property(device, CIPHERS)
    assert core.import_model(data, device)([X])[0].tolist() == [[3, -3, 7]]
    with pytest.raises(ModelError, match="is encrypted: give CACHE_ENCRYPTION_CALLBACKS"):
        ov.Core().import_model(data, device)
    with pytest.raises(ModelError, match="CACHE_ENCRYPTION_CALLBACKS raised ZeroDivisionError"):
        ov.Core().import_model(data, device, {"CACHE_ENCRYPTION_CALLBACKS": [rotated, lambda data: 1 // 0]})
    assert ov.Core().import_model(exported_bytes(device), device, CIPHERS)([X])[0].tolist() == [[3, -3, 7]]


def test_encrypted_entries_of_the_cache(tmp_path: Path) -> None:
    xml, weights = weighted()
    (tmp_path / "m.xml").write_bytes(xml)
    (tmp_path / "m.bin").write_bytes(weights)
    config = {"CACHE_DIR": str(tmp_path / "cache"), **CIPHERS}
    for loaded in (False, True):
        compiled = ov.Core().compile_model(tmp_path / "m.xml", "CPU", config)
        assert compiled.get_property("LOADED_FROM_CACHE") == loaded
        assert compiled([X])[0].tolist() == [[3, -3, 7]]
    (entry,) = (tmp_path / "cache").glob("*.blob")
    assert b"MatMul" not in entry.read_bytes()
    compiled = ov.Core().compile_model(tmp_path / "m.xml", "CPU", {"CACHE_DIR": str(tmp_path / "cache")})
    assert not compiled.get_property("LOADED_FROM_CACHE")


@pytest.mark.parametrize("value", [[rotated], rotated, [1, 2], {"a": 1}, None])
def test_wrong_ciphers(value: Any) -> None:
    with pytest.raises((RuntimeError, TypeError)):
        ov.Core().set_property("CPU", {"CACHE_ENCRYPTION_CALLBACKS": value})
