"""Sequences on a replica of a deployment. Replicas hand sequences over to each other by way of the directory."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

from ray.exceptions import RayActorError, RayTaskError

from ovgpu.errors import Error
from ovgpu.integrations.ray.directory import NotJoinedError
from ovgpu.integrations.ray.states import Claim, SavedSequence, SequenceId
from ovgpu.serve.engines import Engine, EngineSequence, Inputs
from ovgpu.serve.inference import outputs_of
from ovgpu.tensor import Tensor
from ovgpu.types import Type

log = logging.getLogger(__name__)

RETRY_SECONDS = 0.2  # before another call after the directory has died


class StepNumberError(Error):
    """Error for a step whose number is not the next one of its sequence."""


class _Open:
    """Sequence on this replica, and the steps that wait for it."""

    def __init__(self) -> None:
        self.handle: EngineSequence | None = None  # None unless this replica has the state
        self.epoch = 0  # began when this replica got the sequence; 0 if the sequence does not belong to this replica
        self.turn = asyncio.Lock()  # serves waiters in the order in which they came
        self.waiting = 0  # users of the sequence that wait for their turn, or have it
        self.used = time.monotonic()
        self.steps = 0
        self.saved_steps = 0  # steps in the last checkpoint that this replica made
        self.outputs: Any = None  # outputs of the last step, if it had a number

    def free(self) -> None:
        """Give up the sequence, and close its handle."""
        self.epoch = 0
        if self.handle is not None:
            self.handle.close()
            self.handle = None

    def saved(self) -> SavedSequence:
        """Return the sequence as it is. May wait for an inference."""
        assert self.handle is not None
        return SavedSequence(
            self.steps,
            {name: (tensor.element_type.get_type_name(), tensor.read()) for name, tensor in self.handle.read().items()},
            self.outputs,
        )

    def restore(self, handle: EngineSequence, saved: SavedSequence) -> None:
        """Continue a saved sequence by a new handle of the engine. May wait for an inference."""
        handle.write(
            {name: Tensor.from_array(array, getattr(Type, dtype)) for name, (dtype, array) in saved.state.items()}
        )
        self.handle, self.steps, self.saved_steps, self.outputs = handle, saved.steps, 0, saved.outputs


class ReplicaSequences:
    """Sequences on a replica. All methods are called on the thread of one event loop.

    If a sequence is on another replica, its next step here takes it from there. Every ``checkpoint_steps`` steps (0:
    never), the directory gets a copy of the sequence. Sequences without steps for ``idle`` seconds end. ``replica`` is
    the name of the replica and ``actor`` its actor; ``open_directory`` returns the actor of the directory.
    """

    def __init__(
        self,
        engine: Engine,
        replica: str,
        actor: Any,
        open_directory: Callable[[], Any],
        checkpoint_steps: int,
        idle: float,
    ) -> None:
        self._engine, self._replica, self._actor, self._open_directory = engine, replica, actor, open_directory
        self._checkpoint_steps, self._idle = checkpoint_steps, idle
        self._sequences: dict[SequenceId, _Open] = {}
        self._directory: Any = None
        self._following: asyncio.Task[None] | None = None
        self._connecting = asyncio.Lock()
        self._tasks = set[asyncio.Task[Any]]()

    def __len__(self) -> int:
        return sum(sequence.handle is not None for sequence in self._sequences.values())

    @asynccontextmanager
    async def _turn(self, id: SequenceId) -> AsyncIterator[_Open]:
        """Return a context in which the caller alone uses a sequence. Callers get their turns in order."""
        sequence = self._sequences.setdefault(id, _Open())
        sequence.waiting += 1
        try:
            async with sequence.turn:
                yield sequence
        finally:
            sequence.waiting -= 1
            sequence.used = time.monotonic()
            if sequence.handle is None and not sequence.waiting:
                del self._sequences[id]

    async def infer(
        self, id: SequenceId, inputs: Inputs, start: bool = False, end: bool = False, number: int | None = None
    ) -> tuple[Any, int | None]:
        """Run a step after the earlier steps of its sequence.

        Return the outputs, and the number of steps in the last checkpoint, None if there are no checkpoints. A step
        that fails leaves the sequence as it was, but a first step that fails ends it. ``number`` counts the steps of a
        sequence from 1 on. A step with a number must be the next one, or the last one again: then it returns the same
        outputs.

        Raises: SequenceLostError for a sequence that is not open, StepNumberError for another number, BatchFullError.
        """
        async with self._turn(id) as sequence:
            step = self._task(self._step(id, sequence, inputs, start, end, number))
            try:
                outputs = await asyncio.shield(step)
            except asyncio.CancelledError:
                await asyncio.gather(step, return_exceptions=True)  # the step still counts, so it keeps its turn
                raise
            return outputs, sequence.saved_steps if self._checkpoint_steps else None

    async def _step(
        self, id: SequenceId, sequence: _Open, inputs: Inputs, start: bool, end: bool, number: int | None
    ) -> Any:
        if start:
            await self._start(id, sequence)
        elif sequence.handle is None:
            await self._take(id, sequence, False)
        if number is not None and number == sequence.steps and sequence.outputs is not None:
            return sequence.outputs
        if number is not None and number != sequence.steps + 1:
            raise StepNumberError(f"step {number} of sequence {id!r} follows step {sequence.steps}")
        assert sequence.handle is not None
        try:
            outputs = await outputs_of(sequence.handle.submit(inputs))
        except BaseException:
            if start:
                await self._end(id, sequence)
            raise
        sequence.steps += 1
        sequence.outputs = None if number is None else outputs
        if end:
            await self._end(id, sequence)
        elif self._checkpoint_steps and sequence.steps % self._checkpoint_steps == 0:
            await self._checkpoint(id, sequence)
        return outputs

    async def resume(self, id: SequenceId) -> int:
        """Take a sequence, from its last checkpoint if its replica has died. Return the number of steps it has made."""
        async with self._turn(id) as sequence:
            if sequence.handle is None:
                await self._take(id, sequence, True)
            return sequence.steps

    async def end(self, id: SequenceId) -> None:
        """End a sequence, wherever it is. Nothing happens if it is not open."""
        async with self._turn(id) as sequence:
            if sequence.handle is None:
                sequence.epoch = await self._call("start", id)  # the replica that has it drops it
            await self._end(id, sequence)

    async def close(self) -> None:
        """Hand over all sequences to the directory, and leave it."""
        if self._directory is not None:
            await asyncio.gather(*(self._hand_over((id, sequence.epoch)) for id, sequence in self._sequences.items()))
            await self._call("leave")
        for task in self._tasks:
            task.cancel()

    # ---- handles

    async def _start(self, id: SequenceId, sequence: _Open) -> None:
        """Begin a sequence. If it is open, it begins anew."""
        if sequence.handle is not None:
            await self._end(id, sequence)
        handle = self._engine.open()
        try:
            sequence.epoch = await self._call("start", id)
        except BaseException:
            handle.close()
            raise
        sequence.handle, sequence.steps, sequence.saved_steps, sequence.outputs = handle, 0, 0, None

    async def _take(self, id: SequenceId, sequence: _Open, recover: bool) -> None:
        """Take a sequence from another replica, or from the directory."""
        handle = self._engine.open()
        try:
            saved, sequence.epoch = await self._call("claim", id, recover)
            try:
                await asyncio.to_thread(sequence.restore, handle, saved)
            except BaseException:
                await self._call("park", (id, sequence.epoch), saved)
                sequence.epoch = 0
                raise
        except BaseException:
            handle.close()
            raise
        if not self._checkpoint_steps:  # the directory still has the state, in case it did not arrive here
            self._task(self._call("forget_checkpoint", (id, sequence.epoch)))

    async def _checkpoint(self, id: SequenceId, sequence: _Open) -> None:
        if await self._call("checkpoint", (id, sequence.epoch), await asyncio.to_thread(sequence.saved)):
            sequence.saved_steps = sequence.steps

    async def _end(self, id: SequenceId, sequence: _Open) -> None:
        epoch = sequence.epoch
        sequence.free()
        await self._call("end", (id, epoch))

    async def _end_idle(self, id: SequenceId) -> None:
        async with self._turn(id) as sequence:
            if sequence.handle is not None and self._is_idle(sequence):
                log.info("sequence %r ends after %d idle seconds", id, self._idle)
                await self._end(id, sequence)

    def _is_idle(self, sequence: _Open) -> bool:
        return time.monotonic() - sequence.used > self._idle

    async def _hand_over(self, claim: Claim) -> None:
        """Give a sequence to the directory, after the steps that already wait for it."""
        id, epoch = claim
        async with self._turn(id) as sequence:
            saved = None
            if sequence.handle is not None and sequence.epoch == epoch:
                try:
                    saved = await asyncio.to_thread(sequence.saved)
                except Error as error:
                    log.error("sequence %r is lost: its state cannot be read: %s", id, error)
            await self._call("park", claim, saved)
            if sequence.epoch == epoch:  # freed only after `_call`, which sends the state again if the directory dies
                sequence.free()

    async def _drop(self, claim: Claim) -> None:
        """Give up a sequence that has started anew on another replica."""
        async with self._turn(claim[0]) as sequence:
            if sequence.epoch == claim[1]:
                sequence.free()

    # ---- directory

    def _task(self, coroutine: Any) -> asyncio.Task[Any]:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def _call(self, method: str, *arguments: Any) -> Any:
        """Call a method of the directory for this replica. If the directory has died, call the method of a new one."""
        while True:
            directory = self._directory
            try:
                if directory is None:
                    directory = await self._connected()
                return await getattr(directory, method).remote(self._replica, *arguments)
            except (RayActorError, NotJoinedError) as error:
                log.warning("the directory of sequences is lost: %s", error)
                if self._directory is directory:
                    self._directory = None
                await asyncio.sleep(RETRY_SECONDS)
            except RayTaskError as error:
                raise error.cause from None  # Ray's error has the directory's traceback in its text

    async def _connected(self) -> Any:
        """Return the directory, after joining it with the sequences that are on this replica."""
        async with self._connecting:
            if self._directory is None:
                directory = await asyncio.to_thread(self._open_directory)
                held = [(id, sequence.epoch) for id, sequence in self._sequences.items() if sequence.epoch]
                await directory.join.remote(self._replica, self._actor, held, self._following is not None)
                self._directory = directory
                if self._following is None:
                    self._following = self._task(self._follow())
            return self._directory

    async def _follow(self) -> None:
        """Hand over the sequences that other replicas want, and end idle ones."""
        while True:
            wanted, dropped = await self._call("poll")
            for claim in dropped:
                self._task(self._drop(claim))
            for claim in wanted:
                self._task(self._hand_over(claim))
            for id, sequence in self._sequences.items():
                if not sequence.waiting and self._is_idle(sequence):
                    self._task(self._end_idle(id))
