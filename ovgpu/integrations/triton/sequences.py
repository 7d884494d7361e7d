"""Sequences of an engine, by the correlation ids of Triton's sequence batcher.

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
    """Sequence that Triton has started. It gets a handle of the engine at its first step."""

    def __init__(self) -> None:
        self.handle: EngineSequence | None = None
        self.requests = 0  # requests that are not answered
        self.used = 0.0  # time of the last answer
        self.ended = False  # True after its last request, or after another sequence with its id has started
        self.turn = asyncio.Lock()  # held by the request of a decoupled model that is being answered


class TritonSequences:
    """Table of open sequences. It closes sequences that Triton must have ended, because they are idle."""

    def __init__(self, engine: Engine, idle_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._engine, self._idle, self._clock = engine, idle_seconds, clock
        self._by_id: dict[Id, OpenSequence] = {}
        self._open = set[OpenSequence]()  # sequences that have a handle

    def begin_request(self, id: Id, start: bool, end: bool) -> OpenSequence:
        """Return the sequence of a request. Raise ServeError if it is not open."""
        if start and id in self._by_id:
            self._end(self._by_id.pop(id))
        sequence = OpenSequence() if start else self._by_id.get(id)
        if sequence is None:
            raise ServeError(Status.NOT_FOUND, f"sequence {id!r} is not open: its first request must start it")
        self._by_id[id] = sequence
        sequence.requests += 1
        if end:
            self._by_id.pop(id)
            sequence.ended = True
        return sequence

    def end_request(self, sequence: OpenSequence) -> None:
        """Note that a request is answered. Close the sequence if it was the last request."""
        sequence.requests -= 1
        sequence.used = self._clock()
        if sequence.ended:
            self._end(sequence)

    def handle(self, sequence: OpenSequence) -> EngineSequence:
        """Return the handle of a sequence, which is opened if it has none.

        If the engine has too many sequences, the one that has been idle for longest is closed. Raise BatchFullError if
        there is one that closes soon by itself, because Triton has ended it.
        """
        if sequence.handle is None:
            self.close_idle()
            try:
                sequence.handle = self._engine.open()
            except BatchFullError:
                if any(other.ended for other in self._open):
                    raise
                self._close_oldest()
                sequence.handle = self._engine.open()
            self._open.add(sequence)
        return sequence.handle

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
        """Close the sequence that has been idle for longest. Since Triton starts another one, it has ended some."""
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
            if sequence.handle is not None:
                sequence.handle.close()

    def __len__(self) -> int:
        """Return the number of sequences that have a handle."""
        return len(self._open)
