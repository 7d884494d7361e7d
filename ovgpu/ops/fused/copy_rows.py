"""Internal ops on the states of sequences that share a batch: copies of rows, and copies and moves of
tokens in KV caches."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from math import gcd, prod
from typing import Any, ClassVar

import numpy as np

from ovgpu.ops.base.op import Arrays, Op, internal_op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder
from ovgpu.ops.base.strided import THREADS, bits

MAX_PAIRS = 256  # pairs of rows, or moves, in one launch
MAX_TOKEN_ROWS = 128  # slots whose tokens are copied in one launch
COUNTS = (2, 8, 32)  # pairs of tensors, or caches, that a launch takes by value
MAX_BLOCKS = 64  # blocks that copy one row of one tensor
CLEAR = 0xFFFFFFFF  # instead of a target: the kernel writes zeros


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
            (np.array(table, np.int64), np.array(row_indices, np.uint16)),
        )


@internal_op
class CopyTokens(Op):
    """Copies of the tokens of slots between KV caches ``source_0, target_0, source_1, target_1, ...``, without outputs.

    Caches are dense, ``[slots, ..., capacity, ...]`` with tokens along ``axis``. A source and its target differ only in
    slots and capacity, or are the same array. For all (a, b, copied, end) in ``slots``, the first ``copied`` tokens of
    slot a of the source are copied to slot b of the target, whose tokens from ``copied`` to ``end`` become zero.
    """

    axis: int
    slots: tuple[tuple[int, int, int, int], ...]

    name: ClassVar[str] = "CopyTokens"

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        between = (slice(None),) * (self.axis - 1)
        for source, target in _pairs(inputs):
            for a, b, copied, end in self.slots:
                if source is not target:
                    k(_copy, source, (a, *between, slice(0, copied)), target, (b, *between, slice(0, copied)))
                k(target.__setitem__, (b, *between, slice(copied, end)), 0)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        longest = max((end for *_, end in self.slots), default=0)
        copies = [
            (
                source.data.ptr,
                target.data.ptr,
                prod(target.shape[1 : self.axis]),
                prod(target.shape[self.axis + 1 :]) * target.dtype.itemsize,
                source.shape[self.axis],
                target.shape[self.axis],
            )
            for source, target in _pairs(inputs)
            if target.size and longest
        ]
        for part in _parts(copies, COUNTS[-1]):
            width = gcd(16, *(n for source, target, _, inner, *_ in part for n in (source, target, inner)))
            count = next(n for n in COUNTS if n >= len(part))
            table = [
                n for source, target, outer, inner, *capacities in part
                for n in (source, target, outer, inner // width, *capacities)
            ]  # fmt: skip
            table += [0] * (6 * count - len(table))
            largest = max(outer * longest * inner for _, _, outer, inner, *_ in part)
            blocks = min(-(-largest // width // THREADS), MAX_BLOCKS)
            for slots in _parts(self.slots, MAX_TOKEN_ROWS):
                columns = np.zeros((4, MAX_TOKEN_ROWS), np.uint32)
                columns[:, : len(slots)] = np.array(slots).T
                packed = columns[2:].tobytes() + columns[:2].astype(np.uint16).tobytes()
                k.kernel(
                    "rows.cu",
                    f"copy_tokens<{bits(width)}, {count}>",
                    (blocks, len(slots), len(part)),
                    (THREADS,),
                    (np.array(table, np.int64), np.frombuffer(packed, np.uint8)),
                )


@internal_op
class MoveRows(Op):
    """Moves of tokens within KV caches ``[slots, ..., capacity, ...]``, in place. Tokens lie along ``axis``.

    For all pairs (slot, target) in ``moves``, ``count`` tokens from token ``source`` on are moved to token ``target``
    <= source. In the slots ``cleared``, they become zero where they are.
    """

    axis: int
    source: int
    count: int
    moves: tuple[tuple[int, int], ...]
    cleared: tuple[int, ...] = ()

    name: ClassVar[str] = "MoveRows"

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        between = (slice(None),) * (self.axis - 1)
        tokens = slice(self.source, self.source + self.count)
        for cache in inputs:
            for slot, target in self.moves:
                k(_copy, cache, (slot, *between, tokens), cache, (slot, *between, slice(target, target + self.count)))
            if self.cleared:
                k(cache.__setitem__, (list(self.cleared), *between, tokens), 0)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        caches = [
            (
                x.data.ptr,
                prod(x.shape[1 : self.axis]),
                x.shape[self.axis],
                prod(x.shape[self.axis + 1 :]) * x.dtype.itemsize,
            )
            for x in inputs
            if x.size
        ]
        for part in _parts(caches, COUNTS[-1]):
            width = gcd(16, *(n for pointer, _, _, inner in part for n in (pointer, inner)))
            count = next(n for n in COUNTS if n >= len(part))
            table = [n for pointer, outer, capacity, inner in part for n in (pointer, outer, capacity, inner // width)]
            table += [0] * (4 * count - len(table))
            blocks = min(max(-(-outer * inner // width // THREADS) for _, outer, _, inner in part), MAX_BLOCKS)
            for moves in _parts((*self.moves, *((slot, CLEAR) for slot in self.cleared)), MAX_PAIRS):
                free = (0,) * (MAX_PAIRS - len(moves))
                packed = struct.pack(
                    f"{MAX_PAIRS}I{MAX_PAIRS}H", *(to for _, to in moves), *free, *(slot for slot, _ in moves), *free
                )
                k.kernel(
                    "rows.cu",
                    f"move_rows<{bits(width)}, {count}>",
                    (blocks, len(moves), len(part)),
                    (THREADS,),
                    (
                        np.array(table, np.int64),
                        np.frombuffer(packed, np.uint8),
                        np.uint32(self.source),
                        np.uint32(self.count),
                    ),
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
