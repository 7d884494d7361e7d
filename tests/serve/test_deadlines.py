"""Timers of equal duration."""

from __future__ import annotations

import asyncio
import gc
import weakref
from collections.abc import Coroutine
from typing import Any

import pytest

from ovgpu.serve.deadlines import Deadlines, Limit


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


def test_timers_end_in_the_order_in_which_they_begin() -> None:
    ended: list[int] = []

    async def main() -> None:
        deadlines = Deadlines(0.01)
        timers = [deadlines.start(lambda number=number: ended.append(number)) for number in range(6)]
        for number in (0, 3, 5):  # the first, one in between, and the last
            timers[number].cancel()
            timers[number].cancel()
        while len(ended) < 3:
            await asyncio.sleep(0.001)
        deadlines.start(lambda: ended.append(6))  # after all others have ended
        while len(ended) < 4:
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.03)

    run(main())
    assert ended == [1, 2, 4, 6]


def test_one_timer_of_the_event_loop_serves_all(monkeypatch: pytest.MonkeyPatch) -> None:
    async def main() -> int:
        loop, number = asyncio.get_running_loop(), 0
        call_at = loop.call_at

        def counted(*args: Any, **options: Any) -> asyncio.TimerHandle:
            nonlocal number
            number += 1
            return call_at(*args, **options)

        monkeypatch.setattr(loop, "call_at", counted)
        deadlines = Deadlines(60)
        for _ in range(1000):
            deadlines.start(print).cancel()
        return number

    assert run(main()) == 1


def test_a_cancelled_timer_drops_its_function() -> None:
    class Call:
        def __call__(self) -> None:
            raise AssertionError

    async def main() -> None:
        deadlines, call = Deadlines(60), Call()
        timer, dead = deadlines.start(call), weakref.ref(call)
        del call
        assert dead() is not None
        gc.disable()
        timer.cancel()
        assert dead() is None

    try:
        run(main())
    finally:
        gc.enable()


def test_a_wait_that_takes_too_long() -> None:
    async def main() -> None:
        deadlines = Deadlines(0.01)
        assert await deadlines.limit(asyncio.sleep(0, "in time")) == "in time"
        with pytest.raises(TimeoutError):
            await deadlines.limit(asyncio.sleep(60))
        task = asyncio.current_task()
        assert task is not None and not task.cancelling()
        await asyncio.sleep(0)  # the task goes on

    run(main())


@pytest.mark.parametrize("ended", [True, False])
def test_a_task_that_others_cancel_is_cancelled(ended: bool) -> None:
    """Also if the limit of its wait ends at the same time."""

    async def main() -> None:
        limits: list[Limit] = []

        async def wait() -> None:
            limits.append(Limit())
            await limits[0].wait(asyncio.sleep(60))

        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        if ended:
            limits[0].end(ValueError())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    run(main())


def test_a_function_that_raises_does_not_stop_other_timers(caplog: pytest.LogCaptureFixture) -> None:
    ended: list[int] = []

    def fail() -> None:
        raise OSError("too many open files")

    async def main() -> None:
        deadlines = Deadlines(0.01)
        deadlines.start(fail)
        deadlines.start(lambda: ended.append(1))
        while not ended:
            await asyncio.sleep(0.001)

    run(main())
    assert "too many open files" in caplog.text
