"""Products with, and rows of, compressed weights, which are never decompressed as a whole; what passes make of MatMul
and Gather."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from ovgpu.ops._op import Array, Op, Workspace
from ovgpu.ops._packed import VECTOR, Packed, affine
from ovgpu.ops._shapes import check_integers
from ovgpu.ops.indexing import readable, signed
from ovgpu.ops.matmul import MatMul
from ovgpu.symbolic import Spec, Sym, product
from ovgpu.types import Type

FEW = 8  # rows of x up to which the kernels decompress in registers
ROWS, WARPS = 2, 4  # of the weights per warp, and of a block; as in compressed.cu
SLICES, MOST = 8, 64  # of rows of the weights per block, as there; parts of them at most
THREADS = 256


@dataclass(frozen=True, eq=False, kw_only=True)
class CompressedMatMul(Op):
    """``x [..., M, K] @ weights``, of [N, K] if ``transpose``, else of [K, N]; inputs as those of `Packed`.

    Weights are decompressed in f32, whatever type the layers that this stands for had on the way: as in OpenVINO's
    plugin, nothing is rounded to f16. ``tile``: how many of them are decompressed at a time, at most, or two rows;
    ``device``: whether by kernels, which need no scratch beside it.
    """

    weights: Packed
    transpose: bool
    tile: int
    device: bool

    name: ClassVar[str] = "MatMul"
    version: ClassVar[str] = "ovgpu"
    aliases: ClassVar[tuple[str, ...]] = ()
    layout = "dense"

    def infer(self, x: Spec, codes: Spec, scale: Spec | None, zero: Spec | None) -> tuple[Spec, ...]:
        shape = MatMul(transpose_b=self.transpose).shape(x.shape, (self.weights.rows, self.weights.columns))
        return (Spec(x.type, shape),)

    @property
    def _axis(self) -> int:
        """The axis of the weights along which the result's columns lie: where they are cut into tiles."""
        return 0 if self.transpose else 1

    @property
    def _extents(self) -> tuple[int, int]:
        """N and K."""
        extents = self.weights.rows, self.weights.columns
        return extents if self.transpose else extents[::-1]

    @property
    def step(self) -> int:
        """The columns of the result in a tile: an even number, so that no byte is cut."""
        n, k = self._extents
        return min(n, max(self.tile // k // 2, 1) * 2)

    def evaluate(self, xp: Any, x: Any, codes: Any, scale: Any = None, zero: Any = None) -> tuple[Any, ...]:
        matrix = self.weights.matrix(xp, codes, scale, zero)
        return (xp.asarray(xp.matmul(x, matrix.T if self.transpose else matrix)),)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        """A tile; for NumPy scratch of `Packed.unpack`, and x and a tile's results in f32 if they have another type."""
        x = inputs[0]
        assert x is not None and x.shape is not None
        depth, count = self._extents[1], product(x.shape[:-1])
        elements = self.step * depth + 1
        if self.device:
            few = not isinstance(count, Sym) and count <= FEW
            return () if few and self.transpose else ((Type.f32, (elements,)),)
        scratch: Workspace = ((Type.f32, (elements,)), (Type.i64, (self.weights.bytes_of(elements),)))
        if x.type != Type.f32:
            scratch = (*scratch, (Type.f32, (count * depth,)), (Type.f32, (count * self.step,)))
        return scratch

    def numpy(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> None:
        n, depth = self._extents
        k(self._product, inputs[0].reshape(-1, depth), outputs[0].reshape(-1, n), *inputs[1:], *workspace)

    def _product(self, x: Array, out: Array, codes: Array, scale: Array | None, zero: Array | None, tile: Array,
                 index: Array, wide: Array | None = None, sums: Array | None = None) -> None:
        """Tile by tile; a scale per column of the result multiplies that."""
        n, axis = out.shape[1], self._axis
        after = scale is not None and scale.shape[1 - axis] == 1
        if wide is not None:
            wide = wide[: x.size].reshape(x.shape)
            np.copyto(wide, x)
            x = wide
        for start in range(0, n, self.step):
            stop = min(start + self.step, n)
            part = self.weights.part(codes, axis, start, stop, tile, index)
            of_scale, of_zero = (_cut(t, axis, start, stop) for t in (scale, zero))
            affine(part, None if after else of_scale, of_zero)
            place = out[:, start:stop]
            target = place if sums is None else sums[: place.size].reshape(place.shape)
            np.matmul(x, part if axis else part.T, target)
            if after:
                np.multiply(target, of_scale.reshape(-1), target)  # type: ignore[union-attr]
            if sums is not None:
                np.copyto(place, target, casting="unsafe")

    def cuda(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> Any:
        x, out = inputs[0], outputs[0]
        n, depth = self._extents
        if not out.size:
            return None
        x, out = x.reshape(-1, depth), out.reshape(-1, n)
        if len(x) > FEW:
            return self._panels(k, x, out, inputs[1:], workspace[0])
        if self.transpose:
            self._by_rows(k, x, out, inputs[1:])
        else:
            self._by_columns(k, x, out, inputs[1:], workspace[0])
        return None

    def _by_rows(self, k: Any, x: Any, out: Any, stored: Sequence[Any]) -> None:
        """Each row of the weights by all of x."""
        (m, depth), n = x.shape, out.shape[1]
        vector = 1 if depth % VECTOR or x.data.ptr % 16 else VECTOR
        batch = 1 if m == 1 else 4
        k.kernel("compressed.cu", f"product<{self._types(k, stored)}, {k.c_type(x.dtype)}, {vector}, {batch}>",
                 (-(-n // (ROWS * WARPS)), -(-m // batch)), (32, WARPS),
                 (x, out, *self.weights.arguments(*stored), *map(np.int32, (m, n, depth))))

    def _by_columns(self, k: Any, x: Any, out: Any, stored: Sequence[Any], parts: Any) -> None:
        """Columns of the weights by all of x, a part of the rows per block, so that there are blocks for every
        multiprocessor."""
        (m, depth), n = x.shape, out.shape[1]
        vector = 1 if n % VECTOR else VECTOR
        batch = 1 if m == 1 else 4
        across, down = -(-n // (32 * vector)), -(-m // batch)
        most = min(2 * k.multiprocessors // (across * down), depth // (4 * SLICES), parts.size // (m * n), MOST)
        count = max(most, 1)
        target, kind = (out, x.dtype) if count == 1 else (parts, parts.dtype)
        types = f"{self._types(k, stored)}, {k.c_type(x.dtype)}, {k.c_type(kind)}"
        k.kernel("compressed.cu", f"product_columns<{types}, {vector}, {batch}>", (across, down, count), (32, SLICES),
                 (x, target, *self.weights.arguments(*stored), *map(np.int32, (m, n, depth))))
        if count > 1:
            k.kernel("compressed.cu", f"add_parts<{k.c_type(x.dtype)}>", (-(-m * n // THREADS),), (THREADS,),
                     (parts, out, np.int32(count), np.int32(m * n)))

    def _types(self, k: Any, stored: Sequence[Any]) -> str:
        return self.weights.c_types(k.c_type, *stored[1:])

    def _panels(self, k: Any, x: Any, out: Any, stored: Sequence[Any], tile: Any) -> Any:
        """A product of cuBLAS for each tile."""
        n, depth = self._extents
        tile = tile.view(x.dtype)
        for start in range(0, n, self.step):
            width = min(self.step, n - start)
            shape, place = ((width, depth), (start, 0)) if self.transpose else ((depth, width), (0, start))
            part = tile[: width * depth].reshape(shape)
            expand(k, self.weights, part, stored, place)
            if not k.gemm(x, part.T if self.transpose else part, out[:, start : start + width]):
                return NotImplemented
        return None


def _cut(term: Array | None, axis: int, start: int, stop: int) -> Array | None:
    """The part of scales or zero points that belongs to rows, or columns, ``start`` to ``stop``."""
    if term is None or term.shape[axis] == 1:
        return term
    return term[:, start:stop] if axis else term[start:stop]


def expand(k: Any, weights: Packed, out: Any, stored: Sequence[Any], place: tuple[int, int] = (0, 0),
           indices: Any = None) -> None:
    """Records the kernel that decompresses a part of weights that begins at ``place``, or rows by number, into the
    dense matrix ``out``; ``stored`` are codes, scale and zero point."""
    rows, columns = out.shape
    vector = 1 if any(n % VECTOR for n in (columns, weights.columns, place[1])) or out.data.ptr % 16 else VECTOR
    types = weights.c_types(k.c_type, *stored[1:])
    index = "None" if indices is None else k.c_type(indices.dtype)
    k.kernel("compressed.cu", f"expand<{types}, {k.c_type(out.dtype)}, {index}, {vector}>",
             (-(-columns // (vector * THREADS)), min(rows, 2**16 - 1)), (THREADS,),
             (out, indices, *weights.arguments(*stored),
              *map(np.int32, (rows, columns, *place, weights.rows, weights.columns))))


@dataclass(frozen=True, eq=False, kw_only=True)
class CompressedGather(Op):
    """Rows of weights by number: ``indices [...] -> [..., columns]`` of the type ``kind``; inputs as those of `Packed`.

    Indices count as those of Gather do; out of range, they give zeros.
    """

    weights: Packed
    kind: Type

    name: ClassVar[str] = "Gather"
    version: ClassVar[str] = "ovgpu"
    aliases: ClassVar[tuple[str, ...]] = ()
    layout = "dense"
    exact = True

    def infer(self, codes: Spec, indices: Spec, scale: Spec | None, zero: Spec | None) -> tuple[Spec, ...]:
        check_integers(indices, "indices", ranks=None)
        return (Spec(self.kind, None if indices.shape is None else (*indices.shape, self.weights.columns)),)

    def evaluate(self, xp: Any, codes: Any, indices: Any, scale: Any = None, zero: Any = None) -> tuple[Any, ...]:
        rows = self.weights.rows
        index = signed(xp, indices).reshape(-1)
        index = xp.where(index < 0, index + rows, index)
        outside = (index < 0) | (index >= rows)
        index = xp.where(outside, 0, index)
        found = self.weights.taken(xp, codes, index)
        affine(found, *(t if t is None or len(t) == 1 else t[index] for t in (scale, zero)))
        found[outside] = 0
        return (found.astype(self.kind.storage, copy=False).reshape(*indices.shape, self.weights.columns),)

    def cuda(self, k: Any, inputs: Sequence[Any], outputs: Sequence[Any], workspace: Sequence[Any]) -> Any:
        codes, indices, scale, zero = inputs
        out = outputs[0]
        indices = readable(k, indices)
        if indices is NotImplemented:
            return NotImplemented
        if out.size:
            expand(k, self.weights, out.reshape(-1, self.weights.columns), (codes, scale, zero), indices=indices)
        return None
