"""Batchers and the server's engines on MULTI: slots and requests on two emulated cards, or the CPU and a card."""

from __future__ import annotations

import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.batching.gathering import BatchRun
from ovgpu.serve.engines import DynamicEngine, Engine, EngineOptions, RequestEngine, SequenceEngine, open_engine
from tests.batching import nets
from tests.harness.ir import Net

CARDS = "MULTI:NVIDIA.0,NVIDIA.1"
MIXED = "MULTI:CPU,NVIDIA.1"
PAIRS = pytest.mark.parametrize("pair", [CARDS, MIXED])

EXACT = {"INFERENCE_PRECISION_HINT": "f32"}

pytestmark = pytest.mark.usefixtures("two_cards")

Array = np.ndarray[Any, Any]


def perceptron() -> ov.Model:
    """Return y = relu(x w); x has [1, SIZE]."""
    net = Net("perceptron")
    y = net.layer(
        "MatMul",
        "opset1",
        [net.parameter("f32", (1, nets.SIZE), "x"), nets.weights(net, nets.SIZE, 4)],
        {"transpose_a": False, "transpose_b": False},
    )
    net.result(net.layer("Relu", "opset1", [y], names=["y"]))
    return nets.model(net)


def row(seed: int) -> Array:
    return np.random.default_rng(seed).standard_normal((1, nets.SIZE)).astype(np.float32)


def close_to(found: Any, wanted: Any) -> None:
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_allclose(a, b, 2e-6, 2e-6)


