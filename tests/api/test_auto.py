"""AUTO as a device: its own properties, compared with openvino's, and the devices it tries in turn."""

from __future__ import annotations

import warnings
from typing import Any

import openvino
import pytest

import ovgpu
from ovgpu.backends.cpu import CpuBackend
from ovgpu.compile.devices import register_backend, unregister_backend
from ovgpu.errors import Error

from . import nets

OWN = ("AUTO", "MULTI")
DIFFERENT = {
    "EXECUTION_MODE_HINT",  # ovgpu computes in f32 unless asked otherwise
    "OPTIMIZATION_CAPABILITIES",
    "SUPPORTED_PROPERTIES",
}
VALUES: dict[str, tuple[Any, ...]] = {
    "DEVICE_BIND_BUFFER": (True, "YES", "NO", False),
    "DEVICES_UTILIZATION_THRESHOLD": ({"CPU": 80},),
    "ENABLE_RUNTIME_FALLBACK": (False, "NO", "YES", True),
    "ENABLE_STARTUP_FALLBACK": (False, "NO", "YES", True),
    "LOW_POWER_DEVICE": ("CPU",),
    "MODEL_PRIORITY": ("HIGH",),
    "MULTI_DEVICE_PRIORITIES": ("CPU",),
    "PERF_CURVE_TABLE": ({"CPU": {10: 1.0, 90: 0.5}}, "{CPU:{10:1.0,90:0.5}}"),
    "PERFORMANCE_HINT": ("THROUGHPUT",),
    "SCHEDULE_POLICY": ("ROUND_ROBIN", "DEVICE_PRIORITY"),
}


def plain(value: Any) -> Any:
    """Return a value for comparison between the packages: enums by name, and the texts that openvino keeps as bools."""
    value = getattr(value, "name", value)
    return {"YES": True, "NO": False}.get(value, value) if isinstance(value, str) else value


def names(device: str) -> list[str]:
    return sorted(openvino.Core().get_property(device, "SUPPORTED_PROPERTIES"))


@pytest.mark.filterwarnings("ignore:AUTO takes CPU")
@pytest.mark.parametrize(("device", "name"), [(device, name) for device in OWN for name in names(device)])
def test_properties(device: str, name: str) -> None:
    theirs, ours = openvino.Core(), ovgpu.Core()
    assert name in ours.get_property(device, "SUPPORTED_PROPERTIES")
    found, wanted = ours.get_property(device, name), theirs.get_property(device, name)
    if name not in DIFFERENT:
        assert plain(found) == plain(wanted) and type(found).__name__ == type(wanted).__name__
    for value in VALUES.get(name, ()):
        for core in (theirs, ours):
            core.set_property(device, {name: value})
        assert plain(ours.get_property(device, name)) == plain(theirs.get_property(device, name)), value
        if device == "AUTO":
            compiled = ovgpu.Core().compile_model(ovgpu.read_model(*nets.one((2,))), "AUTO", {name: value})
            assert plain(compiled.get_property(name)) == plain(ours.get_property(device, name))


def test_devices_do_not_have_them() -> None:
    core = ovgpu.Core()
    for device in ("CPU", "HETERO"):
        with pytest.raises(RuntimeError, match="Unsupported property ENABLE_STARTUP_FALLBACK"):
            core.set_property(device, {"ENABLE_STARTUP_FALLBACK": False})
    core.set_property("AUTO", {"PERF_COUNT": True})
    assert core.get_property("AUTO", "PERF_COUNT") and not core.get_property("CPU", "PERF_COUNT")
    for name, counted in (("AUTO:CPU", True), ("CPU", False)):
        compiled = core.compile_model(ovgpu.read_model(*nets.one((2,))), name)
        assert compiled.get_property("PERF_COUNT") == ("YES" if counted else "NO")


# ---- several devices


class Failing(CpuBackend):
    """Backend on which no model can be compiled."""

    def import_kernels(self, kernels: Any) -> None:
        raise Error("out of memory: of the card")


