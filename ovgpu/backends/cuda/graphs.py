"""Captured graphs: the calls of a recording as one launch for each run of them that only launches work."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from itertools import groupby
from typing import Any

from ovgpu.runtime.backend import Call, Eager, Recording


class Graphs:
    """The graphs of one request, captured on its stream."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    def replay(self, recording: Recording) -> bool:
        """Launches the recording's graphs, captured at its second run: the first one loads the modules."""
        if recording.graph is None:
            recording.runs += 1
            if recording.runs < 2 or not recording.flat:
                return False
            recording.graph = self._captured(recording.flat)
        for number, run in recording.graph:
            recording.number = number
            run()
        return True

    def _captured(self, calls: Sequence[Call]) -> list[tuple[int, Call]]:
        """A graph's launch for each run of calls that only launch work, and the calls between them; with the
        number of the (first) call."""
        found: list[tuple[int, Call]] = []
        number = 0
        for eager, group in groupby(calls, lambda call: isinstance(call, Eager)):
            run = list(group)
            if eager:
                found += enumerate(run, number)
            else:
                self.stream.begin_capture()
                try:
                    for call in run:
                        call()
                finally:
                    graph = self.stream.end_capture()
                found.append((number, partial(graph.launch, self.stream)))
            number += len(run)
        return found
