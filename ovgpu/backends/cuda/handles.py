"""Streams, and handles of NVIDIA's libraries, which requests that are gone leave to others.

Destroying a handle would wait for the device, and spoil a capture. And CuPy's memory pool keeps the blocks that were
freed on a stream for allocations on that stream: those of a stream that is destroyed would be lost to other requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import finalize

from ovgpu.backends.cuda import rt

_idle: dict[tuple[int, int], list[Any]] = {}  # by library and device


def lent(owner: object, library: Any, create: Callable[[], Any]) -> Any:
    """A handle of the library on the current device for as long as ``owner`` lives: an idle one, or a new one."""
    handle, idle = _taken(library, create)
    finalize(owner, idle.append, handle).atexit = False
    return handle


def stream_for(owner: object) -> Any:
    """A stream of the current device for as long as ``owner`` lives. Work of an owner that is gone may still run on
    it; what is enqueued now comes after that."""
    return lent(owner, rt.cupy(), _new_stream)


@contextmanager
def borrowed_stream() -> Iterator[Any]:
    """A stream of the current device within the block."""
    stream, idle = _taken(rt.cupy(), _new_stream)
    try:
        yield stream
    finally:
        idle.append(stream)


def _taken(library: Any, create: Callable[[], Any]) -> tuple[Any, list[Any]]:
    """A handle, and the list that it goes to when it is idle again."""
    idle = _idle.setdefault((id(library), rt.cupy().cuda.Device().id), [])
    try:
        return idle.pop(), idle  # not after a look: another thread may take the last one in between
    except IndexError:
        return create(), idle


def _new_stream() -> Any:
    return rt.cupy().cuda.Stream(non_blocking=True)
