"""Ends of asynchronous inferences on a card: in which thread they come, when, and what they leave."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any
from weakref import ref

import numpy as np
import pytest

import ovgpu as ov
from ovgpu.api.in_flight import InFlight
from ovgpu.request.started import Started

from .test_direct_calls import Count, X, Y, general, running, two, warm
from .test_in_flight import SECONDS, Card, card, request_, summing

__all__ = ["card", "general", "request_", "summing"]  # fixtures


def queue_of(compiled: Any, jobs: int) -> Any:
    """Return a queue of warm requests."""
    queue = ov.AsyncInferQueue(compiled(two()), jobs)
    for request in queue:
        warm(request)
    return queue


def test_callbacks_run_on_threads_of_the_queue(compiled: Any, card: Card) -> None:
    """A thread that waits for a request of the queue waits for the callback, and does not call it itself."""
    queue, names = queue_of(compiled, 1), []
    queue.set_callback(lambda request, item: names.append(threading.current_thread().name))
    for n, wait in enumerate([queue[0].wait, lambda: queue[0].wait_for(SECONDS * 1000), queue.wait_all]):
        card.hold()
        queue.start_async([X, Y])
        timer = threading.Timer(0.02, card.end)
        timer.start()
        wait()
        timer.join()
        assert len(names) == n + 1
        queue.wait_all()
    assert set(names) == {"ovgpu-callbacks"}


def test_the_first_that_ends_is_called_first(compiled: Any, card: Card) -> None:
    """The callback of a short inference does not wait for longer ones that were started before it."""
    queue, called = queue_of(compiled, 3), threading.Semaphore(0)
    ended: list[int] = []
    queue.set_callback(lambda request, item: (ended.append(item), called.release()))
    card.hold()
    for n in range(3):
        queue.start_async([X, Y], n)
    for index in (2, 1, 0):
        time.sleep(0.02)  # until the thread of the queue waits
        card.end(index)
        assert called.acquire(timeout=SECONDS)
    queue.wait_all()
    assert ended == [2, 1, 0]


def test_a_request_that_becomes_idle_while_others_run(compiled: Any, card: Card) -> None:
    """A thread that waits for an idle request takes the one that is done first."""
    queue = queue_of(compiled, 3)
    card.hold()
    for n in range(3):
        queue.start_async([X, Y], n)
    threading.Timer(0.02, card.end, (1,)).start()
    queue.start_async([X, Y], 3)
    assert queue.userdata == [0, 3, 2]
    card.end()
    queue.wait_all()


def test_wait_all_in_a_callback_that_has_waited(compiled: Any, card: Card) -> None:
    """A callback that ends another inference is still one, in which `wait_all` would wait for itself."""
    queue, found = queue_of(compiled, 2), []
    queue.start_async([X, Y])

    def done(request: Any, item: Any) -> None:
        queue[0].wait()
        with pytest.raises(RuntimeError, match="wait_all in a callback"):
            queue.wait_all()
        found.append(item)

    queue.set_callback(done)
    queue.start_async([X, Y], "item")
    queue[1].wait()
    queue.wait_all()
    assert found == ["item"]


@pytest.mark.parametrize("jobs", [0, 1])
def test_wait_for_while_a_callback_runs(compiled: Any, card: Card, jobs: int) -> None:
    """The callback counts, as in OpenVINO, and `wait_for` returns when its time is over, also in the callback."""
    entered, go = threading.Event(), threading.Event()
    found = []

    def done(*_: Any) -> None:
        found.append(request.wait_for(1))
        entered.set()
        assert go.wait(SECONDS)

    if jobs:
        queue = queue_of(compiled, jobs)
        queue.set_callback(done)
        request, start = queue[0], queue.start_async
    else:
        request = compiled(two()).create_infer_request()
        warm(request)
        request.set_callback(done)
        start = request.start_async
    start([X, Y])
    assert entered.wait(SECONDS)
    assert not request.wait_for(0) and not request.wait_for(5)
    go.set()
    request.wait()
    assert request.wait_for(0) and found == [False]


def test_cancelled_too_late(summing: Any, card: Card) -> None:
    """The device is done: the inference succeeds, as in OpenVINO."""
    summing.start_async([X, Y])
    summing.cancel()
    summing.wait()
    np.testing.assert_array_equal(summing.query_state()[0].state.data, 7 * (X - Y))


def test_old_states_are_freed(summing: Any) -> None:
    """A request keeps no values of states for an inference that has ended."""
    summing.start_async([X, Y])
    summing.wait()
    after = summing._session.state
    assert not [one for one in gc.get_referrers(after) if isinstance(one, (InFlight, Started))]


@pytest.mark.parametrize("fails", ["inference", "callback"])
@pytest.mark.parametrize("jobs", [0, 1])
def test_errors_keep_nothing_alive(compiled: Any, card: Card, jobs: int, fails: str) -> None:
    """Without the garbage collector, a request and its queue go when they are dropped after an error."""

    def done(*_: Any) -> None:
        raise ValueError("of the callback")

    user: Any = ov.AsyncInferQueue(compiled(two()), jobs) if jobs else compiled(two()).create_infer_request()
    request = user[0] if jobs else user
    warm(request)
    user.set_callback(done)
    card.hold()
    user.start_async([X, Y])
    if fails == "inference":
        request.cancel()
    card.end()
    gc.collect()
    gc.disable()
    try:
        with pytest.raises((RuntimeError, ValueError), match="canceled" if fails == "inference" else "of the callback"):
            user.wait_all() if jobs else user.wait()
        alive = [ref(user), ref(request), ref(request._session)]
        del user, request
        deadline = time.monotonic() + SECONDS  # the thread that has called back goes on
        while any(one() is not None for one in alive) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [one() for one in alive] == [None, None, None]
    finally:
        gc.enable()


def test_another_device_is_current(compiled: Any, general: Count) -> None:
    """The inference is enqueued by the caller, which makes the model's device current meanwhile."""
    from tests.emulator import device

    with device.devices(2):
        request = compiled(two()).create_infer_request()
        warm(request)
        general()
        threads = threading.active_count()
        from tests.emulator import cupy_emu as cp

        with cp.cuda.Device(1):
            request.start_async([2 * X, Y])
            assert request.in_flight is not None
            request.wait()
            assert cp.cuda.runtime.getDevice() == 1
        assert not general() and threading.active_count() <= threads
        np.testing.assert_array_equal(request.results[0], 2 * X + Y)


def test_an_interrupted_end(compiled: Any, card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """A handler raises when an inference has released its request: a state that is reset then stays, and an inference
    of the request's own leaves the queue nothing to wait for."""
    queue = ov.AsyncInferQueue(compiled(running()), 1)
    for _ in range(6):
        queue[0].infer([X, Y])

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    def interrupt() -> None:
        queue.start_async([X, Y])
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(ov.AsyncInferQueue, "_complete", interrupted)
            queue.wait_all()

    interrupt()
    queue[0].reset_state()
    queue[0].wait()
    np.testing.assert_array_equal(queue[0].query_state()[0].state.data, np.zeros(X.shape))
    queue.wait_all()
    for _ in range(6):
        queue[0].infer([X, Y])
    interrupt()
    queue[0].infer([X, Y])
    waiting = threading.Thread(target=queue.wait_all, daemon=True)
    waiting.start()
    waiting.join(SECONDS)
    assert not waiting.is_alive() and queue.is_ready()
