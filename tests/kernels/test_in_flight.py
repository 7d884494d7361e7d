"""Asynchronous inferences on a card that repeat earlier ones: enqueued by the caller, ended by the thread that waits.

`Card` holds inferences back, as a card that works: the emulator alone has done all work when a call returns.
"""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Iterator
from typing import Any
from weakref import ref

import numpy as np
import pytest

import ovgpu as ov
from ovgpu._util import threads
from ovgpu.api.watchers import PATIENCE
from ovgpu.backends.cuda.completion import EventCompletion
from ovgpu.backends.cuda.graphs import Graphs
from ovgpu.debug import NVTX
from tests.api import nets
from tests.emulator import cupy_emu as cp
from tests.harness.ir import Net
from tests.harness.layers import add
from tests.harness.models.drive import DATA, decoder_inputs

from .test_direct_calls import SHAPE, Count, X, Y, general, running, two, warm, widening

SECONDS = 20
__all__ = ["general"]  # a fixture


class Card:
    """Card whose inferences end when the test says so, or at once until `hold`."""

    def __init__(self) -> None:
        self.holding = False
        self.running: list[EventCompletion] = []
        self.changed = threading.Condition()
        self.fails: Exception | None = None

    def hold(self) -> None:
        self.holding = True

    def begin(self, completion: EventCompletion) -> None:
        if self.holding:
            self.running.append(completion)

    def end(self, *indices: int) -> None:
        """End running inferences, by default all, and hold no more then."""
        with self.changed:
            ended = [self.running[i] for i in indices] or list(self.running)
            self.running = [one for one in self.running if one not in ended]
            self.holding = self.holding and bool(indices)
            self.changed.notify_all()

    def wait(self, completion: EventCompletion) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: completion not in self.running, SECONDS), "nobody ends the inference"
        if self.fails is not None:
            raise self.fails


@pytest.fixture
def card(monkeypatch: pytest.MonkeyPatch) -> Iterator[Card]:
    made, end = Card(), EventCompletion.end

    def ending(completion: EventCompletion) -> None:
        end(completion)
        made.begin(completion)

    monkeypatch.setattr(EventCompletion, "end", ending)
    monkeypatch.setattr(EventCompletion, "wait", lambda completion: made.wait(completion))
    monkeypatch.setattr(EventCompletion, "is_reached", lambda completion: completion not in made.running)
    yield made
    made.fails = None
    made.end()
    gc.collect()


@pytest.fixture
def request_(compiled: Any) -> Any:
    """Return a warm request of the sum and the difference of two inputs."""
    request = compiled(two()).create_infer_request()
    warm(request)
    return request


def refused(request: Any) -> list[Any]:
    """Return what does not raise "Infer Request is busy"."""
    calls: list[Any] = [
        request.infer,
        lambda: request.infer([X, Y]),
        request.start_async,
        request.get_input_tensor,
        lambda: request.set_tensor("x", ov.Tensor(X)),
        lambda: request.results,
        request.query_state,
        request.reset_state,
        lambda: request.profiling_info,
    ]
    found = []
    for call in calls:
        try:
            call()
        except RuntimeError as error:
            if "Infer Request is busy" in str(error):
                continue
        found.append(call)
    return found


def test_no_thread_runs(request_: Any, general: Count) -> None:
    """An inference that repeats an earlier one needs no thread, and ends when somebody asks for it."""
    threads = threading.active_count()
    for n in range(3):
        request_.start_async([n * X, Y])
        request_.wait()
        np.testing.assert_array_equal(request_.results[0], n * X + Y)
    request_.start_async([X, Y])
    np.testing.assert_array_equal(request_.get_tensor("sum").data, X + Y)  # without wait: the device is done
    request_.start_async([X, X])
    np.testing.assert_array_equal(request_.infer([X, X])[0], X + X)
    request_.start_async([X, Y])
    assert request_.wait_for(0)
    assert threading.active_count() <= threads and not general()


def test_busy(request_: Any, card: Card) -> None:
    card.hold()
    request_.start_async([2 * X, Y])
    assert not refused(request_) and not request_.wait_for(0) and not request_.wait_for(5)
    timer = threading.Timer(0.02, card.end)
    timer.start()
    assert request_.wait_for(SECONDS * 1000)
    np.testing.assert_array_equal(request_.results[0], 2 * X + Y)
    request_.wait()
    timer.join()


