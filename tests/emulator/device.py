"""The emulated devices: their number, the current device of each Python thread, and their memory size."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from .state import CUDARuntimeError

_thread = threading.local()
_count = 1
_bytes = 80 << 30


def count() -> int:
    return _count


def memory_bytes() -> int:
    """Return the size of each device's memory."""
    return _bytes


def current() -> int:
    """Return the current device of this Python thread, 0 by default."""
    return getattr(_thread, "device", 0)


def use(device: int) -> None:
    if not 0 <= device < _count:
        raise CUDARuntimeError(101, "cudaErrorInvalidDevice: invalid device ordinal")
    _thread.device = device


@contextlib.contextmanager
def using(device: int) -> Iterator[None]:
    """Make `device` the current device of this thread within the block; -1 leaves it as it is."""
    previous = current()
    use(previous if device < 0 else device)
    try:
        yield
    finally:
        _thread.device = previous


@contextlib.contextmanager
def devices(number: int) -> Iterator[None]:
    """Set the number of devices within the block; 0 is a machine without any."""
    global _count
    previous, _count = _count, number
    try:
        yield
    finally:
        _count = previous


@contextlib.contextmanager
def memory_limit(nbytes: int) -> Iterator[None]:
    """Limit each device's memory within the block to `nbytes`, including memory that is already in use."""
    global _bytes
    previous, _bytes = _bytes, nbytes
    try:
        yield
    finally:
        _bytes = previous
