"""Models, compiled models and requests leave no objects or memory behind when dropped."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.backends.cuda import interop
from ovgpu.symbolic import Table
from tests.harness import Net
from tests.harness.held import held
from tests.harness.models.drive import replay
from tests.models.test_models import NAMES, load

ROUNDS = 6  # rounds of a series
SERIES = 4
SOME = "bert_int8", "detector", "gru", "llama_int4_sym", "lstm_state", "preprocessed", "whisper_decoder"
"""The models of a short run."""
SLACK = 5  # objects that caches may add in a series: fewer than one per round


def check_that_nothing_grows(device: str, work: Callable[[], None]) -> None:
    """Check that in one of several series of rounds of some work nothing grows.

    A leak grows in each of them. A cache that is filled once grows in one, and so does what threads of other packages
    do meanwhile, such as those that a cluster of Ray leaves in the process."""
    marks = [held(device)]
    for _ in range(SERIES):
        for _ in range(ROUNDS):
            work()
        marks.append(held(device))
        before, after = marks[-2:]
        if after.objects - before.objects <= SLACK and after[1:] == before[1:]:
            return
    raise AssertionError(f"grows in every series: {marks}")


def run(name: str, device: str) -> None:
    """Read a model, compile it, infer twice, and drop it all."""
    compiled, expected = load(name, device)
    assert all(replay(compiled, expected.calls[:2]))


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "model" in metafunc.fixturenames:
        metafunc.parametrize("model", NAMES if metafunc.config.getoption("--long") else SOME)


@pytest.mark.drawn(4)
def test_dropped_models_leave_nothing_behind(model: str, device: str) -> None:
    run(model, device)
    run(model, device)
    check_that_nothing_grows(device, lambda: run(model, device))


def test_no_table_of_symbols_outlives_its_model() -> None:
    """Caches that are keyed by what a model's symbols are part of would keep megabytes of each model."""
    before = {id(table) for table in tables()}
    for name in SOME:
        run(name, "CPU")
    assert {id(table) for table in tables()} <= before


def tables() -> list[Table]:
    """Return the live tables of symbols; a second collection finds what finalizers of the first have dropped."""
    gc.collect()
    gc.collect()
    return [found for found in gc.get_objects() if type(found) is Table]


def mismatch() -> ov.Model:
    """Build [?, 3] times [3, 4], reshaped to the shape of [?, 4]."""
    net = Net()
    a, b = net.parameter("f32", (-1, 3), "a"), net.parameter("f32", (-1, 4), "b")
    product = net.layer("MatMul", "opset1", [a, net.const(np.ones((3, 4), np.float32))])
    rows = net.layer("ShapeOf", "opset3", [b], {"output_type": "i64"})
    net.result(net.layer("Reshape", "opset1", [product, rows], {"special_zero": False}))
    return ov.Core().read_model(*net.build())


def test_failed_inferences_and_failed_reshapes_leave_nothing_behind(device: str) -> None:
    def fail() -> None:
        model = mismatch()
        request = ov.Core().compile_model(model, device).create_infer_request()
        with pytest.raises(RuntimeError, match="Reshape"):
            request.infer([np.zeros((2, 3), np.float32), np.zeros((3, 4), np.float32)])
        with pytest.raises(RuntimeError, match="MatMul"):
            model.reshape({"a": [2, 4], "b": [2, 4]})

    for _ in range(3):
        fail()
    check_that_nothing_grows(device, fail)


def test_leaks_are_found() -> None:
    kept: list[object] = []
    with pytest.raises(AssertionError, match="grows in every series"):
        check_that_nothing_grows("CPU", lambda: kept.append([]))


def test_arrays_on_the_device_leave_their_memory_to_others(emulated: str) -> None:
    interop.to_device(np.ones(1000), 0)
    before = held(emulated).pool
    for n in range(ROUNDS):
        np.testing.assert_array_equal(interop.to_device(np.full(1000, n), 0).get(), n)
        interop.zeros((1000,), np.dtype(float), 0)
    assert held(emulated).pool == before


def workers() -> set[threading.Thread]:
    """Return the live threads of requests."""
    return {thread for thread in threading.enumerate() if thread.name.startswith("ovgpu-request")}


def test_threads_of_dropped_requests_end_with_their_inference(device: str) -> None:
    """Fifty requests dropped while they run end their inference, and then their threads."""
    compiled, expected = load("lstm_state", device)
    done: list[int] = []
    dropped = threading.Event()

    def call_back(number: int) -> None:
        assert dropped.wait(60)
        done.append(number)

    before = workers()
    requests = [compiled.create_infer_request() for _ in range(50)]
    for number, request in enumerate(requests):
        request.set_callback(call_back, number)
        request.start_async(expected.calls[0].inputs)
    assert len(workers() - before) == 50
    del requests, request
    dropped.set()
    deadline = time.monotonic() + 60
    while workers() - before and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not workers() - before
    assert sorted(done) == list(range(50))
