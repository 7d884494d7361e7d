"""Parallel work on the CPU: workers, lists of calls that threads run at the same time.

NumPy releases the GIL while it computes. BLAS has threads of its own, which would wait for each other where several
workers multiply matrices. It is therefore limited to one thread while workers run.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy._core import _multiarray_umath  # type: ignore[attr-defined]

from ovgpu._util.claim import Claim
from ovgpu._util.process_setting import ProcessSetting
from ovgpu.ops.base.op import Array
from ovgpu.ops.base.recorder import HostRecorder

Call = Callable[[], Any]


class Worker(list[Call]):
    """A list of calls that one thread runs one after the other; calling the worker records a call.

    It is worker ``number``, counted from 0, of ``of`` workers.
    """

    def __init__(self, number: int = 0, of: int = 1) -> None:
        self.number, self.of = number, of

    def __call__(self, function: Callable[..., Any], *operands: Any) -> None:
        self.append(partial(function, *operands))

    def share(self, memory: Array) -> Array:
        """Return this worker's part of a workspace that all workers share, a 1-D array."""
        size = memory.size // self.of
        return memory[self.number * size : (self.number + 1) * size]


def workers(parallel: bool = True) -> list[Worker]:
    """Return `WORKERS` empty workers; a single one for work that is too small to run in ``parallel``."""
    count = WORKERS if parallel else 1
    return [Worker(i, count) for i in range(count)]


def shares(extent: int, count: int) -> list[slice]:
    """Return an axis of ``extent`` elements as at most ``count`` slices of about equal length."""
    step = -(-extent // count)
    return [slice(first, min(first + step, extent)) for first in range(0, extent, step)]


def record(k: HostRecorder, work: Sequence[Worker]) -> None:
    """Hand the workers' calls to the recorder ``k``: one by one if only one worker has any, else as one call that runs
    the workers side by side."""
    work = [worker for worker in work if worker]
    if len(work) > 1:
        k(side_by_side, work)
    else:
        for call in (call for worker in work for call in worker):
            k(call)


def side_by_side(work: Sequence[Worker]) -> None:
    """Run the workers at the same time: the first one here, the others in threads. Return when all are done, and raise
    the error of one that failed. If this call is interrupted, it leaves no worker running."""
    jobs = [_Job(worker) for worker in work[1:]]
    with one_blas_thread():
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
    """One worker's run, in a thread of `_Crew`, or in the caller's thread if no other has taken it by then.

    The job drops the worker's calls, and with them its arrays, before the caller goes on: the crew's queue and threads
    may keep the job itself for longer.
    """

    __slots__ = ("_done", "_error", "_runner", "_worker")

    def __init__(self, worker: Worker) -> None:
        self._worker: Sequence[Call] = worker
        self._error = list[BaseException]()
        self._runner = Claim()
        self._done = threading.Lock()  # the thread that runs the worker releases it
        self._done.acquire()

    def work(self) -> None:
        """Run the worker's calls in a thread of the crew, unless the caller has taken the job."""
        if self._runner.take(_work):
            try:
                _run(self._worker)
            except BaseException as error:  # `join` raises it in the caller's thread
                self._error.append(error)
            self._worker = ()
            self._done.release()

    def join(self) -> None:
        """Wait for the thread that runs the worker, or run the worker here if none does. Raises the worker's error."""
        if self._runner.take(side_by_side):
            _run(self._worker)
            self._worker = ()
            return
        with self._done:
            pass
        if self._error:
            raise self._error.pop()

    def stop(self) -> None:
        """Wait for the thread that runs the worker; if none does, keep all threads from starting it."""
        if self._runner.take(side_by_side):
            self._worker = ()
        else:
            with self._done:
                pass


def _run(calls: Sequence[Call]) -> None:
    for call in calls:
        call()


class _Crew:
    """Threads that wait for jobs; started when they are first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._size = 0

    def queue(self, size: int) -> SimpleQueue[Any]:
        """Return the queue of jobs, after starting threads until at least ``size`` serve it."""
        if self._size < size:
            with self._lock:
                for i in range(self._size, size):
                    name = f"ovgpu-worker-{i}"
                    threading.Thread(target=_work, args=(self._queue,), name=name, daemon=True).start()
                self._size = max(size, self._size)
        return self._queue


def _work(queue: SimpleQueue[Any]) -> None:
    with np.errstate(all="ignore"):
        while True:
            job = queue.get()
            job.work()
            del job  # so that the thread keeps no arrays alive while it waits


def _blas_threads() -> tuple[Callable[[], int], Callable[[int], object]] | None:
    """Return functions that get and set the number of threads of NumPy's bundled OpenBLAS; None for another BLAS."""
    # Not by threadpoolctl: its import takes 4 ms, and each limit 8 us instead of 2.
    library = ctypes.CDLL(_multiarray_umath.__file__)  # finds the symbols of its dependencies as well
    for prefix in ("scipy_", ""):
        for suffix in ("64_", ""):
            name = f"{prefix}openblas_{{}}_num_threads{suffix}"
            if hasattr(library, name.format("set")):
                return getattr(library, name.format("get")), getattr(library, name.format("set"))
    return None


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def one_blas_thread() -> AbstractContextManager[None]:
    """Return a context in which BLAS computes on the thread that calls it. Its other threads spin for a while after
    each product, and keep workers from their core."""
    return _blas.changed() if _blas else nullcontext()


def leave_core() -> None:
    """Leave one core of the process to threads other than BLAS's, which spin while they wait for work."""
    if BLAS_THREADS:
        BLAS_THREADS[1](max(cores() - 1, 1))


BLAS_THREADS = _blas_threads()
WORKERS = min(cores(), 8) if BLAS_THREADS else 1
_blas = BLAS_THREADS and ProcessSetting(BLAS_THREADS[0], partial(BLAS_THREADS[1], 1), BLAS_THREADS[1])
_crew = _Crew()


def _start_afresh() -> None:
    """Replace the crew in a forked process, where its threads do not exist."""
    global _crew
    _crew = _Crew()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)
