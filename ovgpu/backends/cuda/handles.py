"""Streams and library handles, which are reused when their request is gone.

Destroying a handle would wait for the device, and invalidate a capture. CuPy's memory pool keeps freed blocks for the
stream on which they were allocated: no other request could use the blocks of a destroyed stream.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from weakref import finalize

from ovgpu.backends.cuda import rt

_idle: dict[tuple[int, int], list[Any]] = {}  # by library and device


def acquire_handle(owner: object, library: Any, create: Callable[[], Any]) -> Any:
    """Return an idle or new handle of the library on the current device. It becomes idle when ``owner`` dies."""
    handle, idle = _acquire(library, create)
    finalize(owner, idle.append, handle).atexit = False
    return handle


def stream_for(owner: object) -> Any:
    """Return a stream of the current device for the lifetime of ``owner``.

    Work of an earlier owner may still run on it, and new work runs after that.
    """
    return acquire_handle(owner, rt.cupy(), _new_stream)


@contextmanager
def borrowed_stream() -> Iterator[Any]:
    """Lend a stream of the current device to the block."""
    stream, idle = _acquire(rt.cupy(), _new_stream)
    try:
        yield stream
    finally:
        idle.append(stream)


def _acquire(library: Any, create: Callable[[], Any]) -> tuple[Any, list[Any]]:
    """Return a handle, and the list to which it returns when it is idle."""
    idle = _idle.setdefault((id(library), rt.cupy().cuda.Device().id), [])
    try:
        return idle.pop(), idle  # without a check before: another thread may take the last one in between
    except IndexError:
        return create(), idle


def _new_stream() -> Any:
    return rt.cupy().cuda.Stream(non_blocking=True)
