"""Measurement of the time that each step of a plan takes on its device."""

from __future__ import annotations

import time
from itertools import pairwise
from math import ceil
from statistics import median

from ovgpu.runtime.backend import Uncaptured
from ovgpu.runtime.binding import Binding
from ovgpu.runtime.executor import Executor

ROUNDS = 10
LAUNCH_SECONDS = 30e-6  # the host's longest time to launch a step and to record an event
MAX_LAUNCHES = 64  # of a segment's graphs, before each round


def step_seconds(executor: Executor, rounds: int = ROUNDS) -> dict[tuple[int, int], float]:
    """Return the median seconds of the steps of an executor's last run, by segment and position in it.

    The steps run again, one by one in their order, with marks between them, and write the same results again. Launches
    of the whole segment's graphs precede each round, so that the device is busy until the host has launched all steps:
    the times are the device's, not those of launching. Eager steps, which end a segment, are left out.
    """
    seconds: dict[tuple[int, int], float] = {}
    for segment_index, cached in enumerate(executor.bindings):
        if not cached:
            continue
        binding = next(reversed(cached.values()))
        launches = _launches(executor, binding)
        times = [_round(executor, binding, launches) for _ in range(rounds)]
        steps = executor.program.segments[segment_index].steps
        seconds |= {(segment_index, i): median(each) for i, each in enumerate(zip(*times)) if steps[i].kind != "eager"}
    return seconds


def _launches(executor: Executor, binding: Binding) -> int:
    """Return how many launches of a binding's graphs keep the device busy until the host has launched all steps; 0
    without graphs."""
    backend = executor.backend
    try:
        if not backend.captures_graphs or not backend.launch(binding):
            return 0
    except Uncaptured:
        return 0
    backend.synchronize()
    start = time.perf_counter()
    backend.launch(binding)
    backend.synchronize()
    return min(ceil(len(binding.calls) * LAUNCH_SECONDS / (time.perf_counter() - start)), MAX_LAUNCHES)


def _round(executor: Executor, binding: Binding, launches: int) -> list[float]:
    """Run the steps once, behind ``launches`` of their graphs. Return the seconds that each step takes."""
    clock = executor.backend.clock()
    for _ in range(launches):
        executor.backend.launch(binding)
    marks = [clock.mark()]
    for calls in binding.calls:
        for call in calls:
            call()
        marks.append(clock.mark())
    executor.backend.synchronize()
    return [clock.seconds(*each) for each in pairwise(marks)]
