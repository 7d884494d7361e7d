"""Pauses of Python's garbage collector: while a model is made, and while a CUDA graph is captured."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_lock = threading.Lock()
_inside = 0
_enabled = False


@contextmanager
def paused() -> Iterator[None]:
    """Run the block without the collector, in all threads. Almost all that compiling a model makes stays, while
    collecting takes up to a third of its time; and what the collector destroys may end a capture."""
    global _inside, _enabled
    with _lock:
        if not _inside:
            _enabled = gc.isenabled()
            gc.disable()
        _inside += 1
    try:
        yield
    finally:
        with _lock:
            _inside -= 1
            if not _inside and _enabled:
                gc.enable()