def test_several_threads_wait(request_: Any, card: Card) -> None:
    card.hold()
    request_.start_async([2 * X, Y])
    ended: list[Any] = []
    waits = [lambda: ended.append(request_.wait()), lambda: ended.append(request_.wait_for(SECONDS * 1000))] * 2
    threads = [threading.Thread(target=wait) for wait in waits]
    for thread in threads:
        thread.start()
    time.sleep(0.01)
    assert not ended
    card.end()
    for thread in threads:
        thread.join(SECONDS)
    assert sorted(map(str, ended)) == ["None", "None", "True", "True"]


def test_latency(request_: Any) -> None:
    """The latency is the time until the device was done, not until somebody waited."""
    request_.start_async([X, Y])
    time.sleep(0.1)
    request_.wait()
    assert 0 < request_.latency < 90


@pytest.fixture
def summing(compiled: Any) -> Any:
    """Return a warm request that adds to a state, which is 6 * (X - Y)."""
    request = compiled(running()).create_infer_request()
    for _ in range(6):
        request.infer([X, Y])
    return request


def test_cancelled(summing: Any, card: Card, general: Count) -> None:
    card.hold()
    summing.start_async([X, Y])
    summing.cancel()
    card.end()
    with pytest.raises(RuntimeError, match="canceled"):
        summing.wait()
    summing.start_async([X, Y])
    summing.wait()
    assert not general()
    np.testing.assert_array_equal(summing.query_state()[0].state.data, 7 * (X - Y))


def test_states(compiled: Any, general: Count) -> None:
    """A state changes when the inference ends, and alternates between buffers as for `infer`."""
    request, total = compiled(running()).create_infer_request(), np.zeros(SHAPE, np.float32)
    for n in range(9):
        request.start_async([n * X, Y])
        request.wait()
        total += n * X - Y
        np.testing.assert_array_equal(request.results[0], np.maximum(total, 0))
        assert (general() == 0) == (n >= 4)
    np.testing.assert_array_equal(request.query_state()[0].state.data, total)
    request.query_state()[0].state = ov.Tensor(X)
    request.start_async([X, Y])
    request.wait()
    np.testing.assert_array_equal(request.query_state()[0].state.data, X + X - Y)


def test_a_device_that_fails(summing: Any, card: Card, general: Count) -> None:
    summing.start_async([X, Y])
    card.fails = cp.cuda.runtime.CUDARuntimeError(700, "cudaErrorIllegalAddress")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="the device failed: cudaErrorIllegalAddress"):
            summing.wait()
    card.fails = None
    assert not general()
    np.testing.assert_array_equal(summing.query_state()[0].state.data, 6 * (X - Y))


