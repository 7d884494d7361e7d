"""MULTI: a compiled model whose requests are shared among two emulated cards, or the CPU and a card."""

from __future__ import annotations

import gc
import io
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.api.multi_compiled_model import MultiCompiledModel
from tests.emulator import device as emulator
from tests.harness.ir import Net
from tests.harness.layers import add, matmul, relu, tanh

CARDS = "MULTI:NVIDIA.0,NVIDIA.1"
MIXED = "MULTI:CPU,NVIDIA.1"
SIZE = 64

pytestmark = pytest.mark.usefixtures("two_cards")

Array = np.ndarray[Any, Any]


def summing() -> ov.Model:
    """Return y = tanh(relu(x w) + v) with the variable v set to y; x has [n, SIZE]."""
    net = Net("summing")
    random = np.random.default_rng(1)
    x = net.parameter("f32", (-1, SIZE), "x")
    v = net.read_value("v", "f32", (1, SIZE), net.const(np.full((1, SIZE), 0.25, "f4")))
    hidden = relu(net, matmul(net, x, net.const(random.uniform(-1, 1, (SIZE, SIZE)).astype("f4"))))
    y = tanh(net, add(net, hidden, v))
    net.assign("v", y)
    net.result(net.layer("Identity", "opset16", [y], names=["y"]))
    return ov.Core().read_model(*net.build())


def stateless() -> ov.Model:
    """Return y = relu(x w); x has [n, SIZE]."""
    net = Net("stateless")
    weights = np.random.default_rng(2).uniform(-1, 1, (SIZE, SIZE)).astype("f4")
    y = net.layer(
        "MatMul",
        "opset1",
        [net.parameter("f32", (-1, SIZE), "x"), net.const(weights)],
        {"transpose_a": False, "transpose_b": False},
    )
    net.result(net.layer("Relu", "opset1", [y], names=["y"]))
    return ov.Core().read_model(*net.build())


def compiled(name: str, config: Any = None, model: ov.Model | None = None) -> ov.CompiledModel:
    return ov.Core().compile_model(model or stateless(), name, config)


def devices(model: ov.CompiledModel) -> list[str]:
    found: list[str] = model.get_property("EXECUTION_DEVICES")
    return found


def device(request: ov.InferRequest) -> str:
    """Return the device of a request."""
    (found,) = devices(request.get_compiled_model())
    return found


def requests(model: ov.CompiledModel, number: int) -> list[ov.InferRequest]:
    return [model.create_infer_request() for _ in range(number)]


def rows(seed: int, number: int = 1) -> Array:
    return np.random.default_rng(seed).standard_normal((number, SIZE)).astype("f4")


# ---- names


@pytest.mark.parametrize(
    ("name", "expected", "optimal"),
    [
        (CARDS, ["NVIDIA.0", "NVIDIA.1"], 2),
        ("MULTI", ["NVIDIA.0", "NVIDIA.1"], 2),
        ("MULTI:-CPU", ["NVIDIA.0", "NVIDIA.1"], 2),
        ("MULTI:NVIDIA.1, CUDA.0", ["NVIDIA.1", "NVIDIA.0"], 2),
        ("MULTI:NVIDIA,NVIDIA.0,CUDA,CUDA.1", ["NVIDIA.0", "NVIDIA.1"], 2),
        ("MULTI:NVIDIA(4),CPU(2)", ["NVIDIA.0", "CPU"], 6),
        ("MULTI:NVIDIA.1(3),NVIDIA.0", ["NVIDIA.1", "NVIDIA.0"], 4),
        ("MULTI:NVIDIA(3),NVIDIA.0(5)", ["NVIDIA.0"], 3),
        ("MULTI:NVIDIA.1", ["NVIDIA.1"], 1),
        ("MULTI:-NVIDIA.0", ["NVIDIA.1"], 1),
        ("MULTI:-CUDA", ["CPU"], 1),
    ],
)
def test_names(name: str, expected: list[str], optimal: int) -> None:
    model = compiled(name)
    assert devices(model) == expected
    assert model.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == len(ov.AsyncInferQueue(model)) == optimal
    assert isinstance(model, MultiCompiledModel) == (len(expected) > 1)


def test_the_list_as_a_property() -> None:
    assert devices(compiled("MULTI", {"MULTI_DEVICE_PRIORITIES": "NVIDIA.1,CPU"})) == ["NVIDIA.1", "CPU"]
    assert devices(compiled("MULTI", dict([ov.properties.device.priorities("CPU", "NVIDIA")]))) == ["CPU", "NVIDIA.0"]


