"""Streams and library handles, which are used again when their request is gone.

Destroying a handle would wait for the device, and spoil a capture. CuPy's memory pool keeps freed blocks for the stream
that they were allocated on: no other request could use the blocks of a destroyed stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import finalize

from ovgpu.backends.cuda import rt

_idle: dict[tuple[int, int], list[Any]] = {}  # by library and device


def lent(owner: object, library: Any, create: Callable[[], Any]) -> Any:
    """Return a handle of the library on the current device, idle or new, for as long as ``owner`` lives."""
    handle, idle = _taken(library, create)
    finalize(owner, idle.append, handle).atexit = False
    return handle


def stream_for(owner: object) -> Any:
    """Return a stream of the current device for as long as ``owner`` lives. Work of an earlier owner may still run on
    it; new work runs after that."""
    return lent(owner, rt.cupy(), _new_stream)


@contextmanager
def borrowed_stream() -> Iterator[Any]:
    """Lend a stream of the current device to the block."""
    stream, idle = _taken(rt.cupy(), _new_stream)
    try:
        yield stream
    finally:
        idle.append(stream)


def _taken(library: Any, create: Callable[[], Any]) -> tuple[Any, list[Any]]:
    """Return a handle, and the list to which it returns when it is idle."""
    idle = _idle.setdefault((id(library), rt.cupy().cuda.Device().id), [])
    try:
        return idle.pop(), idle  # not after a look: another thread may take the last one in between
    except IndexError:
        return create(), idle


def _new_stream() -> Any:
    return rt.cupy().cuda.Stream(non_blocking=True)
