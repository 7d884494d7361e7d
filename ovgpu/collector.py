"""Python's garbage collector, kept from looking through a model again and again while it is being made."""

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
    """The block runs without the collector, in all threads: almost all that it makes stays, and collecting takes up to
    a third of its time."""
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
