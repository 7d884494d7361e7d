"""Class OpenSequences: the open sequences of clients, by model and id."""

from __future__ import annotations

import asyncio
import logging
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from itertools import count
from typing import Any

import numpy as np

from ovgpu.serve.engines import EngineSequence, Inputs
from ovgpu.serve.errors import ServeError, Status
from ovgpu.serve.inference import outputs_of
from ovgpu.serve.models import Version
from ovgpu.serve.protocol import SequenceId, SequenceStep
from ovgpu.serve.tokens import Token, caller

log = logging.getLogger(__name__)

Key = tuple[str, SequenceId]


@dataclass(frozen=True)
class LastStep:
    """Step with a number that has run: a digest of its inputs, its outputs, and the time of its end."""

    number: int
    inputs: bytes
    outputs: Any
    version: Version
    time: float = field(default_factory=time.monotonic)


class ClientSequence:
    """Sequence of a client. It stays on the version of the model on which it began."""

    def __init__(self, version: Version, id: SequenceId) -> None:
        self.version, self.id = version, id
        self.handle: EngineSequence | None = None  # None before the beginning and after the end
        self.turn = asyncio.Lock()  # serves waiting steps in the order in which they came
        self.waiting = 0  # steps that wait or run
        self.used = time.monotonic()
        self.steps = 0  # steps that have run
        self.last: LastStep | None = None  # the last step, if it had a number
        self.running: Future[Any] | None = None  # the step that was submitted last
        self.token: Token | None = None  # of the client that began it

    def begin(self, version: Version) -> None:
        """Begin anew, on a version. Raise BatchFullError or ServeError if too many sequences are open."""
        token = caller.get()
        if token is not None:
            token.check_sequences(1 if token is self.token and self.handle is not None else 0)
        self.end()
        self.handle, self.version, self.token = version.engine.open(), version, token
        if token is not None:
            token.sequences += 1
        self.steps, self.last = 0, None
        version.add_sequence()

    async def run(self, inputs: Inputs) -> Any:
        """Run a step without a number, and return its outputs."""
        assert self.handle is not None
        outputs = await outputs_of(self.handle.submit(inputs))
        self.steps, self.last = self.steps + 1, None
        return outputs

    async def run_numbered(self, inputs: Inputs, digest: bytes) -> Any:
        """Run a step with a number, and return its outputs. It counts when it has run, even if this is cancelled."""
        assert self.handle is not None
        loop, handle = asyncio.get_running_loop(), self.handle
        self.running = future = handle.submit(inputs)

        def count(ended: Future[Any]) -> None:
            if self.handle is handle and not ended.cancelled() and ended.exception() is None:
                self.steps += 1
                self.last = LastStep(self.steps, digest, ended.result().to_tuple(), self.version)

        def count_on_loop(ended: Future[Any]) -> None:
            with suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(count, ended)

        future.add_done_callback(count_on_loop)  # before the callback of `outputs_of`
        return await outputs_of(future)

    async def settled(self) -> None:
        """Wait until the last step with a number has run, and counts."""
        if self.running is not None:
            with suppress(Exception):  # it may have failed, or was cancelled
                await outputs_of(self.running)
            self.running = None

    def end(self) -> None:
        """Close the handle, if there is one."""
        if self.handle is not None:
            self.handle.close()
            self.handle = None
            if self.token is not None:
                self.token.sequences -= 1
            self.version.remove_sequence()


