"""Core: reading, compiling, devices and properties, compared with openvino's."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest

import ovgpu
from ovgpu.backends.cpu import CpuBackend
from ovgpu.backends.cuda import device as cuda
from ovgpu.compile import devices

from . import nets
from .sides import LIBRARIES, agree, check, compiled


@pytest.fixture(autouse=True)
def only_the_cpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Hide all devices but the CPU. openvino makes a relative CACHE_DIR in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(devices, "_backends", {"CPU": CpuBackend})
    monkeypatch.setattr(cuda, "count", no_card)


def no_card() -> int:
    raise ovgpu.DeviceError("CUDA finds no NVIDIA GPU")


@agree("""
    ov.Core().available_devices
    ov.Core().get_available_devices()
    ov.Core().get_versions("NOPE")
    list(ov.Core().get_versions("CPU"))
    repr(ov.Core())
    sorted(ov.Core().query_model(ov.Core().read_model(*two()), "CPU").items())
    ov.Core().query_model(ov.Core().read_model(*two()), "NOPE")
    ov.compile_model(ov.Core().read_model(*one())).inputs
    ov.compile_model(ov.Core().read_model(*one()), "CPU").outputs
    ov.Core().compile_model(*one(), "CPU")
    ov.Core().compile_model(one()[0].decode(), "CPU", weights=one()[1]).inputs
    ov.Core().compile_model(model=ov.Core().read_model(*one()), device_name="CPU", config={}).outputs
    ov.Core().compile_model(ov.Core().read_model(*one()), {"PERF_COUNT": True})
    ov.Core().compile_model(ov.Core().read_model(*one()), "CPU", P.enable_profiling(True))
    ov.Core().compile_model(ov.Core().read_model(*one()), "CPU", {3: 4})
    ov.Core().compile_model("nope.xml", "CPU")
    ov.Core().compile_model(pathlib.Path("nope.xml"), "CPU")
    ov.Core().read_model("nope.xml")
    ov.Core().read_model(3)
    ov.Core().read_model(ov.Core().read_model(*one()))
    ov.Core().read_model(io.BytesIO(one()[0]), io.BytesIO(one()[1])).friendly_name
    ov.Core().read_model(one()[0], ov.Tensor(np.zeros(1, np.uint8))).friendly_name
    ov.Core().read_model(model=one()[0], weights=one()[1]).friendly_name
    ov.Core().read_model(one()[0]).friendly_name
    ov.Core().import_model(b"xyz", "CPU")
    ov.Core().import_model(b"xyz", "NOPE")
    ov.Core().add_extension("nope.so")
    m = ov.Core().read_model(*two()); c = ov.Core().compile_model(m, "CPU"); m.reshape({"y": [5]}); c.inputs
    type(ov.get_version()) is str and ov.get_version() == ov.__version__
    v = ov.Core().get_versions("CPU")["CPU"]; v.build_number.startswith(f"{v.major}.{v.minor}.{v.patch}")
""")
def test_core(code: str) -> None:
    check(code)


@agree("""
    NOPE
    cpu
    CPU.0
    CPU.1
    AUTO
    AUTO:CPU
    AUTO:NOPE,CPU
    AUTO:NOPE
    MULTI:CPU
    HETERO:CPU
