"""The current device and stream of a thread.

CuPy's own ``with stream`` is not used for two reasons. At its end, the stream of the enclosing ``with`` becomes
current, by default the null stream: a stream that the program has made current by ``stream.use()`` is lost. And where
an exception of a signal handler keeps ``__exit__`` from running, the stream stays current. Here, `restore` takes back
whatever is left, as often as it is called.
"""

from __future__ import annotations

import threading
from types import TracebackType
from typing import Any

from ovgpu.backends.cuda import rt


class _Switch:
    """Change of the current device to ``device``, and of the device's current stream."""

    __slots__ = ("device", "outer_device", "outer_stream")

    def __init__(self, device: int, outer_device: int) -> None:
        self.device, self.outer_device = device, outer_device
        self.outer_stream: Any = None  # until the device is current


class _Switches(threading.local):
    def __init__(self) -> None:
        self.made: list[_Switch] = []


_switches = _Switches()


def depth() -> int:
    """Return the number of switches of this thread, for `restore`."""
    return len(_switches.made)


def switch(device: int, stream: Any) -> None:
    """Make a device and one of its streams current in this thread. The stream belongs to the device."""
    cuda = rt.cupy().cuda
    made = _Switch(device, cuda.runtime.getDevice())
    _switches.made.append(made)
    if made.outer_device != device:
        cuda.runtime.setDevice(device)
    made.outer_stream = cuda.get_current_stream()
    stream.use()


def restore(depth: int) -> None:
    """Take back all but the first ``depth`` switches of this thread."""
    made, set_device = _switches.made, rt.cupy().cuda.runtime.setDevice
    try:
        for each in reversed(made[depth:]):
            if each.outer_stream is not None:
                if each.outer_device != each.device:
                    set_device(each.device)  # also after an interrupted call, which has left the device
                each.outer_stream.use()
            if each.outer_device != each.device:
                set_device(each.outer_device)
    except Exception:  # the device has failed
        del made[depth:]
        raise
    del made[depth:]


class Using:
    """Context in which a stream of the current device is current."""

    __slots__ = ("_depth", "_stream")

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    def __enter__(self) -> None:
        self._depth = depth()
        switch(rt.cupy().cuda.runtime.getDevice(), self._stream)

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        restore(self._depth)
