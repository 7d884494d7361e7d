"""Advice in errors works when followed; output paths are checked before the work; options without effect are said."""

from __future__ import annotations

import ast
import re
import signal
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ovgpu.cli import COMMANDS, main, parser
from tests.harness.ir import Net
from tests.runtime import models

from .conftest import Write

ROOT = Path(__file__).parents[2]


def convolution(shape: tuple[Any, ...], stages: int = 4) -> Net:
    """Return convolutions with stride 2, which do not fit an image of one pixel; the input has this shape, NCHW."""
    net = Net("convolution")
    x = net.parameter("f32", shape, "pixel_values")
    window = {"strides": "2,2", "pads_begin": "0,0", "pads_end": "0,0", "dilations": "1,1"}
    for _ in range(stages):
        x = net.layer("Convolution", "opset1", [x, net.const(np.full((3, 3, 3, 3), 0.1, "f4"))], window)
    net.result(x)
    return net


def channels_last(shape: tuple[Any, ...]) -> Net:
    """Return the same for an input in NHWC."""
    net = Net("channels_last")
    x = net.parameter("f32", shape, "pixels")
    x = net.layer("Transpose", "opset1", [x, net.const(np.array([0, 3, 1, 2]))])
    window = {"strides": "2,2", "pads_begin": "0,0", "pads_end": "0,0", "dilations": "1,1"}
    net.result(net.layer("Convolution", "opset1", [x, net.const(np.full((3, 3, 3, 3), 0.1, "f4"))], window))
    return net


def pair(first: Any, second: Any) -> Net:
    """Return the sum of two inputs."""
    net = Net("pair")
    net.result(net.layer("Add", "opset1", [net.parameter("f32", first, "a"), net.parameter("f32", second, "b")]))
    return net


DYNAMIC = {
    "rows": models.chain((-1, 3)),
    "images": convolution((-1, 3, -1, -1)),
    "images of one height": convolution((1, 3, 64, -1)),
    "bounded images": convolution((-1, 3, "32..128", "300..400")),
    "channels last": channels_last((-1, -1, -1, 3)),
    "two inputs": pair((-1, 3), (-1, -1)),
    "bounded": pair(("2..4", 3), ("2..8", 3)),
    "any rank": pair(("...",), ("...",)),
}


def followed(capsys: pytest.CaptureFixture[str], *argv: str, option: str) -> str:
    """Run a command, and again with each shape that its error suggests. Return what the last one printed."""
    advised: list[str] = []
    for _ in range(3):
        given = [option, ",".join(advised)] if advised else []
        if main([*argv, *given]) == 0:
            return capsys.readouterr().out
        message = capsys.readouterr().err
        advice = re.search(rf"{option} (\S+\])", message)
        assert advice, message
        advised.append(advice[1])
    raise AssertionError(message)


