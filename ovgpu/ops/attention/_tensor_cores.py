"""Launches of attention on tensor cores. These kernels round the weights of the softmax to the type of the values.

`attention_stream.cu` streams keys through registers, for few queries or small batches in f16 and bf16;
`attention_mma.cu` (FlashAttention-2, Dao 2023) stages keys in shared memory, for more queries, and in TF32. Both split
the keys among blocks (flash-decoding, Dao et al. 2023) where few blocks would leave multiprocessors idle. These blocks
merge their sums in a cluster if the device has clusters, else through memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ovgpu.ops.attention._operands import Operands
from ovgpu.ops.attention._splits import BLOCKS_PER_SM, WARPS, Splits, cluster_bytes
from ovgpu.ops.base.op import Array
from ovgpu.ops.base.recorder import KernelRecorder

TILE_QUERIES = 64  # rows of q per block of `attend_mma`, or twice as many
STREAMED_ROWS = 32  # the most rows of q per block of `attend_stream`
STREAMED_WIDTH = 128  # the most elements of a row for which `attend_stream` has registers
TF32_WIDTH = 128  # the most elements of a row for which `attend_mma` has shared memory in f32
# A trip is one iteration of a block's loop over the keys
MERGE_TRIPS = 6  # trips of `attend_stream` that take as long as merging sums through memory
CLUSTER_TRIPS = 2  # trips of `attend_stream` that take as long as merging sums in a cluster
MIN_PART_TRIPS = 2  # the least trips of `attend_mma` through a part of the keys
MAX_PARTS = 16  # the most parts of the keys in `attend_mma`: more take long to merge through memory
BAND = 64  # keys per tile of a mask, as in attention_marks.cuh
MIN_MARKED = 256  # the least queries, and keys, for which classifying the mask's tiles beforehand saves time
CODE = "signed char"  # type of codes in kernels


def can_stream(x: Operands) -> bool:
    """Return whether `attend_stream` takes the operands: elements of 16 bits, in short rows that can be read 16 bytes
    at a time."""
    return x.q.dtype.itemsize == 2 and x.vector > 1 and max(x.depth, x.width) <= STREAMED_WIDTH


def can_stage(x: Operands) -> bool:
    """Return whether `attend_mma` takes the operands: keys in pages only if it copies 16 bytes at a time."""
    return x.table is None or (x.vector > 1 and x.writes_pairs)


def streams(k: KernelRecorder, x: Operands) -> bool:
    """Return whether `attend_stream` is the first choice for operands that it takes: if there are few queries, or so
    few tiles of queries that `attend_mma` would leave multiprocessors idle."""
    return x.rows <= STREAMED_ROWS or x.axes.size * -(-x.rows // TILE_QUERIES) < k.multiprocessors


def stream(k: KernelRecorder, x: Operands) -> bool:
    """Record the kernel that streams keys through registers. Return True, as it takes all that `can_stream` accepts."""
    depth, width = -(-x.depth // 32) * 32, -(-x.width // 64) * 64
    step = 32 if max(depth, width) <= 64 else 16  # keys that a warp takes at a time
    trips = x.keys // (WARPS * step)
    splittable = trips if trips > MERGE_TRIPS else 1
    fills_device = x.axes.size * -(-x.rows // STREAMED_ROWS) * splittable >= k.multiprocessors
    rows = 8 if x.rows <= 8 else 32 if x.rows > 16 and step == 32 and fills_device else 16
    blocks = x.axes.size * -(-x.rows // rows)
    splits = Splits.of_cluster(k, blocks, trips if trips > CLUSTER_TRIPS else 1) or Splits.of(
        k, blocks, splittable, (rows, width + 4)
    )
    new_token, second_halves = (None,) * 4, (0, 0)
    if x.new_token is not None:
        # the second halves of cos and sin begin at E / 2; at 0 if they have E / 2 elements, because both halves agree
        new_token = x.new_token.arrays
        second_halves = tuple(factor.shape[-1] // depth * depth // 2 for factor in x.new_token.arrays[2:])
    kernel, index = x.kernel(k), x.axes.index
    out = CODE if x.codes is not None else kernel.split(",")[0]
    last_arguments = x.template(k, str(x.new_token is not None).lower(), out, str(splits.is_cluster).lower())
    k.kernel(
        "attention_stream.cu",
        f"attend_stream<{kernel}, {depth}, {width}, {rows}, {step}, {index}, {x.axes.rank}, {last_arguments}>",
        splits.grid(blocks),
        (WARPS * 32,),
        (*x.arguments(), *splits.scratch, *new_token, *x.axes.numbers(*second_halves), *x.code_arguments(), x.heads()),
        4 * WARPS * rows * (width + 4) + splits.shared(rows, width),
        early=True,
        cluster=splits.cluster,
        otherwise=lambda other: stream(other, x),
    )
    return True


def attend_grouped(k: KernelRecorder, x: Operands, rounds: bool) -> bool:
    """Record `attend_mma` with heads that share their keys as rows of one tile, or with keys split among blocks, or
    both. Return False, and record nothing, if neither applies or multiprocessors would be idle. f32 is rounded to TF32
    if ``rounds``."""
    if not (x.vector > 1 and x.writes_pairs and x.new_token is None and x.codes is None):
        return False
    tiles = 2 if x.sharing * x.queries > TILE_QUERIES and max(x.depth, x.width) <= (64 if rounds else 128) else 1
    for sizes in (_TileSizes.of(x.depth, x.width, n, rounds) for n in range(tiles, 0, -1)):
        grouped = x.grouped(sizes.rows) if x.queries < MIN_MARKED else x
        blocks, max_splits = grouped.axes.size * -(-grouped.rows // sizes.rows), x.keys // (MIN_PART_TRIPS * sizes.keys)
        at_once = k.shared_limit // max(sizes.shared(grouped), cluster_bytes(sizes.rows, sizes.width))
        splits = Splits.of_cluster(k, blocks, max_splits, min(BLOCKS_PER_SM, at_once)) if at_once else None
        count = splits.count if splits else min(BLOCKS_PER_SM * k.multiprocessors // blocks, max_splits, MAX_PARTS)
        differs = grouped is not x or count > 1  # from `attend_mma` below
        if differs and blocks * max(count, 1) >= 0.9 * k.multiprocessors and grouped.axes.index == "int":
            splits = splits or Splits.of(k, blocks, count, (sizes.rows, sizes.width + 4), WARPS)
            _launch(
                k,
                grouped,
                sizes,
                splits,
                rounds,
                lambda other: attend_grouped(other, x, rounds) or attend_mma(other, x, rounds),
            )
            return True
    return False


def attend_mma(k: KernelRecorder, x: Operands, rounds: bool) -> bool:
    """Record `attend_mma` with blocks that have rows of one head each, and all its keys. f32 is rounded to TF32 if
    ``rounds``. Return True."""
    many = x.rows > 2 * TILE_QUERIES and x.axes.size * -(-x.rows // (2 * TILE_QUERIES)) >= k.multiprocessors
    # two tiles of 16 queries per warp read less shared memory, where registers suffice for both
    tiles = (
        2
        if many
        and max(x.depth, x.width) <= (64 if rounds else 128)
        and x.vector > 1
        and (x.writes_pairs and x.axes.index == "int")
        else 1
    )
    _launch(k, x, _TileSizes.of(x.depth, x.width, tiles, rounds), None, rounds)
    return True


@dataclass(frozen=True)
class _TileSizes:
    """Sizes of `attend_mma`: elements of a key (``depth``) and of a value (``width``), rounded up; ``tiles`` of 16
    queries per warp; ``keys`` that are staged at a time; bytes per element."""

    depth: int
    width: int
    tiles: int
    keys: int
    itemsize: int

    @staticmethod
    def of(depth: int, width: int, tiles: int, rounds: bool) -> _TileSizes:
        depth, width = (max(-(-n // 16) * 16, 16) for n in (depth, width))
        keys = 64 if tiles * width <= 160 else 32 if max(depth, width) <= 192 else 16
        if rounds:
            keys = 32 if max(depth, width) <= 64 else 16
        return _TileSizes(depth, width, tiles, keys, 4 if rounds else 2)

    @property
    def rows(self) -> int:
        """The number of rows of q per block."""
        return self.tiles * TILE_QUERIES

    def shared(self, x: Operands) -> int:
        """Return the bytes of shared memory of a block."""
        nbytes = self.itemsize * (self.rows * self.depth + 2 * self.keys * (self.depth + self.width))
        if x.mask is not None and x.mask_rows:
            nbytes += (self.rows if x.mask_rows > 1 else 1) * (self.keys * x.mask.itemsize + 16)
        return nbytes


def _launch(
    k: KernelRecorder,
    x: Operands,
    sizes: _TileSizes,
    splits: Splits | None,
    rounds: bool,
    otherwise: Callable[[KernelRecorder], object] | None = None,
) -> None:
    """Record `attend_mma`; without ``splits``, each block has all keys. If the device refuses the cluster,
    ``otherwise`` records another kernel."""
    vector = x.vector if x.writes_pairs else 1
    marks = _mark_mask_tiles(k, x) if vector > 1 and x.length is None and x.table is None else None
    kernel, blocks, splits = x.kernel(k), x.axes.size * -(-x.rows // sizes.rows), splits or Splits()
    parts = (
        "IN_CLUSTER"
        if splits.is_cluster
        else "IN_MEMORY"
        if splits.count > 1
        else ("GROUPED" if x.rows > x.queries else "WHOLE")
    )
    out = CODE if x.codes is not None else kernel.split(",")[0]
    k.kernel(
        "attention_mma.cu",
        f"attend_mma<{kernel}, {sizes.depth}, {sizes.width}, {sizes.tiles}, {sizes.keys}, "
        f"{vector}, {x.axes.index}, {x.axes.rank}, {x.template(k, out, parts)}>",
        splits.grid(blocks),
        (WARPS * 32,),
        (*x.arguments(), marks, *x.code_arguments(), x.heads(), *splits.scratch),
        max(sizes.shared(x), splits.shared(sizes.rows, sizes.width)),
        tf32=rounds,
        early=True,
        cluster=splits.cluster,
        otherwise=otherwise,
    )


def _mark_mask_tiles(k: KernelRecorder, x: Operands) -> Array | None:
    """Record the kernel that classifies the tiles of a (queries, keys) mask that several heads share, and return its
    marks. Return None if it does not take the mask, or if that would save no time."""
    mask, heads, extents = x.mask, x.axes.size, (x.rows, x.keys)
    if (
        mask is None
        or x.causal
        or mask.shape[-2:] != extents
        or min(extents) < MIN_MARKED
        or x.keys % 8
        or 2 * mask.size > heads * x.rows * x.keys
        or not mask.flags.c_contiguous
        or mask.data.ptr % (8 * mask.itemsize)
    ):
        return None
    strips, tiles, planes = -(-x.rows // (2 * TILE_QUERIES)) * 8, -(-x.keys // BAND), mask.size // (x.rows * x.keys)
    marks = k.scratch((planes, tiles, strips), np.dtype(np.uint8))
    k.kernel(
        "attention_marks.cu",
        f"mark_tiles<{x.kernel(k)}>",
        (strips, planes),
        (512,),
        (mask, np.int32(x.rows), np.int32(x.keys), marks),
        tiles,
        early=True,
    )
    return marks
