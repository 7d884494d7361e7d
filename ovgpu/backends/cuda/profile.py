"""Profiling: CUDA events, which time the work of a stream, and NVTX ranges, which NVIDIA's tools show."""

from __future__ import annotations

from typing import Any

from ovgpu.backends.cuda import rt


class EventClock:
    """`ovgpu.runtime.backend.Clock` of a stream."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def mark(self) -> Any:
        return self.stream.record(rt.cupy().cuda.Event())

    def seconds(self, start: Any, end: Any) -> float:
        return float(rt.cupy().cuda.get_elapsed_time(start, end)) / 1e3

    def enter(self, name: str) -> None:
        rt.cupy().cuda.nvtx.RangePush(name)

    def leave(self) -> None:
        rt.cupy().cuda.nvtx.RangePop()
