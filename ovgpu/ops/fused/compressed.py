"""Internal ops of MatMul and Gather with compressed weights, which are never decompressed as a whole."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import prod
from typing import Any, ClassVar

import numpy as np

from ovgpu.ops.base.op import Array, Arrays, Op, Workspace, internal_op
from ovgpu.ops.base.recorder import HostRecorder, KernelRecorder, first_of
from ovgpu.ops.base.shapes import check_integers
from ovgpu.ops.base.view import View
from ovgpu.ops.base.xp import Adapter
from ovgpu.ops.fused import _product_mma, _product_tiles
from ovgpu.ops.fused._packed import VECTOR, Packed, affine
from ovgpu.ops.fused._packed_product import PackedProduct
from ovgpu.ops.matrix.matmul import MatMul
from ovgpu.ops.movement.indices import readable, signed
from ovgpu.spec import Spec
from ovgpu.symbolic import Sym, product
from ovgpu.types import Type

CENTRED_ZERO_POINT = 64  # mean zero point of u8 above which codes are read as i8, which makes zero points smaller
FEW_ROWS = 8  # rows of x up to which the kernels decompress in registers
ROWS, WARPS = 2, 4  # rows of the weights per warp, warps per block; as in compressed.cu
SLICES, MAX_PARTS = 8, 64  # slices of the weights' rows per block, as in compressed.cu; the most parts of the rows
THREADS = 256  # per block
MAX_GRID_HEIGHT = 2**16 - 1  # blocks along y, the limit of CUDA; each block then takes several rows


@internal_op
class CompressedMatMul(Op):
    """The product ``x [..., M, K] @ weights``, with weights [N, K] if ``transpose``, else [K, N].

    Inputs are x and the codes, scale and zero point of `Packed`. Weights may have a ``batch`` axis first, [E, N, K] or
    [E, K, N]; if E > 1, x has no batch axis, or one of 1 or E.

    Weights are decompressed in f32 whatever types the replaced layers had: as in OpenVINO's plugin, nothing is rounded
    to f16. ``tile``: the most weights that are decompressed at a time, but at least two rows. ``device``: True if
    kernels decompress them, which need no scratch beside the tile.
    """

    weights: Packed
    transpose: bool
    tile: int
    device: bool
    batch: tuple[int, ...] = ()

    name: ClassVar[str] = "MatMul"
    layout = "dense"
    half_precision = "always"

    def infer_specs(self, x: Spec, codes: Spec, scale: Spec | None, zero: Spec | None) -> tuple[Spec, ...]:
        shape = MatMul(transpose_b=self.transpose).shape(x.shape, (*self.batch, *self.weights.shape))
        return (Spec(x.type, shape),)

    @property
    def _axis(self) -> int:
        """The axis of the weights that becomes the result's columns; along it the weights are cut into tiles."""
        return 0 if self.transpose else 1

    @property
    def _extents(self) -> tuple[int, int]:
        """The extents N and K."""
        extents = self.weights.shape
        return extents if self.transpose else extents[::-1]

    @property
    def tile_elements(self) -> int:
        """The number of elements of a tile."""
        count, step = self.weights.tile(self._axis, self.tile)
        return count * step * self._extents[1]

    def evaluate(
        self, xp: Adapter, x: Array, codes: Array, scale: Array | None = None, zero: Array | None = None
    ) -> tuple[Array, ...]:
        matrices = self.weights.matrix(xp, codes, scale, zero).reshape(*self.batch, *self.weights.shape)
        return (xp.asarray(xp.matmul(x, matrices.swapaxes(-1, -2) if self.transpose else matrices)),)

    def workspace(self, inputs: Sequence[Spec | None], outputs: Sequence[Spec]) -> Workspace:
        """Return the workspace: a tile if kernels need one, or the workspace of `PackedProduct` on the host."""
        x = inputs[0]
        assert x is not None and x.shape is not None
        shape = x.shape if self.weights.matrices == 1 else x.shape[-2:]
        count, elements = product(shape[:-1]), self.tile_elements + 1
        if self.device:
            few = not isinstance(count, Sym) and count <= FEW_ROWS
            return () if few and self.transpose else ((Type.f32, (elements,)),)
        return self._product(*inputs[2:]).workspace(product(x.shape), count)

    def _product(self, *terms: Any, centred: bool = True) -> PackedProduct:
        """Return the product on NumPy for these scales and zero points (arrays, specs or None)."""
        scales, zeros = (
            0 if term is None else term.shape[1] if self.transpose else max(term.shape[0] // self.weights.matrices, 1)
            for term in terms
        )
        return PackedProduct(self.weights, self.transpose, self.tile, scales, zeros, centred)

    def _stacks(self, x: Array, out: Array) -> tuple[Array, Array]:
        """Return x as [1 or E, M, K], and the result as [E, M, N]."""
        n, depth = self._extents
        count = self.weights.matrices
        batch = len(x) if count > 1 and x.ndim > 2 else 1
        rows = x.size // (batch * depth)
        return x.reshape(batch, rows, depth), out.reshape(count, rows, n)

    def numpy(self, k: HostRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        x, *stored = inputs
        centred = stored[2] is not None and bool(np.mean(stored[2], dtype=np.float32) > CENTRED_ZERO_POINT)
        self._product(*stored[1:], centred=centred)(k, *self._stacks(x, outputs[0]), stored, workspace)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        if not outputs[0].size:
            return None
        x, out = self._stacks(inputs[0], outputs[0])
        if x.shape[1] > FEW_ROWS:
            return None if self._by_tiles(k, x, out, inputs[1:], workspace[0]) else NotImplemented
        if self.transpose:
            if not _product_mma.launch_stacked(k, self.weights, x, out, inputs[1:]):
                self._by_rows(k, x, out, inputs[1:])
        else:
            self._by_columns(k, x, out, inputs[1:], workspace[0])
        return None

    def _by_tiles(self, k: KernelRecorder, x: Any, out: Any, stored: Sequence[Any], buffer: Any) -> bool:
        """Record a product of many rows of x: a kernel on tensor cores, or decompression and cuBLAS."""
        panels = partial(self._panels, k, x, out, stored, buffer)
        (count, m, n), depth = out.shape, x.shape[2]
        if not self.transpose or m > _product_tiles.MAX_ROWS:
            return panels()
        tiles = "product_tiles", partial(_product_tiles.launch, k, self.weights, x, out, stored, buffer)
        few = "product_mma", partial(_product_mma.launch_stacked, k, self.weights, x, out, stored)
        tiles_first = _product_tiles.is_usual(k, self.weights, x, stored, buffer)
        groups = max(1 if values is None else values.shape[1] for values in stored[1:])
        question = f"[{m}, {depth}] {x.dtype} x [{count}, {n}, {depth}] {self._types(k, stored)}, groups: {groups}"
        return first_of(k, question, dict([*((tiles, few) if tiles_first else (few, tiles)), ("cuBLAS", panels)]))

    def _by_rows(self, k: KernelRecorder, x: Any, out: Any, stored: Sequence[Any]) -> None:
        """Record a kernel whose warps multiply rows of the weights by all of x."""
        (count, m, n), depth = out.shape, x.shape[2]
        vector = 1 if depth % VECTOR or x.data.ptr % 16 else VECTOR
        batch = 1 if m == 1 else 4
        k.kernel(
            "compressed.cu",
            f"product<{self._types(k, stored)}, {k.c_type(x.dtype)}, {vector}, {batch}>",
            (-(-n // (ROWS * WARPS)), -(-m // batch), count),
            (32, WARPS),
            (x, out, *self.weights.arguments(*stored), *map(np.int32, (m, n, depth, len(x) > 1))),
        )

    def _by_columns(self, k: KernelRecorder, x: Any, out: Any, stored: Sequence[Any], parts: Any) -> None:
        """Record a kernel that multiplies columns of the weights by all of x. Each block takes a part of the rows, so
        that there are blocks for every multiprocessor (split-K)."""
        (matrices, m, n), depth = out.shape, x.shape[2]
        vector = 1 if n % VECTOR else VECTOR
        batch = 1 if m == 1 else 4
        across, down = -(-n // (32 * vector)), -(-m // batch)
        blocks = across * down * matrices
        count = max(min(2 * k.multiprocessors // blocks, depth // (4 * SLICES), parts.size // out.size, MAX_PARTS), 1)
        target, dtype = (out, x.dtype) if count == 1 else (parts, parts.dtype)
        types = f"{self._types(k, stored)}, {k.c_type(x.dtype)}, {k.c_type(dtype)}"
        k.kernel(
            "compressed.cu",
            f"product_columns<{types}, {vector}, {batch}>",
            (across, down, count * matrices),
            (32, SLICES),
            (x, target, *self.weights.arguments(*stored), *map(np.int32, (m, n, depth, len(x) > 1, matrices))),
        )
        if count > 1:
            k.kernel(
                "compressed.cu",
                f"add_parts<{k.c_type(x.dtype)}>",
                (-(-out.size // THREADS),),
                (THREADS,),
                (parts, out, np.int32(count), np.int32(out.size)),
            )

    def _panels(self, k: KernelRecorder, x: Any, out: Any, stored: Sequence[Any], buffer: Any) -> bool:
        """Record for each tile its decompression and a product of cuBLAS. Return False if cuBLAS does not take it."""
        buffer = buffer.view(x.dtype)
        for tile in self.weights.tiles(self._axis, self.tile):
            location, shape = self.weights.location(tile)
            part = buffer[: prod(shape)].reshape(shape)
            expand(k, self.weights, part.reshape(-1, shape[2]), stored, location)
            if not k.gemm(
                x if len(x) == 1 else x[tile.matrices],
                part if self._axis else part.swapaxes(1, 2),
                out[tile.matrices, :, tile.cut],
            ):
                return False
        return True

    def _types(self, k: KernelRecorder, stored: Sequence[Any]) -> str:
        return self.weights.c_types(k.c_type, *stored[1:])


def expand(
    k: KernelRecorder,
    weights: Packed,
    out: Any,
    stored: Sequence[Any],
    location: tuple[int, int] = (0, 0),
    indices: Any = None,
) -> None:
    """Record the kernel that decompresses weights into the dense matrix ``out``: the part that begins at ``location``
    (row, column), or the rows ``indices``. ``stored`` are codes, scale and zero point."""
    rows, columns = out.shape
    vector = 1 if any(n % VECTOR for n in (columns, weights.columns, location[1])) or out.data.ptr % 16 else VECTOR
    types = weights.c_types(k.c_type, *stored[1:])
    index = "None" if indices is None else k.c_type(indices.dtype)
    k.kernel(
        "compressed.cu",
        f"expand<{types}, {k.c_type(out.dtype)}, {index}, {vector}>",
        (-(-columns // (vector * THREADS)), min(rows, MAX_GRID_HEIGHT)),
        (THREADS,),
        (
            out,
            indices,
            *weights.arguments(*stored),
            *map(np.int32, (rows, columns, *location, weights.rows, weights.columns)),
        ),
    )


@internal_op
class SwapAxes(Op):
    """Transposition of the last two axes, if there are two; it surrounds products with weights on the left."""

    name: ClassVar[str] = "SwapAxes"
    exact = True
    half_precision = "promoted"

    def infer_specs(self, x: Spec) -> tuple[Spec, ...]:
        return (Spec(x.type, None if x.shape is None else _swapped(x.shape)),)

    def evaluate(self, xp: Adapter, x: Array) -> tuple[Array, ...]:
        return ((x.swapaxes(-1, -2) if x.ndim > 1 else x).copy(),)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> None:
        x = inputs[0]
        k.copy(x.swapaxes(-1, -2) if x.ndim > 1 else x, outputs[0])

    def view(
        self, inputs: Sequence[View | None], specs: Sequence[Spec | None], outputs: Sequence[Spec]
    ) -> Sequence[View | None]:
        x = inputs[0]
        return [None if x is None else x.permute(_swapped(range(len(x.shape))))]


def _swapped(axes: Sequence[Any]) -> tuple[Any, ...]:
    return (*axes[:-2], *axes[-2:][::-1])


@internal_op
class CompressedGather(Op):
    """Rows of compressed weights by index: ``codes, indices [...], scale, zero -> [..., columns]`` of type ``dtype``.

    Indices count as in Gather: negative ones from the end, and those out of range give zeros.
    """

    weights: Packed
    dtype: Type

    name: ClassVar[str] = "Gather"
    layout = "dense"
    exact = True
    half_precision = "promoted"
    host_in_decode = True
    partial_inputs = (0, 2, 3)

    def infer_specs(self, codes: Spec, indices: Spec, scale: Spec | None, zero: Spec | None) -> tuple[Spec, ...]:
        check_integers(indices, "indices", ranks=None)
        return (Spec(self.dtype, None if indices.shape is None else (*indices.shape, self.weights.columns)),)

    def evaluate(
        self, xp: Adapter, codes: Array, indices: Array, scale: Array | None = None, zero: Array | None = None
    ) -> tuple[Array, ...]:
        rows = self.weights.rows
        index = signed(xp, indices).reshape(-1)
        index = xp.where(index < 0, index + rows, index)
        outside = (index < 0) | (index >= rows)
        index = xp.where(outside, 0, index)
        values = self.weights.taken(xp, codes, index)
        affine(values, *(t if t is None or len(t) == 1 else t[index] for t in (scale, zero)))
        values[outside] = 0
        return (values.astype(self.dtype.storage, copy=False).reshape(*indices.shape, self.weights.columns),)

    def cuda(self, k: KernelRecorder, inputs: Arrays, outputs: Arrays, workspace: Arrays) -> Any:
        codes, indices, scale, zero = inputs
        out = outputs[0]
        indices = readable(k, indices)
        if indices is NotImplemented:
            return NotImplemented
        if out.size:
            expand(k, self.weights, out.reshape(-1, self.weights.columns), (codes, scale, zero), indices=indices)
        return None
