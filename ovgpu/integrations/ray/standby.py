"""The standby of the directory: an actor with a copy of its states, from which a new directory starts."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayActorError

from ovgpu.integrations.ray.states import KeptState, SequenceId, States

NAMESPACE = "ovgpu"
CHECK_SECONDS = 1.0  # between checks whether the standby is alive
RETRY_SECONDS = 0.1  # before another attempt after the standby has died


class Standby:
    """Actor with a copy of the directory's states. If the directory dies, the next directory gets them.

    It runs calls in order. ``directory`` identifies the calling directory. The last directory that called `read` or
    `write` is the valid one: calls of other directories to `change` and `use` have no effect.
    """

    def __init__(self, idle: float) -> None:
        self._idle = idle
        self._states = States()
        self._directory = 0
        self._used = time.monotonic()
        self._watching: threading.Thread | None = None

    def read(self, directory: int) -> States:
        """Return the states to a new directory, which is valid from now on."""
        self._directory, self._used = directory, time.monotonic()
        return self._states.copy()

    def write(self, directory: int, states: States) -> None:
        """Replace the states by those of a directory whose last standby has died."""
        self._directory, self._used = directory, time.monotonic()
        self._states = states.copy()

    def change(self, directory: int, method: Callable[..., None], *arguments: Any) -> None:
        """Change the states by calling a method of `States`."""
        if directory == self._directory:
            self._used = time.monotonic()
            method(self._states, *arguments)

    def use(self, directory: int) -> None:
        """Count as a call, so that the actor does not end as idle."""
        if directory == self._directory:
            self._used = time.monotonic()

    def end_when_idle(self) -> None:
        """Let the actor end ``idle`` seconds after its last call."""
        if self._watching is None:
            actor = ray.get_runtime_context().current_actor
            self._watching = threading.Thread(target=self._watch, args=(actor,), daemon=True)
            self._watching.start()

    def _watch(self, actor: Any) -> None:
        while (left := self._used + self._idle - time.monotonic()) > 0:
            time.sleep(left)
        ray.kill(actor)


def open_standby(name: str, idle: float) -> Any:
    """Return the standby named ``name``. Create it on the head node if it does not exist."""
    standby = on_head_node(Standby, name).remote(idle)
    standby.end_when_idle.remote()
    return standby


def on_head_node(actor: type, name: str, **options: Any) -> Any:
    """Return an actor class. Its `remote` returns the actor named ``name``, or creates it on the head node.

    The actor outlives the process that creates it. It reserves no CPU; the resource, which every head node of Ray has,
    only selects the node.
    """
    return ray.remote(actor).options(
        name=name,
        namespace=NAMESPACE,
        get_if_exists=True,
        lifetime="detached",
        num_cpus=0,
        resources={"node:__internal_head__": 0.001},
        **options,
    )


class MirroredStates(States):
    """States of the directory, with a copy on its standby. ``open_standby`` returns the standby.

    Changes are made here at once, and sent to the standby. `flush` waits until the standby has made them.
    """

    def __init__(self, open_standby: Callable[[], Any]) -> None:
        super().__init__()
        self._open_standby = open_standby
        self._directory = time.time_ns()  # differs from that of any other directory
        self._standby: Any = None
        self._sent: asyncio.Future[Any] | None = None  # the last call of the standby
        self._connecting = asyncio.Lock()
        self._checking: asyncio.Task[None] | None = None

    async def connect(self) -> None:
        """Connect to the standby if there is no connection.

        The first call takes the states of an earlier directory from the standby, so nothing may be changed before it.
        Later calls are for a standby that has died: the new one gets the states of this directory.
        """
        async with self._connecting:
            while self._standby is None:
                standby = await asyncio.to_thread(self._open_standby)
                if self._checking is None:
                    try:
                        states = await standby.read.remote(self._directory)
                    except RayActorError:
                        await asyncio.sleep(RETRY_SECONDS)
                        continue
                    self.parked, self.checkpoints = states.parked, states.checkpoints
                    self._checking = asyncio.create_task(self._check_regularly())
                    self._standby = standby
                else:
                    self._standby = standby
                    self._send("write", self.copy())

    def park(self, id: SequenceId, kept: KeptState) -> None:
        self._change(States.park, id, kept)

    def give(self, id: SequenceId, replica: str) -> None:
        self._change(States.give, id, replica)

    def checkpoint(self, id: SequenceId, kept: KeptState) -> None:
        self._change(States.checkpoint, id, kept)

    def outdate(self, id: SequenceId, epoch: int) -> None:
        self._change(States.outdate, id, epoch)

    def forget(self, id: SequenceId) -> None:
        self._change(States.forget, id)

    def _change(self, method: Callable[..., None], id: SequenceId, *arguments: Any) -> None:
        is_known = id in self
        method(self, id, *arguments)
        if self._standby is not None and (is_known or id in self):
            self._send("change", method, id, *arguments)

    async def flush(self) -> None:
        """Wait until the standby has all changes. Replace it if it has died."""
        while True:
            await self.connect()
            standby, sent = self._standby, self._sent
            if sent is None:
                return
            await asyncio.wait([sent])
            try:
                sent.result()
                return
            except RayActorError:
                if self._standby is standby:
                    self._standby = None
                await asyncio.sleep(RETRY_SECONDS)

    async def check(self) -> None:
        """Call the standby, and wait until it has answered and has all changes. Replace it if it has died."""
        if self._standby is not None:
            self._send("use")
            await self.flush()

    async def _check_regularly(self) -> None:
        while True:
            await asyncio.sleep(CHECK_SECONDS)
            await self.check()

    def _send(self, method: str, *arguments: Any) -> None:
        self._sent = asyncio.ensure_future(getattr(self._standby, method).remote(self._directory, *arguments))
        # `flush` waits for the last call only. Asking for the exceptions of others keeps asyncio from logging them.
        self._sent.add_done_callback(lambda sent: sent.cancelled() or sent.exception())

    def close(self) -> None:
        """End the standby. Its states are lost."""
        if self._standby is not None:
            ray.kill(self._standby)
