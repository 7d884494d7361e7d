"""Work on large arrays shared among the cores: NumPy's loops run without Python's lock."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache

import numpy as np

THREADS = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max(1, THREADS - 1), thread_name_prefix="ovgpu-ops")


def share(work: Callable[[int, int, int], None], count: int, threads: int = THREADS) -> None:
    """Runs ``work(part, start, stop)`` for up to ``threads`` equal parts of ``range(count)`` at once.

    Parts must not wait for each other. The last one runs in the calling thread; an exception is raised again.
    """
    parts = max(1, min(threads, count))
    bounds = [count * i // parts for i in range(parts + 1)]
    others = [_pool().submit(_quietly, work, i, bounds[i], bounds[i + 1]) for i in range(parts - 1)]
    try:
        work(parts - 1, bounds[-2], bounds[-1])
    finally:
        for other in others:
            other.result()


def _quietly(work: Callable[[int, int, int], None], part: int, start: int, stop: int) -> None:
    with np.errstate(all="ignore"):  # which is a thread's own
        work(part, start, stop)
