"""`ovgpu compare DIR`: all models of a folder against OpenVINO, each in a process of its own."""

from __future__ import annotations

import os
import time
from pathlib import Path

import numpy as np
import pytest

from ovgpu.cli import main
from ovgpu.cli.compare import outputs
from ovgpu.cli.compare.models import outcomes
from ovgpu.cli.compare.outputs import (
    DIFFERS,
    ENDED,
    EQUAL,
    NEITHER,
    ONLY_OPENVINO,
    ONLY_OVGPU,
    UNFUSED,
    Distances,
    outcome_of,
)
from tests.harness.ir import Net
from tests.harness.replay import EMULATED
from tests.runtime import models
from tests.wild.card import emulate

pytest.importorskip("openvino")


def save(net: Net, folder: Path) -> Path:
    path = folder / f"{net.name}.xml"
    folder.mkdir(parents=True, exist_ok=True)
    xml, weights = net.build()
    path.write_bytes(xml)
    path.with_suffix(".bin").write_bytes(weights)
    return path


def quantized() -> Net:
    """Return a convolution of images whose input is quantized to 8 bits."""
    net = Net("quantized")
    x = net.parameter("f32", (1, 3, -1, -1), "image")
    limits = [net.const(np.float32(v)) for v in (0, 2.5, 0, 2.5)]
    x = net.layer("FakeQuantize", "opset1", [x, *limits], {"levels": 256})
    weights = np.random.default_rng(0).normal(0, 1, (4, 3, 3, 3)).astype("f4")
    window = {"strides": "1,1", "pads_begin": "0,0", "pads_end": "0,0", "dilations": "1,1"}
    net.result(net.layer("Convolution", "opset1", [x, net.const(weights)], window))
    return net


def test_all_models_of_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(models.chain((-1, 3)), tmp_path / "a")
    save(models.stateful(), tmp_path / "b" / "c")
    save(quantized(), tmp_path)
    (tmp_path / "settings.xml").write_text("<settings/>")
    (tmp_path / "old.xml").write_text('<?xml version="1.0"?>\n<net name="old" version="4"><layers/></net>\n')
    (tmp_path / "old.bin").write_bytes(b"")
    assert main(["compare", str(tmp_path), "-d", "CPU"]) == 0
    text = capsys.readouterr().out
    assert "3 equal, 1 neither runs it" in text and "settings" not in text
    for name in ("a/chain.xml: equal", "b/c/stateful.xml: equal", "quantized.xml: equal"):
        assert name in text
    assert "IR version 4 is not supported" in text


