"""Products with compressed weights on NumPy: tile by tile in cache, with few passes over each.

Zero points stay out of the tiles, and so do scales unless there are many: with scale s, zero point z and codes c of a
group, the sum of ``x * (c - z) * s`` is ``s * (sum of x * c) - s * z * (sum of x)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import cycle
from math import lcm
from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array, Workspace
from ovgpu.ops.base.tasks import WORKERS, record, workers
from ovgpu.ops.fused._packed import Packed, Tile
from ovgpu.symbolic import Int, maximum, minimum
from ovgpu.types import Type

FEW = 16  # rows of x up to which sums of groups are scaled, not weights
DENSE = 64  # rows of x up to which BLAS gains from their columns being dense more than transposing takes
WORTH = 1 << 18  # bytes of codes that are worth sharing out among the cores
BROAD = 4  # tiles at a time by more rows, which BLAS packs anew for each

# Integers of 4 bits by the values of their codes: what to flip for codes that count from 0, and how much those exceed.
_COUNTED = {tuple(float(i) for i in range(16)): (0x00, 0), tuple(float((i ^ 8) - 8) for i in range(16)): (0x88, 8)}


@dataclass(frozen=True)
class PackedProduct:
    """``x [1 or E, M, K] @ weights`` of [E, N, K] if ``transpose``, else of [E, K, N], with so many different scales
    and zero points along K, which are 0 if there are none. ``tile``: codes that are decompressed at a time for few rows
    of x."""

    weights: Packed
    transpose: bool
    tile: int
    scales: int
    zeros: int
    centred: bool = True  # whether u8 with zero points is read as i8: what then cancels is small if those are large

    @property
    def axis(self) -> int:
        """The axis of the weights along which the result's columns lie: where they are cut into tiles."""
        return 0 if self.transpose else 1

    @property
    def depth(self) -> int:
        return self.weights.shape[1 - self.axis]

    @property
    def groups(self) -> int:
        """Runs along K of one scale and one zero point."""
        return lcm(self.scales or 1, self.zeros or 1)

    @cached_property
    def counted(self) -> tuple[int, int] | None:
        """How codes become numbers that are cast, as in `_COUNTED`; None where `Packed.unpack` knows.

        The two codes of a byte must belong to one group.
        """
        if self.weights.is_nibbles:
            together = self.transpose and self.depth // self.groups % 2 == 0
            return _COUNTED.get(self.weights.table) if together else None
        centred = self.weights.kind == Type.u8 and not self.weights.table and self.zeros and self.centred
        return (0x80, -128) if centred else None

    @property
    def halves(self) -> int:
        """The codes of a byte that lie apart in a tile."""
        return 2 if self.weights.is_nibbles and self.counted is not None else 1

    @property
    def offset(self) -> int:
        """How much is to be subtracted from all of a tile."""
        return 0 if self.counted is None else self.counted[1]

    def workspace(self, elements: Int, rows: Int) -> Workspace:
        """For each worker a tile, and scratch of bytes to decompress it; x in columns, and its sums over groups; the
        products of all tiles and what each worker adds up for them. ``elements`` are those of x, ``rows`` the M of a
        matrix."""
        count, step = self.weights.tile(self.axis, self._room(rows))
        room = (count * step * self.depth // 16 + 1) * 16  # one more at least, and workers begin with vectors
        scratch = 8 * (self.weights.bytes_of(room) if self.counted is None else -(-room // 8))
        width = count * step
        groups = width * FEW * self.halves * self.groups if self.scales > 1 else 0
        results = minimum(rows, FEW) * self.weights.matrices * self.weights.shape[self.axis]
        return ((Type.f32, (WORKERS * room,)), (Type.u8, (WORKERS * scratch,)), (Type.f32, (elements,)),
                (Type.f32, (elements // self.depth * self.groups,)), (Type.f32, (results,)),
                (Type.f32, (WORKERS * maximum(rows * width, groups),)))

    def _room(self, rows: Int) -> int:
        return self.tile if isinstance(rows, int) and rows <= DENSE else BROAD * self.tile

    def __call__(self, k: Any, x: Array, out: Array, stored: Sequence[Any], workspace: Sequence[Array]) -> None:
        """Records the product with the ``stored`` codes, scales and zero points, or None."""
        if not out.size:
            return
        codes, *terms = stored
        rows, depth = x.shape[1:]
        *memory, to, totals, results, sums = workspace
        columns = self._columns(k, x, to)
        totals = totals[: x.size // depth * self.groups].reshape(len(x), rows, self.groups)
        k(np.add.reduce, x.reshape(*totals.shape, depth // self.groups), 3, np.float32, totals)
        totals = totals.swapaxes(1, 2)
        few = rows <= FEW  # whose results wait for scales and zero points until all are there
        matrices, extent = self.weights.matrices, self.weights.shape[self.axis]
        results = results[: rows * matrices * extent].reshape(matrices, extent, rows) if few else results
        work = workers(codes.nbytes >= WORTH)
        tiles = list(self.weights.tiles(self.axis, self._room(rows)))
        for worker, tile in zip(cycle(work), tiles):
            every = slice(None) if len(columns) == 1 else tile.matrices
            room, scratch, mine = (worker.share(part) for part in (*memory, sums))
            part = self._part(worker, codes, tile, room, scratch)
            scale, zero = (self._term(term, tile) for term in terms)
            found = results[tile.matrices, tile.cut] if few else mine[: rows * part[..., 0].size].reshape(
                *part.shape[:2], rows)
            self._multiply(worker, part, columns[every], scale, found, mine)
            if not few:
                worker(self._scale_products, found, totals[every], scale, zero, out[tile.matrices, :, tile.cut])
        record(k, work)
        if few:
            whole = Tile(self.axis, slice(0, matrices), slice(0, extent))
            k(self._scale_products, results, totals, *(self._term(term, whole) for term in terms), out)

    def _columns(self, k: Any, x: Array, to: Array) -> Array:
        """x as [1 or E, K, M] in f32, as it multiplies `_part`."""
        batch, rows, depth = x.shape
        cut = self.halves, depth // self.halves
        to = (to[: x.size].reshape(batch, *cut, rows) if rows <= DENSE else
              to[: x.size].reshape(batch, rows, *cut).transpose(0, 2, 3, 1))
        x = x.swapaxes(1, 2)
        if self.halves == 1:
            k(np.copyto, to[:, 0], x)
        else:  # the byte is low + 16 high: low * a + high * b = low * (a - b / 16) + byte * (b / 16)
            k(np.copyto, to[:, 0], x[:, 0::2])
            k(np.copyto, to[:, 1], x[:, 1::2])
            k(np.multiply, to[:, 1], np.float32(1 / 16), to[:, 1])
            k(np.subtract, to[:, 0], to[:, 1], to[:, 0])
        return to.reshape(batch, depth, rows)

    def _part(self, k: Any, codes: Array, tile: Tile, room: Array, scratch: Array) -> Array:
        """A tile in f32, without scales and zero points, and exceeding by `offset`: [matrices, columns of the result,
        K]. Of halves, the low ones of all bytes come first, then the bytes."""
        if self.counted is None:
            part = self.weights.part(codes, tile, room, scratch.view(np.int64), k)
            return part if self.transpose else part.swapaxes(1, 2)
        codes, flipped = self.weights.chosen(codes, tile), self.counted[0]
        bytes_ = scratch[: codes.size].reshape(codes.shape)
        if flipped:
            k(np.bitwise_xor, codes, np.uint8(flipped), bytes_)
            codes = bytes_
        _, shape = self.weights.place(tile)
        part = room[: codes.size * self.halves].reshape(shape)
        if self.halves == 1:
            k(np.copyto, part, codes.view(np.int8).reshape(shape))
            return part if self.transpose else part.swapaxes(1, 2)
        halves = part.reshape(-1, 2, self.depth // 2)
        k(np.copyto, halves[:, 1], codes.reshape(-1, self.depth // 2))
        k(np.bitwise_and, codes, np.uint8(15), bytes_)
        k(np.copyto, halves[:, 0], bytes_.reshape(-1, self.depth // 2))
        return part

    def _term(self, term: Array | None, tile: Tile) -> Array | None:
        """Scales or zero points of a tile: [matrices, columns of the result, groups], or 1 for any of these."""
        term = self.weights.terms(term, tile)
        return term if term is None or self.transpose else term.swapaxes(1, 2)

    def _spread(self, term: Array) -> Array:
        """Terms in f32, one for each group or for all."""
        term = term.astype(np.float32)
        return term if term.shape[2] == 1 else np.repeat(term, self.groups // term.shape[2], 2)

    def _multiply(self, k: Any, part: Array, columns: Array, scale: Array | None, found: Array, sums: Array) -> None:
        """The products of a tile, [matrices, columns of the result, M], by the scales of groups if there are some."""
        if self.scales <= 1 or scale is None:
            k(np.matmul, part, columns, found)
            return
        matrices, width, depth = part.shape
        batch, _, rows = columns.shape
        groups, count = self.halves * self.groups, depth // (self.halves * self.groups)
        if rows > FEW:
            k(self._scale, part.reshape(matrices, width, self.halves, self.groups, count), scale)
            k(np.matmul, part, columns, found)
            return
        sums = sums[: matrices * groups * width * rows].reshape(matrices, groups, width, rows)
        k(np.matmul, part.reshape(matrices, width, groups, count).swapaxes(1, 2),
          columns.reshape(batch, groups, count, rows), sums)
        k(self._scale, sums.reshape(matrices, self.halves, self.groups, width, rows).transpose(0, 3, 1, 2, 4), scale)
        k(np.add.reduce, sums, 1, None, found)

    def _scale(self, values: Array, scale: Array) -> None:
        """[matrices, columns of the result, halves, groups, any] by the scales of groups."""
        values *= self._spread(scale)[:, :, None, :, None]

    def _scale_products(self, found: Array, totals: Array, scale: Array | None, zero: Array | None, out: Array) -> None:
        """Products [matrices, columns of the result, M] into the result [matrices, M, columns]: less zero points, by
        the scale if there is one for all groups."""
        by = None if scale is None else self._spread(scale)
        if zero is not None or self.offset:
            less = np.float32(self.offset) + (np.zeros((1, 1, 1), np.float32) if zero is None else self._spread(zero))
            found -= np.matmul(less if by is None or self.scales == 1 else less * by, totals)
        if by is not None and self.scales == 1:
            found *= by
        np.copyto(out, found.swapaxes(1, 2), casting="unsafe")
