"""Profiling of a request: start and end time of each step, on the host and on the device."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any

from ovgpu.lowering.program import Step
from ovgpu.runtime.backend import Call, Clock


class HostClock:
    """`ovgpu.runtime.backend.Clock` of a backend whose calls return only when their work is done."""

    def mark(self) -> float:
        return time.perf_counter()

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def enter(self, name: str) -> None:
        pass

    def leave(self) -> None:
        pass


@dataclass(frozen=True)
class ProfilingInfo:
    """Time that one step of an inference took: ``real_time`` on the device, ``cpu_time`` on the host."""

    class Status(Enum):
        """Execution status of a layer."""

        NOT_RUN = 0
        OPTIMIZED_OUT = 1
        EXECUTED = 2

    node_name: str
    node_type: str
    exec_type: str
    status: Status
    real_time: timedelta
    cpu_time: timedelta


@dataclass(frozen=True, slots=True)
class Span:
    """Time span of a step, (start, end) on the host and on the device, in seconds of `time.perf_counter`."""

    name: str
    op: str
    kind: str
    host: tuple[float, float]
    device: tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Record:
    step: Step
    host: tuple[float, float]
    marks: tuple[Any, Any]


class Profiler:
    """Observer of an executor, which runs the steps one by one and records their times."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self._records: list[_Record] = []
        self._origin: tuple[float, Any] = (0.0, None)

    def begin(self) -> None:
        """Discard the records of the last inference, as another begins."""
        self._records = []
        self._origin = time.perf_counter(), self.clock.mark()

    def __call__(self, step: Step, calls: Sequence[Call]) -> None:
        clock = self.clock
        clock.enter(_name(step))
        try:
            first, start = clock.mark(), time.perf_counter()
            for call in calls:
                call()
            self._records.append(_Record(step, (start, time.perf_counter()), (first, clock.mark())))
        finally:
            clock.leave()

    def infos(self) -> list[ProfilingInfo]:
        """Return the durations of the steps of the last inference, which must have finished, in order of execution."""
        return [
            ProfilingInfo(
                _name(r.step),
                r.step.op.name,
                r.step.kind,
                ProfilingInfo.Status.EXECUTED,
                timedelta(seconds=self.clock.seconds(*r.marks)),
                timedelta(seconds=r.host[1] - r.host[0]),
            )
            for r in self._records
        ]

    def spans(self) -> list[Span]:
        """Return the time spans of the steps of the last inference, which must have finished."""
        origin, zero = self._origin
        since: Callable[[Any], float] = lambda mark: origin + self.clock.seconds(zero, mark)
        return [
            Span(_name(r.step), r.step.op.name, r.step.kind, r.host, (since(r.marks[0]), since(r.marks[1])))
            for r in self._records
        ]


def _name(step: Step) -> str:
    return step.name or step.op.name  # copies that lowering inserts have no layer
