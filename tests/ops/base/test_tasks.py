"""Workers: task lists that run in parallel on the host's cores."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest

from ovgpu.ops.base import tasks
from ovgpu.ops.base.tasks import Worker, record, shares


def recorded(work: list[Worker]) -> list[Callable[[], Any]]:
    calls: list[Callable[[], Any]] = []
    record(lambda function, *operands: calls.append(lambda: function(*operands)), work)
    return calls


def test_workers_run_at_the_same_time() -> None:
    meeting = threading.Barrier(3, timeout=10)
    work = [Worker(number, 3) for number in range(3)]
    for worker in work:
        worker(meeting.wait)
    (call,) = recorded(work)
    call()
    call()


def test_a_single_worker_is_its_calls() -> None:
    work, found = [Worker(0, 2), Worker(1, 2)], list[int]()
    work[1](found.append, 1)
    work[1](found.append, 2)
    calls = recorded(work)
    assert len(calls) == 2
    for call in calls:
        call()
    assert found == [1, 2]


@pytest.mark.parametrize("broken", [0, 1])
def test_errors_are_raised_when_all_workers_are_done(broken: int) -> None:
    work, found = [Worker(0, 2), Worker(1, 2)], list[int]()
    for number, worker in enumerate(work):
        worker(np.linalg.inv, np.zeros((2, 2))) if number == broken else worker(found.append, number)
    (call,) = recorded(work)
    with pytest.raises(np.linalg.LinAlgError):
        call()
    assert found == [1 - broken] or (found == [] and not broken)  # an unclaimed list does not run


@pytest.mark.parametrize("begun", [True, False])
def test_no_worker_runs_on_after_an_interruption(begun: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not begun:
        monkeypatch.setattr(tasks._Crew, "queue", lambda *_: SimpleQueue())  # a queue that no thread reads
    work, running, found = [Worker(0, 2), Worker(1, 2)], threading.Event(), list[int]()

    def interrupt() -> None:
        assert not begun or running.wait(10)
        raise KeyboardInterrupt

    def last() -> None:
        running.set()
        time.sleep(0.05)
        found.append(1)

    work[0](interrupt)
    work[1](last)
    (call,) = recorded(work)
    with pytest.raises(KeyboardInterrupt):
        call()
    assert found == [1] * begun
    time.sleep(0.1)
    assert found == [1] * begun


def test_the_caller_runs_unclaimed_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The caller runs task lists that no thread takes."""
    monkeypatch.setattr(tasks._Crew, "queue", lambda *_: SimpleQueue())
    work, found = [Worker(0, 2), Worker(1, 2)], list[int]()
    for number, worker in enumerate(work):
        worker(found.append, number)
    (call,) = recorded(work)
    call()
    assert found == [0, 1]


@pytest.mark.skipif(tasks.BLAS_THREADS is None, reason="the number of BLAS's threads cannot be set")
@pytest.mark.parametrize("taken", [True, False])
def test_arrays_are_dropped_when_the_work_is_done(taken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    unread: SimpleQueue[Any] = SimpleQueue()
    if not taken:
        monkeypatch.setattr(tasks._Crew, "queue", lambda *_: unread)
    gc.disable()
    try:
        for _ in range(20):
            array = np.zeros(4)
            dropped = weakref.ref(array)
            work = [Worker(0, 2), Worker(1, 2)]
            for worker in work:
                worker(time.sleep, 0.001)
                worker(np.copyto, array, 1)
            tasks.side_by_side(work)
            del array, work, worker
            assert dropped() is None
    finally:
        gc.enable()


def test_blas_has_one_thread_while_workers_run() -> None:
    assert tasks.BLAS_THREADS is not None
    threads, _ = tasks.BLAS_THREADS
    before, found = threads(), list[int]()
    work = [Worker(0, 2), Worker(1, 2)]
    for worker in work:
        worker(lambda: found.append(threads()))
    (call,) = recorded(work)
    call()
    assert found == [1, 1] and threads() == before


def test_shares_of_memory() -> None:
    parts = [Worker(number, 3).share(np.arange(11)) for number in range(3)]
    assert [part.tolist() for part in parts] == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    assert shares(7, 3) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert shares(2, 4) == [slice(0, 1), slice(1, 2)]
