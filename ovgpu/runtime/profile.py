"""Watching a request run: times per step, and what the debug levels print."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import Enum
from typing import Any

from ovgpu.runtime.backend import Call
from ovgpu.runtime.program import Step


@dataclass(frozen=True)
class ProfilingInfo:
    """One step's share of an inference."""

    class Status(Enum):
        """Whether a layer was run."""

        NOT_RUN = 0
        OPTIMIZED_OUT = 1
        EXECUTED = 2

    node_name: str
    node_type: str
    exec_type: str
    status: Status
    real_time: timedelta
    cpu_time: timedelta


class Profiler:
    """Runs steps and remembers how long each took."""

    def __init__(self) -> None:
        self._times: dict[int, tuple[Step, float]] = {}

    def __call__(self, step: Step, calls: Sequence[Call]) -> None:
        start = time.perf_counter()
        for call in calls:
            call()
        self._times[id(step)] = (step, time.perf_counter() - start)

    def infos(self) -> list[ProfilingInfo]:
        found: list[Any] = []
        for step, seconds in self._times.values():
            spent = timedelta(seconds=seconds)
            name = step.name or step.op.name  # copies that the planner inserts have no layer
            found.append(ProfilingInfo(name, step.op.name, step.kind, ProfilingInfo.Status.EXECUTED, spent, spent))
        return found
