"""Stores of sequences: the same cases for the one in memory and the one in Redis, and files."""

from __future__ import annotations

import asyncio
import os
import pickle
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

import ovgpu as ov
from ovgpu.errors import Error
from ovgpu.serve import redis_store, store
from ovgpu.serve.states import UNREADABLE, FolderStore, decode, encode
from ovgpu.serve.store import Answer, Checkpoint, Key, MemoryStore, SequenceStore, StoreError
from ovgpu.types import Type
from tests.harness.servers.redis import RedisServer, redis_server

IDLE = 600.0
KEY: Key = ("m", 'a "b"')
NewStore = Callable[..., SequenceStore]


def checkpoint(steps: int = 1, ended: bool = False, answer: bool = True) -> Checkpoint:
    """Return a checkpoint whose state and answer tell the number of steps."""
    state = {"s": ov.Tensor(np.full((1, 2), steps, np.float32))}
    last = Answer(steps, b"digest", (np.full(3, steps), np.array([b"x", "y"], object)))
    return Checkpoint("1", "digest", steps, None if ended else state, last if answer else None)


def steps_of(found: store.Taken | None) -> int | None:
    """Return the number of steps of a sequence. Its state and answer must tell the same."""
    if found is None:
        return None
    steps, state, answer = found.checkpoint.steps, found.checkpoint.state, found.checkpoint.answer
    assert (state is None) == (found.epoch == 0)
    if state is not None:
        assert state["s"].data.tolist() == [[steps, steps]]
    if answer is not None:
        assert answer.number == steps and answer.outputs[0].tolist() == [steps] * 3
        assert [bytes(text, "ascii") if isinstance(text, str) else text for text in answer.outputs[1]] == [b"x", b"y"]
    return steps


@pytest.fixture(scope="module")
def redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    with redis_server(tmp_path_factory.mktemp("redis"), durable=False) as server:
        yield server


@pytest.fixture(params=["memory", "redis"])
def new_store(request: pytest.FixtureRequest) -> NewStore:
    """Return a function that returns the store of another server. Stores with the same prefix share sequences."""
    if request.param == "memory":
        entries: dict[str, Any] = {}
        return lambda idle=IDLE, prefix="p": MemoryStore(idle, entries.setdefault(prefix, {}))
    url, name = request.getfixturevalue("redis").url, f"{request.node.name}:{time.time_ns()}"
    return lambda idle=IDLE, prefix="p": redis_store.RedisStore(url, idle, f"{name}:{prefix}")


class Server:
    """A server that has sequences, and hands them over when it is asked."""

    def __init__(self, made: SequenceStore) -> None:
        self.store = made
        self.held: dict[Key, tuple[int, int]] = {}  # epoch and steps
        self.tasks: list[asyncio.Task[Any]] = []

    async def open(self) -> Server:
        await self.store.open(self.wanted)
        return self

    def wanted(self, key: Key, epoch: int) -> None:
        own, steps = self.held.get(key, (0, 0))
        if own == epoch:
            del self.held[key]
            self.tasks.append(asyncio.ensure_future(self.store.release(key, epoch, checkpoint(steps))))

    async def start(self, key: Key = KEY) -> int:
        epoch = await self.store.start(key)
        assert epoch is not None
        self.held[key] = epoch, 0
        return epoch

    async def take(self, key: Key = KEY) -> int | None:
        taken = await self.store.take(key)
        if taken is not None and taken.epoch:
            self.held[key] = taken.epoch, taken.checkpoint.steps
        return steps_of(taken)


def running(new_store: NewStore, case: Callable[[Server, Server], Awaitable[None]], **options: Any) -> None:
    """Run a case with two servers."""

    async def run() -> None:
        first, second = [await Server(new_store(**options)).open() for _ in range(2)]
        try:
            async with asyncio.timeout(60):
                await case(first, second)
                await asyncio.gather(*first.tasks, *second.tasks)
        finally:
            await first.store.close()
            await second.store.close()

    asyncio.run(run())


