"""Class HealthCalls: limits of gRPC's health checking, which anyone may call."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any
from weakref import WeakValueDictionary

from ovgpu.serve.errors import ServeError, Status

MESSAGE_SECONDS = 1.0  # within which a message must arrive
MAX_MESSAGES = 16  # that are received at a time: they do not count as held
MAX_MESSAGES_OF_HOST = 4  # of these


class HealthCalls:
    """Open calls, at most ``most`` at a time, of which a host may have half. One that floods the server leaves the
    rest, and most messages that are received at a time, to others."""

    def __init__(self, most: int) -> None:
        self._most, self._open = most, Counter[str]()  # by host
        self._messages = asyncio.Semaphore(MAX_MESSAGES)
        self._messages_of_host = WeakValueDictionary[str, asyncio.Semaphore]()

    def admit(self, host: str) -> None:
        """Count a call of a host until `end`. Raise ServeError if too many are open."""
        if self._open[host] >= max(self._most // 2, 1) or self._open.total() >= self._most:
            raise ServeError(Status.UNAVAILABLE, f"{self._open.total()} calls of health are open already", 1)
        self._open[host] += 1

    def end(self, host: str) -> None:
        """Count a call as ended."""
        self._open[host] -= 1
        if not self._open[host]:
            del self._open[host]

    async def received(self, context: Any, host: str) -> Any:
        """Return the message of a call. Raise TimeoutError if it is late."""
        of_host = self._messages_of_host.setdefault(host, asyncio.Semaphore(MAX_MESSAGES_OF_HOST))
        async with of_host, self._messages, asyncio.timeout(MESSAGE_SECONDS):
            return await context.read()
