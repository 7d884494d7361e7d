"""Slices of a captured loop iteration, moved by kernels that read the iteration number from device memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ovgpu.backends.cuda.launch import Launcher
from ovgpu.ops.base.op import Array
from ovgpu.ops.base.strided import THREADS, Axes, strides_of
from ovgpu.runtime.backend import Call
from ovgpu.types import Type

MAX_PARTS = 16  # as in cuda_kernels/loop.cu
MAX_BLOCKS = 256  # per part; if it is larger, their threads loop over it
HEADER_WORDS, TENSOR_WORDS = 3, 5  # 64-bit words of loop.cu's structs Iteration and SlicedTensor


class Slicing:
    """Slices of one loop, see `ovgpu.runtime.backend.Slicing`."""

    def __init__(self, cupy: Any, stream: Any, incoming: int, outgoing: int) -> None:
        self.cupy, self.stream = cupy, stream
        self.incoming, self.count = incoming, incoming + outgoing
        self.table = cupy.empty((HEADER_WORDS + TENSOR_WORDS * self.count,), np.int64)
        self.counting = self.count > 0  # whether anything uses the iteration number

    def number(self, dtype: Type, shape: tuple[int, ...]) -> Array | None:
        byte_offsets = {Type.i64: 0, Type.i32: 16}  # of the number in loop.cu's struct Iteration
        if dtype not in byte_offsets:
            return None
        self.counting = True
        return self.cupy.ndarray(shape, dtype.storage, memptr=self.table.data + byte_offsets[dtype])

    def begin(
        self, trips: int, first: Sequence[Array], second: Sequence[Array], parts: Sequence[Array]
    ) -> Sequence[Call] | None:
        if not self.counting:
            return ()
        # Iteration -1 precedes the first one. The third word holds -1 as i32, and then 0 blocks that have arrived.
        words = [-1, trips, 0xFFFFFFFF]
        for a, b in zip(first, second, strict=True):
            rows = _describe_rows(a)
            if rows is None:
                return None
            words += [a.data.ptr, b.data.ptr - a.data.ptr, *rows]
        launcher = Launcher(self.stream, None)
        launcher.copy(np.array(words, np.int64), self.table)
        return [*launcher.calls, *self.advance(parts)]

    def advance(self, parts: Sequence[Array]) -> Sequence[Call]:
        if not self.counting:
            return ()
        launcher = Launcher(self.stream, None)
        addresses = np.zeros(MAX_PARTS, np.int64)
        addresses[: len(parts)] = [part.data.ptr for part in parts]
        blocks = -(-max([part.nbytes for part in parts], default=1) // (16 * THREADS))
        grid = min(max(blocks, 1), MAX_BLOCKS), max(self.count, 1)
        launcher.kernel(
            "loop.cu",
            "next_iteration",
            grid,
            (THREADS,),
            (self.table, self.table[HEADER_WORDS:], addresses, np.int32(self.incoming), np.int32(len(parts))),
        )
        return launcher.calls


def _describe_rows(part: Array) -> tuple[int, int, int] | None:
    """Return (row pitch in bytes, number of rows, bytes per row) of a slice, None if it is not rows of dense memory."""
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
