"""CUDA graphs: the calls of a recording, captured as one launch per segment of calls that only launch work.

A recording is captured at its second run; the first one has loaded the modules of its kernels. Its calls hold the
arrays that the graph reads and writes, so that these live as long as the graph. The graphs of one request may have
`MAX_NODES` nodes. Beyond that, the least recently used graphs are dropped; they are captured again at the second run
after that. A recording with more nodes runs call by call.
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
from ovgpu.runtime.backend import Call, HostCall, Recording, Uncaptured

NODE_BYTES = 1 << 10  # of host and device memory, about
MAX_NODES = 1 << 16  # per request: some 64 MB
MAX_ATTEMPTS = 2  # to capture a segment
NO_CAPTURE_RUNS = -(1 << 62)  # `Recording.runs` of a recording that is never captured again
_capturing = threading.Lock()  # one capture at a time in this process


class CapturedGraph:
    """Captured graphs of a recording, and the eager calls between them.

    ``runs`` has, in order, a pair for each graph (index of its first call, its launch) and for each eager call (its
    index, the call). It is empty once the graphs are dropped. ``is_whole``: one graph has all calls.
    """

    __slots__ = ("__weakref__", "is_whole", "nodes", "runs", "used")

    def __init__(self, runs: list[tuple[int, Call]], nodes: int, is_whole: bool) -> None:
        self.runs, self.nodes, self.is_whole, self.used = runs, nodes, is_whole, 0

    def __bool__(self) -> bool:
        return bool(self.runs)


class Graphs:
    """Graphs of one request, captured on its stream."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream
        self._alive: WeakSet[CapturedGraph] = WeakSet()
        self._clock = count(1)

    @property
    def nodes(self) -> int:
        """The number of nodes in all graphs."""
        return sum(graph.nodes for graph in self._alive)

    def launch(self, recording: Recording) -> bool:
        """Launch the recording's graphs, and capture them before if need be. Return False if the recording must run
        call by call.

        Raises Uncaptured, before anything has run, if the recording cannot be captured.
        """
        graph: CapturedGraph | None = recording.graph
        if not graph:
            if recording.runs < 1 or not 0 < len(recording.flat) <= MAX_NODES:
                return False
            graph = recording.graph = self._capture_recording(recording)
        graph.used = next(self._clock)
        for index, run in graph.runs:
            recording.number = index
            run()
        return True

    def launch_whole(self, recording: Recording) -> bool:
        """Launch a recording that one graph has captured. Return False, and launch nothing, for any other recording."""
        graph: CapturedGraph | None = recording.graph
        if graph is None or not graph.is_whole:
            return False
        graph.used, recording.number = next(self._clock), 0
        graph.runs[0][1]()
        return True

    def _capture_recording(self, recording: Recording) -> CapturedGraph:
        nodes = sum(not isinstance(call, HostCall) for call in recording.flat)
        self._evict(nodes)
        runs = list(self._segments(recording))
        graph = CapturedGraph(runs, nodes, len(runs) == 1 and nodes == len(recording.flat))
        self._alive.add(graph)
        recording.runs = 0  # if the graph is dropped, another run call by call precedes its next capture
        return graph

    def _segments(self, recording: Recording) -> Iterator[tuple[int, Call]]:
        """Yield the pairs of `CapturedGraph.runs`: a graph for each segment of calls that only launch work, and the
        eager calls between the segments."""
        first = 0
        for eager, group in groupby(recording.flat, lambda call: isinstance(call, HostCall)):
            run = list(group)
            if eager:
                yield from enumerate(run, first)
            else:
                yield first, self._capture(recording, run, first)
            first += len(run)

    def _capture(self, recording: Recording, calls: Sequence[Call], first: int) -> Call:
        """Return the launch of a graph of these calls. Retry, since another thread may invalidate a capture."""
        for attempt in reversed(range(MAX_ATTEMPTS)):
            try:
                graph = self._capture_once(recording, calls, first)
            except Exception as e:
                if not attempt:
                    recording.runs = NO_CAPTURE_RUNS
                    raise Uncaptured(e) from e
            else:
                return partial(graph.launch, self.stream)
        raise AssertionError("unreachable")

    def _capture_once(self, recording: Recording, calls: Sequence[Call], first: int) -> Any:
        """Capture a graph of these calls. Other threads may launch and allocate on their streams meanwhile.

        The garbage collector is paused: objects that it destroys may unload a module or free memory, which ends a
        capture.
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
        """End a failed capture, if there is one, to make the stream usable again."""
        with suppress(Exception):  # the capture is known to be invalid
            if self.stream.is_capturing():
                self.stream.end_capture()

    def _evict(self, nodes: int) -> None:
        """Drop the least recently used graphs until ``nodes`` more fit."""
        alive = sorted(self._alive, key=lambda graph: graph.used)
        held = sum(graph.nodes for graph in alive)
        if held + nodes > MAX_NODES:
            self.stream.synchronize()  # none of them is running
        for graph in alive:
            if held + nodes <= MAX_NODES:
                break
            held -= graph.nodes
            graph.runs, graph.nodes, graph.is_whole = [], 0, False
            self._alive.discard(graph)


def _refuse(nbytes: int) -> Any:
    """Refuse to allocate: memory taken from the pool during a capture would return to it while the graph uses it."""
    raise RuntimeError(f"{nbytes} bytes are allocated while capturing")
