"""Sequences that move between replicas, which come, leave and die: without a cluster, in one event loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray.exceptions import ActorDiedError

import ovgpu as ov
from ovgpu.integrations.ray.client import SequenceLostError
from ovgpu.serve import redis_store
from ovgpu.serve.client_sequence import Checkpoints
from ovgpu.serve.engines import EngineOptions, engine_of
from ovgpu.serve.errors import ServeError, Status
from ovgpu.serve.models import Version
from ovgpu.serve.protocol import SequenceStep
from ovgpu.serve.repository import ModelFiles
from ovgpu.serve.sequences import OpenSequences
from ovgpu.serve.statistics import Statistics
from ovgpu.serve.store import MemoryStore, SequenceStore
from tests.batching import nets
from tests.harness.servers.redis import RedisServer, redis_server
from tests.integrations.ray.served import Client

IDLE = 600.0
SLOTS = 16
LEASE = 2.0
VICTIMS = [("replica",), ("store",), ("replica", "store")]


class Method:
    """Method of an actor: ``remote`` returns what can be awaited."""

    def __init__(self, call: Callable[..., Coroutine[Any, Any, Any]]) -> None:
        self.remote = call


class Actor:
    """An actor in this event loop, of which messages take random times. A dead one answers no more."""

    def __init__(self, target: Any, rng: random.Random) -> None:
        self.target, self.died = target, asyncio.Event()
        self._rng = rng
        self.calls = 0  # that have not ended

    def __getattr__(self, name: str) -> Method:
        return Method(partial(self.call, name))

    async def call(self, name: str, *arguments: Any) -> Any:
        """Call a method. Raise ActorDiedError if the actor dies before the answer has arrived."""
        self.calls += 1
        answer = asyncio.ensure_future(self._answer(name, *arguments))
        death = asyncio.ensure_future(self.died.wait())
        try:
            await asyncio.wait((answer, death), return_when=asyncio.FIRST_COMPLETED)
            if self.died.is_set():
                raise ActorDiedError()
            return answer.result()
        finally:
            self.calls -= 1
            death.cancel()
            if self.died.is_set() or not answer.done():
                answer.cancel()

    async def _answer(self, name: str, *arguments: Any) -> Any:
        await asyncio.sleep(self._rng.choice((0, 0, 0.001, 0.01)))
        found = await getattr(self.target, name)(*arguments)
        await asyncio.sleep(self._rng.choice((0, 0, 0.001, 0.01)))
        return found


class Service:
    """Methods of a replica that the client calls, as those of `Replica`, without Ray Serve."""

    def __init__(self, store: SequenceStore | None, checkpoint_steps: int, slots: int, idle: float) -> None:
        options = EngineOptions("CPU", max_sequences=slots, max_wait_ms=1)
        self.engine = engine_of(nets.sums(), "m", options, lambda run: None)
        self.version = Version(
            ModelFiles("m", 1, Path(), ()), self.engine, Statistics(), 1000, lambda version: None, "digest"
        )
        self.sequences = OpenSequences(idle, self._find, store, Checkpoints(checkpoint_steps))
        self.sweeping: asyncio.Task[None] | None = None

    @asynccontextmanager
    async def _find(self, name: str, number: str) -> AsyncIterator[Version | None]:
        yield self.version

    async def open(self) -> None:
        await self.sequences.open()
        self.sweeping = asyncio.create_task(self.sequences.sweep_regularly())

    async def step(self, inputs: Any, id: Any, number: int, is_numbered: bool = True) -> Any:
        step = SequenceStep(id, number == 1, number=number if is_numbered else None)
        found = await self.sequences.infer(self.version, "m", step, lambda version: {0: inputs["x"]})
        return {"y": found.outputs[0], "steps": found.outputs[1]}, found.saved_steps

    async def resume(self, id: Any) -> int:
        return await self.sequences.steps("m", id)

    async def end(self, id: Any) -> None:
        await self.sequences.end("m", id)


class Cluster:
    """Replicas, their store, and a handle for clients.

    The store is one in memory or, if there is a server, in Redis; without ``shared``, each replica has one of its own.
    The cluster routes every call to a random replica or, with ``sticky``, to one that the sequence and the replicas
    determine.
    """

    def __init__(
        self,
        seed: int,
        checkpoint_steps: int = 0,
        slots: int = SLOTS,
        idle: float = IDLE,
        sticky: bool = False,
        shared: bool = True,
        server: RedisServer | None = None,
    ) -> None:
        self.rng, self._sticky = random.Random(seed), sticky
        self._checkpoint_steps, self._slots, self._idle = checkpoint_steps, slots, idle
        self._server, self._shared = server, shared
        self.entries: dict[Any, Any] = {}
        self.replicas: dict[str, Actor] = {}
        self._services: list[Service] = []
        self._number = 0

    def _store(self) -> SequenceStore | None:
        if self._server is not None:
            return redis_store.RedisStore(self._server.url, self._idle, lease=LEASE)
        return MemoryStore(self._idle, self.entries) if self._shared else None

    async def add(self) -> str:
        """Add a replica."""
        self._number += 1
        name = f"r{self._number}"
        service = Service(self._store(), self._checkpoint_steps, self._slots, self._idle)
        self._services.append(service)
        await service.open()
        self.replicas[name] = Actor(service, self.rng)
        return name

    async def kill(self, name: str) -> None:
        """Kill a replica: nothing that it does from now on arrives in the store."""
        actor = self.replicas.pop(name)
        actor.died.set()
        actor.target.sweeping.cancel()
        store = actor.target.sequences._store
        following = getattr(store, "_following", None)
        if following is not None:
            following.cancel()
            await store._client.aclose()
            store._run = store._renew = dead
        else:
            await store.close()
            for method in ("start", "_claim", "save", "release", "end", "ended", "check", "touch"):
                setattr(store, method, dead)

    async def leave(self, name: str) -> None:
        """Let a replica end its calls and leave."""
        actor = self.replicas.pop(name)
        while actor.calls:
            await asyncio.sleep(0.001)
        actor.target.sweeping.cancel()
        assert await actor.target.sequences.close() == 0

    def checkpoints(self) -> list[Any]:
        """Return the checkpoints of open sequences in the store in memory."""
        return [entry.checkpoint for entry in self.entries.values() if entry.checkpoint and not entry.ended]

    def options(self, session_id: str) -> Handle:
        return Handle(self, session_id if self._sticky else None)

    async def close(self) -> None:
        for name in list(self.replicas):
            await self.leave(name)
        for service in self._services:
            service.engine.close()


async def dead(*arguments: Any) -> Any:
    """Wait for ever, as a call that does not arrive."""
    await asyncio.Event().wait()


class Handle:
    """Handle of a deployment for a session."""

    def __init__(self, cluster: Cluster, session: str | None) -> None:
        self._cluster, self._session = cluster, session

    def __getattr__(self, name: str) -> Method:
        return Method(partial(self._call, name))

    async def _call(self, name: str, *arguments: Any) -> Any:
        replicas = self._cluster.replicas
        while not replicas:
            await asyncio.sleep(0.01)
        key = self._cluster.rng.random() if self._session is None else self._session
        return await replicas[min(replicas, key=lambda replica: hash((replica, key)))].call(name, *arguments)


def running(scenario: Callable[[Cluster], Coroutine[Any, Any, None]], **options: Any) -> None:
    """Run a scenario with a cluster."""

    async def run() -> None:
        cluster = Cluster(**{"seed": 0, **options})
        try:
            async with asyncio.timeout(100):
                await scenario(cluster)
        finally:
            await cluster.close()

    asyncio.run(run())


@pytest.fixture(params=["memory", "redis"])
def server(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RedisServer | None]:
    """Yield a server of Redis, or None for a store in memory."""
    if request.param == "memory":
        yield None
    else:
        with redis_server(tmp_path) as found:
            yield found


@pytest.fixture
def durable(tmp_path: Path) -> Iterator[RedisServer]:
    with redis_server(tmp_path) as found:
        yield found


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a store that is away be noticed soon."""
    monkeypatch.setattr(redis_store, "COMMAND_SECONDS", 1.0)


