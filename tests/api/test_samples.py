"""Calls that samples, notebooks and libraries make, run unchanged with either library: results agree.

Each function takes the module ``ov`` and the folder of a model, and returns its results.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest

import ovgpu

from . import nets

DATA = Path(__file__).parents[1] / "models" / "data"
Script = Callable[[Any, Path], Any]


def core_of(ov: Any) -> Any:
    core = ov.Core()
    core.set_property("CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return core


def image(*shape: int) -> np.ndarray:
    return np.random.RandomState(3).uniform(-1, 1, shape).astype(np.float32)


def ultralytics(ov: Any, folder: Path) -> Any:
    """Run a detector's backend: read, choose a device, reshape, set hints, call `compiled(im).values()`."""
    core = ov.Core()
    device = "AUTO" if "GPU" not in core.available_devices else "GPU"
    model = core.read_model(model=str(folder / "model.xml"), weights=folder / "model.bin")
    if model.input().get_partial_shape().is_dynamic:
        shape = [
            d if isinstance(d, int) else d.get_length() if d.is_static else 1 for d in list(model.input().partial_shape)
        ]
        shape[-2:] = [16, 16]
        if ov.PartialShape(shape) != model.input().partial_shape:
            model.reshape(shape)
    types = {op.get_type_name() for op in model.get_ops()}
    supported = core.get_property("CPU", "SUPPORTED_PROPERTIES")
    config = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": ov.Type.f32}
    if "EXECUTION_MODE_HINT" in supported:
        config["EXECUTION_MODE_HINT"] = ov.properties.hint.ExecutionMode.ACCURACY
    compiled = core.compile_model(model, device_name=device, config=config)
    im = image(*compiled.input().shape)
    return [
        *compiled(im).values(),
        sorted(types),
        compiled.get_property("EXECUTION_DEVICES"),
        [tuple(o.shape) for o in compiled.outputs],
    ]


def ultralytics_throughput(ov: Any, folder: Path) -> Any:
    """Run the asynchronous form of the same backend."""
    core = core_of(ov)
    compiled = core.compile_model(str(folder / "model.xml"), "CPU", {"PERFORMANCE_HINT": "CUMULATIVE_THROUGHPUT"})
    im, n = image(4, 3, 16, 16), 4
    results: list[Any] = [None] * n

    def callback(request: Any, userdata: int) -> None:
        results[userdata] = [np.array(t.data) for t in request.output_tensors]

    queue = ov.AsyncInferQueue(compiled)
    queue.set_callback(callback)
    for i in range(n):
        queue.start_async(inputs={compiled.input(0).get_any_name(): im[i : i + 1]}, userdata=i)
    queue.wait_all()
    return [np.concatenate([r[0] for r in results])]


def hello_classification(ov: Any, folder: Path) -> Any:
    core = core_of(ov)
    model = core.read_model(folder / "model.xml")
    assert len(model.inputs) == 1 and len(model.outputs) == 1
    model.reshape([2, 3, 16, 16])
    compiled = core.compile_model(model, "CPU")
    results = compiled.infer_new_request({0: image(2, 3, 16, 16)})
    predictions = next(iter(results.values()))
    return [np.argsort(predictions.reshape(2, -1))[:, ::-1], predictions]


def hello_reshape(ov: Any, folder: Path) -> Any:
    """Reshape by name, port and number, with '?' and ranges, and set the batch by layout."""
    core, found = core_of(ov), []
    for key in (0, "input_name", "port"):
        model = core.read_model(folder / "model.xml")
        port = model.input(0)
        where = {"input_name": port.any_name, "port": port, 0: 0}[key]
        for shape in ([1, 3, "?", "8..20"], [1, 3, 16, 16]):
            model.reshape({where: ov.PartialShape(shape)})
            found.append(str(model.input(0).partial_shape))
            compiled = core.compile_model(model, "CPU")
            found.append(compiled([image(1, 3, 16, 16)])[compiled.output(0)])
    model = core.read_model(folder / "model.xml")
    model.get_parameters()[0].set_layout(ov.Layout("NCHW"))
    ov.set_batch(model, 2)
    return [*found, str(model.input().partial_shape), ov.get_batch(model).get_length()]


