"""Captured graphs: the calls of a recording as one launch for each run of them that only launches work.

A recording is captured at its second run; the first one has loaded the modules of its kernels. Its calls hold the
arrays that the graph reads and writes, so that these live as long as the graph does. What the graphs of one request
may hold is limited: beyond `BUDGET` nodes those that were not used for the longest time are dropped, and captured
again when they have been used twice more; a recording of more nodes than that runs call by call.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
from itertools import count, groupby
from typing import Any
from weakref import WeakSet

from ovgpu._util import gc_pause
from ovgpu.backends.cuda import rt
from ovgpu.runtime.backend import Call, Eager, Recording, Uncaptured

BUDGET = 1 << 16  # nodes per request: some 64 MB, as a kernel node takes about 1 KB of host and device memory
ATTEMPTS = 2  # to capture a recording
NEVER = -(1 << 62)  # runs of a recording that is not captured again
_capturing = threading.Lock()  # one capture at a time in this process


class Graph:
    """The launches that stand for a recording: (number of the first call, what to run). No runs once dropped."""

    __slots__ = ("__weakref__", "nodes", "runs", "used")

    def __init__(self, runs: list[tuple[int, Call]], nodes: int) -> None:
        self.runs, self.nodes, self.used = runs, nodes, 0

    def __bool__(self) -> bool:
        return bool(self.runs)


class Graphs:
    """The graphs of one request, captured on its stream."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self._living: WeakSet[Graph] = WeakSet()
        self._clock = count(1)

    @property
    def nodes(self) -> int:
        """How many nodes the graphs hold now."""
        return sum(graph.nodes for graph in self._living)

    def replay(self, recording: Recording) -> bool:
        """Launches the recording's graphs; False if it has none yet. Uncaptured if it cannot be captured."""
        graph: Graph | None = recording.graph
        if not graph:
            if recording.runs < 1 or not 0 < len(recording.flat) <= BUDGET:
                return False
            graph = recording.graph = self._captured(recording)
        graph.used = next(self._clock)
        for number, run in graph.runs:
            recording.number = number
            run()
        return True

    def _captured(self, recording: Recording) -> Graph:
        nodes = sum(not isinstance(call, Eager) for call in recording.flat)
        self._evict(nodes)
        graph = Graph(list(self._runs(recording)), nodes)
        self._living.add(graph)
        recording.runs = 0  # should the graph be dropped, one more run call by call comes first
        return graph

    def _runs(self, recording: Recording) -> Iterator[tuple[int, Call]]:
        """A graph's launch for each run of calls that only launch work, and the calls between them."""
        number = 0
        for eager, group in groupby(recording.flat, lambda call: isinstance(call, Eager)):
            run = list(group)
            if eager:
                yield from enumerate(run, number)
            else:
                yield number, self._capture(recording, run, number)
            number += len(run)

    def _capture(self, recording: Recording, calls: Sequence[Call], first: int) -> Call:
        """The launch of a graph of these calls. What another thread does may spoil a capture: it is tried again."""
        for attempt in reversed(range(ATTEMPTS)):
            try:
                graph = self._captured_once(recording, calls, first)
            except Exception as e:
                if not attempt:
                    recording.runs = NEVER
                    raise Uncaptured(e) from e
            else:
                return partial(graph.launch, self.stream)
        raise AssertionError("unreachable")

    def _captured_once(self, recording: Recording, calls: Sequence[Call], first: int) -> Any:
        """The graph of these calls. Other threads may launch and allocate meanwhile, on their streams.

        The garbage collector waits: it might destroy what unloads a module or frees memory, which ends a capture.
        """
        recording.number = first
        cuda = rt.cupy().cuda
        with _capturing, gc_pause.paused(), cuda.using_allocator(_refuse):
            try:
                self.stream.begin_capture(cuda.runtime.streamCaptureModeThreadLocal)
                for call in calls:
                    call()
                    recording.number += 1
                return self.stream.end_capture()
            except BaseException:
                self._abandon()
                raise

    def _abandon(self) -> None:
        """Ends a capture that has failed, if there is one: the stream is as it was before."""
        with suppress(Exception):  # that the capture is invalid is known
            if self.stream.is_capturing():
                self.stream.end_capture()

    def _evict(self, nodes: int) -> None:
        """Drops graphs until there is room for so many nodes."""
        living = sorted(self._living, key=lambda graph: graph.used)
        held = sum(graph.nodes for graph in living)
        if held + nodes > BUDGET:
            self.stream.synchronize()  # none of them is running
        for graph in living:
            if held + nodes <= BUDGET:
                break
            held -= graph.nodes
            graph.runs, graph.nodes = [], 0
            self._living.discard(graph)


def _refuse(nbytes: int) -> Any:
    """Memory taken from the pool while capturing would go back to it, and the graph would still use it."""
    raise RuntimeError(f"{nbytes} bytes are allocated while capturing")
