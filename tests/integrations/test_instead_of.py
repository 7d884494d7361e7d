"""Names of openvino's devices that mean a card: programs that name no other device run on it."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np
import openvino as ov
import openvino.properties as props
import openvino.properties.hint as hint
import pytest
from openvino import opset13 as ops

import ovgpu
from ovgpu._util.openvino_package import own_core
from ovgpu.cli import main
from ovgpu.compile import devices
from ovgpu.integrations.openvino import classes, install, uninstall
from ovgpu.ops.base.op import _registry
from tests.emulator import device as emulator
from tests.harness.models.drive import DATA

from .test_openvino import X, doubled


def absolute(kind: Any = ov.Type.f32) -> ov.Model:
    x = ops.parameter([2, 3], kind, name="x")
    return ov.Model([ops.abs(x)], [x], "absolute")


def is_ours(compiled: Any) -> bool:
    return classes.facade_of(compiled) is not None


@pytest.mark.parametrize(
    ("instead_of", "ours", "theirs"),
    [
        ("", ["NVIDIA"], ["CPU", "AUTO", None, "AUTO:CPU", "HETERO:CPU,NVIDIA"]),
        ("CPU", ["CPU", "AUTO:CPU", "AUTO:GPU,CPU", "MULTI:CPU", "MULTI:CPU,NVIDIA", "HETERO:CPU"], ["AUTO", None]),
        ("GPU", ["GPU", "GPU.0", "AUTO:GPU,CPU", "MULTI:GPU", "HETERO:GPU,CPU"], ["CPU", "AUTO", "AUTO:CPU,GPU"]),
        ("AUTO", ["AUTO", None, "AUTO:-GPU", "AUTO:NVIDIA,CPU"], ["CPU", "AUTO:CPU", "AUTO:-NVIDIA"]),
        ("AUTO, GPU,CPU", ["AUTO", None, "CPU", "GPU", "AUTO:CPU", "AUTO:GPU.0", "AUTO:-CPU"], ["AUTO:-NVIDIA"]),
    ],
)
def test_names(core: ov.Core, instead_of: str, ours: list[str | None], theirs: list[str | None]) -> None:
    install(instead_of)
    for names, wanted in ((ours, True), (theirs, False)):
        for name in names:
            compiled = core.compile_model(doubled(), name)
            assert is_ours(compiled) == wanted, name
            assert compiled([X])["y"].tolist() == (2 * X).tolist()
    compiled = ov.compile_model(doubled())
    assert is_ours(compiled) == ("AUTO" in instead_of)


def test_a_list_of_names_may_grow(core: ov.Core) -> None:
    install(["GPU"])
    install(["CPU"])
    install()
    assert is_ours(core.compile_model(doubled(), "GPU")) and is_ours(core.compile_model(doubled(), "CPU"))
    uninstall()
    assert not is_ours(core.compile_model(doubled(), "CPU")) and core.available_devices == ["CPU"]
    install()
    assert not is_ours(core.compile_model(doubled(), "CPU"))


@pytest.mark.parametrize("names", ["XPU", ["GPU", "NVIDIA"], "gpu", "GPU.0"])
def test_wrong_names(core: ov.Core, names: Any) -> None:
    with pytest.raises(ValueError, match=r"^of openvino's devices, AUTO, GPU, CPU can mean a card, not '"):
        install(names)


def test_available_devices(core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> None:
    install("CPU,GPU")
    assert core.available_devices == core.get_available_devices() == ["CPU", "GPU", "NVIDIA"]
    monkeypatch.setitem(devices._backends, "NVIDIA.1", devices._backends["NVIDIA"])
    assert core.available_devices == ["CPU", "GPU", "GPU.1", "NVIDIA", "NVIDIA.1"]
    compiled = core.compile_model(doubled(), "GPU.1")
    assert compiled.get_property(props.execution_devices) == ["NVIDIA.1"]


# ---- properties


@pytest.mark.parametrize("device_name", ["CPU", "GPU", "AUTO", "NVIDIA"])
def test_precision(core: ov.Core, device_name: str) -> None:
    """The CPU computes in f32, unless the program says otherwise; another device as an NVIDIA device does."""
    install("AUTO,GPU,CPU")
    usual = core.compile_model(absolute(ov.Type.f16), device_name).get_property(hint.inference_precision)
    plain = ovgpu.Core().compile_model(ovgpu.Core().read_model(DATA / "gru" / "model.xml"), "NVIDIA")
    others = plain.get_property("INFERENCE_PRECISION_HINT").get_type_name()
    assert usual.get_type_name() == ("f32" if device_name == "CPU" else others)
    config = {hint.inference_precision: ov.Type.bf16}
    chosen = core.compile_model(absolute(), device_name, config).get_property(hint.inference_precision)
    assert chosen == ov.Type.bf16
    if device_name != "AUTO":
        core.set_property(device_name, config)
        assert core.compile_model(absolute(), device_name).get_property(hint.inference_precision) == ov.Type.bf16
        assert core.get_property(device_name, hint.inference_precision) == ov.Type.bf16


def test_properties(core: ov.Core) -> None:
    """A replaced device has its own properties, which openvino's device gets, too."""
    install("CPU")
    core.set_property("CPU", {"NUM_STREAMS": 3, "PERF_COUNT": True})
    assert core.get_property("CPU", "NUM_STREAMS") == 3
    assert core.compile_model(absolute(), "CPU").get_property("PERF_COUNT") == "YES"
    assert core.compile_model(absolute(), "NVIDIA").get_property("PERF_COUNT") == "NO"
    assert core.get_property("CPU", "FULL_DEVICE_NAME") == core.get_property("NVIDIA", "FULL_DEVICE_NAME")
    with pytest.raises(RuntimeError, match="NOT_A_PROPERTY"):
        core.set_property("NVIDIA", {"NOT_A_PROPERTY": 1})
    core.set_property({"PERFORMANCE_HINT": "THROUGHPUT"})
    assert core.compile_model(absolute(), "CPU").get_property("PERFORMANCE_HINT") == "THROUGHPUT"
    uninstall()
    assert core.get_property("CPU", "NUM_STREAMS") == 3 and core.get_property("CPU", "PERF_COUNT")


