"""Gathering of work from many threads into batches."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from ovgpu.errors import Error, OpError


class Work:
    """Rows to compute together with others of the same ``key``, and the future of their results."""

    def __init__(self, key: Hashable, arrays: list[Any], rows: int, owner: Any = None) -> None:
        self.key, self.arrays, self.rows, self.owner = key, arrays, rows, owner
        self.future: Future[Any] = Future()
        self.future.add_done_callback(self._free)
        self.arrived = time.perf_counter()

    def _free(self, future: Future[Any]) -> None:
        """Drop the arrays of cancelled work, which may still wait in the queue for a long time."""
        if future.cancelled():
            self.arrays = []


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


def complete(batch: Sequence[Work], results: Sequence[Any]) -> None:
    """Set the results or exceptions of the futures."""
    for work, result in zip(batch, results):
        if isinstance(result, BaseException):
            work.future.set_exception(result)
        else:
            work.future.set_result(result)


def report(observer: Observer | None, batch: Sequence[Work], slots: int, started: float) -> None:
    """Call the observer for a batch that has just ended. Errors of the observer are printed and not raised, because
    the threads that wait for results have not caused them."""
    if observer is None or not batch:
        return
    try:
        observer(
            BatchRun(
                sum(work.rows for work in batch),
                slots,
                tuple([started - work.arrived for work in batch]),
                time.perf_counter() - started,
            )
        )
    except Exception:
        sys.excepthook(*sys.exc_info())


class Gatherer:
    """Queue that hands out work of the same key in batches.

    A batch is handed out when it has ``capacity()`` rows, or ``max_wait`` seconds after its first work arrived. Several
    threads may put and take.
    """

    def __init__(self, max_wait: float, capacity: Callable[[], int]) -> None:
        self._max_wait, self._capacity = max_wait, capacity
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self._groups: dict[Hashable, list[Work]] = {}  # oldest first
        self.closed = False

    def put(self, work: Work) -> None:
        """Add work. Raise Error if the queue is closed."""
        with self.changed:
            if self.closed:
                raise Error("the batcher is closed")
            self.put_next(work)

    def put_next(self, work: Work) -> None:
        """Add work that was submitted before, and waited for other work. The queue may have been closed since then."""
        with self.changed:
            group = self._groups.setdefault(work.key, [])
            group.append(work)
            if len(group) == 1 or self._is_full(group):  # `take` waits for a new group's deadline, or for a full group
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
                    full = next(filter(self._is_full, self._groups.values()), None)
                    if left <= 0 or self.closed or full is not None:
                        return self._cut(oldest if left <= 0 or full is None else full)
                    self.changed.wait(left)
                elif self.closed:
                    return None
                else:
                    self.changed.wait()

    def together(self) -> AbstractContextManager[Any]:
        """Return a context for putting work. The work is handed out together at its end, as far as it fits."""
        return self.lock

    def close(self) -> None:
        """Refuse new work, and hand out waiting work at once."""
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def _is_full(self, group: list[Work]) -> bool:
        return sum(work.rows for work in group) >= self._capacity()

    def _cut(self, group: list[Work]) -> list[Work]:
        """Remove and return as much work of a group as fits into a batch, but at least one work."""
        count, rows, capacity = 1, group[0].rows, self._capacity()
        while count < len(group) and rows + group[count].rows <= capacity:
            rows += group[count].rows
            count += 1
        taken, left = group[:count], group[count:]
        del self._groups[taken[0].key]
        if left:
            self._groups[left[0].key] = left
            self._groups = dict(sorted(self._groups.items(), key=lambda item: item[1][0].arrived))
            self.changed.notify()
        return taken
