"""Products with compressed weights on NumPy: tile by tile in cache, with few passes over each tile.

Zero points are not applied to the tiles, and neither are scales unless there are many: with scale s, zero point z and
codes c of a group, the sum of ``x * (c - z) * s`` is ``s * (sum of x * c) - s * z * (sum of x)``.
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
from ovgpu.ops.base.recorder import HostRecorder
from ovgpu.ops.base.tasks import WORKERS, record, workers
from ovgpu.ops.fused._packed import Packed, Tile
from ovgpu.symbolic import Int, maximum, minimum
from ovgpu.types import Type

FEW_ROWS = 16  # rows of x up to which the sums of groups are scaled instead of the weights
DENSE_ROWS = 64  # rows of x up to which BLAS gains more from dense columns of x than the transposition costs
PARALLEL_BYTES = 1 << 18  # bytes of codes from which on workers share the product
BROAD_FACTOR = 4  # factor of the tile size for more rows, because BLAS packs x again for each tile

# 4-bit integers, by the values of their codes: the bits to flip to get excess-K (offset binary) codes, and the excess.
_EXCESS_CODES = {tuple(float(i) for i in range(16)): (0x00, 0), tuple(float((i ^ 8) - 8) for i in range(16)): (0x88, 8)}


@dataclass(frozen=True)
class PackedProduct:
    """The product ``x [1 or E, M, K] @ weights``, with weights [E, N, K] if ``transpose``, else [E, K, N].

    ``tile``: codes that are decompressed at a time for few rows of x. ``scales``, ``zeros``: how many different scales
    and zero points there are along K.
    """

    weights: Packed
    transpose: bool
    tile: int
    scales: int
    zeros: int
    centred: bool = True  # True if u8 with zero points is read as i8: less cancellation if the zero points are large

    @property
    def axis(self) -> int:
        """The axis of the weights that becomes the result's columns; along it the weights are cut into tiles."""
        return 0 if self.transpose else 1

    @property
    def depth(self) -> int:
        """The extent K."""
        return self.weights.shape[1 - self.axis]

    @property
    def groups(self) -> int:
        """The number of runs along K that have one scale and one zero point."""
        return lcm(self.scales or 1, self.zeros or 1)

    @cached_property
    def excess_code(self) -> tuple[int, int] | None:
        """The bits to flip and the excess, as in `_EXCESS_CODES`, of codes that are then cast to floats; None if
        `Packed.unpack` converts them. The two codes of a byte must belong to one group."""
        if self.weights.is_nibbles:
            together = self.transpose and self.depth // self.groups % 2 == 0
            return _EXCESS_CODES.get(self.weights.table) if together else None
        centred = self.weights.dtype == Type.u8 and not self.weights.table and self.zeros and self.centred
        return (0x80, -128) if centred else None

    @property
    def halves(self) -> int:
        """The number of halves of a tile: two if bytes hold two codes that are cast to floats separately, else one."""
        return 2 if self.weights.is_nibbles and self.excess_code is not None else 1

    @property
    def offset(self) -> int:
        """The excess of a tile's values, which is subtracted from the products."""
        return 0 if self.excess_code is None else self.excess_code[1]

    def workspace(self, elements: Int, rows: Int) -> Workspace:
        """Return the workspace: per worker a tile and bytes to decompress it; x in columns, and its sums over groups;
        the products of all tiles, and per worker the sums of groups. ``elements`` is the size of x, ``rows`` is M."""
        count, step = self.weights.tile(self.axis, self._tile_elements(rows))
        buffer = (count * step * self.depth // 16 + 1) * 16  # at least one more; workers' parts are aligned to vectors
        scratch = 8 * (self.weights.bytes_of(buffer) if self.excess_code is None else -(-buffer // 8))
        width = count * step
        groups = width * FEW_ROWS * self.halves * self.groups if self.scales > 1 else 0
        results = minimum(rows, FEW_ROWS) * self.weights.matrices * self.weights.shape[self.axis]
        return (
            (Type.f32, (WORKERS * buffer,)),
            (Type.u8, (WORKERS * scratch,)),
            (Type.f32, (elements,)),
            (Type.f32, (elements // self.depth * self.groups,)),
            (Type.f32, (results,)),
            (Type.f32, (WORKERS * maximum(rows * width, groups),)),
        )

    def _tile_elements(self, rows: Int) -> int:
        return self.tile if isinstance(rows, int) and rows <= DENSE_ROWS else BROAD_FACTOR * self.tile

    def __call__(
        self, k: HostRecorder, x: Array, out: Array, stored: Sequence[Any], workspace: Sequence[Array]
    ) -> None:
        """Record the product with ``stored``: codes, scales or None, and zero points or None."""
        if not out.size:
            return
        codes, *quant_params = stored
        rows, depth = x.shape[1:]
        *memory, target, totals, results, sums = workspace
        columns = self._columns(k, x, target)
        totals = totals[: x.size // depth * self.groups].reshape(len(x), rows, self.groups)
        k(np.add.reduce, x.reshape(*totals.shape, depth // self.groups), 3, np.float32, totals)
        totals = totals.swapaxes(1, 2)
        few = rows <= FEW_ROWS  # then scales and zero points are applied once, after all tiles
        matrices, extent = self.weights.matrices, self.weights.shape[self.axis]
        results = results[: rows * matrices * extent].reshape(matrices, extent, rows) if few else results
        work = workers(codes.nbytes >= PARALLEL_BYTES)
        tiles = list(self.weights.tiles(self.axis, self._tile_elements(rows)))
        for worker, tile in zip(cycle(work), tiles):
            every = slice(None) if len(columns) == 1 else tile.matrices
            buffer, scratch, own = (worker.share(part) for part in (*memory, sums))
            part = self._part(worker, codes, tile, buffer, scratch)
            scale, zero = (self._quant_params(values, tile) for values in quant_params)
            products = (
                results[tile.matrices, tile.cut]
                if few
                else own[: rows * part[..., 0].size].reshape(*part.shape[:2], rows)
            )
            self._multiply(worker, part, columns[every], scale, products, own)
            if not few:
                worker(self._scale_products, products, totals[every], scale, zero, out[tile.matrices, :, tile.cut])
        record(k, work)
        if few:
            whole = Tile(self.axis, slice(0, matrices), slice(0, extent))
            scale, zero = (self._quant_params(values, whole) for values in quant_params)
            k(self._scale_products, results, totals, scale, zero, out)

    def _columns(self, k: HostRecorder, x: Array, target: Array) -> Array:
        """Return x as [1 or E, K, M] in f32, with K in the order of `_part`."""
        batch, rows, depth = x.shape
        cut = self.halves, depth // self.halves
        target = (
            target[: x.size].reshape(batch, *cut, rows)
            if rows <= DENSE_ROWS
            else target[: x.size].reshape(batch, rows, *cut).transpose(0, 2, 3, 1)
        )
        x = x.swapaxes(1, 2)
        if self.halves == 1:
            k(np.copyto, target[:, 0], x)
        else:  # the byte is low + 16 high: low * a + high * b = low * (a - b / 16) + byte * (b / 16)
            k(np.copyto, target[:, 0], x[:, 0::2])
            k(np.copyto, target[:, 1], x[:, 1::2])
            k(np.multiply, target[:, 1], np.float32(1 / 16), target[:, 1])
            k(np.subtract, target[:, 0], target[:, 1], target[:, 0])
        return target.reshape(batch, depth, rows)

    def _part(self, k: HostRecorder, codes: Array, tile: Tile, buffer: Array, scratch: Array) -> Array:
        """Return a tile in f32, [matrices, columns of the result, K], without scales and zero points. The values are
        too large by `offset`. With two codes per byte, the low codes of all bytes come first, then the whole bytes."""
        if self.excess_code is None:
            part = self.weights.part(codes, tile, buffer, scratch.view(np.int64), k)
            return part if self.transpose else part.swapaxes(1, 2)
        codes, flipped = self.weights.tile_codes(codes, tile), self.excess_code[0]
        bytes_ = scratch[: codes.size].reshape(codes.shape)
        if flipped:
            k(np.bitwise_xor, codes, np.uint8(flipped), bytes_)
            codes = bytes_
        _, shape = self.weights.location(tile)
        part = buffer[: codes.size * self.halves].reshape(shape)
        if self.halves == 1:
            k(np.copyto, part, codes.view(np.int8).reshape(shape))
            return part if self.transpose else part.swapaxes(1, 2)
        halves = part.reshape(-1, 2, self.depth // 2)
        k(np.copyto, halves[:, 1], codes.reshape(-1, self.depth // 2))
        k(np.bitwise_and, codes, np.uint8(15), bytes_)
        k(np.copyto, halves[:, 0], bytes_.reshape(-1, self.depth // 2))
        return part

    def _quant_params(self, values: Array | None, tile: Tile) -> Array | None:
        """Return a tile's scales or zero points: [matrices, columns of the result, groups]; each extent may be 1."""
        values = self.weights.quant_params(values, tile)
        return values if values is None or self.transpose else values.swapaxes(1, 2)

    def _spread(self, values: Array) -> Array:
        """Return scales or zero points in f32, one per group or one for all groups."""
        values = values.astype(np.float32)
        return values if values.shape[2] == 1 else np.repeat(values, self.groups // values.shape[2], 2)

    def _multiply(
        self, k: HostRecorder, part: Array, columns: Array, scale: Array | None, products: Array, sums: Array
    ) -> None:
        """Record the products of a tile, [matrices, columns of the result, M], scaled if scales differ by group."""
        if self.scales <= 1 or scale is None:
            k(np.matmul, part, columns, products)
            return
        matrices, width, depth = part.shape
        batch, _, rows = columns.shape
        groups, count = self.halves * self.groups, depth // (self.halves * self.groups)
        if rows > FEW_ROWS:
            k(self._scale, part.reshape(matrices, width, self.halves, self.groups, count), scale)
            k(np.matmul, part, columns, products)
            return
        sums = sums[: matrices * groups * width * rows].reshape(matrices, groups, width, rows)
        k(
            np.matmul,
            part.reshape(matrices, width, groups, count).swapaxes(1, 2),
            columns.reshape(batch, groups, count, rows),
            sums,
        )
        k(self._scale, sums.reshape(matrices, self.halves, self.groups, width, rows).transpose(0, 3, 1, 2, 4), scale)
        k(np.add.reduce, sums, 1, None, products)

    def _scale(self, values: Array, scale: Array) -> None:
        """Multiply ``values``, [matrices, columns of the result, halves, groups, any], by the scales of groups."""
        values *= self._spread(scale)[:, :, None, :, None]

    def _scale_products(
        self, products: Array, totals: Array, scale: Array | None, zero: Array | None, out: Array
    ) -> None:
        """Write products [matrices, columns of the result, M] into ``out`` [matrices, M, columns]. Subtract the zero
        points' contribution, and multiply by the scale if all groups share one."""
        by = None if scale is None else self._spread(scale)
        if zero is not None or self.offset:
            less = np.float32(self.offset) + (np.zeros((1, 1, 1), np.float32) if zero is None else self._spread(zero))
            products -= np.matmul(less if by is None or self.scales == 1 else less * by, totals)
        if by is not None and self.scales == 1:
            products *= by
        np.copyto(out, products.swapaxes(1, 2), casting="unsafe")
