"""Pages of KV caches: the allocator against a model that keeps the tokens themselves."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ovgpu.batching.pages import PageAllocator, PoolFullError, Tokens, pages_for, with_room
from ovgpu.ops.fused.kv_cache import NULL_PAGE, PAGE_TOKENS


class Pool(RuleBasedStateMachine):
    """Sequences that append, fork and end, in a pool of a few pages whose tokens are numbers."""

    @initialize(capacity=st.integers(1, 12))
    def begin(self, capacity: int) -> None:
        self.allocator, self.next = PageAllocator(capacity), 1
        self.memory: dict[tuple[int, int], int] = {}  # (page, place) -> token
        self.sequences: list[Tokens] = []
        self.wanted: list[list[int]] = []

    @rule()
    def opens(self) -> None:
        self.sequences.append(Tokens())
        self.wanted.append([])

    @precondition(lambda self: getattr(self, "sequences", None))
    @rule(number=st.integers(0, 99), count=st.integers(1, 40), fails=st.booleans())
    def appends(self, number: int, count: int, fails: bool) -> None:
        i, free = number % len(self.sequences), self.allocator.free
        try:
            tokens, copy = with_room(self.sequences[i], count, self.allocator)
        except PoolFullError as error:
            assert error.missing > 0 and self.allocator.free == free
            self.allocator.extend(self.allocator.capacity + error.missing)
            tokens, copy = with_room(self.sequences[i], count, self.allocator)
        if copy is not None:
            for place in range(PAGE_TOKENS):
                self.memory[copy[1], place] = self.memory.get((copy[0], place), 0)
        for token in range(tokens.length, tokens.length + count):
            self.memory[tokens.pages[token // PAGE_TOKENS], token % PAGE_TOKENS] = self.next
            if not fails:
                self.wanted[i].append(self.next)
            self.next += 1
        if fails:
            self.allocator.recount(self.sequences)
        else:
            self.sequences[i] = Tokens(tokens.pages, tokens.length + count)

    @precondition(lambda self: getattr(self, "sequences", None))
    @rule(number=st.integers(0, 99))
    def forks(self, number: int) -> None:
        i = number % len(self.sequences)
        self.allocator.share(self.sequences[i].pages)
        self.sequences.append(self.sequences[i])
        self.wanted.append(self.wanted[i].copy())

    @precondition(lambda self: getattr(self, "sequences", None))
    @rule(number=st.integers(0, 99))
    def ends(self, number: int) -> None:
        i = number % len(self.sequences)
        self.allocator.release(self.sequences.pop(i).pages)
        del self.wanted[i]

    @invariant()
    def keeps_tokens(self) -> None:
        for (pages, length), wanted in zip(getattr(self, "sequences", ()), getattr(self, "wanted", ())):
            assert len(pages) == pages_for(length) and NULL_PAGE not in pages
            assert [self.memory[pages[i // PAGE_TOKENS], i % PAGE_TOKENS] for i in range(length)] == wanted

    @invariant()
    def counts_pages(self) -> None:
        if hasattr(self, "allocator"):
            held = {page for tokens in self.sequences for page in tokens.pages}
            assert self.allocator.free + len(held) + 1 == self.allocator.capacity

    def teardown(self) -> None:
        if hasattr(self, "allocator"):
            for tokens in self.sequences:
                self.allocator.release(tokens.pages)
            assert self.allocator.free == self.allocator.capacity - 1


Pool.TestCase.settings = settings(max_examples=30, stateful_step_count=30, deadline=None)
TestPool: Any = Pool.TestCase


def test_only_the_last_page_is_copied_and_only_once() -> None:
    """The last holder of a page writes to it in place."""
    allocator = PageAllocator(8)
    parent, _ = with_room(Tokens(), 20, allocator)
    parent = Tokens(parent.pages, 20)
    allocator.share(parent.pages)
    child, copy = with_room(parent, 1, allocator)
    assert copy == (parent.pages[1], child.pages[1]) and child.pages[0] == parent.pages[0]
    assert with_room(parent, 1, allocator) == (parent, None)
    full = Tokens(parent.pages, 32)
    allocator.share(full.pages)
    more, copy = with_room(full, 1, allocator)
    assert copy is None and more.pages[:2] == full.pages and allocator.free == 3


def test_a_full_pool_says_how_many_pages_are_missing() -> None:
    allocator = PageAllocator(3)
    with pytest.raises(PoolFullError, match="needs 2 more pages of 16 tokens") as caught:
        with_room(Tokens(), 4 * PAGE_TOKENS, allocator)
    assert caught.value.missing == 2 and allocator.free == 2


def test_sequences_that_grow_by_turns_keep_consecutive_pages() -> None:
    """While half of the pool is free, each has room behind its pages."""
    allocator, sequences = PageAllocator(256), [Tokens() for _ in range(4)]
    for count in (100, *[PAGE_TOKENS] * 20):
        for i, tokens in enumerate(sequences):
            sequences[i] = Tokens(with_room(tokens, count, allocator)[0].pages, tokens.length + count)
    assert allocator.free > 128
    for pages, _ in sequences:
        assert list(pages) == list(range(pages[0], pages[0] + len(pages)))


def test_a_pool_with_small_gaps_gives_all_of_its_pages() -> None:
    allocator = PageAllocator(9)
    pages = allocator.take(8)
    allocator.release(pages[::2])
    assert sorted(allocator.take(4, pages[1])) == sorted(pages[::2]) and not allocator.free
