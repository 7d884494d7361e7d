"""AsyncInferQueue, compared with openvino's. It neither hangs nor loses an inference."""

from __future__ import annotations

import gc
import random
import threading
import time
from typing import Any

import numpy as np
import openvino
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import ovgpu

from . import nets
from .sides import LIBRARIES, agree, check, compiled

X = np.full((2, 3), -1, np.float32)
pytestmark = pytest.mark.timeout(60)


@agree("""
    q = ov.AsyncInferQueue(comp(one())); [len(q), q.is_ready(), q.get_idle_request_id(), q.userdata, q.wait_all()]
    q = ov.AsyncInferQueue(comp(one()), 3); [len(q), q.userdata, len(list(q)), type(q[0]).__name__, repr(q)]
    [len(ov.AsyncInferQueue(comp(one(), {"NUM_STREAMS": n}), 0)) for n in (1, 2)]
    len(ov.AsyncInferQueue(comp(one(), {"PERFORMANCE_HINT": "LATENCY"})))
    len(ov.AsyncInferQueue(model=comp(one()), jobs=2))
    ov.AsyncInferQueue(comp(one()), -1)
    ov.AsyncInferQueue(comp(one()), "a")
    ov.AsyncInferQueue(3)
    q = ov.AsyncInferQueue(comp(one()), 2); q["a"]
    q = ov.AsyncInferQueue(comp(one()), 2); q.set_callback(3)
    q = ov.AsyncInferQueue(comp(one()), 2); q.start_async(np.ones((2, 7)))
    q = ov.AsyncInferQueue(comp(one()), 2); [q.start_async(-np.ones((2, 3)), "u"), q.wait_all(),
        q.userdata, q[0].results]
    q = ov.AsyncInferQueue(comp(one()), 2); [q.start_async({"x": -np.ones((2, 3))}, share_inputs=True), q.wait_all(),
        q[0].get_output_tensor().data, q[0].latency > 0]
    q = ov.AsyncInferQueue(comp(one()), 2); L = []; q.set_callback(lambda r, u: L.append((type(r).__name__, u,
        r.get_output_tensor().data.sum()))); [[q.start_async(np.full((2, 3), i), i) for i in range(5)],
        q.wait_all(), sorted(L)]
    q = ov.AsyncInferQueue(comp(one()), 2); q.set_callback(lambda r, u: 1 / 0);
        [q.start_async(np.ones((2, 3))), q.wait_all()]
    q = ov.AsyncInferQueue(comp(one()), 2); q.set_callback(lambda u: 0); [q.start_async(np.ones((2, 3))), q.wait_all()]
    q = ov.AsyncInferQueue(comp(one()), 2); [x.infer(-np.ones((2, 3)))[0] for x in q]
    q = ov.AsyncInferQueue(comp(total()), 1); x = np.ones((1, 3), "f4"); [q.start_async(x), q.start_async(x),
        q.wait_all(), q[0].results]
""")
def test_agrees(code: str) -> None:
    check(code)


def test_takes_our_models_only() -> None:
    with pytest.raises(TypeError, match=r"ovgpu\.CompiledModel"):
        ovgpu.AsyncInferQueue(compiled(openvino, nets.one()))
    with pytest.raises(IndexError):
        ovgpu.AsyncInferQueue(compiled(ovgpu, nets.one()), 2)[2]


@LIBRARIES
def test_every_item_arrives_once(ov: Any) -> None:
    queue, seen, lock = ov.AsyncInferQueue(compiled(ov, nets.one((-1, 3))), 4), [], threading.Lock()

    def done(request: Any, item: int) -> None:
        value = request.get_output_tensor().data
        with lock:
            seen.append((item, value.shape[0], float(value[0, 0])))

    queue.set_callback(done)
    for item in range(300):
        queue.start_async({0: np.full((1 + item % 3, 3), -item, np.float32)}, item)
    queue.wait_all()
    assert sorted(seen) == [(item, 1 + item % 3, item) for item in range(300)]


