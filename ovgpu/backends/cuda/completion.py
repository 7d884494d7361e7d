"""The end of an inference on a stream, seen by CUDA events."""

from __future__ import annotations

import time
from typing import Any

from ovgpu._util.polling import pause
from ovgpu.backends.cuda import rt

# Numbers of cudaError_t.
NOT_READY = 600
CAPTURE_UNSUPPORTED = 900  # another library captures a graph in global mode; this says nothing of the event
CAPTURE_SECONDS = 10.0
"""Seconds of `CAPTURE_UNSUPPORTED` after which `EventCompletion.wait` raises that: this thread may be capturing."""


class EventCompletion:
    """`ovgpu.runtime.backend.Completion` of a stream. Make it while the stream's device is current."""

    __slots__ = ("_begun", "_elapsed", "_ended", "_query", "_stream")

    def __init__(self, stream: Any) -> None:
        cuda = rt.cupy().cuda
        self._stream, self._query, self._elapsed = stream, cuda.runtime.eventQuery, cuda.get_elapsed_time
        self._begun, self._ended = cuda.Event(), cuda.Event()

    def begin(self) -> None:
        self._begun.record(self._stream)

    def end(self) -> None:
        self._ended.record(self._stream)

    def is_reached(self) -> bool:
        # `Event.done` would be False forever if the device has failed.
        return self._query(self._ended.ptr) not in (NOT_READY, CAPTURE_UNSUPPORTED)

    def wait(self) -> None:
        # Not by cudaEventSynchronize: no signal handler would run before the device is done.
        status = self._query(self._ended.ptr)
        if status:
            self._poll(status)

    def _poll(self, status: int) -> None:
        began = time.monotonic()
        while status == NOT_READY or (status == CAPTURE_UNSUPPORTED and time.monotonic() < began + CAPTURE_SECONDS):
            pause(began)
            status = self._query(self._ended.ptr)
        if status:
            self._ended.synchronize()  # raises the error

    def seconds(self) -> float:
        return float(self._elapsed(self._begun, self._ended)) / 1e3