@pytest.mark.parametrize("name", ["AUTO:NVIDIA.1,CPU", "HETERO:NVIDIA.1,CPU", "BATCH:NVIDIA.1(4)"])
def test_other_lists_select_one_device(name: str) -> None:
    assert devices(compiled(name)) == ["NVIDIA.1"]


def test_devices_that_cannot_be_used_are_left_out() -> None:
    with pytest.warns(
        RuntimeWarning,
        match=(
            r'^MULTI takes NVIDIA.1, CPU: Device "NVIDIA.7" cannot be used: there are 2 GPUs, .*; '
            r'Device with "NOPE" name is not registered'
        ),
    ) as found:
        assert devices(compiled("MULTI:NVIDIA.7,NVIDIA.1,NOPE,CPU")) == ["NVIDIA.1", "CPU"]
    assert found[0].filename == __file__
    with pytest.raises(ov.DeviceError, match=r'No available device to filter MULTI plugin: Device "NVIDIA.7" .*"NOPE"'):
        compiled("MULTI:NVIDIA.7,NOPE")


@pytest.mark.parametrize("kind", ["MULTI", "AUTO", "HETERO", "BATCH"])
@pytest.mark.parametrize("entry", ["NVIDIA(0)", "NVIDIA(-1)", "NVIDIA(x)", "NVIDIA(4", "NVIDIA()"])
def test_malformed_lists(kind: str, entry: str) -> None:
    with pytest.raises(ov.DeviceError, match=r"'.*' is not the name of a device, with or without a positive number"):
        compiled(f"{kind}:CPU,{entry}")


@pytest.mark.parametrize("kind", ["MULTI", "AUTO", "HETERO"])
def test_empty_entries_do_not_count(kind: str) -> None:
    """OpenVINO takes such lists."""
    for name in (f"{kind}:,CPU", f"{kind}:CPU,", f"{kind}:CPU,, CPU"):
        assert devices(compiled(name)) == ["CPU"]


@pytest.mark.parametrize("value", [False, 0, "NVIDIA(0)"])
def test_lists_that_name_no_device(value: Any) -> None:
    with pytest.raises(ov.DeviceError):
        compiled("AUTO", {"MULTI_DEVICE_PRIORITIES": value})


def test_without_a_card() -> None:
    with emulator.devices(0):
        with pytest.warns(RuntimeWarning, match="^MULTI takes CPU: .* no NVIDIA GPU"):
            assert devices(compiled("MULTI")) == ["CPU"]
        with pytest.raises(ov.DeviceError, match=r"MULTI plugin: .* no NVIDIA GPU"):
            compiled("MULTI:-CPU")


# ---- requests


def test_requests_take_turns() -> None:
    model = compiled(CARDS)
    model(rows(0))  # in the private request, which does not count
    found = requests(model, 6)
    assert list(map(device, found)) == ["NVIDIA.0", "NVIDIA.1"] * 3
    del found[1::2]  # those of NVIDIA.1
    found += requests(model, 3)
    assert Counter(map(device, found)) == {"NVIDIA.0": 3, "NVIDIA.1": 3}
    assert device(model.create_infer_request()) == "NVIDIA.0"


@pytest.mark.parametrize("pair", [CARDS, MIXED])
def test_requests_that_have_run_are_counted_until_they_are_dropped(pair: str) -> None:
    model = compiled(pair, model=summing())
    first, second = devices(model)
    found = requests(model, 4)
    for step in range(3):
        for request in found:
            request.infer(rows(step))
    del found[::2], request
    gc.collect()
    assert [device(new) for new in (model.create_infer_request(), model.create_infer_request())] == [first] * 2
    kept = requests(model, 2)
    assert list(map(device, kept)) == [first, first] and list(map(device, found)) == [second, second]


def test_numbers_of_requests_are_proportions() -> None:
    model = compiled("MULTI:NVIDIA.0(4),CPU(2)")
    found = requests(model, 2)
    assert list(map(device, found)) == ["NVIDIA.0", "CPU"]
    found += requests(model, 4)
    assert Counter(map(device, found)) == {"NVIDIA.0": 4, "CPU": 2}
    found += requests(model, 6)
    assert Counter(map(device, found)) == {"NVIDIA.0": 8, "CPU": 4}


def test_threads_create_requests() -> None:
    model = compiled(CARDS)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: model.create_infer_request(), range(40)))
    assert Counter(map(device, found)) == {"NVIDIA.0": 20, "NVIDIA.1": 20}