@pytest.fixture
def failing() -> Any:
    register_backend("NVIDIA", Failing)
    yield
    unregister_backend("NVIDIA")


def compiled_for(name: str, config: dict[str, Any] | None = None, core: ovgpu.Core | None = None) -> list[str]:
    found = (core or ovgpu.Core()).compile_model(ovgpu.read_model(*nets.one((2,))), name, config)
    devices: list[str] = found.get_property("EXECUTION_DEVICES")
    return devices


def test_the_next_device_is_tried(failing: None) -> None:
    for name in ("AUTO", "AUTO:NVIDIA,CPU"):
        with pytest.warns(RuntimeWarning) as warned:
            assert compiled_for(name) == ["CPU"]
        assert str(warned[0].message) == (
            f"{name} takes CPU: NVIDIA cannot compile the model: out of memory: of the card"
        )
        assert len(warned) == 1 and warned[0].filename == __file__
    for name in ("NVIDIA", "AUTO:NVIDIA", "MULTI:NVIDIA,CPU"):
        with pytest.raises(Error, match=r"^out of memory: of the card$"):
            compiled_for(name)


def test_no_device_can_run_the_model(failing: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is that of the first device."""
    monkeypatch.setitem(ovgpu.compile.devices._backends, "CPU", Failing)
    with pytest.raises(Error, match=r"^out of memory: of the card$"), warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled_for("AUTO")


@pytest.mark.filterwarnings("ignore:AUTO takes CPU")
def test_no_device_has_the_operation() -> None:
    xml, weights = nets.one((2,))
    with pytest.raises(ovgpu.UnsupportedOpError, match="Nothing"):
        ovgpu.Core().compile_model(ovgpu.read_model(xml.replace(b'"Abs"', b'"Nothing"'), weights), "AUTO")


def test_priorities_of_the_core() -> None:
    register_backend("NVIDIA", CpuBackend)
    try:
        core = ovgpu.Core()
        assert compiled_for("AUTO", core=core) == ["NVIDIA"]
        core.set_property("AUTO", {"MULTI_DEVICE_PRIORITIES": "CPU,NVIDIA"})
        assert compiled_for("AUTO", core=core) == ["CPU"]
        assert compiled_for("AUTO:NVIDIA", core=core) == ["NVIDIA"]
        assert compiled_for("AUTO", {"MULTI_DEVICE_PRIORITIES": "NVIDIA"}, core) == ["NVIDIA"]
    finally:
        unregister_backend("NVIDIA")


@pytest.mark.parametrize("value", ["X", 5, True, {"CPU": 5}, [], "{CPU}"])
def test_wrong_properties_of_listed_devices(value: Any) -> None:
    core = ovgpu.Core()
    message = "Wrong value .* for property key DEVICE_PROPERTIES. Expected only dicts of properties by device"
    with pytest.raises(RuntimeError, match=message):
        core.set_property("AUTO", {"DEVICE_PROPERTIES": value})
    with pytest.raises(RuntimeError, match=message):
        core.compile_model(ovgpu.read_model(*nets.one((2,))), "AUTO:CPU", {"DEVICE_PROPERTIES": value})


def test_properties_of_listed_devices() -> None:
    text = ovgpu.Core().compile_model(
        ovgpu.read_model(*nets.one((2,))), "AUTO:CPU", {"DEVICE_PROPERTIES": "{CPU:{NUM_STREAMS:2, PERF_COUNT:YES}}"}
    )
    assert (text.get_property("NUM_STREAMS"), text.get_property("PERF_COUNT")) == (2, "YES")
    for name in ("AUTO:CPU", "CPU"):
        found = ovgpu.Core().compile_model(
            ovgpu.read_model(*nets.one((2,))), name, {"DEVICE_PROPERTIES": {"CPU": {"NUM_STREAMS": 3}, "NVIDIA": {}}}
        )
        assert found.get_property("NUM_STREAMS") == 3
