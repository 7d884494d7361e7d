"""Class OpenSequences: the open sequences of clients, by model and id, and their checkpoints."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from contextlib import AbstractAsyncContextManager, suppress
from secrets import randbelow
from typing import Any, TypeVar

import numpy as np

from ovgpu.errors import Error
from ovgpu.serve.client_sequence import Checkpoints, ClientSequence, StepResult, digest_of
from ovgpu.serve.engines import Inputs
from ovgpu.serve.errors import ServeError, Status
from ovgpu.serve.models import Version
from ovgpu.serve.protocol import SequenceId, SequenceStep
from ovgpu.serve.sequence_table import SequenceTable
from ovgpu.serve.store import Answer, Checkpoint, Key, MemoryStore, SequenceStore, StoreAwayError, StoreError

log = logging.getLogger(__name__)

FindVersion = Callable[[str, str], AbstractAsyncContextManager[Version | None]]
TOUCH_SECONDS = 15.0  # between messages to the store that a sequence is still open, at most
LARGE = 1 << 16  # bytes of inputs whose digest is computed on another thread than the event loop's
SAVED_TOGETHER = 64  # sequences for which it is time
MAX_ID = 1 << 53  # of ids that the server chooses: all programs have exact integers up to here
T = TypeVar("T")


class OpenSequences(SequenceTable[Key, ClientSequence]):
    """Open sequences of all models. All methods are called on the thread of the event loop.

    Sequences without steps for ``idle`` seconds end, unless their version has an idle time of its own. ``store`` has
    those that may continue on other servers, or when this one starts again, on the version that ``find`` returns. If
    the files of the version have changed since, they do not continue, and with ``discard``, their states are deleted.

    A step with a number must be the next one, or the last one again, with the same inputs. Then it does not run, and
    has the same outputs, also for ``idle`` seconds after it has ended the sequence.
    """

    def __init__(
        self,
        idle: float,
        find: FindVersion,
        store: SequenceStore | None = None,
        checkpoints: Checkpoints | None = None,
        discard: bool = False,
    ) -> None:
        super().__init__(idle)
        self._find, self._discard = find, discard
        self._store = store or MemoryStore(idle)
        self._checkpoints = checkpoints or Checkpoints()
        self._touched = time.monotonic()
        self._is_closing = False
        self._tasks = set[asyncio.Task[Any]]()

    # ---- start and stop

    async def open(self) -> None:
        """Connect to the store. Raise Error if that fails."""
        await self._store.open(self._wanted)

    async def restore(self) -> None:
        """Open the sequences that the store has for this server. Those that cannot be opened are logged."""
        saved = await self._store.saved()
        for model, number in sorted({(key[0], number) for key, number in saved}):
            async with self._find(model, number):  # stays loaded until all of its sequences are open
                for key, other in saved:
                    if (key[0], other) == (model, number):
                        try:
                            async with self.turn(key, ClientSequence) as sequence:
                                await self._take(key, sequence)
                        except Exception as error:
                            log.warning("sequence %r of model '%s' is not restored: %s", key[1], model, error)

    async def close(self) -> int:
        """End all sequences, or give them to the store. Return the number of those that could not be saved."""
        lost, self._is_closing, away = 0, True, None
        for key, sequence in self.all():
            if self._store.is_shared and sequence.handle is not None:
                try:
                    if away is not None:  # each attempt would take seconds
                        raise away
                    await self._store.release(key, sequence.epoch, await sequence.checkpoint())
                except Exception as error:
                    lost, away = lost + 1, error if isinstance(error, StoreAwayError) else None
                    log.error("sequence %r of model '%s' is not saved: %s", key[1], key[0], error)
            self.forget(key, sequence)
            with suppress(Exception):
                sequence.free()
        for task in self._tasks:
            task.cancel()
        await self._store.close()
        return lost

    async def sweep_regularly(self) -> None:
        """Call `sweep` until this is cancelled."""
        while True:
            await asyncio.sleep(min(self._idle / 4, self._checkpoints.seconds or 1.0, 1.0))
            try:
                await self.sweep()
            except Exception:
                log.exception("sequences cannot be looked after")

    async def sweep(self) -> None:
        """End sequences that are idle, save those for which it is time, and keep the others in the store."""
        for key, _ in self.idle():
            async with self.turn(key, ClientSequence) as sequence:
                seconds = self.idle_seconds(sequence)
                if sequence.handle is not None and sequence.users == 1 and self._clock() - sequence.used > seconds:
                    log.info("sequence %r of model '%s' ends after %g idle seconds", key[1], key[0], seconds)
                    await _whole(self._end(key, sequence, None))
        # A sequence with a step that runs or waits is saved after the step: others do not wait for it here.
        old = [key for key, sequence in self.all() if self._is_old(sequence) and not sequence.users]
        for first in range(0, len(old), SAVED_TOGETHER):
            await asyncio.gather(*map(self._save_old, old[first : first + SAVED_TOGETHER]))
        now = time.monotonic()
        if now - self._touched > min(self._idle / 4, TOUCH_SECONDS):
            self._touched = now
            with suppress(StoreError):  # logged by the store
                await self._store.touch((key, found.epoch) for key, found in self.all() if found.handle is not None)

    async def _save_old(self, key: Key) -> None:
        async with self.turn(key, ClientSequence) as sequence:
            if sequence.handle is not None and self._is_old(sequence):
                await _whole(self._save(key, sequence))

    def idle_seconds(self, sequence: ClientSequence) -> float:
        own = None if sequence.handle is None else sequence.version.idle_seconds
        return self._idle if own is None else own

    def _check_open(self) -> None:
        """Raise ServeError for a step that has waited until the server was stopping."""
        if self._is_closing:
            raise ServeError(Status.UNAVAILABLE, "the server is stopping", 1)

    # ---- steps

    def version_of(self, model: str, step: SequenceStep) -> Version | None:
        """Return the version on which a sequence of this server continues, or None if it starts anew or is not here."""
        sequence = self._by_key.get((model, step.id))
        return None if step.start or sequence is None or sequence.handle is None else sequence.version

    def identified(self, model: str, step: SequenceStep) -> SequenceStep:
        """Return the step with an id. The server chooses one if a start with control inputs has none."""
        if step.id or not step.strict:
            return step
        if not step.start:
            raise ServeError(Status.INVALID_ARGUMENT, "the inference has no sequence_id")
        return SequenceStep(1 + randbelow(MAX_ID), True, step.end, True)

    async def infer(
        self, version: Version, model: str, step: SequenceStep, prepare: Callable[[Version], Inputs]
    ) -> StepResult:
        """Run a step of a sequence after its earlier steps.

        A sequence starts on ``version``, and continues on its own, for which ``prepare`` returns the inputs. If it is
        on another server, it is taken from there. A step that fails leaves it as it was, but a first step that fails
        ends it.

        Raises: ServeError for a step of a sequence that is not open, for a ``strict`` start of an open one, and if the
        store is not available.
        """
        key = model, step.id
        async with self.turn(key, ClientSequence) as sequence:
            await sequence.settled()
            ended = await self._ended_before(key, sequence, step, version)
            if not step.start and ended is None:
                version = sequence.version
            elif not step.start and ended is not None:
                async with self._find(model, ended.version) as found:
                    if found is None:
                        raise _lost(key, f"its version {ended.version} is not loaded")
                    version = found
            inputs, digest = prepare(version), None
            if step.number is not None:
                digest = digest_of(inputs) if _is_small(inputs) else await asyncio.to_thread(digest_of, inputs)
            again = self._repeated(sequence, step, version, ended, digest)
            outputs = await self._new(key, sequence, step, version, inputs, digest) if again is None else again.outputs
            if sequence.handle is not None and (step.end or self._is_due(sequence) or self._is_old(sequence)):
                await _whole(self._complete(key, sequence, step.end))
            return StepResult(outputs, version, sequence.saved_steps if self._checkpoints else None)

    async def _new(
        self, key: Key, sequence: ClientSequence, step: SequenceStep, version: Version, inputs: Inputs, digest: Any
    ) -> Any:
        """Run a step that repeats no other one, and return the outputs."""
        done = 0 if step.start else sequence.steps
        if step.number not in (None, done + 1):
            raise _conflict(step, f"cannot follow step {done}")
        before = sequence.handle
        try:
            if step.start:
                await _whole(self._start(key, sequence, step, version))
            self._check_open()
            return await sequence.run(inputs, digest)
        except BaseException:
            if step.start and sequence.handle is not before:  # it has begun
                await _whole(self._end(key, sequence, None))
            raise

    async def _ended_before(
        self, key: Key, sequence: ClientSequence, step: SequenceStep, version: Version
    ) -> Checkpoint | None:
        """Return the checkpoint of a sequence that has ended, if its last step is that of ``step``, and ran on
        ``version`` if it was a start.

        Else, the sequence is open, or starts. Raises: ServeError for another step of a sequence that is not open.
        """
        if step.start:
            if step.number is None or sequence.handle is not None:
                return None
            last, this = await self._store.ended(key), (step.number, version.number)
            return last if last and last.answer and (last.answer.number, last.version) == this else None
        ended = await self._continued(key, sequence)
        if sequence.handle is None and not (ended and ended.answer and ended.answer.number == step.number):
            raise ServeError(
                Status.NOT_FOUND,
                f"sequence {key[1]!r} of model '{key[0]}' is not open: its first inference must start it",
            )
        return ended

    @staticmethod
    def _repeated(
        sequence: ClientSequence, step: SequenceStep, version: Version, ended: Checkpoint | None, digest: bytes | None
    ) -> Answer | None:
        """Return the step that ``step`` repeats, or None. Raise ServeError if it has other inputs than that one."""
        if sequence.handle is not None:
            number, last = sequence.version.number, sequence.last
        else:
            number, last = (ended.version, ended.answer) if ended is not None else ("", None)
        if last is None or last.number != step.number or (step.start and number != version.number):
            return None
        if last.inputs == digest:
            return last
        if step.start:  # the client begins anew
            return None
        raise _conflict(step, "has run with other inputs")

    async def _continued(self, key: Key, sequence: ClientSequence) -> Checkpoint | None:
        """Take a sequence if it is not here. Return its checkpoint if it has ended."""
        if sequence.handle is not None:
            if await self._store.check(key, sequence.epoch):
                return None
            sequence.free()  # another server has it
        return await _whole(self._take(key, sequence))

    async def _start(self, key: Key, sequence: ClientSequence, step: SequenceStep, version: Version) -> None:
        self._check_open()
        sequence.check_quota()
        strict = step.strict
        epoch = None if strict and sequence.handle is not None else await self._store.start(key, anew=not strict)
        if epoch is None:
            raise ServeError(Status.ALREADY_EXISTS, f"sequence {key[1]!r} of model '{key[0]}' is open already")
        sequence.free()
        try:
            sequence.check_quota()  # others may have begun while the store was asked
            self._check_open()
            sequence.begin(version, version.engine.open(), epoch)
        except BaseException:
            await self._end(key, sequence, None, epoch)
            raise

    async def steps(self, model: str, id: SequenceId) -> int:
        """Return the number of steps of a sequence, which is taken if it is not here. 0 if it is not open."""
        key = model, id
        async with self.turn(key, ClientSequence) as sequence:
            await sequence.settled()
            await self._continued(key, sequence)
            return 0 if sequence.handle is None else sequence.steps

    async def end(self, model: str, id: SequenceId) -> None:
        """End a sequence, wherever it is. Nothing happens if it is not open."""
        key = model, id
        async with self.turn(key, ClientSequence) as sequence:
            epoch = sequence.epoch if sequence.handle is not None else await self._store.start(key)
            await _whole(self._end(key, sequence, None, epoch))

    # ---- checkpoints

    async def _take(self, key: Key, sequence: ClientSequence) -> Checkpoint | None:
        """Open a sequence that the store has. Return its checkpoint if it has ended.

        Raises: ServeError if its version, or the files of that, are not there; BatchFullError.
        """
        self._check_open()
        taken = await self._store.take(key)
        if taken is None or taken.checkpoint.state is None:
            return None if taken is None else taken.checkpoint
        checkpoint, handle = taken.checkpoint, None
        try:
            async with self._find(key[0], checkpoint.version) as version:
                if version is None or not version.engine.stateful:
                    raise _lost(key, f"its version {checkpoint.version} is not loaded")
                if version.digest != checkpoint.digest:
                    reason = f"version {version.number} has other files than the one that computed its state"
                    if self._discard:
                        await self._store.end(key, taken.epoch, None)
                        reason += ", which is deleted"
                    raise _lost(key, reason)
                handle = version.engine.open()
                await asyncio.to_thread(handle.write, taken.checkpoint.state)
                if not self._checkpoints:  # the next step makes it obsolete
                    await self._store.save(key, taken.epoch, None)
                self._check_open()
                sequence.begin(version, handle, taken.epoch)
        except BaseException:
            if handle is not None:
                handle.close()
            with suppress(StoreError):  # the next server that wants it will ask for it
                await self._store.release(key, taken.epoch, None)
            raise
        sequence.steps, sequence.last = checkpoint.steps, checkpoint.answer
        if self._checkpoints:
            sequence.saved(checkpoint, self._checkpoints.steps == 1)
        return None

    def _is_old(self, sequence: ClientSequence) -> bool:
        """Return whether a sequence has a step that ought to be saved by now."""
        since, seconds = sequence.unsaved_since, self._checkpoints.seconds
        return 0 < seconds and since is not None and time.monotonic() - since >= seconds

    def _is_due(self, sequence: ClientSequence) -> bool:
        return 0 < self._checkpoints.steps <= sequence.steps - sequence.saved_steps

    async def _complete(self, key: Key, sequence: ClientSequence, end: bool) -> None:
        """Save or end a sequence after a step. Undo the step if that fails and each step must be saved."""
        if self._checkpoints.steps != 1:
            await (self._end(key, sequence, sequence.last) if end else self._save(key, sequence))
            if not end and sequence.handle is None:
                raise _moved(key)
            return
        undo = sequence.undo
        try:
            await (self._ended(key, sequence, sequence.last) if end else self._saved(key, sequence))
        except Exception as error:
            if not isinstance(error, StoreError):
                log.error("sequence %r of model '%s' cannot be saved: %s", key[1], key[0], error)
            if sequence.handle is None or undo is None or undo.state is None:
                sequence.free()
            else:
                await asyncio.to_thread(sequence.handle.write, undo.state)
                sequence.steps, sequence.last, sequence.unsaved_since = undo.steps, undo.answer, None
            raise

    async def _save(self, key: Key, sequence: ClientSequence) -> None:
        """Save a sequence. Errors are logged."""
        try:
            await self._saved(key, sequence)
        except Exception as error:
            log.warning("sequence %r of model '%s' is not saved: %s", key[1], key[0], error)
            sequence.unsaved_since = time.monotonic()  # and tried again later

    async def _saved(self, key: Key, sequence: ClientSequence) -> None:
        checkpoint = await sequence.checkpoint()
        if not await self._store.save(key, sequence.epoch, checkpoint):
            sequence.free()
            raise _moved(key)
        sequence.saved(checkpoint, self._checkpoints.steps == 1)

    async def _end(self, key: Key, sequence: ClientSequence, last: Answer | None, epoch: int | None = None) -> None:
        """End a sequence. Errors of the store are logged."""
        try:
            await self._ended(key, sequence, last, epoch)
        except StoreError as error:
            log.warning("the store does not know that sequence %r of model '%s' has ended: %s", key[1], key[0], error)
            sequence.free()

    async def _ended(self, key: Key, sequence: ClientSequence, last: Answer | None, epoch: int | None = None) -> None:
        answer = None
        if last is not None:
            answer = Checkpoint(sequence.version.number, sequence.version.digest, sequence.steps, None, last)
        await self._store.end(key, sequence.epoch if epoch is None else epoch, answer)
        sequence.free()

    # ---- other servers

    def _wanted(self, key: Key, epoch: int) -> None:
        task = asyncio.ensure_future(self._hand_over(key, epoch))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _hand_over(self, key: Key, epoch: int) -> None:
        """Give a sequence to the server that wants it, after the steps that already wait here."""
        async with self.turn(key, ClientSequence) as sequence:
            held, checkpoint = sequence.handle is not None and sequence.epoch == epoch, None
            try:
                checkpoint = await sequence.checkpoint() if held else None
            except Error as error:
                log.error("sequence %r of model '%s' is lost: its state cannot be read: %s", key[1], key[0], error)
            try:
                await self._store.release(key, epoch, checkpoint)
            except StoreError as error:
                log.warning("sequence %r of model '%s' is not handed over: %s", key[1], key[0], error)
                return
            if held:
                sequence.free()


def _is_small(inputs: Inputs) -> bool:
    arrays = [np.asarray(value) for value in inputs.values()]
    return all(array.dtype != object for array in arrays) and sum(array.nbytes for array in arrays) < LARGE


def _conflict(step: SequenceStep, what: str) -> ServeError:
    return ServeError(Status.ALREADY_EXISTS, f"step {step.number} of sequence {step.id!r} {what}")


def _moved(key: Key) -> StoreError:
    return StoreError(f"sequence {key[1]!r} has moved to another server")


def _lost(key: Key, reason: str) -> ServeError:
    return ServeError(Status.NOT_FOUND, f"sequence {key[1]!r} of model '{key[0]}' cannot continue: {reason}")


async def _whole(work: Coroutine[Any, Any, T]) -> T:
    """Await a coroutine. If this is cancelled, also more than once, the coroutine ends nevertheless, before
    CancelledError is raised."""
    task, cancelled = asyncio.ensure_future(work), False
    while not task.done():
        try:
            await asyncio.wait([task])
        except asyncio.CancelledError:
            cancelled = True
    if cancelled:
        if not task.cancelled():
            task.exception()  # so that it does not count as forgotten
        raise asyncio.CancelledError
    return task.result()