@pytest.mark.parametrize("pair", [CARDS, MIXED])
def test_results_are_those_of_a_single_device(pair: str) -> None:
    source = stateless()
    model = compiled(pair, model=source)
    for request, name in zip(requests(model, 4), 2 * devices(model)):
        alone = compiled(name, model=source)
        for seed in range(3):
            x = rows(seed, 1 + seed)
            results = request.infer({model.input(0): x})
            expected = alone(x)[0]
            for key in (model.output(0), model.output("y"), source.output(0), "y", 0):
                assert results[key].tobytes() == expected.tobytes()
        assert request.model_inputs == model.inputs and request.model_outputs == model.outputs
        assert hash(request.model_outputs[0]) == hash(model.outputs[0])
    x = rows(7)
    assert model(x)[0].tobytes() == compiled(devices(model)[0], model=source)(x)[0].tobytes()


@pytest.mark.parametrize("pair", [CARDS, MIXED])
def test_states_stay_with_their_requests(pair: str) -> None:
    source = summing()
    model = compiled(pair, model=source)
    found = requests(model, 4)
    alone = [compiled(name, model=source).create_infer_request() for name in 2 * devices(model)]
    for step in range(6):
        for number, (request, other) in enumerate(zip(found, alone)):
            x = rows(10 * number + step)
            assert request.infer(x)["y"].tobytes() == other.infer(x)["y"].tobytes()
        if step == 2:
            found[1].reset_state()
            alone[1].reset_state()
    for request, other in zip(found, alone):
        (value,), (expected,) = request.query_state(), other.query_state()
        assert value.state.data.tobytes() == expected.state.data.tobytes()
    found[1].query_state()[0].state = found[0].query_state()[0].state  # from one device to the other
    np.testing.assert_array_equal(found[1].query_state()[0].state.data, found[0].query_state()[0].state.data)
    (private,) = model.query_state()
    np.testing.assert_array_equal(private.state.data, np.full((1, SIZE), 0.25, "f4"))


@pytest.mark.parametrize("pair", [CARDS, "MULTI:CPU(3),NVIDIA.1(2)"])
def test_a_queue_fed_by_threads(pair: str) -> None:
    """Each of some hundred inferences is answered once, with the result of the device that computed it."""
    source, threads, each = stateless(), 4, 75
    model = compiled(pair, {"PERFORMANCE_HINT": "THROUGHPUT"}, source)
    queue = ov.AsyncInferQueue(model)
    assert len(queue) == (8 if pair == CARDS else 5)
    answers: list[tuple[int, ov.InferRequest, bytes]] = []
    queue.set_callback(
        lambda request, seed: answers.append((seed, request, request.get_output_tensor(0).data.tobytes()))
    )

    def feed(first: int) -> None:
        for seed in range(first, first + each):
            queue.start_async({"x": rows(seed, 1 + seed % 3)}, seed)

    feeding = [threading.Thread(target=feed, args=(each * number,)) for number in range(threads)]
    for thread in feeding:
        thread.start()
    for thread in feeding:
        thread.join()
    queue.wait_all()
    assert sorted(seed for seed, _, _ in answers) == list(range(threads * each))
    alone = {name: compiled(name, model=source).create_infer_request() for name in devices(model)}
    for seed, request, found in answers:
        assert found == alone[device(request)].infer(rows(seed, 1 + seed % 3))["y"].tobytes()
    assert {id(request) for _, request, _ in answers} == set(map(id, queue))
    assert set(map(device, queue)) == set(devices(model))


# ---- properties and memory


def test_properties() -> None:
    model = compiled("MULTI:NVIDIA.1,CPU", {"PERFORMANCE_HINT": "THROUGHPUT"})
    cpu, card = (compiled(name, {"PERFORMANCE_HINT": "THROUGHPUT"}) for name in ("CPU", "NVIDIA.1"))
    optimal, whole = "OPTIMAL_NUMBER_OF_INFER_REQUESTS", "FULL_DEVICE_NAME"
    assert model.get_property(optimal) == cpu.get_property(optimal) + card.get_property(optimal)
    assert model.get_property(whole) == f"{card.get_property(whole)}, {cpu.get_property(whole)}"
    for name in ("DEVICE_ID", "DEVICE_TYPE", "NETWORK_NAME", "PERFORMANCE_HINT"):
        assert model.get_property(name) == card.get_property(name)
    own = {"DEVICE_BIND_BUFFER": "RO", "SCHEDULE_POLICY": "RO"}
    assert model.get_property("SUPPORTED_PROPERTIES") == card.get_property("SUPPORTED_PROPERTIES") | own
    assert model.get_property("RANGE_FOR_ASYNC_INFER_REQUESTS")[:2] == (
        1,
        sum(each.get_property("RANGE_FOR_STREAMS")[1] for each in (cpu, card)),
    )
    with pytest.raises(RuntimeError, match="Unsupported property NOPE"):
        model.get_property("NOPE")
    with pytest.raises(RuntimeError, match="already compiled"):
        model.set_property({"PERF_COUNT": True})
    assert model.get_runtime_model().get_ops() and "MatMul" in str(model.plan([1, SIZE]))


