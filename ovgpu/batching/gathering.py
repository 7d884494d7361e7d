"""Gathering of work from many threads into batches."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import Future
from concurrent.futures._base import CANCELLED, CANCELLED_AND_NOTIFIED, FINISHED, PENDING, RUNNING
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from ovgpu.errors import Error, OpError


class Work(Future[Any]):
    """Rows to compute together with others of the same ``key``: the future of their results.

    The inputs, ``arrays``, are dropped when the work has ended or is cancelled, as users may keep the future for long.

    NOTE: Each step of each sequence makes a future. The condition of `Future` takes as long to make as a third of the
    step, and few futures need one: those whose result is asked for before they end. So it is made when a method of
    `Future` first uses it. Until then ``guard``, the lock of the `Gatherer`, guards the future's state.
    """

    _state = PENDING
    _result: Any = None
    _exception: BaseException | None = None
    _made: threading.Condition | None = None
    _listeners: tuple[tuple[Callable[[list[Any]], object], Any], ...] = ()
    _waiters: list[Any]
    _done_callbacks: list[Callable[[Future[Any]], Any]]

    def __init__(self, key: Hashable, arrays: Sequence[Any], rows: int, guard: Any, owner: Any = None) -> None:
        # `Future.__init__` is not called: it would make the condition.
        self.key, self.arrays, self.rows, self.guard, self.owner = key, arrays, rows, guard, owner
        self.arrived = time.perf_counter()

    @property
    def _condition(self) -> threading.Condition:  # type: ignore[override]
        if self._made is None:
            with self.guard:
                if self._made is None:
                    self._waiters, self._done_callbacks = [], []
                    self._made = threading.Condition()
        return self._made

    def result(self, timeout: float | None = None) -> Any:
        """Wait for the result and return it; see `Future.result`."""
        if self._state == FINISHED and self._exception is None:
            return self._result
        return super().result(timeout)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """Wait for the end, and return the exception; see `Future.exception`."""
        return self._exception if self._state == FINISHED else super().exception(timeout)

    def cancelled(self) -> bool:
        """Return whether the work is cancelled."""
        return self._state in (CANCELLED, CANCELLED_AND_NOTIFIED)

    def tell(self, listener: Callable[[list[Any]], object], token: Any) -> None:
        """Have ``listener(tokens)`` called, on any thread, when this work has ended, failed or is cancelled.

        It is called once for all works of a batch that have the same listener, with their tokens. It must not raise.
        """
        with self.guard:
            if self._state in (PENDING, RUNNING):
                self._listeners = (*self._listeners, (listener, token))
                return
        listener([token])

    def cancel(self) -> bool:
        """Cancel the work, unless it runs or has ended. Cancelled work may still wait in the queue for a long time."""
        cancelled = super().cancel()
        if cancelled:
            self.arrays = ()
            _tell([self])
        return cancelled


@dataclass(frozen=True)
class BatchRun:
    """Measurements of a batch. Times are in seconds."""

    rows: int  # rows with work
    slots: int  # rows that were computed, including rows without work
    waited: tuple[float, ...]  # from the submission to the start, for each work
    computed: float  # from the start to the end of the batch


Observer = Callable[[BatchRun], None]
"""Function that is called, on the thread of a batcher, after every batch."""


def run(batch: Sequence[Work], infer: Callable[[Sequence[Work]], Sequence[Any]]) -> list[Any]:
    """Compute a batch by ``infer``, and return the result or the exception of each work.

    If a layer raises OpError, the values of one work may be at fault: each work is then computed alone.
    """
    try:
        return list(infer(batch)) if batch else []
    except OpError as error:
        return [error] if len(batch) == 1 else [result for work in batch for result in run([work], infer)]
    except BaseException as error:
        return [error] * len(batch)


def begin(batch: Sequence[Work]) -> list[Work]:
    """Begin to run works. Return those that are not cancelled."""
    with batch[0].guard:
        for work in batch:
            if work._made is None:
                work._state = RUNNING
        return [work for work in batch if work._made is None or work.set_running_or_notify_cancel()]


def complete(batch: Sequence[Work], results: Sequence[Any]) -> None:
    """Set the results or exceptions of works, and drop their inputs."""
    if not batch:
        return
    awaited, told = [], False
    with batch[0].guard:
        for work, result in zip(batch, results):
            work.arrays = ()
            told = told or bool(work._listeners)
            if work._made is not None:
                awaited.append((work, result))
                continue
            if isinstance(result, BaseException):
                work._exception = result
            else:
                work._result = result
            work._state = FINISHED  # last, as `Work.result` reads it first
    for work, result in awaited:  # without the guard, because this calls callbacks
        if isinstance(result, BaseException):
            work.set_exception(result)
        else:
            work.set_result(result)
    if told or awaited:  # those that ended under the guard get no more listeners
        _tell(batch)


def _tell(batch: Sequence[Work]) -> None:
    """Call the listeners of works that have ended."""
    tokens: dict[Callable[[list[Any]], object], list[Any]] = {}
    with batch[0].guard:  # `Work.tell` looks at the state and sets the listener at once
        for work in batch:
            for listener, token in work._listeners:
                tokens.setdefault(listener, []).append(token)
            work._listeners = ()
    for listener, told in tokens.items():
        listener(told)


def report(observer: Observer | None, batch: Sequence[Work], slots: int, started: float) -> None:
    """Call the observer for a batch that has just ended."""
    if observer is not None and batch:
        waited = tuple([started - work.arrived for work in batch])
        observe(observer, BatchRun(sum(work.rows for work in batch), slots, waited, time.perf_counter() - started))


def observe(observer: Observer, run: BatchRun) -> None:
    """Call an observer. Its errors are printed and not raised, because those who wait for results have not caused
    them."""
    try:
        observer(run)
    except Exception:
        sys.excepthook(*sys.exc_info())


class Gatherer:
    """Queue that hands out work of the same key in batches.

    A batch is handed out when it has ``capacity`` rows, or ``max_wait`` seconds after its first work arrived. Several
    threads may put and take. ``lock`` guards the queue and ``capacity``, which may change.
    """

    def __init__(self, max_wait: float, capacity: int) -> None:
        self._max_wait, self.capacity = max_wait, capacity
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self._groups: dict[Hashable, _Group] = {}  # oldest first
        self._together = 0  # contexts of `together`, one within the other
        self.closed = False

    @property
    def waiting(self) -> int:
        """The number of works that wait."""
        with self.lock:
            return sum(map(len, self._groups.values()))

    def put(self, work: Work) -> None:
        """Add work. Raise Error if the queue is closed."""
        with self.lock:
            if self.closed:
                raise Error("the batcher is closed")
            self.put_next(work)

    def put_next(self, work: Work) -> None:
        """Add work that was submitted before, and waited for other work. The queue may have been closed since then.

        The caller holds the lock.
        """
        group = self._groups.get(work.key)
        if group is None:
            group = self._groups[work.key] = _Group()
        group.append(work)
        group.rows += work.rows
        # `take` waits for a new group's deadline, or for a full group.
        if not self._together and (len(group) == 1 or group.rows >= self.capacity):
            self.changed.notify()

    def take(self) -> list[Work] | None:
        """Wait for a batch and return it, or None when the queue is closed and empty.

        Futures of the batch may be cancelled.
        """
        with self.changed:
            while True:
                if self._groups:
                    oldest = next(iter(self._groups.values()))
                    left = oldest[0].arrived + self._max_wait - time.perf_counter()
                    full = next((group for group in self._groups.values() if group.rows >= self.capacity), None)
                    if left <= 0 or self.closed or full is not None:
                        return self._cut(oldest if left <= 0 or full is None else full)
                    self.changed.wait(left)
                elif self.closed:
                    return None
                else:
                    self.changed.wait()

    @contextmanager
    def together(self) -> Iterator[None]:
        """Return a context for putting work. The work is handed out together at its end, as far as it fits."""
        with self.lock:
            self._together += 1
            try:
                yield
            finally:
                self._together -= 1
                self.changed.notify()  # not before: a thread that takes would only wait for the lock

    @property
    def is_together(self) -> bool:
        """True while a thread is in a context of `together`."""
        return self._together > 0

    def close(self) -> None:
        """Refuse new work, and hand out waiting work at once."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def _cut(self, group: _Group) -> list[Work]:
        """Remove and return as much work of a group as fits into a batch, but at least one work."""
        count, rows = len(group), group.rows
        while count > 1 and rows > self.capacity:
            count -= 1
            rows -= group[count].rows
        taken, left = group[:count], _Group(group[count:])
        del self._groups[taken[0].key]
        if left:
            left.rows = group.rows - rows
            self._groups[left[0].key] = left
            self._groups = dict(sorted(self._groups.items(), key=lambda item: item[1][0].arrived))
            self.changed.notify()
        return taken


class _Group(list[Work]):
    """Works of the same key, oldest first. ``rows`` is the number of their rows."""

    rows = 0
