"""CACHE_DIR: the on-disk cache of compiled kernels, which processes share and which is verified when read."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.backends.cuda import elementwise, kernel_cache, kernels, rt, sources
from tests.emulator import cupy_emu
from tests.harness.cuda import bound
from tests.harness.ir import Net

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.emulator
X = np.linspace(-1, 1, 64, dtype=np.float32).reshape(2, 32)


@pytest.fixture
def fresh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use an emulated device with no compiled kernels, and a cache directory of CuPy's that does not exist yet."""
    kernels.of_file.cache_clear()
    monkeypatch.setenv("CUPY_CACHE_DIR", str(tmp_path / "usual"))
    with bound("emulator"):
        monkeypatch.setattr(rt, "_replaced", False)
        yield


def run(folder: Any, core: ov.Core | None = None, **config: Any) -> None:
    """Compile a model that uses kernels of a file, and check two inferences."""
    kernels.of_file.cache_clear()
    net = Net()
    net.result(net.layer("SoftMax", "opset8", [net.parameter("f32", (-1, 32))], {"axis": 1}))
    core = core or ov.Core()
    given = {"CACHE_DIR": folder} if folder is not None else {}
    compiled = core.compile_model(core.read_model(*net.build()), "NVIDIA", given | config)
    e = np.exp(X)
    for _ in range(2):
        np.testing.assert_allclose(compiled([X])[0], e / e.sum(1, keepdims=True), rtol=1e-5)


def files(folder: Path) -> dict[str, tuple[int, bytes]]:
    """Return the inode and the contents of each file, by name."""
    return {file.name: (file.stat().st_ino, file.read_bytes()) for file in folder.iterdir()}


def test_kernels_are_cached(fresh: None, tmp_path: Path) -> None:
    folder = tmp_path / "made" / "when needed"
    run(folder)
    before = files(folder)
    assert before and all(name.endswith(".cubin") for name in before)
    run(str(folder))
    assert files(folder) == before
    run(tmp_path / "another")
    assert files(tmp_path / "another").keys() == before.keys()


