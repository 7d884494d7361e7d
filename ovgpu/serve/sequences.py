"""Class OpenSequences: the open sequences of clients, by model and id."""

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
    """Sequence of a client. It stays on the version of the model on which it began."""

    def __init__(self, version: Version, id: SequenceId) -> None:
        self.version, self.id = version, id
        self.handle: EngineSequence | None = None  # None before the beginning and after the end
        self.turn = asyncio.Lock()  # serves waiting steps in the order in which they came
        self.waiting = 0  # steps that wait or run
        self.used = time.monotonic()

    def begin(self, version: Version) -> None:
        """Begin anew, on a version. Raise BatchFullError if too many sequences are open."""
        self.end()
        self.handle, self.version = version.engine.open(), version
        version.add_sequence()

    def end(self) -> None:
        """Close the handle, if there is one."""
        if self.handle is not None:
            self.handle.close()
            self.handle = None
            self.version.remove_sequence()


class OpenSequences:
    """Open sequences of all models. All methods are called on the thread of the event loop.

    Sequences without steps for ``idle`` seconds end.
    """

    def __init__(self, idle: float) -> None:
        self._idle = idle
        self._open: dict[Key, ClientSequence] = {}
        self._ids = count(1)

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> list[tuple[str, ClientSequence]]:
        """Return (model, sequence) of each sequence."""
        return [(model, sequence) for (model, _), sequence in self._open.items()]

    def version_of(self, model: str, step: SequenceStep) -> Version | None:
        """Return the version on which a sequence continues, or None if it is not open or starts anew."""
        sequence = self._open.get((model, step.id))
        return None if sequence is None or step.start else sequence.version

    def identified(self, model: str, step: SequenceStep) -> SequenceStep:
        """Return the step with an id. The server chooses one if a start with control inputs has none."""
        if step.id or not step.strict:
            return step
        if not step.start:
            raise ServeError(Status.INVALID_ARGUMENT, "the inference has no sequence_id")
        return SequenceStep(next(id for id in self._ids if (model, id) not in self._open), True, step.end, True)

    async def infer(self, version: Version, model: str, step: SequenceStep, inputs: Inputs) -> Any:
        """Run a step of a sequence after its earlier steps, and return the outputs.

        A step that fails leaves the sequence as it was, but a first step that fails ends it.

        Raises: ServeError for a step of a sequence that is not open, or for a ``strict`` start of an open one.
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
            if sequence.handle is None and not sequence.waiting:
                self._forget(model, sequence)

    async def _run(
        self, version: Version, model: str, sequence: ClientSequence, step: SequenceStep, inputs: Inputs
    ) -> Any:
        if step.start:
            sequence.begin(version)
        elif sequence.handle is None:  # while this step waited, another one ended the sequence or failed to start it
            raise self._missing(model, step)
        assert sequence.handle is not None
        try:
            outputs = await outputs_of(sequence.handle.submit(inputs))
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
        """Open a sequence and return it. The caller then sets the state by its handle."""
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
