"""Estimates of consecutive launches, of which one begins before another has ended."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from bench.kernels.launches import Launch, LibraryCall

ARRIVING = 0.2  # of the memory's idle time, in which bytes that are requested early arrive; see `calibration.py`


@dataclass(frozen=True)
class Estimate:
    """Seconds of a launch by what they are spent on. ``start`` is what one warp takes, ``unit`` the busiest unit.

    An early launch requests bytes that take ``ahead`` seconds before it waits for the launches before it; a warp takes
    ``head`` of its ``start`` from there to its main loop. Bytes of ``hidden`` seconds arrive by then. ``share``: how
    much of a multiprocessor its blocks take, or those of them that run at the same time. ``exposed``: the share of
    shorter times of work that adds to the longest one, as warps wait at barriers and few other blocks work meanwhile.
    """

    launch: Launch | LibraryCall
    empty: float
    start: float = 0.0
    bytes: float = 0.0
    instructions: float = 0.0
    tensor: float = 0.0
    latency: float = 0.0
    unit: str = ""
    trips: float = 0.0
    products: float = 0.0  # multiply-adds of the step that the launch does
    ahead: float = 0.0
    head: float = 0.0
    share: float = 1.0
    hidden: float = 0.0
    exposed: float = 0.0

    @property
    def seconds(self) -> float:
        work = (self.bytes - self.hidden, self.instructions, self.tensor)
        longest = max(*work, self.latency)
        return self.empty + self.start + longest + self.exposed * sum(x for x in work if x < longest)

    @property
    def bound(self) -> str:
        """The part that takes most of the time; "launch" is the time of an empty kernel."""
        parts = {
            "launch": self.empty,
            "latency": self.start + self.latency,
            "bytes": self.bytes - self.hidden,
            self.unit or "instructions": self.instructions,
            "tensor": self.tensor,
        }
        return max(parts, key=lambda name: parts[name])


def overlap(estimates: Sequence[Estimate], arriving: float = ARRIVING) -> Iterator[Estimate]:
    """Yield the estimates of consecutive launches, with bytes that arrive early: before a launch's main loop, while
    memory is idle, in the share ``arriving`` of that time, and at most as many as it requests before its wait.

    A launch begins when all blocks of the one before it run, if that one is early too and their blocks find room on the
    multiprocessors at the same time. It may thus begin several launches ahead.
    """
    running: list[list[float]] = []  # of the launches before: their shares, and the time for which memory is idle
    for estimate in estimates:
        early = isinstance(estimate.launch, Launch) and estimate.launch.early
        while running and (not early or sum(share for share, _ in running) + estimate.share > 1):
            running.pop(0)
        before = sum(idle for _, idle in running)
        own = estimate.empty + estimate.head if early else 0.0
        hidden = min(estimate.ahead, estimate.bytes, arriving * (before + own))
        found = replace(estimate, hidden=hidden)
        used = hidden
        for row in running:
            taken = min(used / arriving, row[1]) if arriving else 0.0
            row[1] -= taken
            used -= taken * arriving
        idle = found.seconds - (found.bytes - hidden) - used
        running = [*running, [estimate.share, max(idle, 0.0)]] if early else []
        yield found