def test_a_server_that_wants_a_sequence_gets_it(new_store: NewStore) -> None:
    """The other server hands it over, and cannot change it any more."""

    async def case(first: Server, second: Server) -> None:
        epoch = await first.start()
        first.held[KEY] = epoch, 7
        assert await second.take() == 7
        later = second.held[KEY][0]
        assert later > epoch
        assert not await first.store.save(KEY, epoch, checkpoint(8))
        await first.store.release(KEY, epoch, checkpoint(8))
        await first.store.end(KEY, epoch, None)
        assert not await first.store.check(KEY, epoch)
        assert await second.store.check(KEY, later)
        second.held[KEY] = later, 9
        assert await first.take() == 9

    running(new_store, case)


def test_a_server_that_dies_leaves_its_last_checkpoint(new_store: NewStore) -> None:
    async def case(first: Server, second: Server) -> None:
        epoch = await first.start()
        assert await first.store.save(KEY, epoch, checkpoint(3))
        await first.start(("m", 2))
        await first.store.close()
        assert await second.take() == 3
        assert await second.take(("m", 2)) is None  # it had none
        assert await second.take(("m", 3)) is None

    running(new_store, case)


def test_a_start_drops_the_sequence_elsewhere(new_store: NewStore) -> None:
    async def case(first: Server, second: Server) -> None:
        epoch = await first.start()
        assert await first.store.save(KEY, epoch, checkpoint(3))
        assert await second.store.start(KEY, anew=False) is None
        assert await first.store.check(KEY, epoch)
        await second.start()
        assert not first.held  # at once: it answers no step of the old sequence any more
        assert not await first.store.check(KEY, epoch)
        await second.store.close()
        assert await first.take() is None  # the state from before the start is gone

    running(new_store, case)


def test_a_checkpoint_can_be_forgotten(new_store: NewStore) -> None:
    async def case(first: Server, second: Server) -> None:
        epoch = await first.start()
        assert await first.store.save(KEY, epoch, checkpoint(3))
        assert await first.store.save(KEY, epoch, None)
        await first.store.close()
        assert await second.take() is None

    running(new_store, case)


def test_a_sequence_that_was_given_up_keeps_its_checkpoint(new_store: NewStore) -> None:
    async def case(first: Server, second: Server) -> None:
        await first.store.release(KEY, await first.start(), checkpoint(3))
        assert await second.store.start(KEY, anew=False) is None
        assert await second.take() == 3
        await second.store.release(KEY, second.held.pop(KEY)[0], None)
        assert await first.take() == 3

    running(new_store, case)


def test_the_last_answer_of_a_sequence_that_has_ended(new_store: NewStore) -> None:
    async def case(first: Server, second: Server) -> None:
        assert await first.store.ended(KEY) is None
        epoch = await first.start()
        await first.store.end(KEY, epoch, checkpoint(5, ended=True))
        assert steps_of(await second.store.take(KEY)) == 5
        assert (await second.store.ended(KEY)).steps == 5  # type: ignore[union-attr]
        assert await second.store.start(KEY, anew=False) is not None
        assert await first.store.ended(KEY) is None
        await second.start(("m", 2))
        later = second.held.pop(("m", 2))[0]
        await second.store.end(("m", 2), later, None)
        assert not await second.store.check(("m", 2), later)
        assert not await second.store.save(("m", 2), later, checkpoint(1))  # one that was under way
        assert await first.take(("m", 2)) is None

    running(new_store, case)


def test_ids_are_numbers_or_strings(new_store: NewStore) -> None:
    async def case(first: Server, second: Server) -> None:
        for steps, key in enumerate([("m", 5), ("m", "5"), ("n", 5), ("m:5", "")]):
            await first.store.release(key, await first.start(key), checkpoint(steps))
        for steps, key in enumerate([("m", 5), ("m", "5"), ("n", 5), ("m:5", "")]):
            assert await second.take(key) == steps

    running(new_store, case)


def test_idle_sequences_are_forgotten(new_store: NewStore) -> None:
    async def case(first: Server, second: Server) -> None:
        held, idle = await first.start(), ("m", "idle")
        assert await first.store.save(KEY, held, checkpoint(1))
        await first.store.release(idle, await first.start(idle), checkpoint(2))
        while await second.store.start(idle, anew=False) is None:
            await first.store.touch([(KEY, held)])
            await asyncio.sleep(0.02)
        first.held[KEY] = held, 1
        assert await second.take() == 1

    running(new_store, case, idle=1.5)


