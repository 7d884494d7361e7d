"""Work on the host that is shared out among its cores: lanes of calls that run at the same time.

NumPy lets other threads run while it computes. BLAS has threads of its own, which would wait for each other where
lanes multiply matrices; while lanes run, it has one.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
from numpy._core import _multiarray_umath  # type: ignore[attr-defined]

from ovgpu.ops._op import Array

Call = Callable[[], Any]


class Lane(list[Call]):
    """Calls that run one after the other, recorded by calling the lane; which of how many lanes it is."""

    def __init__(self, number: int = 0, of: int = 1) -> None:
        self.number, self.of = number, of

    def __call__(self, function: Callable[..., Any], *operands: Any) -> None:
        self.append(partial(function, *operands))

    def share(self, memory: Array) -> Array:
        """This lane's part of a workspace that all lanes have together."""
        size = memory.size // self.of
        return memory[self.number * size : (self.number + 1) * size]


def lanes(worth: bool = True) -> list[Lane]:
    """All lanes, or a single one for work that is not ``worth`` more."""
    count = LANES if worth else 1
    return [Lane(number, count) for number in range(count)]


def shares(extent: int, count: int) -> list[slice]:
    """At most so many parts of an axis, about equal."""
    step = -(-extent // count)
    return [slice(first, min(first + step, extent)) for first in range(0, extent, step)]


def record(k: Any, work: Sequence[Lane]) -> None:
    """Hands the calls of all lanes to ``k``: as they are if only one has any, else as one call that runs them side by
    side."""
    work = [lane for lane in work if lane]
    if len(work) > 1:
        k(side_by_side, work)
    else:
        for call in (call for lane in work for call in lane):
            k(call)


def side_by_side(work: Sequence[Lane]) -> None:
    """Runs the lanes at the same time; returns when all are done, and raises what one of them raised."""
    done: SimpleQueue[BaseException | None] = SimpleQueue()
    with _blas:
        queue = _crew.queue(len(work) - 1)
        for lane in work[1:]:
            queue.put((lane, done))
        errors = [_run(work[0]), *(done.get() for _ in work[1:])]
    for error in errors:
        if error is not None:
            raise error


def _run(lane: Lane) -> BaseException | None:
    try:
        for call in lane:
            call()
    except BaseException as error:  # raised where the lanes were started
        return error
    return None


class _Crew:
    """Threads that wait for lanes; started when they are first needed."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queue: SimpleQueue[Any] = SimpleQueue()
        self._size = 0

    def queue(self, size: int) -> SimpleQueue[Any]:
        """Where at least so many threads wait."""
        if self._size < size:
            with self._lock:
                for number in range(self._size, size):
                    name = f"ovgpu-lane-{number}"
                    threading.Thread(target=_work, args=(self._queue,), name=name, daemon=True).start()
                self._size = max(size, self._size)
        return self._queue


def _work(queue: SimpleQueue[Any]) -> None:
    with np.errstate(all="ignore"):
        while True:
            lane, done = queue.get()
            error = _run(lane)
            del lane  # while this thread waits, it keeps no arrays alive
            done.put(error)
            del done, error


class _Blas:
    """The number of threads of the BLAS that NumPy brings along; inside, it is one."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._inside = self._outside = 0
        library = ctypes.CDLL(_multiarray_umath.__file__)  # in which its dependencies' symbols are found as well
        names = [f"{prefix}openblas_{{}}_num_threads{suffix}" for prefix in ("scipy_", "") for suffix in ("64_", "")]
        name = next((n for n in names if hasattr(library, n.format("set"))), None)
        self._get: Any = name and getattr(library, name.format("get"))
        self._set: Any = name and getattr(library, name.format("set"))

    def __bool__(self) -> bool:
        """Whether the number can be set."""
        return self._set is not None

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside and self:
                self._outside = self._get()
                self._set(1)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside and self:
                self._set(self._outside)


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_blas = _Blas()
_crew = _Crew()
LANES = min(_cores(), 8) if _blas else 1


def _start_afresh() -> None:
    """Threads do not live on in a forked process."""
    global _crew, _blas
    _crew, _blas = _Crew(), _Blas()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_start_afresh)
