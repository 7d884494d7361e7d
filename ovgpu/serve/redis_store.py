"""Class RedisStore: sequences of several servers in Redis or Valkey.

Each sequence is a hash: its ``epoch``, its ``owner`` if a server has it, the key of its ``checkpoint`` if there is one,
and ``ended`` after its end. A server that is alive renews its lease, a key with a time to live. It waits for messages
in a list: keys and epochs of its sequences that other servers want. After the store was away, all servers have the time
of a lease to renew theirs: the key ``steady`` has the time since which some server has always been able to.
"""

from __future__ import annotations

import asyncio
import json
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from typing import Any
from uuid import uuid4

from redis.asyncio import BlockingConnectionPool, Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError, RedisError

from ovgpu.errors import Error
from ovgpu.serve.states import UNREADABLE, decode, encode
from ovgpu.serve.store import Checkpoint, HeldElsewhereError, Key, SequenceStore, StoreAwayError, Taken

log = logging.getLogger(__name__)

LEASE_SECONDS = 5.0  # after which a server that is silent counts as dead
COMMAND_SECONDS = 3.0  # that a command may take
POLL_SECONDS = 1.0  # after which a server without messages renews its lease
RETRY_SECONDS = 0.2  # before another attempt to reach the store
CONNECTIONS = 16

# Functions of the scripts. All commands of a script run as one. A server that owns a record has a lease, also in a
# store that has lost all data: its value of 0 tells the server that the last one is gone.
COMMON = """
local record, prefix, me, ttl, lease = KEYS[1], ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local function now()
    local time = redis.call('TIME')
    return time[1] * 1000000 + time[2]
end
local function elsewhere(owner)
    if not owner or owner == '' or owner == me then return false end
    local found = redis.call('GET', prefix .. 'lease:' .. owner)
    if found then return found ~= 'over' end
    local steady = redis.call('GET', prefix .. 'steady')
    return not steady or now() - steady < 1000 * lease
end
local function ask(owner, epoch)
    local list = prefix .. 'wanted:' .. owner
    redis.call('RPUSH', list, epoch .. ' ' .. record)
    redis.call('PEXPIRE', list, 60000)
end
local function live()
    redis.call('SET', prefix .. 'lease:' .. me, '0', 'PX', lease, 'NX')
end
local function own(last)
    live()
    local epoch = string.format('%.0f', math.max(tonumber(last or 0) + 1, now()))
    redis.call('HSET', record, 'owner', me, 'epoch', epoch)
    redis.call('PEXPIRE', record, ttl)
    return epoch
end
local function forget(checkpoint)
    if checkpoint then redis.call('UNLINK', checkpoint) end
end
"""

START = (
    COMMON
    + """
local anew = ARGV[6]
local was = redis.call('HMGET', record, 'owner', 'epoch', 'ended', 'checkpoint')
local held = elsewhere(was[1])
if anew == '' and was[2] and not was[3] and (held or was[4]) then return false end
if held then
    if ARGV[5] ~= '' then ask(was[1], was[2]) end
    return 'elsewhere'
end
redis.call('DEL', record)
forget(was[4])
return own(was[2])
"""
)

CLAIM = (
    COMMON
    + """
local was = redis.call('HMGET', record, 'owner', 'epoch', 'ended', 'checkpoint')
if elsewhere(was[1]) then
    if ARGV[5] ~= '' then ask(was[1], was[2]) end
    return {'elsewhere'}
end
if not was[4] then return {'none'} end
if was[3] then return {'0', was[4]} end
redis.call('PEXPIRE', was[4], ttl)
return {own(was[2]), was[4]}
"""
)

# A record that the store has lost is made again.
CHANGE = (
    COMMON
    + """
local epoch, change, checkpoint = ARGV[5], ARGV[6], ARGV[7]
local was = redis.call('HMGET', record, 'epoch', 'checkpoint', 'ended')
if was[3] and change ~= 'end' or was[1] and tonumber(was[1]) > tonumber(epoch) then
    forget(checkpoint)
    return 0
end
local gone = change == 'release' or change == 'end'
if not gone then live() end
redis.call('HSET', record, 'epoch', epoch, 'owner', gone and '' or me)
if change == 'end' then redis.call('HSET', record, 'ended', '1') end
if checkpoint then
    redis.call('HSET', record, 'checkpoint', checkpoint)
elseif change == 'save' or change == 'end' then
    redis.call('HDEL', record, 'checkpoint')
elseif was[2] then
    redis.call('PEXPIRE', was[2], ttl)
    was[2] = nil
end
if was[2] ~= checkpoint then forget(was[2]) end
redis.call('PEXPIRE', record, change == 'end' and not checkpoint and math.min(ttl, 30000) or ttl)
return 1
"""
)