def test_back_pressure() -> None:
    """`start_async` waits while every request is in its inference or its callback."""
    queue, go = ovgpu.AsyncInferQueue(compiled(ovgpu, nets.one()), 2), threading.Event()
    queue.set_callback(lambda request, item: go.wait(30))
    queue.start_async(X)
    queue.start_async(X)
    assert not queue.is_ready()
    third = threading.Thread(target=queue.start_async, args=(X,))
    third.start()
    third.join(0.1)
    assert third.is_alive()
    go.set()
    third.join(30)
    assert not third.is_alive()
    queue.wait_all()
    assert queue.is_ready()


def test_get_idle_request_id_is_the_one_that_starts() -> None:
    queue = ovgpu.AsyncInferQueue(compiled(ovgpu, nets.one()), 3)
    for item in range(20):
        number = queue.get_idle_request_id()
        queue.start_async(np.full((2, 3), item), item)
        assert queue.userdata[number] == item
    queue.wait_all()


def test_first_error_is_raised_once_and_the_rest_goes_on() -> None:
    queue, seen = ovgpu.AsyncInferQueue(compiled(ovgpu, nets.one()), 1), []

    def done(request: Any, item: int) -> None:
        seen.append(item)
        if item in (1, 3):
            raise ValueError(item)

    queue.set_callback(done)
    for item in range(5):
        queue.start_async(X, item)
    with pytest.raises(ValueError, match="1"):
        queue.wait_all()
    assert seen == [0, 1, 2, 3, 4]
    queue.wait_all()
    queue.start_async(X, 3)
    with pytest.raises(ValueError, match="3"):
        queue.wait_all()


def test_failed_inferences() -> None:
    queue, seen = ovgpu.AsyncInferQueue(compiled(ovgpu, nets.fragile()), 1), []
    queue.set_callback(lambda request, item: seen.append((item, request.results[0].tolist())))
    for item in (1, -100, 2):
        queue.start_async({"x": np.full(2, item)}, item)
    with pytest.raises(ovgpu.OpError, match=r"^\[RefuseNegative\]"):
        queue.wait_all()
    assert seen == [(1, [1, 1]), (2, [3, 3])]


def test_inputs_that_do_not_fit_leave_the_request_idle() -> None:
    queue = ovgpu.AsyncInferQueue(compiled(ovgpu, nets.one()), 1)
    for _ in range(3):
        with pytest.raises(ovgpu.Error, match="incompatible"):
            queue.start_async(np.ones((2, 7)))
    queue.start_async(X)
    queue.wait_all()
    assert queue.is_ready()


def test_a_request_that_is_busy_on_its_own_is_idle_again() -> None:
    """If somebody else uses a request of the queue, the queue's inference is refused, and the next one runs."""
    other, queue = object(), ovgpu.AsyncInferQueue(compiled(ovgpu, nets.one()), 1)
    request = queue[0]
    request._owner.take(other)
    with pytest.raises(RuntimeError, match="busy"):
        queue.start_async(X)
    assert queue.is_ready()
    request._owner.release(other)
    queue.start_async(X)
    queue.wait_all()


def test_callbacks_start_the_next() -> None:
    """Callbacks may start inferences, but not wait for each other if all requests are in callbacks."""
    queue, seen = ovgpu.AsyncInferQueue(compiled(ovgpu, nets.one()), 3), []

    def chain(request: Any, item: int) -> None:
        seen.append(item)
        if item:
            queue.start_async(X, item - 1)

    queue.set_callback(chain)
    queue.start_async(X, 20)
    deadline = time.monotonic() + 30
    while len(seen) < 21 and time.monotonic() < deadline:
        queue.wait_all()
    assert seen == list(range(20, -1, -1))

    alone = ovgpu.AsyncInferQueue(compiled(ovgpu, nets.one()), 1)
    alone.set_callback(lambda request, item: alone.start_async(X))
    alone.start_async(X)
    with pytest.raises(RuntimeError, match="start_async in a callback needs an idle request"):
        alone.wait_all()


