"""Requests in a forked process, which lacks the threads of its parent."""

from __future__ import annotations

import gc
import os
import pickle
import select
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import ovgpu as ov
from ovgpu._util import gc_pause
from ovgpu.ops.base.op import Op, op
from tests.emulator.isolation import isolated
from tests.harness import Net, cuda
from tests.harness.layers import matmul, numbers

from .test_values import INIT, X, accumulator

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no forks")
SECONDS = 20


def in_child(work: Callable[[], Any]) -> Any:
    """Run a function in a forked process, and return its value, or the text of the error that it raises."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            answer = work()
        except BaseException as e:
            answer = f"{type(e).__name__}: {e}"
        os.write(writer, pickle.dumps(answer))
        os._exit(0)
    os.close(writer)
    ready, _, _ = select.select([reader], [], [], SECONDS)
    if not ready:
        os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert ready, "the forked process hangs"
    return pickle.loads(os.read(reader, 1 << 16))


def compiled(net: Net, device: str = "CPU") -> Any:
    return ov.Core().compile_model(ov.read_model(*net.build()), device)


def started(request: Any, n: int) -> Any:
    request.start_async([X[n]])
    request.wait()
    return request.results[1]


@isolated
def test_the_worker_is_made_anew() -> None:
    """The worker thread starts again, and the state continues in both processes."""
    request = compiled(accumulator(INIT)).create_infer_request()
    started(request, 0)
    np.testing.assert_array_equal(in_child(lambda: started(request, 1)), INIT + X[0] + X[1])
    np.testing.assert_array_equal(in_child(lambda: in_child(lambda: started(request, 2))), INIT + X[0] + X[2])
    np.testing.assert_array_equal(started(request, 3), INIT + X[0] + X[3])


@isolated
def test_an_inference_that_runs_during_the_fork() -> None:
    """The inference continues in the parent, and the child reports that it does not run there."""
    entered, go = threading.Event(), threading.Event()

    @op("Wait", "tests")
    class Wait(Op):
        def infer_specs(self, x: Any) -> Any:
            return (x,)

        def evaluate(self, xp: Any, x: Any) -> Any:
            entered.set()
            assert go.wait(SECONDS)
            return (x,)

    net = accumulator(INIT)
    net.result(net.layer("Wait", "tests", [net.parameter("f32", (2, 3), "y")]))
    request = compiled(net).create_infer_request()
    request.start_async([X[0], X[0]])
    assert entered.wait(SECONDS)

    def without() -> Any:
        go.set()
        with pytest.raises(RuntimeError, match="the inference runs in the process that this one was forked from"):
            request.wait()
        first = request.query_state()[0].state.data.copy()
        return first, request.infer([X[1], X[1]])[1]

    before, after = in_child(without)
    np.testing.assert_array_equal(before, np.zeros((2, 3)) + INIT)
    np.testing.assert_array_equal(after, INIT + X[1])
    with pytest.raises(RuntimeError, match="busy"):
        request.query_state()
    go.set()
    request.wait()
    np.testing.assert_array_equal(request.results[1], INIT + X[0])


@isolated
def test_a_queue() -> None:
    queue = ov.AsyncInferQueue(compiled(accumulator(INIT)), 2)
    for n in range(4):
        queue.start_async([X[n]])

    def use() -> int:
        for n in range(4):
            queue.start_async([X[n]])
        queue.wait_all()
        return len(queue._idle)

    assert in_child(use) == 2
    queue.wait_all()


@isolated
def test_cores_share_the_work() -> None:
    """A large product uses workers, whose threads start again in the child."""
    net, x = Net(), numbers(512, 512)
    a = net.parameter("f32", (512, 512), "a")
    net.result(matmul(net, a, net.layer("Softmax", "opset8", [a], {"axis": 1})))
    request = compiled(net).create_infer_request()
    expected = request.infer([x])[0]
    np.testing.assert_array_equal(in_child(lambda: float(abs(request.infer([x])[0] - expected).max())), 0)


@isolated
def test_a_setting_that_another_thread_has_changed() -> None:
    """The child, without that thread, has the setting from before, and may change it."""
    entered, leave = threading.Event(), threading.Event()

    def compiles() -> None:
        with gc_pause.paused():
            entered.set()
            assert leave.wait(SECONDS)

    def use() -> list[bool]:
        found = [gc.isenabled()]
        with gc_pause.paused():
            found.append(gc.isenabled())
        return [*found, gc.isenabled()]

    thread = threading.Thread(target=compiles)
    thread.start()
    assert entered.wait(SECONDS) and not gc.isenabled()
    assert in_child(use) == [True, False, True]
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


@isolated
def test_cuda_does_not_survive() -> None:
    """Every call reports it, before it uses memory of the driver, which the child lacks."""
    with cuda.registered("emulator") as device:
        request = compiled(accumulator(INIT), device).create_infer_request()
        started(request, 0)
        for use in (
            lambda: request.infer([X[1]]),
            lambda: request.start_async([X[1]]),
            request.wait,
            lambda: request.query_state(),
            lambda: request.get_input_tensor(),
        ):
            assert in_child(use).startswith(
                "DeviceError: CUDA does not survive a fork: the request was made in the "
                "process that this one was forked from. Start processes by 'spawn'"
            )
        np.testing.assert_array_equal(started(request, 1), INIT + X[0] + X[1])


@isolated
def test_a_batcher() -> None:
    """The child lacks the batcher's thread. Locks that other threads held when it was forked do not stop it."""
    refused = "Error: the batcher was made in the process that this one was forked from"
    net = Net()
    x, s = net.parameter("f32", (1, 3), "x"), net.read_value("s", "f32", (1, 3))
    total = net.layer("Add", "opset1", [x, s])
    net.assign("s", total)
    net.result(net.layer("Relu", "opset1", [total]))
    with (
        ov.SequenceBatcher(ov.read_model(*net.build()), 2, "CPU", max_wait_ms=0) as batcher,
        batcher.open() as sequence,
    ):
        for _ in range(3):  # the last two by this thread
            sequence.infer(X[0][:1])
        with batcher._slots[0].running:
            for use in (lambda: sequence.infer(X[0][:1]), lambda: sequence.submit(X[0][:1]), lambda: sequence.state):
                assert in_child(use) == refused
        np.testing.assert_array_equal(sequence.infer(X[0][:1])[0], np.maximum(4 * X[0][:1], 0))
