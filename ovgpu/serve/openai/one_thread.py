"""Class OneThreadEngine: a model that computes one request at a time, on a thread of its own."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from ovgpu.batching.gathering import BatchRun, Observer
from ovgpu.serve.engines import Engine

T = TypeVar("T")


class OneThreadEngine(Engine):
    """Model that computes one request at a time, in the order in which they come."""

    inputs = outputs = ()

    def __init__(self, name: str, observer: Observer) -> None:
        """``name`` is that of the thread."""
        self._pool, self._observer = ThreadPoolExecutor(1, name), observer
        self._submitted = set[Future[Any]]()  # that have not ended

    def run_later(self, compute: Callable[[], T], rows: int = 1) -> Future[T]:
        """Submit the computation of a request, which the observer gets as a batch of so many rows."""
        submitted = time.perf_counter()

        def run() -> T:
            started = time.perf_counter()
            found = compute()
            self._observer(BatchRun(rows, rows, (started - submitted,), time.perf_counter() - started))
            return found

        future = self._pool.submit(run)
        self._submitted.add(future)
        future.add_done_callback(self._submitted.discard)
        return future

    @property
    def waiting(self) -> int:
        return max(len(self._submitted) - 1, 0)

    def memory(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        self._pool.shutdown()