def classification_async(ov: Any, folder: Path) -> Any:
    compiled = core_of(ov).compile_model(folder / "model.xml", "CPU")
    queue, found = ov.AsyncInferQueue(compiled, 3), {}

    def completion(request: Any, path: str) -> None:
        predictions = (
            next(iter(request.results.values()))
            if isinstance(request, ovgpu.InferRequest)
            else request.get_output_tensor(0).data
        )
        found[path] = predictions.copy().reshape(-1)

    queue.set_callback(completion)
    for i in range(7):
        queue.start_async({0: image(1, 3, 16, 16) * i}, f"image {i}")
    queue.wait_all()
    return [found[path] for path in sorted(found)]


def query_device(ov: Any, folder: Path) -> Any:
    core = core_of(ov)
    found = []
    for device in core.available_devices:
        full = core.get_property(device, "FULL_DEVICE_NAME")
        versions = core.get_versions(device)[device]
        found += [device, *(type(x).__name__ for x in (full, versions.build_number, versions.description))]
        for key in core.get_property(device, "SUPPORTED_PROPERTIES"):
            if key not in ("SUPPORTED_METRICS", "SUPPORTED_CONFIG_KEYS", "SUPPORTED_PROPERTIES"):
                try:
                    core.get_property(device, key)
                except TypeError:
                    assert ov is openvino
    return found


def sync_benchmark(ov: Any, folder: Path) -> Any:
    """Run one request, whose inputs are filled in place."""
    core = core_of(ov)
    model = core.read_model(folder / "model.xml")
    model.reshape([1, 3, 16, 16])
    compiled = core.compile_model(
        model, "CPU", {ov.properties.hint.performance_mode: ov.properties.hint.PerformanceMode.LATENCY}
    )
    request = compiled.create_infer_request()
    for port in compiled.inputs:
        tensor = request.get_tensor(port)
        tensor.data[:] = image(*port.shape).astype(tensor.element_type.to_dtype())
    latencies = []
    for _ in range(5):
        start = time.perf_counter()
        request.infer()
        latencies.append((time.perf_counter() - start, request.latency))
    assert all(0 < inner < outer * 1e3 for outer, inner in latencies)
    return [
        np.array(request.get_tensor(compiled.output(0)).data),
        request.get_input_tensor().get_size(),
        tuple(request.get_output_tensor().get_shape()),
    ]


def throughput_benchmark(ov: Any, folder: Path) -> Any:
    """Run a queue over requests whose inputs are already set."""
    core = core_of(ov)
    model = core.read_model(folder / "model.xml")
    model.reshape([1, 3, 16, 16])
    compiled = core.compile_model(model, "CPU", {"PERFORMANCE_HINT": "THROUGHPUT", "NUM_STREAMS": 2})
    queue = ov.AsyncInferQueue(compiled)
    for request in queue:
        for port in compiled.inputs:
            request.get_tensor(port).data[:] = image(*port.shape)
    for _ in queue:
        queue.start_async()
    queue.wait_all()
    times = []
    for _ in range(12):
        number = queue.get_idle_request_id()
        times.append(queue[number].latency)
        queue.start_async()
    queue.wait_all()
    assert all(t > 0 for t in times)
    return [len(queue), queue.is_ready(), *[np.array(r.get_output_tensor().data) for r in queue]]


def bert_benchmark(ov: Any, folder: Path) -> Any:
    """Run inputs of a different length each time, as from a tokenizer."""
    compiled = core_of(ov).compile_model(str(folder / "model.xml"), "CPU", {"PERFORMANCE_HINT": "THROUGHPUT"})
    queue, found, random = ov.AsyncInferQueue(compiled), {}, np.random.RandomState(5)
    queue.set_callback(lambda request, k: found.update({k: np.array(request.get_output_tensor(0).data)}))
    for k in range(6):
        length = 3 + 2 * k
        tokens = random.randint(0, 90, (1, length))
        inputs = {
            port.get_any_name(): np.ones_like(tokens)
            if "mask" in port.get_any_name()
            else np.zeros_like(tokens)
            if "type" in port.get_any_name()
            else tokens
            for port in compiled.inputs
        }
        queue.start_async(inputs, k)
    queue.wait_all()
    return [found[k] for k in range(6)]


