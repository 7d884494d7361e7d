"""Arena layout: offsets of buffers, which share memory if their live ranges do not overlap."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from ovgpu.lowering.program import Buffer

MIN_DYNAMIC_BYTES = 16384  # smallest capacity of a tensor of dynamic size; while it fits, its growth moves nothing
ALIGNMENT_BYTES = 64  # a cache line; also suits wide vector loads


@dataclass(frozen=True)
class Layout:
    """Layout of an arena, in bytes: the offset and capacity of each buffer, and the total size ``nbytes``."""

    offsets: tuple[int, ...]
    capacities: tuple[int, ...]
    nbytes: int


def capacity(nbytes: int, dynamic: bool) -> int:
    """Return the bytes to reserve for a tensor of ``nbytes``, a multiple of the alignment. A dynamic size is rounded up
    by at most a quarter, so that a tensor that grows slowly rarely moves others."""
    if dynamic:
        nbytes = max(nbytes, MIN_DYNAMIC_BYTES)
        step = max(ALIGNMENT_BYTES, 1 << max(0, nbytes.bit_length() - 3))
        nbytes = -(-nbytes // step) * step
    return -(-nbytes // ALIGNMENT_BYTES) * ALIGNMENT_BYTES


def lay_out(buffers: Sequence[Buffer], sizes: Sequence[int], dynamic: Sequence[bool]) -> Layout:
    """Lay out buffers by best fit, in order of their first steps. The memory of a buffer is free after its last step.

    ``sizes`` (bytes) and ``dynamic`` (whether a size may change) have one entry per buffer.
    """
    capacities = [capacity(size, d) for size, d in zip(sizes, dynamic)]
    offsets = [0] * len(buffers)
    ends: dict[int, list[int]] = {}
    for i, buffer in enumerate(buffers):
        if buffer.shares < 0:
            ends.setdefault(buffer.last, []).append(i)
    free: list[tuple[int, int]] = []  # (offset, size), by offset, never adjacent
    total, clock, expiring = 0, -1, sorted(ends)
    cursor = 0
    for i in sorted(range(len(buffers)), key=lambda i: buffers[i].first):
        buffer = buffers[i]
        clock = buffer.first
        while cursor < len(expiring) and expiring[cursor] < clock:
            for expired in ends[expiring[cursor]]:
                _release(free, offsets[expired], capacities[expired])
            cursor += 1
        if buffer.shares >= 0:
            offsets[i] = offsets[buffer.shares]
            continue
        fits = [(size, offset) for offset, size in free if size >= capacities[i]]
        if fits:
            size, offset = min(fits)
            free.remove((offset, size))
            if size > capacities[i]:
                insort(free, (offset + capacities[i], size - capacities[i]))
        elif free and free[-1][0] + free[-1][1] == total:  # grow the last hole
            offset, size = free.pop()
            total = offset + capacities[i]
        else:
            offset, total = total, total + capacities[i]
        offsets[i] = offset
    return Layout(tuple(offsets), tuple(capacities), total)


def reserve(allocate: Callable[[int], Any], preferred: int, needed: int) -> tuple[Any, int]:
    """Allocate a block of ``preferred`` bytes, or of ``needed`` bytes if that does not fit. Return (block, bytes)."""
    if preferred > needed:
        with suppress(MemoryError):
            return allocate(preferred), preferred
    return allocate(needed), needed


def _release(free: list[tuple[int, int]], offset: int, size: int) -> None:
    if not size:
        return
    insort(free, (offset, size))
    i = free.index((offset, size))
    for j in (i, i - 1):  # merge with the hole after, then with the one before
        if 0 <= j < len(free) - 1 and free[j][0] + free[j][1] == free[j + 1][0]:
            free[j : j + 2] = [(free[j][0], free[j][1] + free[j + 1][1])]
