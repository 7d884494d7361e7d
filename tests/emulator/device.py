"""The emulated devices: how many there are, which one a Python thread uses, and how much memory each has."""

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
    """Size of each device's memory."""
    return _bytes


def current() -> int:
    """The device of this Python thread: 0 until it chooses another."""
    return getattr(_thread, "device", 0)


def use(device: int) -> None:
    if not 0 <= device < _count:
        raise CUDARuntimeError(101, "cudaErrorInvalidDevice: invalid device ordinal")
    _thread.device = device


@contextlib.contextmanager
def using(device: int) -> Iterator[None]:
    """Within the block, this thread uses `device`; -1 stands for the one it uses already."""
    previous = current()
    use(previous if device < 0 else device)
    try:
        yield
    finally:
        _thread.device = previous


@contextlib.contextmanager
def devices(number: int) -> Iterator[None]:
    """Within the block there are so many devices; 0 for a machine without any."""
    global _count
    previous, _count = _count, number
    try:
        yield
    finally:
        _count = previous


@contextlib.contextmanager
def memory_limit(nbytes: int) -> Iterator[None]:
    """Within the block each device has only so much memory, what is already in use included."""
    global _bytes
    previous, _bytes = _bytes, nbytes
    try:
        yield
    finally:
        _bytes = previous