@pytest.mark.drawn(4)
@pytest.mark.parametrize("kind", ["bf16", "f8e4m3", "f8e5m2", "u4", "i4", "u2", "nf4", "boolean", "f64", "string"])
def test_types_that_numpy_lacks(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The input is the output, in a folder and layer by layer."""
    for number in range(2):
        net = Net(f"same{number}")
        net.result(net.parameter(kind, (3, 5), "x"))
        save(net, tmp_path)
    assert main(["compare", str(tmp_path), "-d", "CPU"]) == 0, capsys.readouterr()
    if kind != "string":
        assert main(["compare", str(tmp_path / "same0.xml"), "-d", "CPU", "--input", "ones"]) == 0


def test_odd_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(models.chain((2, 3)), tmp_path / "z")
    save(models.stateful(), tmp_path)
    (tmp_path / "folder.xml").mkdir()
    (tmp_path / "link.xml").symlink_to(tmp_path / "nothing.xml")
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "a.xml")
    assert main(["compare", str(tmp_path), "-d", "CPU"]) == 0
    assert "2 equal" in capsys.readouterr().out
    assert main(["compare", str(tmp_path), "-d", "NVIDIA.7"]) == 1
    assert "alone" not in capsys.readouterr().out


def test_options_of_one_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(models.chain((2, 3)), tmp_path / "a")
    save(models.stateful(), tmp_path / "b")
    assert main(["compare", str(tmp_path), "-d", "CPU", "--shape", "[1,3]"]) == 1
    assert "--shape cannot be used with a folder of several models" in capsys.readouterr().err
    for options, text in ((["--time-limit", "nan"], "above 0"), (["--tolerance", "-1"], "at least 0")):
        assert main(["compare", str(tmp_path), "-d", "CPU", *options]) == 1
        assert text in capsys.readouterr().err
    assert main(["compare", str(tmp_path / "a"), "-d", "CPU", "--time-limit", "5"]) == 1
    assert "--time-limit is for a folder" in capsys.readouterr().err
    (tmp_path / "none").mkdir()
    assert main(["compare", str(tmp_path / "none"), "-d", "CPU"]) == 1
    assert "there is no OpenVINO IR in the folder" in capsys.readouterr().err
    huge = str(save(models.chain((-1, 3)), tmp_path / "c"))
    assert main(["run", huge, "-d", "CPU", "--shape", "[99999999999,3]"]) == 1
    assert "Unable to allocate" in capsys.readouterr().err


def test_one_model_in_a_folder_is_compared_by_layers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save(models.chain((2, 3)), tmp_path)
    assert main(["compare", str(tmp_path), "-d", "CPU"]) == 0
    assert "outputs of layers" in capsys.readouterr().out


def test_on_the_emulated_card(tmp_path: Path) -> None:
    """The process of a model makes its own card."""
    save(models.chain((2, 3)), tmp_path)
    (found,) = outcomes(tmp_path, EMULATED, 0, 1e-3, 120, emulate)
    assert found.result == EQUAL, found


def leave() -> None:
    os._exit(3)


def sleep() -> None:
    time.sleep(60)


def test_a_process_that_ends_or_takes_too_long(tmp_path: Path) -> None:
    save(models.chain((2, 3)), tmp_path)
    for start, limit, text in ((leave, 60, "with exit code 3"), (sleep, 0.2, "after 0.2 s")):
        (found,) = outcomes(tmp_path, "CPU", 0, 1e-3, limit, start)
        assert (found.result, found.text, found.name) == (ENDED, text, "chain.xml")


def test_wrong_results_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, emulated: str, device: str) -> None:
    """The models agree; then OpenVINO's outputs are changed by more than the tolerance, or in their types."""
    path = save(quantized() if device == EMULATED else models.chain((-1, 3)), tmp_path)
    assert outcome_of(str(path), device, 0, 1e-3).result == EQUAL
    right = outputs.OpenVINOEngine.outputs
    changes = (
        (lambda x: x + 0.01 * (1 + np.abs(x).max()), "an error of"),
        (lambda x: x.astype(np.float64), "type float32 instead of float64"),
        (lambda x: x[:, None], "shape"),
    )
    for change, text in changes:
        monkeypatch.setattr(
            outputs.OpenVINOEngine,
            "outputs",
            lambda engine, inputs, change=change: [change(x) for x in right(engine, inputs)],
        )
        if device == EMULATED and "error" in text:
            continue  # both of OpenVINO's ways change, and with them what may be 1.25 times as far
        found = outcome_of(str(path), device, 0, 1e-3)
        assert found.result == DIFFERS and text in found.text, found


def test_a_model_that_openvino_fuses(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where OpenVINO's outputs differ from its own with a Result for every layer, those count."""
    path, right = save(models.chain((2, 3)), tmp_path), outputs.OpenVINOEngine.outputs
    monkeypatch.setattr(
        outputs.OpenVINOEngine,
        "outputs",
        lambda engine, inputs: [x + (1 if not engine.port_keys else 0) for x in right(engine, inputs)],
    )
    assert outcome_of(str(path), "CPU", 0, 1e-3).result == UNFUSED


def test_who_refuses_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = save(models.chain((2, 3)), tmp_path)

    def refuse(*_: object, **__: object) -> None:
        raise RuntimeError("refused")

    with monkeypatch.context() as patch:
        patch.setattr(outputs.Core, "compile_model", refuse)
        assert outcome_of(str(path), "CPU", 0, 1e-3).result == ONLY_OPENVINO
        patch.setattr(outputs.OpenVINOEngine, "__init__", refuse)
        assert outcome_of(str(path), "CPU", 0, 1e-3).result == NEITHER
    monkeypatch.setattr(outputs.OpenVINOEngine, "outputs", refuse)
    found = outcome_of(str(path), "CPU", 0, 1e-3)
    assert (found.result, found.text) == (ONLY_OVGPU, "OpenVINO: refused")


def test_distances_of_quantized_models() -> None:
    """A result may be 1.25 times as far from f32 as OpenVINO in 8 bits, over all outputs and inferences."""
    exact, rng = np.linspace(1, 2, 1000, dtype=np.float32), np.random.default_rng(0)
    noise = rng.normal(0, 0.01, 1000).astype(np.float32)
    for factor, result in ((1.2, EQUAL), (1.3, DIFFERS), (0, EQUAL)):
        found = Distances(1e-3, quantized=True)
        for _ in range(2):
            found.add([exact + np.float32(factor) * noise], [exact], [exact + noise])
        assert found.result == result and found.of_int8 == pytest.approx(factor, rel=1e-3)
    found = Distances(1e-3, quantized=False)
    found.add([exact + 1e-4], [exact], None)
    assert found.result == EQUAL and found.error == pytest.approx(1e-4 / 3, rel=1e-2)
    found.add([np.array([1, 2])], [np.array([1, 3])], None)
    assert found.result == DIFFERS
