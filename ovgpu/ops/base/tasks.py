"""Work on the host that is shared out among its cores: workers of calls that run at the same time.

NumPy lets other threads run while it computes. BLAS has threads of its own, which would wait for each other where
workers multiply matrices; while workers run, it has one.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy._core import _multiarray_umath  # type: ignore[attr-defined]

from ovgpu._util.claim import Claim
from ovgpu._util.process_setting import ProcessSetting
from ovgpu.ops.base.op import Array

Call = Callable[[], Any]


class Worker(list[Call]):
    """Calls that run one after the other, recorded by calling the worker; which of how many workers it is."""

    def __init__(self, number: int = 0, of: int = 1) -> None:
        self.number, self.of = number, of

    def __call__(self, function: Callable[..., Any], *operands: Any) -> None:
        self.append(partial(function, *operands))

    def share(self, memory: Array) -> Array:
        """This worker's part of a workspace that all workers have together."""
        size = memory.size // self.of
        return memory[self.number * size : (self.number + 1) * size]


def workers(worth: bool = True) -> list[Worker]:
    """All workers, or a single one for work that is not ``worth`` more."""
    count = WORKERS if worth else 1
    return [Worker(number, count) for number in range(count)]


def shares(extent: int, count: int) -> list[slice]:
    """At most so many parts of an axis, about equal."""
    step = -(-extent // count)
    return [slice(first, min(first + step, extent)) for first in range(0, extent, step)]


def record(k: Any, work: Sequence[Worker]) -> None:
    """Hands the calls of all workers to ``k``: as they are if only one has any, else as one call that runs them side by
    side."""
    work = [worker for worker in work if worker]
    if len(work) > 1:
        k(side_by_side, work)
    else:
        for call in (call for worker in work for call in worker):
            k(call)


def side_by_side(work: Sequence[Worker]) -> None:
    """Runs the workers at the same time; returns when all are done, and raises what one of them raised. When it is
    interrupted, no worker runs on after it."""
    jobs = [_Job(worker) for worker in work[1:]]
    with _blas.changed() if _blas else nullcontext():
        try:
            queue = _crew.queue(len(jobs))
            for job in jobs:
                queue.put(job)
            for call in work[0]:
                call()
            for job in jobs:
                job.join()
        finally:
            for job in jobs:
                job.stop()


class _Job:
    """A worker that a worker runs, or the caller if no worker has come to it yet."""

    __slots__ = ("_done", "_error", "_runner", "_worker")

    def __init__(self, worker: Worker) -> None:
        self._worker, self._error = worker, list[BaseException]()
        self._runner = Claim()
        self._done = threading.Lock()  # a worker that runs the worker releases it
        self._done.acquire()

    def work(self) -> None:
        """Runs the worker in a worker, unless the caller has it."""
        if self._runner.take(_work):
            try:
                for call in self._worker:
                    call()
            except BaseException as error:  # raised in the caller
                self._error.append(error)
            self._done.release()

    def join(self) -> None:
        """Waits for the worker that runs the worker, or runs it here. Raises what the worker raises."""
        if self._runner.take(self):
            for call in self._worker:
                call()
            return
        with self._done:
            pass
        if self._error:
            raise self._error.pop()

    def stop(self) -> None:
        """Waits for the worker that runs the worker; if none does, none will."""
        if not self._runner.take(self):
            with self._done:
                pass


class _Crew:
    """Threads that wait for workers; started when they are first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._size = 0

    def queue(self, size: int) -> SimpleQueue[Any]:
        """Where at least so many threads wait."""
        if self._size < size:
            with self._lock:
                for number in range(self._size, size):
                    name = f"ovgpu-worker-{number}"
                    threading.Thread(target=_work, args=(self._queue,), name=name, daemon=True).start()
                self._size = max(size, self._size)
        return self._queue


def _work(queue: SimpleQueue[Any]) -> None:
    with np.errstate(all="ignore"):
        while True:
            job = queue.get()
            job.work()
            del job  # while this thread waits, it keeps no arrays alive


def _blas_threads() -> tuple[Callable[[], int], Callable[[int], object]] | None:
    """Functions that give and set the number of threads of the BLAS that NumPy brings along; None for another BLAS."""
    library = ctypes.CDLL(_multiarray_umath.__file__)  # in which its dependencies' symbols are found as well
    for prefix in ("scipy_", ""):
        for suffix in ("64_", ""):
            name = f"{prefix}openblas_{{}}_num_threads{suffix}"
            if hasattr(library, name.format("set")):
                return getattr(library, name.format("get")), getattr(library, name.format("set"))
    return None


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


BLAS_THREADS = _blas_threads()
WORKERS = min(_cores(), 8) if BLAS_THREADS else 1
_blas = BLAS_THREADS and ProcessSetting(BLAS_THREADS[0], partial(BLAS_THREADS[1], 1), BLAS_THREADS[1])
_crew = _Crew()


def _start_afresh() -> None:
    """Threads do not live on in a forked process."""
    global _crew
    _crew = _Crew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)
