"""The end of an inference on a stream, seen by CUDA events."""

from __future__ import annotations

from typing import Any

from ovgpu.backends.cuda import rt
from ovgpu.backends.cuda.errors import STICKY


class EventCompletion:
    """`ovgpu.runtime.backend.Completion` of a stream. Make it while the stream's device is current."""

    __slots__ = ("_begun", "_elapsed", "_ended", "_query", "_stream")

    def __init__(self, stream: Any, sleeping: bool) -> None:
        cuda = rt.cupy().cuda
        self._stream, self._query, self._elapsed = stream, cuda.runtime.eventQuery, cuda.get_elapsed_time
        self._begun, self._ended = cuda.Event(sleeping), cuda.Event(sleeping)

    def begin(self) -> None:
        self._begun.record(self._stream)

    def end(self) -> None:
        self._ended.record(self._stream)

    def is_reached(self) -> bool:
        # `Event.done` is False for ever if the device has failed. Other errors say nothing of the event, such as 900,
        # which a query gives while another library captures a graph.
        status = self._query(self._ended.ptr)
        return status == 0 or status in STICKY

    def wait(self) -> None:
        self._ended.synchronize()

    def seconds(self) -> float:
        return float(self._elapsed(self._begun, self._ended)) / 1e3
