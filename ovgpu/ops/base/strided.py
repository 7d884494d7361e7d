"""Strided tensors as arguments of the kernels of `cuda_kernels/strided.cuh`: axes packed into a struct."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array

RANKS = (2, 4, 8)  # ranks that kernels are instantiated for
THREADS, ITEMS = 256, 4  # threads per block, elements per thread
CHUNK_BYTES = 16  # bytes of adjacent channels that a thread loads at once
_INT, _LONG = np.dtype(np.int32), np.dtype(np.int64)
_BITS = {1: "unsigned char", 2: "unsigned short", 4: "unsigned int", 8: "unsigned long long", 16: "uint4"}


def bits(nbytes: int) -> str:
    """Return the CUDA type that moves elements of ``nbytes`` bytes."""
    return _BITS[nbytes]


def blocks(size: int, each: int = THREADS * ITEMS) -> tuple[int]:
    """Return the grid for ``size`` elements, ``each`` per block."""
    return (-(-size // each),)


def strides_of(x: Array, shape: Sequence[int] | None = None) -> tuple[int, ...]:
    """Return the strides of x in elements, 0 along axes along which x is broadcast to ``shape``."""
    own = tuple(s // x.dtype.itemsize if d != 1 else 0 for s, d in zip(x.strides, x.shape))
    return own if shape is None else (0,) * (len(shape) - len(own)) + own


def has_chunks(x: Array) -> bool:
    """Return whether the channels of x [N, C, ...] are adjacent, in pixels of whole chunks that are aligned."""
    batch, channels, *spatial = strides_of(x)
    return (
        channels == 1
        and x.data.ptr % CHUNK_BYTES == 0
        and not any(n * x.dtype.itemsize % CHUNK_BYTES for n in (x.shape[1], batch, *spatial))
    )


def pixel_step(x: Array) -> int:
    """Return the distance in elements of neighbouring pixels of x [N, C, ...], if its channels are adjacent and all
    pixels of all images follow each other at equal distances; else 0."""
    if x.ndim < 3 or (x.shape[1] > 1 and strides_of(x)[1] != 1):
        return 0
    batch, _, *spatial = strides_of(x)
    axes = Axes.collapse((x.shape[0], *x.shape[2:]), (batch, *spatial))
    if not axes.extents:
        return int(x.shape[1])
    return max(axes.strides[0][0], 0) if len(axes.extents) == 1 else 0


def same_memory(a: Array, b: Array) -> bool:
    """Return whether two arrays of the same shape and type are the same elements in memory."""
    return bool(a.strides == b.strides and _address(a) == _address(b))


def _address(x: Array) -> int:
    return x.__array_interface__["data"][0] if isinstance(x, np.ndarray) else x.data.ptr  # type: ignore[no-any-return]


@dataclass(frozen=True, slots=True)
class Axes:
    """Extents, outermost first, and each operand's strides in elements, for an elementwise walk over several operands.

    ``reach`` is an upper bound of all that a kernel adds to the offsets, and of its other counts.
    """

    extents: tuple[int, ...]
    strides: tuple[tuple[int, ...], ...]
    reach: int = 0

    @staticmethod
    def collapse(extents: Sequence[int], *strides: Sequence[int], reach: int = 0) -> Axes:
        """Return the fewest axes that walk the operands in the same order: neighbouring axes are merged if they can be,
        and axes of extent 1 dropped."""
        merged: list[tuple[int, ...]] = []
        for extent, *steps in zip(extents, *strides):
            if extent == 1:
                continue
            if merged and all(outer == step * extent for outer, step in zip(merged[-1][1:], steps)):
                merged[-1] = (merged[-1][0] * extent, *steps)
            else:
                merged.append((extent, *steps))
        columns = list(zip(*merged)) or [()] * (1 + len(strides))
        return Axes(columns[0], tuple(columns[1:]), reach)

    @property
    def size(self) -> int:
        return prod(self.extents)

    @property
    def rank(self) -> int:
        """The number of axes that a kernel is instantiated for; 0 if there are too many."""
        return next((r for r in RANKS if r >= len(self.extents)), 0)

    @property
    def span(self) -> int:
        """An exclusive upper bound of all offsets and counts."""
        most = 0
        for steps in self.strides:
            reach = 0
            for d, s in zip(self.extents, steps):
                reach += abs(s) * (d - 1)
            most = max(most, reach)
        return max(self.size, self.reach + most + 1)

    @property
    def index(self) -> str:
        """The CUDA type of indices: int if all of them fit, including those past the end in the last block."""
        return "int" if self.span < 2**31 - THREADS * ITEMS else "long long"

    def numbers(self, *values: int) -> list[Any]:
        """Return kernel arguments of the index type."""
        scalar = self._dtype.type
        return [scalar(v) for v in values]

    @property
    def _dtype(self) -> np.dtype[Any]:
        return _INT if self.index == "int" else _LONG

    def packed(self, rank: int = 0) -> np.ndarray[Any, Any]:
        """Return the struct Axes<index, rank, operands> of the kernels; ``rank`` is `Axes.rank` by default."""
        missing = (rank or self.rank) - len(self.extents)
        extents = (1,) * missing + self.extents
        none = (0,) * len(extents)
        magic, shift = zip(*map(reciprocal, extents)) if self.index == "int" else (none, none)
        padded = [(0,) * missing + steps for steps in self.strides]
        return np.array([extents, magic, shift, *padded], np.int64).astype(self._dtype)


def reciprocal(divisor: int) -> tuple[int, int]:
    """Return (magic, shift) with ``n // divisor == ((n * magic >> 32) + n) >> shift`` for n below 2**31: division by
    multiplication (Granlund & Montgomery 1994)."""
    shift = (max(divisor, 1) - 1).bit_length()
    return 2**32 * (2**shift - divisor) // max(divisor, 1) + 1, shift


def vectorized(axes: Axes, itemsize: int, addresses: Sequence[int | None], step: int = 0) -> tuple[Axes, int]:
    """Return the axes in units of the widest elements in which the operands can be moved, and the bytes of one.

    They are at most 16 bytes wide. An operand whose address is None is not moved, and must have stride 0 along the last
    axis. ``step`` is one more stride of the moved operands, in elements.
    """
    if not axes.extents or any(s[-1] != (a is not None) for s, a in zip(axes.strides, addresses)):
        return axes, itemsize
    moved = [s for s, a in zip(axes.strides, addresses) if a is not None]
    counts = (axes.extents[-1], step, *(s for steps in moved for s in steps[:-1]))
    for width in (16, 8, 4, 2):
        factor = width // itemsize
        if factor > 1 and not any(n % factor for n in counts) and not any(a % width for a in addresses if a):
            extents = (*axes.extents[:-1], axes.extents[-1] // factor)
            strides = [s if a is None else (*(n // factor for n in s[:-1]), 1) for s, a in zip(axes.strides, addresses)]
            return Axes.collapse(extents, *strides, reach=axes.reach), width
    return axes, itemsize
