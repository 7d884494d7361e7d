"""Timers of equal duration, which cost less than those of the event loop. Almost all of them are cancelled."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

T = TypeVar("T")

log = logging.getLogger(__name__)


class Timer:
    """A function that is called at a time of the event loop, unless the timer is cancelled before."""

    __slots__ = ("_call", "_running", "at")

    def __init__(self, running: dict[Timer, None], at: float, call: Callable[[], object]) -> None:
        self._running, self.at, self._call = running, at, call
        running[self] = None

    def cancel(self) -> None:
        """Do not call the function, and drop it."""
        self._running.pop(self, None)
        self._call = _nothing

    def end(self) -> None:
        """Call the function."""
        call = self._call
        self.cancel()
        call()


class Deadlines:
    """Timers of one duration in seconds. They end in the order in which they began, so that one timer of the event loop
    serves them all. All methods are called on the thread of the event loop."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._running: dict[Timer, None] = {}  # the next one to end is the first
        self._is_waiting = False

    def start(self, call: Callable[[], object]) -> Timer:
        """Start a timer, at whose end a function is called."""
        loop = asyncio.get_running_loop()
        timer = Timer(self._running, loop.time() + self._seconds, call)
        if not self._is_waiting:
            self._is_waiting = True
            loop.call_at(timer.at, self._end)
        return timer

    async def limit(self, awaited: Awaitable[T]) -> T:
        """Wait for a result. Raise TimeoutError if it takes too long."""
        limit = Limit()
        timer = self.start(partial(limit.end, TimeoutError()))
        try:
            return await limit.wait(awaited)
        finally:
            timer.cancel()

    def _end(self) -> None:
        """End the timers whose time has come, and wait for the next one."""
        loop = asyncio.get_running_loop()
        self._is_waiting, now = False, loop.time()
        while self._running and not self._is_waiting:
            timer = next(iter(self._running))
            if timer.at <= now:
                try:
                    timer.end()
                except Exception:  # the others end nevertheless
                    log.exception("a timer has failed")
            else:
                self._is_waiting = True
                loop.call_at(timer.at, self._end)


class Limit:
    """A wait of the current task that can be ended by an error."""

    __slots__ = ("_cancelling", "_error", "_task")

    def __init__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task, self._cancelling = task, task.cancelling()
        self._error: Exception | None = None

    async def wait(self, awaited: Awaitable[T]) -> T:
        """Wait for a result. Raises: the error of `end`, if that is called before."""
        try:
            return await awaited
        except asyncio.CancelledError:
            if self._error is None or self._task.uncancel() > self._cancelling:
                raise  # others cancel the task
            raise self._error from None

    def end(self, error: Exception) -> None:
        """Have `wait` raise an error."""
        self._error = error
        self._task.cancel()


def _nothing() -> None:
    pass
