"""Programs that use openvino, run unchanged with NVIDIA as one of its devices."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import ovgpu
from ovgpu.genai import GenerationConfig, LLMPipeline
from ovgpu.integrations.openvino import genai
from tests.genai.generation_cases import make_folder

ROOT = Path(__file__).parents[2]
SECONDS = 120
FOLDER = ROOT / "ovgpu" / "integrations" / "openvino"
PROGRAM = """
import sys
from openvino import Core  # before any import of ovgpu
from ovgpu.compile.devices import register_backend
from ovgpu.backends.cpu import CpuBackend
register_backend("NVIDIA", CpuBackend)
print(Core().available_devices, sys.argv[1:], __name__, sys.path[0])
"""


def run(*arguments: str | Path, cwd: Path, status: int = 0, **variables: str) -> str:
    """Run Python, and return what it prints to stdout."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=SECONDS)
    assert done.returncode == status, done.stderr
    return done.stdout.strip()


@pytest.fixture
def program(tmp_path: Path) -> Path:
    path = tmp_path / "scripts" / "program.py"
    path.parent.mkdir()
    path.write_text(PROGRAM)
    return path


def test_a_script(program: Path, tmp_path: Path) -> None:
    found = run("-m", "ovgpu.run_with_openvino", "scripts/program.py", "-a", "b", cwd=tmp_path)
    assert found == f"['CPU', 'NVIDIA'] ['-a', 'b'] __main__ {program.parent}"


def test_a_module(program: Path, tmp_path: Path) -> None:
    found = run("-m", "ovgpu.run_with_openvino", "-m", "program", "-m", cwd=program.parent)
    assert found == f"['CPU', 'NVIDIA'] ['-m'] __main__ {program.parent}"


def test_other_names(program: Path, tmp_path: Path) -> None:
    found = run("-m", "ovgpu.run_with_openvino", "--as", "GPU,AUTO", "scripts/program.py", "--as", "b", cwd=tmp_path)
    assert found == f"['CPU', 'GPU', 'NVIDIA'] ['--as', 'b'] __main__ {program.parent}"


@pytest.mark.parametrize(
    ("arguments", "status"), [(["--as"], 2), (["--as", "GPU"], 2), ([], 2), (["-m"], 2), (["--help"], 0), (["-x"], 2)]
)
def test_usage(arguments: list[str], status: int, tmp_path: Path) -> None:
    run("-m", "ovgpu.run_with_openvino", *arguments, cwd=tmp_path, status=status)


GENERATING = """
import sys
from ovgpu.compile.devices import register_backend
from ovgpu.backends.cpu import CpuBackend
register_backend("NV" + "IDIA", CpuBackend)
import openvino_genai
from openvino_genai import GenerationConfig, LLMPipeline
pipeline = LLMPipeline(sys.argv[1], device=sys.argv[2])
print(repr(pipeline.generate("the cat", GenerationConfig(max_new_tokens=4))), openvino_genai.__name__)
"""


