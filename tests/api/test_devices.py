"""Choice of a device: names, cards, properties, and the errors where CUDA cannot be used."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.backends.cuda import device, rt
from ovgpu.request.session import Session
from tests.emulator import blas_emu, blaslt_emu, cupy_emu
from tests.emulator.device import devices as emulated_devices
from tests.harness.ir import Net

from . import nets

ROOT = Path(__file__).parents[2]
X = np.array([[1, -2, 3], [-4, 5, -6]], np.float32)


@pytest.fixture
def cards() -> Iterator[Callable[[int], AbstractContextManager[None]]]:
    """Bind the emulator; in `with cards(2)` there are two devices."""
    rt.bind(cupy_emu, blas_emu, False, blaslt_emu)
    yield emulated_devices
    rt.bind(None, None)


def compiled(name: str, config: Any = None, core: ov.Core | None = None) -> ov.CompiledModel:
    core = core or ov.Core()
    return core.compile_model(core.read_model(*nets.one((-1, 3))), name, config)


def executes(name: str, config: Any = None, core: ov.Core | None = None) -> Any:
    return compiled(name, config, core).get_property("EXECUTION_DEVICES")


# ---- names


def test_one_card(cards: Any) -> None:
    assert ov.Core().available_devices == ["CPU", "NVIDIA"]
    for name in ("NVIDIA", "NVIDIA.0", "CUDA", "CUDA.0", "AUTO", "AUTO:CUDA,CPU", "AUTO:NOPE,NVIDIA.0", "AUTO:-CPU"):
        assert executes(name) == ["NVIDIA"], name
    for name in ("CPU", "AUTO:CPU,NVIDIA", "AUTO:-NVIDIA", "AUTO:-CUDA", "MULTI:CPU"):
        assert executes(name) == ["CPU"], name
    assert executes("AUTO", {"MULTI_DEVICE_PRIORITIES": "CPU,NVIDIA"}) == ["CPU"]
    assert executes("NVIDIA", {"DEVICE_ID": "0"}) == ["NVIDIA"]


def test_two_cards(cards: Any) -> None:
    with cards(2):
        core = ov.Core()
        assert core.available_devices == ["CPU", "NVIDIA.0", "NVIDIA.1"]
        for name in ("NVIDIA", "NVIDIA.0", "CUDA", "AUTO", "HETERO:NVIDIA,CPU"):
            assert executes(name) == ["NVIDIA.0"], name
        for name in ("NVIDIA.1", "CUDA.1", "AUTO:NVIDIA.7,CUDA.1(2)"):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)
                assert executes(name) == ["NVIDIA.1"], name
        assert executes("NVIDIA", {"DEVICE_ID": "1"}) == executes("CUDA", {"DEVICE_ID": 1}) == ["NVIDIA.1"]
        assert executes("NVIDIA", dict([ov.properties.device.id("1")])) == ["NVIDIA.1"]
        assert executes("NVIDIA.0", {"DEVICE_ID": "1"}) == ["NVIDIA.0"]
        core.set_property("NVIDIA", {"DEVICE_ID": "1"})
        assert executes("NVIDIA", core=core) == executes("CUDA", core=core) == ["NVIDIA.1"]
        assert executes("NVIDIA.0", core=core) == ["NVIDIA.0"]
        assert compiled("NVIDIA", core=core).get_property("DEVICE_ID") == "1"


@pytest.mark.parametrize(
    ("number", "name", "message"),
    [
        (1, "NVIDIA.7", "there is one GPU, NVIDIA.0"),
        (2, "CUDA.2", "there are 2 GPUs, NVIDIA.0 to NVIDIA.1"),
        (1, "NVIDIA.x", "GPUs are numbered, as in NVIDIA.0"),
        (1, "NVIDIA.-1", "GPUs are numbered, as in NVIDIA.0"),
    ],
)
def test_unknown_card_numbers(cards: Any, number: int, name: str, message: str) -> None:
    with cards(number), pytest.raises(ov.DeviceError, match=f'^Device "{name}" cannot be used: {message}$'):
        compiled(name)


def test_unknown_card_number_in_a_property(cards: Any) -> None:
    with pytest.raises(ov.DeviceError, match="there is one GPU"):
        compiled("NVIDIA", {"DEVICE_ID": "3"})
    for config in ({"DEVICE_ID": "x"}, {"DEVICE_ID": "-1"}):
        with pytest.raises(RuntimeError, match=r"Wrong value (x|-1) for property key DEVICE_ID"):
            ov.Core().set_property("NVIDIA", config)
    with pytest.raises(RuntimeError, match="CPU plugin supports only '' as device id, not '1'"):
        compiled("CPU", {"DEVICE_ID": "1"})


def test_no_card(cards: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    with cards(0), warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ov.Core().available_devices == ["CPU"]
        assert executes("AUTO") == ["CPU"]
        with pytest.raises(ov.DeviceError, match=r"CUDA finds no NVIDIA GPU \(CUDA_VISIBLE_DEVICES is ''\)"):
            compiled("NVIDIA")
        with pytest.raises(ov.DeviceError, match=r"No available device to filter AUTO plugin: .* no NVIDIA GPU"):
            compiled("AUTO:NVIDIA")
        with pytest.raises(ov.DeviceError, match='Device "NVIDIA" cannot be used'):
            ov.Core().get_property("NVIDIA", "FULL_DEVICE_NAME")
        assert ov.Core().get_versions("NVIDIA") == {}


# ---- devices that cannot be used


def fake(monkeypatch: pytest.MonkeyPatch, **runtime: Any) -> SimpleNamespace:
    """Bind the emulator with other answers of the CUDA runtime."""
    answers = SimpleNamespace(**{**vars(cupy_emu.cuda.runtime), **runtime})
    cuda = SimpleNamespace(**{**vars(cupy_emu.cuda), "runtime": answers})
    cupy = SimpleNamespace(**{**vars(cupy_emu), "cuda": cuda})
    monkeypatch.setattr(rt, "_cupy", cupy)
    monkeypatch.setattr(rt, "_cublas", blas_emu)
    monkeypatch.setattr(rt, "_cublaslt", blaslt_emu)
    return cupy


def raising(status: int, text: str) -> Callable[[], int]:
    def call() -> int:
        raise cupy_emu.cuda.runtime.CUDARuntimeError(status, text)

    return call


INSUFFICIENT = raising(35, "cudaErrorInsufficientDriver: CUDA driver version is insufficient")
REASONS: dict[str, tuple[dict[str, Any], str]] = {
    "no driver": ({"getDeviceCount": INSUFFICIENT, "driverGetVersion": lambda: 0}, "no NVIDIA driver was found; .*"),
    "old driver": (
        {"getDeviceCount": INSUFFICIENT, "driverGetVersion": lambda: 11080},
        "the NVIDIA driver is too old: it is for CUDA 11.8, CuPy for 13.0; update the driver",
    ),
    "driver for CUDA 12": (
        {"getDeviceCount": INSUFFICIENT, "driverGetVersion": lambda: 12040},
        r"the NVIDIA driver is too old: it is for CUDA 12.4, CuPy for 13.0; update the driver, "
        r'or pip install "\.\[cuda12\]" instead of cuda13',
    ),
    "forked": (
        {"getDeviceCount": raising(3, "cudaErrorInitializationError: initialization error")},
        "cudaErrorInitializationError: initialization error; a process forked .* 'spawn'",
    ),
    "unknown": (
        {"getDeviceCount": raising(999, "cudaErrorUnknown: unknown error")},
        r"cudaErrorUnknown: unknown error; does nvidia-smi work\?",
    ),
    "none": ({"getDeviceCount": lambda: 0}, "CUDA finds no NVIDIA GPU; nvidia-smi lists those of the machine"),
}


@pytest.mark.parametrize("case", REASONS)
def test_cuda_finds_no_card(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime, message = REASONS[case]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    fake(monkeypatch, **runtime)
    with pytest.raises(ov.DeviceError, match=f'^Device "NVIDIA.0" cannot be used: {message}$'):
        compiled("NVIDIA.0")
    assert ov.Core().available_devices == ["CPU"]
    with pytest.warns(RuntimeWarning, match=f'^AUTO takes CPU: Device "NVIDIA" cannot be used: {message}$') as warned:
        assert executes("AUTO") == ["CPU"]
    assert warned[0].filename == __file__
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # it warns once
        assert executes("AUTO") == ["CPU"]


def with_capability(major: int, minor: int) -> Callable[[int], dict[str, Any]]:
    return lambda number: {**cupy_emu.cuda.runtime.getDeviceProperties(number), "major": major, "minor": minor}


@pytest.mark.parametrize(
    ("capability", "version", "message"),
    [
        ((7, 0), 13000, r'capability 7.0, CUDA 13 takes 7.5 at least; pip install "\.\[cuda12\]" .*'),
        ((6, 1), 13000, "capability 6.1, CUDA 13 takes 7.5 at least"),
        ((6, 1), 12090, "capability 6.1, CUDA 12 takes 7.0 at least"),
        ((7, 0), 12090, ""),
        ((7, 5), 13000, ""),
        ((12, 1), 14000, ""),
    ],
)
def test_an_old_card(capability: tuple[int, int], version: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(monkeypatch, getDeviceProperties=with_capability(*capability), runtimeGetVersion=lambda: version)
    if not message:
        assert ov.Core().available_devices == ["CPU", "NVIDIA"]
        listed = ov.Core().get_property("NVIDIA", "OPTIMIZATION_CAPABILITIES")
        assert ("BF16" in listed) is (capability >= (8, 0)) and "FP16" in listed
        return
    with pytest.raises(ov.DeviceError, match=f"ovgpu emulated device has compute {message}$"):
        compiled("NVIDIA")
    assert ov.Core().available_devices == ["CPU"]
    with pytest.warns(RuntimeWarning, match='AUTO takes CPU: Device "NVIDIA" cannot be used: .* has compute') as warned:
        assert executes("AUTO") == ["CPU"]
    assert warned[0].filename == __file__


def test_no_nvrtc(cards: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def version() -> Any:
        raise RuntimeError('Failure finding "libnvrtc.so.13"\n  listdir(...)')

    monkeypatch.setattr(cupy_emu.cuda.nvrtc, "getVersion", version)
    with pytest.raises(
        ov.DeviceError,
        match=r"NVRTC, which compiles kernels, cannot be loaded: RuntimeError: "
        r'Failure finding "libnvrtc.so.13"\. pip install "\.\[cuda13\]"',
    ):
        compiled("NVIDIA")
    with pytest.warns(RuntimeWarning, match="AUTO takes CPU: .*NVRTC"):
        assert executes("AUTO") == ["CPU"]


def test_no_cublas(cards: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(part: int) -> int:
        raise RuntimeError("libcublas.so.13: cannot open shared object file")

    monkeypatch.setattr(blas_emu, "get_property", version)
    with pytest.raises(ov.DeviceError, match=r"cuBLAS cannot be loaded: RuntimeError: libcublas.so.13: cannot open"):
        compiled("NVIDIA")


def missing(module: str, name: str, error: type[ImportError] = ModuleNotFoundError) -> Callable[[str], Any]:
    """Return an `import_module` that fails for `module`, because `name` cannot be imported."""

    def load(requested: str) -> Any:
        if requested == module:
            raise error(f"No module named '{name}'", name=name)
        return cupy_emu if requested == "cupy" else blas_emu

    return load


@pytest.mark.parametrize(
    ("module", "name", "message"),
    [
        ("cupy", "cupy", r'CuPy is not installed: pip install "\.\[cuda13\]" .* or "\.\[cuda12\]"'),
        ("cupy", "fastrlock", "CuPy is installed, but a module that it needs is not: No module named 'fastrlock'"),
        ("nvmath.bindings.cublas", "nvmath", r"nvmath-python is not installed: pip install"),
    ],
)
def test_no_library(module: str, name: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rt.bind(None, None)
    monkeypatch.setattr(rt, "import_module", missing(module, name))
    try:
        with pytest.raises(ov.DeviceError, match=f'^Device "NVIDIA" cannot be used: {message}'):
            compiled("NVIDIA")
        assert ov.Core().available_devices == ["CPU"]
    finally:
        rt.bind(None, None)


def test_a_broken_cupy(monkeypatch: pytest.MonkeyPatch) -> None:
    def load(_: str) -> Any:
        raise ImportError("=== a page of advice") from ImportError("libcudart.so.13: cannot open shared object file")

    monkeypatch.setattr(rt, "import_module", load)
    with pytest.raises(ov.DeviceError, match=r"CuPy is installed, but cannot be imported: ImportError: libcudart\.so"):
        compiled("NVIDIA")
    assert ov.Core().available_devices == ["CPU"]


@pytest.mark.parametrize("without", ["cupy", "nothing"])
def test_real_libraries(without: str) -> None:
    """Importing ovgpu imports no CUDA library, and asking for devices is silent, with CuPy or without."""
    code = f"""
