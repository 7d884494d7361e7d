"""Pooling windows along one axis: the elements that each window covers, and their reduction with NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from ovgpu.ops.base.launch import ceildiv
from ovgpu.ops.base.op import Array

Pass = Callable[[Array, Array], None]  # reduces the windows along one axis of its first argument into its second


@dataclass(frozen=True)
class Sliding:
    """Sliding windows: ``count`` windows, ``stride`` apart, of ``size`` elements that are ``dilation`` apart.

    The first window begins ``begin`` elements before the axis. Elements outside the axis are padding.
    """

    extent: int
    count: int
    size: int
    stride: int
    dilation: int = 1
    begin: int = 0

    @property
    def is_identity(self) -> bool:
        """True if every element is a window of its own."""
        return self.size == self.stride == 1 and self.begin == 0 and self.count == self.extent

    def ends(self) -> tuple[Array, Array]:
        """Return the index, in each window, of the first element inside the axis, and the index after the last one."""
        start = np.arange(self.count) * self.stride - self.begin
        first = np.maximum(-(start // self.dilation), 0)
        return first, np.maximum(np.minimum(-((start - self.extent) // self.dilation), self.size), first)

    def inside(self) -> Array:
        """Return the number of elements of each window inside the axis."""
        first, last = self.ends()
        return last - first

    def covered(self) -> list[slice]:
        """Return for each window the slice of the axis that has its elements."""
        start = np.arange(self.count) * self.stride - self.begin
        first, last = self.ends()
        stop = start + np.where(last > first, (last - 1) * self.dilation + 1, first * self.dilation)
        return [slice(*ends, self.dilation) for ends in zip((start + first * self.dilation).tolist(), stop.tolist())]

    def indices(self) -> tuple[Array, Array]:
        """Return the axis positions of the elements of each window (0 if outside), and a mask of the elements inside.
        Both are [count, size]."""
        indices = np.arange(self.count)[:, None] * self.stride + np.arange(self.size) * self.dilation - self.begin
        inside = (indices >= 0) & (indices < self.extent)
        return np.where(inside, indices, 0), inside

    def taps(self) -> list[tuple[slice, slice]]:
        """Return two slices for each element of a window: the windows in which it lies inside the axis, and its
        positions on the axis in these windows. An element that is inside for all windows comes first, if there is
        one."""
        taps = []
        for tap in range(self.size):
            shift = tap * self.dilation - self.begin
            first = max(ceildiv(-shift, self.stride), 0)
            stop = max(min(ceildiv(self.extent - shift, self.stride), self.count), first)
            start = first * self.stride + shift
            taps.append(
                (slice(first, stop), slice(start, start + max((stop - first - 1) * self.stride + 1, 0), self.stride))
            )
        return sorted(taps, key=lambda tap: tap[0] != slice(0, self.count))

    def folding(self, fold: np.ufunc, axis: int, start: Array) -> Pass:
        """Return the pass that reduces windows along ``axis`` with ``fold``; ``start`` [count] has the initial
        values."""
        if self.count < self.size:
            return partial(fold_windows, fold, axis, start, self.covered())
        return partial(fold_taps, fold, axis, start, self.taps())

    def numbers(self) -> tuple[int, ...]:
        """Return the fields of the struct `Windows` in pooling.cu."""
        return self.extent, self.size, self.stride, self.dilation, self.begin


@dataclass(frozen=True)
class Adaptive:
    """Windows of adaptive pooling: ``count`` parts of the axis of about equal length. They overlap where ``count`` does
    not divide the extent."""

    extent: int
    count: int

    @property
    def is_identity(self) -> bool:
        return self.count == self.extent

    def inside(self) -> Array:
        i = np.arange(self.count)
        return -(-(i + 1) * self.extent // self.count) - i * self.extent // self.count

    def covered(self) -> list[slice]:
        return [
            slice(i * self.extent // self.count, ceildiv((i + 1) * self.extent, self.count), 1)
            for i in range(self.count)
        ]

    def indices(self) -> tuple[Array, Array]:
        ends = np.array([(s.start, s.stop) for s in self.covered()]).reshape(-1, 2)
        indices = ends[:, :1] + np.arange(np.ptp(ends, axis=1).max(initial=0))
        inside = indices < ends[:, 1:]
        return np.where(inside, indices, 0), inside

    def folding(self, fold: np.ufunc, axis: int, start: Array) -> Pass:
        return partial(fold_windows, fold, axis, start, self.covered())

    def numbers(self) -> tuple[int, ...]:
        return self.extent, self.count, 0, 1, 0


Windows = Sliding | Adaptive


def fold_windows(
    fold: np.ufunc, axis: int, start: Array, windows: Sequence[slice], source: Array, target: Array
) -> None:
    """Reduce ``source`` into ``target`` window by window; an empty window gives its element of ``start``."""
    lead = (slice(None),) * axis
    for i, window in enumerate(windows):
        into = target[(*lead, slice(i, i + 1))]
        if window.start < window.stop:
            fold.reduce(source[(*lead, window)], axis=axis, dtype=target.dtype, out=into, keepdims=True)
        else:
            into.fill(start[i])


def fold_taps(
    fold: np.ufunc, axis: int, start: Array, taps: Sequence[tuple[slice, slice]], source: Array, target: Array
) -> None:
    """Reduce ``source`` into ``target`` one window element at a time, for all windows at once. The initial value is the
    first element if all windows have it, else ``start``."""
    lead = (slice(None),) * axis
    (windows, indices), *rest = taps
    if windows == slice(0, target.shape[axis]):
        np.copyto(target, source[(*lead, indices)])
    else:
        np.copyto(target, start.reshape(-1, *(1,) * (target.ndim - axis - 1)))
        rest = list(taps)
    for windows, indices in rest:
        into = target[(*lead, windows)]
        fold(into, source[(*lead, indices)], out=into)


def fold_blocks(passes: Sequence[Pass], x: Array, out: Array, scratch: Sequence[Array], divisor: Any) -> None:
    """Run the passes in order on blocks of channels, then divide by ``divisor``, unless it is None. ``scratch`` holds
    the results between passes; its capacity decides the number of channels per block."""
    block = min((len(s) for s in scratch), default=x.shape[1])
    for image, result in zip(x, out):
        for first in range(0, len(image), block):
            source = image[first : first + block]
            for fold, target in zip(passes, (*scratch, result[first : first + block])):
                fold(source, target := target[: len(source)])
                source = target
            if divisor is not None:
                np.divide(source, divisor, out=source)
