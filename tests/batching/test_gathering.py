"""Work as a future: the same as `concurrent.futures.Future`, whose condition it makes only when somebody needs it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, CancelledError, Future, as_completed, wait
from typing import Any

import pytest

from ovgpu.batching.gathering import Gatherer, Work, begin, complete


def works(count: int) -> list[Work]:
    lock = threading.RLock()
    return [Work("key", [index], 1, lock) for index in range(count)]


def test_results_and_exceptions() -> None:
    batch = works(3)
    assert begin(batch) == batch and not any(work.cancel() for work in batch)
    assert all(work.running() and not work.done() for work in batch)
    error = ValueError("wrong")
    complete(batch, [1, error, None])
    assert batch[0].result() == 1 and batch[0].exception() is None
    assert batch[1].exception() is error and batch[2].result(0) is None
    with pytest.raises(ValueError, match="wrong"):
        batch[1].result()
    assert all(work.done() and not work.cancel() and not work.cancelled() for work in batch)
    assert [len(work.arrays) for work in batch] == [0, 0, 0]


@pytest.mark.parametrize("asked", [False, True], ids=["alone", "asked-before"])
def test_nothing_is_made_for_a_future_that_nobody_waits_for(asked: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    condition = threading.Condition
    batch = works(2)
    monkeypatch.setattr(threading, "Condition", lambda *args: made.append(args) or condition(*args))
    if asked:
        assert not batch[0].done()
    complete(begin(batch), [1, 2])
    assert [work.result() for work in batch] == [1, 2]
    assert len(made) == asked


def test_waiting_in_another_thread() -> None:
    batch, found = works(2), []
    threads = [threading.Thread(target=lambda work=work: found.append(work.result(10))) for work in batch]
    for thread in threads:
        thread.start()
    with pytest.raises(TimeoutError):
        batch[0].result(0.01)
    complete(begin(batch), [1, 2])
    for thread in threads:
        thread.join(10)
    assert sorted(found) == [1, 2]


def test_callbacks_run_once_after_the_end() -> None:
    batch, seen = works(2), list[Any]()
    batch[0].add_done_callback(lambda future: seen.append((future.result(), batch[1].result(0))))
    complete(begin(batch), [1, 2])
    assert seen == [(1, 2)]
    batch[1].add_done_callback(lambda future: seen.append(future.result()))
    assert seen == [(1, 2), 2]


def test_functions_of_concurrent_futures() -> None:
    first, second, third = works(3)
    complete(begin([first]), [1])
    futures: list[Future[Any]] = [first, second, third]
    assert wait(futures, 0, FIRST_COMPLETED).done == {first}
    results = as_completed(futures)
    assert next(results) is first
    complete(begin([second, third]), [2, 3])
    assert set(results) == {second, third}


def test_cancelled_work_is_left_out() -> None:
    batch, seen = works(3), []
    batch[1].add_done_callback(seen.append)
    assert batch[1].cancel() and batch[1].cancel() and batch[1].cancelled() and seen == [batch[1]]
    assert not batch[1].arrays and batch[0].arrays == [0]
    assert begin(batch) == [batch[0], batch[2]]
    complete([batch[0], batch[2]], [1, 3])
    assert wait(batch, 0).not_done == set()
    with pytest.raises(CancelledError):
        batch[1].result()


def test_a_batch_has_as_many_rows_as_fit() -> None:
    gatherer = Gatherer(60, 5)
    lock = gatherer.lock
    given = [Work("a", [], 2, lock), Work("b", [], 1, lock), Work("a", [], 2, lock), Work("a", [], 2, lock)]
    with gatherer.together():
        for work in given:
            gatherer.put(work)
    assert gatherer.take() == [given[0], given[2]]
    gatherer.close()
    assert gatherer.take() == [given[1]] and gatherer.take() == [given[3]] and gatherer.take() is None


def test_a_listener_is_called_once_for_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """And after all works of the batch have ended, whether their results are asked for or not."""
    made: list[Any] = []
    told: list[tuple[str, list[Any], list[str]]] = []
    batch, ended = works(4), ["FINISHED"] * 4
    monkeypatch.setattr(threading, "Condition", lambda *args: made.append(args))

    def listener(name: str) -> Callable[[list[Any]], object]:
        return lambda tokens: told.append((name, tokens, [work._state for work in batch]))

    first, second = listener("first"), listener("second")
    for index, work in enumerate(batch[:3]):
        work.tell(first, index)
    batch[1].tell(second, "b")
    complete(begin(batch), [1, ValueError(), None, 2])
    batch[3].tell(second, "late")
    assert not made
    monkeypatch.undo()
    assert told == [("first", [0, 1, 2], ended), ("second", ["b"], ended), ("second", ["late"], ended)]


def test_a_listener_learns_of_cancelled_work() -> None:
    told: list[list[Any]] = []
    batch = works(2)
    for work in batch:
        work.tell(told.append, work)
    batch[0].cancel()
    assert told == [[batch[0]]]
    complete(begin(batch), [1])
    assert told == [[batch[0]], [batch[1]]] and batch[1].result() == 1


def test_no_listener_is_forgotten_when_work_ends_at_the_same_time() -> None:
    for number in range(200):
        (work,), told = works(1), threading.Event()
        begin([work])
        if number % 2:
            assert not work.done()  # makes the condition
        thread = threading.Thread(target=complete, args=([work], [1]))
        thread.start()
        work.tell(lambda tokens, told=told: told.set(), None)  # type: ignore[misc]
        assert told.wait(10)
        thread.join()
