"""Open sequences of clients, by model and id."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from itertools import count
from typing import Any

from ovgpu.serve.engines import EngineSequence, Inputs
from ovgpu.serve.errors import ServeError, Status
from ovgpu.serve.inference import outputs_of
from ovgpu.serve.models import Version
from ovgpu.serve.protocol import SequenceId, SequenceStep

log = logging.getLogger(__name__)

Key = tuple[str, SequenceId]


class ClientSequence:
    """Sequence of a client. It ends on the version of the model on which it began."""

    def __init__(self, version: Version, id: SequenceId) -> None:
        self.version, self.id = version, id
        self.slot: EngineSequence | None = None  # None until it begins and after its end
        self.turn = asyncio.Lock()  # whose waiters take turns in their order
        self.waiting = 0  # steps that wait or run
        self.used = time.monotonic()

    def begin(self, version: Version) -> None:
        """Begin anew, on a version. Raise BatchFullError if too many sequences are open."""
        self.end()
        self.slot, self.version = version.engine.open(), version
        version.add_sequence()

    def end(self) -> None:
        """Free the slot."""
        if self.slot is not None:
            self.slot.close()
            self.slot = None
            self.version.remove_sequence()


class OpenSequences:
    """Sequences that are open, of all models. It belongs to the thread of the event loop.

    Sequences without steps for ``idle`` seconds end.
    """

    def __init__(self, idle: float) -> None:
        self._idle = idle
        self._open: dict[Key, ClientSequence] = {}
        self._numbers = count(1)

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> list[tuple[str, ClientSequence]]:
        """Return (model, sequence) of each sequence."""
        return [(model, sequence) for (model, _), sequence in self._open.items()]

    def version_of(self, model: str, step: SequenceStep) -> Version | None:
        """Return the version on which a sequence goes on, None if it is not open or starts."""
        found = self._open.get((model, step.id))
        return None if found is None or step.start else found.version

    def numbered(self, model: str, step: SequenceStep) -> SequenceStep:
        """Return the step with an id: a start with control inputs may leave it to the server."""
        if step.id or not step.strict:
            return step
        if not step.start:
            raise ServeError(Status.INVALID_ARGUMENT, "the inference has no sequence_id")
        return SequenceStep(next(n for n in self._numbers if (model, n) not in self._open), True, step.end, True)

    async def infer(self, version: Version, model: str, step: SequenceStep, inputs: Inputs) -> Any:
        """Run a step of a sequence after its earlier ones, and return the outputs.

        A step that fails leaves the sequence as it was; one that should have started it does not.

        Raises: ServeError for a sequence that is not open, or, with ``strict``, that is open already.
        """
        key = (model, step.id)
        sequence = self._open.get(key)
        if step.start and step.strict and sequence is not None:
            raise ServeError(Status.ALREADY_EXISTS, f"sequence {step.id!r} of model '{model}' is open already")
        if sequence is None:
            if not step.start:
                raise self._missing(model, step)
            sequence = self._open[key] = ClientSequence(version, step.id)
        sequence.waiting += 1
        try:
            async with sequence.turn:
                return await self._run(version, model, sequence, step, inputs)
        finally:
            sequence.waiting -= 1
            sequence.used = time.monotonic()
            if sequence.slot is None and not sequence.waiting:
                self._forget(model, sequence)

    async def _run(
        self, version: Version, model: str, sequence: ClientSequence, step: SequenceStep, inputs: Inputs
    ) -> Any:
        if step.start:
            sequence.begin(version)
        elif sequence.slot is None:  # an earlier step ended it, or did not start it
            raise self._missing(model, step)
        assert sequence.slot is not None
        try:
            outputs = await outputs_of(sequence.slot.submit(inputs))
        except BaseException:
            if step.start:
                sequence.end()
            raise
        if step.end:
            sequence.end()
        return outputs

    @staticmethod
    def _missing(model: str, step: SequenceStep) -> ServeError:
        return ServeError(
            Status.NOT_FOUND, f"sequence {step.id!r} of model '{model}' is not open: its first inference must start it"
        )

    def _forget(self, model: str, sequence: ClientSequence) -> None:
        if self._open.get((model, sequence.id)) is sequence:
            del self._open[model, sequence.id]

    def restore(self, version: Version, model: str, id: SequenceId) -> ClientSequence:
        """Return a new sequence with its slot, of which the state is to be set."""
        sequence = ClientSequence(version, id)
        sequence.begin(version)
        self._open[model, id] = sequence
        return sequence

    def end_idle(self) -> None:
        """End the sequences that have been idle for too long."""
        now = time.monotonic()
        for model, sequence in self.all():
            if not sequence.waiting and now - sequence.used > self._idle:
                log.info("sequence %r of model '%s' ends after %d idle seconds", sequence.id, model, self._idle)
                self.end(model, sequence)

    def end(self, model: str, sequence: ClientSequence) -> None:
        """End a sequence."""
        self._forget(model, sequence)
        with suppress(Exception):
            sequence.end()
