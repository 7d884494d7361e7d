"""Files of a model: either both are written or none, and reading reports files that do not belong together."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest

import ovgpu
from ovgpu._util import atomic_file
from ovgpu.errors import ModelError
from ovgpu.ir import read_model, save_model, serialize
from ovgpu.ir._constants import CHECKSUM_BYTES
from ovgpu.model import Model
from tests.harness import Net
from tests.harness.interruption import Interruption

VALUES = np.arange(6, dtype=np.float32)


def model(factor: float) -> Model:
    """Build a sum with VALUES times a factor. All such models have the same graph."""
    net = Net()
    net.result(net.layer("Add", "opset1", [net.parameter("f32", (6,)), net.const(VALUES * factor)]))
    return read_model(*net.build())


def factor(path: Path) -> float:
    """Return the factor of a model that was written."""
    compiled = ovgpu.compile_model(read_model(path), "CPU")
    return float(compiled([np.zeros(6, np.float32)])[0][1])


def listing(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    serialize(model(1), tmp_path / "m.xml")
    return tmp_path / "m.xml"


# ---- devices, pipes, folders, links


@pytest.mark.parametrize("kind", ["null", "full"])
def test_devices_stay_devices(kind: str, tmp_path: Path) -> None:
    device = tmp_path / "device"
    device.symlink_to(f"/dev/{kind}")
    if kind == "null":
        serialize(model(1), tmp_path / "m.xml", device)
        assert (tmp_path / "m.xml").exists()
    else:
        with pytest.raises(ModelError, match=r"the model cannot be written: .*device: No space left on device"):
            serialize(model(1), tmp_path / "m.xml", device)
        assert [path.name for path in tmp_path.iterdir()] == ["device"]
    assert device.is_char_device()


def test_pipes_are_written_to(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()), daemon=True)
    reader.start()
    serialize(model(1), tmp_path / "m.xml", tmp_path / "pipe")
    reader.join(10)
    serialize(model(1), tmp_path / "other.xml")
    assert read == [(tmp_path / "other.bin").read_bytes()]
    assert (tmp_path / "pipe").is_fifo()


@pytest.mark.parametrize("name", ["m.xml", "m.bin"])
def test_folders_are_refused(name: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir()
    with pytest.raises(ModelError, match=f"the model cannot be written: .*{name}: Is a directory"):
        serialize(model(1), tmp_path / "m.xml")
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_one_file_for_both_is_refused(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("m.xml")
    with pytest.raises(ModelError, match=r"are two files, not '.*m\.xml' alone"):
        serialize(model(1), tmp_path / "m.xml", tmp_path / "link")


def test_symbolic_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "store").mkdir()
    for name in ("m.xml", "m.bin"):  # one link has a target, the other has none so far
        (tmp_path / name).symlink_to(tmp_path / "store" / name)
    (tmp_path / "store" / "m.xml").touch()
    save_model(model(3), tmp_path / "m.xml")
    assert (tmp_path / "m.xml").is_symlink() and (tmp_path / "m.bin").is_symlink()
    assert sorted(path.name for path in (tmp_path / "store").iterdir()) == ["m.bin", "m.xml"]
    assert factor(tmp_path / "m.xml") == 3


def test_permissions_are_kept(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    saved.chmod(0o640)
    serialize(model(2), saved)
    assert (saved.stat().st_mode & 0o777, factor(saved)) == (0o640, 2)
    before = listing(saved.parent)
    monkeypatch.setattr(atomic_file.os, "access", lambda path, mode: path.suffix != ".bin")  # root may write any file
    with pytest.raises(ModelError, match=r"the model cannot be written: .*m\.bin: Permission denied"):
        serialize(model(3), saved)
    assert listing(saved.parent) == before


# ---- both or none


@pytest.fixture(params=["hard links", "no hard links"])
def links(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run a test on file systems with and without hard links."""

    def refused(*_: Any) -> None:
        raise PermissionError("no links here")

    if request.param != "hard links":
        monkeypatch.setattr(Path, "hardlink_to", refused)


def failing(name: str) -> Callable[[Path, Path], Path]:
    """Return a `Path.replace` that fails to move a temporary file to a path of this name."""
    replace = Path.replace

    def function(self: Path, target: Path) -> Path:
        if target.name == name and not self.name.endswith(".old"):
            raise OSError(5, "Input/output error", str(self))
        return replace(self, target)

    return function


