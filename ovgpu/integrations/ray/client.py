"""Class Sequence: the client of a sequence of a deployment."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Generator
from typing import Any, Self
from uuid import uuid4

from ray.exceptions import RayActorError

from ovgpu.errors import Error
from ovgpu.serve.errors import ServeError, Status
from ovgpu.serve.protocol import SequenceId

PATIENCE_SECONDS = 120.0  # for which a step waits for a new replica
FIRST_PAUSE, LAST_PAUSE = 0.05, 1.0  # seconds between attempts

# The sequence is not where the step has arrived, or misses steps before it; or the store is not available.
REPEATED = (Status.NOT_FOUND, Status.ALREADY_EXISTS, Status.UNAVAILABLE)

Calls = Generator[Any, Any, Any]
"""Generator that yields calls: responses of Ray Serve, or seconds to wait. It is sent their results."""


class SequenceLostError(Error):
    """Error for a sequence that is not open: it was not started, has ended, or its replica has died."""


class Sequence:
    """Sequence of a `deployment` of a model with states. Steps run one after the other, each exactly once.

        with ovgpu.ray.Sequence(handle) as sequence:
            for frame in frames:
                outputs = sequence.infer({"frame": frame})

    ``handle`` is a result of `serve.run`. If a replica dies, the sequence continues from its last checkpoint, and
    repeats the steps since then with their inputs, which it has kept. A step that is interrupted or cancelled counts as
    made. One thread or task uses a sequence at a time.

    Raises: SequenceLostError if a replica has died and there is no checkpoint, BatchFullError if no slot is free,
    ServeError if the store is not available for too long.
    """

    def __init__(self, handle: Any, id: SequenceId | None = None) -> None:
        self.id: SequenceId = uuid4().hex if id is None else id
        self._deployment = handle.options(session_id=str(self.id))
        self._steps = 0
        self._kept: deque[tuple[int, Any]] = deque()  # (step number, inputs) of the steps since the last checkpoint

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
        step = self._steps + 1
        self._kept.append((step, inputs))
        try:
            return (yield from self._until_done(step))
        except Exception as error:
            if _is_repeated(error):  # the step may have run: it counts
                self._steps = step
            else:  # the step has failed, and left the sequence as it was
                self._kept.pop()
            raise
        except BaseException:  # the step was interrupted, but may still run: it counts
            self._steps = step
            raise

    def _until_done(self, step: int) -> Calls:
        """Run the last of the kept steps. If its replica dies, run the steps again that the sequence has lost."""
        deadline, pause, first = time.monotonic() + PATIENCE_SECONDS, FIRST_PAUSE, step
        while True:
            try:
                return (yield from self._steps_from(first))
            except Exception as error:
                if not _is_repeated(error):
                    raise
                failure = error
            first = 0
            while not first:
                if time.monotonic() > deadline:
                    raise failure
                yield pause
                pause = min(2 * pause, LAST_PAUSE)
                try:
                    # If the last step has run as well, it is called again: the replica returns the same outputs.
                    first = min(1 + (yield from self._resumed(step)), step)
                except Exception as error:
                    if not _is_repeated(error):
                        raise

    def _resumed(self, step: int) -> Calls:
        """Return the number of steps that the sequence has made, according to the replica that has it now.

        Raises: SequenceLostError if the inputs of the steps after these are not kept.
        """
        try:
            done: int = 0 if step == 1 else (yield self._deployment.resume.remote(self.id))  # step 1 starts it anew
        except ServeError as error:
            if error.status is not Status.NOT_FOUND:
                raise
            # Ray's error has the replica's traceback in its text.
            raise SequenceLostError(str(getattr(error, "cause", error))) from None
        if done < self._kept[0][0] - 1:
            raise SequenceLostError(
                f"sequence {self.id!r} has lost its steps from {done + 1} on: its replica died, "
                "or it was idle for too long"
            )
        return done

    def _steps_from(self, first: int) -> Calls:
        """Run the kept steps from step ``first`` on. Return the outputs of the last one."""
        outputs, saved = None, None
        for step, inputs in list(self._kept):
            if step >= first:
                outputs, saved = yield self._deployment.step.remote(inputs, self.id, step)
        self._steps = self._kept[-1][0]
        while self._kept and (saved is None or self._kept[0][0] <= saved):
            self._kept.popleft()
        return outputs

    def _end(self) -> Calls:
        if self._steps:
            self._steps = 0
            self._kept.clear()
            try:
                yield self._deployment.end.remote(self.id)
            except RayActorError:  # its replica has died, and the sequence with it
                pass


def _is_repeated(error: Exception) -> bool:
    """Return whether a step that failed with an error is called again."""
    return isinstance(error, RayActorError) or (isinstance(error, ServeError) and error.status in REPEATED)


def _run(calls: Calls) -> Any:
    """Run the calls of a generator one after the other, and return its result. Errors of calls are raised in it."""
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
    """Do as `_run`, but wait without blocking the event loop."""
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