import sys
sys.modules.update(dict.fromkeys(["{without}"]))
import ovgpu
from tests.api import nets
assert not sys.modules.keys() & {{"cupy", "nvmath", "cuda"}} - {{"{without}"}}
core = ovgpu.Core()
print(core.available_devices)
try:
    core.compile_model(core.read_model(*nets.one()), "NVIDIA")
    print("it runs")
except ovgpu.DeviceError as e:
    print(e)
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""
    names, message = done.stdout.split("\n", 1)
    if "it runs" in message:
        assert "NVIDIA" in names
    else:
        assert names == "['CPU']"
        assert message.startswith('Device "NVIDIA" cannot be used: ' + ("CuPy is not installed" * (without == "cupy")))


# ---- properties


def test_properties_of_a_card(cards: Any) -> None:
    with cards(2):
        core = ov.Core()
        get = lambda name, device="NVIDIA.1": core.get_property(device, name)
        assert get("FULL_DEVICE_NAME") == get("FULL_DEVICE_NAME", "CUDA.1") == "ovgpu emulated device (dGPU)"
        assert get("DEVICE_ARCHITECTURE") == "sm_90" and get("GPU_UARCH_VERSION") == "9.0.0"
        assert get("DEVICE_TYPE") is ov.properties.device.Type.DISCRETE
        assert get("DEVICE_UUID") == "e0e1e2e3e4e5e6e7e8e9eaebecedee02" != get("DEVICE_UUID", "NVIDIA")
        assert get("AVAILABLE_DEVICES", "NVIDIA") == ["0", "1"]
        assert get("DEVICE_ID") == "1" and get("DEVICE_ID", "NVIDIA") == "0"
        assert get("EXECUTION_DEVICES") == ["NVIDIA.1"]
        assert get("GPU_DEVICE_TOTAL_MEM_SIZE") == 80 << 30 and get("GPU_EXECUTION_UNITS_COUNT") == 132
        memory = get("GPU_MEMORY_STATISTICS")
        assert memory.keys() == {"total", "free", "used", "held"} and memory["free"] <= memory["total"] == 80 << 30
        assert get("OPTIMIZATION_CAPABILITIES") == ["FP32", "FP16", "BF16", "INT8", "EXPORT_IMPORT"]
        assert get("RANGE_FOR_STREAMS") == (1, 8) and get("RANGE_FOR_ASYNC_INFER_REQUESTS") == (1, 8, 1)
        (version,) = core.get_versions("CUDA.1").items()
        assert version[0] == "NVIDIA.1"
        assert version[1].description == "ovgpu NVIDIA.1 backend (CuPy 14.2.0, CUDA 13.0, NVRTC 13.0, cuBLAS 13.0.0)"


