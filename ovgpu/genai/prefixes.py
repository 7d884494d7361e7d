"""Class Prefixes: beginnings of texts whose KV caches others can share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from ovgpu.ops.fused.kv_cache import PAGE_TOKENS

T = TypeVar("T")


class Prefixes(Generic[T]):
    """Texts by the pages of tokens with which they begin."""

    def __init__(self) -> None:
        self._holders: dict[int, T] = {}  # by the hash of a page and of all before it
        self._tokens: dict[int, tuple[int, ...]] = {}  # of that page, as hashes may be equal
        self._keys: dict[T, list[int]] = {}

    def add(self, tokens: Sequence[int], holder: T) -> None:
        """Add a text, whose place has the KV caches of ``tokens``."""
        for key, page in _pages(tokens):
            if key not in self._holders:
                self._holders[key], self._tokens[key] = holder, page
                self._keys.setdefault(holder, []).append(key)

    def find(self, tokens: Sequence[int]) -> tuple[T, int] | None:
        """Return the text that begins with the most pages of ``tokens``, and their number of tokens."""
        found = None
        for number, (key, page) in enumerate(_pages(tokens), 1):
            if self._tokens.get(key) != page:
                break
            found = self._holders[key], number * PAGE_TOKENS
        return found

    def remove(self, holder: T) -> None:
        """Remove a text, whose place closes."""
        for key in self._keys.pop(holder, ()):
            del self._holders[key], self._tokens[key]


def _pages(tokens: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the whole pages of a text, with a hash of each and of all before it."""
    key = 0
    for begin in range(0, len(tokens) - PAGE_TOKENS + 1, PAGE_TOKENS):
        page = tuple(tokens[begin : begin + PAGE_TOKENS])
        key = hash((key, page))
        yield key, page
