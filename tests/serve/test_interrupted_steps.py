"""Steps of sequences that are cancelled, repeated or overtaken: none is lost, doubled or left behind."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest

from ovgpu.batching.gathering import Work, begin, complete
from ovgpu.serve.client_sequence import Checkpoints
from ovgpu.serve.errors import ServeError, Status
from ovgpu.serve.protocol import SequenceStep
from ovgpu.serve.sequences import OpenSequences
from ovgpu.serve.store import MemoryStore
from ovgpu.serve.tokens import Role, Token, caller

SLOW = 0.05  # seconds that a store takes


class Outputs(tuple[Any, ...]):
    def to_tuple(self) -> tuple[Any, ...]:
        return self


class Handle:
    """Sequence of an engine, whose state counts steps. They run at once unless the engine is ``held``."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine, self.state, self.works = engine, 0, list[Work]()

    def submit(self, inputs: Any) -> Future[Any]:
        work = Work(None, (), 1, threading.RLock())
        self.works.append(work)
        if not self.engine.held:
            self.run()
        return work

    def run(self) -> None:
        work = self.works.pop(0)
        if begin([work]):
            self.state += 1
            complete([work], [Outputs((np.full(8, self.state)[:1],))])

    def read(self) -> Any:
        return {"n": self.state}

    def close(self) -> None:
        self.engine.open_handles.remove(self)


class FakeEngine:
    stateful = True

    def __init__(self) -> None:
        self.held, self.open_handles = False, list[Handle]()

    def open(self) -> Handle:
        self.open_handles.append(Handle(self))
        return self.open_handles[-1]


class FakeVersion:
    digest, idle_seconds = "", None

    def __init__(self, number: str = "1") -> None:
        self.number, self.engine, self.sequences = number, FakeEngine(), 0

    def add_sequence(self) -> None:
        self.sequences += 1

    def remove_sequence(self) -> None:
        self.sequences -= 1


class SlowStore(MemoryStore):
    async def start(self, key: Any, anew: bool = True) -> int | None:
        epoch = await super().start(key, anew)
        await asyncio.sleep(SLOW)
        return epoch


class Served:
    """Sequences of a model in some versions."""

    def __init__(
        self, store: MemoryStore | None = None, *versions: str, checkpoints: Checkpoints | None = None
    ) -> None:
        self.versions = {number: FakeVersion(number) for number in versions or ("1",)}
        self.sequences = OpenSequences(60, self._find, store, checkpoints)  # type: ignore[arg-type]

    @asynccontextmanager
    async def _find(self, name: str, number: str) -> AsyncIterator[Any]:
        yield self.versions.get(number)

    async def step(self, *flags: str, number: int | None = None, version: str = "1", id: str = "a") -> Any:
        step = SequenceStep(id, "start" in flags, "end" in flags, number=number)
        inputs: dict[int, Any] = {0: np.zeros(3, np.float32)}
        found: Any = self.versions[version]
        return await self.sequences.infer(found, "m", step, lambda version: inputs)

    def is_empty(self) -> bool:
        engines = [version.engine.open_handles for version in self.versions.values()]
        return not self.sequences.all() and not any(engines) and not any(v.sequences for v in self.versions.values())


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_start_that_is_cancelled_leaves_nothing_open(times: int) -> None:
    """Deadlines of gRPC, and disconnects after them, cancel more than once."""

    async def main() -> None:
        token = Token(bytes(32), frozenset(Role), 1)
        caller.set(token)
        served = Served(SlowStore(60))
        for _ in range(3):
            task = asyncio.create_task(served.step("start"))
            for _ in range(times):
                await asyncio.sleep(SLOW / 5)
                task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert served.is_empty() and not token.sequences
        with pytest.raises(ServeError, match="is not open"):
            await served.step()
        await served.step("start")  # the token has its one sequence left

    run(main())


def test_a_step_that_was_cancelled_while_it_ran_is_not_run_again() -> None:
    """Its client repeats it when it has just ended."""

    async def main() -> None:
        served = Served()
        await served.step("start", number=1)
        engine = served.versions["1"].engine
        engine.held = True
        (handle,) = engine.open_handles
        task = asyncio.create_task(served.step(number=2))
        await asyncio.sleep(0.01)
        (work,) = handle.works
        begun = begin([work])
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        again = asyncio.create_task(served.step(number=2))
        handle.state += 1
        complete(begun, [Outputs((np.array([handle.state]),))])
        assert (await again).outputs == (2,) and handle.state == 2
        engine.held = False
        handle.works.clear()
        assert (await served.step(number=3)).outputs == (3,)

    run(main())


