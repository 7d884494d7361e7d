"""Folding of a graph of steps: search for equal blocks, such as the layers of a decoder.

Blocks are first found as a run that repeats in the order of the steps. The graph then tells where a block begins best,
and completes blocks before and after the run whose steps are interleaved with others.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np

MIN_REPEATS = 3  # blocks of a fold
MIN_SAVED = 6  # steps that a fold saves

Fold = list[list[int]]
"""Blocks in order, each a list of steps. The steps at the same position of all blocks are equal."""


class Link(NamedTuple):
    """Link of two steps, given by position: part ``part`` of input ``slot`` of ``reader`` is the result of ``read``."""

    reader: int
    slot: int
    part: int
    read: int


def folds(signatures: Sequence[object], reads: Sequence[Sequence[Sequence[int]]]) -> list[Fold]:
    """Return folds that have no steps in common, in the order of their first steps.

    Equal steps have equal signatures. ``reads`` lists, for each input of each step, the steps that compute it. The run
    that saves the most steps is taken first, then those before and after it.
    """
    code_of: dict[object, int] = {}
    codes = np.array([code_of.setdefault(s, len(code_of)) for s in signatures], np.int64)
    return sorted(_Folder(codes, reads).folds(list(range(len(codes)))), key=lambda fold: fold[0])


class _Folder:
    def __init__(self, codes: np.ndarray, reads: Sequence[Sequence[Sequence[int]]]) -> None:
        self.codes, self.reads = codes, reads
        self.users: list[list[tuple[int, int, int]]] = [[] for _ in codes]  # (step, slot, part) per step
        for step, slots in enumerate(reads):
            for slot, parts in enumerate(slots):
                for part, read in enumerate(parts):
                    self.users[read].append((step, slot, part))

    def folds(self, steps: list[int]) -> Iterator[Fold]:
        first, length, period = self._longest_run(self.codes[steps])
        if not length:
            return
        free, end = set(steps), first + length
        _, fold = max(
            self._grow([steps[i : i + period] for i in range(start, end - period + 1, period)], free)
            for start in range(first, first + min(period, length - 2 * period + 1))
        )
        yield fold
        free -= {step for block in fold for step in block}
        yield from self.folds([step for step in steps[:first] if step in free])
        yield from self.folds([step for step in steps[first:] if step in free])

    def _longest_run(self, codes: np.ndarray) -> tuple[int, int, int]:
        """Return (first, length, period) of the run that saves the most steps; zeros if there is none."""
        best, most = (0, 0, 0), MIN_SAVED - 1
        for period in range(1, len(codes) // MIN_REPEATS + 1):
            equal = codes[:-period] == codes[period:]
            ends = np.flatnonzero(np.diff(np.concatenate(([False], equal, [False])).astype(np.int8)))
            for first, end in zip(ends[::2].tolist(), ends[1::2].tolist()):
                count = (end - first) // period + 1
                if count >= MIN_REPEATS and (count - 1) * period > most:
                    best, most = (first, end - first + period, period), (count - 1) * period
        return best

    def _grow(self, blocks: Fold, free: set[int]) -> tuple[tuple[int, int, int], Fold]:
        """Add equal blocks before and after the given ones. Return the rank of this fold among others, and all blocks.

        Folds with more blocks rank higher, then those whose blocks read fewer steps of the block before, then those
        that begin earlier.
        """
        shape = _Shape(self.codes, self.reads, *blocks[:2])
        free = free - {step for block in blocks for step in block}
        while (block := self._block(self._read_by(blocks[0], shape), shape, free)) is not None:
            blocks.insert(0, block)
            free -= set(block)
        while (block := self._block(self._readers_of(blocks[-1], shape, free), shape, free)) is not None:
            blocks.append(block)
            free -= set(block)
        return (len(blocks), -len({link.read for link in shape.across}), -blocks[0][0]), blocks

    def _read_by(self, block: list[int], shape: _Shape) -> dict[int, int]:
        """Return the steps of the previous block, by position, that ``block`` reads."""
        return {
            link.read: parts[link.part]
            for link in shape.across
            if len(parts := self.reads[block[link.reader]][link.slot]) > link.part
        }

    def _readers_of(self, block: list[int], shape: _Shape, free: set[int]) -> dict[int, int]:
        """Return the steps of the next block, by position, that read ``block``."""
        candidates = {link.reader: self._users(block[link.read], link, shape, free) for link in shape.across}
        return {position: users[0] for position, users in candidates.items() if len(users) == 1}

    def _users(self, step: int, link: Link, shape: _Shape, free: set[int]) -> list[int]:
        return [
            user
            for user, slot, part in self.users[step]
            if user in free and (slot, part) == (link.slot, link.part) and self.codes[user] == shape.codes[link.reader]
        ]

    def _block(self, known: Mapping[int, int], shape: _Shape, free: set[int]) -> list[int] | None:
        """Return the block with the known steps at their positions; None if its steps or links differ."""
        placed, waiting = dict(known), list(known.items())
        while waiting:
            position, step = waiting.pop()
            if step not in free or self.codes[step] != shape.codes[position]:
                return None
            for link in shape.inside[position]:
                if link.reader == position:
                    other, steps = link.read, list(self.reads[step][link.slot][link.part : link.part + 1])
                    if not steps:
                        return None
                else:
                    other, steps = link.reader, self._users(step, link, shape, free)
                    if placed.get(other, -1) in steps:
                        continue
                if len(steps) != 1:
                    continue
                if other not in placed:
                    placed[other] = steps[0]
                    waiting.append((other, steps[0]))
                elif placed[other] != steps[0]:
                    return None
        block = [placed.get(position, -1) for position in range(len(shape.codes))]
        return None if -1 in block or len(set(block)) < len(block) else block


class _Shape:
    """Codes of a block's steps, and their links: ``inside`` it, by position, and ``across`` from the block before."""

    def __init__(
        self, codes: np.ndarray, reads: Sequence[Sequence[Sequence[int]]], before: list[int], block: list[int]
    ) -> None:
        self.codes: list[int] = codes[block].tolist()
        self.inside: list[list[Link]] = [[] for _ in block]
        self.across: list[Link] = []
        position_in, position_before = ({step: position for position, step in enumerate(x)} for x in (block, before))
        for reader, step in enumerate(block):
            for slot, parts in enumerate(reads[step]):
                for part, read in enumerate(parts):
                    if read in position_in:
                        link = Link(reader, slot, part, position_in[read])
                        self.inside[link.reader].append(link)
                        self.inside[link.read].append(link)
                    elif read in position_before:
                        self.across.append(Link(reader, slot, part, position_before[read]))