def test_relative_folders_are_resolved_at_compilation(
    fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    net = Net()
    net.result(net.layer("SoftMax", "opset8", [net.parameter("f32", (-1, 32))], {"axis": 1}))
    compiled = ov.Core().compile_model(ov.Core().read_model(*net.build()), "NVIDIA", {"CACHE_DIR": "kernels"})
    os.chdir("elsewhere")
    compiled([X])
    assert files(tmp_path / "kernels") and not files(tmp_path / "elsewhere")


def test_folders_of_core_and_model(fresh: None, tmp_path: Path) -> None:
    core = ov.Core()
    core.set_property({ov.properties.cache_dir: tmp_path / "core"})
    run(None, core)
    assert files(tmp_path / "core")
    run(tmp_path / "model", core)
    assert files(tmp_path / "model").keys() == files(tmp_path / "core").keys()


def test_without_a_folder(fresh: None, tmp_path: Path) -> None:
    """Kernels are cached in CuPy's cache directory by default."""
    run(tmp_path / "chosen")
    assert not (tmp_path / "usual").exists()
    run(None)
    assert files(tmp_path / "usual" / "ovgpu").keys() == files(tmp_path / "chosen").keys()


def test_no_default_folder(fresh: None, tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    """An unusable default folder gives no warning, since no one has set it."""
    (tmp_path / "usual").write_bytes(b"")
    run(None)
    assert not list(recwarn)


def test_a_cached_kernel_is_not_compiled(fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The paths of headers and kernel files are not part of the key."""
    run(tmp_path)
    text = sources.source("softmax.cu")
    monkeypatch.setattr(sources, "source", lambda file: text)
    monkeypatch.setattr(sources, "folder", lambda: Path("elsewhere"))
    monkeypatch.delattr(cupy_emu.cuda.compiler, "compile_using_nvrtc")
    run(tmp_path)


def test_rejected_machine_code_is_recompiled(fresh: None, tmp_path: Path) -> None:
    """The driver may reject machine code of a newer compiler."""
    run(tmp_path)
    before = files(tmp_path)
    for name in before:
        kernel_cache.write(tmp_path / name, b"symbol\0of another driver")
    run(tmp_path)
    assert {name: data for name, (_, data) in files(tmp_path).items()} == {n: d for n, (_, d) in before.items()}


def test_keys() -> None:
    keys = {
        kernel_cache.key(*parts)
        for parts in (
            ("text", "name", (), "90"),
            ("text", "name", ("flag",), "90"),
            ("text", "name", (), "80"),
            ("text", "nam", ("e",), "90"),
            ("other", "name", (), "90"),
        )
    }
    assert len(keys) == 5


@pytest.mark.parametrize(
    "damage",
    [
        lambda data: b"",
        lambda data: data[:7],
        lambda data: data[:-1],
        lambda data: data[:40] + b"?" + data[41:],
        lambda data: b"?" + data[1:],
        lambda data: data + b"?",
    ],
    ids=["empty", "no digest", "cut off", "changed", "other digest", "longer"],
)
def test_damaged_files_are_rewritten(damage: Any, fresh: None, tmp_path: Path) -> None:
    run(tmp_path)
    before = files(tmp_path)
    for name, (_, data) in before.items():
        (tmp_path / name).write_bytes(damage(data))
    run(tmp_path)
    assert {name: data for name, (_, data) in files(tmp_path).items()} == {n: d for n, (_, d) in before.items()}


def test_partial_files_are_ignored(fresh: None, tmp_path: Path) -> None:
    run(tmp_path)
    before = files(tmp_path)
    name = next(iter(before))
    (tmp_path / name).rename(tmp_path / f".{name}.abcdefg")
    run(tmp_path)
    assert files(tmp_path)[name][1] == before[name][1]


@pytest.mark.parametrize("kind", ["file", "read-only", "full"])
def test_an_unwritable_folder(kind: str, fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "kernels"
    if kind == "file":
        folder.write_bytes(b"")
    elif kind == "read-only":
        folder.mkdir(mode=0o500)
        if os.access(folder, os.W_OK):  # root may write anyway
            monkeypatch.setattr(kernel_cache, "replacing", lambda *_, **__: (folder / "no" / "such").open("wb"))
    else:

        def disk_full(path: Path, flush: bool) -> Any:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(kernel_cache, "replacing", disk_full)
    with pytest.warns(RuntimeWarning, match="CACHE_DIR '.*kernels' does not keep kernels: "):
        run(folder)
    assert folder.is_file() or not files(folder)


WRITER = """
import sys
from pathlib import Path
from ovgpu.backends.cuda import kernel_cache
folder, wrong = Path(sys.argv[1]), 0
for turn in range(80):
    name = f"{turn % 4}.cubin"
    payload = name.encode() * 20000
    found = kernel_cache.read(folder / name)
    wrong += found is not None and found != payload
    kernel_cache.write(folder / name, payload)
print(wrong)
"""


def test_two_processes_at_once(tmp_path: Path) -> None:
    """No process reads a file that another has not completely written."""
    command = [sys.executable, "-c", WRITER, str(tmp_path)]
    running = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert [process.communicate()[0].strip() for process in running] == ["0", "0"]
    assert files(tmp_path).keys() == {f"{k}.cubin" for k in range(4)}
    for k in range(4):
        assert kernel_cache.read(tmp_path / f"{k}.cubin") == f"{k}.cubin".encode() * 20000


REAL = """
import contextlib
import sys
from pathlib import Path
from ovgpu.backends.cuda import kernel_cache, kernels, rt
from cupy.cuda import compiler

class Device(contextlib.nullcontext):  # there is no driver to ask
    compute_capability = "90"

class Module:
    def load(self, cubin):
        said.append("loads" if cubin[:4] == b"\\x7fELF" else str(cubin[:20]))
    def get_function(self, symbol):
        said.append(symbol)

def watched(*args, **kwargs):
    said.append("compiles")
    return compile(*args, **kwargs)

said = []
cuda = rt.cupy().cuda
cuda.Device, cuda.get_device_id, cuda.function.Module = Device, lambda: 0, Module
compile, compiler.compile_using_nvrtc = compiler.compile_using_nvrtc, watched
compiler._get_arch_for_options_for_nvrtc = lambda arch=None: ("-arch=sm_90", "cubin")
kernels.Kernel("once", 'extern "C" __global__ void once() {}', "once", exported=True).function()
print(*said, len(list(Path(sys.argv[2], "ovgpu").iterdir())))
for name, text, exported in (("twice<float>", "template <class T> __global__ void twice(T* x) { *x *= 2; }", False),
                             ("thrice", 'extern "C" __global__ void thrice(float* x) { *x *= 3; }', True)):
    kernel_cache.enter(kernel_cache.KernelStore(str(Path(sys.argv[1], name[:3]))))
    for turn in range(3):
        if turn == 2:
            (file,) = Path(sys.argv[1], name[:3]).iterdir()
            file.write_bytes(file.read_bytes()[:-9])
        said = []
        kernels.Kernel(name, text, name, exported=exported, flags=kernels.NO_FMA_FLAGS).function()
        print(*said)
"""


def test_with_cupy_itself(tmp_path: Path) -> None:
    """The cache works with the real CuPy and NVRTC; only loading code into a GPU is replaced."""
    if find_spec("cupy") is None or find_spec("nvidia") is None:
        pytest.skip("CuPy is not installed")
    environment = {**os.environ, "CUPY_CACHE_DIR": str(tmp_path / "own"), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", REAL, str(tmp_path / "kernels"), str(tmp_path / "own")]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    wanted = ["compiles loads once 1"]
    for symbol in ("_Z5twiceIfEvPT_", "thrice"):
        wanted += [f"compiles loads {symbol}", symbol, f"compiles {symbol}"]  # the same code is loaded once
    assert done.stdout.split("\n")[:-1] == wanted
    assert [path.parent.name for path in (tmp_path / "own").rglob("*.cubin")] == ["ovgpu"]


def test_exported_models_bring_their_kernels(fresh: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net()
    x = net.layer("SoftMax", "opset8", [net.parameter("f32", (-1, 32))], {"axis": 1})
    net.result(net.layer("Exp", "opset1", [net.layer("Abs", "opset1", [x])]))  # a generated kernel
    core = ov.Core()
    compiled = core.compile_model(core.read_model(*net.build()), "NVIDIA")
    kernels.of_file.cache_clear()
    elementwise._kernel.cache_clear()
    expected = compiled([X])[0]
    exported = compiled.export_model()
    assert isinstance(exported, io.BytesIO)
    with zipfile.ZipFile(exported) as archive:
        names = {name for name in archive.namelist() if name.endswith(".cubin")}
    assert names == files(tmp_path / "usual" / "ovgpu").keys() and len(names) == 2
    shutil.rmtree(tmp_path / "usual")
    kernels.of_file.cache_clear()
    elementwise._kernel.cache_clear()
    elementwise._planned.cache_clear()
    monkeypatch.delattr(cupy_emu.cuda.compiler, "compile_using_nvrtc")
    exported.seek(0)
    np.testing.assert_array_equal(core.import_model(exported, "NVIDIA")([X])[0], expected)
    assert not (tmp_path / "usual").exists()  # machine code from a file stays in memory
