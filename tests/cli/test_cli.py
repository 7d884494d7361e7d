"""All commands but benchmark: their output, files and errors."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import ovgpu
from ovgpu.backends.cuda import kernels, rt
from ovgpu.cli import demo, main, parser
from ovgpu.cli.ops import forms, where
from ovgpu.ops import registry
from ovgpu.passes import PASSES
from tests.emulator import blas_emu, blaslt_emu, cupy_emu, driver_emu
from tests.emulator.device import devices as emulated_devices
from tests.harness.ir import Net
from tests.harness.models import transformer
from tests.harness.models.drive import DATA
from tests.runtime import models

from .conftest import Write


def output(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    assert main(argv) == 0
    out, err = capsys.readouterr()
    assert err == ""
    return out


def error(capsys: pytest.CaptureFixture[str], *argv: str) -> str:
    """Return the one line that a failing command prints."""
    assert main(argv) == 1
    err = capsys.readouterr().err
    assert err.startswith("ovgpu: error: ") and err.count("\n") == 1
    return err.removeprefix("ovgpu: error: ").rstrip()


def words(text: str) -> str:
    return " ".join(text.split())


# ---- run


@pytest.mark.quick
def test_run(stateful: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = tmp_path / "out"  # NumPy would add a suffix
    text = output(capsys, "run", stateful, "--input", "ones", "--steps", "3", "--save", str(saved))
    assert "stateful on CPU: 3 inferences, 1 state variable" in text
    assert re.search(r"add +float32 +\[1,8\] +3 +3 +3 +3 3 \.\.\.", text)
    assert re.search(r"\bs +float32 +\[1,8\] +3 +3 +3", text)
    assert re.search(r"latency: first [\d.]+ ms, then median [\d.]+ ms \([\d.]+ to [\d.]+\) over 2", text)
    with np.load(saved) as arrays:
        assert sorted(arrays) == ["add.0", "add.1", "add.2"]
        np.testing.assert_array_equal(arrays["add.1"], np.full((1, 8), 2, "f4"))


def test_run_saves_to_devices(stateful: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "saved 1 array to /dev/null" in output(capsys, "run", stateful, "--save", "/dev/null")
    assert "No space left on device: '/dev/full'" in error(capsys, "run", stateful, "--save", "/dev/full")


def test_run_reads_files(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = np.array([[1, -2, 3]], "f4")
    np.save(tmp_path / "x.npy", x)
    output(
        capsys,
        "run",
        write(models.chain((-1, 3))),
        "--input",
        f"x={tmp_path / 'x.npy'}",
        "--save",
        str(tmp_path / "out.npz"),
    )
    with np.load(tmp_path / "out.npz") as arrays:
        np.testing.assert_array_equal(arrays["mul"], np.maximum(x + 1, 0))


def test_run_seed_and_shape(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, found = write(models.chain((-1, 3))), []
    for seed in "0", "0", "1":
        output(capsys, "run", model, "--shape", "x=[4,3]", "--seed", seed, "--save", str(tmp_path / "out.npz"))
        with np.load(tmp_path / "out.npz") as arrays:
            found.append(arrays["mul"])
    assert found[0].shape == (4, 3)
    np.testing.assert_array_equal(found[0], found[1])
    assert not np.array_equal(found[0], found[2])


def test_run_saves_types_that_numpy_lacks(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = Net("bf16")
    net.result(net.layer("Relu", "opset1", [net.parameter("bf16", (2,), "x")], name="relu"))
    output(capsys, "run", write(net), "--input", "ones", "--save", str(tmp_path / "out.npz"))
    with np.load(tmp_path / "out.npz") as arrays:
        assert arrays["relu"].dtype == np.float32 and arrays["relu"].tolist() == [1, 1]


def test_run_saves_strings_and_small_integers(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = Net("saved")
    x, y = net.parameter("string", (1,), "x"), net.parameter("f32", (2,), "y")
    net.result(
        net.layer("Reshape", "opset1", [x, net.const(np.array([1, 1]))], {"special_zero": False}, ["string"], name="s")
    )
    for kind in ("u4", "i4", "boolean"):
        net.result(net.layer("Convert", "opset1", [y], {"destination_type": kind}, [kind], name=kind))
    given = "--input", "x=\u00fcber", "--input", "y=[3,1]"
    output(capsys, "run", write(net), "-d", "CPU", *given, "--save", str(tmp_path / "out.npz"))
    with np.load(tmp_path / "out.npz") as arrays:
        assert arrays["s"].tolist() == [["\u00fcber"]]
        assert {name: (arrays[name].dtype, arrays[name].tolist()) for name in ("u4", "i4", "boolean")} == {
            "u4": (np.uint8, [3, 1]),
            "i4": (np.int8, [3, 1]),
            "boolean": (np.bool_, [True, True]),
        }


@pytest.mark.parametrize("dtype", [ml_dtypes.bfloat16, np.float16, np.float32])
def test_run_reads_bf16(dtype: Any, write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file of bf16, which NumPy writes as bytes without a type, and files of numbers: the values are the same."""
    net = Net("bf16")
    net.result(net.layer("Relu", "opset1", [net.parameter("bf16", (2,), "x")], name="relu"))
    np.save(tmp_path / "x.npy", np.array([1.5, 3], dtype))
    output(capsys, "run", write(net), "--input", str(tmp_path / "x.npy"), "--save", str(tmp_path / "out.npz"))
    with np.load(tmp_path / "out.npz") as arrays:
        assert arrays["relu"].tolist() == [1.5, 3]
    (tmp_path / "x.npy").write_bytes(b"")
    assert "x.npy is no .npy file of an array" in error(capsys, "run", write(net), "--input", str(tmp_path / "x.npy"))


