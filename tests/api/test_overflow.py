"""Models that leave the range of f16 come out right with EXECUTION_MODE_HINT PERFORMANCE: they are computed in bf16."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import openvino
import pytest
from openvino import opset1

import ovgpu as ov
from ovgpu.compile.compilation import Compilation
from ovgpu.request import downloads
from ovgpu.request.device_io import DeviceOutput
from ovgpu.runtime.overflow import OverflowWatch
from tests.emulator import cupy_emu
from tests.harness.ir import Net
from tests.harness.models.drive import DATA, OPENVINO_F32, Expected, decoder_inputs, relative_error, replay
from tests.models.test_precision import deviation

FAST = {"EXECUTION_MODE_HINT": "PERFORMANCE"}
PRECISION = "INFERENCE_PRECISION_HINT"
BF16_ERROR = 0.05  # of a whole model, as the root mean square of all differences relative to that of all values
T5_ERROR = 0.21  # twice that of OpenVINO in bf16, see tests/models/test_precision.py


def precision(compiled: Any) -> str:
    return str(compiled.get_property(PRECISION).get_type_name())


def large(state: bool = False, columns: int = 64) -> tuple[bytes, bytes]:
    """Return the IR of a product of up to 64 * 500 x, and of a smaller one; with ``state``, of their running sum."""
    net = Net("large")
    x = net.parameter("f32", (1, 64), "x")
    attributes = {"transpose_a": False, "transpose_b": False}
    weights = np.random.default_rng(1).uniform(100, 500, (64, 64)).astype("f4")
    y = net.layer("MatMul", "opset1", [x, net.const(weights)], attributes)
    y = net.layer("MatMul", "opset1", [y, net.const(np.full((64, columns), 2.0**-12, "f4"))], attributes)
    if state:
        read = net.read_value("sum", "f32", (1, 64))
        y = net.layer("Add", "opset1", [y, read], {"auto_broadcast": "numpy"})
        net.assign("sum", y)
    net.result(y)
    return net.build()


def compiled(ir: Any, device: str, config: Any = FAST) -> Any:
    core = ov.Core()
    return core.compile_model(core.read_model(*ir), device, config)


def draw(scale: float) -> Any:
    return (scale * np.random.default_rng(2).uniform(0.5, 1, (1, 64))).astype("f4")


def test_a_product_that_overflows(emulated: str) -> None:
    model, x = compiled(large(), emulated), draw(1000)
    assert precision(model) == "f16"
    assert relative_error(model([x])[0], compiled(large(), "CPU")([x])[0]) < 2.0**-7
    assert precision(model) == "bf16"
    assert relative_error(model([draw(1e30)])[0], compiled(large(), "CPU")([draw(1e30)])[0]) < 2.0**-7


def test_in_range(emulated: str) -> None:
    model, x = compiled(large(), emulated), draw(1)
    assert relative_error(model([x])[0], compiled(large(), "CPU")([x])[0]) < 2.0**-10
    assert precision(model) == "f16"


@pytest.mark.parametrize("bound", [None, np.empty, cupy_emu.empty])
@pytest.mark.parametrize("columns", [64, 512])
def test_overflow_after_other_inferences(
    columns: int, bound: Any, emulated: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Results of replays are looked at as well: on the host, on the device, and large ones before they are read."""
    monkeypatch.setattr(downloads, "LARGE_BYTES", 1024)
    model = compiled(large(columns=columns), emulated)
    request = model.create_infer_request()
    array = None if bound is None else bound((1, columns), np.float32)
    if array is not None:
        request.set_output_tensor(ov.Tensor(array, shared_memory=True))
    for scale in (1, 1, 1, 1000):
        request.infer([draw(scale)])
        assert precision(model) == ("f16" if scale == 1 else "bf16")
    found = request.get_output_tensor().data if array is None else array.get() if bound is cupy_emu.empty else array
    assert relative_error(found, compiled(large(columns=columns), "CPU")([draw(1000)])[0]) < 2.0**-7