@pytest.mark.usefixtures("links")
@pytest.mark.parametrize("name", ["m.xml", "m.bin"])
def test_a_file_that_cannot_be_replaced(name: str, saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = listing(saved.parent)
    monkeypatch.setattr(Path, "replace", failing(name))
    with pytest.raises(ModelError, match=rf"the model cannot be written: .*/{name}: Input/output error"):
        serialize(model(2), saved)
    assert listing(saved.parent) == before and factor(saved) == 1
    saved.unlink()
    saved.with_suffix(".bin").unlink()
    with pytest.raises(ModelError, match="cannot be written"):
        serialize(model(2), saved)
    assert listing(saved.parent) == {}


def test_files_are_complete_and_flushed_before_one_is_replaced(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    replace, fsync = Path.replace, os.fsync
    monkeypatch.setattr(atomic_file.os, "fsync", lambda file: (done.append("flushed"), fsync(file)))
    monkeypatch.setattr(Path, "replace", lambda self, to: (done.append(to.name), replace(self, to))[1])
    serialize(model(2), saved)
    assert done == ["flushed", "flushed", "m.xml", "m.bin"]
    assert sorted(listing(saved.parent)) == ["m.bin", "m.xml"]


@pytest.mark.usefixtures("links")
def test_every_line_of_writing(saved: Path) -> None:
    """`serialize`, interrupted at any line, has replaced both files or none."""
    new = model(2)
    with Interruption(0) as all_lines:
        serialize(new, saved)
    count = all_lines.lines
    serialize(model(1), saved)
    old = listing(saved.parent)
    seen = {1.0: 0, 2.0: 0}
    for at in [*range(1, count - 150, 23), *range(count - 150, count + 1)]:
        with suppress(KeyboardInterrupt), Interruption(at):
            serialize(new, saved)
        seen[factor(saved)] += 1
        for path in saved.parent.iterdir():
            if path.name not in old:  # Ctrl-C came just before its removal
                path.unlink()
            else:
                path.write_bytes(old[path.name])
    assert all(seen.values())


KILLED = """
import os, sys
from pathlib import Path
from ovgpu.ir import read_model, serialize
from tests.ir.test_files import model

replace = Path.replace
def killed(self, to):
    replace(self, to)
    os._exit(9)
Path.replace = killed
serialize(model(2), sys.argv[1])
"""


def test_a_process_killed_between_the_two(saved: Path) -> None:
    assert subprocess.run([sys.executable, "-c", KILLED, str(saved)], check=False).returncode == 9
    for read in (lambda: read_model(saved), lambda: read_model(saved.read_bytes(), saved.with_suffix(".bin"))):
        with pytest.raises(ModelError, match=r"^m\.bin is not the file that the \.xml was written with: it does not"):
            read()
    weights = saved.with_suffix(".bin").read_bytes()
    assert read_model(saved, weights)  # weights in memory are not checked


# ---- the checksum


def test_openvino_reads_files_with_a_checksum_and_writes_them_without(saved: Path) -> None:
    theirs = openvino.Core().read_model(saved)
    found = openvino.Core().compile_model(theirs, "CPU")([np.zeros(6, np.float32)])[0]
    np.testing.assert_array_equal(found, VALUES)
    openvino.serialize(theirs, saved.with_name("again.xml"))
    assert "checksum" in saved.read_text() and "checksum" not in saved.with_name("again.xml").read_text()
    assert factor(saved.with_name("again.xml")) == 1


def test_a_shorter_file_is_reported(saved: Path) -> None:
    weights = saved.with_suffix(".bin")
    weights.write_bytes(weights.read_bytes()[:-CHECKSUM_BYTES])
    with pytest.raises(ModelError, match=r"^m\.bin has 24 bytes, but the \.xml was written with one of 40 bytes$"):
        read_model(saved)


# ---- files that change while they are mapped


def shortened(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(8)


def rewritten(path: Path) -> None:
    path.write_bytes(bytes(path.stat().st_size))
    os.utime(path, ns=(1, 1))


CHANGES = {"shortened": (shortened, r", from 40 to 8 bytes"), "rewritten": (rewritten, "")}
USES: dict[str, Callable[[Model, Path], Any]] = {
    "compile": lambda model, path: ovgpu.compile_model(model, "CPU"),
    "save": lambda model, path: save_model(model, path.with_name("copy.xml")),
}


@pytest.fixture(params=CHANGES)
def change(request: pytest.FixtureRequest) -> tuple[Callable[[Path], None], str]:
    return CHANGES[request.param]


@pytest.mark.parametrize("use", USES)
def test_a_file_that_changes_in_place(use: str, change: tuple[Callable[[Path], None], str], saved: Path) -> None:
    read = read_model(saved)
    changed, sizes = change
    changed(saved.with_suffix(".bin"))
    with pytest.raises(ModelError, match=rf"^m\.bin has changed since the model was read{sizes}: read the model "):
        USES[use](read, saved)


def test_constants_that_are_bound_later(saved: Path, change: tuple[Callable[[Path], None], str], device: str) -> None:
    """The programs of a model of unknown rank are built when it runs, and then notice changed weights."""
    net = Net()
    net.result(net.layer("Add", "opset1", [net.parameter("f32", None), net.const(VALUES)]))
    serialize(read_model(*net.build()), saved)
    compiled = ovgpu.compile_model(read_model(saved), device)
    change[0](saved.with_suffix(".bin"))
    with pytest.raises(ModelError, match=r"m\.bin has changed since the model was read"):
        compiled([np.zeros(6, np.float32)])


@pytest.mark.parametrize("use", USES)
def test_a_file_that_is_replaced_or_removed(use: str, saved: Path) -> None:
    read = read_model(saved)
    serialize(model(2), saved)
    USES[use](read, saved)
    assert float(ovgpu.compile_model(read, "CPU")([np.zeros(6, np.float32)])[0][1]) == 1
    saved.with_suffix(".bin").unlink()
    USES[use](read, saved)
