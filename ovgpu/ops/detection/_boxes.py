"""Boxes on the host: overlaps, and greedy suppression of many groups of boxes at once."""

from __future__ import annotations

from collections.abc import Callable
from math import log

import numpy as np

from ovgpu.ops.base.op import Array

Suppressed = Callable[[Array, Array], Array]
TOGETHER = 16  # boxes that suppress at a time
LARGEST = log(1000 / 16)  # logarithm of how much the sides of a box grow


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

    def iou(self, a: Array, b: Array, touching: bool = False) -> Array:
        """Intersection over union of boxes by number, in f32; the numbers broadcast. ``touching`` wants 0 for boxes
        without a point in common, whatever is added to their sides."""
        low_a, low_b, high_a, high_b = (corner.take(i, 1) for corner in (self.low, self.high) for i in (a, b))
        sides = np.minimum(high_a, high_b) - np.maximum(low_a, low_b)
        if self.extra:
            if touching:  # sides below 0 would not do for boxes whose corners are the wrong way round
                sides[:, ((low_a > high_b) | (low_b > high_a)).any(0)] = -self.extra
            sides += self.extra
        common = np.multiply(*np.maximum(sides, 0, out=sides))
        return common / (self.area.take(a) + self.area.take(b) - common)


def corners(boxes: Array) -> tuple[Array, Array]:
    """The lower and upper corners, [2, n] each, of boxes [n, 4] given by any two opposite ones."""
    first, second = np.ascontiguousarray(boxes.T).reshape(2, 2, -1)
    return np.minimum(first, second), np.maximum(first, second)


def centered(boxes: Array) -> tuple[Array, Array]:
    """The lower and upper corners, [2, n] each, of boxes [n, 4] given by their centres and sides."""
    center, sides = np.ascontiguousarray(boxes.T).reshape(2, 2, -1)
    half = sides * np.float32(0.5)
    return center - half, center + half


def moved(boxes: Array, offsets: Array, extra: float, largest: float = LARGEST) -> Array:
    """Boxes [..., 4], given by corners and offsets: those of the centre in sides, and logarithms of how the sides
    grow, at most ``largest``. In f32; ``extra`` belongs to the lengths of all sides."""
    sides = boxes[..., 2:] - boxes[..., :2] + np.float32(extra)
    center = offsets[..., :2] * sides + (boxes[..., :2] + np.float32(0.5) * sides)
    half = np.float32(0.5) * (np.exp(np.minimum(offsets[..., 2:], np.float32(largest))) * sides)
    return np.concatenate([center - half, center + half - np.float32(extra)], -1)


def ranked(groups: Array, scores: Array) -> Array:
    """An order by group, then by score, the highest first; of equal scores the first stays first."""
    order = np.argsort(-scores, kind="stable")
    kind = np.uint16 if groups.max(initial=0) < 2**16 else np.int64  # 16 bits are sorted several times faster
    return order.take(np.argsort(groups.take(order).astype(kind), kind="stable"))


def first_of(groups: Array) -> Array:
    """Where each run of equal numbers begins."""
    return np.flatnonzero(np.concatenate([[True], groups[1:] != groups[:-1]])[: groups.size])


def best(groups: Array, limit: int) -> Array:
    """Which of sorted candidates are among the first ``limit`` of their group; all if it is negative."""
    first = first_of(groups)
    rank = np.arange(groups.size) - np.repeat(first, np.diff(first, append=groups.size))
    return rank < limit if limit >= 0 else rank >= 0


def greedy(groups: Array, limit: int, suppressed: Suppressed, stage: int | None = None) -> Array:
    """Numbers, ascending, of the candidates that are kept: of each group in turn the first that is left, which then
    suppresses others of its group; ``limit`` of each group at most.

    Candidates are sorted by group and rank. ``suppressed(best, rest)`` says of each of ``rest`` whether the one of
    its group that is kept, ``best``, suppresses it. All groups take their turns together, ``stage`` candidates of
    each at a time, of which most often the first suffice; None for all at once.
    """
    first = first_of(groups)
    sizes = np.diff(first, append=groups.size)
    group, rank = np.repeat(np.arange(first.size), sizes), np.arange(groups.size) - np.repeat(first, sizes)
    taken, rounds = np.zeros(first.size, np.intp), [first[:0]]
    stage = stage or max(groups.size, 1)
    for start in range(0, sizes.max(initial=0) if limit else 0, stage):
        rest = np.flatnonzero((rank >= start) & (rank < start + stage) & (taken < limit)[group])
        if first.size == 1:  # several of those kept before at a time
            before = np.concatenate(rounds)
            for some in np.split(before, range(TOGETHER, before.size, TOGETHER)) if before.size else ():
                pairs = np.repeat(some, rest.size), np.tile(rest, some.size)
                rest = rest[~suppressed(*pairs).reshape(some.size, -1).any(0)]
        else:
            for heads in rounds[1:]:
                rest = rest[~_suppressed(heads, rest, group, first.size, suppressed)]
        while rest.size:
            heads = rest[first_of(group.take(rest))]
            taken[group[heads]] += 1
            rounds.append(heads)
            gone = _suppressed(heads, rest, group, first.size, suppressed)
            rest = rest[~(gone | (taken >= limit)[group.take(rest)])]
    return np.sort(np.concatenate(rounds))


def _suppressed(heads: Array, rest: Array, group: Array, count: int, suppressed: Suppressed) -> Array:
    """Which of ``rest`` are a head themselves, or suppressed by that of their group, if it has one."""
    if count == 1:
        return suppressed(heads, rest) | (rest == heads)
    best = np.full(count, -1)
    best[group[heads]] = heads
    best = best.take(group.take(rest))
    return (suppressed(best, rest) & (best >= 0)) | (best == rest)


def above(boxes: Boxes, threshold: float) -> Suppressed:
    """What suppresses boxes that touch a better one and overlap it by more than the threshold."""
    return lambda best, rest: boxes.iou(best, rest, touching=True) > np.float32(threshold)


def falling(overlap: Suppressed, threshold: float, eta: float, count: int,
            beyond: Callable[[Array, np.float32], Array] = np.greater) -> Suppressed:
    """What suppresses, of so many candidates, by a threshold that becomes ``eta`` of what it was in every round, as
    long as it is above 0.5. What it has become counts for the boxes kept before as well. ``beyond`` compares with it.
    """
    limit, largest = np.float32(threshold), np.zeros(count, np.float32)

    def suppressed(kept: Array, rest: Array) -> Array:
        nonlocal limit
        if eta < 1 and limit > 0.5:
            limit *= np.float32(eta)
        largest[rest] = np.maximum(largest[rest], overlap(kept, rest))
        return beyond(largest[rest], limit)

    return suppressed


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
        first = first_of(groups.take(rest))
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
