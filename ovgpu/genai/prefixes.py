"""Class Prefixes: beginnings of texts whose KV caches others can share."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

from ovgpu.ops.fused.kv_cache import PAGE_TOKENS

T = TypeVar("T")


class Prefixes(Generic[T]):
    """Texts by the pages of tokens with which they begin."""

    def __init__(self) -> None:
        self._pages: dict[int, tuple[tuple[int, ...], dict[T, None]]] = {}  # tokens and texts
        self._keys: dict[T, list[int]] = {}

    def add(self, tokens: Sequence[int], holder: T) -> None:
        """Add a text, whose place has the KV caches of ``tokens``."""
        keys = self._keys.setdefault(holder, [])
        for number, (key, page) in enumerate(_pages(tokens)):
            known, holders = self._pages.setdefault(key, (page, {}))
            if known != page:  # texts of other tokens have the same hash: all holders of a key begin alike
                break
            if number >= len(keys):
                holders[holder] = None
                keys.append(key)

    def find(self, tokens: Sequence[int]) -> tuple[T, int] | None:
        """Return the last text that begins with the most pages of ``tokens``, and their number of tokens."""
        found = None
        for number, (key, page) in enumerate(_pages(tokens), 1):
            known, holders = self._pages.get(key, (None, {}))
            if known != page:
                break
            found = next(reversed(holders)), number * PAGE_TOKENS
        return found

    def remove(self, holder: T) -> None:
        """Remove a text, whose place closes."""
        for key in self._keys.pop(holder, ()):
            _, holders = self._pages[key]
            del holders[holder]
            if not holders:
                del self._pages[key]


def _pages(tokens: Sequence[int]) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the whole pages of a text, each after a hash of it and of all before it."""
    key = 0
    for begin in range(0, len(tokens) - PAGE_TOKENS + 1, PAGE_TOKENS):
        page = tuple(tokens[begin : begin + PAGE_TOKENS])
        key = hash((key, page))
        yield key, page