class Sequences(RuleBasedStateMachine):
    """Three servers, and two sequences: whoever takes one has the steps that it has made, or those of a checkpoint."""

    new_store: NewStore
    keys = st.sampled_from([("m", 1), ("m", "1")])
    numbers = st.integers(0, 2)

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.prefix = str(time.time_ns())
        self.servers = [self.run(self.opened()) for _ in range(3)]
        self.saved: dict[Key, int | None] = {}  # steps of open sequences in their checkpoints

    async def opened(self) -> Server:
        return await Server(type(self).new_store(prefix=self.prefix)).open()

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    def holder(self, key: Key) -> Server | None:
        return next((server for server in self.servers if key in server.held), None)

    @rule(number=numbers, key=keys)
    def start(self, number: int, key: Key) -> None:
        self.run(self.servers[number].start(key))
        self.saved[key] = None

    @rule(number=numbers, key=keys)
    def take(self, number: int, key: Key) -> None:
        server, holder = self.servers[number], self.holder(key)
        if holder is server:
            return
        wanted = self.saved.get(key) if holder is None else holder.held[key][1]
        assert self.run(server.take(key)) == wanted
        if wanted is not None:
            self.saved[key] = wanted
        else:
            self.saved.pop(key, None)

    @rule(key=keys, save=st.booleans())
    def step(self, key: Key, save: bool) -> None:
        holder = self.holder(key)
        if holder is not None:
            epoch, steps = holder.held[key]
            assert self.run(holder.store.check(key, epoch))
            holder.held[key] = epoch, steps + 1
            if save:
                assert self.run(holder.store.save(key, epoch, checkpoint(steps + 1)))
                self.saved[key] = steps + 1

    @rule(key=keys)
    def end(self, key: Key) -> None:
        holder = self.holder(key)
        if holder is not None:
            self.run(holder.store.end(key, holder.held.pop(key)[0], None))
            del self.saved[key]

    @rule(number=numbers)
    def die(self, number: int) -> None:
        self.run(self.servers[number].store.close())
        self.servers[number] = self.run(self.opened())

    @invariant()
    def each_sequence_is_on_one_server(self) -> None:
        held = [key for server in self.servers for key in server.held]
        assert len(held) == len(set(held))

    def teardown(self) -> None:
        for server in self.servers:
            self.run(server.store.close())
        self.loop.close()


def test_random_servers(new_store: NewStore) -> None:
    machine = type("Machine", (Sequences,), {"new_store": staticmethod(new_store)})
    run_state_machine_as_test(machine, settings=settings(max_examples=15, stateful_step_count=20, deadline=None))


# ---- memory


def test_answers_of_ended_sequences_are_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest are forgotten, but not their ends."""
    monkeypatch.setattr(store, "MAX_ANSWERS", 3)

    async def run(made: SequenceStore) -> None:
        epochs = []
        for id in range(5):
            epochs.append(await made.start(("m", id)))
            await made.end(("m", id), epochs[-1] or 0, checkpoint(5, ended=True))
            await made.end(("m", "none"), await made.start(("m", "none")) or 0, None)
        assert [await made.ended(("m", id)) is not None for id in range(5)] == [False, False, True, True, True]
        assert await made.take(("m", 0)) is None
        assert not await made.check(("m", 0), epochs[0] or 0)

    asyncio.run(run(MemoryStore(IDLE)))
    asyncio.run(run(FolderStore(tmp_path, IDLE)))


@pytest.mark.parametrize("strings", [False, True])
def test_bytes_of_answers_are_limited(strings: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last one stays, whatever its size."""
    monkeypatch.setattr(store, "MAX_ANSWER_BYTES", 100)

    async def run() -> None:
        made = MemoryStore(IDLE)
        for id, size in enumerate([40, 40, 40, 40, 1000, 40]):
            output = np.array([bytes(size - 8)], object) if strings else np.zeros(size, np.uint8)
            answer = Answer(1, b"digest", (output,))
            await made.end(("m", id), await made.start(("m", id)) or 0, Checkpoint("1", "digest", 1, None, answer))
            kept = [other for other in range(id + 1) if await made.ended(("m", other)) is not None]
            assert kept == [[0], [0, 1], [1, 2], [2, 3], [4], [5]][id]

    asyncio.run(run())


