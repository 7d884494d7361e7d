"""The directory of a deployment's sequences: an actor that knows which replica has each sequence."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Any

import ray
from ray.exceptions import RayActorError

from ovgpu.errors import Error
from ovgpu.integrations.ray.standby import MirroredStates, on_head_node, open_standby
from ovgpu.integrations.ray.states import Claim, KeptState, SavedSequence, SequenceId

POLL_SECONDS = 10.0  # after which a poll without news returns
JOIN_SECONDS = 5.0  # that replicas have to join a new directory
PATIENCE_SECONDS = 60.0  # that a replica has to hand over a sequence
CHECK_SECONDS = 1.0  # without a change before a replica is checked, and that it has to answer
SWEEP_SECONDS = 10.0  # between checks for dead replicas and idle sequences


class SequenceLostError(Error):
    """Error for a sequence that is not open: it was not started, has ended, or its replica has died."""


class NotJoinedError(Error):
    """Error for a call of a replica that has not joined the directory."""


@dataclass
class _Replica:
    """A replica: its actor, and the news that its next poll returns."""

    actor: Any
    wanted: list[Claim] = field(default_factory=list)  # sequences to hand over
    dropped: list[Claim] = field(default_factory=list)  # sequences that have started anew elsewhere


@dataclass
class _Owner:
    replica: str
    epoch: int
    asked: bool = False  # True if the replica was asked to hand the sequence over


class Directory:
    """Actor that knows which replica has each open sequence, and keeps the states of sequences that no replica has.

    An epoch of a sequence begins whenever a replica gets it. Late messages about earlier epochs have no effect.
    Replicas poll for sequences that they are to hand over. The actor ends when there are neither replicas nor states.

    If it dies, the next directory gets the states from the standby, and replicas join it with the sequences that they
    have. Until all replicas have had the time to join, one of them may have a newer state of a sequence than the
    directory, which therefore gives out no states until then.
    """

    def __init__(self, idle: float, open_standby: Callable[[], Any]) -> None:
        self._idle = idle
        self._kept = MirroredStates(open_standby)
        self._epochs = count(time.time_ns())  # greater than the epochs of earlier directories
        self._changed = asyncio.Condition()
        self._replicas: dict[str, _Replica] = {}
        self._owners: dict[SequenceId, _Owner] = {}
        self._started = time.monotonic()
        self._is_successor = False  # True if a directory before this one has died
        self._sweeping: asyncio.Task[None] | None = None

    # ---- replicas

    async def join(self, replica: str, actor: Any, held: Sequence[Claim], again: bool = False) -> None:
        """Register a replica and the sequences that it has. ``again`` is True if it had joined another directory."""
        await self._kept.connect()
        async with self._changed:
            self._sweeping = self._sweeping or asyncio.create_task(self._sweep())
            self._is_successor |= again
            self._replicas[replica] = _Replica(actor)
            for id, epoch in held:
                if epoch < self._epoch(id):
                    self._replicas[replica].dropped.append((id, epoch))
                    continue
                self._owners[id] = _Owner(replica, epoch)
                self._kept.outdate(id, epoch)
            self._changed.notify_all()

    def _epoch(self, id: SequenceId) -> int:
        """Return the last known epoch of a sequence, or 0."""
        return max(
            self._owners[id].epoch if id in self._owners else 0,
            self._kept.parked[id].epoch if id in self._kept.parked else 0,
        )

    @property
    def _all_joined(self) -> bool:
        """True if the replicas of an earlier directory have had the time to join this one."""
        return time.monotonic() > self._started + JOIN_SECONDS

    async def poll(self, replica: str) -> tuple[list[Claim], list[Claim]]:
        """Wait for news. Return the claims that a replica is to hand over, and the claims that it is to drop."""
        joined = self._joined(replica)
        async with self._changed:
            with suppress(TimeoutError):
                async with asyncio.timeout(POLL_SECONDS):
                    await self._changed.wait_for(lambda: joined.wanted or joined.dropped)
            news = joined.wanted, joined.dropped
            joined.wanted, joined.dropped = [], []
        return news

    async def leave(self, replica: str) -> None:
        """Remove a replica that has handed over its sequences."""
        async with self._changed:
            self._remove(replica)

    def _joined(self, name: str) -> _Replica:
        """Return a replica that has joined. Raise NotJoinedError for others."""
        replica = self._replicas.get(name)
        if replica is None:
            raise NotJoinedError(f"replica {name} has not joined")
        return replica

    def _remove(self, replica: str) -> None:
        self._replicas.pop(replica, None)
        self._owners = {id: owner for id, owner in self._owners.items() if owner.replica != replica}
        self._changed.notify_all()

    # ---- sequences

    async def start(self, replica: str, id: SequenceId) -> int:
        """Make a replica the owner of a sequence that starts, and return the epoch.

        If the sequence is open on another replica, the other replica drops it.
        """
        async with self._changed:
            owner = self._owners.get(id)
            epoch = self._own(replica, id)
            if owner is not None and owner.replica != replica:
                self._replicas[owner.replica].dropped.append((id, owner.epoch))
            is_kept = id in self._kept
            self._kept.forget(id)
        if is_kept:
            await self._kept.flush()
        return epoch

    async def claim(self, replica: str, id: SequenceId, recover: bool = False) -> tuple[SavedSequence, int]:
        """Make a replica the owner of an open sequence. Return the sequence and the epoch.

        The replica that has the sequence hands it over. With ``recover``, a sequence whose replica has died continues
        from its last checkpoint. A replica that repeats its claim because the directory died gets the same state again.

        Raises: SequenceLostError if the sequence is not open, or lost.
        """
        self._joined(replica)
        deadline = time.monotonic() + PATIENCE_SECONDS
        async with self._changed:
            while id not in self._kept.parked or (self._is_successor and not self._all_joined):
                owner = self._owners.get(id)
                if owner is None and self._all_joined:
                    kept = self._kept.checkpoints.get(id)
                    if kept is not None and (recover or kept.receiver == replica):
                        return kept.saved, self._own(replica, id)
                    raise SequenceLostError(
                        f"sequence {id!r} is not open: its first step must start it, and it is lost if its replica dies"
                    )
                if owner is not None and not owner.asked and owner.replica != replica:
                    owner.asked = True
                    self._replicas[owner.replica].wanted.append((id, owner.epoch))
                    self._changed.notify_all()
                if time.monotonic() > deadline:
                    raise SequenceLostError(f"sequence {id!r} was not handed over in {PATIENCE_SECONDS:.0f} seconds")
                if not await self._news() and owner is not None:
                    await self._check(owner.replica)
            epoch, saved = self._own(replica, id), self._kept.parked[id].saved
            self._kept.give(id, replica)
        await self._kept.flush()
        return saved, epoch

    def _own(self, replica: str, id: SequenceId) -> int:
        """Make a replica the owner of a sequence. Raise NotJoinedError if it has died or left in the meantime."""
        self._joined(replica)
        owner = self._owners[id] = _Owner(replica, next(self._epochs))
        self._changed.notify_all()
        return owner.epoch

    async def _news(self) -> bool:
        """Wait up to CHECK_SECONDS for a change, with the condition held. Return whether there was one."""
        try:
            async with asyncio.timeout(CHECK_SECONDS):
                return await self._changed.wait()
        except TimeoutError:
            return False

    async def _check(self, name: str) -> None:
        """Remove a replica if it has died, with the condition held. Its sequences are lost."""
        replica = self._replicas.get(name)
        if replica is None:
            return
        self._changed.release()
        try:
            alive = await _alive(replica.actor)
        finally:
            await self._changed.acquire()
        if not alive and self._replicas.get(name) is replica:
            self._remove(name)

    async def park(self, replica: str, claim: Claim, saved: SavedSequence | None) -> None:
        """Take a sequence from its replica. ``saved`` is None if the replica does not have its state."""
        async with self._changed:
            if self._disown(replica, claim) and saved is not None:
                self._kept.park(claim[0], KeptState(claim[1], saved))
        await self._kept.flush()

    async def checkpoint(self, replica: str, claim: Claim, saved: SavedSequence) -> bool:
        """Keep a copy of a sequence, from which it can continue if its replica dies.

        Return False if the claim is not valid, because the sequence has another owner.
        """
        async with self._changed:
            if not self._owns(replica, claim):
                return False
            self._kept.checkpoint(claim[0], KeptState(claim[1], saved))
        await self._kept.flush()
        return True

    async def forget_checkpoint(self, replica: str, claim: Claim) -> None:
        """Forget the copy of a sequence whose replica makes no checkpoints."""
        async with self._changed:
            if self._owns(replica, claim):
                self._kept.forget(claim[0])

    async def end(self, replica: str, claim: Claim) -> None:
        """Forget a sequence that has ended."""
        async with self._changed:
            if self._disown(replica, claim):
                self._kept.forget(claim[0])

    def _owns(self, replica: str, claim: Claim) -> bool:
        owner = self._owners.get(claim[0])
        return owner is not None and (owner.replica, owner.epoch) == (replica, claim[1])

    def _disown(self, replica: str, claim: Claim) -> bool:
        """Remove the owner of a sequence. Return False if the claim is not that of the owner."""
        if not self._owns(replica, claim):
            return False
        del self._owners[claim[0]]
        self._changed.notify_all()
        return True

    async def counts(self) -> tuple[int, int, int]:
        """Return the numbers of replicas, of sequences on replicas, and of parked sequences.

        The standby then has all states as well.
        """
        await self._kept.check()
        return len(self._replicas), len(self._owners), len(self._kept.parked)

    async def _sweep(self) -> None:
        """Remove dead replicas and idle sequences regularly. End the actor when no replicas and no states are left."""
        while True:
            await asyncio.sleep(min(SWEEP_SECONDS, self._idle / 2))
            async with self._changed:
                for name in list(self._replicas):
                    await self._check(name)
                oldest = time.monotonic() - self._idle
                for id in list(self._kept):
                    if id not in self._owners and self._kept.since(id) < oldest:
                        self._kept.forget(id)
                if not self._replicas and not self._kept:
                    self._kept.close()
                    ray.kill(ray.get_runtime_context().current_actor)


async def _alive(actor: Any) -> bool:
    """Return False if an actor has died. One that does not answer in time, or cannot be reached now, is alive."""
    try:
        async with asyncio.timeout(CHECK_SECONDS):
            await actor.__ray_ready__.remote()
    except TimeoutError:
        pass
    except RayActorError as error:
        return isinstance(error, ray.exceptions.ActorUnavailableError)
    return True


def open_directory(name: str, idle: float) -> Any:
    """Return the directory named ``name``. Create it on the head node if it does not exist."""
    # Polls and claims wait inside the actor, so that it runs as many calls at a time as there are replicas and claims.
    return on_head_node(Directory, name, max_concurrency=100_000).remote(
        idle, partial(open_standby, f"{name}/standby", idle)
    )