@pytest.fixture(scope="module")
def generating(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a program that generates text, and a folder `model` for it."""
    pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("genai")
    (folder / "program.py").write_text(GENERATING)
    (folder / "model").mkdir()
    make_folder("llama", folder / "model")
    return folder


@pytest.mark.parametrize(
    ("options", "device", "variables"),
    [(["--as", "AUTO,GPU"], "GPU", {}), ([], "NVIDIA", {}), ([], "CPU", {"OVGPU_INSTALL_AS": "CPU"})],
    ids=["as", "argument", "variable"],
)
def test_generation(options: list[str], device: str, variables: dict[str, str], generating: Path) -> None:
    """A program that imports openvino_genai gets ovgpu.genai."""
    words = ["-m", "ovgpu.run_with_openvino", *options, "program.py", "model", device]
    found = run(*words, cwd=generating, **variables)
    text = LLMPipeline(generating / "model", "CPU").generate("the cat", max_new_tokens=4)
    assert found == f"{text!r} openvino_genai"


def test_generation_without_openvino(generating: Path) -> None:
    code = (
        "import sys, runpy; sys.modules['openvino'] = None\n"
        "sys.argv = ['', '--as', 'CPU', 'program.py', 'model', 'CPU']\n"
        "runpy.run_module('ovgpu.run_with_openvino', run_name='__main__')"
    )
    assert run("-c", code, cwd=generating).endswith("openvino_genai")


@pytest.mark.parametrize(
    ("devices", "name", "expected"),
    [
        ({"CPU"}, "CPU", "NVIDIA"),
        ({"GPU"}, "GPU.1", "NVIDIA.1"),
        ({"GPU"}, "AUTO:GPU.1,CPU", "AUTO:NVIDIA.1,CPU"),
        ({"GPU", "CPU"}, "MULTI:GPU(2), CPU", "MULTI:NVIDIA(2), NVIDIA"),
        ({"CPU"}, "AUTO:-CPU", "AUTO:-CPU"),
        ({"GPU"}, "CPU", "CPU"),
        ({"AUTO"}, "AUTO", "AUTO"),
        ({"CPU"}, "CPUs", "CPUs"),
    ],
)
def test_names_of_devices(devices: set[str], name: str, expected: str, generating: Path) -> None:
    """They are renamed for pipelines and draft models, and folders are not."""
    module: Any = ModuleType("openvino_genai")
    genai._Loader(frozenset(devices)).exec_module(module)
    model = generating / "model"
    assert module.draft_model(model, name).device == module.draft_model(model, device=name).device == expected
    with pytest.raises(ovgpu.Error, match=r"^CPU has no"):
        module.LLMPipeline("CPU", name)


def test_a_pipeline_on_a_card(generating: Path) -> None:
    module: Any = ModuleType("openvino_genai")
    genai._Loader(frozenset({"CPU"})).exec_module(module)
    assert issubclass(module.LLMPipeline, LLMPipeline) and module.LLMPipeline.__name__ == "LLMPipeline"
    for arguments, keywords in (("CPU.99",), {}), ((), {"device": "CPU.99"}):
        with pytest.raises(ovgpu.Error, match=r"NVIDIA\.99"):
            module.LLMPipeline(generating / "model", *arguments, **keywords)


def test_a_module_in_place_of_openvino_genai(capsys: pytest.CaptureFixture[str]) -> None:
    module: Any = ModuleType("openvino_genai")
    genai._Loader(frozenset({"GPU"})).exec_module(module)
    assert capsys.readouterr().err == (
        "ovgpu: openvino_genai is ovgpu.genai in this program, where GPU means NVIDIA, and CPU is NumPy\n"
    )
    assert {"LLMPipeline", "__version__"} <= {*dir(module)} and module.GenerationConfig is GenerationConfig
    assert not hasattr(module, "__path__") and not hasattr(module, "LLMPipelines")


def test_no_card(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """openvino_genai, where it is installed, stays itself if names of its devices would mean a card. A line says so."""

    def resolve(name: str) -> str:
        raise ovgpu.DeviceError(f"no {name}")

    finder, name = genai._Finder(frozenset({"CPU"})), "openvino_genai"
    monkeypatch.setattr(sys, "path", [])
    assert finder.find_spec(name) is not None  # as it is not installed
    (tmp_path / f"{name}.py").touch()
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.setattr("ovgpu.compile.devices.resolve", resolve)
    assert finder.find_spec(name) is finder.find_spec(name) is None
    assert capsys.readouterr().err == "ovgpu: openvino_genai stays itself in this program: no NVIDIA\n"
    assert genai._Finder(frozenset()).find_spec(name) is not None


def test_generation_of_openvino_itself(generating: Path) -> None:
    """No card is named: another import of openvino_genai is none of ovgpu's."""
    code = "import importlib.util; print(importlib.util.find_spec('openvino_genai') is None)"
    (generating / "looks.py").write_text(code)
    expected = str(importlib.util.find_spec("openvino_genai") is None)
    assert run("-m", "ovgpu.run_with_openvino", "looks.py", "CPU", cwd=generating) == expected
    assert run("-m", "ovgpu.run_with_openvino", "looks.py", "NVIDIA", cwd=generating) == "False"


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """Return a folder with the files that a wheel puts beside the package."""
    folder = tmp_path / "site"
    folder.mkdir()
    shutil.copy(FOLDER / "startup.pth", folder / "ovgpu.pth")
    shutil.copy(FOLDER / "startup.py", folder / "_ovgpu_startup.py")
    return folder


@pytest.mark.parametrize(("value", "devices"), [("1", "['CPU', 'NVIDIA']"), ("0", "['CPU']"), ("", "['CPU']")])
def test_the_environment_variable(program: Path, site: Path, value: str, devices: str) -> None:
    code = f"import site, runpy; site.addsitedir({str(site)!r}); runpy.run_path({str(program)!r})"
    assert run("-c", code, cwd=site, OVGPU_INSTALL=value).startswith(devices)


def test_the_environment_variable_with_names(program: Path, site: Path) -> None:
    code = f"import site, runpy; site.addsitedir({str(site)!r}); runpy.run_path({str(program)!r})"
    assert run("-c", code, cwd=site, OVGPU_INSTALL_AS="AUTO,GPU").startswith("['CPU', 'GPU', 'NVIDIA']")


def test_the_environment_variable_and_the_command(program: Path, site: Path) -> None:
    """The command installs ovgpu, which imports openvino, which installs ovgpu."""
    code = (
        f"import site, sys, runpy; site.addsitedir({str(site)!r}); sys.argv = ['', {str(program)!r}]\n"
        "runpy.run_module('ovgpu.run_with_openvino', run_name='__main__')"
    )
    assert run("-c", code, cwd=site, OVGPU_INSTALL_AS="AUTO,GPU").startswith("['CPU', 'GPU', 'NVIDIA']")


def test_a_program_that_looks_for_openvino_first(program: Path, site: Path) -> None:
    code = (
        f"import site, runpy, importlib.util; site.addsitedir({str(site)!r})\n"
        f"assert importlib.util.find_spec('openvino'); runpy.run_path({str(program)!r})"
    )
    assert run("-c", code, cwd=site, OVGPU_INSTALL="1").startswith("['CPU', 'NVIDIA']")


@pytest.mark.parametrize(("value", "modules"), [("1", "{'_ovgpu_startup'}"), ("", "set()")])
def test_nothing_is_imported_at_the_start(site: Path, value: str, modules: str) -> None:
    code = (
        f"import site, sys; site.addsitedir({str(site)!r})\n"
        "print(sys.modules.keys() & {'_ovgpu_startup', 'ovgpu', 'openvino', 'numpy'})"
    )
    assert run("-c", code, cwd=site, OVGPU_INSTALL=value) == modules


def test_other_imports_of_openvino_fail_as_before(site: Path) -> None:
    code = (
        f"import site, sys; site.addsitedir({str(site)!r}); sys.path[:] = []\n"
        "try: import openvino\nexcept ModuleNotFoundError as e: print(e.name)"
    )
    assert run("-c", code, cwd=site, OVGPU_INSTALL="1") == "openvino"