""")
def test_devices(code: str) -> None:
    check(f"ov.Core().compile_model(ov.Core().read_model(*one()), {code!r}).get_property('EXECUTION_DEVICES')")


def test_device_of_none() -> None:
    check("ov.Core().compile_model(ov.Core().read_model(*one())).get_property('EXECUTION_DEVICES')")


@LIBRARIES
def test_unknown_device(ov: Any) -> None:
    with pytest.raises(RuntimeError, match=r'Device with "NOPE" name is not registered in'):
        compile_for(ov, "NOPE")


def compile_for(ov: Any, device: str) -> Any:
    return ov.Core().compile_model(ov.Core().read_model(*nets.one()), device)


def test_nvidia_without_a_card_says_why() -> None:
    for name in ("NVIDIA", "NVIDIA.1", "CUDA"):
        with pytest.raises(ovgpu.DeviceError, match=f'^Device "{name}" cannot be used: CUDA finds no NVIDIA GPU$'):
            compile_for(ovgpu, name)


def test_registered_devices() -> None:
    devices.register_backend("NVIDIA", CpuBackend)
    assert ovgpu.Core().available_devices == ["CPU", "NVIDIA"]
    for name in ("NVIDIA", "NVIDIA.0", "CUDA", "AUTO", "AUTO:CUDA,CPU"):
        assert compile_for(ovgpu, name).get_property("EXECUTION_DEVICES") == ["NVIDIA"]
    assert compile_for(ovgpu, "AUTO:CPU,NVIDIA").get_property("EXECUTION_DEVICES") == ["CPU"]
    with pytest.raises(ovgpu.DeviceError, match=r'Device with "NVIDIA\.1" name is not registered'):
        compile_for(ovgpu, "NVIDIA.1")


@LIBRARIES
def test_files(ov: Any, tmp_path: Path) -> None:
    xml, weights = nets.total(init=[[1.0, 2, 3]])
    (tmp_path / "m.xml").write_bytes(xml)
    (tmp_path / "m.bin").write_bytes(weights)
    (tmp_path / "other.bin").write_bytes(np.array([5, 5, 5], "f4").tobytes())
    core, x = ov.Core(), np.zeros((1, 3), "f4")
    for path in (tmp_path / "m.xml", str(tmp_path / "m.xml")):
        for model in (path, core.read_model(path)):
            assert core.compile_model(model, "CPU")(x)[0].tolist() == [[1, 2, 3]]
        other = core.read_model(path, tmp_path / "other.bin")
        assert core.compile_model(other, "CPU")(x)[0].tolist() == [[5, 5, 5]]
    for source in (xml, io.BytesIO(xml)):
        for data in (weights, io.BytesIO(weights), ov.Tensor(np.frombuffer(weights, np.uint8).copy())):
            if isinstance(source, bytes) == isinstance(data, (bytes, ov.Tensor)):
                assert core.compile_model(core.read_model(source, data), "CPU")(x)[0].tolist() == [[1, 2, 3]]
                if hasattr(source, "seek"):
                    source.seek(0)
                    data.seek(0)


def test_unsupported_operations_are_all_named() -> None:
    net = nets.Net("odd")
    x = net.parameter("f32", (2,), "x")
    for name in ("first", "second"):
        x = net.layer("Frobnicate", "opset1", [x], name=name)
    net.result(x)
    model = ovgpu.Core().read_model(*net.build())
    with pytest.raises(ovgpu.UnsupportedOpError, match=r"Frobnicate of opset1 .*'first', 'second'"):
        ovgpu.Core().compile_model(model, "CPU")
    assert "first" not in ovgpu.Core().query_model(model, "CPU")


# ---- properties

KNOWN = (
    "PERF_COUNT",
    "NUM_STREAMS",
    "INFERENCE_PRECISION_HINT",
    "PERFORMANCE_HINT",
    "EXECUTION_MODE_HINT",
    "PERFORMANCE_HINT_NUM_REQUESTS",
    "INFERENCE_NUM_THREADS",
    "KV_CACHE_PRECISION",
    "ENABLE_CPU_PINNING",
    "DYNAMIC_QUANTIZATION_GROUP_SIZE",
    "SCHEDULING_CORE_TYPE",
    "LOG_LEVEL",
    "ENABLE_HYPER_THREADING",
)


@pytest.mark.parametrize("name", KNOWN)
def test_known_properties(name: str) -> None:
    """The property is listed as by openvino and has the same type. Its value may differ."""
    mine, theirs = (ov.Core().get_property("CPU", "SUPPORTED_PROPERTIES")[name] for ov in (ovgpu, openvino))
    assert mine == theirs
    mine, theirs = (compiled(ov, nets.one()).get_property("SUPPORTED_PROPERTIES")[name] for ov in (ovgpu, openvino))
    assert mine == theirs
    mine, theirs = (ov.Core().get_property("CPU", name) for ov in (ovgpu, openvino))
    assert type(mine).__name__ == type(theirs).__name__
    mine, theirs = (compiled(ov, nets.one()).get_property(name) for ov in (ovgpu, openvino))
    assert type(mine).__name__ == type(theirs).__name__


READ_ONLY = (
    "SUPPORTED_PROPERTIES",
    "AVAILABLE_DEVICES",
    "RANGE_FOR_ASYNC_INFER_REQUESTS",
    "RANGE_FOR_STREAMS",
    "EXECUTION_DEVICES",
    "FULL_DEVICE_NAME",
    "OPTIMIZATION_CAPABILITIES",
    "DEVICE_TYPE",
    "DEVICE_ARCHITECTURE",
)


@pytest.mark.parametrize("name", READ_ONLY)
def test_read_only_properties(name: str) -> None:
    mine, theirs = (ov.Core().get_property("CPU", name) for ov in (ovgpu, openvino))
    assert type(mine).__name__ == type(theirs).__name__
    core = ovgpu.Core()
    assert core.get_property("CPU", "SUPPORTED_PROPERTIES")[name] == "RO"
    with pytest.raises(RuntimeError, match=f"Unsupported property {name} by CPU plugin: it is read-only"):
        core.set_property("CPU", {name: "x"})


def test_every_listed_property_can_be_read() -> None:
    core, model = ovgpu.Core(), compiled(ovgpu, nets.one())
    for name, kind in core.get_property("CPU", "SUPPORTED_PROPERTIES").items():
        value = core.get_property("CPU", name)
        if kind == "RW" and name != "NUM_STREAMS":
            core.set_property("CPU", {name: value})
            assert core.get_property("CPU", name) == value
    for name in model.get_property("SUPPORTED_PROPERTIES"):
        model.get_property(name)


@agree("""
    comp(one(), {"NOPE": 1})
    comp(one(), {"AVAILABLE_DEVICES": "x"})
    comp(one(), {"PERFORMANCE_HINT": "NOPE"})
    comp(one(), {"PERFORMANCE_HINT": "THROUGHPUT"}).get_property("PERFORMANCE_HINT")
    comp(one(), {"PERFORMANCE_HINT": P.hint.PerformanceMode.THROUGHPUT}).get_property("PERFORMANCE_HINT")
    comp(one(), {P.hint.performance_mode: P.hint.PerformanceMode.LATENCY}).get_property(P.hint.performance_mode)
    comp(one(), dict([P.hint.performance_mode(P.hint.PerformanceMode.LATENCY)])).get_property("PERFORMANCE_HINT")
    comp(one(), {"EXECUTION_MODE_HINT": "ACCURACY"}).get_property("EXECUTION_MODE_HINT")
    comp(one(), {"EXECUTION_MODE_HINT": P.hint.ExecutionMode.PERFORMANCE}).get_property("EXECUTION_MODE_HINT")
    comp(one(), {"PERF_COUNT": "YES"}).get_property("PERF_COUNT")
    comp(one(), {"PERF_COUNT": True}).get_property("PERF_COUNT")
    comp(one(), {"PERF_COUNT": "NO"}).get_property("PERF_COUNT")
    comp(one(), {"PERF_COUNT": "maybe"})
    comp(one(), {"NUM_STREAMS": "2"}).get_property("NUM_STREAMS")
    comp(one(), {"NUM_STREAMS": 2}).get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
    comp(one(), {"NUM_STREAMS": -5})
    comp(one(), {"NUM_STREAMS": "x"})
    comp(one(), {"PERFORMANCE_HINT": "LATENCY"}).get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
    comp(one(), {"PERFORMANCE_HINT": "THROUGHPUT",
        "PERFORMANCE_HINT_NUM_REQUESTS": 1}).get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS")
    comp(one(), {"INFERENCE_PRECISION_HINT": "f32"}).get_property("INFERENCE_PRECISION_HINT")
    comp(one(), {"INFERENCE_PRECISION_HINT": ov.Type.f32}).get_property("INFERENCE_PRECISION_HINT")
    comp(one(), {"INFERENCE_PRECISION_HINT": "f64"})
    comp(one(), {"INFERENCE_PRECISION_HINT": "nope"})
    comp(one(), {"KV_CACHE_PRECISION": "f16"}).get_property("KV_CACHE_PRECISION")
    comp(one()).get_property("NETWORK_NAME")
    comp(one()).get_property("NOPE")
    comp(one()).get_property("EXECUTION_DEVICES")
    comp(one()).set_property({"PERF_COUNT": True})
    comp(one()).set_property("PERF_COUNT", True)
    ov.Core().get_property("CPU", "NOPE")
    ov.Core().get_property("NOPE", "FULL_DEVICE_NAME")
    ov.Core().get_property("NOPE")
    ov.Core().get_property(1, 2)
    [ov.Core().get_property(name) for name in ("CACHE_DIR", "ENABLE_MMAP", "FORCE_TBB_TERMINATE")]
    ov.Core().get_property("CPU", "EXECUTION_DEVICES")
    c = ov.Core(); c.set_property({"CACHE_DIR": "x"}); [c.get_property("CACHE_DIR"), c.get_property("CPU",
        "CACHE_DIR")]
    c = ov.Core(); c.set_property({"PERF_COUNT": True}); c.get_property("CPU", "PERF_COUNT")
    c = ov.Core(); c.set_property("CPU", {"PERF_COUNT": True}); c.compile_model(c.read_model(*one()),
        "CPU").get_property("PERF_COUNT")
    c = ov.Core(); c.set_property("CPU", {P.enable_profiling: True}); c.get_property("CPU", P.enable_profiling)
    c = ov.Core(); c.set_property("CPU", P.enable_profiling(True)); c.get_property("CPU", "PERF_COUNT")
    c = ov.Core(); c.set_property(P.cache_dir("y")); c.get_property("CACHE_DIR")
    c = ov.Core(); c.set_property("CPU", [P.enable_profiling(True)])
    c = ov.Core(); c.set_property("CPU", "PERF_COUNT", True)
    c = ov.Core(); c.set_property("CPU", {"PERFORMANCE_HINT": "THROUGHPUT"}); c.get_property("CPU",
        "PERFORMANCE_HINT")
    c = ov.Core(); c.set_property("NOPE", {"PERF_COUNT": True})
    c = ov.Core(); c.set_property(device_name="CPU", properties={"PERF_COUNT": True});
        [c.get_property(device_name="CPU", property="PERF_COUNT"), c.get_property("CPU", property="PERF_COUNT")]
    c = ov.Core(); c.set_property(properties={"CACHE_DIR": "x"}); c.get_property(property="CACHE_DIR")
    c = ov.Core(); c.set_property({"CACHE_DIR": "x"}, other=1)
    ov.Core().get_property()