def test_results_that_are_never_finite(emulated: str) -> None:
    """An infinite input gives infinite results in any type; NaN is no overflow, and is looked into once."""
    model = compiled(large(), emulated)
    request = model.create_infer_request()
    for _ in range(3):
        request.infer([np.full((1, 64), np.nan, np.float32)])
    assert precision(model) == "f16" and np.isnan(request.get_output_tensor().data).all()
    request.infer([np.full((1, 64), np.inf, np.float32)])
    assert not np.isfinite(request.get_output_tensor().data).any()


def test_f16_that_was_asked_for_is_kept(emulated: str) -> None:
    model = compiled(large(), emulated, FAST | {PRECISION: "f16"})
    assert not np.isfinite(model([draw(1000)])[0]).any() and precision(model) == "f16"


def test_other_requests_follow(emulated: str) -> None:
    """A request that began in f16 changes at its next inference, with its state; so do objects of its variables."""
    model = compiled(large(state=True), emulated)
    first, second = model.create_infer_request(), model.create_infer_request()
    (variable,) = first.query_state()
    for scale in (1, 2):
        first.infer([draw(scale)])
    second.infer([draw(1000)])
    assert precision(model) == "bf16"
    first.infer([draw(1000)])
    expected = sum(compiled(large(), "CPU")([draw(scale)])[0] for scale in (1, 2, 1000))
    assert relative_error(first.get_output_tensor().data, expected) < 2.0**-7
    np.testing.assert_array_equal(variable.state.data, first.get_output_tensor().data)
    variable.reset()
    first.infer([draw(1)])
    assert relative_error(variable.state.data, compiled(large(), "CPU")([draw(1)])[0]) < 2.0**-7


