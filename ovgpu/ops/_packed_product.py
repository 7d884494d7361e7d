"""Products with compressed weights on NumPy: tile by tile in cache, with few passes over each.

Zero points stay out of the tiles, and so do scales unless there are many: with scale s, zero point z and codes c of a
group, the sum of ``x * (c - z) * s`` is ``s * (sum of x * c) - s * z * (sum of x)``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import lcm
from typing import Any

import numpy as np

from ovgpu.ops._lanes import LANES, Lane, record
from ovgpu.ops._op import Array, Workspace, call
from ovgpu.ops._packed import Packed, Tile
from ovgpu.symbolic import Int
from ovgpu.types import Type

FEW = 16  # rows of x up to which sums of groups are scaled, not weights
DENSE = 64  # rows of x up to which BLAS gains from their columns being dense more than transposing takes
TURNS = 4  # tiles for each lane at least
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
        """For each lane a tile, scratch of bytes to decompress it, and its results; x in columns. ``elements`` are
        those of x, ``rows`` the M of a matrix."""
        count, step = self.weights.tile(self.axis, self._room(rows))
        room = (count * step * self.depth // 16 + 1) * 16  # one more at least, and lanes begin with vectors
        scratch = 8 * (self.weights.bytes_of(room) if self.counted is None else -(-room // 8))
        width = count * step
        sums = width * FEW * self.halves * self.groups if self.scales > 1 else 0
        each = _lanes(rows)
        return ((Type.f32, (each * room,)), (Type.u8, (each * scratch,)), (Type.f32, (elements,)),
                (Type.f32, (each * (rows * width + sums),)))

    def _room(self, rows: Int) -> int:
        return self.tile if isinstance(rows, int) and rows <= DENSE else BROAD * self.tile

    def __call__(self, x: Array, out: Array, codes: Array, scale: Array | None, zero: Array | None, room: Array,
                 scratch: Array, columns: Array, sums: Array) -> None:
        if not out.size:
            return
        columns, totals = self._columns(x, columns), self._totals(x)
        tiles = list(self.weights.tiles(self.axis, self._room(x.shape[1])))
        count = _lanes(x.shape[1]) if len(tiles) >= TURNS * LANES else 1
        work = [Lane(number, count) for number in range(count)]
        for lane in work:
            memory = [lane.share(part) for part in (room, scratch, sums)]
            for tile in tiles[lane.number :: count]:
                lane(self._multiply, tile, columns, totals, out, codes, scale, zero, *memory)
        record(call, work)

    def _multiply(self, tile: Tile, columns: Array, totals: Array, out: Array, codes: Array, scale: Array | None,
                  zero: Array | None, room: Array, scratch: Array, sums: Array) -> None:
        every = slice(None) if len(columns) == 1 else tile.matrices
        by, less = self._term(scale, tile), self._term(zero, tile, self.offset)
        found = self._sums(self._part(codes, tile, room, scratch), columns[every], by, sums)
        if less is not None:
            found -= np.matmul(less * by if self.scales > 1 else less, totals[every])
        if self.scales == 1:
            found *= by
        np.copyto(out[tile.matrices, :, tile.cut], found.swapaxes(1, 2), casting="unsafe")

    def _columns(self, x: Array, to: Array) -> Array:
        """x as [1 or E, K, M] in f32, as it multiplies `_part`."""
        batch, rows, depth = x.shape
        cut = self.halves, depth // self.halves
        to = (to[: x.size].reshape(batch, *cut, rows) if rows <= DENSE else
              to[: x.size].reshape(batch, rows, *cut).transpose(0, 2, 3, 1))
        x = x.swapaxes(1, 2)
        if self.halves == 1:
            np.copyto(to[:, 0], x)
        else:  # the byte is low + 16 high: low * a + high * b = low * (a - b / 16) + byte * (b / 16)
            np.copyto(to[:, 0], x[:, 0::2])
            np.copyto(to[:, 1], x[:, 1::2])
            to[:, 1] *= np.float32(1 / 16)
            to[:, 0] -= to[:, 1]
        return to.reshape(batch, depth, rows)

    def _totals(self, x: Array) -> Array:
        """The sums of x over groups, [1 or E, groups, M]."""
        batch, rows, depth = x.shape
        groups = x.reshape(batch, rows, self.groups, depth // self.groups)
        return np.add.reduce(groups, 3, np.float32).swapaxes(1, 2)

    def _part(self, codes: Array, tile: Tile, room: Array, scratch: Array) -> Array:
        """A tile in f32, without scales and zero points, and exceeding by `offset`: [matrices, columns of the result,
        K]. Of halves, the low ones of all bytes come first, then the bytes."""
        if self.counted is None:
            part = self.weights.part(codes, tile, room, scratch.view(np.int64))
            return part if self.transpose else part.swapaxes(1, 2)
        codes = self.weights.chosen(codes, tile)
        bytes_ = np.bitwise_xor(codes, np.uint8(self.counted[0]), scratch[: codes.size].reshape(codes.shape))
        _, shape = self.weights.place(tile)
        part = room[: codes.size * self.halves].reshape(shape)
        if self.halves == 1:
            np.copyto(part, bytes_.view(np.int8).reshape(shape))
            return part if self.transpose else part.swapaxes(1, 2)
        halves, bytes_ = part.reshape(-1, 2, self.depth // 2), bytes_.reshape(-1, self.depth // 2)
        np.copyto(halves[:, 1], bytes_)
        np.copyto(halves[:, 0], np.bitwise_and(bytes_, np.uint8(15), bytes_))
        return part

    def _term(self, term: Any, tile: Tile, more: int = 0) -> Any:
        """Scales or zero points of a tile in f32, and so much more: [matrices, columns of the result, groups], or 1 for
        any of these. None if there are none, and they are not needed."""
        if term is None:
            return np.full((1, 1, 1), more, np.float32) if more else None
        term = self.weights.terms(term, tile)
        term = (term if self.transpose else term.swapaxes(1, 2)).astype(np.float32)
        term += np.float32(more)
        return term if term.shape[2] == 1 else np.repeat(term, self.groups // term.shape[2], 2)

    def _sums(self, part: Array, columns: Array, by: Any, sums: Array) -> Array:
        """The products of a tile, [matrices, columns of the result, M], by the scales of groups if there are some."""
        matrices, width, depth = part.shape
        batch, _, rows = columns.shape
        if self.scales > 1:
            groups, count = self.halves * self.groups, depth // (self.halves * self.groups)
            cut = part.reshape(matrices, width, self.halves, self.groups, count)
            if rows <= FEW:
                found = sums[: matrices * groups * width * rows].reshape(matrices, groups, width, rows)
                np.matmul(cut.reshape(matrices, width, groups, count).swapaxes(1, 2),
                          columns.reshape(batch, groups, count, rows), found)
                halves = found.reshape(matrices, self.halves, self.groups, width, rows)
                halves *= by.swapaxes(1, 2)[:, None, :, :, None]
                return np.add.reduce(found, 1)
            cut *= by[:, :, None, :, None]
        return np.matmul(part, columns, sums[: matrices * width * rows].reshape(matrices, width, rows))


def _lanes(rows: Int) -> int:
    """One row takes one: its calls are too short to take turns."""
    return 1 if isinstance(rows, int) and rows == 1 else LANES