async def restart(store: RedisServer, over: asyncio.Event) -> None:
    """Kill the store twice, and start it again."""
    for pause in (0.1, 2.5):  # leases last, or end
        await asyncio.sleep(0.7)
        store.kill()
        await asyncio.sleep(pause)
        await asyncio.to_thread(store.start)
    await asyncio.sleep(1)
    over.set()


@pytest.mark.drawn(2)
@pytest.mark.parametrize("seed", range(6))
def test_steps_on_random_replicas_that_come_and_leave(seed: int, server: RedisServer | None) -> None:
    """Every step runs on a random replica, while replicas come and leave: no step is lost, doubled, or of another."""

    async def scenario(cluster: Cluster) -> None:
        for _ in range(3):
            await cluster.add()
        clients = [Client(cluster, i, f"s{i}") for i in range(8)]

        async def drive(client: Client) -> None:
            for i in range(24):
                await client.step()
                if i % 10 == 9:
                    await client.close()

        async def change() -> None:
            while True:
                await asyncio.sleep(cluster.rng.random() / 20)
                if len(cluster.replicas) > 1:
                    await cluster.leave(cluster.rng.choice(list(cluster.replicas)))
                await cluster.add()

        changing = asyncio.create_task(change())
        await asyncio.gather(*map(drive, clients))
        changing.cancel()
        await asyncio.wait([changing])

    running(scenario, seed=seed, server=server)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("seed", range(3))