def speech(ov: Any, folder: Path) -> Any:
    """Run a stateful model frame by frame, with `state.reset()` between utterances."""
    compiled = core_of(ov).compile_model(folder / "model.xml", "CPU")
    request, found = compiled.create_infer_request(), []
    shapes = {port.any_name: tuple(port.shape) for port in compiled.inputs}
    for _ in range(2):
        for state in request.query_state():
            state.reset()
        for frame in range(3):
            result = request.infer({name: image(*shape) * (frame + 1) for name, shape in shapes.items()})
            found += [result[port].copy() for port in compiled.outputs]
    return [*found, sorted(state.name for state in request.query_state())]


def rapidocr(ov: Any, folder: Path) -> Any:
    core = ov.Core()
    core.set_property(
        "CPU",
        {
            "INFERENCE_NUM_THREADS": "2",
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
            "ENABLE_CPU_PINNING": True,
            "SCHEDULING_CORE_TYPE": "ANY_CORE",
            "INFERENCE_PRECISION_HINT": "f32",
        },
    )
    model = core.read_model(folder / "model.xml")
    info = model.get_rt_info()
    session = core.compile_model(model=model, device_name="CPU").create_infer_request()
    session.infer(inputs=[image(1, 3, 16, 16)])
    return [session.get_output_tensor().data.copy(), type(info).__name__]


def anomalib(ov: Any, folder: Path) -> Any:
    core = ov.Core()
    model = core.read_model(model=(folder / "model.xml").read_bytes(), weights=(folder / "model.bin").read_bytes())
    core.set_property({"CACHE_DIR": ""})
    compiled = core.compile_model(model=model, device_name="CPU", config={"INFERENCE_PRECISION_HINT": "f32"})
    x = image(1, 3, 16, 16)
    predictions = compiled({compiled.input(0).any_name: x})
    return [
        predictions[compiled.output(0)],
        compiled.input(0).partial_shape.is_static,
        [sorted(names) for names in predictions.names()],
        predictions.to_tuple()[0],
    ]


def notebook(ov: Any, folder: Path) -> Any:
    """Call `compiled([x])[out]`, set tensors by hand, and share inputs with one request."""
    compiled = ov.compile_model(
        core_of(ov).read_model(folder / "model.xml"), "CPU", {"INFERENCE_PRECISION_HINT": "f32"}
    )
    out, x = compiled.output(0), image(1, 3, 16, 16)
    request = compiled.create_infer_request()
    request.set_input_tensor(ov.Tensor(array=x, shared_memory=True))
    request.start_async()
    request.wait()
    first = request.get_output_tensor().data.copy()
    x *= 2
    request.start_async(share_inputs=True)
    request.wait()
    return [
        compiled([x])[out],
        compiled(x)[0],
        first,
        request.results[out],
        ov.Tensor(x).get_size(),
        [str(t.element_type) for t in request.input_tensors],
    ]


@pytest.mark.parametrize(
    ("script", "model"),
    [
        (ultralytics, "classifier"),
        (ultralytics_throughput, "classifier"),
        (hello_classification, "classifier"),
        (hello_reshape, "classifier"),
        (classification_async, "classifier"),
        (query_device, "classifier"),
        (sync_benchmark, "classifier"),
        (throughput_benchmark, "classifier"),
        (bert_benchmark, "bert"),
        (speech, "lstm_state"),
        (rapidocr, "classifier"),
        (anomalib, "classifier"),
        (notebook, "classifier"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
def test_script(script: Script, model: str, tmp_path: Path) -> None:
    folder = DATA / model
    if model == "classifier":
        folder, (xml, weights) = tmp_path, nets.classifier()
        (folder / "model.xml").write_bytes(xml)
        (folder / "model.bin").write_bytes(weights)
    expected, found = (script(ov, folder) for ov in (openvino, ovgpu))
    same(found, expected)


def same(found: Any, expected: Any) -> None:
    """Assert that results are equal, arrays up to the rounding of f32."""
    if isinstance(expected, np.ndarray):
        assert (found.shape, found.dtype) == (expected.shape, expected.dtype)
        largest = np.abs(expected).max(initial=0)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5 * float(largest))
    elif isinstance(expected, (list, tuple)):
        assert len(found) == len(expected)
        for f, e in zip(found, expected):
            same(f, e)
    else:
        assert found == expected
