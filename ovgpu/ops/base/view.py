"""Views: tensors that lie in another tensor's memory. Strides and offsets are in elements, and may be symbolic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ovgpu.symbolic import Int, Sym, bounds, product

IMAGE_RANK = 4  # of tensors [N, C, H, W], which the planner may lay out with their channels last


def dense_strides(shape: Sequence[Int]) -> tuple[Int, ...]:
    """Return the row-major strides of a contiguous tensor."""
    strides: list[Int] = []
    step: Int = 1
    for dim in reversed(shape):
        strides.append(step)
        step = step * dim
    return tuple(reversed(strides))


@dataclass(frozen=True, slots=True)
class View:
    """A strided view: the element of index ``i`` lies at ``offset + dot(strides, i)`` of the viewed memory."""

    shape: tuple[Int, ...]
    strides: tuple[Int, ...]
    offset: Int = 0

    @staticmethod
    def dense(shape: Sequence[Int]) -> View:
        return View(tuple(shape), dense_strides(shape))

    @staticmethod
    def channels_last(shape: Sequence[Int]) -> View:
        """Return the view [N, C, ...] of a dense tensor [N, ..., C]: the channels of a pixel are adjacent."""
        batch, channels, *spatial = shape
        dense = View.dense((batch, *spatial, channels))
        return dense.permute((0, len(shape) - 1, *range(1, len(shape) - 1)))

    @staticmethod
    def with_capacity(shape: Sequence[Int], axis: int, row: Int) -> View:
        """Return a row-major view of memory with spare capacity along ``axis``: the stride of the axis before it is
        ``row``, the capacity times the elements per index of ``axis``."""
        outer = tuple(row * s for s in dense_strides(shape[:axis]))
        return View(tuple(shape), (*outer, *dense_strides(shape[axis:])))

    @property
    def is_dense(self) -> bool:
        """True if the view is provably row-major without gaps; strides of axes of extent 1 do not matter."""
        expected: Int = 1
        for dim, stride in zip(reversed(self.shape), reversed(self.strides)):
            if not equal(dim, 1) and not equal(stride, expected):
                return False
            expected = expected * dim
        return True

    @property
    def is_channels_last(self) -> bool:
        """True if the view is provably the one of `channels_last`; strides of axes of extent 1 do not matter."""
        return self.permute((0, *range(2, len(self.shape)), 1)).is_dense

    def has_pixels(self, multiple: int = 1) -> bool:
        """Return whether the channels of [N, C, ...] are adjacent, and all pixels provably follow each other at equal
        distances, as in some channels of a channels-last tensor. The number of channels, the offset and the distance of
        pixels must be multiples of ``multiple``."""
        batch, channels, *spatial = zip(self.shape, self.strides)
        step = expected = None
        for dim, stride in reversed([batch, *spatial]):
            if equal(dim, 1):
                continue
            step = stride if step is None else step
            if expected is not None and not equal(stride, expected):
                return False
            expected = stride * dim
        numbers = [n for n in (channels[0], step, self.offset) if n is not None]
        return (equal(channels[1], 1) or equal(channels[0], 1)) and all(
            multiple == 1 or (not isinstance(n, Sym) and n % multiple == 0) for n in numbers
        )

    @property
    def is_blas(self) -> bool:
        """True if BLAS takes the view as a matrix, or a batch of matrices, without a copy."""
        if len(self.shape) < 2:
            return len(self.shape) == 0 or positive(self.strides[-1])
        (m, n), (a, b) = self.shape[-2:], self.strides[-2:]
        rows = equal(b, 1) and (positive(a) or equal(m, 1))
        columns = equal(a, 1) and (positive(b) or equal(n, 1))
        return rows or columns

    def permute(self, order: Sequence[int]) -> View:
        return View(tuple(self.shape[i] for i in order), tuple(self.strides[i] for i in order), self.offset)

    def slice(self, axis: int, start: Int, length: Int, step: Int = 1) -> View:
        """Return the view of ``length`` elements along ``axis`` from ``start``, ``step`` apart, which may be
        negative."""
        shape, strides = list(self.shape), list(self.strides)
        offset = self.offset + start * strides[axis]
        shape[axis], strides[axis] = length, strides[axis] * step
        return View(tuple(shape), tuple(strides), offset)

    def expand(self, shape: Sequence[Int], targets: Sequence[int]) -> View | None:
        """Return the view broadcast to ``shape``: axis ``i`` becomes axis ``targets[i]``, with stride 0 if it grows.

        Returns None if it is unknown whether an extent that may be 1 grows. The extents are not checked for a match.
        """
        strides: list[Int] = [0] * len(shape)
        for extent, stride, i in zip(self.shape, self.strides, targets):
            if equal(extent, shape[i]) or bounds(extent)[0] > 1:
                strides[i] = stride
            elif not equal(extent, 1):
                return None
        return View(tuple(shape), tuple(strides), self.offset)

    def reshape(self, shape: Sequence[Int]) -> View | None:
        """Return a view of the same elements, in the same order, in another ``shape``; None if that takes a copy, or if
        it is undecidable."""
        if any(equal(d, 0) for d in shape) or self.is_dense:
            return View(tuple(shape), dense_strides(shape), self.offset)
        runs = self._runs()
        strides: list[Int] = [0] * len(shape)
        axis = len(shape) - 1
        for length, stride in reversed(runs):  # split every run of evenly spaced elements into new axes
            step, count = stride, 1
            while axis >= 0 and not equal(count, length):
                strides[axis] = step
                count, step = count * shape[axis], step * shape[axis]
                axis -= 1
            while axis >= 0 and equal(shape[axis], 1):
                strides[axis] = step
                axis -= 1
            if not equal(count, length):
                return None
        return View(tuple(shape), tuple(strides), self.offset) if axis < 0 else None

    def _runs(self) -> list[tuple[Int, Int]]:
        """Return (length, stride) of the maximal groups of evenly spaced axes; axes of extent 1 are dropped."""
        runs: list[tuple[Int, Int]] = []
        for dim, stride in zip(self.shape, self.strides):
            if equal(dim, 1):
                continue
            if runs and equal(runs[-1][1], stride * dim):
                runs[-1] = (runs[-1][0] * dim, stride)
            else:
                runs.append((dim, stride))
        return runs

    @property
    def size(self) -> Int:
        return product(self.shape)


def equal(a: Int, b: Int) -> bool:
    """Return whether the two are equal for all values of the symbols."""
    return a is b or (not isinstance(a, Sym) and not isinstance(b, Sym) and bool(a == b))


def positive(value: Int) -> bool:
    """Return whether a stride is positive for all values of the symbols; it may be 0 if the tensor has no elements."""
    return bool(value.lo >= 0) if isinstance(value, Sym) else bool(value > 0)
