"""NVIDIA as a device inside openvino: devices, models, properties, queues. `test_openvino_tensors` has the tensors."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import openvino as ov
import openvino.properties as props
import pytest
from onnx import TensorProto, helper
from openvino import opset13 as ops
from openvino.properties import hint

import ovgpu
from ovgpu._util.openvino_package import HINT
from ovgpu.compile import devices
from ovgpu.integrations.openvino import classes, install, uninstall
from tests.ir.models import MODELS

X = np.arange(6, dtype=np.float32).reshape(2, 3)


def doubled(name: str = "x") -> ov.Model:
    """Return a model y = 2 x, with a second output that is the input itself."""
    x = ops.parameter([-1, 3], ov.Type.f32, name=name)
    x.output(0).get_tensor().set_names({name})
    y = ops.matmul(x, ops.constant(np.eye(3, dtype=np.float32) * 2), False, False)
    y.output(0).get_tensor().set_names({"y", "z"})
    return ov.Model([y, x], [x], "doubled")


def counter() -> ov.Model:
    """Return a model that adds its input to a variable."""
    x = ops.parameter([2], ov.Type.f32, name="x")
    x.output(0).get_tensor().set_names({"x"})
    info = ov.op.util.VariableInfo()
    info.data_shape, info.data_type, info.variable_id = ov.PartialShape([2]), ov.Type.f32, "v"
    variable = ov.op.util.Variable(info)
    total = ops.add(ov.opset6.read_value(ops.constant(np.zeros(2, np.float32)), variable), x)
    return ov.Model([ops.result(total)], [ov.opset6.assign(total, variable)], [x], "counter")


def save_onnx(path: Path) -> None:
    """Write a model c = a + [1, 2, 3]."""
    graph = helper.make_graph(
        [helper.make_node("Add", ["a", "b"], ["c"])],
        "g",
        [helper.make_tensor_value_info("a", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor_value_info("c", TensorProto.FLOAT, ["n", 3])],
        [helper.make_tensor("b", TensorProto.FLOAT, [3], [1, 2, 3])],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)


# ---- installation


def test_installed_and_removed(core: ov.Core) -> None:
    assert core.available_devices == core.get_available_devices() == ["CPU", "NVIDIA"]
    install()
    assert core.available_devices.count("NVIDIA") == 1
    compiled = core.compile_model(doubled(), "NVIDIA")
    uninstall()
    uninstall()
    assert core.available_devices == ["CPU"]
    assert compiled([X])[0].tolist() == (2 * X).tolist()
    with pytest.raises(RuntimeError, match="not registered in the OpenVINO Runtime"):
        core.compile_model(doubled(), "NVIDIA")


def test_everything_else_is_untouched() -> None:
    before = dict(vars(ov.Core)), dict(vars(ov))
    install()
    compiled = ov.Core().compile_model(doubled(), "CPU")
    assert type(compiled) is ov.CompiledModel
    assert len(ov.AsyncInferQueue(compiled, 2)) == 2
    assert ov.Core().get_property("CPU", hint.performance_mode) == hint.PerformanceMode.LATENCY
    uninstall()
    assert (dict(vars(ov.Core)), dict(vars(ov))) == before
    assert len(ov.AsyncInferQueue(compiled, 2)) == 2


def test_threads_may_install() -> None:
    before = dict(vars(ov.Core))

    def work() -> None:
        for _ in range(50):
            install()
            uninstall()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert dict(vars(ov.Core)) == before


def test_without_openvino() -> None:
    code = (
        "import sys; sys.modules['openvino'] = None\nimport ovgpu\n"
        "try: ovgpu.install()\nexcept ImportError as e: print(e)"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == f"ovgpu.install() needs openvino: {HINT}\n"


def test_names_of_the_package_do_not_import_openvino() -> None:
    code = "import sys, ovgpu; assert ovgpu.install; assert 'openvino' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- devices


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("NVIDIA", True),
        ("NVIDIA.0", True),
        ("CUDA", True),
        ("AUTO:NVIDIA,CPU", True),
        ("AUTO:NVIDIA", True),
        ("AUTO:GPU,NVIDIA,CPU", True),
        ("MULTI:NVIDIA", True),
        ("AUTO:CPU,NVIDIA", False),
        ("HETERO:NVIDIA,CPU", True),
        ("HETERO:CPU,NVIDIA", False),
        ("AUTO:-NVIDIA", False),
        ("AUTO:-NVIDIA,CPU", False),
        ("AUTO:NVIDIA.5,CPU", False),
        ("AUTO", False),
        ("CPU", False),
        (None, False),
    ],
)
def test_device_names(core: ov.Core, name: str | None, ours: bool) -> None:
    compiled = core.compile_model(doubled(), name)
    assert (classes.facade_of(compiled) is not None) == ours
    assert compiled([X])["y"].tolist() == (2 * X).tolist()


def test_priorities_as_a_property(core: ov.Core) -> None:
    compiled = core.compile_model(doubled(), "AUTO", {props.device.priorities: "NVIDIA,CPU"})
    assert compiled.get_property(props.execution_devices) == ["NVIDIA"]
    compiled = core.compile_model(doubled(), "AUTO", {props.device.priorities: "CPU,NVIDIA"})
    assert compiled.get_property(props.execution_devices) in (["CPU"], ["(CPU)"])


@pytest.mark.parametrize("name", ["MULTI:NVIDIA,NVIDIA.1", "MULTI: NVIDIA.1(2), CUDA", "MULTI"])
def test_cards_that_share_requests(core: ov.Core, device: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(devices._backends, "NVIDIA.1", lambda: devices.open_backend(device))
    config = {} if ":" in name else {props.device.priorities: "NVIDIA,NVIDIA.1"}
    compiled = core.compile_model(counter(), name, config)
    assert classes.facade_of(compiled) is not None
    assert sorted(compiled.get_property(props.execution_devices)) == ["NVIDIA", "NVIDIA.1"]
    queue, found = ov.AsyncInferQueue(compiled), []
    assert len(queue) == compiled.get_property(props.optimal_number_of_infer_requests) == (3 if "(" in name else 2)
    queue.set_callback(lambda request, _: found.append(request.results[compiled.output(0)].tolist()))
    for _ in range(2 * len(queue)):
        queue.start_async([np.ones(2, np.float32)])
    queue.wait_all()
    assert len(found) == 2 * len(queue) and [1.0, 1.0] in found
    request = compiled.create_infer_request()
    assert [request.infer([np.ones(2, np.float32)])[0].tolist() for _ in range(2)] == [[1, 1], [2, 2]]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("MULTI:CPU,NVIDIA(2)", "MULTI cannot share a model between NVIDIA and other devices"),
        ("MULTI:CPU,NVIDIA", "MULTI cannot share a model between NVIDIA and other devices"),
        ("NVIDIA.7", 'Device with "NVIDIA.7" name is not registered'),
        ("AUTO:NVIDIA.7", 'no device of the list can be used: Device with "NVIDIA.7"'),
        ("AUTO:GPU,NVIDIA.7", 'no device of the list can be used: device "GPU" is not there; '),
    ],
)
def test_bad_device_names(core: ov.Core, name: str, message: str) -> None:
    with pytest.raises(RuntimeError, match=message):
        core.compile_model(doubled(), name)


def test_batches(core: ov.Core) -> None:
    """BATCH changes no results, so the model runs, and a warning says how to gather rows."""
    with pytest.warns(RuntimeWarning, match=r"^BATCH:NVIDIA runs each request on its own: ovgpu.DynamicBatcher"):
        compiled = core.compile_model(doubled(), "BATCH:NVIDIA(4)")
    assert compiled([X])["y"].tolist() == (2 * X).tolist()


# ---- models


def random_inputs(model: Any) -> list[np.ndarray[Any, Any]]:
    rng = np.random.default_rng(5)
    shapes = [[d.get_length() if d.is_static else 3 for d in port.partial_shape] for port in model.inputs]
    return [(rng.random(shape) * 4).astype(port.element_type.to_dtype()) for shape, port in zip(shapes, model.inputs)]


# In these bodies, OpenVINO's CPU plugin reads x_t in place of h from the second iteration on.
COMPARED = [
    name
    for name in MODELS
    if name not in ("tensor_iterator", "loop")
    and all(
        port.partial_shape.rank.is_static and port.element_type != ov.Type.dynamic for port in MODELS[name]().inputs
    )
]


@pytest.mark.drawn(4)
@pytest.mark.parametrize("name", COMPARED)
def test_models_in_memory(core: ov.Core, name: str) -> None:
    model = MODELS[name]()
    inputs = random_inputs(model)
    expected = core.compile_model(model, "CPU", {hint.inference_precision: ov.Type.f32})(inputs)
    compiled = core.compile_model(model, "NVIDIA")
    for ours, theirs in zip(compiled.inputs, model.inputs, strict=True):
        assert (ours.names, ours.partial_shape) == (theirs.names, theirs.partial_shape)
    for ours, theirs in zip(compiled(inputs).values(), expected.values(), strict=True):
        assert ours.dtype == theirs.dtype
        if ours.dtype.kind == "U":
            assert ours.tolist() == theirs.tolist()
        else:
            np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-5)


def test_files(core: ov.Core, tmp_path: Path) -> None:
    ov.save_model(doubled(), tmp_path / "m.xml", compress_to_fp16=False)
    xml, weights = (tmp_path / "m.xml").read_bytes(), (tmp_path / "m.bin").read_bytes()
    for compiled in (
        core.compile_model(tmp_path / "m.xml", "NVIDIA"),
        core.compile_model(str(tmp_path / "m.xml"), "NVIDIA"),
        core.compile_model(core.read_model(xml, weights), "NVIDIA"),
        core.compile_model(xml, "NVIDIA", weights=weights),
        ov.compile_model(tmp_path / "m.xml", "NVIDIA"),
        ov.compile_model(doubled(), "NVIDIA"),
    ):
        assert classes.facade_of(compiled) is not None
        assert compiled([X])["z"].tolist() == (2 * X).tolist()


def test_onnx(core: ov.Core, tmp_path: Path) -> None:
    save_onnx(tmp_path / "m.onnx")
    compiled = core.compile_model(tmp_path / "m.onnx", "NVIDIA")
    assert compiled({"a": X})["c"].tolist() == (X + np.array([1, 2, 3], np.float32)).tolist()


@pytest.mark.parametrize("kind", [TensorProto.INT32, TensorProto.INT64, TensorProto.INT8])
def test_quotients_of_onnx(core: ov.Core, kind: int, tmp_path: Path) -> None:
    """ONNX truncates quotients of integers: in files, in models that were read, in bytes, and in what ovgpu reads. A
    file of IR has no such origin; there, the specification decides."""
    x, y = (helper.make_tensor_value_info(name, kind, [4]) for name in "xy")
    two = helper.make_tensor("two", kind, [4], [2, -2, 2, -2])
    graph = helper.make_graph([helper.make_node("Div", ["x", "two"], ["y"])], "g", [x], [y], [two])
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    given = np.array([-7, -7, 7, 7], helper.tensor_dtype_to_np_dtype(kind))
    own = ovgpu.Core().read_model(path)
    for model in (path, core.read_model(path), core.read_model(path.read_bytes()), own):
        assert core.compile_model(model, "NVIDIA")([given])["y"].tolist() == [-3, 3, 3, -3]
    assert core.compile_model(path, "CPU")([given])["y"].tolist() == [-3, 3, 3, -3]
    ovgpu.save_model(own, tmp_path / "ours.xml")
    assert core.compile_model(tmp_path / "ours.xml", "NVIDIA")([given])["y"].tolist() == [-3, 3, 3, -3]
    ov.save_model(ov.convert_model(path), tmp_path / "theirs.xml")
    assert core.compile_model(tmp_path / "theirs.xml", "NVIDIA")([given])["y"].tolist() == [-4, 3, 3, -4]


class Unknown(ov.Op):
    """Operation that only the program knows."""

    def __init__(self, inputs: Any = None) -> None:
        super().__init__(self, inputs)

    def validate_and_infer_types(self) -> None:
        self.set_output_type(0, self.get_input_element_type(0), self.get_input_partial_shape(0))

    def clone_with_new_inputs(self, inputs: Any) -> Unknown:
        return Unknown(inputs)


def test_unsupported_operations_are_named(core: ov.Core) -> None:
    x = ops.parameter([2], ov.Type.f32, name="x")
    model = ov.Model([Unknown([x]).output(0)], [x], "m")
    with pytest.raises(RuntimeError, match="Unknown"):
        core.compile_model(model, "NVIDIA")


@pytest.mark.parametrize("model", [object(), None, 3])
def test_other_objects_are_refused(core: ov.Core, model: Any) -> None:
    with pytest.raises(RuntimeError):
        core.compile_model(model, "NVIDIA")


@pytest.mark.parametrize("name", ["missing.onnx", "missing.xml"])
def test_missing_files(core: ov.Core, name: str) -> None:
    with pytest.raises(RuntimeError, match=name):
        core.compile_model(name, "NVIDIA")


# ---- ports


def test_ports_are_openvinos(core: ov.Core) -> None:
    model = doubled()
    compiled, expected = core.compile_model(model, "NVIDIA"), core.compile_model(model, "CPU")
    for ours, theirs in zip([*compiled.inputs, *compiled.outputs], [*expected.inputs, *expected.outputs], strict=True):
        assert type(ours) is ov.ConstOutput
        assert ours.get_names() == theirs.get_names()
        assert ours.partial_shape == theirs.partial_shape
        assert ours.element_type == theirs.element_type
        assert ours.get_node().get_friendly_name() == theirs.get_node().get_friendly_name()
    result = compiled({compiled.input("x"): X})
    for key in (0, "y", "z", compiled.output(0), compiled.output("y")):
        assert result[key].tolist() == (2 * X).tolist()
    assert result["x"].tolist() == X.tolist()
    assert compiled({model.input(0): X})[1].tolist() == X.tolist()  # a port of the model
    assert result.to_tuple()[1].tolist() == X.tolist()


@pytest.mark.parametrize("key", [7, "q"])
def test_missing_ports(core: ov.Core, key: Any) -> None:
    compiled = core.compile_model(doubled(), "NVIDIA")
    with pytest.raises(RuntimeError, match="was not found"):
        compiled.output(key)
    with pytest.raises(RuntimeError):
        compiled({key: X})


# ---- properties


def test_properties(core: ov.Core) -> None:
    core.set_property("NVIDIA", {hint.performance_mode: hint.PerformanceMode.THROUGHPUT, props.enable_profiling: True})
    assert core.get_property("NVIDIA", hint.performance_mode) == hint.PerformanceMode.THROUGHPUT
    assert ov.Core().get_property("NVIDIA", "PERFORMANCE_HINT") == hint.PerformanceMode.LATENCY
    compiled = core.compile_model(doubled(), "NVIDIA", {hint.inference_precision: ov.Type.f32})
    assert compiled.get_property(hint.performance_mode) == "THROUGHPUT"  # a text in openvino, too
    assert compiled.get_property(hint.inference_precision) == ov.Type.f32
    assert compiled.get_property(hint.execution_mode) == hint.ExecutionMode.ACCURACY
    assert "FULL_DEVICE_NAME" in core.get_property("NVIDIA", props.supported_properties)
    compiled = core.compile_model(doubled(), "NVIDIA", dict([hint.performance_mode(hint.PerformanceMode.LATENCY)]))
    assert compiled.get_property("PERFORMANCE_HINT") == "LATENCY"
    with pytest.raises(RuntimeError, match="NO_SUCH"):
        core.set_property("NVIDIA", {props.enable_profiling: False, "NO_SUCH": 1})
    assert core.get_property("NVIDIA", "PERF_COUNT") is True  # all or none
    core.set_property(properties={props.enable_profiling: False}, device_name="NVIDIA")
    assert core.get_property(property="PERF_COUNT", device_name="NVIDIA") is False
    core.set_property("NVIDIA", ("PERF_COUNT", True))
    assert core.get_property("NVIDIA", "PERF_COUNT") is True


@pytest.mark.parametrize(
    "call",
    [
        "core.get_property('CPU', 'NO_SUCH')",
        "core.get_property('NO_SUCH')",
        "core.get_property()",
        "core.set_property()",
        "core.set_property('CPU', 3)",
        "core.set_property(1, 2, 3)",
        "core.compile_model(3, 'CPU')",
        "core.compile_model(model, 'CPU', [1])",
        "core.compile_model(model, 3)",
        "core.query_model(model, 'GPU')",
    ],
)
def test_errors_of_other_devices_are_openvinos(core: ov.Core, call: str) -> None:
    def error() -> str:
        with pytest.raises(Exception) as found:
            eval(call, {"core": core, "model": model})
        return f"{found.type.__name__}: {found.value}"

    model = doubled()
    installed = error()
    uninstall()
    assert error() == installed


def test_common_properties_are_set_for_both(core: ov.Core, tmp_path: Path) -> None:
    core.set_property({props.cache_dir: str(tmp_path)})
    assert core.get_property("NVIDIA", props.cache_dir) == str(tmp_path)
    assert core.get_property(props.cache_dir) == str(tmp_path)


def test_versions_and_queries(core: ov.Core) -> None:
    assert "ovgpu" in core.get_versions("NVIDIA")["NVIDIA"].description
    assert core.query_model(doubled("q"), "NVIDIA")["q"] == "NVIDIA"
    assert core.query_model(doubled("q"), "CPU")["q"] == "CPU"


# ---- requests, state, queues


def test_classes(core: ov.Core) -> None:
    compiled = core.compile_model(counter(), "NVIDIA")
    request = compiled.create_infer_request()
    assert isinstance(compiled, ov.CompiledModel)
    assert isinstance(request, ov.InferRequest)
    assert isinstance(ov.AsyncInferQueue(compiled), ov.AsyncInferQueue)
    assert isinstance(request.query_state()[0], ov._pyopenvino.VariableState)
    assert isinstance(request.get_compiled_model(), ov.CompiledModel)
    found = compiled.get_runtime_model()
    assert isinstance(found, ov.Model)
    assert {"Input", "Output"} < {node.get_rt_info()["layerType"].value for node in found.get_ops()}


def test_state(core: ov.Core) -> None:
    compiled = core.compile_model(counter(), "NVIDIA")
    request = compiled.create_infer_request()
    one = np.ones(2, np.float32)
    assert [request.infer([one])[0].tolist() for _ in range(3)] == [[1, 1], [2, 2], [3, 3]]
    (state,) = request.query_state()
    assert (state.name, state.state.data.tolist()) == ("v", [3, 3])
    state.state = ov.Tensor(np.array([10, 20], np.float32))
    assert request.infer([one])[0].tolist() == [11, 21]
    state.reset()
    assert request.infer([one])[0].tolist() == [1, 1]
    request.reset_state()
    assert request.infer([one])[0].tolist() == [1, 1]
    assert compiled([one])[0].tolist() == [1, 1]  # a request of its own
    compiled.reset_state()
    assert compiled.query_state()[0].state.data.tolist() == [0, 0]


def test_asynchronous(core: ov.Core) -> None:
    request = core.compile_model(doubled(), "NVIDIA").create_infer_request()
    seen = []
    request.set_callback(seen.append, "userdata")
    request.start_async({"x": X})
    request.wait()
    assert request.wait_for(1000)
    assert seen == ["userdata"]
    assert request.results["y"].tolist() == (2 * X).tolist()
    assert request.latency > 0
    request.cancel()


def test_queue(core: ov.Core) -> None:
    queue = ov.AsyncInferQueue(core.compile_model(doubled(), "NVIDIA"), jobs=3)
    found: dict[int, list[list[float]]] = {}
    requests = []

    def callback(request: Any, number: int) -> None:
        requests.append(request)
        found[number] = request.get_output_tensor(0).data.tolist()

    queue.set_callback(callback)
    for i in range(10):
        queue.start_async({0: X + i}, i)
    queue.wait_all()
    assert found == {i: (2 * (X + i)).tolist() for i in range(10)}
    assert all(any(request is own for own in queue) for request in requests)
    assert len(queue) == 3
    assert queue[0] is next(iter(queue))
    assert queue.is_ready()
    assert queue.get_idle_request_id() in range(3)


def test_profiling(core: ov.Core) -> None:
    request = core.compile_model(doubled(), "NVIDIA", {props.enable_profiling: True}).create_infer_request()
    request.infer([X])
    for found in (request.profiling_info, request.get_profiling_info()):
        assert "MatMul" in {info.node_type for info in found}
        assert all(type(info) is ov.ProfilingInfo for info in found)
        assert {info.status for info in found} <= {
            ov.ProfilingInfo.Status.EXECUTED,
            ov.ProfilingInfo.Status.OPTIMIZED_OUT,
        }


def test_export_and_import(core: ov.Core) -> None:
    compiled = core.compile_model(doubled(), "NVIDIA", {props.enable_profiling: True})
    returned, given = compiled.export_model(), io.BytesIO()
    compiled.export_model(given)
    for source in (returned, given, returned.getvalue(), ov.Tensor(np.frombuffer(returned.getvalue(), np.uint8))):
        imported = core.import_model(source, "NVIDIA")
        assert isinstance(imported, ov.CompiledModel) and imported.get_property(props.enable_profiling) == "YES"
        np.testing.assert_array_equal(imported([X])[0], compiled([X])[0])
    with pytest.raises(RuntimeError, match="not a compiled model of ovgpu"):
        core.import_model(io.BytesIO(b""), "NVIDIA")


@pytest.mark.parametrize("name", ["m.xml", "m.onnx"])
def test_cache_dir(core: ov.Core, tmp_path: Path, name: str) -> None:
    """An IR's weights stay in its file; those of a model of another format are in the entry."""
    if name == "m.onnx":
        save_onnx(tmp_path / name)
    else:
        ov.save_model(doubled(), tmp_path / name)
    found = []
    for _ in range(2):
        compiled = core.compile_model(tmp_path / name, "NVIDIA", {props.cache_dir: tmp_path / "cache"})
        found.append(compiled.get_property(props.loaded_from_cache))
        np.testing.assert_array_equal(compiled([X])[0], core.compile_model(tmp_path / name, "NVIDIA")([X])[0])
    assert found == [False, True]
    (entry,) = (tmp_path / "cache").glob("*.blob")
    with zipfile.ZipFile(entry) as archive:
        assert ("model.bin" in archive.namelist()) == (name == "m.onnx")
