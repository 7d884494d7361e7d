"""Handles of NVIDIA's libraries, which requests that are gone leave to others: destroying one would wait for the
device, and spoil a capture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import finalize

from ovgpu.backends.cuda import rt

_idle: dict[tuple[int, int], list[Any]] = {}  # by library and device


def lent(owner: object, library: Any, create: Callable[[], Any]) -> Any:
    """A handle of the library on the current device for as long as ``owner`` lives: an idle one, or a new one."""
    idle = _idle.setdefault((id(library), rt.cupy().cuda.Device().id), [])
    try:
        handle = idle.pop()  # not after a look: another thread may take the last one in between
    except IndexError:
        handle = create()
    finalize(owner, idle.append, handle).atexit = False
    return handle