@pytest.mark.parametrize("shape", [[], ["--shape", "input_ids=[1,1]"]])
def test_run_continues_a_sequence(
    shape: list[str], decoder: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A language model with a state gets one token of one sequence by default."""
    output(capsys, "run", decoder, *shape, "--steps", "4", "--save", str(tmp_path / "out.npz"))
    with np.load(tmp_path / "out.npz") as arrays:
        assert arrays["seen.3"].tolist() == [[1, 2, 3, 4]]  # positions 0 to 3, and a mask of ones
    text = words(output(capsys, "info", decoder, "--plan", *shape))
    assert "Plan for input_ids [1, 1], attention_mask [1, 1], position_ids [1, 1]" in text


@pytest.mark.parametrize(
    "value, shape, expected",
    [
        ("0.5", ["--shape", "[2,3]"], [[0.5] * 3] * 2),
        ("-2", ["--shape", "[1,3]"], [[-2] * 3]),
        ("[[1,2,3]]", [], [[1, 2, 3]]),
        ("x.bin", ["--shape", "[1,3]"], [[1, -2, 3]]),
    ],
)
def test_values_on_the_command_line(
    value: str,
    shape: list[str],
    expected: list[list[float]],
    write: Write,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    np.array([1, -2, 3], "f4").tofile("x.bin")
    output(capsys, "run", write(models.chain((-1, 3))), "--input", value, *shape, "--save", "out.npz")
    with np.load("out.npz") as arrays:
        np.testing.assert_array_equal(arrays["mul"], np.maximum(np.array(expected) + 1, 0))
    if value == "x.bin":
        assert "x.bin has 12 bytes, but input 'x' of shape [2, 3] and type f32 takes 24" in error(
            capsys, "run", "chain.xml", "--input", value, "--shape", "[2,3]"
        )


def test_text_on_the_command_line(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    net = Net("text")
    net.result(
        net.layer(
            "Reshape",
            "opset1",
            [net.parameter("string", (-1,), "x"), net.const([1, 1])],
            {"special_zero": False},
            ["string"],
            names=["same"],
        )
    )
    output(capsys, "run", write(net), "--input", "x=to be", "--save", str(tmp_path / "out.npz"))
    with np.load(tmp_path / "out.npz") as arrays:
        assert arrays["same"].tolist() == [["to be"]]


def test_models_in_folders(write: Write, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A folder of optimum-intel has a model beside those of the tokenizer."""
    pytest.importorskip("openvino")  # for compare
    for name in ("openvino_tokenizer", "openvino_detokenizer", "net"):
        net = models.chain()
        net.name = name
        write(net)
    assert "net on CPU" in output(capsys, "run", str(tmp_path))
    (tmp_path / "net.xml").rename(tmp_path / "openvino_model.xml")
    (tmp_path / "net.bin").rename(tmp_path / "openvino_model.bin")
    write(models.stateful())
    for command in (["run"], ["info"], ["benchmark", "-niter", "1"], ["compare"]):
        output(capsys, command[0], str(tmp_path), *command[1:])
    (tmp_path / "openvino_model.xml").unlink()
    write(models.loop())
    assert "has several .xml files (loop.xml, stateful.xml)" in error(capsys, "info", str(tmp_path))


def test_onnx(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """openvino reads ONNX."""
    pytest.importorskip("openvino")
    onnx = pytest.importorskip("onnx")
    make, path = onnx.helper, str(tmp_path / "relu.onnx")
    info = [make.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2, 3]) for name in "xy"]
    graph = make.make_graph([make.make_node("Relu", ["x"], ["y"])], "relu", info[:1], info[1:])
    onnx.save(make.make_model(graph, opset_imports=[make.make_opsetid("", 13)], ir_version=8), path)
    for argv in (["run", path], ["info", path, "--plan"], ["benchmark", path, "-niter", "1"], ["compare", path]):
        assert "y" in output(capsys, *argv)


