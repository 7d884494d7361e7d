"""Compressed weight matrices as they are stored: codes of 4 to 16 bits, with scales and zero points per block."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array, call
from ovgpu.ops.base.recorder import HostRecorder
from ovgpu.ops.base.storage import decode
from ovgpu.ops.base.strided import reciprocal
from ovgpu.ops.base.xp import Adapter
from ovgpu.types import Type

VECTOR = 8  # codes that a thread of compressed.cu takes at once

_DECODERS = {Type.f8e4m3: "E4M3", Type.f8e5m2: "E5M2"}


@dataclass(frozen=True)
class Tile:
    """A tile of weights: the range ``cut`` of the rows (``axis`` 0) or columns (``axis`` 1) of some ``matrices``."""

    axis: int
    matrices: slice
    cut: slice


@dataclass(frozen=True)
class Packed:
    """Format of a compressed weight matrix [rows, columns] of numbers ``(value(code) - zero) * scale``, in f32.

    Codes are in row-major order: a matrix, or for 4 bits a vector of bytes with the first code in the low bits. The
    scale and the zero point are optional arrays [R, C]: an element belongs to a block of rows / R by columns / C codes.
    ``dtype`` is the type of the codes. ``table``: the values of the 16 codes of 4 bits, or of the 256 codes of u8 that
    index a codebook. The rows may belong to several ``matrices`` of equal size, one after the other.
    """

    dtype: Type
    rows: int
    columns: int
    table: tuple[float, ...] = ()
    matrices: int = 1

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of each matrix."""
        return self.rows // self.matrices, self.columns

    @property
    def is_nibbles(self) -> bool:
        return self.dtype.bitwidth == 4

    @cached_property
    def _values(self) -> Array | None:
        """The values of all 256 bytes, as one float or a pair of floats each; None if a cast gives the values."""
        every = np.arange(256)
        if self.is_nibbles:
            pairs = np.array(self.table, np.float32)[np.stack([every & 15, every >> 4], 1)]
            return pairs.view(np.int64).reshape(-1)
        if self.table:
            return np.array(self.table, np.float32)
        return decode(every.astype(np.uint8).view(self.dtype.storage)) if self.dtype in _DECODERS else None

    def unpack(self, codes: Array, out: Array, index: Array) -> None:
        """Write the values of ``codes``, without scales, into the dense floats of ``out``. ``index`` is i64 scratch,
        one element per byte of codes."""
        if self._values is None:
            np.copyto(out, codes, casting="unsafe")
            return
        index = index[: codes.size].reshape(codes.shape)
        np.copyto(index, codes)
        np.take(self._values, index, 0, out.view(self._values.dtype), "clip")

    def bytes_of(self, elements: int) -> int:
        """Return the number of elements of `unpack`'s scratch for this many codes."""
        return 0 if self._values is None else -(-elements // 2) if self.is_nibbles else elements

    def tile(self, axis: int, max_codes: int, unit: int = 1) -> tuple[int, int]:
        """Return the size of tiles of at most ``max_codes`` codes: (matrices, extent along ``axis``). A tile is whole
        matrices, or an even number of ``unit`` rows or columns of one matrix, so that no byte is split."""
        extent, other = self.shape[axis], self.shape[1 - axis]
        if extent * other <= max_codes:
            return min(max_codes // (extent * other), self.matrices), extent
        return 1, min(extent, max(max_codes // (other * unit) // 2, 1) * 2 * unit)

    def tiles(self, axis: int, max_codes: int, unit: int = 1) -> Iterator[Tile]:
        """Yield all tiles of that size, in order."""
        count, step = self.tile(axis, max_codes, unit)
        for first in range(0, self.matrices, count):
            for start in range(0, self.shape[axis], step):
                yield Tile(
                    axis,
                    slice(first, min(first + count, self.matrices)),
                    slice(start, min(start + step, self.shape[axis])),
                )

    def location(self, tile: Tile) -> tuple[tuple[int, int], tuple[int, ...]]:
        """Return the (row, column) at which a tile begins, and its extents (matrices, rows, columns)."""
        extents = [tile.matrices.stop - tile.matrices.start, *self.shape]
        extents[1 + tile.axis] = tile.cut.stop - tile.cut.start
        first = tile.matrices.start * self.shape[0]
        return (first, tile.cut.start) if tile.axis else (first + tile.cut.start, 0), tuple(extents)

    def tile_codes(self, codes: Array, tile: Tile) -> Array:
        """Return the codes of a tile as they are stored. For 4 bits, the tile must begin at a byte, and have an even
        number of columns if these are cut."""
        (row, column), shape = self.location(tile)
        per_element = 1 + self.is_nibbles
        if tile.axis:
            codes = codes.reshape(self.matrices, self.shape[0], -1)
            return codes[tile.matrices, :, column // per_element : -(-(column + shape[2]) // per_element)]
        first = row * self.columns
        return codes.reshape(-1)[first // per_element : -(-(first + prod(shape)) // per_element)]

    def part(self, codes: Array, tile: Tile, out: Array, index: Array, k: HostRecorder = call) -> Array:
        """Return a tile's values without scales, in the dense floats of ``out``; ``k`` makes or records the calls."""
        _, shape = self.location(tile)
        tile_codes = self.tile_codes(codes, tile)
        per_element = 1 + self.is_nibbles
        k(self.unpack, tile_codes, out[: tile_codes.size * per_element].reshape(*tile_codes.shape[:-1], -1), index)
        return out[: prod(shape)].reshape(shape)

    def quant_params(self, values: Array | None, tile: Tile) -> Array | None:
        """Return the scales or zero points of a tile: [matrices, R, C], with extent 1 along axes that share one."""
        if values is None:
            return None
        values = values.reshape(1 if len(values) == 1 else self.matrices, -1, values.shape[1])
        if len(values) > 1:
            values = values[tile.matrices]
        count, extent = values.shape[1 + tile.axis], self.shape[tile.axis]
        if count == 1:
            return values
        cut = slice(tile.cut.start * count // extent, tile.cut.stop * count // extent)
        return values[:, :, cut] if tile.axis else values[:, cut]

    def values(self, xp: Adapter, codes: Array, rows: int) -> Array:
        """Return the values of the codes of ``rows`` rows, without scales, as a fresh matrix."""
        if self._values is None:
            values = codes.astype(np.float32)
        else:
            values = xp.take(xp.asarray(self._values), codes.reshape(-1)).view(np.float32)
        return values.reshape(-1)[: rows * self.columns].reshape(rows, self.columns)

    def taken(self, xp: Adapter, codes: Array, rows: Array) -> Array:
        """Return the values of the rows with these indices, without scales."""
        if self.is_nibbles and self.columns % 2:
            location = rows[:, None] * self.columns + xp.arange(self.columns)
            return xp.asarray(np.array(self.table, np.float32))[codes[location >> 1] >> (location & 1) * 4 & 15]
        return self.values(xp, codes.reshape(self.rows, -1)[rows], len(rows))

    def matrix(self, xp: Adapter, codes: Array, scale: Array | None, zero: Array | None) -> Array:
        """Return the whole decompressed matrix [rows, columns] in f32."""
        matrix = self.values(xp, codes, self.rows)
        affine(matrix, scale, zero)
        return matrix

    # ---- for compressed.cu

    def c_types(self, c_type: Any, scale: Array | None, zero: Array | None) -> str:
        """Return the kernels' template arguments: decoder, types of scale and zero point."""
        if self.table:
            decoder = "Nibbles" if self.is_nibbles else "Codebook"
        else:
            decoder = _DECODERS.get(self.dtype) or f"Cast<{c_type(self.dtype.storage)}>"
        return ", ".join([decoder, *("None" if t is None else c_type(t.dtype) for t in (scale, zero))])

    def arguments(self, codes: Array, scale: Array | None, zero: Array | None) -> list[Any]:
        """Return the kernels' arguments: codes, scale, zero point, and the struct Weights."""
        table = np.array(self.table or (0,), np.float32)
        indices = [self._quant_param_index(values) for values in (scale, zero)]
        return [codes, scale, zero, np.concatenate([table.view(np.int32), *indices])]

    def _quant_param_index(self, values: Array | None) -> Array:
        """Return the struct QuantParamIndex, which computes the index of a scale or zero point from row and column."""
        rows, columns = (1, 1) if values is None else values.shape
        block = self.columns // columns
        fields = [columns, *reciprocal(self.rows // rows), *reciprocal(block), values is None or block % VECTOR == 0]
        return np.array(fields, np.int64).astype(np.int32)


def affine(values: Array, scale: Array | None, zero: Array | None) -> None:
    """Compute ``(values - zero) * scale`` in place, for the blocks of a dense matrix."""
    for param, name in ((zero, "subtract"), (scale, "multiply")):
        if param is not None and values.size:  # a matrix without rows has no blocks
            shape, spread = _blocks(values.shape, param.shape)
            blocks = values.reshape(shape)
            if name == "subtract":
                blocks -= param.astype(np.float32).reshape(spread)
            else:
                blocks *= param.astype(np.float32).reshape(spread)


def _blocks(shape: Sequence[int], counts: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return a matrix's shape with each axis split into (blocks, elements of a block), and the shape of one number per
    block that broadcasts to it. Axes of extent 1 are left out."""
    cut: list[int] = []
    spread: list[int] = []
    for extent, count in zip(shape, counts):
        if count > 1 or extent == 1:
            cut, spread = [*cut, count], [*spread, count]
        if extent > count:
            cut, spread = [*cut, extent // count], [*spread, 1]
    return cut, spread