def test_properties_of_auto(core: ov.Core) -> None:
    """A list that was set for AUTO counts, and so do hints; openvino's AUTO has the properties, too."""
    core.set_property("AUTO", {"MULTI_DEVICE_PRIORITIES": "NVIDIA,CPU", "PERFORMANCE_HINT": "THROUGHPUT"})
    compiled = core.compile_model(doubled(), "AUTO")
    assert is_ours(compiled) and compiled.get_property("PERFORMANCE_HINT") == "THROUGHPUT"
    assert core.get_property("AUTO", "MULTI_DEVICE_PRIORITIES") == "NVIDIA,CPU"
    compiled = core.compile_model(
        doubled(), "AUTO", {"ENABLE_STARTUP_FALLBACK": False, "SCHEDULE_POLICY": "ROUND_ROBIN"}
    )
    assert is_ours(compiled) and compiled.get_property("ENABLE_STARTUP_FALLBACK") is False
    core.set_property("AUTO", {"MULTI_DEVICE_PRIORITIES": "CPU"})
    assert not is_ours(core.compile_model(doubled(), "AUTO"))
    with pytest.raises(RuntimeError, match="not supported"):
        core.set_property("AUTO", {"NOT_A_PROPERTY": 1})


# ---- calls of the Core


def test_queries_versions_and_contexts(core: ov.Core, device: str) -> None:
    install("CPU,GPU")
    model = doubled()
    names = set(core.query_model(model, "NVIDIA"))
    for asked in ("CPU", "GPU"):
        found = core.query_model(model, asked)
        assert set(found) == names and set(found.values()) == {asked}
    assert list(core.get_versions("GPU")) == ["GPU"] and list(core.get_versions("NVIDIA")) == ["NVIDIA"]
    if device != "CPU":
        assert core.get_default_context("GPU").get_device_name().startswith("NVIDIA")
    core.unload_plugin("GPU")


def test_exported_models(core: ov.Core) -> None:
    """Models that ovgpu exported are ovgpu's, those of openvino are openvino's."""
    theirs = core.compile_model(doubled(), "CPU").export_model()
    install("CPU")
    ours = core.compile_model(doubled(), "CPU").export_model()
    for blob, wanted in ((theirs, False), (ours, True)):
        compiled = core.import_model(blob, "CPU")
        assert is_ours(compiled) == wanted
        assert compiled([X])["y"].tolist() == (2 * X).tolist()


# ---- what ovgpu cannot run