@pytest.mark.parametrize(
    "argv, message",
    [
        (["--shape", "x=[1,4]"], "input 'x' has shape [?,3], not [1,4]"),
        ([], "input 'x' has the dynamic shape [?,3]: give it with --shape x=[1,3]"),
        (["--shape", "x=4"], "cannot read the shape 'x=4': write [1,3] or name=[1,3]"),
        (["--shape", "y=[1,3]"], "y"),
        (["--input", "nothing.npy"], "nothing.npy"),
        (["--input", "x=[[1,2"], "--input x=[[1,2: it takes a .npy or .bin file, an image, a number or [list], random"),
        (["--input", "xx=ones"], "The model has: x; did you mean 'x'?"),
        (["--input", "y=ones", "--shape", "[1,3]"], "y"),
        (["--steps", "0"], "--steps must be at least 1, not 0"),
        (["--device", "TPU"], 'Device with "TPU" name is not registered in ovgpu: there are CPU and AUTO'),
        (["--device", "NVIDA"], "did you mean 'NVIDIA'?"),
        (["--device", "GPU"], "where GPUs are named NVIDIA, and none can be used: "),
    ],
)
def test_run_errors(argv: list[str], message: str, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert message in error(capsys, "run", write(models.chain((-1, 3))), *argv)


def test_errors_are_raised_when_debugging(capsys: pytest.CaptureFixture[str]) -> None:
    assert "no.xml" in error(capsys, "run", "no.xml")
    with ovgpu.DEBUG(1), pytest.raises(ovgpu.Error):
        main(["run", "no.xml"])


# ---- info


@pytest.mark.quick
def test_info(stateful: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = words(output(capsys, "info", stateful))
    assert "6 layers, 32 B of weights in 1 constant " in text
    for row in ("input 0 x [1,8] f32", "output 0 add [1,8] f32", "state s [1,8] f32", "Add-1: 1,", "ReadValue-6: 1,"):
        assert row in text, row
    assert "Plan" not in text
    assert "--times measures the steps of the plan: add --plan" in error(capsys, "info", stateful, "--times")


@pytest.mark.parametrize("command", [["info"], ["info", "--plan", "-d", "CPU"], ["run", "-d", "CPU"]])
def test_names_that_look_like_markup(command: list[str], write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    net = Net("plain")
    net.result(net.layer("Abs", "opset1", [net.parameter("f32", (2,), "[bold]x[/]")], name="[/y]", names=["[/z]"]))
    path = Path(write(net))
    path.write_text(path.read_text().replace('<net name="plain"', '<net name="[/x][red]m"'))
    text = output(capsys, command[0], str(path), *command[1:])
    assert "[/x][red]m" in text and "[/z]" in text


def test_info_of_a_decoder(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """A decoder of 32 layers is one screen: variables of one shape and equal layers are listed once."""
    monkeypatch.setenv("COLUMNS", "160")
    decoder = str(tmp_path / "llama.xml")
    model = ovgpu.read_model(*transformer.llama(1, transformer.Sizes(32, 48, 4, 96, 211, 64)).ir)
    ovgpu.save_model(model, decoder, compress_to_fp16=False)
    text = output(capsys, "info", decoder, "--plan", "-d", "CPU")
    assert len(text.splitlines()) < 90
    assert re.search(r"states +64 +\S+\.0\S+ to \S+\.31\S+ +\[\?,4,\?,12\] +f32", text)
    assert re.search(r"× 32 +\S+ to \S+, [\d.]+ MB moved in all", text)
    ((listed, steps),) = [tuple(map(int, pair)) for pair in re.findall(r"(\d+) of (\d+) steps are listed", text)]
    rows = re.findall(r"^ *(\d+)  \w", text, re.MULTILINE)
    assert len(set(rows)) == listed < 60 < steps and "  view  " not in text
    unfolded = output(capsys, "info", decoder, "--plan", "-d", "CPU", "--unfolded")
    assert len(re.findall(r"^ *\d+  \w", unfolded, re.MULTILINE)) == steps and "  view  " in unfolded
    assert "past_key_values.17" in unfolded and "× 32" not in unfolded


def test_info_of_devices(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    rt.bind(cupy_emu, blas_emu, False, blaslt_emu)
    try:
        with emulated_devices(2):
            text = words(output(capsys, "info"))
            for number in (0, 1):
                card = rf"NVIDIA.{number} ovgpu emulated device, sm_90, 132 multiprocessors, [\d.]+ GB of 80.0 GB free"
                assert re.search(card, text)  # other tests may have left arrays on the device
            assert text.count("clusters of up to 16 blocks") == 2
            assert "driver" in text and "CUDA 13.0; CuPy 14.2.0, CUDA 13.0, NVRTC 13.0, cuBLAS 13.0.0" in text
            monkeypatch.setattr(blas_emu, "get_property", lambda part: 1 // 0)
            text = words(output(capsys, "info"))
            assert "cannot be used: cuBLAS cannot be loaded: ZeroDivisionError" in text and "NVRTC 13.0" in text
            monkeypatch.undo()

            def no_headers(*_: object, **__: object) -> None:
                raise cupy_emu.cuda.compiler.CompileException('cannot open source file "cuda_fp16.h"')

            monkeypatch.setattr(cupy_emu.cuda.compiler, "compile_using_nvrtc", no_headers)
            text = words(output(capsys, "info"))
            assert "cannot be used: a kernel that does nothing does not compile" in text
            assert 'one of CUDA\'s headers: pip install ".[cuda13]"' in text
        with emulated_devices(0):
            text = words(output(capsys, "info"))
            assert text.startswith(f"ovgpu {ovgpu.version.OWN}") and "\nCPU" in output(capsys, "info")
            assert "NVIDIA cannot be used: CUDA finds no NVIDIA GPU" in text
    finally:
        rt.bind(None, None)


def test_info_with_a_plan(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    text = words(output(capsys, "info", write(models.loop()), "--plan", "--shape", "[5,4]"))
    assert "Plan for x [5, 4]" in text and "body × 5" in text and "160 B moved" not in text
    assert f"{5 * 5 * 16 + 2 * 5 * 16} B moved per inference" in text
    assert "control runs the steps of a loop or branch" in text and "eager" not in text
    assert "; 2 symbol values; " in text and "symbol values numbers that are known when the model runs" in text
    absent = "- an input of a step that is absent, or whose value is known on the host"
    static = words(output(capsys, "info", write(models.chain()), "--plan", "-d", "CPU"))
    assert absent not in text and "symbol value" not in static
    assert absent in words(output(capsys, "info", str(DATA / "llama" / "model.xml"), "--plan", "-d", "CPU"))


def test_info_with_times(write: Write, capsys: pytest.CaptureFixture[str], emulated: str) -> None:
    """On a card, the plan has the times of its steps; those of a decoder are of a decode step."""
    text = words(output(capsys, "info", write(models.chain()), "--plan", "-d", emulated))
    assert re.search(r"calls us .* \d+ us in \d+ steps", text)
    assert "moved per inference" in words(output(capsys, "info", write(models.chain()), "--plan"))
    assert " us in " not in words(output(capsys, "info", write(models.chain()), "--plan", "-d", "CPU"))
    timed = words(output(capsys, "info", write(models.chain()), "--plan", "--times", "-d", "CPU"))
    assert re.search(r"\d+ us in \d+ steps", timed)
    decoder = words(output(capsys, "info", str(DATA / "llama" / "model.xml"), "--plan", "-d", emulated))
    assert "RotaryAttention" in decoder and re.search(r"\d+ us in \d+ steps", decoder)


def test_info_of_clusters_that_do_not_fit(
    write: Write, capsys: pytest.CaptureFixture[str], emulated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The driver refuses to launch clusters that it found room for; the plan says which."""
    net = Net()
    q, *keys = (net.parameter("f16", shape) for shape in ((1, 2, 1, 64), (1, 2, 2048, 64), (1, 2, 2048, 64)))
    net.result(net.layer("ScaledDotProductAttention", "opset13", [q, *keys], {"causal": False}))
    command = ["info", write(net), "--plan", "-d", emulated]
    monkeypatch.setattr(kernels, "_refused", {})
    kernels.of_file.cache_clear()  # kernels remember what fits
    assert "do not fit" not in words(output(capsys, *command))
    kernels.of_file.cache_clear()
    with driver_emu.largest_cluster(16, launched=1):
        text = words(output(capsys, *command))
    kernels.of_file.cache_clear()
    assert re.search(r"clusters of 16 blocks with [\d.]+ KB of shared memory do not fit on the card", text)
    assert "exchange sums through device memory: attend_stream<__half, NONE, 64, 64, 8, " in text


def test_info_names_unsupported_ops(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    net = Net("strange")
    net.result(net.layer("Frobnicate", "opset1", [net.parameter("f32", (2,), "x")], name="frob"))
    path = write(net)
    assert "Frobnicate-1: 1 not supported" in words(output(capsys, "info", path))
    assert "unsupported operations: Frobnicate of opset1 (layer 'frob')" in error(capsys, "info", path, "--plan")


# ---- ops


def test_ops_lists_the_registry(capsys: pytest.CaptureFixture[str]) -> None:
    text = output(capsys, "ops")
    classes = list(registry())
    names = {cls.name for cls in classes}
    assert names <= set(re.findall(r"^ *(\w+) ", text, re.MULTILINE))
    assert f"{len(names)} operations in {len(classes)} versions" in text


def test_ops_as_markdown(capsys: pytest.CaptureFixture[str]) -> None:
    lines = output(capsys, "ops", "--markdown").splitlines()
    assert lines[2] == "| op | versions | NumPy | CUDA | CuPy | NVIDIA plugin | file |"
    pages = "https://docs.openvino.ai/2026/documentation/openvino-ir-format/operation-sets/operation-specs"
    assert (
        f"| Softmax | [1]({pages}/activation/softmax-1.html), [8]({pages}/activation/softmax-8.html) | ✓ | ✓ |  "
        "| ✓ | [softmax.py](activation/softmax.py) |"
    ) in lines
    assert (
        f"| NonZero | [3]({pages}/condition/nonzero-3.html) | ✓ |  | ✓ |  | [selection.py](sort/selection.py) |"
    ) in lines
    assert all(line.count("|") == 8 for line in lines[2:])


def test_passes(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    lines = [line.split() for line in output(capsys, "ops", "--passes").splitlines() if line.strip()]
    assert [line[0] for line in lines[2:]] == [entry.name for entry in PASSES]
    assert ["fuse_add_norms", "fuse", "CUDA", "Add", "→", "ScaledMVN", "or", "ScaledRMS", "AddNorm"] in lines


def test_one_op(capsys: pytest.CaptureFixture[str]) -> None:
    text = words(output(capsys, "ops", "relu"))
    cls = next(c for c in registry() if c.name == "Relu")
    file, line = where(cls)
    assert f"Relu-1 {', '.join(forms(cls))} {file}:{line}" in text and "also called ReLU" in text
    softmax = words(output(capsys, "ops", "Softmax"))
    assert "Softmax-1 " in softmax and "Softmax-8 " in softmax and "axis int 1" in softmax
    assert "required" in output(capsys, "ops", "ReadValue")


def test_where_points_at_the_class() -> None:
    cls = next(c for c in registry() if c.name == "Softmax" and c.version == "opset8")
    file, line = where(cls)
    lines = (Path(ovgpu.__file__).parents[1] / file).read_text(encoding="utf-8").splitlines()
    assert "Softmax" in lines[line - 1] or "Softmax" in lines[line]


def test_forms() -> None:
    by_name = {cls.name: forms(cls) for cls in registry()}
    assert by_name["Parameter"] == by_name["Loop"] == by_name["Assign"] == ["runtime"]
    assert by_name["ShapeOf"] == ["host"]
    assert by_name["Transpose"][0] == "view" and by_name["Exp"] == ["NumPy", "CUDA"]


def test_unknown_op(capsys: pytest.CaptureFixture[str]) -> None:
    assert error(capsys, "ops", "Sotmax").startswith("there is no operation 'Sotmax'; there is Softmax")


# ---- demo


@pytest.mark.parametrize("columns", ["80", "120"])
def test_demo(columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    text = output(capsys, "demo", "--device", "CPU")
    assert max(map(len, text.splitlines())) <= int(columns)
    flat = words(text)
    assert flat.count("✓") == 2 and "5 calls against a loop in plain NumPy: largest difference" in flat
    assert "LSTMSequence" in flat and "0 0 0 7" in flat
    assert "after reset_state()" in flat and "4 5 6 7 after" not in flat
    assert "latency" not in flat and "On an NVIDIA card, a call is one launch of a CUDA graph" in flat
    assert all(command in flat for command, _ in demo.next_commands(None))


def test_demo_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The commands that the demo suggests work; that of the server is only parsed."""
    text = words(output(capsys, "demo", "--device", "CPU", "--save", str(tmp_path)))
    commands = [command.split()[1:] for command, _ in demo.next_commands(tmp_path)]
    assert [command[0] for command in commands] == ["serve", "benchmark", "run"]
    assert all(" ".join(command) in text for command in commands)
    parser().parse_args(commands[0])
    assert main([*commands[1][:-2], "-niter", "1", "-d", "CPU"]) == main([*commands[2], "-d", "CPU"]) == 0


def test_demo_checks_its_numbers(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    right = demo.lstm_in_numpy
    monkeypatch.setattr(demo, "lstm_in_numpy", lambda x, h, c: tuple(v + 1e-3 for v in right(x, h, c)))
    assert main(["demo"]) == 1
    assert "computed something else than NumPy" in capsys.readouterr().err


# ---- as a program


@pytest.mark.quick
def test_as_a_program(stateful: str) -> None:
    command = [sys.executable, "-m", "ovgpu"]
    done = subprocess.run(
        [*command, "run", stateful],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii", "CUDA_VISIBLE_DEVICES": ""},
    )
    assert "stateful on CPU" in done.stdout and "\x1b" not in done.stdout and done.stderr == ""
    failed = subprocess.run([*command, "run", "no.xml"], capture_output=True, text=True)
    assert failed.returncode == 1 and failed.stderr.startswith("ovgpu: error: ") and "Traceback" not in failed.stderr


def test_unknown_commands_and_options(capsys: pytest.CaptureFixture[str]) -> None:
    for argv, message in (
        (["bench"], "there is no command 'bench'; did you mean 'benchmark'?"),
        (["run", "m.xml", "--inputs", "x"], "there is no option --inputs; did you mean '--input'?"),
        (["run", "m.xml", "--inp", "x"], "there is no option --inp"),  # no abbreviations
        (["benchmark", "-max_rate", "10"], "there is no option -max_rate"),
        (["benchmark", "-mmodel.xml"], "there is no option -mmodel.xml"),
    ):
        with pytest.raises(SystemExit) as stopped:
            main(argv)
        assert stopped.value.code == 2 and message in capsys.readouterr().err


def test_version_and_usage(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0 and capsys.readouterr().out == f"ovgpu {ovgpu.version.OWN}\n"
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert stopped.value.code == 2 and "COMMAND" in capsys.readouterr().err
