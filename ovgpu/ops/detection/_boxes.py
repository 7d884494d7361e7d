"""Boxes on the host: intersection over union, and greedy non-maximum suppression of many groups of boxes at once."""

from __future__ import annotations

from collections.abc import Callable
from math import log

import numpy as np

from ovgpu.ops.base.op import Array

PairFunction = Callable[[Array, Array], Array]  # its arguments are indices of selected and of remaining boxes
MAX_SUPPRESSORS = 16  # selected boxes compared with the remaining boxes in one call
MAX_LOG_SCALE = log(1000 / 16)  # logarithm of the largest factor by which a side of a box grows


class Boxes:
    """Boxes with lower and upper corners, [2, n] each; ``extra`` is added to the lengths of all sides.

    A box without an area overlaps nothing.
    """

    def __init__(self, low: Array, high: Array, extra: float = 0) -> None:
        self.low, self.high, self.extra = low, high, np.float32(extra)
        sides = high - low + self.extra
        area = sides[0] * sides[1]
        self.area = np.where(area > 0, area, np.float32(np.inf))

    @classmethod
    def of(cls, boxes: Array, extra: float = 0) -> Boxes:
        """Return `Boxes` of an array [n, 4] of lower and upper corners."""
        low, high = np.ascontiguousarray(boxes.T).reshape(2, 2, -1)
        return cls(low, high, extra)

    def iou(self, a: Array, b: Array, touching: bool = False) -> Array:
        """Return the intersection over union, in f32, of boxes by index; the indices ``a`` and ``b`` broadcast. With
        ``touching``, boxes without a common point give 0 even if ``extra`` would let their sides overlap."""
        low_a, low_b, high_a, high_b = (corner.take(i, 1) for corner in (self.low, self.high) for i in (a, b))
        sides = np.minimum(high_a, high_b) - np.maximum(low_a, low_b)
        if self.extra:
            if touching:  # a test for negative sides would be wrong for boxes with swapped corners
                sides[:, ((low_a > high_b) | (low_b > high_a)).any(0)] = -self.extra
            sides += self.extra
        common = np.multiply(*np.maximum(sides, 0, out=sides))
        return common / (self.area.take(a) + self.area.take(b) - common)


def from_corners(boxes: Array) -> tuple[Array, Array]:
    """Return the lower and upper corners, [2, n] each, of boxes [n, 4] given by any two opposite corners."""
    first, second = np.ascontiguousarray(boxes.T).reshape(2, 2, -1)
    return np.minimum(first, second), np.maximum(first, second)


def from_centers(boxes: Array) -> tuple[Array, Array]:
    """Return the lower and upper corners, [2, n] each, of boxes [n, 4] given by centres and sides."""
    center, sides = np.ascontiguousarray(boxes.T).reshape(2, 2, -1)
    half = sides * np.float32(0.5)
    return center - half, center + half


def move_boxes(boxes: Array, offsets: Array, extra: float, largest: float = MAX_LOG_SCALE) -> Array:
    """Return the corners [..., 4], in f32, of boxes [..., 4] moved by the offsets [..., 4].

    The first two offsets move the centre, in units of the sides. The last two are logarithms of the factors by which
    the sides grow, clipped to ``largest``. ``extra`` is added to the lengths of all sides.
    """
    sides = boxes[..., 2:] - boxes[..., :2] + np.float32(extra)
    center = offsets[..., :2] * sides + (boxes[..., :2] + np.float32(0.5) * sides)
    half = np.float32(0.5) * (np.exp(np.minimum(offsets[..., 2:], np.float32(largest))) * sides)
    return np.concatenate([center - half, center + half - np.float32(extra)], -1)


def rank_by_group(groups: Array, scores: Array) -> Array:
    """Return the indices that sort candidates by group, then by descending score; the sort is stable."""
    order = np.argsort(-scores, kind="stable")
    dtype = np.uint16 if groups.max(initial=0) < 2**16 else np.int64  # 16 bits are sorted several times faster
    return order.take(np.argsort(groups.take(order).astype(dtype), kind="stable"))


def find_group_starts(groups: Array) -> Array:
    """Return the index at which each run of equal group numbers begins."""
    return np.flatnonzero(np.concatenate([[True], groups[1:] != groups[:-1]])[: groups.size])


def best(groups: Array, limit: int) -> Array:
    """Return a mask of the first ``limit`` candidates of each group, for candidates sorted by group. A negative limit
    selects all."""
    first = find_group_starts(groups)
    rank = np.arange(groups.size) - np.repeat(first, np.diff(first, append=groups.size))
    return rank < limit if limit >= 0 else rank >= 0