class OpenSequences:
    """Open sequences of all models. All methods are called on the thread of the event loop.

    Sequences without steps for ``idle`` seconds end, unless their version has an idle time of its own.

    A step with a number must be the next one, or the last one again, with the same inputs. Then it does not run, and
    has the same outputs, also for ``idle`` seconds after it has ended the sequence.
    """

    def __init__(self, idle: float) -> None:
        self._idle = idle
        self._open: dict[Key, ClientSequence] = {}
        self._ended: dict[Key, LastStep] = {}  # of sequences that have ended, if it had a number
        self._ids = count(1)

    def __len__(self) -> int:
        return len(self._open)

    def all(self) -> list[tuple[str, ClientSequence]]:
        """Return (model, sequence) of each sequence."""
        return [(model, sequence) for (model, _), sequence in self._open.items()]

    def version_of(self, model: str, step: SequenceStep) -> Version | None:
        """Return the version on which a sequence continues, or None if it is not open or starts anew."""
        sequence = self._open.get((model, step.id))
        if sequence is None:
            ended = self._ended.get((model, step.id))
            return None if ended is None or ended.number != step.number else ended.version
        return None if step.start else sequence.version

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
        if step.start and step.strict and sequence is not None and step.number is None:
            raise self._exists(model, step)
        if sequence is None:
            if not step.start and key not in self._ended:
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
        digest = b""
        if step.number is not None:
            await sequence.settled()
            digest = await asyncio.to_thread(_digest, inputs)  # of large inputs it takes long
            again = self._repeated(model, sequence, step, digest)
            if again is not None:
                return again.outputs
        if step.start:
            if step.strict and sequence.handle is not None:
                raise self._exists(model, step)
            self._ended.pop((model, step.id), None)
            sequence.begin(version)
        elif sequence.handle is None:  # while this step waited, another one ended the sequence or failed to start it
            raise self._missing(model, step)
        if step.number not in (None, sequence.steps + 1):
            raise ServeError(
                Status.ALREADY_EXISTS, f"step {step.number} of sequence {step.id!r} cannot follow step {sequence.steps}"
            )
        try:
            running = sequence.run(inputs) if step.number is None else sequence.run_numbered(inputs, digest)
            outputs = await running
        except BaseException:
            if step.start:
                sequence.end()
            raise
        if step.end:
            if sequence.last is not None:
                self._ended[model, sequence.id] = sequence.last
            sequence.end()
        return outputs

    def _repeated(self, model: str, sequence: ClientSequence, step: SequenceStep, digest: bytes) -> LastStep | None:
        """Return the step that ``step`` repeats, or None. Raise ServeError if it has other inputs than that one."""
        last = sequence.last if sequence.handle is not None else self._ended.get((model, sequence.id))
        if step.number is None or last is None or last.number != step.number:
            return None
        if last.inputs == digest:
            return last
        if step.start:  # the client begins anew
            return None
        raise ServeError(Status.ALREADY_EXISTS, f"step {step.number} of sequence {step.id!r} has run with other inputs")

    @staticmethod
    def _exists(model: str, step: SequenceStep) -> ServeError:
        return ServeError(Status.ALREADY_EXISTS, f"sequence {step.id!r} of model '{model}' is open already")

    @staticmethod
    def _missing(model: str, step: SequenceStep) -> ServeError:
        return ServeError(
            Status.NOT_FOUND, f"sequence {step.id!r} of model '{model}' is not open: its first inference must start it"
        )

    def _forget(self, model: str, sequence: ClientSequence) -> None:
        if self._open.get((model, sequence.id)) is sequence:
            del self._open[model, sequence.id]

    def restore(self, version: Version, model: str, id: SequenceId, steps: int) -> ClientSequence:
        """Open a sequence that has made some steps, and return it. The caller then sets the state by its handle."""
        sequence = ClientSequence(version, id)
        sequence.begin(version)
        sequence.steps = steps
        self._open[model, id] = sequence
        return sequence

    def end_idle(self) -> None:
        """End the sequences that have been idle for too long."""
        now = time.monotonic()
        self._ended = {
            key: last for key, last in self._ended.items() if now - last.time <= self._idle_seconds(last.version)
        }
        for model, sequence in self.all():
            idle = self._idle_seconds(sequence.version)
            if not sequence.waiting and now - sequence.used > idle:
                log.info("sequence %r of model '%s' ends after %g idle seconds", sequence.id, model, idle)
                self.end(model, sequence)

    def _idle_seconds(self, version: Version) -> float:
        return self._idle if version.idle_seconds is None else version.idle_seconds

    def end(self, model: str, sequence: ClientSequence) -> None:
        """End a sequence."""
        self._forget(model, sequence)
        with suppress(Exception):
            sequence.end()


def _digest(inputs: Inputs) -> bytes:
    """Return a digest of the inputs of a step."""
    total = blake2b(digest_size=16)
    for index, array in sorted(inputs.items()):
        total.update(f"{index} {array.dtype} {array.shape};".encode())
        total.update(repr(array.tolist()).encode() if array.dtype == object else np.ascontiguousarray(array).data)
    return total.digest()