def test_checkpoints_survive_dead_replicas(seed: int, durable: RedisServer) -> None:
    """Replicas die, and the store: sequences go on from checkpoints, each step exactly once."""

    async def scenario(cluster: Cluster) -> None:
        for _ in range(3):
            await cluster.add()
        clients = [Client(cluster, i, i + 1) for i in range(6)]

        async def drive(client: Client) -> None:
            while not over.is_set() or client.steps < 20:
                await client.step()

        async def change() -> None:
            for victims in cluster.rng.choices(VICTIMS, (3, 1, 3), k=5):
                await cluster.add()
                await asyncio.sleep(0.3 + cluster.rng.random() / 10)
                if "replica" in victims:
                    await cluster.kill(cluster.rng.choice(list(cluster.replicas)))
                    await asyncio.sleep(cluster.rng.random() / 20)
                if "store" in victims:
                    durable.kill()
                    await asyncio.sleep(cluster.rng.random() / 2)
                    await asyncio.to_thread(durable.start)
                await asyncio.sleep(0.5)
            over.set()

        over = asyncio.Event()
        await asyncio.gather(change(), *map(drive, clients))

    running(scenario, seed=seed, checkpoint_steps=3, sticky=True, server=durable)


@pytest.mark.drawn(6)
@pytest.mark.parametrize("checkpoint_steps", [0, 1, 3])
@pytest.mark.parametrize("seed", range(2))
def test_the_store_dies_while_sequences_move(seed: int, checkpoint_steps: int, durable: RedisServer) -> None:
    """States that are on their way from one replica to another are not lost, since no replica dies."""

    async def scenario(cluster: Cluster) -> None:
        for _ in range(3):
            await cluster.add()
        clients = [Client(cluster, i, i + 1) for i in range(8)]

        async def drive(client: Client) -> None:
            while not over.is_set() or client.steps < 20:
                await client.step()

        over = asyncio.Event()
        await asyncio.gather(restart(durable, over), *map(drive, clients))

    running(scenario, seed=seed, checkpoint_steps=checkpoint_steps, server=durable)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("checkpoint_steps", [0, 3])
def test_steps_without_numbers_while_the_store_dies(checkpoint_steps: int, durable: RedisServer) -> None:
    """Clients of HTTP do not number their steps. They repeat only those that were refused."""

    async def scenario(cluster: Cluster) -> None:
        for _ in range(3):
            await cluster.add()
        handle = cluster.options("")

        async def answered(id: int, step: int) -> list[int]:
            while True:
                try:
                    found, _ = await handle.step.remote({"x": np.ones((1, nets.SIZE), np.float32)}, id, step, False)
                    return found["steps"].tolist()  # type: ignore[no-any-return]
                except ServeError as error:
                    assert error.status is Status.UNAVAILABLE
                    await asyncio.sleep(0.05)

        async def drive(id: int) -> None:
            step = 0
            while not over.is_set():
                step += 1
                assert await answered(id, step) == [step]

        over = asyncio.Event()
        await asyncio.gather(restart(durable, over), *map(drive, range(1, 9)))

    running(scenario, checkpoint_steps=checkpoint_steps, server=durable)


@pytest.mark.parametrize("checkpoint_steps", [0, 3])
def test_states_of_a_replica_that_has_left_outlive_the_store(checkpoint_steps: int, durable: RedisServer) -> None:
    async def scenario(cluster: Cluster) -> None:
        clients = [Client(cluster, i, i + 1) for i in range(4)]
        first = await cluster.add()
        for client in clients:
            for _ in range(5):
                await client.step()
        await cluster.add()
        await cluster.leave(first)
        durable.kill()
        await asyncio.to_thread(durable.start)
        for client in clients:
            await client.step()

    running(scenario, checkpoint_steps=checkpoint_steps, server=durable)


def test_without_checkpoints_no_copies_are_left() -> None:
    async def scenario(cluster: Cluster) -> None:
        for _ in range(3):
            await cluster.add()
        clients = [Client(cluster, i, i + 1) for i in range(4)]
        for client in clients:
            for _ in range(10):
                await client.step()
        assert len(cluster.entries) == 4
        assert not cluster.checkpoints()

    running(scenario)


