"""Memory of a server's process: fewer collections of garbage, and one heap."""

from __future__ import annotations

import ctypes
import gc
import os

M_ARENA_MAX = -8  # of mallopt(3)


def set_up() -> None:
    """Set up the process, before it starts threads. Everything that is alive will stay alive."""
    gc.set_threshold(10_000, 10, 10)  # requests make many objects, and no cycles
    gc.collect()
    gc.freeze()  # modules live as long as the server: collections, which stop all threads, need not look at them
    _use_one_heap()


def _use_one_heap() -> None:
    """Let all threads allocate from one heap of the C library, unless the environment says how many there are.

    By default, there are several per core. Each one keeps what it once took, since little of it is free up to its end:
    a server's memory would grow for hours. Turns of Python's threads are the limit of how many allocate at a time.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None) if os.name == "posix" else None
    if mallopt is not None and "MALLOC_ARENA_MAX" not in os.environ:
        mallopt(M_ARENA_MAX, 1)
