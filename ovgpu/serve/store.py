"""Stores of sequences: which server has each open sequence, and its last checkpoint."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np

from ovgpu._util.extras import install_command
from ovgpu.errors import Error
from ovgpu.serve.engines import State
from ovgpu.serve.errors import ServeError, Status
from ovgpu.serve.protocol import SequenceId

T = TypeVar("T")
Key = tuple[str, SequenceId]
"""Name of a model, and id of one of its sequences."""

PATIENCE_SECONDS = 30.0  # that the server of a sequence has to hand it over
ASK_SECONDS = 1.0  # after which it is asked again
ENDED_SECONDS = 30.0  # for which the end of a sequence is known, so that late changes have no effect
MAX_ANSWERS, MAX_ANSWER_BYTES = 4096, 64 << 20  # of sequences that have ended, in the memory of a server
FIRST_PAUSE, LAST_PAUSE = 0.005, 0.1  # seconds between looks whether it has done so


class StoreError(ServeError):
    """Error of a store that cannot be reached, or cannot write."""

    def __init__(self, message: str) -> None:
        super().__init__(Status.UNAVAILABLE, message, 1)


class StoreAwayError(StoreError):
    """Error of a store that cannot be reached. Clients see neither its address nor the ``reason``, which has both."""

    def __init__(self, reason: str) -> None:
        super().__init__("the store of sequences is not available")
        self.reason = reason


@dataclass(frozen=True)
class Answer:
    """Last step of a sequence, if it had a number: a digest of its inputs, and its outputs."""

    number: int
    inputs: bytes
    outputs: tuple[np.ndarray[Any, Any], ...]


@dataclass(frozen=True)
class Checkpoint:
    """Sequence between two steps.

    ``digest`` is that of the files of ``version``, see `ModelFiles`. ``state`` is None if the sequence has ended.
    """

    version: str
    digest: str
    steps: int
    state: State | None
    answer: Answer | None = None


@dataclass(frozen=True)
class Taken:
    """Sequence that a server gets from a store, and its epoch, which is 0 if the sequence has ended."""

    epoch: int
    checkpoint: Checkpoint


class HeldElsewhereError(Exception):
    """Error for a sequence that another server has."""


class SequenceStore(ABC):
    """Store of sequences, as one server sees it. Several servers may share the sequences.

    An epoch of a sequence begins when a server gets it, and has a number greater than all earlier ones. Changes that a
    server makes in an epoch that is over have no effect. Sequences are forgotten ``idle`` seconds after their last
    change, unless `touch` is called. All methods are called on the thread of one event loop.

    Raises: StoreError in all methods, if the store cannot be reached. It is then unknown whether the change was made.
    """

    is_shared = True
    """True if the sequences outlive the server, so that it hands them over when it stops."""

    @abstractmethod
    async def open(self, wanted: Callable[[Key, int], None]) -> None:
        """Connect to the store. ``wanted`` is called with the key and epoch of a sequence to be handed over."""

    @abstractmethod
    async def close(self) -> None:
        """Disconnect. Sequences that were not released go on from their last checkpoints on other servers."""

    async def saved(self) -> list[tuple[Key, str]]:
        """Return (key, version) of the sequences that the server is to take when it starts."""
        return []

    async def start(self, key: Key, anew: bool = True) -> int | None:
        """Make this server the owner of a sequence that starts, and return the epoch.

        If the sequence is open, a server that has it, and is alive, gives it up, and its state is forgotten. Without
        ``anew``, it stays as it is, and the result is None. Raises: StoreError if the server does not answer in time.
        """
        return await self._asking(key, lambda ask: self._begin(key, ask, anew))

    async def take(self, key: Key) -> Taken | None:
        """Make this server the owner of an open sequence, and return it. None if it is not open, or has no checkpoint.

        A server that has the sequence, and is alive, hands it over. Raises: StoreError if it does not do so in time.
        """
        return await self._asking(key, lambda ask: self._claim(key, ask))

    @staticmethod
    async def _asking(key: Key, call: Callable[[bool], Awaitable[T]]) -> T:
        """Make a call until no other server has the sequence. The argument says when to ask for it there."""
        give_up, asked, pause = time.monotonic() + PATIENCE_SECONDS, 0.0, FIRST_PAUSE
        while True:
            now = time.monotonic()
            ask = now - asked > ASK_SECONDS
            try:
                return await call(ask)
            except HeldElsewhereError:
                if now > give_up:
                    raise StoreError(f"sequence {key[1]!r} is on another server, which does not hand it over") from None
            asked = now if ask else asked
            await asyncio.sleep(pause)
            pause = min(2 * pause, LAST_PAUSE)

    @abstractmethod
    async def _begin(self, key: Key, ask: bool, anew: bool) -> int | None:
        """Do as `start`, but raise HeldElsewhereError if another server has it. With ``ask``, ask for it there."""

    @abstractmethod
    async def _claim(self, key: Key, ask: bool) -> Taken | None:
        """Do as `take`, but raise HeldElsewhereError if another server has it. With ``ask``, ask for it there."""

    @abstractmethod
    async def save(self, key: Key, epoch: int, checkpoint: Checkpoint | None) -> bool:
        """Keep a checkpoint in place of the last one, or none. Return False if the epoch is over."""

    @abstractmethod
    async def release(self, key: Key, epoch: int, checkpoint: Checkpoint | None) -> None:
        """Give up an open sequence. Without a checkpoint, its last one stays."""

    @abstractmethod
    async def end(self, key: Key, epoch: int, checkpoint: Checkpoint | None) -> None:
        """End a sequence. A checkpoint has its last answer, for clients that repeat the last step."""

    @abstractmethod
    async def ended(self, key: Key) -> Checkpoint | None:
        """Return the checkpoint of a sequence that has ended, if it has one."""

    @abstractmethod
    async def check(self, key: Key, epoch: int) -> bool:
        """Return whether an epoch goes on. No other server can get the sequence before it was asked, or has waited."""

    @abstractmethod
    async def touch(self, held: Iterable[tuple[Key, int]]) -> None:
        """Keep sequences of this server, by key and epoch, from being forgotten. ``held`` is read little by little."""


@dataclass
class _Entry:
    epoch: int
    owner: MemoryStore | None
    expires: float = 0.0
    checkpoint: Checkpoint | None = None
    ended: bool = False

    @property
    def answer_bytes(self) -> int:
        """Bytes of the answer of a sequence that has ended."""
        answer = None if self.checkpoint is None else self.checkpoint.answer
        return 0 if answer is None else sum(map(_nbytes, answer.outputs))

    def drop_answer(self) -> None:
        """Forget the answer of a sequence that has ended. Its end is known for some time."""
        self.checkpoint, self.expires = None, min(self.expires, time.monotonic() + ENDED_SECONDS)


class MemoryStore(SequenceStore):
    """Store in the memory of this process. Stores with the same ``entries`` are views of several servers.

    Each of them keeps the answers of the last sequences that have ended with one: up to `MAX_ANSWERS`, and up to
    `MAX_ANSWER_BYTES`.
    """

    def __init__(self, idle: float, entries: dict[Key, Any] | None = None) -> None:
        self._idle, self.is_shared = idle, entries is not None
        self._entries: dict[Key, _Entry] = {} if entries is None else entries
        self._wanted: Callable[[Key, int], None] | None = None
        # Sequences that have ended with an answer, and its bytes. Those that are forgotten have no answer any more.
        self._answered, self._answered_bytes = deque[tuple[_Entry, int]](), 0

    async def open(self, wanted: Callable[[Key, int], None]) -> None:
        self._wanted = wanted

    async def close(self) -> None:
        self._wanted = None

    async def _begin(self, key: Key, ask: bool, anew: bool) -> int | None:
        entry = self._entry(key)
        if entry is not None and not entry.ended:
            if not anew and (entry.checkpoint is not None or self._is_elsewhere(entry)):
                return None
            self._check_here(key, entry, ask)
        if entry is not None:
            entry.checkpoint = None
        new = self._entries[key] = _Entry(_next_epoch(entry), self, time.monotonic() + self._idle)
        return new.epoch

    async def _claim(self, key: Key, ask: bool) -> Taken | None:
        entry = self._entry(key)
        if entry is None:
            return None
        self._check_here(key, entry, ask)
        if entry.checkpoint is None:
            return None
        if entry.ended:
            return Taken(0, entry.checkpoint)
        entry.epoch, entry.owner, entry.expires = _next_epoch(entry), self, time.monotonic() + self._idle
        return Taken(entry.epoch, entry.checkpoint)

    async def save(self, key: Key, epoch: int, checkpoint: Checkpoint | None) -> bool:
        entry = self._changed(key, epoch)
        if entry is not None:
            entry.owner, entry.checkpoint = self, _compact(checkpoint)
        return entry is not None

    async def release(self, key: Key, epoch: int, checkpoint: Checkpoint | None) -> None:
        entry = self._changed(key, epoch)
        if entry is not None:
            entry.owner, entry.checkpoint = None, _compact(checkpoint) or entry.checkpoint

    async def end(self, key: Key, epoch: int, checkpoint: Checkpoint | None) -> None:
        entry = self._changed(key, epoch)
        if entry is not None:
            entry.owner, entry.checkpoint, entry.ended = None, _compact(checkpoint), True
            if checkpoint is None:
                entry.drop_answer()
            else:
                self._keep_answer(entry)

    def _keep_answer(self, entry: _Entry) -> None:
        """Add a sequence to those that have ended with an answer. If they are too many, the oldest answers go."""
        self._answered.append((entry, entry.answer_bytes))
        self._answered_bytes += entry.answer_bytes
        while len(self._answered) > MAX_ANSWERS or (
            self._answered_bytes > MAX_ANSWER_BYTES and len(self._answered) > 1
        ):
            oldest, nbytes = self._answered.popleft()
            self._answered_bytes -= nbytes
            oldest.drop_answer()

    async def ended(self, key: Key) -> Checkpoint | None:
        entry = self._entry(key)
        return entry.checkpoint if entry is not None and entry.ended else None

    async def check(self, key: Key, epoch: int) -> bool:
        return self._changed(key, epoch) is not None

    async def touch(self, held: Iterable[tuple[Key, int]]) -> None:
        for key, epoch in held:
            self._changed(key, epoch)
        for key in list(self._entries):
            self._entry(key)

    def _entry(self, key: Key) -> _Entry | None:
        """Return what is known of a sequence. Forget it if it has been idle for too long."""
        entry = self._entries.get(key)
        if entry is not None and time.monotonic() > entry.expires:
            del self._entries[key]
            entry.checkpoint = None
            return None
        return entry

    def _changed(self, key: Key, epoch: int) -> _Entry | None:
        """Return a sequence that is to change in an epoch, or None if the epoch is over."""
        entry = self._entry(key)
        if entry is None:
            entry = self._entries[key] = _Entry(epoch, self)
        if entry.ended or entry.epoch > epoch:
            return None
        entry.expires = time.monotonic() + self._idle
        return entry

    def _is_elsewhere(self, entry: _Entry) -> bool:
        return entry.owner is not None and entry.owner is not self and entry.owner._wanted is not None

    def _check_here(self, key: Key, entry: _Entry, ask: bool) -> None:
        """Raise HeldElsewhereError if another server has a sequence. With ``ask``, ask for it there."""
        if self._is_elsewhere(entry):
            if ask:
                assert entry.owner is not None and entry.owner._wanted is not None
                entry.owner._wanted(key, entry.epoch)
            raise HeldElsewhereError


def _compact(checkpoint: Checkpoint | None) -> Checkpoint | None:
    """Return a checkpoint whose outputs do not keep larger arrays in memory, such as those of a whole batch."""
    if checkpoint is None or checkpoint.answer is None:
        return checkpoint
    return replace(checkpoint, answer=replace(checkpoint.answer, outputs=compact(checkpoint.answer.outputs)))


def compact(outputs: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arrays that do not keep larger ones in memory, such as those of a whole batch."""
    return tuple([array.copy() if _is_part(array) else array for array in outputs])


def _nbytes(array: np.ndarray[Any, Any]) -> int:
    """Return the bytes of an array, with those of its strings."""
    return array.nbytes + (sum(map(len, array.flat)) if array.dtype == object else 0)


def _is_part(array: np.ndarray[Any, Any]) -> bool:
    """Return whether an array is a view of a larger one."""
    owner = array
    while isinstance(owner.base, np.ndarray):
        owner = owner.base
    return owner.nbytes > array.nbytes


def open_store(url: str, idle: float, prefix: str = "ovgpu") -> SequenceStore:
    """Return a store in Redis or Valkey, see `RedisStore`. Raise Error if the package redis is not installed."""
    try:
        from ovgpu.serve.redis_store import RedisStore
    except ImportError:
        raise Error(f"a store of sequences needs the package redis: {install_command('store')}") from None
    return RedisStore(url, idle, prefix)


def _next_epoch(entry: _Entry | None) -> int:
    return max(0 if entry is None else entry.epoch + 1, time.time_ns() // 1000)