def test_a_state_goes_to_the_store_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sent = []

    class Recorder(MemoryStore):
        async def release(self, key: Any, epoch: int, checkpoint: Any) -> None:
            sent.append((key, checkpoint.steps))
            await super().release(key, epoch, checkpoint)

    async def scenario(cluster: Cluster) -> None:
        monkeypatch.setattr(cluster, "_store", lambda: Recorder(IDLE, cluster.entries))
        first, client = await cluster.add(), Client(cluster, id="a")
        await client.step()
        await client.step()
        second = await cluster.add()
        while not len(cluster.replicas[second].target.sequences):
            await client.step()
        assert sent == [(("m", "a"), client.steps - 1)]
        assert not len(cluster.replicas[first].target.sequences)

    running(scenario)


@pytest.mark.parametrize("shared", [True, False])
def test_without_checkpoints_a_dead_replica_loses_its_sequences(shared: bool) -> None:
    async def scenario(cluster: Cluster) -> None:
        first = await cluster.add()
        client = Client(cluster, id="a")
        await client.step()
        await client.step()
        await cluster.kill(first)
        await cluster.add()
        with pytest.raises(SequenceLostError, match="sequence 'a' has lost its steps from 1 on"):
            await client.step()
        await client.close()  # and it can start anew
        await client.step()

    running(scenario, shared=shared)