def test_a_compilation_that_fails(emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the wider model cannot be compiled, the inference fails, and the next one that overflows tries again."""
    model, small, high = compiled(large(), emulated), draw(1), draw(1000)
    request = model.create_infer_request()
    expected = [np.copy(request.infer([small])[0]) for _ in range(3)][-1]

    def failing(*args: Any, **named: Any) -> None:
        raise ov.DeviceError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(Compilation, "__init__", failing)
        with pytest.raises(ov.DeviceError, match="out of memory"):
            request.infer([high])
    assert precision(model) == "f16"
    for each in (request, model.create_infer_request()):
        np.testing.assert_array_equal(each.infer([small])[0], expected)
    np.testing.assert_allclose(request.infer([high])[0], 1000 * expected, rtol=BF16_ERROR)
    assert precision(model) == "bf16"


def test_ports_are_kept(emulated: str) -> None:
    """Ports of the compiled model and of the request, taken before or after, name the tensors and results."""
    model, x = compiled(large(), emulated), draw(1000)
    request = model.create_infer_request()
    ports = [model.output(0), request.model_outputs[0]]
    for _ in range(2):
        results = request.infer({model.input(0): x})
        assert precision(model) == "bf16"
        ports += [model.output(0), request.model_outputs[0], model.create_infer_request().model_outputs[0]]
        for port in ports:
            np.testing.assert_array_equal(results[port], results[0])
            np.testing.assert_array_equal(request.get_tensor(port).data, results[0])
    np.testing.assert_array_equal(request.get_tensor(request.model_inputs[0]).data, x)


def test_a_failing_inference_keeps_the_state(emulated: str) -> None:
    """The inference that overflows is run again from the state before it."""
    request = compiled(large(state=True), emulated).create_infer_request()
    for _ in range(2):
        request.infer([draw(1000)])
    assert relative_error(request.get_output_tensor().data, 2 * compiled(large(), "CPU")([draw(1000)])[0]) < 2.0**-6


def test_with_profiling(emulated: str) -> None:
    model = compiled(large(), emulated, FAST | {"PERF_COUNT": True})
    request = model.create_infer_request()
    request.infer([draw(1000)])
    assert precision(model) == "bf16" and np.isfinite(request.get_output_tensor().data).all()
    assert any(info.real_time.total_seconds() > 0 for info in request.profiling_info)


# ---- whole models


def grown(name: str, parts: tuple[str, ...], folder: Path) -> Path:
    """Write a model whose layers with these names have results 2**18 times as large, and return its file."""
    model = openvino.Core().read_model(DATA / name / "model.xml")
    for node in model.get_ops():
        if node.get_type_name() == "MatMul" and any(part in node.get_friendly_name() for part in parts):
            output = node.output(0)
            targets, port = output.get_target_inputs(), output
            for _ in range(2):
                port = opset1.multiply(port, opset1.constant(np.float32(512))).output(0)
            for target in targets:
                target.replace_source_output(port)
    openvino.save_model(model, folder / "model.xml", compress_to_fp16=False)
    return folder / "model.xml"


@pytest.mark.drawn(3)
@pytest.mark.parametrize(
    ("name", "parts"),
    [("t5_encoder", ("DenseReluDense.wo",)), ("gemma2", ("o_proj", "down_proj")), ("llama", ("o_proj", "down_proj"))],
)
def test_residual_streams_beyond_f16(name: str, parts: tuple[str, ...], emulated: str, tmp_path: Path) -> None:
    """T5, Gemma and the like, whose residual streams exceed f16, are as right as in bf16."""
    file, calls = grown(name, parts, tmp_path), Expected.load(DATA / name / "expected.npz").calls
    core = openvino.Core()
    expected = replay(core.compile_model(core.read_model(file), "CPU", OPENVINO_F32), calls)
    model = ov.Core().compile_model(file, emulated, FAST)
    calls = [replace(call, outputs=outputs) for call, outputs in zip(calls, expected)]
    assert deviation(model, calls) < (T5_ERROR if name == "t5_encoder" else BF16_ERROR)
    assert precision(model) == "bf16"


@pytest.mark.drawn(8)
@pytest.mark.parametrize(
    "name",
    [
        "bert",
        "clip",
        "deberta",
        "gemma2",
        "gpt2",
        "llama",
        "llama_int4_sym",
        "mixtral",
        "swin",
        "t5_decoder",
        "unet",
        "whisper_decoder",
        "yolos",
        "lstm_state",
    ],
)
def test_models_in_range_stay_in_f16(name: str, emulated: str) -> None:
    """Masks of -inf and of the lowest number do not count as overflow."""
    model = ov.Core().compile_model(DATA / name / "model.xml", emulated, FAST)
    for _ in replay(model, Expected.load(DATA / name / "expected.npz").calls):
        pass
    assert precision(model) == "f16"


@pytest.mark.drawn(2)
@pytest.mark.parametrize("step", [1, 2, 3])
@pytest.mark.parametrize("elsewhere", [False, True])
def test_overflow_while_decoding(elsewhere: bool, step: int, emulated: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An overflow in a decode step, or in another request: the KV cache is converted, and the step is as in bf16.

    Only the first decode step is watched: the overflow of later ones is noticed by their results.
    """
    models = [
        ov.Core().compile_model(DATA / "llama" / "model.xml", device, config)
        for device, config in ((emulated, FAST), ("CPU", {}))
    ]
    requests = [model.create_infer_request() for model in models]
    for number in range(5):
        if number == step and elsewhere:
            models[0]._compilation.widened()
        elif number == step:
            monkeypatch.setattr(OverflowWatch, "_overflows", lambda *_: True)
            monkeypatch.setattr(DeviceOutput, "looks_finite", lambda _: False)
        tokens = np.array([[5, 9, 2, 7]]) if number == 0 else np.array([[3 + number]])
        inputs = decoder_inputs(tokens, np.ones((1, 4 + number), np.int64))
        found, expected = (request.infer(inputs)["logits"] for request in requests)
        assert relative_error(found, expected) < BF16_ERROR
        assert precision(models[0]) == ("f16" if number < step else "bf16")