def test_a_step_that_can_be_repeated_keeps_no_whole_batch() -> None:
    async def main() -> None:
        served = Served()
        await served.step("start", number=1)
        (_, sequence) = served.sequences.all()[0]
        assert sequence.last is not None and sequence.last.outputs[0].base is None

    run(main())


def test_a_start_with_a_number_runs_on_the_version_of_today() -> None:
    async def main() -> None:
        served = Served(None, "1", "2")
        await served.step("start", number=1)
        await served.step("end", number=2)
        result = await served.step("start", number=1, version="2")
        assert result.version.number == "2" and result.outputs == (1,)
        await served.step("end", number=2)
        assert (await served.step("end", number=2)).outputs == (2,)  # the last one again
        del served.versions["1"]
        assert (await served.step("start", "end", number=1, version="2")).outputs == (1,)
        assert (await served.step("start", "end", number=1, version="2")).outputs == (1,)
        assert served.is_empty()

    run(main())


def test_steps_that_wait_when_the_server_stops_do_not_run() -> None:
    async def main() -> None:
        served = Served(SlowStore(60, {}))
        await served.step("start")
        async with served.sequences.turn(("m", "a"), object):  # type: ignore[arg-type]
            waiting = asyncio.create_task(served.step())
            await asyncio.sleep(0.01)
            closing = asyncio.create_task(served.sequences.close())
            await asyncio.sleep(0.01)
        for task in (waiting, closing):
            await asyncio.wait([task])
        error = waiting.exception()
        assert isinstance(error, ServeError) and error.status in (Status.UNAVAILABLE, Status.NOT_FOUND)
        assert served.is_empty()

    run(main())


def test_a_start_that_waits_for_the_store_when_the_server_stops_does_not_begin() -> None:
    async def main() -> None:
        served = Served(SlowStore(60, {}))
        starting = asyncio.create_task(served.step("start"))
        await asyncio.sleep(SLOW / 5)
        await served.sequences.close()
        with pytest.raises(ServeError, match="the server is stopping"):
            await starting
        assert served.is_empty()

    run(main())


class NotedStore(MemoryStore):
    """Store of a server whose sequences others share. ``saved`` has (id, steps) of each checkpoint."""

    def __init__(self) -> None:
        super().__init__(60, {})
        self.saved: list[tuple[Any, int]] = []

    async def save(self, key: Any, epoch: int, checkpoint: Any) -> bool:
        self.saved.append((key[1], checkpoint.steps))
        return await super().save(key, epoch, checkpoint)


def test_a_step_that_runs_keeps_no_other_sequence_from_being_saved() -> None:
    async def sweep_while_a_step_runs() -> None:
        store = NotedStore()
        served = Served(store, checkpoints=Checkpoints(seconds=0.02))
        for id in ("a", "b"):
            await served.step("start", id=id)
        engine = served.versions["1"].engine
        engine.held = True
        running = asyncio.ensure_future(served.step(id="a"))
        await asyncio.sleep(0.05)
        await served.sequences.sweep()
        assert store.saved == [("b", 1)] and not running.done()
        engine.open_handles[0].run()
        await running
        assert store.saved == [("b", 1), ("a", 2)]  # a sequence that is never idle is saved after its steps

    run(sweep_while_a_step_runs())


def test_a_sweep_that_is_cancelled_ends_its_save_before_the_next_step() -> None:
    """Files are written on other threads, which go on: an older state must not replace that of a later step."""

    class SlowSaves(NotedStore):
        async def save(self, key: Any, epoch: int, checkpoint: Any) -> bool:
            await asyncio.sleep(SLOW)
            return await super().save(key, epoch, checkpoint)

    async def cancel_a_sweep() -> None:
        store = SlowSaves()
        served = Served(store, checkpoints=Checkpoints(seconds=0.02))
        await served.step("start")
        await asyncio.sleep(0.03)
        sweeping = asyncio.create_task(served.sequences.sweep())
        await asyncio.sleep(SLOW / 5)
        sweeping.cancel()
        await served.step()
        assert store.saved[0] == ("a", 1)
        with pytest.raises(asyncio.CancelledError):
            await sweeping

    run(cancel_a_sweep())
