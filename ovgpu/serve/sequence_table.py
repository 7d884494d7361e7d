"""Class SequenceTable: open sequences by key, the turns of their users, and the time for which they are idle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from ovgpu.serve.engines import EngineSequence

K = TypeVar("K", bound=Hashable)
S = TypeVar("S", bound="OpenSequence")


class OpenSequence:
    """Sequence of a client."""

    def __init__(self) -> None:
        self.handle: EngineSequence | None = None  # None before the beginning and after the end
        self.turn = asyncio.Lock()  # serves its users in the order in which they came
        self.users = 0  # steps or requests that wait or run
        self.used = 0.0  # time at which the last one ended

    def free(self) -> None:
        """Close the handle, if there is one."""
        if self.handle is not None:
            self.handle.close()
            self.handle = None


class SequenceTable(Generic[K, S]):
    """Open sequences by key. Those without users for ``idle`` seconds count as idle."""

    def __init__(self, idle: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._idle, self._clock = idle, clock
        self._by_key: dict[K, S] = {}

    def __len__(self) -> int:
        """Return the number of sequences that have a handle."""
        return sum(sequence.handle is not None for sequence in self._by_key.values())

    def all(self) -> list[tuple[K, S]]:
        """Return (key, sequence) of each sequence."""
        return list(self._by_key.items())

    def begin_use(self, sequence: S) -> None:
        """Count a user of a sequence."""
        sequence.users += 1

    def end_use(self, sequence: S) -> None:
        """Count a user as gone."""
        sequence.users -= 1
        sequence.used = self._clock()

    @asynccontextmanager
    async def turn(self, key: K, new: Callable[[], S]) -> AsyncIterator[S]:
        """Return a context in which the caller alone uses a sequence, which is ``new`` if there is none.

        A sequence without a handle is forgotten when its last user leaves.
        """
        sequence = self._by_key.get(key) or self._by_key.setdefault(key, new())
        self.begin_use(sequence)
        try:
            async with sequence.turn:
                yield sequence
        finally:
            self.end_use(sequence)
            if sequence.handle is None and not sequence.users:
                self.forget(key, sequence)

    def idle(self) -> list[tuple[K, S]]:
        """Return (key, sequence) of the sequences that have been idle for too long."""
        now = self._clock()
        return [
            (key, sequence)
            for key, sequence in self.all()
            if not sequence.users and now - sequence.used > self.idle_seconds(sequence)
        ]

    def idle_seconds(self, sequence: S) -> float:
        """Return the seconds without users after which a sequence counts as idle."""
        return self._idle

    def forget(self, key: K, sequence: S) -> None:
        """Remove a sequence, unless there is another one at its key by now."""
        if self._by_key.get(key) is sequence:
            del self._by_key[key]
