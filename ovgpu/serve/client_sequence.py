"""Class ClientSequence: one sequence of a client on this server, its steps and its last checkpoint."""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

import numpy as np

from ovgpu.serve.engines import EngineSequence, Inputs
from ovgpu.serve.inference import outputs_of
from ovgpu.serve.models import Version
from ovgpu.serve.sequence_table import OpenSequence
from ovgpu.serve.store import Answer, Checkpoint, compact
from ovgpu.serve.tokens import Token, caller


@dataclass(frozen=True)
class Checkpoints:
    """When sequences are saved: every ``steps`` steps, and ``seconds`` after the first step that is not saved.

    0 means never. With ``steps`` of 1, a step is answered when it is saved, and undone if that fails. Otherwise, a
    failure is logged.
    """

    steps: int = 0
    seconds: float = 0.0

    def __bool__(self) -> bool:
        return self.steps > 0 or self.seconds > 0


@dataclass(frozen=True)
class StepResult:
    """Outputs of a step, the version that computed them, and the number of steps in the last checkpoint, None without
    checkpoints."""

    outputs: Any
    version: Version
    saved_steps: int | None


class ClientSequence(OpenSequence):
    """Sequence of a client. It stays on the version of the model on which it began."""

    version: Version
    epoch = 0  # of the store, which began when this server got the sequence
    steps = 0  # steps that have run
    saved_steps = 0  # steps in the last checkpoint
    unsaved_since: float | None = None  # time of the first step after the last checkpoint
    last: Answer | None = None  # the last step, if it had a number
    undo: Checkpoint | None = None  # the last checkpoint, if steps are undone when they cannot be saved
    running: _Running | None = None  # the step that was submitted last
    token: Token | None = None  # of the client that began it, or has it continue on this server

    def check_quota(self) -> None:
        """Raise ServeError if the client of this call has too many open sequences to begin this one."""
        token = caller.get()
        if token is not None:
            token.check_sequences(1 if token is self.token and self.handle is not None else 0)

    def begin(self, version: Version, handle: EngineSequence, epoch: int) -> None:
        """Begin, or begin anew, on a version."""
        self.free()
        self.handle, self.version, self.epoch, self.token = handle, version, epoch, caller.get()
        if self.token is not None:
            self.token.sequences += 1
        self.steps, self.saved_steps, self.unsaved_since, self.last, self.undo = 0, 0, None, None, None
        version.add_sequence()

    def free(self) -> None:
        if self.handle is not None:
            super().free()
            if self.token is not None:
                self.token.sequences -= 1
            self.version.remove_sequence()

    async def run(self, inputs: Inputs, number_digest: bytes | None) -> Any:
        """Run a step, and return its outputs. It counts when it has run, even if this is cancelled.

        ``number_digest`` is a digest of the inputs if the step has a number.
        """
        assert self.handle is not None
        self.running = running = _Running(self, self.handle.submit(inputs), number_digest)
        outputs = await outputs_of(running.future, running.count)
        self.running = None
        return outputs

    async def settled(self) -> None:
        """Wait until the step that was submitted last has run, and counts."""
        running = self.running
        if running is not None:
            with suppress(Exception):  # it may have failed, or was cancelled
                await outputs_of(running.future)
            running.count()
            self.running = None

    async def checkpoint(self) -> Checkpoint:
        """Return the sequence as it is."""
        await self.settled()
        assert self.handle is not None
        state = await asyncio.to_thread(self.handle.read)
        return Checkpoint(self.version.number, self.version.digest, self.steps, state, self.last)

    def saved(self, checkpoint: Checkpoint, undo: bool) -> None:
        """Note that a checkpoint is saved."""
        self.saved_steps, self.unsaved_since, self.undo = checkpoint.steps, None, checkpoint if undo else None


class _Running:
    """Step of a sequence that was submitted. ``digest`` is one of its inputs if it has a number."""

    def __init__(self, sequence: ClientSequence, future: Future[Any], digest: bytes | None) -> None:
        self.future, self._sequence, self._handle, self._digest = future, sequence, sequence.handle, digest
        self._is_counted = False

    def count(self) -> None:
        """Count the step, which has ended, once: whoever learns first that it has ended calls this."""
        sequence, future = self._sequence, self.future
        if self._is_counted or sequence.handle is not self._handle or future.cancelled() or future.exception():
            return
        self._is_counted = True
        sequence.steps += 1
        sequence.last = None
        if self._digest is not None:
            sequence.last = Answer(sequence.steps, self._digest, compact(future.result().to_tuple()))
        sequence.unsaved_since = sequence.unsaved_since or time.monotonic()


def digest_of(inputs: Inputs) -> bytes:
    """Return a digest of the inputs of a step."""
    total = blake2b(digest_size=16)
    for index, value in sorted(inputs.items()):
        array = np.asarray(value)
        total.update(f"{index} {array.dtype} {array.shape};".encode())
        total.update(repr(array.tolist()).encode() if array.dtype.kind in "OSU" else np.ascontiguousarray(array).data)
    return total.digest()
