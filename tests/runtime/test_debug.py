"""Debugging settings: their output, and stops at a layer."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from functools import partial
from types import SimpleNamespace

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.debug import EnvSetting, Stopped, generated_code, statistics

from . import models
from .models import compiled

X = np.array([[1, -2, 3], [-4, 5, -6]], "f4")


def printed(capsys: pytest.CaptureFixture[str], level: int) -> str:
    model = compiled(models.chain())
    with ov.DEBUG(level):
        model([X])
    out, err = capsys.readouterr()
    assert out == ""
    return err


def test_off_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert printed(capsys, 0) == ""


def test_level_1_prints_the_plan_once(capsys: pytest.CaptureFixture[str]) -> None:
    model = compiled(models.chain())
    with ov.DEBUG(1):
        model([X])
        first = capsys.readouterr().err
        model([X])
    assert "(CPU), chain" in first and "Multiply" in first and "160 B moved" in " ".join(first.split())
    assert " us " not in first
    assert capsys.readouterr().err == ""


def test_level_2_prints_steps(capsys: pytest.CaptureFixture[str]) -> None:
    lines = [line for line in printed(capsys, 2).splitlines() if " us " in line]
    assert [line.split()[-3:] for line in lines] == [
        ["bound", "Add", "add"],
        ["bound", "Relu", "relu"],
        ["bound", "Multiply", "mul"],
    ]
    assert "52 B" in lines[0] and "48 B" in lines[1] and "60 B" in lines[2]


def test_level_2_counts_bytes_of_iterations_and_eager_steps(capsys: pytest.CaptureFixture[str]) -> None:
    with ov.DEBUG(2):
        compiled(models.loop())([np.ones((3, 4), "f4")])
        compiled(models.branching())([np.ones(4, "f4")])
    lines = [" ".join(line.split()) for line in capsys.readouterr().err.splitlines() if " us " in line]
    assert [re.search(r"us (\d+ B) .* (\w+)$", line).groups() for line in lines] == [  # type: ignore[union-attr]
        (f"{3 * 5 * 16} B", "iterate"),
        (f"{3 * 2 * 16} B", "relu"),
        ("32 B", "choose"),
        ("32 B", "relu"),
    ]


def test_level_3_prints_shapes_and_passes(capsys: pytest.CaptureFixture[str]) -> None:
    with ov.DEBUG(3):
        compiled(models.chain())
    assert capsys.readouterr().err.startswith("ovgpu: passes: 7 nodes became ")
    assert "f32[2,3] f32[1,1] -> f32[2,3]" in printed(capsys, 3)


def test_level_4_prints_code(capsys: pytest.CaptureFixture[str]) -> None:
    model = compiled(models.loop())
    with ov.DEBUG(4):
        model([np.ones((2, 4), "f4")])
    text = capsys.readouterr().err
    assert "---- shape function of segment 0\ndef shape_function(A):" in text and "(in a body)" in text


def test_generated_kernels() -> None:
    """The code is printed for calls that look like those of a generated kernel."""
    model = compiled(models.chain())
    model([X])
    executor = model._request()._session.last
    assert executor is not None

    class Kernel:
        code = SimpleNamespace(name="ovgpu_add", source="out = a + 1")

        def __call__(self) -> None: ...

    next(iter(executor.bindings[0].values())).flat.append(partial(Kernel()))
    assert generated_code(executor)["kernel ovgpu_add"] == "out = a + 1"


def test_watching_changes_no_result() -> None:
    model = compiled(models.branching())
    x = np.array([1, 2, -3, 4], "f4")
    expected = model([x])[0]
    with ov.DEBUG(3):
        np.testing.assert_array_equal(model([x])[0], expected)


# ---- stopping


@pytest.mark.parametrize(
    "layer, expected",
    [
        ("x", X),
        ("add", X + 1),
        ("relu", np.maximum(X + 1, 0)),
        ("mul", np.maximum(X + 1, 0)),
    ],
)
def test_stop_at(layer: str, expected: np.ndarray) -> None:
    model = compiled(models.chain())
    with ov.STOP_AT(layer), pytest.raises(Stopped) as stopped:
        model([X])
    assert stopped.value.layer == layer
    (output,) = stopped.value.outputs
    np.testing.assert_array_equal(output, expected)
    np.testing.assert_array_equal(model([X])[0], np.maximum(X + 1, 0))  # the setting is off again


def test_stop_ends_the_inference() -> None:
    model = ov.Core().compile_model(ov.read_model(*models.chain().build()), "CPU", {"PERF_COUNT": True})
    request = model.create_infer_request()
    with ov.STOP_AT("relu"), pytest.raises(Stopped):
        request.infer([X])
    assert [info.node_name for info in request.profiling_info] == ["add", "relu"]


@pytest.mark.parametrize("layer", ["concat", "flat"])
def test_stop_at_views(layer: str) -> None:
    with ov.STOP_AT(layer), pytest.raises(Stopped) as stopped:
        compiled(models.reshaped())([X])
    both = np.concatenate([np.maximum(X, 0), 1 / (1 + np.exp(-X))])
    expected = both if layer == "concat" else both.reshape(-1)
    np.testing.assert_allclose(stopped.value.outputs[0], expected, rtol=1e-6)


@pytest.mark.parametrize("layer, expected", [("choose", [2, 4, -6, 8]), ("relu", [2, 4, 0, 8])])
def test_stop_at_and_after_an_eager_step(layer: str, expected: list[float]) -> None:
    with ov.STOP_AT(layer), pytest.raises(Stopped) as stopped:
        compiled(models.branching())([np.array([1, 2, -3, 4], "f4")])
    np.testing.assert_array_equal(stopped.value.outputs[0], expected)


@pytest.mark.parametrize(
    "layer, expected",
    [("sum", [[1, -2, 3, -4]]), ("tanh", np.tanh([[1, -2, 3, -4]])), ("xi", [[1, -2, 3, -4]]), ("h", [[0] * 4])],
)
def test_stop_in_a_body_at_the_first_iteration(layer: str, expected: object) -> None:
    x = np.array([[1, -2, 3, -4], [9, 9, 9, 9]], "f4")
    with ov.STOP_AT(layer), pytest.raises(Stopped) as stopped:
        compiled(models.loop())([x])
    np.testing.assert_allclose(stopped.value.outputs[0], expected, rtol=1e-6)


def test_stop_in_a_body_that_does_not_run() -> None:
    with ov.STOP_AT("sum"), pytest.raises(ov.Error, match="the body of 'iterate' did not run"):
        compiled(models.loop())([np.zeros((0, 4), "f4")])
    model = compiled(models.branching())
    with ov.STOP_AT("Slice_5"), pytest.raises(Stopped) as stopped:
        model([-np.ones(4, "f4")])
    np.testing.assert_array_equal(stopped.value.outputs[0], [-1, -1])
    with ov.STOP_AT("Slice_5"), pytest.raises(ov.Error, match="the body of 'choose' did not run"):
        model([np.ones(4, "f4")])


def test_stop_at_keeps_the_state() -> None:
    model = compiled(models.stateful())
    one = np.ones((1, 8), "f4")
    model([one])
    with ov.STOP_AT("add"), pytest.raises(Stopped) as stopped:
        model([one])
    np.testing.assert_array_equal(stopped.value.outputs[0], 2 * one)
    np.testing.assert_array_equal(model.query_state()[0].state.data, one)


def test_stop_asynchronously() -> None:
    request = compiled(models.chain()).create_infer_request()
    with ov.STOP_AT("add"):
        request.start_async([X])
        with pytest.raises(Stopped, match="stopped at layer 'add'"):
            request.wait()


@pytest.mark.parametrize(
    "layer, message", [("rellu", "no step computes it; there is relu"), ("nothing like it", "no step")]
)
def test_stop_at_an_unknown_layer(layer: str, message: str) -> None:
    with ov.STOP_AT(layer), pytest.raises(ov.Error, match=message):
        compiled(models.loop())([np.ones((2, 4), "f4")])


# ---- settings


def test_environment() -> None:
    code = (
        "import numpy as np; from tests.runtime.models import *\n"
        "try: compiled(chain())([np.ones((2, 3), 'f4')])\n"
        "except ov.debug.Stopped as e: print(e)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OVGPU_DEBUG": "2", "OVGPU_STOP_AT": "relu"},
    )
    assert done.stdout == "stopped at layer 'relu': output 0 is float32[2, 3] from 2 to 2, mean 2\n"
    assert "bound   Relu" in done.stderr and "bound   Multiply" not in done.stderr


def test_a_setting_that_is_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OVGPU_DEBUG", "much")
    with pytest.warns(RuntimeWarning, match="OVGPU_DEBUG is a number: 'much' is ignored"):
        assert EnvSetting("OVGPU_DEBUG", 3).value == 3


def test_wrong_settings_do_not_keep_a_program_from_starting() -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import ovgpu; print(ovgpu.Core().available_devices[-1:])"],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"OVGPU_DEBUG": "much", "OVGPU_HOST_MEMORY": "12 GB"},
    )
    assert done.stdout == "['CPU']\n"
    assert "OVGPU_DEBUG is a number: 'much' is ignored" in done.stderr
    assert "OVGPU_HOST_MEMORY is a number of bytes: '12 GB' is ignored" in done.stderr


def test_settings_nest() -> None:
    setting = EnvSetting("OVGPU_NO_SUCH_VARIABLE", 0)
    with setting(1):
        with setting(2):
            assert setting.value == 2
        assert setting.value == 1
    assert setting.value == 0


@pytest.mark.parametrize(
    "array, text",
    [
        (np.zeros((0, 2), "f4"), "float32[0, 2]"),
        (np.array([1, np.nan, np.inf], "f4"), "float32[3] from 1 to 1, mean 1, 2 not finite"),
        (np.array([True, False]), "bool[2] from 0 to 1, mean 0.5"),
        (np.array(["a"], object), "object[1]"),
    ],
)
def test_statistics(array: np.ndarray, text: str) -> None:
    assert statistics(array) == text
