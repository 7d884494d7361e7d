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

    ``capacity`` counts all pages, among them `NULL_PAGE`, which no sequence gets. Where it can, a sequence gets
    consecutive pages, which the host reads without copies: those behind its own, or some in the middle of a gap, so
    that the sequence in front of it can grow as well.
    """

    def __init__(self, capacity: int = 1) -> None:
        self._counts, self._taken = [1], bytearray(b"\1")  # holders of each page, and whether it has any
        self.extend(capacity)

    @property
    def capacity(self) -> int:
        return len(self._counts)

    @property
    def free(self) -> int:
        """The number of free pages."""
        return self._taken.count(0)

    def extend(self, capacity: int) -> None:
        """Add free pages up to ``capacity`` in all."""
        added = capacity - self.capacity
        self._counts += [0] * added
        self._taken += bytes(added)

    def take(self, count: int, after: int = NULL_PAGE) -> list[int]:
        """Return ``count`` free pages, which then have one holder, if possible those after a page of the sequence.

        Raises: PoolFullError if there are fewer.
        """
        if count > self.free:
            raise PoolFullError(count - self.free)
        pages = list[int]()
        begin = after + 1
        while len(pages) < count:
            wanted = count - len(pages)
            if after == NULL_PAGE or self._taken[begin : begin + 1] != b"\0":
                begin, length = self._gap()
                begin += max(length - wanted, 0) // 2
            end = self._end(begin, begin + wanted)
            pages += range(begin, end)
            self._taken[begin:end] = b"\1" * (end - begin)
            self._counts[begin:end] = [1] * (end - begin)
            begin = after = end
        return pages

    def _gap(self) -> tuple[int, int]:
        """Return the first page and the number of pages of a gap, which has at least half as many as the largest."""
        size = 1 << self.capacity.bit_length()
        while (begin := self._taken.find(bytes(size))) < 0:
            size //= 2
        return begin, self._end(begin, self.capacity) - begin

    def _end(self, begin: int, most: int) -> int:
        """Return the end of the free pages from ``begin`` on, at most ``most``."""
        end = self._taken.find(1, begin, most)
        return min(most, self.capacity) if end < 0 else end

    def share(self, pages: Iterable[int]) -> None:
        """Count one more holder of each page."""
        for page in pages:
            self._counts[page] += 1

    def release(self, pages: Iterable[int]) -> None:
        """Count one holder of each page less. Pages without holders are free."""
        for page in pages:
            self._counts[page] -= 1
            if not self._counts[page]:
                self._taken[page] = 0

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
        self._counts, self._taken = counts, bytearray(map(bool, counts))


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
    kept = pages[:-1] if copies else pages
    new = allocator.take(pages_for(max(count - room, 0)) + copies, kept[-1] if kept else NULL_PAGE)
    if not copies:
        return Tokens((*pages, *new), length), None
    allocator.release(pages[-1:])
    return Tokens((*kept, *new), length), (pages[-1], new[0])
