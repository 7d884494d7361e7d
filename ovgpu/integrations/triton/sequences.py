"""Sequences of an engine, by the correlation ids of Triton's sequence batcher.

Triton sends all requests of a sequence to the same instance, and never has more than ``max_candidate_sequences`` open
there. It does not tell a model that a sequence has ended because it was idle, or because its client cancelled a request
that waited.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from ovgpu.batching import BatchFullError
from ovgpu.serve.engines import Engine, EngineSequence
from ovgpu.serve.errors import ServeError, Status
from ovgpu.serve.sequence_table import OpenSequence, SequenceTable

Id = int | str


class TritonSequence(OpenSequence):
    """Sequence that Triton has started. It gets a handle of the engine at its first step."""

    ended = False  # True after its last request, or after another sequence with its id has started


class TritonSequences(SequenceTable[Id, TritonSequence]):
    """Table of open sequences. It closes sequences that Triton must have ended, because they are idle."""

    def __init__(self, engine: Engine, idle_seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(idle_seconds, clock)
        self._engine = engine
        self._open = set[TritonSequence]()  # sequences that have a handle, also ended ones

    def __len__(self) -> int:
        return len(self._open)

    def begin_request(self, id: Id, start: bool, end: bool) -> TritonSequence:
        """Return the sequence of a request. Raise ServeError if it is not open."""
        sequence = self._by_key.get(id)
        if start:
            self._end([(id, sequence)] if sequence is not None else [])
            sequence = TritonSequence()
        if sequence is None:
            raise ServeError(Status.NOT_FOUND, f"sequence {id!r} is not open: its first request must start it")
        self._by_key[id] = sequence
        self.begin_use(sequence)
        if end:
            self._end([(id, sequence)])
        return sequence

    def end_request(self, sequence: TritonSequence) -> None:
        """Note that a request is answered. Close the sequence if it was the last request."""
        self.end_use(sequence)
        self._close_ended(sequence)

    def handle(self, sequence: TritonSequence) -> EngineSequence:
        """Return the handle of a sequence, which is opened if it has none.

        If the engine has too many sequences, the one that has been idle for longest is closed, since Triton must have
        ended some. Raise BatchFullError if there is one that closes soon by itself, because Triton has ended it.
        """
        if sequence.handle is None:
            self.close_idle()
            try:
                sequence.handle = self._engine.open()
            except BatchFullError:
                if any(other.ended for other in self._open):
                    raise
                unused = [item for item in self.all() if not item[1].users and item[1].handle is not None]
                self._end([min(unused, key=lambda item: item[1].used)] if unused else [])
                sequence.handle = self._engine.open()
            self._open.add(sequence)
        return sequence.handle

    def close_idle(self) -> None:
        """Close sequences that have been idle for longer than Triton allows."""
        self._end(self.idle())

    def _end(self, sequences: Iterable[tuple[Id, TritonSequence]]) -> None:
        """End sequences, and close those without requests."""
        for id, sequence in sequences:
            sequence.ended = True
            self.forget(id, sequence)
            self._close_ended(sequence)

    def _close_ended(self, sequence: TritonSequence) -> None:
        if sequence.ended and not sequence.users:
            self._open.discard(sequence)
            sequence.free()