def test_every_listed_property_can_be_read(cards: Any) -> None:
    core, model = ov.Core(), compiled("NVIDIA")
    for name, kind in core.get_property("NVIDIA", "SUPPORTED_PROPERTIES").items():
        value = core.get_property("NVIDIA", name)
        if kind == "RW" and name != "NUM_STREAMS":
            core.set_property("NVIDIA", {name: value})
            assert core.get_property("NVIDIA", name) == value
        elif kind == "RO":
            with pytest.raises(RuntimeError, match=f"Unsupported property {name} by NVIDIA plugin: it is read-only"):
                core.set_property("NVIDIA", {name: value})
    for name in model.get_property("SUPPORTED_PROPERTIES"):
        model.get_property(name)
    assert "DEVICE_UUID" not in core.get_property("CPU", "SUPPORTED_PROPERTIES")


def test_properties_of_all_cards_and_of_one(cards: Any) -> None:
    with cards(2):
        core = ov.Core()
        core.set_property("NVIDIA.1", {"PERF_COUNT": True})
        assert not core.get_property("NVIDIA", "PERF_COUNT") and not core.get_property("NVIDIA.0", "PERF_COUNT")
        core.set_property("CUDA", {"PERFORMANCE_HINT": "THROUGHPUT"})
        for name in ("NVIDIA", "NVIDIA.0", "NVIDIA.1"):
            assert core.get_property(name, "PERFORMANCE_HINT") is ov.properties.hint.PerformanceMode.THROUGHPUT
        assert core.get_property("CPU", "PERFORMANCE_HINT") is ov.properties.hint.PerformanceMode.LATENCY
        assert compiled("NVIDIA.1", core=core).get_property("PERF_COUNT") == "YES"
        assert compiled("NVIDIA.0", core=core).get_property("PERF_COUNT") == "NO"


