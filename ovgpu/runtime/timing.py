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
LAUNCH_SECONDS = 30e-6  # that the host takes at most to launch a step and to record an event
MAX_REPLAYS = 64


def step_seconds(executor: Executor, rounds: int = ROUNDS) -> dict[tuple[int, int], float]:
    """Return the median seconds of the steps of an executor's last run, by segment and position in it.

    The steps run again, one by one in their order, with marks between them, and write the same results again. Replays
    of the whole segment precede each round, so that the device is busy until the host has launched all steps: the
    times are the device's, not those of launching. Eager steps, which end a segment, are left out.
    """
    found: dict[tuple[int, int], float] = {}
    for number, cached in enumerate(executor.bindings):
        if not cached:
            continue
        binding = next(reversed(cached.values()))
        replays = _replays(executor, binding)
        times = [_round(executor, binding, replays) for _ in range(rounds)]
        steps = executor.program.segments[number].steps
        found |= {(number, i): median(each) for i, each in enumerate(zip(*times)) if steps[i].kind != "eager"}
    return found


def _replays(executor: Executor, binding: Binding) -> int:
    """Return how many replays keep the device busy while the host launches all steps; 0 if nothing can be replayed."""
    backend = executor.backend
    try:
        if not backend.replays or not backend.replay(binding):
            return 0
    except Uncaptured:
        return 0
    backend.synchronize()
    start = time.perf_counter()
    backend.replay(binding)
    backend.synchronize()
    return min(ceil(len(binding.calls) * LAUNCH_SECONDS / (time.perf_counter() - start)), MAX_REPLAYS)


def _round(executor: Executor, binding: Binding, replays: int) -> list[float]:
    """Run the steps once; return the seconds of each."""
    clock = executor.backend.clock()
    for _ in range(replays):
        executor.backend.replay(binding)
    marks = [clock.mark()]
    for calls in binding.calls:
        for call in calls:
            call()
        marks.append(clock.mark())
    executor.backend.synchronize()
    return [clock.seconds(*each) for each in pairwise(marks)]