def greedy_nms(groups: Array, limit: int, suppressed: PairFunction, stage_size: int | None = None) -> Array:
    """Return the ascending indices of the candidates that greedy non-maximum suppression selects.

    In each group, the first remaining candidate is selected and suppresses others, until none remains or ``limit``
    are selected. Candidates are sorted by group and rank. ``suppressed(best, rest)`` returns for each index of
    ``rest`` whether ``best``, the box selected in its group, suppresses it. All groups advance together.
    ``stage_size`` candidates of each group are examined at a time, since the first stage is usually enough; None
    examines all at once.
    """
    first = find_group_starts(groups)
    sizes = np.diff(first, append=groups.size)
    group, rank = np.repeat(np.arange(first.size), sizes), np.arange(groups.size) - np.repeat(first, sizes)
    selected_counts, rounds = np.zeros(first.size, np.intp), [first[:0]]
    stage_size = stage_size or max(groups.size, 1)
    for start in range(0, sizes.max(initial=0) if limit else 0, stage_size):
        rest = np.flatnonzero((rank >= start) & (rank < start + stage_size) & (selected_counts < limit)[group])
        if first.size == 1:  # one group: several selected boxes of earlier stages suppress in one call
            before = np.concatenate(rounds)
            for chunk in np.split(before, range(MAX_SUPPRESSORS, before.size, MAX_SUPPRESSORS)) if before.size else ():
                pairs = np.repeat(chunk, rest.size), np.tile(rest, chunk.size)
                rest = rest[~suppressed(*pairs).reshape(chunk.size, -1).any(0)]
        else:
            for heads in rounds[1:]:
                rest = rest[~_suppressed(heads, rest, group, first.size, suppressed)]
        while rest.size:
            heads = rest[find_group_starts(group.take(rest))]
            selected_counts[group[heads]] += 1
            rounds.append(heads)
            removed = _suppressed(heads, rest, group, first.size, suppressed)
            rest = rest[~(removed | (selected_counts >= limit)[group.take(rest)])]
    return np.sort(np.concatenate(rounds))


def _suppressed(heads: Array, rest: Array, group: Array, count: int, suppressed: PairFunction) -> Array:
    """Return a mask of the indices of ``rest`` that are heads, or suppressed by the head of their group.
    ``heads`` are the boxes selected last, at most one per group."""
    if count == 1:
        return suppressed(heads, rest) | (rest == heads)
    leader = np.full(count, -1)
    leader[group[heads]] = heads
    leader = leader.take(group.take(rest))
    return (suppressed(leader, rest) & (leader >= 0)) | (leader == rest)


def above_threshold(boxes: Boxes, threshold: float) -> PairFunction:
    """Return a test that suppresses a box if it touches a better box and their IoU exceeds the threshold."""
    return lambda best, rest: boxes.iou(best, rest, touching=True) > np.float32(threshold)


def decaying_threshold(
    overlap: PairFunction,
    threshold: float,
    eta: float,
    count: int,
    exceeds: Callable[[Array, np.float32], Array] = np.greater,
) -> PairFunction:
    """Return a suppression test for ``count`` candidates. Every round multiplies its threshold by ``eta``, as long as
    the threshold is above 0.5. A lowered threshold also applies to overlaps with the boxes selected before.

    ``exceeds`` compares an overlap with the threshold.
    """
    limit, largest = np.float32(threshold), np.zeros(count, np.float32)

    def suppressed(selected: Array, rest: Array) -> Array:
        nonlocal limit
        if eta < 1 and limit > 0.5:
            limit *= np.float32(eta)
        largest[rest] = np.maximum(largest[rest], overlap(selected, rest))
        return exceeds(largest[rest], limit)

    return suppressed


def soft_nms(groups: Array, scores: Array, limit: int, min_score: float, weight: PairFunction) -> tuple[Array, Array]:
    """Return the indices of the candidates that Soft-NMS (Bodla et al. 2017) selects, and their scores.

    A selected box lowers the scores of others instead of removing them: ``weight(best, rest)`` is the factor of each
    score of ``rest``. Candidates are sorted by group alone; of equal scores the first is selected. A group ends after
    ``limit`` selections or when no score is above ``min_score``. The result is ordered by group, then by selection.
    """
    rest, scores = np.arange(groups.size), scores.copy()
    selected = [rest[:0]]
    for _ in range(limit):
        if not rest.size:
            break
        first = find_group_starts(groups.take(rest))
        counts = np.diff(first, append=rest.size)
        highest = np.repeat(np.maximum.reduceat(scores[rest], first), counts)
        top = np.flatnonzero(scores[rest] == highest)
        top = top[find_group_starts(groups[rest[top]])]
        heads = rest[top]
        selected.append(heads)
        lower = scores[rest] * weight(np.repeat(heads, counts), rest)
        stays = lower > min_score
        stays[top] = False
        rest = rest[stays]
        scores[rest] = lower[stays]
    chosen = np.concatenate(selected)
    chosen = chosen[np.argsort(groups[chosen], kind="stable")]
    return chosen, scores[chosen]