def test_a_store_that_has_lost_its_data_learns_of_all_sequences(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ovgpu.serve.sequences.TOUCH_SECONDS", 0.1)
    with redis_server(tmp_path, durable=False) as store:

        async def scenario(cluster: Cluster) -> None:
            first = await cluster.add()
            clients = [Client(cluster, i, i) for i in range(1, 5)]
            for client in clients:
                await client.step()
            store.kill()
            store.start()
            import redis

            with redis.Redis(port=store.port) as records:
                while len(records.keys("*sequence*")) < len(clients):
                    await asyncio.sleep(0.05)
            await cluster.add()
            await cluster.add()
            for _ in range(3):
                for client in clients:
                    await client.step()
            await cluster.leave(first)
            for client in clients:
                await client.step()

        running(scenario, server=store)


def test_a_full_replica_gives_back_what_it_cannot_take() -> None:
    async def scenario(cluster: Cluster) -> None:
        first = await cluster.add()
        clients = [Client(cluster, id=i) for i in "abc"]
        for client in clients[:2]:
            await client.step()
        with pytest.raises(ov.BatchFullError, match="all 2 sequences are open"):
            await clients[2].step()
        second = await cluster.add()
        while len(cluster.replicas[second].target.sequences) < 2:
            await clients[0].step()
            await clients[1].step()
        await clients[0].close()
        while len(cluster.replicas[first].target.sequences) + len(cluster.replicas[second].target.sequences) < 2:
            await clients[2].step()
        await clients[1].step()

    running(scenario, slots=2)


def test_a_sequence_that_starts_elsewhere_frees_its_slot() -> None:
    async def scenario(cluster: Cluster) -> None:
        first = await cluster.add()
        client = Client(cluster, id="a")
        await client.step()
        await client.step()
        second = await cluster.add()
        while not len(cluster.replicas[second].target.sequences):
            await Client(cluster, id="a").step()  # another client that starts it anew
        await asyncio.sleep(0.2)
        assert [len(cluster.replicas[name].target.sequences) for name in (first, second)] == [0, 1]
        with pytest.raises(SequenceLostError, match="sequence 'a' has lost its steps from 2 on"):
            await client.step()

    running(scenario)


def test_idle_sequences_end() -> None:
    async def scenario(cluster: Cluster) -> None:
        name = await cluster.add()
        client = Client(cluster, id="a")
        await client.step()
        while len(cluster.replicas[name].target.sequences):
            await asyncio.sleep(0.05)
        assert not cluster.checkpoints()
        with pytest.raises(SequenceLostError):
            await client.step()

    running(scenario, idle=0.3)


def test_a_replica_that_dies_while_it_waits_gets_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """The sequence that it wants goes to the next one."""

    async def scenario(cluster: Cluster) -> None:
        first = await cluster.add()
        client = Client(cluster, id="a")
        await client.step()
        sequence = cluster.replicas[first].target.sequences
        async with sequence.turn(("m", "a"), lambda: None):  # it cannot be handed over now
            second = await cluster.add()
            waiting = asyncio.create_task(cluster.replicas[second].target.resume("a"))
            await asyncio.sleep(0.1)
            await cluster.kill(second)
            third = await cluster.add()
            later = asyncio.create_task(cluster.replicas[third].target.resume("a"))
            await asyncio.sleep(0.1)
        assert await later == 1
        assert not waiting.done()
        waiting.cancel()
        await asyncio.wait([waiting], timeout=1)

    running(scenario)


def test_a_lost_answer_is_given_again() -> None:
    """A step that is repeated with its number runs once; a number that is not the next is refused."""

    async def scenario(cluster: Cluster) -> None:
        service = cluster.replicas[await cluster.add()].target
        x = np.ones((1, nets.SIZE), np.float32)
        await service.step({"x": x}, "a", 1)
        first, _ = await service.step({"x": x}, "a", 2)
        again, _ = await service.step({"x": x}, "a", 2)
        assert first["steps"].tolist() == again["steps"].tolist() == [2]
        with pytest.raises(ServeError, match="step 4 of sequence 'a' cannot follow step 2"):
            await service.step({"x": x}, "a", 4)
        assert await service.resume("a") == 2

    running(scenario)


def test_a_step_that_is_cancelled_counts_once() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.add()
        client = Client(cluster, id="a")
        await client.step()
        for delay in (0, 0.001, 0.002, 0.005, 0.01):
            task = asyncio.create_task(client.sequence.infer_async({"x": np.zeros((1, nets.SIZE), np.float32)}))
            await asyncio.sleep(delay)
            if task.cancel():
                with pytest.raises(asyncio.CancelledError):
                    await task
            client.steps += 1
            await client.step()

    running(scenario)


def test_a_step_that_is_cancelled_is_saved_before_it_is_answered() -> None:
    """A client that repeats a step which was interrupted gets the answer only when no fault can take it back."""

    async def scenario(cluster: Cluster) -> None:
        service, inputs = cluster.replicas[await cluster.add()].target, {"x": np.ones((1, nets.SIZE), np.float32)}
        await service.step(inputs, "a", 1)
        for number in range(2, 40):
            task = asyncio.create_task(service.step(inputs, "a", number))
            for _ in range(cluster.rng.randrange(8)):
                await asyncio.sleep(0)
            await asyncio.sleep(cluster.rng.choice((0, 0.0005, 0.001, 0.002)))
            task.cancel()
            await asyncio.wait([task])
            found, saved = await service.step(inputs, "a", number)
            assert found["steps"].tolist() == [number] == [saved]
            (checkpoint,) = cluster.checkpoints()
            assert checkpoint.steps == checkpoint.answer.number == number
            assert checkpoint.state["n"].data.tolist() == [number]

    running(scenario, checkpoint_steps=1)


@pytest.mark.parametrize("sweep_first", [True, False])
def test_an_idle_sequence_that_gets_a_step(sweep_first: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The step comes while the sequence ends, or just before."""

    async def scenario(cluster: Cluster) -> None:
        service, inputs = cluster.replicas[await cluster.add()].target, {"x": np.ones((1, nets.SIZE), np.float32)}
        sequences = service.sequences
        end = sequences._store.end

        async def slow_end(*arguments: Any) -> None:
            await asyncio.sleep(0.05)
            await end(*arguments)

        monkeypatch.setattr(sequences._store, "end", slow_end)
        await service.step(inputs, "a", 1)
        ((_, sequence),) = sequences.all()
        sequence.used -= 2 * IDLE
        number = 1 if sweep_first else 2  # a sequence that ends can only start anew
        work = [sequences.sweep(), service.step(inputs, "a", number)]
        _, (found, _) = await asyncio.gather(*work) if sweep_first else (await asyncio.gather(*work[::-1]))[::-1]
        assert found["steps"].tolist() == [number]
        assert len(sequences) == len(sequences.all()) == 1
        assert (await service.step(inputs, "a", number + 1))[0]["steps"].tolist() == [number + 1]

    running(scenario)


def test_a_failing_step_changes_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        await cluster.add()
        client = Client(cluster, id="a")
        wrong = {"x": np.ones((1, nets.SIZE + 1), np.float32)}
        with pytest.raises(RuntimeError, match="Parameter"):
            await client.sequence.infer_async(wrong)  # does not start the sequence
        assert not len(next(iter(cluster.replicas.values())).target.sequences)
        await client.step()
        with pytest.raises(RuntimeError, match="Parameter"):
            await client.sequence.infer_async(wrong)
        await client.step()

    running(scenario)
