"""Sequences that move between replicas, which come, leave and die: without a cluster, in one event loop."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

import numpy as np
import pytest
from ray.exceptions import ActorDiedError

import ovgpu as ov
from ovgpu.integrations.ray import directory as directories
from ovgpu.integrations.ray.directory import Directory, NotJoinedError, SequenceLostError
from ovgpu.integrations.ray.sequences import ReplicaSequences, StepNumberError
from ovgpu.integrations.ray.standby import MirroredStates, Standby
from ovgpu.integrations.ray.states import KeptState, SavedSequence, States
from ovgpu.serve.engines import Engine, EngineOptions, engine_of
from tests.batching import nets
from tests.integrations.ray.served import Client

IDLE = 600.0
SLOTS = 16
VICTIMS = [("replica",), ("directory",), ("standby",), ("replica", "directory")]


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
        found = None if name == "__ray_ready__" else await getattr(self.target, name)(*arguments)
        await asyncio.sleep(self._rng.choice((0, 0, 0.001, 0.01)))
        return found


class OrderedActor(Actor):
    """An actor that runs calls in their order, as those without coroutines do."""

    def __init__(self, target: Any, rng: random.Random) -> None:
        super().__init__(target, rng)
        self._turn = asyncio.Lock()

    async def _answer(self, name: str, *arguments: Any) -> Any:
        async with self._turn:
            await asyncio.sleep(self._rng.choice((0, 0, 0.001, 0.01)))
            return getattr(self.target, name)(*arguments)


class Unreachable:
    """An actor as another one sees it: nothing that the other one does after its death arrives there."""

    def __init__(self, actor: Actor, caller: Actor) -> None:
        self._actor, self._caller = actor, caller

    def __getattr__(self, name: str) -> Method:
        return Method(partial(self._call, name))

    async def _call(self, name: str, *arguments: Any) -> Any:
        if self._caller.died.is_set():
            await asyncio.Event().wait()
        return await self._actor.call(name, *arguments)


class Service:
    """Methods of a replica that the client calls, as those of `Replica`, without Ray Serve."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.sequences: Any = None

    async def step(self, inputs: Any, id: Any, number: int, is_numbered: bool = True) -> Any:
        outputs, saved = await self.sequences.infer(
            id, {0: inputs["x"]}, number == 1, False, number if is_numbered else None
        )
        return {"y": outputs[0], "steps": outputs[1]}, saved

    async def resume(self, id: Any) -> int:
        return await self.sequences.resume(id)

    async def end(self, id: Any) -> None:
        await self.sequences.end(id)


class Cluster:
    """Replicas, the directory, its standby, and a handle for clients.

    It routes every call to a random replica or, with ``sticky``, to one that the sequence and the replicas determine.
    """

    def __init__(
        self, seed: int, checkpoint_steps: int = 0, slots: int = SLOTS, idle: float = IDLE, sticky: bool = False
    ) -> None:
        self.rng, self._sticky = random.Random(seed), sticky
        self._checkpoint_steps, self._slots, self._idle = checkpoint_steps, slots, idle
        self.replicas: dict[str, Actor] = {}
        self._engines: list[Engine] = []
        self._number = 0
        self.standby = OrderedActor(Standby(idle), self.rng)
        self.directory = self._new_directory()

    def _new_directory(self) -> Actor:
        actor = Actor(Directory(self._idle, lambda: Unreachable(self.open_standby(), actor)), self.rng)
        return actor

    def open_directory(self) -> Actor:
        if self.directory.died.is_set():
            self.directory = self._new_directory()
        return self.directory

    def open_standby(self) -> Actor:
        if self.standby.died.is_set():
            self.standby = OrderedActor(Standby(self._idle), self.rng)
        return self.standby

    def add(self) -> str:
        """Add a replica."""
        self._number += 1
        name = f"r{self._number}"
        options = EngineOptions("CPU", max_sequences=self._slots, max_wait_ms=1)
        engine = engine_of(nets.sums(), name, options, lambda run: None)
        self._engines.append(engine)
        actor = self.replicas[name] = Actor(Service(engine), self.rng)
        actor.target.sequences = ReplicaSequences(
            engine, name, actor, lambda: Unreachable(self.open_directory(), actor), self._checkpoint_steps, self._idle
        )
        return name

    def kill(self, name: str) -> None:
        """Kill a replica."""
        self.replicas.pop(name).died.set()

    async def leave(self, name: str) -> None:
        """Let a replica end its calls and leave."""
        actor = self.replicas.pop(name)
        while actor.calls:
            await asyncio.sleep(0.001)
        await actor.target.sequences.close()

    def kill_directory(self) -> None:
        self.directory.died.set()

    def kill_standby(self) -> None:
        self.standby.died.set()

    def options(self, session_id: str) -> Handle:
        return Handle(self, session_id if self._sticky else None)

    def close(self) -> None:
        for engine in self._engines:
            engine.close()


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
            cluster.close()

    asyncio.run(run())


