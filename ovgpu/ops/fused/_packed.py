"""Matrices of weights as they are stored: codes of 4 to 16 bits, with scales and zero points for blocks of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import Any

import numpy as np

from ovgpu.ops.base.op import Array, call
from ovgpu.ops.base.storage import decode
from ovgpu.ops.base.strided import reciprocal
from ovgpu.types import Type

VECTOR = 8  # codes that a thread of compressed.cu takes at once

_DECODERS = {Type.f8e4m3: "E4M3", Type.f8e5m2: "E5M2"}


@dataclass(frozen=True)
class Tile:
    """Some ``matrices`` of weights, of which rows or columns, as ``axis`` says, are ``cut``."""

    axis: int
    matrices: slice
    cut: slice


@dataclass(frozen=True)
class Packed:
    """``rows`` x ``columns`` numbers ``(value of the code - zero) * scale``, computed in f32.

    Codes lie row by row: those of 4 bits in bytes, the first one in the low bits; others in a matrix. A scale or zero
    point [R, C], if there is one, belongs to blocks of rows / R by columns / C codes. ``table``: the values of the 16
    codes of 4 bits, or of 256 codes of u8 that are no numbers themselves. The rows may be those of several
    ``matrices``, one after the other.
    """

    kind: Type
    rows: int
    columns: int
    table: tuple[float, ...] = ()
    matrices: int = 1

    @property
    def shape(self) -> tuple[int, int]:
        """Of each matrix."""
        return self.rows // self.matrices, self.columns

    @property
    def is_nibbles(self) -> bool:
        return self.kind.bitwidth == 4

    @cached_property
    def _values(self) -> Array | None:
        """What each byte stands for, as items of one or of two floats; None where a cast tells."""
        every = np.arange(256)
        if self.is_nibbles:
            pairs = np.array(self.table, np.float32)[np.stack([every & 15, every >> 4], 1)]
            return pairs.view(np.int64).reshape(-1)
        if self.table:
            return np.array(self.table, np.float32)
        return decode(every.astype(np.uint8).view(self.kind.storage)) if self.kind in _DECODERS else None

    def unpack(self, codes: Array, out: Array, index: Array) -> None:
        """Writes the values of ``codes``, without scales, into ``out`` of as many dense floats; ``index`` is i64
        scratch of as many elements as there are bytes."""
        if self._values is None:
            np.copyto(out, codes, casting="unsafe")
            return
        index = index[: codes.size].reshape(codes.shape)
        np.copyto(index, codes)
        np.take(self._values, index, 0, out.view(self._values.dtype), "clip")

    def bytes_of(self, elements: int) -> int:
        """The length of `unpack`'s scratch for so many codes."""
        return 0 if self._values is None else -(-elements // 2) if self.is_nibbles else elements

    def tile(self, axis: int, room: int, unit: int = 1) -> tuple[int, int]:
        """How many matrices a tile of at most ``room`` codes has, and how much of them along ``axis``: matrices as a
        whole, or an even number of ``unit`` of one, so that no byte is cut."""
        extent, other = self.shape[axis], self.shape[1 - axis]
        if extent * other <= room:
            return min(room // (extent * other), self.matrices), extent
        return 1, min(extent, max(room // (other * unit) // 2, 1) * 2 * unit)

    def tiles(self, axis: int, room: int, unit: int = 1) -> Iterator[Tile]:
        """All of them in turn."""
        count, step = self.tile(axis, room, unit)
        for first in range(0, self.matrices, count):
            for start in range(0, self.shape[axis], step):
                yield Tile(axis, slice(first, min(first + count, self.matrices)),
                           slice(start, min(start + step, self.shape[axis])))

    def place(self, tile: Tile) -> tuple[tuple[int, int], tuple[int, ...]]:
        """The row and the column at which a tile begins, and its extents: matrices, rows, columns."""
        extents = [tile.matrices.stop - tile.matrices.start, *self.shape]
        extents[1 + tile.axis] = tile.cut.stop - tile.cut.start
        first = tile.matrices.start * self.shape[0]
        return (first, tile.cut.start) if tile.axis else (first + tile.cut.start, 0), tuple(extents)

    def chosen(self, codes: Array, tile: Tile) -> Array:
        """The codes of a tile as they are stored. Of codes of 4 bits it begins with a byte, and the number of columns
        is even, if those are cut."""
        (row, column), shape = self.place(tile)
        each = 1 + self.is_nibbles
        if tile.axis:
            codes = codes.reshape(self.matrices, self.shape[0], -1)
            return codes[tile.matrices, :, column // each : -(-(column + shape[2]) // each)]
        first = row * self.columns
        return codes.reshape(-1)[first // each : -(-(first + prod(shape)) // each)]

    def part(self, codes: Array, tile: Tile, out: Array, index: Array, k: Any = call) -> Array:
        """A tile without scales, in the dense floats of ``out``; ``k`` does the calls, or records them."""
        _, shape = self.place(tile)
        chosen = self.chosen(codes, tile)
        each = 1 + self.is_nibbles
        k(self.unpack, chosen, out[: chosen.size * each].reshape(*chosen.shape[:-1], -1), index)
        return out[: prod(shape)].reshape(shape)

    def terms(self, term: Array | None, tile: Tile) -> Array | None:
        """The scales or zero points of a tile: [matrices, R, C], where there is one for all along an axis of 1."""
        if term is None:
            return None
        term = term.reshape(1 if len(term) == 1 else self.matrices, -1, term.shape[1])
        if len(term) > 1:
            term = term[tile.matrices]
        count, extent = term.shape[1 + tile.axis], self.shape[tile.axis]
        if count == 1:
            return term
        cut = slice(tile.cut.start * count // extent, tile.cut.stop * count // extent)
        return term[:, :, cut] if tile.axis else term[:, cut]

    def values(self, xp: Any, codes: Array, rows: int) -> Array:
        """The values of the codes of so many rows, without scales, as a fresh matrix."""
        if self._values is None:
            found = codes.astype(np.float32)
        else:
            found = xp.take(xp.asarray(self._values), codes.reshape(-1)).view(np.float32)
        return found.reshape(-1)[: rows * self.columns].reshape(rows, self.columns)

    def taken(self, xp: Any, codes: Array, numbers: Array) -> Array:
        """The values of rows by number, as `values`."""
        if self.is_nibbles and self.columns % 2:
            place = numbers[:, None] * self.columns + xp.arange(self.columns)
            return xp.asarray(np.array(self.table, np.float32))[codes[place >> 1] >> (place & 1) * 4 & 15]
        return self.values(xp, codes.reshape(self.rows, -1)[numbers], len(numbers))

    def matrix(self, xp: Any, codes: Array, scale: Array | None, zero: Array | None) -> Array:
        """All of it."""
        found = self.values(xp, codes, self.rows)
        affine(found, scale, zero)
        return found

    # ---- for compressed.cu

    def c_types(self, c_type: Any, scale: Array | None, zero: Array | None) -> str:
        """The kernels' parameters: decoder, types of scale and zero point."""
        if self.table:
            decoder = "Nibbles" if self.is_nibbles else "Codebook"
        else:
            decoder = _DECODERS.get(self.kind) or f"Cast<{c_type(self.kind.storage)}>"
        return ", ".join([decoder, *("None" if t is None else c_type(t.dtype) for t in (scale, zero))])

    def arguments(self, codes: Array, scale: Array | None, zero: Array | None) -> list[Any]:
        """The kernels' struct Weights, and what it points to."""
        table = np.array(self.table or (0,), np.float32)
        terms = [self._term(t) for t in (scale, zero)]
        return [codes, scale, zero, np.concatenate([table.view(np.int32), *terms])]

    def _term(self, term: Array | None) -> Array:
        """The struct Term: how the index of a scale or zero point follows from row and column."""
        rows, columns = (1, 1) if term is None else term.shape
        block = self.columns // columns
        numbers = [columns, *reciprocal(self.rows // rows), *reciprocal(block), term is None or block % VECTOR == 0]
        return np.array(numbers, np.int64).astype(np.int32)


def affine(values: Array, scale: Array | None, zero: Array | None) -> None:
    """``(values - zero) * scale`` in place, for blocks of a dense matrix."""
    for term, name in ((zero, "subtract"), (scale, "multiply")):
        if term is not None:
            shape, spread = _blocks(values.shape, term.shape)
            blocks = values.reshape(shape)
            if name == "subtract":
                blocks -= term.astype(np.float32).reshape(spread)
            else:
                blocks *= term.astype(np.float32).reshape(spread)


def _blocks(shape: Sequence[int], counts: Sequence[int]) -> tuple[list[int], list[int]]:
    """A matrix's shape with an axis for the places in a block, and that of what is the same in each; no axes of 1."""
    cut: list[int] = []
    spread: list[int] = []
    for extent, count in zip(shape, counts):
        if count > 1 or extent == 1:
            cut, spread = [*cut, count], [*spread, count]
        if extent > count:
            cut, spread = [*cut, extent // count], [*spread, 1]
    return cut, spread
