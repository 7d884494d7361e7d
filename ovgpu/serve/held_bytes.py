"""Classes HeldBytes and HeldAnswers: a limit for the memory of requests and answers that a server holds at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ovgpu.serve.errors import ServeError, Status


class HeldBytes:
    """Limit for the bytes that requests of all interfaces, and answers that are not read, take together.

    All methods are called on one thread.
    """

    def __init__(self, limit: int) -> None:
        self.free = limit

    def reserve(self, size: int) -> None:
        """Count bytes as held. Raise ServeError if this exceeds the limit."""
        if size > self.free:
            raise ServeError(Status.UNAVAILABLE, "the server holds as many bytes of requests and answers as it may", 1)
        self.free -= size

    def keep(self, size: int) -> None:
        """Count bytes of an answer as held, even beyond the limit: its inference has run. Requests are refused then."""
        self.free -= size

    def release(self, size: int) -> None:
        """Count bytes as no longer held."""
        self.free += size

    @contextmanager
    def holding(self, size: int) -> Iterator[None]:
        """Reserve bytes while the block runs."""
        self.reserve(size)
        try:
            yield
        finally:
            self.release(size)


class HeldAnswers:
    """Answers of one stream that its client has not read. They count as held until `close`."""

    def __init__(self, held: HeldBytes) -> None:
        self._held, self._size, self._closed = held, 0, False

    def add(self, size: int) -> None:
        """Count an answer."""
        if not self._closed:
            self._size += size
            self._held.keep(size)

    def remove(self, size: int) -> None:
        """Count an answer as read."""
        self._size -= size
        self._held.release(size)

    def close(self) -> None:
        """Count no answers any more."""
        self._closed = True
        self._held.release(self._size)