@pytest.fixture(autouse=True)
def hasty(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make dead replicas be noticed soon."""
    for name, seconds in (("CHECK_SECONDS", 0.05), ("JOIN_SECONDS", 0.5), ("POLL_SECONDS", 0.2)):
        monkeypatch.setattr(directories, name, seconds)


@pytest.fixture
def patient(hasty: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give replicas the time to join a new directory on a busy machine."""
    monkeypatch.setattr(directories, "JOIN_SECONDS", 2.0)


async def kill_directories(cluster: Cluster, over: asyncio.Event) -> None:
    """Kill two directories, one after the other."""
    for _ in range(2):
        await asyncio.sleep(2.5 + cluster.rng.random() / 5)
        cluster.kill_directory()
    await asyncio.sleep(2.5)
    over.set()


@pytest.mark.drawn(2)
@pytest.mark.parametrize("seed", range(6))
def test_steps_on_random_replicas_that_come_and_leave(seed: int) -> None:
    """Every step runs on a random replica, while replicas come and leave: no step is lost, doubled, or of another."""

    async def scenario(cluster: Cluster) -> None:
        for _ in range(3):
            cluster.add()
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
                cluster.add()

        changing = asyncio.create_task(change())
        await asyncio.gather(*map(drive, clients))
        changing.cancel()

    running(scenario, seed=seed)


@pytest.mark.drawn(3)
@pytest.mark.parametrize("seed", range(3))
def test_checkpoints_survive_dead_replicas(seed: int) -> None:
    """Replicas die, and the directory or its standby: sequences go on from checkpoints, each step exactly once."""

    async def scenario(cluster: Cluster) -> None:
        for _ in range(3):
            cluster.add()
        clients = [Client(cluster, i, i + 1) for i in range(6)]

        async def drive(client: Client) -> None:
            while not over.is_set():
                await client.step()

        async def change() -> None:
            for victims in cluster.rng.choices(VICTIMS, (3, 1, 1, 3), k=6):
                cluster.add()
                await asyncio.sleep(0.3 + cluster.rng.random() / 10)
                if "replica" in victims:
                    cluster.kill(cluster.rng.choice(list(cluster.replicas)))
                    await asyncio.sleep(cluster.rng.random() / 20)
                if "directory" in victims:
                    cluster.kill_directory()
                if "standby" in victims:
                    cluster.kill_standby()
                await asyncio.sleep(0.5)
            over.set()

        over = asyncio.Event()
        await asyncio.gather(change(), *map(drive, clients))
        assert all(client.steps > 20 for client in clients)

    running(scenario, seed=seed, checkpoint_steps=3, sticky=True)


@pytest.mark.drawn(4)
@pytest.mark.parametrize("checkpoint_steps", [0, 3])
@pytest.mark.parametrize("seed", range(2))
@pytest.mark.usefixtures("patient")
def test_the_directory_dies_while_sequences_move(seed: int, checkpoint_steps: int) -> None:
    """States that are on their way from one replica to another are not lost, since no replica dies."""

    async def scenario(cluster: Cluster) -> None:
        for _ in range(3):
            cluster.add()
        clients = [Client(cluster, i, i + 1) for i in range(8)]

        async def drive(client: Client) -> None:
            while not over.is_set():
                await client.step()

        over = asyncio.Event()
        await asyncio.gather(kill_directories(cluster, over), *map(drive, clients))
        assert all(client.steps > 20 for client in clients)

    running(scenario, seed=seed, checkpoint_steps=checkpoint_steps)


@pytest.mark.drawn(2)
@pytest.mark.parametrize("checkpoint_steps", [0, 3])
@pytest.mark.usefixtures("patient")
def test_steps_without_numbers_while_the_directory_dies(checkpoint_steps: int) -> None:
    """Clients of HTTP do not number their steps, and do not repeat any."""

    async def scenario(cluster: Cluster) -> None:
        for _ in range(3):
            cluster.add()
        handle = cluster.options("")

        async def drive(id: int) -> None:
            step = 0
            while not over.is_set():
                step += 1
                found, _ = await handle.step.remote({"x": np.ones((1, nets.SIZE), np.float32)}, id, step, False)
                assert found["steps"].tolist() == [step]

        over = asyncio.Event()
        await asyncio.gather(kill_directories(cluster, over), *map(drive, range(1, 9)))

    running(scenario, checkpoint_steps=checkpoint_steps)


@pytest.mark.parametrize("victims", ["d", "sd", "dsd"])
@pytest.mark.parametrize("checkpoint_steps", [0, 3])
def test_states_of_a_replica_that_has_left_outlive_the_directory(victims: str, checkpoint_steps: int) -> None:
    """The directory (d) and its standby (s) die, one after the other."""

    async def scenario(cluster: Cluster) -> None:
        clients = [Client(cluster, i, i + 1) for i in range(4)]
        first = cluster.add()
        for client in clients:
            for _ in range(5):
                await client.step()
        second = cluster.add()
        await cluster.leave(first)
        for victim in victims:
            if victim == "d":
                cluster.kill_directory()
                await cluster.replicas[second].target.sequences.end("other")  # joins the next directory
            else:
                cluster.kill_standby()
            while (await cluster.directory.target.counts())[2] != len(clients):
                await asyncio.sleep(0.01)
        for client in clients:
            await client.step()

    running(scenario, checkpoint_steps=checkpoint_steps)


def test_without_checkpoints_no_copies_are_left() -> None:
    async def scenario(cluster: Cluster) -> None:
        for _ in range(3):
            cluster.add()
        clients = [Client(cluster, i, i + 1) for i in range(4)]
        for client in clients:
            for _ in range(10):
                await client.step()
        while cluster.standby.target._states:
            await asyncio.sleep(0.01)

    running(scenario)


def test_a_state_goes_to_the_standby_once() -> None:
    sent = []

    class Recorder(Standby):
        def change(self, directory: int, method: Callable[..., None], *arguments: Any) -> None:
            sent.append(method.__name__)
            super().change(directory, method, *arguments)

    async def scenario() -> None:
        standby = OrderedActor(Recorder(IDLE), random.Random(0))
        states = MirroredStates(lambda: standby)
        await states.connect()
        states.forget("a")
        states.park("a", KeptState(1, SavedSequence(1, {})))
        states.give("a", "r1")
        await states.flush()
        assert sent == ["park", "give"]
        assert standby.target._states.checkpoints == states.checkpoints

    asyncio.run(scenario())


def test_a_standby_serves_the_last_directory_only() -> None:
    standby, state = Standby(IDLE), KeptState(1, SavedSequence(1, {}))
    standby.write(1, States({"a": state}))
    assert list(standby.read(2)) == ["a"]
    standby.change(1, States.park, "b", state)
    standby.change(2, States.park, "c", state)
    assert set(standby.read(3)) == {"a", "c"}


def test_without_checkpoints_a_dead_replica_loses_its_sequences() -> None:
    async def scenario(cluster: Cluster) -> None:
        first = cluster.add()
        client = Client(cluster, id="a")
        await client.step()
        await client.step()
        cluster.kill(first)
        cluster.add()
        with pytest.raises(SequenceLostError, match="sequence 'a' has lost its steps from 1 on"):
            await client.step()
        await client.close()  # and it can start anew
        await client.step()

    running(scenario)


def test_a_new_directory_learns_of_all_sequences() -> None:
    async def scenario(cluster: Cluster) -> None:
        first = cluster.add()
        clients = [Client(cluster, i, i) for i in range(1, 5)]
        for client in clients:
            await client.step()
        cluster.kill_directory()
        cluster.add()
        cluster.add()
        for _ in range(3):
            for client in clients:
                await client.step()
        await cluster.leave(first)
        for client in clients:
            await client.step()

    running(scenario)


def test_a_full_replica_gives_back_what_it_cannot_take() -> None:
    async def scenario(cluster: Cluster) -> None:
        first = cluster.add()
        clients = [Client(cluster, id=i) for i in "abc"]
        for client in clients[:2]:
            await client.step()
        with pytest.raises(ov.BatchFullError, match="all 2 sequences are open"):
            await clients[2].step()
        second = cluster.add()
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
        first = cluster.add()
        client = Client(cluster, id="a")
        await client.step()
        await client.step()
        second = cluster.add()
        while not len(cluster.replicas[second].target.sequences):
            await Client(cluster, id="a").step()  # another client that starts it anew
        await asyncio.sleep(0.2)
        assert [len(cluster.replicas[name].target.sequences) for name in (first, second)] == [0, 1]
        with pytest.raises(SequenceLostError, match="sequence 'a' has lost its steps from 2 on"):
            await client.step()

    running(scenario)


def test_idle_sequences_end() -> None:
    async def scenario(cluster: Cluster) -> None:
        name = cluster.add()
        client = Client(cluster, id="a")
        await client.step()
        while len(cluster.replicas[name].target.sequences):
            await asyncio.sleep(0.05)
        assert await cluster.directory.target.counts() == (1, 0, 0)
        with pytest.raises(SequenceLostError):
            await client.step()

    running(scenario, idle=0.3)


def test_a_replica_that_dies_while_it_waits_gets_nothing() -> None:
    """The sequence that it has claimed goes to the next one."""

    async def scenario(cluster: Cluster) -> None:
        directory, saved = cluster.directory.target, SavedSequence(1, {})
        for name in "abc":
            await directory.join(name, cluster.directory, [("s", 1)] if name == "a" else [])
        claim = asyncio.create_task(directory.claim("b", "s"))
        await asyncio.sleep(0.01)
        await directory.leave("b")
        await directory.park("a", ("s", 1), saved)
        with pytest.raises(NotJoinedError, match="replica b has not joined"):
            await claim
        assert (await directory.claim("c", "s"))[0] is saved

    running(scenario)


def test_a_lost_answer_is_given_again() -> None:
    """A step that is repeated with its number runs once; a number that is not the next is refused."""

    async def scenario(cluster: Cluster) -> None:
        service = cluster.replicas[cluster.add()].target
        x = np.ones((1, nets.SIZE), np.float32)
        await service.step({"x": x}, "a", 1)
        first, _ = await service.step({"x": x}, "a", 2)
        again, _ = await service.step({"x": x}, "a", 2)
        assert first["steps"].tolist() == again["steps"].tolist() == [2]
        with pytest.raises(StepNumberError, match="step 4 of sequence 'a' follows step 2"):
            await service.step({"x": x}, "a", 4)
        assert await service.resume("a") == 2

    running(scenario)


def test_a_step_that_is_cancelled_counts_once() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.add()
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


def test_a_failing_step_changes_nothing() -> None:
    async def scenario(cluster: Cluster) -> None:
        cluster.add()
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
