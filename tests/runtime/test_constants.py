"""Constants of a compiled model: copies of unaligned ones, and memory that remains resident."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.backends import cpu
from ovgpu.types.mapped import let_go, map_file
from tests.harness.ir import Net

PAGE = mmap.PAGESIZE
WEIGHTS = np.random.default_rng(1).uniform(-1, 1, (512, 512)).astype(np.float32)
X = np.ones((2, 512), np.float32)


def written(folder: Path, shift: int) -> Path:
    """Write a model of two products whose weights begin ``shift`` bytes after an address aligned for floats."""
    net = Net()
    y = net.parameter("f32", (2, 512))
    if shift:
        odd = net.const(np.zeros(shift, np.uint8))
        net.result(net.layer("Convert", "opset1", [odd], {"destination_type": "f32"}))
    for factor in (1, 2):
        y = net.layer("MatMul", "opset1", [y, net.const(factor * WEIGHTS)])
    net.result(y)
    xml, weights = net.build()
    (folder / "m.bin").write_bytes(weights)
    (folder / "m.xml").write_bytes(xml)
    return folder / "m.xml"


def weights_of(compiled: ov.CompiledModel) -> list[tuple[Any, Any]]:
    """Return (array in the file, array in use) of the constants that are matrices."""
    return [(source, array) for source, array in compiled._compilation.constants.values() if source.ndim == 2]


def resident(file: Path) -> int:
    """Return the resident bytes of a file's mappings in this process."""
    maps, inside, found = Path("/proc/self/smaps"), False, 0
    if not maps.exists():
        pytest.skip("the system does not tell what is in memory")
    for line in maps.read_text().splitlines():
        if "-" in line.split(" ", 1)[0]:
            inside = line.endswith(str(file))
        elif inside and line.startswith("Rss:"):
            found += int(line.split()[1]) * 1024
    return found


def test_aligned_constants_are_those_of_the_file(tmp_path: Path) -> None:
    compiled = ov.Core().compile_model(written(tmp_path, 0), "CPU")
    assert [array is source for source, array in weights_of(compiled)] == [True, True]


@pytest.mark.parametrize("piece", [PAGE // 4, 3 * PAGE, 1 << 22])
@pytest.mark.parametrize("shift", [1, 2, 3])
def test_others_are_copied_once(shift: int, piece: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "PIECE_BYTES", piece)
    moved: list[int] = []
    move = cpu._move
    monkeypatch.setattr(cpu, "_move", lambda target, source: (moved.append(source.nbytes), move(target, source)))
    compiled = ov.Core().compile_model(written(tmp_path, shift), "CPU")
    assert sum(moved) == 2 * WEIGHTS.nbytes
    for factor, (source, array) in enumerate(weights_of(compiled), 1):
        assert not source.flags.aligned and array.ctypes.data % cpu.ALIGNMENT_BYTES == 0 and array.flags.c_contiguous
        np.testing.assert_array_equal(array, factor * WEIGHTS)
    np.testing.assert_allclose(list(compiled([X]).values())[-1], X @ WEIGHTS @ (2 * WEIGHTS), rtol=1e-4, atol=1e-3)
    assert sum(moved) == 2 * WEIGHTS.nbytes


def test_copied_constants_do_not_stay_resident(tmp_path: Path) -> None:
    model = ov.Core().read_model(written(tmp_path, 1))
    values: list[Any] = [node.op.value for node in model.ops if node.op.name == "Constant"]
    assert sum(int(v.view(np.uint8).sum()) for v in values) and resident(tmp_path / "m.bin") >= 2 * WEIGHTS.nbytes
    compiled = ov.Core().compile_model(model, "CPU")
    assert resident(tmp_path / "m.bin") < WEIGHTS.nbytes // 8
    assert all(np.array_equal(source, array) for source, array in weights_of(compiled))


def test_constants_on_a_device_do_not_stay_resident(emulated: str, tmp_path: Path) -> None:
    compiled = ov.Core().compile_model(written(tmp_path, 0), emulated)
    assert len(weights_of(compiled)) == 2 and resident(tmp_path / "m.bin") < WEIGHTS.nbytes // 8


def test_constants_in_other_memory() -> None:
    strided, empty, text = WEIGHTS[:, ::2], np.empty((0, 3), np.float32)[:, ::2], np.array(["a", "b"], object)
    backend = cpu.CpuBackend()
    found, copy = backend.constants([strided, empty, text, WEIGHTS])
    copy()
    assert found[0].flags.c_contiguous and np.array_equal(found[0], strided)
    assert found[1].shape == empty.shape
    assert found[2] is text and found[3] is WEIGHTS
    assert np.array_equal(backend.constant(strided.T), strided.T)


@pytest.mark.parametrize(
    ("first", "size", "pages"),
    [
        (0, PAGE, 1),
        (1, PAGE, 0),
        (1, 2 * PAGE, 1),
        (PAGE - 1, PAGE + 2, 1),
        (PAGE, 3 * PAGE, 3),
        (5, 0, 0),
    ],
)
def test_let_go_of_whole_pages(first: int, size: int, pages: int, tmp_path: Path) -> None:
    expected = np.random.default_rng(2).integers(0, 256, 5 * PAGE, np.uint8)
    (tmp_path / "data").write_bytes(expected.tobytes())
    array = map_file(tmp_path / "data")
    part = array[first : first + size]
    assert let_go(part) == let_go(part[::-1]) == pages * PAGE
    assert np.array_equal(array, expected)


def test_memory_that_is_no_file_stays(tmp_path: Path) -> None:
    (tmp_path / "data").write_bytes(bytes(2 * PAGE))
    with (tmp_path / "data").open("rb") as file:
        private = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
    private[:] = b"\1" * (2 * PAGE)
    for array in (np.frombuffer(private, np.uint8), np.ones(4 * PAGE, np.uint8), np.frombuffer(bytes(PAGE), np.uint8)):
        before = array.copy()
        assert let_go(array) == 0 and np.array_equal(array, before)
    assert map_file(tmp_path / "data").sum() == 0
