"""Boxes on the host: overlaps, and greedy suppression of many groups of boxes at once."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from ovgpu.ops._op import Array

Suppressed = Callable[[Array, Array], Array]


class Boxes:
    """Boxes by their lower and upper corners, [2, n] each; ``extra`` is added to the lengths of all sides.

    A box without an area overlaps nothing.
    """

    def __init__(self, low: Array, high: Array, extra: float = 0) -> None:
        self.low, self.high, self.extra = low, high, np.float32(extra)
        sides = high - low + self.extra
        area = sides[0] * sides[1]
        self.area = np.where(area > 0, area, np.float32(np.inf))

    @classmethod
    def of(cls, boxes: Array, extra: float = 0) -> Boxes:
        """Boxes [n, 4] given by their lower and upper corners."""
        low, high = np.ascontiguousarray(boxes.T).reshape(2, 2, -1)
        return cls(low, high, extra)

    def iou(self, a: Array, b: Array) -> Array:
        """Intersection over union of boxes by number, in f32; the numbers broadcast."""
        sides = np.minimum(self.high[:, a], self.high[:, b])
        sides -= np.maximum(self.low[:, a], self.low[:, b])
        sides += self.extra
        common = np.multiply(*np.maximum(sides, 0, out=sides))
        return common / (self.area[a] + self.area[b] - common)

    def touch(self, a: Array, b: Array) -> Array:
        """Whether boxes have a point in common, before anything is added to their sides."""
        low, high = np.maximum(self.low[:, a], self.low[:, b]), np.minimum(self.high[:, a], self.high[:, b])
        return np.all(low <= high, 0)


def corners(boxes: Array) -> tuple[Array, Array]:
    """The lower and upper corners, [2, n] each, of boxes [n, 4] given by any two opposite ones."""
    first, second = np.ascontiguousarray(boxes.T).reshape(2, 2, -1)
    return np.minimum(first, second), np.maximum(first, second)


def centered(boxes: Array) -> tuple[Array, Array]:
    """The lower and upper corners, [2, n] each, of boxes [n, 4] given by their centres and sides."""
    center, sides = np.ascontiguousarray(boxes.T).reshape(2, 2, -1)
    half = sides * np.float32(0.5)
    return center - half, center + half


def ranked(groups: Array, scores: Array) -> Array:
    """An order by group, then by score, the highest first; of equal scores the first stays first."""
    return np.lexsort((-scores, groups))


def first_of(groups: Array) -> Array:
    """Where each run of equal numbers begins."""
    return np.flatnonzero(np.concatenate([[True], groups[1:] != groups[:-1]])[: groups.size])


def best(groups: Array, limit: int) -> Array:
    """Which of sorted candidates are among the first ``limit`` of their group; all if it is negative."""
    first = first_of(groups)
    rank = np.arange(groups.size) - np.repeat(first, np.diff(first, append=groups.size))
    return rank < limit if limit >= 0 else rank >= 0


def greedy(groups: Array, limit: int, suppressed: Suppressed) -> Array:
    """Numbers, ascending, of the candidates that are kept: of each group in turn the first that is left, which then
    suppresses others of its group; ``limit`` of each group at most.

    Candidates are sorted by group and rank. ``suppressed(best, rest)`` says of each of ``rest`` whether the one of
    its group that is kept, ``best``, suppresses it. All groups take their turns together.
    """
    rest = np.arange(groups.size)
    kept = [rest[:0]]
    for _ in range(limit):
        if not rest.size:
            break
        first = first_of(groups[rest])
        heads = rest[first]
        kept.append(heads)
        best = heads if heads.size == 1 else np.repeat(heads, np.diff(first, append=rest.size))
        gone = suppressed(best, rest)
        gone[first] = True
        rest = rest[~gone]
    return np.sort(np.concatenate(kept))


def soft(groups: Array, scores: Array, limit: int, least: float, weight: Suppressed) -> tuple[Array, Array]:
    """`greedy` that lowers scores instead: ``weight(best, rest)`` is what those of ``rest`` are multiplied by.

    Candidates are sorted by group alone; of equal scores the first is taken. Ends when no score is above ``least``.
    Returns the numbers that are kept, by group and in the order taken, and their scores.
    """
    rest, scores = np.arange(groups.size), scores.copy()
    kept = [rest[:0]]
    for _ in range(limit):
        if not rest.size:
            break
        first = first_of(groups[rest])
        counts = np.diff(first, append=rest.size)
        highest = np.repeat(np.maximum.reduceat(scores[rest], first), counts)
        top = np.flatnonzero(scores[rest] == highest)
        top = top[first_of(groups[rest[top]])]
        heads = rest[top]
        kept.append(heads)
        lower = scores[rest] * weight(np.repeat(heads, counts), rest)
        stays = lower > least
        stays[top] = False
        rest = rest[stays]
        scores[rest] = lower[stays]
    chosen = np.concatenate(kept)
    chosen = chosen[np.argsort(groups[chosen], kind="stable")]
    return chosen, scores[chosen]
