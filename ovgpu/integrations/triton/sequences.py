"""Sequences of an engine by the correlation ids of Triton's sequence batcher.

Triton sends all requests of a sequence to the same instance, and never has more than ``max_candidate_sequences`` open
there. It does not tell a model that a sequence has ended because it was idle, or because its client cancelled a request
that waited.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from ovgpu.batching import BatchFullError
from ovgpu.serve.engines import Engine, EngineSequence
from ovgpu.serve.errors import ServeError, Status

Id = int | str


class OpenSequence:
    """A sequence that Triton has started. It has a slot of the engine from its first step on."""

    def __init__(self) -> None:
        self.slot: EngineSequence | None = None
        self.requests = 0  # that are not answered
        self.used = 0.0  # time of the last answer
        self.ended = False  # by its last request, or by another sequence with its id
        self.turn = asyncio.Lock()  # of requests that are answered step by step


class TritonSequences:
    """Table of sequences. Those that Triton must have ended, because they are idle, are closed."""

    def __init__(self, engine: Engine, idle_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine, self._idle, self._clock = engine, idle_seconds, clock
        self._by_id: dict[Id, OpenSequence] = {}
        self._open = set[OpenSequence]()  # which have a slot

    def begin_request(self, id: Id, start: bool, end: bool) -> OpenSequence:
        """Return the sequence of a request. Raise ServeError if it is not open."""
        if start and id in self._by_id:
            self._end(self._by_id.pop(id))
        found = OpenSequence() if start else self._by_id.get(id)
        if found is None:
            raise ServeError(Status.NOT_FOUND, f"sequence {id!r} is not open: its first request must start it")
        self._by_id[id] = found
        found.requests += 1
        if end:
            self._by_id.pop(id)
            found.ended = True
        return found

    def end_request(self, sequence: OpenSequence) -> None:
        """Note that a request is answered. Close the sequence if that was its last one."""
        sequence.requests -= 1
        sequence.used = self._clock()
        if sequence.ended:
            self._end(sequence)

    def slot(self, sequence: OpenSequence) -> EngineSequence:
        """Return a sequence's slot of the engine. Raise BatchFullError if sequences that end now still have all."""
        if sequence.slot is None:
            self.close_idle()
            try:
                sequence.slot = self._engine.open()
            except BatchFullError:
                if any(other.ended for other in self._open):
                    raise
                self._close_oldest()
                sequence.slot = self._engine.open()
            self._open.add(sequence)
        return sequence.slot

    def close_idle(self) -> None:
        """Close sequences that have been idle for longer than Triton allows."""
        latest = self._clock() - self._idle
        self._close(
            [
                sequence
                for sequence in {*self._open, *self._by_id.values()}
                if not sequence.requests and sequence.used < latest
            ]
        )

    def _close_oldest(self) -> None:
        """Close the sequence that has been idle for longest: Triton starts others, and so has ended some of these."""
        idle = [sequence for sequence in self._open if not sequence.requests]
        self._close([min(idle, key=lambda sequence: sequence.used)] if idle else [])

    def _close(self, closed: list[OpenSequence]) -> None:
        for sequence in closed:
            sequence.ended = True
            self._end(sequence)
        if closed:
            self._by_id = {id: sequence for id, sequence in self._by_id.items() if not sequence.ended}

    def _end(self, sequence: OpenSequence) -> None:
        sequence.ended = True
        if not sequence.requests:
            self._open.discard(sequence)
            if sequence.slot is not None:
                sequence.slot.close()

    def __len__(self) -> int:
        """Return the number of sequences that have slots."""
        return len(self._open)