@pytest.mark.parametrize("kind", DYNAMIC)
@pytest.mark.parametrize("command", ["run", "compare", "info"])
def test_suggested_shapes_work(command: str, kind: str, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    options = {"run": ["-d", "CPU"], "compare": ["-d", "CPU", "--against", "openvino"], "info": ["--plan"]}[command]
    if command == "compare":
        pytest.importorskip("openvino")
        if kind == "any rank":
            pytest.skip("OpenVINO's CPU plugin takes no input of dynamic rank")
    assert followed(capsys, command, write(DYNAMIC[kind]), *options, option="--shape")


@pytest.mark.parametrize("kind", DYNAMIC)
def test_suggested_data_shapes_work(kind: str, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(DYNAMIC[kind])
    assert "Throughput" in followed(capsys, "benchmark", path, "-niter", "1", "-d", "CPU", option="-data_shape")


def texts(tree: ast.AST) -> list[str]:
    """Return the texts in exceptions that are raised, and in warnings."""
    found = []
    for node in ast.walk(tree):
        is_raised = isinstance(node, ast.Raise)
        is_warning = isinstance(node, ast.Call) and getattr(node.func, "attr", getattr(node.func, "id", "")) == "warn"
        if is_raised or is_warning:
            found += [c.value for c in ast.walk(node) if isinstance(c, ast.Constant) and isinstance(c.value, str)]
    return found


def test_options_commands_and_extras_in_errors_exist() -> None:
    commands = next(action.choices for action in parser()._actions if action.dest == "command")
    assert isinstance(commands, dict)
    known = {option for command in commands.values() for option in command._option_string_actions}
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    seen = []
    for file in sorted((ROOT / "ovgpu").rglob("*.py")):
        for extra in re.findall(
            r"""(?:\.\[|install_command\(["'])(\w+)(?:\]"|["']\))""", file.read_text(encoding="utf-8")
        ):
            assert extra in extras, (file, extra)
            seen.append(extra)
        for text in texts(ast.parse(file.read_text(encoding="utf-8"))):
            text = re.sub(r"`?optimum-cli [^`]*`?", "", text)
            for option in re.findall(r"(?<![\w-])--[a-z][\w-]*", text):
                assert option in known or option == "--insecure", (file, text)
                seen.append(option)
            for command in re.findall(r"(?:`|python -m )ovgpu (\w+)", text):
                assert command in COMMANDS, (file, text)
                seen.append(command)
    assert len(set(seen)) > 15, sorted(set(seen))


@pytest.mark.parametrize(
    "argv",
    [
        ["run", "{model}", "--save", "{file}"],
        ["info", "{model}", "--graph", "{file}.dot"],
        ["info", "{model}", "--html", "{file}"],
        ["benchmark", "{model}", "-niter", "1", "-exec_graph_path", "{file}"],
        ["benchmark", "{model}", "-niter", "1", "-dump_config", "{file}"],
        ["benchmark", "{model}", "-niter", "1", "--trace", "{file}"],
        ["benchmark", "{model}", "-niter", "1", "-report_type", "no_counters", "-report_folder", "{model}/reports"],
        ["generate", "{folder}", "Hello", "--json", "{file}"],
    ],
    ids=lambda argv: " ".join(argv[:1] + argv[-2:-1]),
)
def test_output_paths_are_checked_first(
    argv: list[str], write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file's folder does not exist, and to read a model would be an error here."""
    names = {"model": write(models.chain((2, 3))), "file": str(tmp_path / "none" / "out"), "folder": str(tmp_path)}
    monkeypatch.setattr("ovgpu.api.core.Core.read_model", None)
    monkeypatch.setattr("ovgpu.cli.generate.command._folder", None)
    assert main([text.format(**names) for text in argv]) == 1
    message = capsys.readouterr().err
    assert "none" in message or "reports" in message


def test_options_without_effect_are_said(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, labels = write(models.chain((2, 3))), tmp_path / "labels.txt"
    labels.write_text("cat\ndog\n")
    run = ["run", model, "-d", "CPU"]
    for options, said in (
        (["--mean_values", "[1,2,3]", "--bgr"], "no input is an image, so --mean_values and --bgr has no effect"),
        (["--labels", str(labels)], "--labels has no effect without --top"),
        (["--labels", str(labels), "--top", "1"], "has 2 names for 3 classes"),
    ):
        assert main([*run, *options]) == 0
        assert said in " ".join(capsys.readouterr().out.split())
    np.save(tmp_path / "x.npy", np.ones((2, 3), "f4"))
    assert main([*run, "--input", str(tmp_path / "x.npy"), "--shape", "[4,3]"]) == 1
    assert "--shape x=[4,3]: its --input has shape [2, 3]" in capsys.readouterr().err
    dynamic = ["run", write(models.chain((-1, 3))), "--input", str(tmp_path / "x.npy")]
    assert main([*dynamic, "--shape", "[4,3]"]) == 1
    assert "--shape x=[4,3]: its --input has shape [2, 3]" in capsys.readouterr().err
    assert main([*dynamic, "--shape", "[2,3]"]) == 0
    assert main([*dynamic, "--shape", "[2,3][4,3]"]) == 1
    assert "--shape gives input 'x' 2 shapes, and it takes one" in capsys.readouterr().err
    assert main([*run, "--top", "-3"]) == 1
    assert "--top must not be negative: -3" in capsys.readouterr().err


def test_names_of_classes_are_read_first(
    write: Write, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("ovgpu.api.core.Core.compile_model", None)
    assert main(["run", write(models.chain((2, 3))), "--top", "1", "--labels", "none.txt"]) == 1
    assert "none.txt" in capsys.readouterr().err


def test_image_inputs_are_random(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    net = Net("bytes")
    x = net.parameter("u8", (1, 3, 16, 16), "image")
    net.result(net.layer("Convert", "opset1", [x], {"destination_type": "f32"}))
    assert main(["benchmark", write(net), "-niter", "1", "-d", "CPU"]) == 0
    assert "input 'image'!. This input will be filled with random values!" in capsys.readouterr().out


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGINT for one process")
def test_ctrl_c_during_imports_shows_no_traceback() -> None:
    """The interrupt comes while numpy's first submodule is imported, and while the commands are."""
    for module in ("numpy.linalg", "ovgpu.cli.info"):
        code = (
            "import os, runpy, signal, sys\n"
            "class Finder:\n"
            "    def find_spec(self, name, *_):\n"
            f"        if name == {module!r}: os.kill(os.getpid(), signal.SIGINT)\n"
            "sys.meta_path.insert(0, Finder())\n"
            "sys.argv = ['ovgpu', 'ops']\n"
            "import ovgpu.cli\n"
            "sys.exit(ovgpu.cli.main())\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (-signal.SIGINT, "")