@pytest.mark.parametrize("name", ["CPU", "AUTO", "AUTO:NVIDIA,CPU", "AUTO:GPU,CPU", "MULTI:CPU", "HETERO:GPU,CPU"])
def test_unsupported_operations(core: ov.Core, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """openvino's own device runs the model, and one warning names the operations."""
    install("AUTO,CPU,GPU")
    monkeypatch.delitem(_registry, "Abs")
    with pytest.warns(RuntimeWarning) as warned:
        compiled = core.compile_model(absolute(), name)
    assert not is_ours(compiled) and len(warned) == 1 and warned[0].filename == __file__
    assert str(warned[0].message).startswith("openvino's ") and "Abs" in str(warned[0].message)
    assert compiled([-X])[0].tolist() == X.tolist()
    for alone in ("NVIDIA", "HETERO:NVIDIA,CPU"):
        with pytest.raises(ovgpu.UnsupportedOpError, match="Abs"):
            core.compile_model(absolute(), alone)


def test_what_ovgpu_refuses(core: ov.Core, tmp_path: Path) -> None:
    """openvino's own device takes properties and paths that ovgpu does not; wrong ones are openvino's errors."""
    ov.save_model(absolute(), tmp_path / "m.xml")
    install("CPU")
    for model, config in ((absolute(), {"LP_TRANSFORMS_MODE": "NO"}), (bytes(tmp_path / "m.xml"), {})):
        with pytest.warns(RuntimeWarning, match=r"^openvino's CPU runs the model: ovgpu cannot compile it: "):
            assert not is_ours(core.compile_model(model, "CPU", config))
    for config, kind in (({"NUM_STREAMS": "x"}, RuntimeError), ({1: 2}, TypeError)):
        with pytest.raises(kind):
            core.compile_model(absolute(), "CPU", config)


@pytest.mark.parametrize("names", ["CPU", "AUTO,CPU,GPU"])
def test_excluded_devices(core: ov.Core, names: str) -> None:
    install(names)
    excluded = "AUTO:-CPU" if names == "CPU" else "AUTO:-CPU,-GPU"
    with pytest.raises(RuntimeError):
        core.compile_model(absolute(), excluded)


def test_without_a_card(core: ov.Core, monkeypatch: pytest.MonkeyPatch) -> None:
    """openvino's own devices run everything, and the warning says why."""
    install("AUTO,CPU,GPU")
    monkeypatch.delitem(devices._backends, "NVIDIA")
    with emulator.devices(0):
        assert core.available_devices == ["CPU"]
        for name in ("CPU", "AUTO"):
            with pytest.warns(RuntimeWarning, match=rf'^openvino\'s {name} runs the model: .*"NVIDIA" cannot be used'):
                compiled = core.compile_model(doubled(), name)
            assert not is_ours(compiled) and compiled([X])["y"].tolist() == (2 * X).tolist()
        with pytest.raises(RuntimeError, match=r"(?i)gpu"):
            core.compile_model(doubled(), "GPU")
        assert "NVIDIA" not in core.get_property("CPU", "FULL_DEVICE_NAME")
        core.set_property("CPU", {"NUM_STREAMS": 2})
        assert core.get_property("CPU", "NUM_STREAMS") == 2


def test_openvinos_own_cpu(
    core: ov.Core, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """ovgpu compares with openvino's own CPU, and takes its ports from there."""
    install("AUTO,CPU,GPU")
    ov.save_model(absolute(), tmp_path / "m.xml")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert type(own_core().compile_model(doubled(), "CPU")) is ov.CompiledModel
        assert type(core.compile_model(doubled(), "CPU").output(0)) is ov._pyopenvino.ConstOutput
        monkeypatch.setattr("ovgpu.integrations.openvino.core.CompiledModel", None)  # cannot be called
        assert main(["compare", str(tmp_path / "m.xml"), "--against", "openvino", "-d", "CPU"]) == 0
    assert "all agree" in capsys.readouterr().out


def test_results_do_not_change(core: ov.Core) -> None:
    """Requests, queues and results of a replaced CPU are used as those of openvino's."""
    install("CPU")
    compiled = core.compile_model(doubled(), "CPU")
    assert isinstance(compiled, ov.CompiledModel)
    queue, found = ov.AsyncInferQueue(compiled, 2), []
    queue.set_callback(lambda request, userdata: found.append((userdata, request.results["y"].sum())))
    for n in range(4):
        queue.start_async([n * X], n)
    queue.wait_all()
    assert sorted(found) == [(n, np.float32(2 * n * X.sum())) for n in range(4)]