def in_threads(number: int, work: Any) -> None:
    threads = [threading.Thread(target=work, args=(i,)) for i in range(number)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def slots(batcher: ov.SequenceBatcher) -> list[int]:
    """Return the number of open sequences on each device."""
    return [len(each.opened) for each in batcher._slots]


# ---- DynamicBatcher


@PAIRS
@pytest.mark.parametrize("requests", [1, 2])
def test_batches_of_many_threads(requests: int, pair: str) -> None:
    model, found, both = perceptron(), dict[int, Any](), threading.Barrier(2 * requests, timeout=60)
    expected = ov.Core().compile_model(model, "CPU")
    waiting = threading.Event()

    def observe(batch: BatchRun) -> None:
        if not waiting.is_set():
            both.wait()  # all requests have a batch at the same time
            waiting.set()

    with ov.DynamicBatcher(model, 4, pair, EXACT, max_wait_ms=0, requests=requests, observer=observe) as batcher:
        assert batcher.compiled_model.get_property("EXECUTION_DEVICES") == pair[6:].split(",")
        assert len(batcher._threads) == 2 * requests
        in_threads(24, lambda i: found.update({i: batcher.infer(row(i)).to_tuple()}))
    assert waiting.is_set()
    for i in range(24):
        close_to(found[i], expected(row(i)).to_tuple())


def test_the_devices_of_a_compiled_model() -> None:
    compiled = ov.Core().compile_model(perceptron(), "MULTI:NVIDIA.1(3),CPU", {"PERF_COUNT": True, **EXACT})
    with ov.DynamicBatcher(compiled, 4) as batcher:
        found = batcher.compiled_model
        assert found.get_property("EXECUTION_DEVICES") == ["NVIDIA.1", "CPU"]
        assert found.get_property("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 4
        assert found.get_property("PERF_COUNT") == "YES"
        close_to(batcher.infer(row(0)).to_tuple(), compiled(row(0)).to_tuple())


# ---- SequenceBatcher


@PAIRS
def test_sequences_stay_on_the_device_with_the_fewest(pair: str) -> None:
    """Every sequence gets what it gets from a request of its own."""
    model = nets.streaming_lstm()
    inputs = {port.any_name: tuple(port.shape) for port in model.inputs}

    def step(seed: int) -> dict[str, Array]:
        random = np.random.default_rng(seed)
        return {name: random.standard_normal(shape).astype("f4") for name, shape in inputs.items()}

    with ov.SequenceBatcher(model, 4, pair, EXACT, max_wait_ms=2) as batcher:
        sequences = [batcher.open() for _ in range(4)]
        assert slots(batcher) == [2, 2] and len(batcher) == batcher.max_sequences == 4
        requests = [ov.Core().compile_model(model, "CPU").create_infer_request() for _ in sequences]
        for number in range(4):
            futures = [sequence.submit(step(10 * number + i)) for i, sequence in enumerate(sequences)]
            for i, (future, request) in enumerate(zip(futures, requests)):
                close_to(future.result().to_tuple(), request.infer(step(10 * number + i)).to_tuple())
        assert batcher.batch_size == 4
        with pytest.raises(ov.BatchFullError, match="all 4 sequences are open"):
            batcher.open()
        sequences[1].state = sequences[0].state  # from one device to the other
        found = [sequences[i].infer(step(99)).to_tuple() for i in (0, 1)]
        close_to(found[1], found[0])
        for sequence in (sequences[1], sequences[3]):
            sequence.close()
        assert slots(batcher) == [2, 0]
        sequences += [batcher.open(), batcher.open()]
        assert slots(batcher) == [2, 2]
        sequences[0].close()
        with pytest.raises(ov.Error, match="the sequence is closed"):
            sequences[0].infer(step(0))
    with pytest.raises(ov.Error, match="the batcher is closed"):
        batcher.open()


def test_sequences_of_many_threads() -> None:
    model, found = nets.sums(), dict[int, Any]()

    def run(i: int) -> None:
        with batcher.open() as sequence:
            found[i] = [sequence.infer(row(10 * i + step)).to_tuple() for step in range(3 + i % 3)]

    with ov.SequenceBatcher(model, 12, CARDS, max_wait_ms=5) as batcher:
        in_threads(12, run)
        assert len(batcher) == 0
    compiled = ov.Core().compile_model(model, "CPU")
    for i, results in found.items():
        request = compiled.create_infer_request()
        for step, result in enumerate(results):
            close_to(result, request.infer(row(10 * i + step)).to_tuple())


@pytest.mark.parametrize(("most", "shares"), [(1, [1]), (2, [1, 1]), (5, [3, 2])])
def test_shares_of_the_sequences(most: int, shares: list[int]) -> None:
    with ov.SequenceBatcher(nets.sums(), most, CARDS) as batcher:
        kept = [batcher.open() for _ in range(most)]
        assert slots(batcher) == shares and batcher.max_sequences == len(kept) == most
        with pytest.raises(ov.BatchFullError):
            batcher.open()


def test_a_callback_may_close_the_batcher() -> None:
    batcher = ov.SequenceBatcher(nets.sums(), 4, CARDS, max_wait_ms=0)
    first, second = batcher.open(), batcher.open()
    closed = threading.Event()
    step = first.submit(row(0))
    step.add_done_callback(lambda _: (batcher.close(), closed.set()))
    assert step.result() and closed.wait(60)
    with pytest.raises(ov.Error, match="closed"):
        second.infer(row(0))
    batcher.close()


# ---- engines of the server


def opened(path: Path, model: ov.Model, device: str, **options: Any) -> tuple[Engine, list[BatchRun]]:
    runs: list[BatchRun] = []
    ov.serialize(model, path / "model.xml")
    return open_engine(path / "model.xml", EngineOptions(device, EXACT, **options), runs.append), runs


@PAIRS
def test_engines(pair: str, tmp_path: Path) -> None:
    """Every engine uses both devices, and tells the memory of each card."""
    cards = [name for name in pair[6:].split(",") if name != "CPU"]
    plain = {"requests": 2, "batching": False}
    for number, (model, kind, options) in enumerate(
        (
            (perceptron(), DynamicEngine, {}),
            (nets.sums(), SequenceEngine, {"max_sequences": 6}),
            (perceptron(), RequestEngine, plain),
            (nets.sums(), RequestEngine, plain),
        )
    ):
        (tmp_path / str(number)).mkdir()
        engine, runs = opened(tmp_path / str(number), model, pair, **options)
        assert type(engine) is kind and engine.description.endswith(" on " + pair[6:].replace(",", ", "))
        engine.warm_up()
        assert runs and list(engine.memory()) == cards
        single = ov.Core().compile_model(model, cards[-1], EXACT)
        assert engine.memory()[cards[-1]] == single.memory_held()
        request = single.create_infer_request()
        sequences = [engine.open() for _ in range(4)] if engine.stateful else []
        for seed in range(3):
            expected = request.infer(row(seed)).to_tuple()
            for future in [each.submit({0: row(seed)}) for each in sequences or [engine] * 4]:
                close_to(list(future.result().to_tuple()), expected)
        if engine.stateful:
            assert engine.slots[0] == 4
            sequences[1].write(sequences[0].read())
        for sequence in sequences:
            sequence.close()
        engine.close()


def test_requests_of_an_engine_are_per_device(tmp_path: Path) -> None:
    engine, _ = opened(tmp_path, perceptron(), CARDS, requests=2, batching=False)
    assert isinstance(engine, RequestEngine)
    found = [engine._idle.get() for _ in range(4)]
    names = Counter(request.get_compiled_model().get_property("EXECUTION_DEVICES")[0] for request in found)
    assert names == {"NVIDIA.0": 2, "NVIDIA.1": 2} and engine._idle.empty()
    engine.close()
