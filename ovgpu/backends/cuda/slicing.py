"""The parts that a captured iteration of a loop reads and writes, moved by an iteration number in device memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.base.op import Array
from ovgpu.ops.base.strided import THREADS, Axes, strides_of
from ovgpu.runtime.backend import Call
from ovgpu.types import Type

PARTS = 16  # as in cuda_kernels/loop.cu
BLOCKS = 256  # per part at most: threads go on with what these leave
HEAD, WHOLE = 3, 5  # words of struct Iteration and of struct Whole


class Slicing:
    """See `ovgpu.runtime.backend.Slicing`."""

    def __init__(self, cupy: Any, stream: Any, incoming: int, outgoing: int) -> None:
        self.cupy, self.stream = cupy, stream
        self.incoming, self.count = incoming, incoming + outgoing
        self.table = cupy.empty((HEAD + WHOLE * self.count,), np.int64)
        self.counted = self.count > 0

    def number(self, kind: Type, shape: tuple[int, ...]) -> Array | None:
        places = {Type.i64: 0, Type.i32: 16}
        if kind not in places:
            return None
        self.counted = True
        return self.cupy.ndarray(shape, kind.storage, memptr=self.table.data + places[kind])

    def begin(self, trips: int, first: Sequence[Array], second: Sequence[Array],
              parts: Sequence[Array]) -> Sequence[Call] | None:
        if not self.counted:
            return ()
        words = [-1, trips, 0xFFFFFFFF]
        for a, b in zip(first, second, strict=True):
            found = _rows(a)
            if found is None:
                return None
            words += [a.data.ptr, b.data.ptr - a.data.ptr, *found]
        launcher = Launcher(self.stream, None)
        launcher.copy(np.array(words, np.int64), self.table)
        return [*launcher.calls, *self.advance(parts)]

    def advance(self, parts: Sequence[Array]) -> Sequence[Call]:
        if not self.counted:
            return ()
        launcher = Launcher(self.stream, None)
        addresses = np.zeros(PARTS, np.int64)
        addresses[: len(parts)] = [part.data.ptr for part in parts]
        blocks = -(-max([part.nbytes for part in parts], default=1) // (16 * THREADS))
        grid = min(max(blocks, 1), BLOCKS), max(self.count, 1)
        launcher.kernel("loop.cu", "next_iteration", grid, (THREADS,), (
            self.table, self.table[HEAD:], addresses, np.int32(self.incoming), np.int32(len(parts))))
        return launcher.calls


def _rows(part: Array) -> tuple[int, int, int] | None:
    """(bytes between rows, rows, bytes of a row) of a part of a tensor; None if it is not rows of dense memory."""
    if not part.size:
        return 0, 0, 0
    size = part.dtype.itemsize
    axes = Axes.collapse(part.shape, strides_of(part))
    extents, strides = axes.extents, axes.strides[0]
    if not extents or strides[-1] != 1:  # rows of one element
        extents, strides = (*extents, 1), (*strides, 1)
    if len(extents) > 2:
        return None
    row = extents[-1] * size
    return (row, 1, row) if len(extents) == 1 else (strides[0] * size, extents[0], row)