def test_properties_of_devices() -> None:
    core = ov.Core()
    core.set_property(CARDS, {"PERF_COUNT": True})
    assert [core.get_property(name, "PERF_COUNT") for name in ("NVIDIA.0", "NVIDIA.1", "CPU")] == [True, True, False]
    core.set_property("NVIDIA.1", {"NUM_STREAMS": 5})
    model = core.compile_model(stateless(), CARDS)
    assert model.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 6
    assert all(request.infer(rows(0)) and request.profiling_info for request in requests(model, 2))


def test_memory() -> None:
    """Every card has a copy of the weights; on the host there is one."""
    model = compiled(CARDS)
    model.release_memory()
    for name in devices(model):
        assert model.memory_held(name) == compiled(name).memory_held() > SIZE * SIZE * 4
    assert model.memory_held() == model.memory_held("NVIDIA.0") + model.memory_held("NVIDIA.1")
    mixed = compiled(MIXED)
    assert mixed.memory_held() == mixed.memory_held("NVIDIA.1") and mixed.memory_held("CPU") == 0


def test_weights_are_shared_on_the_host(tmp_path: Path) -> None:
    ov.serialize(stateless(), tmp_path / "m.xml")
    model = ov.Core().compile_model(tmp_path / "m.xml", CARDS)
    found = [
        next(source for source, _ in each.constants.values() if source.size == SIZE * SIZE)
        for each in model._compilations
    ]
    assert np.shares_memory(*found)


def test_each_device_leaves_f16_by_itself() -> None:
    """A product of 64 * 500 x leaves the range of f16 where x is large."""
    net = Net("large")
    x = net.parameter("f32", (1, SIZE), "x")
    y = matmul(net, x, net.const(np.random.default_rng(1).uniform(100, 500, (SIZE, SIZE)).astype("f4")))
    net.result(matmul(net, y, net.const(np.full((SIZE, SIZE), 2.0**-12, "f4"))))
    source = ov.Core().read_model(*net.build())
    config = {"EXECUTION_MODE_HINT": "PERFORMANCE"}
    model = compiled(CARDS, config, source)
    large, small = (np.full((1, SIZE), value, "f4") for value in (900, 0.5))
    first, second = requests(model, 2)
    assert np.isfinite(second.infer(large)[model.output(0)]).all()
    precisions = [str(each.current.settings.precision.get_type_name()) for each in model._compilations]
    assert precisions == ["f16", "bf16"] and model.get_property("INFERENCE_PRECISION_HINT") == ov.Type.f16
    alone = compiled("NVIDIA.0", config, source)
    assert first.infer(small)[model.output(0)].tobytes() == alone(small)[0].tobytes()
    found = requests(model, 2)
    assert [np.isfinite(request.infer(large)[0]).all() for request in found] == [True, True]
    assert model.get_property("INFERENCE_PRECISION_HINT") == ov.Type.bf16


# ---- files


def test_export_and_import() -> None:
    model = compiled(CARDS, {"PERF_COUNT": True})
    blob = model.export_model()
    assert isinstance(blob, io.BytesIO)
    x, expected = rows(3), model(rows(3))[0]
    for name in (CARDS, "NVIDIA.1"):
        found = ov.Core().import_model(blob, name)
        assert devices(found) == devices(compiled(name)) and found.get_property("PERF_COUNT") == "YES"
        assert all(request.infer(x)[0].tobytes() == expected.tobytes() for request in requests(found, 2))
    with pytest.raises(ov.ModelError, match="the model was compiled for NVIDIA, not for CPU"):
        ov.Core().import_model(blob, "MULTI:NVIDIA.0,CPU")
    with pytest.raises(ov.DeviceError, match=r"exported for one kind of device, not for CPU and NVIDIA\.1"):
        compiled(MIXED).export_model()


@pytest.mark.parametrize("pair", [CARDS, MIXED])
def test_models_in_the_cache(pair: str, tmp_path: Path) -> None:
    ov.serialize(stateless(), tmp_path / "m.xml")
    config = {"CACHE_DIR": tmp_path / "cache"}
    found = [ov.Core().compile_model(tmp_path / "m.xml", pair, config) for _ in range(2)]
    assert [model.get_property("LOADED_FROM_CACHE") for model in found] == [False, True]
    assert len(list((tmp_path / "cache").glob("*.blob"))) == 1
    for first, second in zip(*(requests(model, 2) for model in found)):
        assert first.infer(rows(1))[0].tobytes() == second.infer(rows(1))[0].tobytes()
