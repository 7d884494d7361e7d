"""Class PageAllocator: the pages of KV caches that sequences share, by reference counts.

A pool has a KV cache's tokens in pages of `PAGE_TOKENS` tokens. A sequence holds pages anywhere in the pool, the same
ones in all KV caches of a model. Sequences with the same first tokens may hold the same pages.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from ovgpu.errors import Error
from ovgpu.ops.fused.kv_cache import NULL_PAGE, PAGE_TOKENS


class PoolFullError(Error):
    """Error for a step that needs more pages than are free in a pool of fixed size. All states are as before it.

    ``missing`` is the number of pages that are to become free before the step can run.
    """

    def __init__(self, missing: int) -> None:
        super().__init__(
            f"the pool of the KV caches is full: a step needs {missing} more pages of {PAGE_TOKENS} tokens"
        )
        self.missing = missing


class Tokens(NamedTuple):
    """Tokens of a sequence: the first ``length`` ones in ``pages``, in order. Only the last page may have room."""

    pages: tuple[int, ...] = ()
    length: int = 0


class PageAllocator:
    """Free pages of a pool, and the number of sequences that hold each of the others.

    ``capacity`` counts all pages, among them `NULL_PAGE`, which no sequence gets.
    """

    def __init__(self, capacity: int = 1) -> None:
        self._counts = [1]
        self._free: list[int] = []  # the last one is taken first
        self.extend(capacity)

    @property
    def capacity(self) -> int:
        return len(self._counts)

    @property
    def free(self) -> int:
        """The number of free pages."""
        return len(self._free)

    def extend(self, capacity: int) -> None:
        """Add free pages up to ``capacity`` in all."""
        self._free[:0] = range(capacity - 1, self.capacity - 1, -1)
        self._counts += [0] * (capacity - self.capacity)

    def take(self, count: int) -> list[int]:
        """Return ``count`` free pages, which then have one holder. Raise PoolFullError if there are fewer."""
        if count > self.free:
            raise PoolFullError(count - self.free)
        pages = [self._free.pop() for _ in range(count)]
        for page in pages:
            self._counts[page] = 1
        return pages

    def share(self, pages: Iterable[int]) -> None:
        """Count one more holder of each page."""
        for page in pages:
            self._counts[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Count one holder of each page less. Pages without holders are free."""
        for page in pages:
            self._counts[page] -= 1
            if not self._counts[page]:
                self._free.append(page)

    def is_shared(self, page: int) -> bool:
        """Return whether several sequences hold a page."""
        return self._counts[page] > 1

    def recount(self, sequences: Iterable[Tokens]) -> None:
        """Count the holders of all pages anew, after an operation that was interrupted."""
        counts = [0] * self.capacity
        counts[NULL_PAGE] = 1
        for tokens in sequences:
            for page in tokens.pages:
                counts[page] += 1
        self._counts, self._free = counts, [page for page in reversed(range(len(counts))) if not counts[page]]


def pages_for(length: int) -> int:
    """Return the number of pages that ``length`` tokens take."""
    return -(-length // PAGE_TOKENS)


def with_room(tokens: Tokens, count: int, allocator: PageAllocator) -> tuple[Tokens, tuple[int, int] | None]:
    """Return a sequence with room for ``count`` > 0 more tokens, and a copy of a page to make first, or None.

    New tokens must not be written to a page that others hold, too: the copy, a pair (page, its copy), takes its place.

    Raises: PoolFullError, before it has taken pages.
    """
    pages, length = tokens
    room = len(pages) * PAGE_TOKENS - length
    copies = room > 0 and allocator.is_shared(pages[-1])
    if count <= room and not copies:
        return tokens, None
    new = allocator.take(pages_for(max(count - room, 0)) + copies)
    if not copies:
        return Tokens((*pages, *new), length), None
    allocator.release(pages[-1:])
    return Tokens((*pages[:-1], *new), length), (pages[-1], new[0])
