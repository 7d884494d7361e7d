"""Internal op on the states of sequences that share a batch: copies of rows, or of pages of KV caches."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd, prod
from typing import Any, ClassVar

import numpy as np

from ovgpu.ops.base.op import Arrays, Op, internal_op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.strided import THREADS, bits

MAX_PAIRS = 256  # pairs of rows in one launch
COUNTS = (2, 8, 32)  # pairs of tensors that a launch takes by value
MAX_BLOCKS = 64  # blocks that copy one row of one tensor


@internal_op
class CopyRows(Op):
    """Copies of rows: ``source_0, target_0, source_1, target_1, ...`` of dense tensors, without outputs.

    Row ``a`` of a source is copied to row ``b`` of its target for all pairs (a, b) in ``rows``. The rows of tensor i
    lie along axis ``axes[i]``. A source and its target differ only in the number of rows. If they share memory, no row
    is both read and written.
    """

    axes: tuple[int, ...]
    rows: tuple[tuple[int, int], ...]

    name: ClassVar[str] = "CopyRows"

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        taken, put = ([pair[i] for pair in self.rows] for i in (0, 1))
        for axis, (source, target) in zip(self.axes, _pairs(inputs)):
            before = (slice(None),) * axis
            k(_copy, source, (*before, taken), target, (*before, put))

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        copies = [
            _described(axis, source, target)
            for axis, (source, target) in zip(self.axes, _pairs(inputs))
            if source.size and target.size
        ]
        for part in _parts(copies, COUNTS[-1]):
            for pairs in _parts(self.rows, MAX_PAIRS):
                self._launch(k, part, pairs)

    def _launch(self, k: KernelRecorder, copies: Sequence[tuple[int, ...]], pairs: Sequence[tuple[int, int]]) -> None:
        width = gcd(16, *(n for copy in copies for n in copy[:2]), *(copy[3] for copy in copies))
        count = next(n for n in COUNTS if n >= len(copies))
        table = [
            n for source, target, outer, inner, *rows in copies for n in (source, target, outer, inner // width, *rows)
        ]
        table += [0] * (6 * count - len(table))
        row_indices = [n for i in (0, 1) for n in (*(pair[i] for pair in pairs), *(0,) * (MAX_PAIRS - len(pairs)))]
        blocks = min(max(-(-outer * inner // width // THREADS) for _, _, outer, inner, *_ in copies), MAX_BLOCKS)
        k.kernel(
            "rows.cu",
            f"copy_rows<{bits(width)}, {count}>",
            (blocks, len(pairs), len(copies)),
            (THREADS,),
            (np.array(table, np.int64), np.array(row_indices, np.uint32)),
        )


def _pairs(inputs: Arrays) -> Sequence[tuple[Any, Any]]:
    return list(zip(inputs[::2], inputs[1::2]))


def _copy(source: Any, taken: Any, target: Any, put: Any) -> None:
    target[put] = source[taken]


def _described(axis: int, source: Any, target: Any) -> tuple[int, ...]:
    """Return (source address, target address, outer extent, bytes of the inner extents, source rows, target rows)."""
    return (
        source.data.ptr,
        target.data.ptr,
        prod(source.shape[:axis]),
        prod(source.shape[axis + 1 :]) * source.dtype.itemsize,
        source.shape[axis],
        target.shape[axis],
    )


def _parts(values: Sequence[Any], size: int) -> list[Sequence[Any]]:
    return [values[i : i + size] for i in range(0, len(values), size)]