def test_a_signal_handler_that_raises(summing: Any, card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception that is no error of the inference leaves it in flight, also one of class Exception."""

    def interrupted(completion: EventCompletion) -> None:
        raise TimeoutError("the time is over")

    card.hold()
    summing.start_async([X, Y])
    for wait in (summing.wait, summing.wait):
        with monkeypatch.context() as patch, pytest.raises(TimeoutError, match="the time is over"):
            patch.setattr(EventCompletion, "wait", interrupted)
            wait()
    assert not refused(summing)
    card.end()
    summing.wait()
    np.testing.assert_array_equal(summing.query_state()[0].state.data, 7 * (X - Y))


def test_a_launch_that_fails(summing: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """`wait` reports the error of a launch, not `start_async`."""

    def launch(*args: Any) -> bool:
        raise cp.cuda.runtime.CUDARuntimeError(719, "cudaErrorLaunchFailure")

    with monkeypatch.context() as patch:
        patch.setattr(Graphs, "launch_whole", launch)
        patch.setattr(Graphs, "launch", launch)
        summing.start_async([X, Y])
        with pytest.raises(RuntimeError, match="cudaErrorLaunchFailure"):
            summing.wait()
    summing.start_async([X, Y])
    summing.wait()
    np.testing.assert_array_equal(summing.query_state()[0].state.data, 7 * (X - Y))


def test_inputs_that_do_not_fit(request_: Any) -> None:
    with pytest.raises(RuntimeError, match="are incompatible"):
        request_.start_async([X[:, :2], Y])
    request_.start_async([X, Y])
    request_.wait()


def test_wider_type(emulated: str, general: Count) -> None:
    """An inference in f16 whose results are not finite is repeated in a wider type when it ends."""
    request = widening(emulated).create_infer_request()
    warm(request, (0.001 * X,))
    general()
    request.start_async([X * 1e3])
    assert not general()
    request.wait()
    assert general() == 1
    np.testing.assert_allclose(request.results[0], X * 1e5, 0.01)


def test_shared_arrays(compiled: Any, general: Count) -> None:
    request, x = compiled(two()).create_infer_request(), X.copy()
    for n in range(6):
        x[...] = n
        request.start_async([x, Y], share_inputs=True)
        request.wait()
        np.testing.assert_array_equal(request.results[0], n + Y)
        assert (general() == 0) == (n >= 2)


def test_the_callers_tensors(compiled: Any, general: Count) -> None:
    """Tensors on the host and on the device: replays that are no direct calls."""
    request, result = compiled(two()).create_infer_request(), ov.Tensor(np.zeros(SHAPE, np.float32))
    x = cp.asarray(X)
    request.set_tensor("x", ov.Tensor(x, shared_memory=True))
    request.set_tensor("sum", result)
    for n in range(6):
        x[...] = n
        request.start_async({"y": Y})
        request.wait()
        np.testing.assert_array_equal(result.data, n + Y)
        np.testing.assert_array_equal(request.results[1], n - Y)
    general()
    on_device = cp.zeros(SHAPE, np.float32)
    request.set_tensor("sum", ov.Tensor(on_device, shared_memory=True))
    for n in range(6):
        x[...] = n
        request.start_async({"y": Y})
        request.wait()
        np.testing.assert_array_equal(on_device.get(), n + Y)
        assert (general() == 0) == (n >= 2)


def test_decode_steps(emulated: str, general: Count) -> None:
    """A step of a decoder is enqueued by the caller, as its replay, and changes the caches when it ends."""
    core = ov.Core()
    found, expected = (core.compile_model(DATA / "llama" / "model.xml", emulated).create_infer_request() for _ in "ab")
    for request in (found, expected):
        request.infer(decoder_inputs(np.ones((1, 20), int), np.ones((1, 20), int)))
    general()
    for length in range(21, 28):
        inputs = decoder_inputs(np.full((1, 1), length), np.ones((1, length), int))
        found.start_async(inputs)
        ways = general()
        found.wait()
        assert length < 24 or ways + general() == 0
        np.testing.assert_array_equal(found.results[0], expected.infer(inputs)[0])
        general()


def test_large_results(compiled: Any, card: Card, general: Count) -> None:
    """A large result stays on the device until it is read, and copies that were returned keep the last one."""
    net = Net()
    x = net.parameter("f32", (1, 4), "x")
    net.result(add(net, x, net.const(np.zeros((1 << 17, 4), np.float32))))
    request = compiled(net.build()).create_infer_request()
    x = np.arange(4, dtype=np.float32)[None]
    for _ in range(4):
        kept = request.infer([x])
    general()
    request.start_async([x + 5])
    request.wait()
    assert not general()
    np.testing.assert_array_equal(kept[0][-1:], x)
    np.testing.assert_array_equal(request.results[0][-1:], x + 5)


def test_what_is_watched_runs_on_a_thread(request_: Any, general: Count) -> None:
    with NVTX(True):
        request_.start_async([X, Y])
        request_.wait()
    assert general() == 1
    np.testing.assert_array_equal(request_.results[0], X + Y)


def test_dropped_requests_wait_for_the_device(compiled: Any, card: Card) -> None:
    """The device reads and writes the memory of a request, which is not freed before."""
    requests = [compiled(two()).create_infer_request()]
    warm(requests[0])
    card.hold()
    requests[0].start_async([X, Y])
    thread = threading.Thread(target=requests.clear)
    thread.start()
    thread.join(0.02)
    assert thread.is_alive()
    card.end()
    thread.join(SECONDS)
    assert not thread.is_alive()


# ---- queues


def test_a_queue_takes_the_request_that_is_done(compiled: Any, card: Card) -> None:
    """`start_async` waits if all requests are in flight, and ends the one that the device has done first."""
    queue = ov.AsyncInferQueue(compiled(two()), 3)
    for request in queue:
        warm(request)
    card.hold()
    for n in range(3):
        queue.start_async([n * X, Y], n)
    assert not queue.is_ready()
    card.end(1)
    assert queue.is_ready() and queue.get_idle_request_id() == 1
    queue.start_async([5 * X, Y], 5)
    assert queue.userdata == [0, 5, 2] and not queue.is_ready()
    threading.Timer(0.02, card.end, (0,)).start()
    queue.start_async([6 * X, Y], 6)
    assert queue.userdata == [6, 5, 2]
    card.end()
    queue.wait_all()
    for request, n in zip(queue, (6, 5, 2)):
        np.testing.assert_array_equal(request.results[0], n * X + Y)


def test_threads_that_share_a_queue(compiled: Any, card: Card) -> None:
    """A thread that found no inference in flight learns of one that another thread starts."""
    queue = ov.AsyncInferQueue(compiled(two()), 1)
    warm(queue[0])
    start, entered, go = queue[0].start, threading.Event(), threading.Event()

    def slowly(*args: Any, **options: Any) -> None:
        if not entered.is_set():
            entered.set()
            assert go.wait(SECONDS)
        start(*args, **options)

    queue[0].start = slowly  # type: ignore[method-assign]
    first, second = (threading.Thread(target=queue.start_async, args=([X, Y], n)) for n in range(2))
    first.start()
    assert entered.wait(SECONDS)
    second.start()
    time.sleep(0.02)
    go.set()
    first.join(SECONDS)
    second.join(SECONDS)
    assert not second.is_alive() and queue.userdata == [1]
    queue.wait_all()


def test_errors_of_a_queue(compiled: Any, card: Card) -> None:
    queue = ov.AsyncInferQueue(compiled(two()), 2)
    for request in queue:
        warm(request)
    card.hold()
    queue.start_async([X, Y])
    queue[0].cancel()
    queue.start_async([X, Y])
    card.end()
    with pytest.raises(RuntimeError, match="canceled"):
        queue.wait_all()
    queue.wait_all()
    np.testing.assert_array_equal(queue[1].results[0], X + Y)


def test_queues_without_a_callback_go_at_once(compiled: Any) -> None:
    """An inference in flight keeps neither its queue nor a thread alive."""
    queue, threads = ov.AsyncInferQueue(compiled(two()), 2), threading.active_count()
    sessions = [ref(request._session) for request in queue]
    for request in queue:
        warm(request)
    gc.collect()
    gc.disable()
    try:
        queue.start_async([X, Y])
        del queue, request
        assert [session() for session in sessions] == [None, None]
    finally:
        gc.enable()
    assert threading.active_count() <= threads


def test_callbacks_of_a_queue(compiled: Any, card: Card, general: Count) -> None:
    """A thread of the queue calls back as soon as the device is done, in the order of ends, while nobody waits."""
    queue, ended = ov.AsyncInferQueue(compiled(two()), 3), []
    for request in queue:
        warm(request)
    general()
    called = threading.Semaphore(0)

    def done(request: Any, item: int) -> None:
        ended.append((item, request.get_output_tensor(0).data[0, 0], threading.current_thread().name))
        called.release()

    queue.set_callback(done)
    card.hold()
    for n in range(3):
        queue.start_async([n * X, Y], n)
    assert not ended and not queue.is_ready()
    for n in (0, 1, 2):  # the thread waits for the oldest one
        card.end(0)
        assert called.acquire(timeout=SECONDS)
        assert [item for item, _, _ in ended] == [*range(n + 1)]
    queue.wait_all()
    assert [value for _, value, _ in ended] == [n * X[0, 0] + Y[0, 0] for n in range(3)]
    assert all(name.startswith("ovgpu-callbacks") for _, _, name in ended) and not general()


def test_callbacks_that_wait_for_others(compiled: Any) -> None:
    """While a callback waits, another thread calls the others, whether they were started before it or later."""
    queue, events = ov.AsyncInferQueue(compiled(two()), 4), [threading.Event() for _ in range(4)]
    for request in queue:
        warm(request)
    entered, ended = threading.Semaphore(0), []

    def done(request: Any, item: int) -> None:
        entered.release()
        if item < 3:
            assert events[item + 1].wait(SECONDS)
        events[item].set()
        ended.append(item)

    queue.set_callback(done)
    queue.start_async([X, Y], 0)
    assert entered.acquire(timeout=SECONDS)
    time.sleep(2 * PATIENCE)
    for n in (1, 2, 3):
        queue.start_async([X, Y], n)
    queue.wait_all()
    assert ended == [3, 2, 1, 0]


def test_a_callback_that_waits_for_its_own_inference(compiled: Any) -> None:
    queue, calls = ov.AsyncInferQueue(compiled(two()), 1), []
    warm(queue[0])

    def done(request: Any, item: int) -> None:
        calls.append(item)
        request.wait()

    queue.set_callback(done)
    for n in range(3):
        queue.start_async([X, Y], n)
    queue.wait_all()
    assert calls == [0, 1, 2]


def test_no_other_thread_can_be_started(compiled: Any, card: Card, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of a process, say. The thread that is there calls all callbacks."""
    queue, calls = ov.AsyncInferQueue(compiled(two()), 3), []
    for request in queue:
        warm(request)
    queue.set_callback(lambda request, item: calls.append(item))
    card.hold()
    queue.start_async([X, Y], 0)
    monkeypatch.setattr(threads, "start", lambda *args: (_ for _ in ()).throw(RuntimeError("no thread")))
    queue.start_async([X, Y], 1)
    queue.start_async([X, Y], 2)
    card.end()
    queue.wait_all()
    assert sorted(calls) == [0, 1, 2]


def test_slow_callbacks_run_side_by_side(compiled: Any) -> None:
    queue = ov.AsyncInferQueue(compiled(two()), 4)
    for request in queue:
        warm(request)
    at_once, most, lock = 0, 0, threading.Lock()

    def done(request: Any, item: int) -> None:
        nonlocal at_once, most
        with lock:
            at_once += 1
            most = max(most, at_once)
        time.sleep(0.05)
        with lock:
            at_once -= 1

    queue.set_callback(done)
    for n in range(16):
        queue.start_async([X, Y], n)
    queue.wait_all()
    assert most == 4


def test_callbacks_chain(compiled: Any) -> None:
    """Callbacks start the next inferences, and every one calls back once."""
    queue, ended = ov.AsyncInferQueue(compiled(two()), 3), []
    for request in queue:
        warm(request)
    over = threading.Event()

    def done(request: Any, item: int) -> None:
        ended.append(item)
        if item:
            queue.start_async([X, Y], item - 1)
        else:
            over.set()

    queue.set_callback(done)
    queue.start_async([X, Y], 200)
    assert over.wait(SECONDS)
    queue.wait_all()
    assert ended == [*range(200, -1, -1)]


def test_a_callback_of_a_request(request_: Any, card: Card) -> None:
    """The request's thread calls back while nobody waits."""
    called, found = threading.Event(), []
    request_.set_callback(lambda item: (found.append((item, request_.results[0].copy())), called.set()), "item")
    card.hold()
    request_.start_async([3 * X, Y])
    assert not called.wait(0.02) and not refused(request_)
    card.end()
    assert called.wait(SECONDS)
    request_.wait()
    np.testing.assert_array_equal(found[0][1], 3 * X + Y)


def test_many_at_once(compiled: Any) -> None:
    """Threads start, wait and call back on one queue; nothing is lost."""
    queue, lock, seen = ov.AsyncInferQueue(compiled(nets.one((2, 3))), 4), threading.Lock(), []
    for request in queue:
        warm(request, (X,))

    def done(request: Any, item: int) -> None:
        with lock:
            seen.append((item, float(request.get_output_tensor().data[0, 0])))

    def use(user: int) -> None:
        for n in range(100):
            queue.start_async([np.full(SHAPE, user * 100 + n, np.float32)], user * 100 + n)
            if n % 30 == 0:
                queue.wait_all()

    queue.set_callback(done)
    threads = [threading.Thread(target=use, args=(user,)) for user in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(SECONDS)
        assert not thread.is_alive()
    queue.wait_all()
    assert sorted(seen) == [(n, float(n)) for n in range(300)]
