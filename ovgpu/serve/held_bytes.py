"""Class HeldBytes: a limit for the memory of the requests that a server holds at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ovgpu.serve.errors import ServeError, Status


class HeldBytes:
    """Limit for the bytes that requests of all interfaces take together. All methods are called on one thread."""

    def __init__(self, limit: int) -> None:
        self.free = limit

    def reserve(self, size: int) -> None:
        """Count bytes as held. Raise ServeError if this exceeds the limit."""
        if size > self.free:
            raise ServeError(Status.UNAVAILABLE, "the server holds as many bytes of requests as it may", 1)
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