RENEW = (
    COMMON
    + """
local steady = redis.call('GET', prefix .. 'steady')
redis.call('SET', prefix .. 'steady', steady or string.format('%.0f', now()), 'PX', math.floor(lease / 2))
return redis.call('SET', prefix .. 'lease:' .. me, '1', 'PX', lease, 'GET')
"""
)


class RedisStore(SequenceStore):
    """Sequences in Redis or Valkey at ``url``, such as redis://localhost:6379/0. Servers with the same ``prefix`` share
    them.

    If a server was silent for ``lease`` seconds (5), others take its sequences. By its own clock, the lease ends
    earlier, and it then checks its sequences before it goes on with them. Raises: Error for a malformed URL.
    """

    def __init__(self, url: str, idle: float, prefix: str = "ovgpu", lease: float | None = None) -> None:
        try:
            pool = BlockingConnectionPool.from_url(
                url,
                max_connections=CONNECTIONS,
                timeout=COMMAND_SECONDS,
                socket_timeout=COMMAND_SECONDS,
                socket_connect_timeout=COMMAND_SECONDS,
                retry=Retry(NoBackoff(), 1),  # all commands may run twice
                retry_on_error=[ConnectionError],  # connections that a restart of the store has ended
            )
        except ValueError as error:  # its text does not have the URL, which may have a password
            raise Error(f"the URL of the store of sequences is malformed: {error}") from None
        self._client: Any = Redis.from_pool(pool)
        arguments = pool.connection_kwargs
        self.address = arguments.get("path") or f"{arguments.get('host', 'localhost')}:{arguments.get('port', 6379)}"
        self._prefix, self._ttl, self._lease = f"{prefix}:", max(round(1000 * idle), 1), lease or LEASE_SECONDS
        self._owner = uuid4().hex
        self._scripts = {text: self._client.register_script(text) for text in (START, CLAIM, CHANGE, RENEW)}
        self._lease_end, self._leases = 0.0, 0  # the time at which the lease ends, and how often it began
        self._checked: dict[Key, tuple[int, int]] = {}  # epochs, and the leases in which they were confirmed
        self._following: asyncio.Task[None] | None = None
        self._is_lost = False  # since the last command that failed, and the log has the reason

    async def open(self, wanted: Callable[[Key, int], None]) -> None:
        """Connect to the store. Raise Error if that fails."""
        try:
            await self._renew()
        except StoreAwayError as error:
            raise Error(error.reason) from None
        self._following = asyncio.create_task(self._follow(wanted))

    async def close(self) -> None:
        if self._following is not None:
            while not self._following.done():  # the client takes some cancellations for its own timeouts
                self._following.cancel()
                await asyncio.wait([self._following], timeout=0.01)
            self._following, self._lease_end = None, 0.0
            try:
                async with self._commands():
                    await self._client.delete(self._name("wanted", self._owner))
                    await self._client.set(self._name("lease", self._owner), "over", px=self._ttl)
            except StoreAwayError as error:
                log.warning("%s", error.reason)
        await self._client.aclose()

    async def _begin(self, key: Key, ask: bool, anew: bool) -> int | None:
        await self._ensure_lease()
        answer = await self._run(START, key, "1" if ask else "", "1" if anew else "")
        if answer == b"elsewhere":
            raise HeldElsewhereError
        return None if answer is None else self._confirmed(key, int(answer))

    async def _claim(self, key: Key, ask: bool) -> Taken | None:
        await self._ensure_lease()
        answer, *name = await self._run(CLAIM, key, "1" if ask else "")
        if answer == b"elsewhere":
            raise HeldElsewhereError
        if answer == b"none":
            return None
        checkpoint, epoch = await self._checkpoint(key, name[0]), int(answer)
        return None if checkpoint is None else Taken(self._confirmed(key, epoch) if epoch else 0, checkpoint)

    async def save(self, key: Key, epoch: int, checkpoint: Checkpoint | None) -> bool:
        return await self._changed(key, epoch, "save", checkpoint)

    async def release(self, key: Key, epoch: int, checkpoint: Checkpoint | None) -> None:
        self._checked.pop(key, None)  # if it is unknown whether this succeeds, the next `check` asks the store
        await self._changed(key, epoch, "release", checkpoint)

    async def end(self, key: Key, epoch: int, checkpoint: Checkpoint | None) -> None:
        self._checked.pop(key, None)
        await self._changed(key, epoch, "end", checkpoint)

    async def ended(self, key: Key) -> Checkpoint | None:
        async with self._commands():
            is_ended, name = await self._client.hmget(self._record(key), "ended", "checkpoint")
        return await self._checkpoint(key, name) if is_ended and name else None

    async def check(self, key: Key, epoch: int) -> bool:
        if time.monotonic() < self._lease_end and self._checked.get(key) == (epoch, self._leases):
            return True
        await self._ensure_lease()
        if not await self._changed(key, epoch, "check"):
            return False
        self._confirmed(key, epoch)
        return True

    async def touch(self, held: Iterable[tuple[Key, int]]) -> None:
        for key, epoch in held:
            await self._changed(key, epoch, "check")

    # ---- commands

    def _name(self, *parts: str) -> str:
        return self._prefix + ":".join(parts)

    def _record(self, key: Key) -> str:
        return self._name("sequence", json.dumps(key))

    async def _checkpoint(self, key: Key, name: bytes) -> Checkpoint | None:
        """Return the checkpoint at a key of the store, None if it is gone."""
        async with self._commands():
            data = await self._client.get(name)
        try:
            return None if data is None else await asyncio.to_thread(decode, data)
        except UNREADABLE as error:
            log.error("sequence %r of model '%s' cannot be read: %s", key[1], key[0], error)
            return None

    def _confirmed(self, key: Key, epoch: int) -> int:
        self._checked[key] = epoch, self._leases
        return epoch

    async def _changed(self, key: Key, epoch: int, change: str, checkpoint: Checkpoint | None = None) -> bool:
        """Make a change of the script `CHANGE`. Return False if the epoch is over."""
        name = []
        if checkpoint is not None:
            data = await asyncio.to_thread(encode, key, checkpoint)
            name.append(self._name("checkpoint", uuid4().hex))
            async with self._commands():  # not in the script, which would copy it several times
                await self._client.set(name[0], data, px=self._ttl)
        if await self._run(CHANGE, key, epoch, change, *name):
            return True
        self._checked.pop(key, None)
        return False

    async def _run(self, script: str, key: Key | None, *arguments: Any) -> Any:
        common = self._prefix, self._owner, self._ttl, round(1000 * self._lease)
        async with self._commands():
            keys = [] if key is None else [self._record(key)]
            return await self._scripts[script](keys=keys, args=[*common, *arguments])

    @asynccontextmanager
    async def _commands(self) -> AsyncIterator[None]:
        """Return a context for commands. Errors become StoreAwayError, and so does a time that is too long.

        The first one of an outage is logged. Before `open` has succeeded, and after `close`, the caller reports it.
        """
        try:
            async with asyncio.timeout(COMMAND_SECONDS):
                yield
        except (RedisError, OSError, TimeoutError) as error:
            cause = str(error) or "it does not answer in time"
            reason = f"the store of sequences at {self.address} is not available: {cause}"
            if self._following is not None and not self._is_lost:
                log.error("%s", reason)
                self._is_lost = True
            raise StoreAwayError(reason) from None

    # ---- lease and messages

    async def _ensure_lease(self) -> None:
        if time.monotonic() >= self._lease_end:
            await self._renew()

    async def _renew(self) -> None:
        """Renew the lease. If it has ended meanwhile, all sequences must be checked before they go on."""
        began = time.monotonic()
        last = await self._run(RENEW, None)
        if last != b"1" or began >= self._lease_end:
            self._leases += 1
        self._lease_end = began + self._lease

    async def _follow(self, wanted: Callable[[Key, int], None]) -> None:
        """Renew the lease, and pass on the messages of other servers."""
        list_name, record_prefix = self._name("wanted", self._owner), self._name("sequence", "")
        poll = min(POLL_SECONDS, self._lease / 4)
        while True:
            try:
                await self._renew()
                async with self._commands():
                    message = await self._client.blpop([list_name], poll)
                if self._is_lost:
                    log.warning("the store of sequences at %s is back", self.address)
                self._is_lost = False
                if message is not None:
                    epoch, _, record = message[1].decode().partition(" ")
                    model, id = json.loads(record.removeprefix(record_prefix))
                    wanted((model, id), int(epoch))
            except StoreAwayError:
                await asyncio.sleep(RETRY_SECONDS)
            except Exception:  # of a message that is malformed: without its lease, the server loses its sequences
                log.exception("a message in the store of sequences is ignored")
                await asyncio.sleep(RETRY_SECONDS)
