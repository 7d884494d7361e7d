"""`ovgpu compare`: the layer that it names when a result is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ovgpu.cli import main
from ovgpu.ops.arithmetic.cumsum import CumSum
from ovgpu.ops.fused._elementwise import Fused
from tests.harness.ir import Net, feed, take
from tests.harness.replay import EMULATED
from tests.runtime import models

from .conftest import Write


def compared(capsys: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    """Return the exit code and the printed text."""
    code = main(["compare", *argv])
    out, err = capsys.readouterr()
    return code, " ".join((out + err).split())


def sums(name: str = "sums", tensor: str = "product") -> Net:
    net = Net(name)
    x = net.parameter("f32", (3, 5), "x")
    two = net.const(np.float32(2), name="two")
    doubled = net.layer("Multiply", "opset1", [x, two], name="doubled", names=[tensor])
    total = net.layer("CumSum", "opset3", [doubled, net.const(np.int64(1))], name="total")
    net.result(net.layer("Abs", "opset1", [total], name="positive"))
    return net


def wrong(op: Any, k: Any, inputs: Any, outputs: Any, workspace: Any) -> None:
    """Replace an op's CUDA form by a copy of its input."""
    k.copy(inputs[0], outputs[0])


def wrong_on_the_host(op: Any, k: Any, inputs: Any, outputs: Any, workspace: Any) -> None:
    k(np.copyto, outputs[0], inputs[0])


def test_a_wrong_layer_is_named(
    write: Write, capsys: pytest.CaptureFixture[str], emulated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write(sums())
    code, text = compared(capsys, model, "-d", EMULATED)
    assert code == 0 and "against the CPU: 4 outputs of layers, 1 inference all agree" in text
    monkeypatch.setattr(CumSum, "cuda", wrong)
    code, text = compared(capsys, model, "-d", EMULATED, "--all")
    assert code == 1
    assert "inference 1: CumSum opset3 differs, layer 'total', id 4" in text and "output 0, f32[3,5]" in text
    assert "of 15 elements differ, most of all [" in text and "of the largest value" in text
    assert "doubled float32 [3,5]" in text and " yes" in text  # the inputs, and that they agree
    assert "Largest errors" in text and text.index("total CumSum f32[3,5]") and "positive Abs" in text


def test_against_openvino(write: Write, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("openvino")
    model = write(sums())
    assert compared(capsys, model, "-d", "CPU")[0] == 0
    monkeypatch.setattr(CumSum, "numpy", wrong_on_the_host)
    code, text = compared(capsys, model, "-d", "CPU", "--input", "ones")
    assert code == 1 and "against OpenVINO" in text and "CumSum opset3 differs, layer 'total'" in text
    assert "[0, 4]: 2.0 instead of 10.0, an error of 8, or 0.8 of the largest value" in text
    assert compared(capsys, model, "-d", "CPU", "--input", "ones", "--tolerance", "0.9")[0] == 0


def test_strings_against_openvino(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    net = Net("strings")
    x = net.parameter("string", (2,), "x")
    net.result(net.layer("Reshape", "opset1", [x, net.const(np.array([1, 2]))], {"special_zero": False}, ["string"]))
    for given in ([], ["--input", "x=\u00fcber"]):
        code, text = compared(capsys, write(net), "--against", "openvino", "-d", "CPU", *given)
        assert code == 0 and "all agree" in text


def test_state_and_loops(write: Write, stateful: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("openvino")
    code, text = compared(capsys, stateful, "-d", "CPU", "--steps", "3")
    assert code == 0 and "3 inferences all agree" in text
    code, text = compared(capsys, write(models.loop()), "-d", "CPU", "--shape", "[5,4]", "--all")
    assert code == 0 and "all agree" in text


def test_a_body_is_compared_as_a_whole(
    write: Write, capsys: pytest.CaptureFixture[str], emulated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = Net()
    part = body.parameter("f32", (1, 5))
    out = body.result(body.layer("CumSum", "opset3", [part, body.const(np.int64(1))], name="inside"))
    net = Net("iterated")
    x = net.parameter("f32", (3, 5), "x")
    net.result(net.tensor_iterator(body, [feed(x, part, axis=0)], [take(out, axis=0)], name="loop"))
    monkeypatch.setattr(CumSum, "cuda", wrong)
    code, text = compared(capsys, write(net), "-d", EMULATED)
    assert code == 1 and "TensorIterator opset1 differs, layer 'loop'" in text


def test_errors_of_fused_layers_only(
    write: Write, capsys: pytest.CaptureFixture[str], emulated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Fused, "cuda", wrong)
    code, text = compared(capsys, write(models.chain((4, 3))), "-d", EMULATED)
    assert code == 1 and "The layers agree one by one" in text


@pytest.mark.parametrize(
    "argv, message",
    [
        (["-d", "CPU", "--against", "cpu"], "the device is the reference"),
        (["-d", "CPU", "--steps", "0"], "--steps must be at least 1, not 0"),
        (["-d", "TPU"], 'Device with "TPU" name is not registered'),
    ],
)
def test_errors(argv: list[str], message: str, write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    code, text = compared(capsys, write(sums()), *argv)
    assert code == 1 and message in text


def test_version_10(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """OpenVINO refuses a model of version 10 in which an output has the name of another layer."""
    model = Path(write(sums(tensor="total")))
    model.write_bytes(model.read_bytes().replace(b'version="11"', b'version="10"'))
    code, text = compared(capsys, str(model), "-d", "CPU", "--against", "openvino")
    assert code == 0 and "all agree" in text