@pytest.mark.parametrize(
    ("config", "streams", "requests"),
    [
        ({}, 1, 1),
        ({"PERFORMANCE_HINT": "THROUGHPUT"}, 4, 4),
        ({"PERFORMANCE_HINT": "THROUGHPUT", "PERFORMANCE_HINT_NUM_REQUESTS": 2}, 4, 2),
        ({"NUM_STREAMS": 3}, 3, 3),
        ({"NUM_STREAMS": "AUTO"}, 4, 4),
    ],
)
def test_streams(cards: Any, config: dict[str, Any], streams: int, requests: int) -> None:
    model = compiled("NVIDIA", config)
    assert model.get_property("NUM_STREAMS") == streams
    assert model.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == requests == len(ov.AsyncInferQueue(model))


def test_what_cupy_cuts_off(cards: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A UUID that CuPy cuts off at a zero byte is read from the CUDA runtime."""
    given = cupy_emu.cuda.runtime.getDeviceProperties
    fake(monkeypatch, getDeviceProperties=lambda number: {**given(number), "uuid": b""})
    whole = bytes(range(16))
    reported = SimpleNamespace(uuid=SimpleNamespace(bytes=whole))
    runtime = SimpleNamespace(cudaGetDeviceProperties=lambda number: (0, reported))
    monkeypatch.setattr(device, "import_module", lambda name: {"cuda.bindings.runtime": runtime}[name])
    assert ov.Core().get_property("NVIDIA", "DEVICE_UUID") == whole.hex()


def test_a_card_that_does_not_answer(cards: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(number: int) -> Any:
        raise cupy_emu.cuda.runtime.CUDARuntimeError(46, "cudaErrorDevicesUnavailable: all are busy")

    fake(monkeypatch, getDeviceProperties=refuse)
    with pytest.raises(ov.DeviceError, match=r'^Device "NVIDIA" cannot be used: CUDA refused: cudaErrorDevicesUnav'):
        compiled("NVIDIA")
    assert ov.Core().available_devices == ["CPU"]


# ---- running


def used(number: int) -> int:
    """Return the number of bytes in use on an emulated card."""
    with cupy_emu.cuda.Device(number):
        return int(cupy_emu.get_default_memory_pool().used_bytes())


def averaging() -> tuple[bytes, bytes]:
    """Build v = v + x @ ones, which is also the result; x [n, 8], v [n, 8]."""
    net = Net("averaging")
    x = net.parameter("f32", (-1, 8), "x")
    v = net.read_value("v", "f32", (-1, 8), net.const(np.zeros((1, 8), "f4")))
    y = net.layer(
        "MatMul", "opset1", [x, net.const(np.ones((8, 8), "f4"))], {"transpose_a": False, "transpose_b": False}
    )
    s = net.layer("Add", "opset1", [v, y])
    net.assign("v", s)
    net.result(s)
    return net.build()


@pytest.mark.parametrize("profiled", [False, True])
def test_everything_happens_on_the_card_chosen(profiled: bool, cards: Any) -> None:
    """All work runs on the chosen card, in any thread. The threads keep their own current card and stream."""
    with cards(2):
        before = used(0)
        core, x = ov.Core(), np.ones((1, 8), np.float32)
        model = core.compile_model(core.read_model(*averaging()), "NVIDIA.1", {"PERF_COUNT": profiled})
        request = model.create_infer_request()
        assert request.get_input_tensor().data.shape == (0, 8)
        for n in range(1, 8):
            request.start_async(x)
            request.wait()
            assert (request.results[0] == 8 * n).all()
        (state,) = request.query_state()
        assert (state.state.data == 56).all()
        state.state = ov.Tensor(2 * x)
        assert (request.infer(x)[0] == 10).all()
        request.reset_state()
        assert (request.infer(3 * x)[0] == 24).all() and request.profiling_info
        assert "MatMul" in str(model.plan([1, 8]))
        queue, found = ov.AsyncInferQueue(model, 3), []
        queue.set_callback(lambda r, _: found.append(r.results[0]))
        for _ in range(6):
            queue.start_async(x)
        queue.wait_all()
        assert len(found) == 6 and {float(y.max()) % 8 for y in found} == {0}
        assert used(0) == before and used(1) > 0
        assert cupy_emu.cuda.Device().id == 0 and cupy_emu.cuda.get_current_stream().ptr == 0


def test_two_cards_at_once(cards: Any) -> None:
    with cards(2):
        core, x = ov.Core(), np.ones((1, 8), np.float32)
        model = core.read_model(*averaging())
        requests = [core.compile_model(model, f"NVIDIA.{n}").create_infer_request() for n in (0, 1)]
        for n in range(1, 6):
            for request in requests:
                request.start_async(x)
            for request in requests:
                request.wait()
                assert (request.results[0] == 8 * n).all()


def test_a_current_device(cards: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A captured graph is launched at once only if its device is current in the thread."""
    runs, run = [0], Session.run

    def counting(*args: Any) -> Any:
        runs[0] += 1
        return run(*args)

    x = np.array([1, -2], np.float32)
    net = Net()
    net.result(net.layer("Relu", "opset1", [net.parameter("f32", (2,))]))
    with cards(2):
        core = ov.Core()
        request = core.compile_model(core.read_model(*net.build()), "NVIDIA.1").create_infer_request()
        monkeypatch.setattr(Session, "run", counting)
        for _ in range(4):
            request.infer([x])
        for device, count in ((0, 5), (1, 5), (0, 6)):
            with cupy_emu.cuda.Device(device):
                np.testing.assert_array_equal(request.infer([x])[0], [1, 0])
            assert runs[0] == count
