"""Class Sequence: the client of a sequence of a deployment."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Generator
from contextlib import suppress
from typing import Any, Self
from uuid import uuid4

from ray.exceptions import RayActorError

from ovgpu.integrations.ray.directory import SequenceLostError
from ovgpu.integrations.ray.sequences import StepNumberError
from ovgpu.integrations.ray.states import SequenceId

PATIENCE_SECONDS = 120.0  # for a new replica
FIRST_PAUSE, LAST_PAUSE = 0.05, 1.0  # seconds between attempts

Calls = Generator[Any, Any, Any]
"""Generator that yields responses of Ray Serve and seconds to wait, and is sent the results."""


class Sequence:
    """Sequence of a `deployment` of a model with states. Steps run one after the other, each exactly once.

        with ovgpu.ray.Sequence(handle) as sequence:
            for frame in frames:
                outputs = sequence.infer({"frame": frame})

    ``handle`` is a result of `serve.run`. If a replica dies, the sequence goes on from its last checkpoint with the
    inputs that it has kept since. A step that is interrupted, or cancelled, counts as made. One thread or task uses a
    sequence at a time.

    Raises: SequenceLostError if a replica has died and there is no checkpoint, BatchFullError if no slot is free.
    """

    def __init__(self, handle: Any, id: SequenceId | None = None) -> None:
        self.id: SequenceId = uuid4().hex if id is None else id
        self._handle = handle.options(session_id=str(self.id))
        self._steps = 0
        self._kept: deque[tuple[int, Any]] = deque()  # (number, inputs) of the steps since the last checkpoint

    def infer(self, inputs: Any) -> dict[str, Any]:
        """Run a step. Return the outputs by name."""
        return _run(self._infer(inputs))  # type: ignore[no-any-return]

    async def infer_async(self, inputs: Any) -> dict[str, Any]:
        """Run a step. Return the outputs by name."""
        return await _run_async(self._infer(inputs))  # type: ignore[no-any-return]

    def close(self) -> None:
        """End the sequence. The next step would start it anew."""
        _run(self._end())

    async def close_async(self) -> None:
        """End the sequence. The next step would start it anew."""
        await _run_async(self._end())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *error: object) -> None:
        await self.close_async()

    def _infer(self, inputs: Any) -> Calls:
        number = self._steps + 1
        self._kept.append((number, inputs))
        try:
            return (yield from self._until_done(number))
        except RayActorError:  # the step may have run
            self._steps = number
            raise
        except Exception:
            self._kept.pop()
            raise
        except BaseException:
            self._steps = number
            raise

    def _until_done(self, number: int) -> Calls:
        """Run the last of the kept steps and, if its replica dies, those that the sequence has lost."""
        deadline, pause, first = time.monotonic() + PATIENCE_SECONDS, FIRST_PAUSE, number
        while True:
            try:
                return (yield from self._steps_from(first))
            except (RayActorError, StepNumberError, SequenceLostError) as error:
                failure = error
            first = 0
            while not first:
                if time.monotonic() > deadline:
                    raise failure
                yield pause
                pause = min(2 * pause, LAST_PAUSE)
                with suppress(RayActorError):
                    first = min(1 + (yield from self._resumed(number)), number)

    def _resumed(self, number: int) -> Calls:
        """Return how many steps the sequence has made, according to the replica that has it.

        Raises: SequenceLostError if the steps since then are not kept.
        """
        try:
            done: int = 0 if number == 1 else (yield self._handle.resume.remote(self.id))
        except SequenceLostError:
            done = 0
        if done < self._kept[0][0] - 1:
            raise SequenceLostError(
                f"sequence {self.id!r} has lost its steps from {done + 1} on: its replica died, "
                "or it was idle for too long"
            )
        return done

    def _steps_from(self, first: int) -> Calls:
        """Run the kept steps from this number on. Return the outputs of the last one."""
        outputs, saved = None, None
        for number, inputs in list(self._kept):
            if number >= first:
                outputs, saved = yield self._handle.step.remote(inputs, self.id, number)
        self._steps = self._kept[-1][0]
        while self._kept and (saved is None or self._kept[0][0] <= saved):
            self._kept.popleft()
        return outputs

    def _end(self) -> Calls:
        if self._steps:
            self._steps = 0
            self._kept.clear()
            try:
                yield self._handle.end.remote(self.id)
            except RayActorError:  # its replica has died, and the sequence with it
                pass


def _run(calls: Calls) -> Any:
    """Run the calls of a generator, and return its result."""
    send, value = calls.send, None
    while True:
        try:
            call = send(value)
        except StopIteration as stop:
            return stop.value
        try:
            send, value = calls.send, _wait(call)
        except BaseException as error:
            send, value = calls.throw, error


def _wait(call: Any) -> Any:
    return time.sleep(call) if isinstance(call, float) else call.result()


async def _run_async(calls: Calls) -> Any:
    """Run the calls of a generator, and return its result."""
    send, value = calls.send, None
    while True:
        try:
            call = send(value)
        except StopIteration as stop:
            return stop.value
        try:
            send, value = calls.send, await (asyncio.sleep(call) if isinstance(call, float) else call)
        except BaseException as error:
            send, value = calls.throw, error