@pytest.mark.parametrize("way", ["start", "idle", "limit"])
def test_answers_that_are_forgotten_are_freed(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MAX_ANSWERS", 1)

    async def run() -> None:
        made, output = MemoryStore(0.05 if way == "idle" else IDLE), np.zeros(3)
        last = Checkpoint("1", "digest", 1, None, Answer(1, b"digest", (output,)))
        await made.end(KEY, await made.start(KEY) or 0, last)
        alive = weakref.ref(output)
        del last, output
        assert alive() is not None
        if way == "start":
            await made.start(KEY)
        elif way == "idle":
            await asyncio.sleep(0.1)
            await made.touch([])
        else:
            await made.end(("m", 2), await made.start(("m", 2)) or 0, checkpoint(1, ended=True))
        assert alive() is None

    asyncio.run(run())


@pytest.mark.parametrize("change", ["save", "release", "end"])
def test_answers_do_not_keep_the_batch_alive(change: str) -> None:
    """They have rows of its outputs. Outputs of one request are not copied."""

    async def run() -> None:
        made, batch, own = MemoryStore(IDLE), np.array([[0.0, 1.0], [2.0, 3.0]]), np.arange(3)
        alive = weakref.ref(batch)
        last = Checkpoint("1", "digest", 1, None, Answer(1, b"digest", (batch[1:], own, own.reshape(1, 3))))
        await getattr(made, change)(KEY, await made.start(KEY), last)
        del batch, last
        assert alive() is None
        taken = await made.take(KEY)
        assert taken is not None and taken.checkpoint.answer is not None
        row, *others = taken.checkpoint.answer.outputs
        assert row.tolist() == [[2.0, 3.0]]
        assert all(np.shares_memory(output, own) for output in others)

    asyncio.run(run())


# ---- Redis


def test_a_store_that_dies_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the store nothing is taken. What a server has is there again, even if the store has lost all data."""
    monkeypatch.setattr(redis_store, "COMMAND_SECONDS", 0.5)
    with redis_server(tmp_path, durable=False) as server:

        async def run() -> None:
            first, second = [await Server(redis_store.RedisStore(server.url, IDLE, lease=1.0)).open() for _ in range(2)]
            epoch = await first.start()
            first.held[KEY] = epoch, 2
            for fault, repair in ((server.kill, server.start), (server.hang, server.resume)):
                fault()
                assert await first.store.check(KEY, epoch)  # while the lease lasts
                with pytest.raises(StoreError, match=r"^the store of sequences is not available$"):
                    await second.store.take(KEY)
                await asyncio.sleep(1.1)
                with pytest.raises(StoreError):
                    await first.store.check(KEY, epoch)
                repair()
                while True:
                    try:
                        assert await first.store.check(KEY, epoch)
                        break
                    except StoreError:
                        await asyncio.sleep(0.05)
            assert await second.take() == 2
            assert not await first.store.check(KEY, epoch)
            await first.store.close()
            await second.store.close()

        asyncio.run(run())


def test_after_an_outage_servers_have_the_time_to_renew_their_leases(tmp_path: Path) -> None:
    """The lease of a server that is alive has ended because the store was away: nobody takes its sequences."""
    with redis_server(tmp_path) as server:

        async def run() -> None:
            first, second = [await Server(redis_store.RedisStore(server.url, IDLE, lease=1.0)).open() for _ in range(2)]
            first.held[KEY] = await first.start(), 6
            await asyncio.sleep(1.1)
            second.store._following.cancel()  # type: ignore[attr-defined]
            server.kill()
            await asyncio.sleep(1.1)
            await asyncio.to_thread(server.start)
            assert await second.take() == 6
            await first.store.close()
            await second.store.close()

        asyncio.run(run())


def test_a_silent_server_loses_its_sequences(redis: RedisServer) -> None:
    """Its lease ends, another server takes its sequence, and it notices when it goes on."""

    async def run() -> None:
        first = await Server(redis_store.RedisStore(redis.url, IDLE, "silent", lease=0.4)).open()
        second = await Server(redis_store.RedisStore(redis.url, IDLE, "silent")).open()
        epoch = await first.start()
        assert await first.store.save(KEY, epoch, checkpoint(4))
        assert first.store._following is not None  # type: ignore[attr-defined]
        first.store._following.cancel()  # type: ignore[attr-defined]
        assert await second.take() == 4
        assert not await first.store.check(KEY, epoch)
        await first.store.close()
        await second.store.close()

    asyncio.run(run())


def test_passwords_are_not_shown(redis: RedisServer) -> None:
    for url in ("redis://:secret@localhost:x", "http://:secret@localhost", "redis://:secret@127.0.0.1:1/0"):

        async def run(url: str) -> None:
            await redis_store.RedisStore(url, IDLE).open(lambda key, epoch: None)

        with pytest.raises(Error) as error:
            asyncio.run(run(url))
        assert "secret" not in str(error.value)
    with pytest.raises(Error, match=r"127.0.0.1:1 is not available"):
        asyncio.run(run("redis://:secret@127.0.0.1:1/0"))


def test_malformed_messages_do_not_end_the_lease(redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """They are logged, and the next message arrives."""
    import redis as client

    async def run() -> None:
        arrived = asyncio.Queue[Key]()
        own, other = [redis_store.RedisStore(redis.url, IDLE, "malformed", lease=2.0) for _ in range(2)]
        await own.open(lambda key, epoch: arrived.put_nowait(key))
        await other.open(lambda key, epoch: None)
        with client.Redis(port=redis.port) as database:
            for message in (b"garbage", b"\xff", b"1 malformed:sequence:[1]"):
                database.rpush(own._name("wanted", own._owner), message)
        assert await own.start(KEY) is not None
        taking = asyncio.create_task(other.start(KEY))
        async with asyncio.timeout(60):
            assert await arrived.get() == KEY
        taking.cancel()
        await asyncio.wait([taking])
        await own.close()
        await other.close()

    asyncio.run(run())
    assert caplog.text.count("a message in the store of sequences is ignored") == 3


# ---- bytes and files


@pytest.mark.parametrize("dtype", [Type.bf16, Type.f16, Type.f64, Type.boolean, Type.i8, Type.u64])
def test_states_keep_their_types_and_bits(dtype: Type) -> None:
    array = np.arange(6).reshape(2, 3).astype(dtype.storage)
    state = {"a/b": ov.Tensor.from_array(array, dtype), "empty": ov.Tensor(np.zeros((1, 0), np.float32))}
    found = decode(encode(KEY, Checkpoint("2", "d", 9, state)))
    assert (found.version, found.digest, found.steps, found.answer) == ("2", "d", 9, None)
    assert found.state is not None and list(found.state) == ["a/b", "empty"]
    assert found.state["a/b"].element_type is dtype
    assert found.state["a/b"].read().tobytes() == array.tobytes()
    assert found.state["empty"].shape == (1, 0)


def test_other_bytes_are_refused_and_not_unpickled() -> None:
    class Trap:
        def __reduce__(self) -> Any:
            return pytest.fail, ("it was unpickled",)

    whole = encode(KEY, checkpoint(2))
    for data in (pickle.dumps(Trap()), b"", whole[:4], whole[:-1], whole[8:]):
        with pytest.raises(UNREADABLE):
            decode(data)
    assert decode(whole).steps == 2


def test_a_folder_keeps_what_cannot_be_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a full disk, the last checkpoint stays."""

    async def run() -> None:
        folder = FolderStore(tmp_path, IDLE)
        epoch = await folder.start(KEY)
        assert epoch is not None
        assert await folder.save(KEY, epoch, checkpoint(1))

        def full(*arguments: Any) -> None:
            raise OSError(28, "No space left on device")

        with monkeypatch.context() as patch:
            patch.setattr("os.fsync", full)
            with pytest.raises(StoreError, match="the state of the sequence cannot be saved"):
                await folder.save(KEY, epoch, checkpoint(2))
        again = FolderStore(tmp_path, IDLE)
        (tmp_path / f".{'0' * 32}.sequence.0123abcd").write_bytes(b"the beginning of a file")
        assert await again.saved() == [(KEY, "1")]
        assert steps_of(await again.take(KEY)) == 1
        assert [file.suffix for file in tmp_path.iterdir()] == [".sequence"]

    asyncio.run(run())


def test_a_start_that_is_not_anew_keeps_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also before the sequence is restored, and while the disk fails. A malformed file is no sequence."""

    async def run() -> None:
        folder = FolderStore(tmp_path, IDLE)
        epoch = await folder.start(KEY, anew=False)
        assert epoch is not None
        assert await folder.save(KEY, epoch, checkpoint(1))
        assert await folder.start(KEY, anew=False) is None
        again = FolderStore(tmp_path, IDLE)
        assert await again.start(KEY, anew=False) is None

        def broken(file: Path) -> bytes:
            raise OSError(5, "Input/output error")

        with monkeypatch.context() as patch:
            patch.setattr(Path, "read_bytes", broken)
            for call in (again.start(KEY, anew=False), again.take(KEY)):
                with pytest.raises(StoreError, match="the state of the sequence cannot be read"):
                    await call
        taken = await again.take(KEY)
        assert taken is not None and steps_of(taken) == 1
        await again.end(KEY, taken.epoch, checkpoint(1, ended=True))
        epoch = await again.start(KEY, anew=False)
        assert epoch is not None
        assert await again.save(KEY, epoch, checkpoint(2))
        (file,) = tmp_path.iterdir()
        file.write_bytes(b"another one's file")
        assert await FolderStore(tmp_path, IDLE).start(KEY, anew=False) is not None
        assert not list(tmp_path.iterdir())

    asyncio.run(run())


def test_a_folder_has_one_server(tmp_path: Path) -> None:
    async def run() -> None:
        first, second = FolderStore(tmp_path, IDLE), FolderStore(tmp_path, IDLE)
        await first.open(lambda *_: None)
        with pytest.raises(Error, match=f"another server saves its states in {tmp_path}"):
            await second.open(lambda *_: None)
        with Path(__file__).open() as other:  # whose descriptor has the number of the one that was closed
            await second.close()
            os.fstat(other.fileno())
        await FolderStore(tmp_path, IDLE).close()
        await first.close()
        await second.open(lambda *_: None)
        await second.close()

    asyncio.run(run())


def test_an_epoch_that_is_over_writes_no_file(tmp_path: Path) -> None:
    async def run() -> None:
        folder = FolderStore(tmp_path, IDLE)
        first, second = [await folder.start(KEY) or 0 for _ in range(2)]
        assert await folder.save(KEY, second, checkpoint(2))
        assert not await folder.save(KEY, first, checkpoint(1))
        assert not await folder.save(KEY, first, None)
        assert steps_of(await FolderStore(tmp_path, IDLE).take(KEY)) == 2

    asyncio.run(run())


def test_files_that_nobody_continues_are_deleted(tmp_path: Path) -> None:
    """Only those that are idle, while a server runs, for longer than sequences may be."""

    async def run() -> None:
        before = FolderStore(tmp_path, IDLE)
        for id in ("held", "idle"):
            assert await before.save(("m", id), await before.start(("m", id)) or 0, checkpoint(1))
        for file in tmp_path.iterdir():
            os.utime(file, (0, 0))
        folder = FolderStore(tmp_path, 0.5)
        taken = await folder.take(("m", "held"))
        assert taken is not None
        await folder.touch([(("m", "held"), taken.epoch)])
        assert len(await folder.saved()) == 2
        await asyncio.sleep(0.6)
        await folder.touch([(("m", "held"), taken.epoch)])
        assert [key for key, _ in await folder.saved()] == [("m", "held")]
        assert await folder.start(("m", "idle"), anew=False) is not None

    asyncio.run(run())