def test_wait_all_in_a_callback() -> None:
    queue = ovgpu.AsyncInferQueue(compiled(ovgpu, nets.one()), 2)
    queue.set_callback(lambda request, item: queue.wait_all())
    queue.start_async(X)
    with pytest.raises(RuntimeError, match="wait_all in a callback"):
        queue.wait_all()


def test_wait_all_while_others_start() -> None:
    """`wait_all` waits for inferences started before the call, and not for later ones."""
    queue, stop = ovgpu.AsyncInferQueue(compiled(ovgpu, nets.one()), 3), threading.Event()

    def feed() -> None:
        while not stop.is_set():
            queue.start_async(X)

    threads = [threading.Thread(target=feed) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            queue.wait_all()
    finally:
        stop.set()
        for thread in threads:
            thread.join(30)
    queue.wait_all()
    assert not any(thread.is_alive() for thread in threads) and queue.is_ready()


def test_queues_come_and_go() -> None:
    """Threads end with their queue."""
    model = compiled(ovgpu, nets.one())
    ovgpu.AsyncInferQueue(model, 2).start_async(X)
    gc.collect()
    before = threading.active_count()
    for _ in range(20):
        queue = ovgpu.AsyncInferQueue(model, 3)
        for _ in range(6):
            queue.start_async(X)
        queue.wait_all()
        del queue
    gc.collect()
    deadline = time.monotonic() + 10
    while threading.active_count() > before + 3 and time.monotonic() < deadline:
        time.sleep(0.01)
    assert threading.active_count() <= before + 3


OPERATIONS = st.sampled_from(["start", "start", "start", "start", "bad", "fail", "wait", "ready", "idle"])


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.integers(1, 4), st.integers(1, 3), st.lists(OPERATIONS, max_size=25), st.integers(0, 2**16))
def test_any_use_by_several_threads(jobs: int, users: int, operations: list[str], seed: int) -> None:
    """Every item that started arrives exactly once, errors surface, and in the end all requests are idle."""
    queue = ovgpu.AsyncInferQueue(compiled(ovgpu, nets.one((-1, 2))), jobs)
    lock, started, arrived, raised, failures = threading.Lock(), set(), [], [], []
    pauses = random.Random(seed)

    def done(request: Any, item: tuple[int, int, bool]) -> None:
        value = request.get_output_tensor().data
        with lock:
            arrived.append(item)
            if value.shape[0] != 1 + item[1] % 3 or (value != item[1]).any():
                failures.append(AssertionError(f"{item} got {value}"))
        if pauses.random() < 0.2:
            time.sleep(0.001)
        if item[2]:
            raise KeyError(item)

    def use(user: int) -> None:
        for number, operation in enumerate(operations):
            try:
                if operation in ("start", "fail"):
                    item = user, number, operation == "fail"
                    with lock:
                        started.add(item)
                    queue.start_async([np.full((1 + number % 3, 2), -number, np.float32)], item)
                elif operation == "bad":
                    with pytest.raises(RuntimeError):
                        queue.start_async([np.ones((1, 5))])
                elif operation == "wait":
                    queue.wait_all()
                elif operation == "ready":
                    queue.is_ready()
                else:
                    assert 0 <= queue.get_idle_request_id() < jobs
            except KeyError as e:
                raised.append(e)
            except BaseException as e:
                failures.append(e)

    queue.set_callback(done)
    threads = [threading.Thread(target=use, args=(user,)) for user in range(users)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a thread hangs"
    try:
        queue.wait_all()
    except KeyError as e:
        raised.append(e)
    assert not failures, failures[0]
    assert sorted(arrived) == sorted(started)
    assert bool(raised) == any(item[2] for item in started)
    assert len(queue._idle) == jobs and not queue._running