""")
def test_properties(code: str) -> None:
    check(code)


def test_unknown_properties_name_the_known() -> None:
    for call in (
        lambda: ovgpu.Core().set_property("CPU", {"NOPE": 1}),
        lambda: compiled(ovgpu, nets.one(), {"NOPE": 1}),
        lambda: ovgpu.Core().get_property("CPU", "NOPE"),
    ):
        with pytest.raises(RuntimeError, match=r"Unsupported property NOPE by CPU plugin\. It has .*PERF_COUNT"):
            call()


def test_a_wrong_value_changes_nothing() -> None:
    core = ovgpu.Core()
    with pytest.raises(RuntimeError, match="Wrong value maybe for property key PERF_COUNT"):
        core.set_property("CPU", {"NUM_STREAMS": 3, "PERF_COUNT": "maybe"})
    assert core.get_property("CPU", "NUM_STREAMS") == 1


def test_compiled_settings_stay() -> None:
    core = ovgpu.Core()
    model = core.compile_model(core.read_model(*nets.one()), "CPU")
    core.set_property({"PERF_COUNT": True})
    assert model.get_property("PERF_COUNT") == "NO"


def test_values_of_openvino_are_understood() -> None:
    hint = openvino.properties.hint
    config = {
        "PERFORMANCE_HINT": hint.PerformanceMode.THROUGHPUT,
        "INFERENCE_PRECISION_HINT": openvino.Type.f32,
        "PERF_COUNT": dict([openvino.properties.enable_profiling(True)])["PERF_COUNT"],
    }
    model = compiled(ovgpu, nets.one(), config)
    assert model.get_property("PERFORMANCE_HINT") == "THROUGHPUT" and model.get_property("PERF_COUNT") == "YES"


def test_what_plugins_do_is_refused() -> None:
    core = ovgpu.Core()
    for call in (core.create_context, core.get_default_context, core.register_plugin, core.register_plugins):
        with pytest.raises(RuntimeError):
            call("CPU")
    core.set_property("CPU", {"PERF_COUNT": True})
    core.unload_plugin("CPU")
    assert core.get_property("CPU", "PERF_COUNT") is False


def test_public_names() -> None:
    """Every class and function of openvino's package that runs models exists in ovgpu."""
    left_out = {
        "AxisSet",
        "AxisVector",
        "Coordinate",
        "CoordinateDiff",
        "DiscreteTypeInfo",
        "Extension",
        "Op",
        "OpExtension",
        "RemoteContext",
        "RemoteTensor",
        "Symbol",
        "TensorVector",
        "VAContext",
    }
    theirs = {name for name in dir(openvino) if name[0].isupper()} - left_out
    assert theirs - set(dir(ovgpu)) <= {"LayoutHelpers", "VASurfaceTensor", "RTMap"}
    for kind in ("Core", "CompiledModel", "InferRequest", "AsyncInferQueue", "VariableState"):
        members = {name for name in dir(getattr(openvino, kind, None) or type_of(kind)) if name[0] != "_"}
        assert members <= set(dir(getattr(ovgpu, kind))), kind


def type_of(kind: str) -> Any:
    assert kind == "VariableState"
    return type(compiled(openvino, nets.total()).query_state()[0])
